// SPDX-License-Identifier: Apache-2.0
//! Limits the connections to a replica's state, both in all and from one address, so that an asker
//! who takes all it can get leaves some for others.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::lock::lock;

/// The largest number of connections at once.
const ALL: usize = 8;
/// The largest number of connections from one address.
const OF_ONE_ADDRESS: usize = 4;

/// The connections that one replica serves.
#[derive(Default)]
pub struct ConnectionLimit {
    taken: Mutex<BTreeMap<IpAddr, usize>>,
    refused: AtomicU64,
}

/// A place for one connection, which is free again when this is dropped.
pub struct ConnectionPermit {
    of: Arc<ConnectionLimit>,
    from: IpAddr,
}

impl ConnectionLimit {
    /// Returns a place for a connection from an address, if one is free.
    pub fn take(self: &Arc<Self>, from: IpAddr) -> Option<ConnectionPermit> {
        let mut taken = lock(&self.taken);
        let all: usize = taken.values().sum();
        let own = taken.get(&from).copied().unwrap_or(0);
        if all == ALL || own == OF_ONE_ADDRESS {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        taken.insert(from, own + 1);
        let of = self.clone();
        Some(ConnectionPermit { of, from })
    }

    /// Counts a connection that is refused for another reason.
    pub fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many connections were refused.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut taken = lock(&self.of.taken);
        let own = taken.remove(&self.from).unwrap_or(0);
        if own > 1 {
            taken.insert(self.from, own - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_leaves_places_for_others() {
        let [greedy, other] = [[10, 0, 0, 9], [10, 0, 0, 1]].map(IpAddr::from);
        let places = Arc::<ConnectionLimit>::default();
        let take = |from, n: usize| (0..n).filter_map(|_| places.take(from)).collect::<Vec<_>>();
        let mut of_greedy = take(greedy, 100);
        assert_eq!(of_greedy.len(), OF_ONE_ADDRESS);
        assert_eq!(places.refused(), (100 - OF_ONE_ADDRESS) as u64);
        let of_other = take(other, 100);
        assert_eq!(of_other.len(), ALL - OF_ONE_ADDRESS);
        assert!(
            take([10, 0, 0, 2].into(), 1).is_empty(),
            "there are no more"
        );
        of_greedy.pop();
        assert_eq!(take(greedy, 2).len(), 1);
        drop((of_greedy, of_other));
        assert_eq!(take(greedy, 100).len(), OF_ONE_ADDRESS);
    }
}
