// SPDX-License-Identifier: Apache-2.0
//! The clients that have subscribed to each name.

use std::collections::BTreeMap;

use crate::state::waiter::Waiter;

/// The clients that have subscribed to each name.
pub(crate) type ByName = BTreeMap<Vec<u8>, BTreeMap<u64, Waiter>>;
