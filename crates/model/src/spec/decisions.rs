// SPDX-License-Identifier: Apache-2.0
//! Tells which values were decided, by the votes alone.

use std::collections::BTreeMap;

use paxos::{Instance, NodeId, PartitionId, Round};

use super::{LogPosition, Value};

#[derive(Default)]
pub(super) struct Decisions {
    /// The voters, by instance, round and value.
    voters: BTreeMap<LogPosition, Vec<(Round, Value, Vec<NodeId>)>>,
    decided: BTreeMap<LogPosition, Value>,
}

impl Decisions {
    /// Counts a vote that a member of the round's epoch shows. Returns an error if that decides a
    /// second value.
    pub fn vote(
        &mut self,
        slot: LogPosition,
        round: Round,
        voter: NodeId,
        value: &Value,
        quorum: usize,
    ) -> Result<(), String> {
        let rounds = self.voters.entry(slot).or_default();
        let same = |(r, v, _): &(Round, Value, Vec<NodeId>)| *r == round && v == value;
        let at = rounds.iter().position(same).unwrap_or_else(|| {
            rounds.push((round, value.clone(), Vec::new()));
            rounds.len() - 1
        });
        let voters = &mut rounds[at].2;
        if !voters.contains(&voter) {
            voters.push(voter);
        }
        if voters.len() < quorum {
            return Ok(());
        }
        let first = self.decided.entry(slot).or_insert_with(|| value.clone());
        match first == value {
            true => Ok(()),
            false => Err(format!(
                "{slot:?} is decided with {first:?}, and in round {round} with {value:?}"
            )),
        }
    }
}

impl Decisions {
    /// Returns whether `quorum` members of a round's epoch have shown votes for `value` there, in
    /// the one instance or in any of its partition.
    pub fn has_quorum(
        &self,
        pid: PartitionId,
        inst: Option<Instance>,
        round: Round,
        value: &Value,
        quorum: usize,
    ) -> bool {
        let instances = match inst {
            Some(inst) => (pid, inst)..=(pid, inst),
            None => (pid, 0)..=(pid, Instance::MAX),
        };
        let mut votes = self.voters.range(instances).flat_map(|(_, rounds)| rounds);
        votes.any(|(r, v, voters)| *r == round && v == value && voters.len() >= quorum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paxos::Flags;

    fn value(request: u64) -> Value {
        ((1, request, Flags::NONE), Vec::new())
    }

    #[test]
    fn a_second_decision_is_found_when_its_last_vote_comes() {
        let mut decisions = Decisions::default();
        let mut vote = |epoch, voter, request| {
            let round = Round::base(epoch);
            decisions.vote((0, 5), round, voter, &value(request), 2)
        };
        assert_eq!(vote(1, 11, 1), Ok(()));
        // Twice the same, and another round's: no quorum.
        assert_eq!(vote(1, 11, 1), Ok(()));
        assert_eq!(vote(2, 12, 2), Ok(()));
        assert_eq!(vote(1, 12, 1), Ok(()));
        // Deciding the same value again is no contradiction.
        assert_eq!(vote(3, 11, 1), Ok(()));
        assert_eq!(vote(3, 13, 1), Ok(()));
        let found = vote(2, 13, 2).unwrap_err();
        assert!(found.contains("decided"), "{found}");
    }
}
