// SPDX-License-Identifier: Apache-2.0
//! Tells which values are proposed, voted for and therefore chosen, from the packets alone. It
//! panics if agreement is broken.

use std::collections::{BTreeMap, BTreeSet};

use paxos::acceptor::SlotView;
use paxos::{
    Acceptor, Configuration, Epoch, Flags, Header, Instance, MsgType, NodeId, PartitionId, Round,
};

/// The identity of a value.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Value {
    /// Whose it is.
    pub client: u64,
    /// The client's number for it.
    pub request: u64,
    /// A no-op, or an epoch's marker.
    pub noop: bool,
    /// The value's bytes.
    pub bytes: Vec<u8>,
}

impl Value {
    /// Returns the value of a packet that carries one.
    pub fn of(header: &Header, bytes: &[u8]) -> Value {
        Value {
            client: header.client,
            request: header.request,
            noop: header.flags.has(Flags::NOOP),
            bytes: bytes.to_vec(),
        }
    }

    fn of_vote(slot: &SlotView<'_>) -> Value {
        Value {
            client: slot.client,
            request: slot.request,
            noop: slot.flags.has(Flags::NOOP),
            bytes: slot.value.to_vec(),
        }
    }
}

type ProposalKey = (PartitionId, Instance, Round);

/// Knows the epochs and what was sent, and no node's state.
#[derive(Default)]
pub struct Agreement {
    epochs: BTreeMap<Epoch, Configuration>,
    proposed: BTreeMap<ProposalKey, Value>,
    voters: BTreeMap<ProposalKey, BTreeSet<NodeId>>,
    chosen: BTreeMap<(PartitionId, Instance), Value>,
}

impl Agreement {
    /// Notes an epoch of which there may be votes from now on.
    pub fn issue(&mut self, configuration: Configuration) {
        let epoch = configuration.epoch;
        let known = self.epochs.insert(epoch, configuration);
        assert!(known.is_none(), "epoch {epoch} is issued twice");
    }

    /// Notes that somebody sends a packet.
    pub fn sent(&mut self, header: &Header, value: &[u8]) {
        match header.msgtype {
            MsgType::Phase2a => self.propose(header, Value::of(header, value)),
            MsgType::Phase2b => self.vote(header, Value::of(header, value)),
            _ => {}
        }
    }

    fn propose(&mut self, header: &Header, value: Value) {
        let place = (header.pid, header.inst, header.rnd);
        let first = self.proposed.entry(place).or_insert_with(|| value.clone());
        assert_eq!(*first, value, "two values are proposed in {place:?}");
    }

    fn vote(&mut self, header: &Header, value: Value) {
        let place = (header.pid, header.inst, header.rnd);
        assert_eq!(
            self.proposed.get(&place),
            Some(&value),
            "nobody proposed this vote's value in {place:?}"
        );
        let epoch = self.epochs.get(&header.rnd.epoch());
        let epoch =
            epoch.unwrap_or_else(|| panic!("a vote in an epoch that isn't there: {place:?}"));
        if !epoch.acceptors.iter().any(|a| a.node == header.swid) {
            return;
        }
        let voters = self.voters.entry(place).or_default();
        voters.insert(header.swid);
        if voters.len() >= epoch.quorum() {
            let first = self.chosen.entry((header.pid, header.inst));
            let first = first.or_insert_with(|| value.clone());
            assert_eq!(*first, value, "two values are chosen in {place:?}");
        }
    }

    /// Returns what is chosen for an instance.
    pub fn chosen(&self, pid: PartitionId, inst: Instance) -> Option<&Value> {
        self.chosen.get(&(pid, inst))
    }

    /// Returns all chosen values.
    pub fn all_chosen(&self) -> impl Iterator<Item = (PartitionId, Instance, &Value)> {
        self.chosen.iter().map(|((pid, inst), v)| (*pid, *inst, v))
    }

    /// Returns whether the votes of this round alone choose something.
    pub fn is_chosen_in(&self, pid: PartitionId, inst: Instance, round: Round) -> bool {
        let quorum = self.epochs[&round.epoch()].quorum();
        let voters = self.voters.get(&(pid, inst, round));
        voters.is_some_and(|nodes| nodes.len() >= quorum)
    }

