// SPDX-License-Identifier: Apache-2.0
//! The name of a connection for those who will tell it something.

/// A connection that waits for an answer: its place and its client's id, as another client may get
/// the same place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Waiter {
    pub index: usize,
    pub client: u64,
}
