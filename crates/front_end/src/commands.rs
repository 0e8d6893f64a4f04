// SPDX-License-Identifier: Apache-2.0
//! The commands, each as a function that answers it or returns what must go into the log.

pub(crate) mod admin;
pub(crate) mod clients;
pub(crate) mod cluster;
pub(crate) mod info;
pub(crate) mod keys;
pub(crate) mod room;
pub(crate) mod transaction;
