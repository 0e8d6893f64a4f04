// SPDX-License-Identifier: Apache-2.0
//! Deliberate mistakes where members change, and where votes are read ahead.

use control::{EpochRecord, GroupState};
use paxos::wire::value::{ProbeReport, RangeReport};
use paxos::{Configuration, Epoch, Flags, Header, Instance, MsgType, Packet, PartitionId, Round};
use std::collections::BTreeMap;

/// How far votes reached when they were read ahead of an epoch.
#[derive(Default)]
pub struct AheadEnds {
    /// The epoch that was in force then.
    in_force: Epoch,
    ends: BTreeMap<PartitionId, Instance>,
}

impl AheadEnds {
    /// Notes an answer to QUERY that says how far votes reach.
    fn note(&mut self, in_force: Epoch, pid: PartitionId, end: Instance) {
        if self.in_force != in_force {
            (self.in_force, self.ends) = (in_force, BTreeMap::new());
        }
        let known = self.ends.entry(pid).or_default();
        *known = end.max(*known);
    }

    /// Returns a range promise that hides all votes behind those that were read ahead. The answers
    /// to QUERY that come before it are noted.
    pub fn hide_the_rest(
        &mut self,
        state: &GroupState,
        packet: &Packet<'_>,
    ) -> Option<(Header, Vec<u8>)> {
        let header = packet.header;
        if header.msgtype != MsgType::Phase1b || !header.flags.has(Flags::RANGE) {
            return None;
        }
        let report = RangeReport::parse(packet.value).ok()?;
        if let Some(last) = state.in_force() {
            self.note(last.epoch, header.pid, report.end);
            return None;
        }
        let is_next = header.rnd == Round::base(self.in_force + 1);
        let end = self.ends.get(&header.pid).filter(|_| is_next)?;
        let end = (*end).max(report.trim).min(report.end);
        Some((header, RangeReport { end, ..report }.emit().to_vec()))
    }
}

/// Returns a replica's PROBE_ACK that shows a checkpoint as new as any.
pub fn holds_all(packet: &Packet<'_>) -> Option<(Header, Vec<u8>)> {
    let report = ProbeReport::parse(packet.value).ok()?;
    let trim = Instance::MAX;
    Some((
        packet.header,
        ProbeReport { trim, ..report }.emit().to_vec(),
    ))
}

/// Returns a vote of an acceptor that isn't a member of its round's epoch as that of a member.
pub fn as_a_member(last: &Configuration, packet: &Packet<'_>) -> Option<(Header, Vec<u8>)> {
    let header = packet.header;
    let is_of_last = header.rnd.epoch() == last.epoch && header.msgtype == MsgType::Phase2b;
    let is_foreign = last.acceptor(header.swid).is_none();
    let member = last.acceptors.last().filter(|_| is_of_last && is_foreign)?;
    let swid = member.node;
    Some((Header { swid, ..header }, packet.value.to_vec()))
}

/// Returns a vote that is read ahead as if its round were of the epoch in force, if it is older
/// than an epoch that first named one of the memories.
pub fn as_of_today(state: &GroupState, packet: &Packet<'_>) -> Option<(Header, Vec<u8>)> {
    let header = packet.header;
    let last = state
        .in_force()
        .filter(|_| header.msgtype == MsgType::Phase2b)?;
    let names = |epoch: &&EpochRecord, member| epoch.acceptors.contains(member);
    let since = last.acceptors.iter().filter_map(|member| {
        let mut oldest_first = state.epochs.iter();
        oldest_first
            .find(|epoch| names(epoch, member))
            .map(|e| e.epoch)
    });
    let is_older = header.vrnd.epoch() < since.max()?;
    let vrnd = Round::base(last.epoch);
    is_older.then(|| (Header { vrnd, ..header }, packet.value.to_vec()))
}
