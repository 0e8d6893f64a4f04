// SPDX-License-Identifier: Apache-2.0
//! The state of one client.

pub(crate) mod client;
pub(crate) mod client_query;
pub(crate) mod named_command;
pub(crate) mod pause;
pub(crate) mod silence;
pub(crate) mod subscriptions;
pub(crate) mod transaction;
pub(crate) mod waiter;
pub(crate) mod watched_keys;
