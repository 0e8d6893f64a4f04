// SPDX-License-Identifier: Apache-2.0
//! Makes digests of the contents for those who ask. For a digest all workers read all their data,
//! and execute nothing meanwhile. So there is one round at a time for all who have asked by then,
//! and rounds take at most a part of the time.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use paxos::Instance;

use crate::lock::lock;

/// How many askers may wait for a round.
const MAX_ASKERS: usize = 16;
/// The pause after a round is this many times as long as the round.
const REST: u32 = 3;

/// The position of a partition, and the digest of its contents there.
pub type Found = (Instance, String);

/// The askers, and the round in progress.
#[derive(Default)]
pub struct Digests {
    waiting: Vec<SocketAddr>,
    round: Option<Arc<Round>>,
    refused: u64,
}

/// One round: the partitions' digests, and those who get them.
pub struct Round {
    begun: Instant,
    askers: Vec<SocketAddr>,
    state: Mutex<State>,
}

struct State {
    found: Vec<Option<Found>>,
    ended: Option<Instant>,
}

impl Digests {
    /// Adds an asker, unless it already waits.
    pub fn ask(&mut self, asker: SocketAddr) {
        let under_way = self.round.as_ref().filter(|round| round.ended().is_none());
        let waits = self.waiting.contains(&asker)
            || under_way.is_some_and(|round| round.askers.contains(&asker));
        if waits {
            return;
        }
        match self.waiting.len() < MAX_ASKERS {
            true => self.waiting.push(asker),
            false => self.refused += 1,
        }
    }

    /// Returns whether anybody waits for a round that hasn't begun.
    pub fn is_wanted(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Begins a round over this many partitions, if one is wanted and may begin.
    pub fn begin(&mut self, partitions: usize, now: Instant) -> Option<Arc<Round>> {
        let rests = self.round.as_ref().is_some_and(|round| round.rests(now));
        if rests || self.waiting.is_empty() {
            return None;
        }
        let round = Arc::new(Round {
            begun: now,
            askers: std::mem::take(&mut self.waiting),
            state: Mutex::new(State {
                found: vec![None; partitions],
                ended: None,
            }),
        });
        self.round = Some(round.clone());
        Some(round)
    }

    /// Returns how many questions were refused.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

impl Round {
    /// Takes a partition's digest. After the last one it returns all digests, and those who get
    /// them.
    pub fn found(
        &self,
        pid: usize,
        found: Found,
        now: Instant,
    ) -> Option<(&[SocketAddr], Vec<Found>)> {
        let mut state = self.state();
        state.found[pid] = Some(found);
        let all = state.found.iter().cloned().collect::<Option<Vec<_>>>()?;
        state.ended = Some(now);
        Some((&self.askers, all))
    }

    /// Returns whether the round is in progress, or ended too recently for another one.
    fn rests(&self, now: Instant) -> bool {
        self.ended().is_none_or(|ended| {
            let took = ended.saturating_duration_since(self.begun);
            now.saturating_duration_since(ended) < took.saturating_mul(REST)
        })
    }

    fn ended(&self) -> Option<Instant> {
        self.state().ended
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn asker(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn digest(at: Instance) -> Found {
        (at, format!("{at:x}"))
    }

    #[test]
    fn there_is_one_round_for_all_who_ask_and_a_rest_after_it() {
        let mut digests = Digests::default();
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        assert!(digests.begin(2, begun).is_none(), "nobody asks");
        for port in [1, 2, 1] {
            digests.ask(asker(port));
        }
        let first = digests.begin(2, begun).unwrap();
        for port in [1, 3, 2, 3] {
            digests.ask(asker(port));
        }
        assert!(digests.is_wanted(), "the third has come too late");
        assert!(digests.begin(2, after(1)).is_none(), "one at a time");
        assert!(first.found(1, digest(9), after(5)).is_none());
        let (askers, found) = first.found(0, digest(7), after(10)).unwrap();
        assert_eq!(askers, [asker(1), asker(2)]);
        assert_eq!(found, [digest(7), digest(9)]);
        assert!(digests.begin(2, after(39)).is_none(), "the workers work");
        digests.ask(asker(1));
        let second = digests.begin(2, after(40)).unwrap();
        second.found(0, digest(8), after(40));
        let (askers, _) = second.found(1, digest(9), after(40)).unwrap();
        assert_eq!(askers, [asker(3), asker(1)]);
    }

    #[test]
    fn so_many_wait_and_others_are_counted() {
        let mut digests = Digests::default();
        (0..1_000).for_each(|port| digests.ask(asker(port)));
        let refused = digests.refused() as usize;
        assert_eq!(refused, 1_000 - MAX_ASKERS);
        let round = digests.begin(1, Instant::now()).unwrap();
        assert_eq!(round.askers.len(), MAX_ASKERS);
    }
}
