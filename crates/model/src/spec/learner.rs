// SPDX-License-Identifier: Apache-2.0
//! Learner nodes: what they may call decided.

use std::collections::{BTreeMap, BTreeSet};

use paxos::{Configuration, Member, MsgType, NodeId, Packet, Round};

use super::{LogPosition, Value, value_of};

/// The voters for each value.
type Voters = Vec<(Value, BTreeSet<NodeId>)>;

/// The votes that reached a node.
#[derive(Default)]
pub(super) struct Learner {
    /// The voters, by instance and round.
    votes: BTreeMap<(LogPosition, Round), Voters>,
}

impl Learner {
    pub fn note(&mut self, packet: &Packet<'_>) {
        let h = &packet.header;
        if h.msgtype != MsgType::Phase2b || h.rnd != h.vrnd {
            return;
        }
        let value = value_of(packet);
        let votes = self.votes.entry(((h.pid, h.inst), h.rnd)).or_default();
        match votes.iter_mut().find(|(voted, _)| *voted == value) {
            Some((_, voters)) => {
                voters.insert(h.swid);
            }
            None => votes.push((value, BTreeSet::from([h.swid]))),
        }
    }

    /// Returns whether f+1 members of the round's configuration voted for what a DELIVER says, as
    /// far as this node heard.
    pub fn may_deliver(&self, packet: &Packet<'_>, configuration: &Configuration) -> bool {
        let h = &packet.header;
        let value = value_of(packet);
        let votes = self.votes.get(&((h.pid, h.inst), h.rnd));
        let voters = votes.and_then(|all| all.iter().find(|(voted, _)| *voted == value));
        let is_voter = |m: &&Member| voters.is_some_and(|(_, v)| v.contains(&m.node));
        let members = configuration.acceptors.iter().filter(is_voter);
        h.rnd == h.vrnd && members.count() > usize::from(configuration.f)
    }
}
