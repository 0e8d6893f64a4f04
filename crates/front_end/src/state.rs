// SPDX-License-Identifier: Apache-2.0
//! The state of one client.

pub(crate) mod client;
pub(crate) mod subscriptions;
pub(crate) mod watched;
