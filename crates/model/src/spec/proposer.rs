// SPDX-License-Identifier: Apache-2.0
//! Candidates and repairing hosts: what they may propose.

use std::collections::{BTreeMap, BTreeSet};

use paxos::wire::value::{RangeReport, Rejection};
use paxos::{Configuration, Flags, Instance, Member, MsgType, NodeId, Packet, PartitionId, Round};

use super::{LogPosition, Value, value_of};

/// The acceptors that promised, each with the vote that it showed.
type Promises = BTreeMap<NodeId, Option<(Round, Value)>>;

/// The packets that reached a candidate or a repairing host.
#[derive(Default)]
pub(super) struct Proposer {
    /// The promises, by instance and round.
    promises: BTreeMap<(LogPosition, Round), Promises>,
    /// The acceptors that promised a round for all instances of a partition, each with its memory.
    ranges: BTreeSet<(PartitionId, Round, NodeId, u64)>,
    /// The largest trim point that an acceptor showed.
    trim: BTreeMap<PartitionId, Instance>,
}

impl Proposer {
    pub fn note(&mut self, packet: &Packet<'_>) {
        let h = &packet.header;
        let range = h.flags.has(Flags::RANGE);
        let report = RangeReport::parse(packet.value).ok();
        let report = report.filter(|_| h.msgtype == MsgType::Phase1b && range);
        if let Some(report) = &report {
            self.ranges.insert((h.pid, h.rnd, h.swid, report.nonce));
        }
        let shown = match h.msgtype {
            MsgType::Phase1b => report.map(|r| r.trim),
            MsgType::Reject => Rejection::parse(packet.value).ok().map(|r| r.trim),
            _ => None,
        };
        if let Some(trim) = shown {
            let known = self.trim.entry(h.pid).or_default();
            *known = trim.max(*known);
        }
        if h.msgtype == MsgType::Phase1b && !range && !h.rnd.is_none() {
            let vote = (!h.vrnd.is_none()).then(|| (h.vrnd, value_of(packet)));
            let promises = self.promises.entry(((h.pid, h.inst), h.rnd)).or_default();
            promises.entry(h.swid).or_insert(vote);
        }
    }

    /// Returns whether f+1 members of a configuration promised the round for all instances of a
    /// partition.
    pub fn has_range(&self, pid: PartitionId, round: Round, of: &Configuration) -> bool {
        let promised = |m: &&Member| self.ranges.contains(&(pid, round, m.node, m.nonce));
        of.acceptors.iter().filter(promised).count() > usize::from(of.f)
    }

    /// Returns the largest trim point of a partition that an acceptor showed.
    pub fn shown_trim(&self, pid: PartitionId) -> Option<Instance> {
        self.trim.get(&pid).copied()
    }

    /// Returns whether `quorum` promises allow a proposal, or why they don't.
    pub fn may_propose(&self, packet: &Packet<'_>, quorum: usize) -> Result<(), String> {
        let h = &packet.header;
        let key = ((h.pid, h.inst), h.rnd);
        let value = value_of(packet);
        let promises = self.promises.get(&key);
        let plain_noop = h.flags.has(Flags::NOOP) && packet.value.is_empty();
        match promises.is_some_and(|p| is_justified(p, quorum, plain_noop, &value)) {
            true => Ok(()),
            false => Err(format!(
                "proposes {value:?} in {key:?}; promised was {promises:?}"
            )),
        }
    }
}

/// Returns whether `quorum` of the promises show `value` as their highest vote, or, for a no-op,
/// none.
fn is_justified(promises: &Promises, quorum: usize, plain_noop: bool, value: &Value) -> bool {
    let votes = || promises.values().flatten();
    let rounds: BTreeSet<Round> = votes()
        .filter(|(_, voted)| voted == value)
        .map(|(round, _)| *round)
        .collect();
    let up_to = |highest: Round| {
        let below = |vote: &Option<(Round, Value)>| {
            vote.as_ref().is_none_or(|(round, _)| *round <= highest)
        };
        promises.values().filter(|vote| below(vote)).count() >= quorum
    };
    let nothing = promises.values().filter(|vote| vote.is_none()).count() >= quorum;
    rounds.into_iter().any(up_to) || plain_noop && nothing
}
