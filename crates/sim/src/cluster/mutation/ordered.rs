// SPDX-License-Identifier: Apache-2.0
//! Deliberate mistakes in NOPaxos groups.

use paxos::nopaxos::Session;
use paxos::wire::nopaxos::Noops;
use paxos::wire::value::packed_items;
use paxos::{Epoch, Flags, Header, Instance, Member, MsgType, NodeId, Packet, Round};

use super::Mutation;
use crate::cluster::world::World;

/// How many slots a follower claims beyond those that it has.
const CLAIMED: u64 = 4;

/// The knowledge that a follower has of a crowd. [N-CROWD]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Crowd {
    /// There is no crowd.
    #[default]
    None,
    /// The leader says that there is a crowd.
    Is,
    /// The leader has said in this batch that the crowd is over.
    IsOver,
}

impl Crowd {
    /// Handles an arriving packet.
    pub fn hears(&mut self, header: &Header) {
        if header.msgtype != MsgType::SyncPrepare {
            return;
        }
        *self = match (*self, header.vrnd.is_none()) {
            (_, false) => Crowd::Is,
            (Crowd::None, true) => Crowd::None,
            (_, true) => Crowd::IsOver,
        };
    }

    /// Ends a batch.
    pub fn ends_batch(&mut self) {
        if *self == Crowd::IsOver {
            *self = Crowd::None;
        }
    }

    /// Returns whether the slots that were left out must be acknowledged.
    pub fn is_over(self) -> bool {
        self == Crowd::IsOver
    }
}

/// Rewrites a packet that a replica gets. `last` is the last session with its sequencer.
pub fn rewrite(
    mutation: Mutation,
    packet: &Packet<'_>,
    last: Option<(Epoch, NodeId)>,
) -> Option<(Header, Vec<u8>)> {
    let h = packet.header;
    match (mutation, h.msgtype) {
        (Mutation::OldSessionTaken, MsgType::Ordered) => {
            let (session, sequencer) = last?;
            let header = Header {
                rnd: Round::base(session),
                swid: sequencer,
                ..h
            };
            Some((header, packet.value.to_vec()))
        }
        (Mutation::NoopsNotTold, MsgType::ViewChange) => {
            let noops = Noops::parse(packet.value, h.inst, u16::MAX).ok()?;
            let mut value = Vec::new();
            Noops::append(&mut value, noops.stable, []);
            Some((h, value))
        }
        (Mutation::AllViewsMerged, MsgType::ViewChange) => {
            let header = Header {
                vrnd: Round(h.rnd.0 - 1),
                ..h
            };
            Some((header, packet.value.to_vec()))
        }
        _ => None,
    }
}

/// Rewrites a packet that a client gets.
pub fn rewrite_answer(mutation: Mutation, packet: &Packet<'_>) -> Option<(Header, Vec<u8>)> {
    let h = packet.header;
    let inst = match (mutation, h.msgtype) {
        (Mutation::AcksTooMuch, MsgType::Ack) => h.inst + CLAIMED,
        (Mutation::FirstSlotNamed, MsgType::Reply) if h.flags.has(Flags::PACKED) => {
            let behind_first = packed_items(packet.value).count() as Instance - 1;
            h.inst.saturating_sub(behind_first)
        }
        _ => return None,
    };
    Some((Header { inst, ..h }, packet.value.to_vec()))
}

/// Returns the answer that a follower sends at once instead of doing what it was asked.
pub fn answers_at_once(mutation: Mutation, packet: &Packet<'_>, own: Member) -> Option<Header> {
    let h = packet.header;
    let (msgtype, request) = match (mutation, h.msgtype) {
        (Mutation::GapAnsweredEarly, MsgType::GapCommit) => (MsgType::GapCommitRep, h.request),
        (Mutation::SyncAnsweredEarly, MsgType::SyncPrepare) => (MsgType::SyncRep, h.inst),
        _ => return None,
    };
    Some(Header {
        msgtype,
        request,
        swid: own.node,
        client: own.nonce,
        value_len: 0,
        ..h
    })
}

/// Returns where replicas are told that the last active session has begun.
pub fn told_as_begun(
    world: &World,
    active: Option<(Epoch, Vec<Instance>)>,
) -> Option<(Epoch, Vec<Instance>)> {
    let (session, mut begun) = active?;
    match world.mutation {
        Some(Mutation::SealNotTold) => return None,
        Some(Mutation::SealedTooLow) => begun.fill(0),
        _ => {}
    }
    Some((session, begun))
}

/// Returns a copy of a VIEW_CHANGE, as if another member of its session had sent it.
pub fn told_by_another(packet: &Packet<'_>, to: NodeId, last: &Session) -> Option<Header> {
    let h = packet.header;
    let is_other = |m: &&Member| m.node != to && m.node != h.swid;
    let other = last.members.iter().find(is_other)?;
    let is_its_change = h.msgtype == MsgType::ViewChange && h.rnd.epoch() == last.number;
    is_its_change.then_some(Header {
        swid: other.node,
        client: other.nonce,
        ..h
    })
}
