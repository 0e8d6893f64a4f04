// SPDX-License-Identifier: Apache-2.0
//! The commands, each as a function that answers it or returns what must go into the log.

pub(crate) mod acl;
pub(crate) mod channels;
pub(crate) mod client;
pub(crate) mod cluster;
pub(crate) mod config;
pub(crate) mod connection;
pub(crate) mod info;
pub(crate) mod keys;
pub(crate) mod memory_limit;
pub(crate) mod redis;
pub(crate) mod transaction;
