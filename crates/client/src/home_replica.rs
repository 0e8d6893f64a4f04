// SPDX-License-Identifier: Apache-2.0
//! Chooses the replica that answers a client. [S-HOME]

use paxos::{NodeId, PartitionId, Time};

/// The replicas that answer a request when it is first executed. All of them answer a retry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Home {
    /// One replica, drawn at random, answers. If it stays silent while another one answers retries,
    /// the client switches to that one.
    #[default]
    One,
    /// This replica, whatever happens to it.
    Of(NodeId),
    /// All replicas answer, and the first answer counts. No retry is needed if one of them dies or
    /// is slow, but each command costs an answer of each.
    All,
}

/// The home of a client's sessions, which is the replica that answers it.
pub(crate) struct HomeOfSessions {
    id: NodeId,
    /// The replicas to which the home may change.
    candidates: Vec<NodeId>,
    /// For each partition the time since when other replicas have given the first answers, and the
    /// home none.
    silent_since: Vec<Option<Time>>,
    /// How long the home may be silent.
    patience: Time,
}

impl HomeOfSessions {
    /// Returns the home that `home` asks for; `random` chooses one of `replicas` if it must be
    /// drawn.
    pub fn new(
        home: Home,
        replicas: Vec<NodeId>,
        partitions: u16,
        random: u64,
        patience: Time,
    ) -> HomeOfSessions {
        let (id, candidates) = match home {
            Home::One => {
                let at = random % replicas.len().max(1) as u64;
                (replicas.get(at as usize).copied().unwrap_or(0), replicas)
            }
            Home::Of(id) => (id, Vec::new()),
            Home::All => (0, Vec::new()),
        };
        HomeOfSessions {
            id,
            candidates,
            silent_since: vec![None; usize::from(partitions)],
            patience,
        }
    }

    /// Returns the home as sessions name it; 0 means that all replicas answer.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Notes that a replica was the first to answer a request to a partition, and returns whether
    /// it has become the home. One retry that another replica answers first says little, since all
    /// answer it; a home that catches up in one partition may well answer in the others.
    pub fn answered(&mut self, now: Time, pid: PartitionId, by: NodeId) -> bool {
        let Some(silent_since) = self.silent_since.get_mut(usize::from(pid)) else {
            return false;
        };
        if by == self.id {
            *silent_since = None;
        } else if self.candidates.contains(&by) {
            let since = *silent_since.get_or_insert(now);
            if now.saturating_sub(since) >= self.patience {
                self.id = by;
                self.silent_since.fill(None);
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLICAS: [NodeId; 3] = [31, 32, 33];
    const PATIENCE: Time = 50;

    fn of(home: Home, random: u64) -> HomeOfSessions {
        HomeOfSessions::new(home, REPLICAS.to_vec(), 2, random, PATIENCE)
    }

    #[test]
    fn clients_are_spread_over_the_replicas() {
        let homes: Vec<_> = (0..6).map(|random| of(Home::One, random).id()).collect();
        assert_eq!(homes, [31, 32, 33, 31, 32, 33]);
        assert_eq!((of(Home::All, 1).id(), of(Home::Of(7), 1).id()), (0, 7));
    }

    #[test]
    fn a_home_that_stays_silent_while_another_one_answers_is_left() {
        let mut home = of(Home::One, 0);
        assert!(!home.answered(1_000, 0, 32));
        assert!(!home.answered(1_049, 0, 33));
        assert!(home.answered(1_050, 0, 33));
        assert_eq!(home.id(), 33);
        // The next home is silent only from its own first silence on.
        assert!(!home.answered(1_051, 0, 32));
        assert!(!home.answered(1_100, 0, 32));
        assert!(home.answered(1_101, 0, 32));
    }

    #[test]
    fn a_home_that_answers_now_and_then_stays() {
        let mut home = of(Home::One, 0);
        for at in (0..1_000).step_by(40) {
            assert!(!home.answered(at, 0, 32));
            assert!(!home.answered(at + 30, 0, 31));
        }
        assert_eq!(home.id(), 31);
    }

    #[test]
    fn a_home_that_is_silent_in_one_partition_is_left_although_it_answers_in_another() {
        let mut home = of(Home::One, 0);
        assert!(!home.answered(1_000, 1, 32));
        assert!(!home.answered(1_030, 0, 31));
        assert!(home.answered(1_050, 1, 32));
        assert_eq!(home.id(), 32);
    }

    #[test]
    fn nobody_goes_over_to_a_stranger_or_against_an_order() {
        for (home, by) in [(Home::One, 99), (Home::Of(31), 32), (Home::All, 32)] {
            let mut home = of(home, 0);
            let before = home.id();
            assert!((0..10).all(|at| !home.answered(at * PATIENCE, 0, by)));
            assert_eq!(home.id(), before);
        }
    }
}
