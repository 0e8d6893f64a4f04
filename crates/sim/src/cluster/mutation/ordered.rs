// SPDX-License-Identifier: Apache-2.0
//! Deliberate mistakes in NOPaxos groups.

use control::{EpochState, Message};
use paxos::nopaxos::{Session, Stage};
use paxos::wire::nopaxos::Noops;
use paxos::wire::value::packed_items;
use paxos::{Epoch, Flags, Header, Instance, Member, MsgType, NodeId, Packet, Round};

use super::Mutation;
use crate::cluster::layout::NodeIndex;
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

/// Returns where a replica is told that the last active session has begun.
pub fn told_as_begun(
    world: &World,
    begins: Option<(Epoch, Instance)>,
) -> Option<(Epoch, Instance)> {
    match world.mutation {
        Some(Mutation::SealNotTold) => None,
        Some(Mutation::SealedTooLow) => begins.map(|(session, _)| (session, 0)),
        _ => begins,
    }
}

/// Makes a replica forget which sessions were active before one on its way.
pub fn told_without_earlier(world: &World, told: &mut [Session]) {
    let is_on_its_way = |s: &Session| s.stage == Stage::Writing;
    let Some((_, earlier)) = told
        .split_last_mut()
        .filter(|(last, _)| is_on_its_way(last) && world.mutated(Mutation::OldMembersNotAsked))
    else {
        return;
    };
    earlier.iter_mut().for_each(|s| s.stage = Stage::Writing);
}

/// Returns an order to stamp in a session that isn't active yet, for the sequencer to which a view
/// is told.
pub fn programmed_early(world: &World, to: NodeIndex, message: &Message) -> Option<Message> {
    let Message::View(view) = message else {
        return None;
    };
    let last = view.epochs.last()?;
    let is_its_own = world.layout.of_id(last.leader.0) == Some(to);
    let is_early = last.state == EpochState::Writing && world.mutated(Mutation::ProgrammedEarly);
    let begins = || vec![0; world.pids().count()];
    (is_early && is_its_own).then(|| Message::ProgramLeader {
        group: view.group,
        epoch: last.epoch,
        nonce: last.leader.1,
        next: view.begins.clone().unwrap_or_else(begins),
        trimmed: begins(),
        window: world.scenario.window.into(),
        acceptors: last.acceptors.iter().map(|(node, _)| *node).collect(),
        f: last.f,
        replicas: last.replicas.clone(),
        g: last.g,
    })
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
