// SPDX-License-Identifier: Apache-2.0
//! When a client finishes somebody else's transaction. It is safe at any time, but cancels what a
//! living client might finish itself, so a client first waits. Shards have no clock: only clients
//! measure time, and only to choose between two safe things.

use crate::wire::Transaction;

/// A client's patience with a transaction that is in its way.
pub struct Patience {
    /// How long a transaction may be in the way, in microseconds.
    limit_us: u64,
    /// The transaction that was met last, and when that was first.
    met: Option<(Transaction, u64)>,
}

impl Patience {
    /// Returns a client's patience.
    pub fn new(limit_us: u64) -> Patience {
        Patience {
            limit_us,
            met: None,
        }
    }

    /// Says that a transaction is in the way at this time, and returns whether it is to be
    /// finished, since it has been there for too long.
    pub fn ends_with(&mut self, transaction: &Transaction, now_us: u64) -> bool {
        match &self.met {
            Some((met, since)) if met == transaction => now_us - since >= self.limit_us,
            _ => {
                self.met = Some((transaction.clone(), now_us));
                self.limit_us == 0
            }
        }
    }
}