    /// Returns the instance below which everything is chosen.
    pub fn prefix(&self, pid: PartitionId) -> Instance {
        let open = |inst: &Instance| !self.chosen.contains_key(&(pid, *inst));
        (0..).find(open).expect("the log has an end")
    }

    /// Returns whether every quorum of these acceptors, which are 2f+1, would lead a later
    /// candidate to what is chosen, or show that it is trimmed.
    pub fn assert_held(&self, acceptors: &BTreeMap<NodeId, Acceptor>) {
        for (&(pid, inst), value) in &self.chosen {
            for absent in acceptors.keys() {
                let quorum = || {
                    acceptors
                        .iter()
                        .filter(|(n, _)| *n != absent)
                        .map(|(_, a)| a)
                };
                if quorum().any(|a| a.trim(pid) > inst) {
                    continue;
                }
                let votes = quorum().filter_map(|a| a.slot(pid, inst));
                let votes = votes.filter(|s| !s.vrnd.is_none());
                let newest = votes.max_by_key(|s| s.vrnd).map(|s| Value::of_vote(&s));
                assert_eq!(
                    newest.as_ref(),
                    Some(value),
                    "partition {pid}, instance {inst} without acceptor {absent}"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{ACCEPTORS, configuration};

    fn packet(msgtype: MsgType, round: Round, swid: NodeId) -> Header {
        Header {
            rnd: round,
            swid,
            client: 1,
            request: 1,
            ..Header::new(msgtype)
        }
    }

    /// Epochs 1 and 2, in both of which `value` is proposed for instance 0.
    fn proposed(values: [&[u8]; 2]) -> Agreement {
        let mut agreement = Agreement::default();
        for (epoch, value) in (1..).zip(values) {
            agreement.issue(configuration(epoch));
            let proposal = packet(MsgType::Phase2a, Round::base(epoch), 1);
            agreement.sent(&proposal, value);
        }
        agreement
    }

    fn vote(agreement: &mut Agreement, epoch: Epoch, from: NodeId, value: &[u8]) {
        let vote = packet(MsgType::Phase2b, Round::base(epoch), from);
        agreement.sent(&vote, value);
    }

    #[test]
    fn a_quorum_of_members_votes_of_one_round_chooses() {
        let mut agreement = proposed([b"a", b"a"]);
        vote(&mut agreement, 1, ACCEPTORS[0], b"a");
        vote(&mut agreement, 1, ACCEPTORS[0], b"a");
        vote(&mut agreement, 2, ACCEPTORS[1], b"a");
        vote(&mut agreement, 2, 99, b"a");
        assert_eq!(agreement.chosen(0, 0), None);
        assert_eq!(agreement.prefix(0), 0);
        vote(&mut agreement, 2, ACCEPTORS[2], b"a");
        assert_eq!(agreement.chosen(0, 0).unwrap().bytes, b"a");
        assert!(agreement.is_chosen_in(0, 0, Round::base(2)));
        assert!(!agreement.is_chosen_in(0, 0, Round::base(1)));
        assert_eq!(agreement.prefix(0), 1);
    }

    #[test]
    #[should_panic(expected = "two values are proposed")]
    fn two_proposals_of_a_round_are_noticed() {
        let mut agreement = proposed([b"a", b"a"]);
        agreement.sent(&packet(MsgType::Phase2a, Round::base(1), 1), b"b");
    }

    #[test]
    #[should_panic(expected = "nobody proposed")]
    fn a_vote_without_a_proposal_is_noticed() {
        vote(&mut proposed([b"a", b"b"]), 1, ACCEPTORS[0], b"b");
    }

    #[test]
    #[should_panic(expected = "two values are chosen")]
    fn two_choices_are_noticed() {
        let mut agreement = proposed([b"a", b"b"]);
        for node in ACCEPTORS {
            vote(&mut agreement, 1, node, b"a");
            vote(&mut agreement, 2, node, b"b");
        }
    }
}
