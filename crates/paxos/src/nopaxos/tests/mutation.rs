// SPDX-License-Identifier: Apache-2.0
//! Deliberate mistakes, made from outside the role: its packets or its state are falsified, so that
//! the replicas behave as if the rule in question had been left out.

use super::world::{Message, World, feed};
use crate::nopaxos::{Entry, Replica, Status, view};
use crate::outbox::Sent;
use crate::wire::nopaxos::{Noops, SyncPrepare};
use crate::{Header, Instance, MsgType, Round, To};

/// A deliberate mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutation {
    /// The sequencer stamps a slot of a session twice.
    StampsAgain,
    /// ORDERED of another session is taken.
    OldSessionTaken,
    /// The leader passes a no-op before f others have it.
    GapNotAwaited,
    /// GAP_COMMIT is answered before everything below is filled.
    GapAnsweredEarly,
    /// A follower behind the leader's `stable` trusts its own entries below.
    BehindTrustsItself,
    /// A follower answers SYNC_PREPARE before it has applied it.
    SyncAnsweredEarly,
    /// VIEW_CHANGEs don't show no-ops.
    RequestWins,
    /// VIEW_CHANGEs of all views are merged.
    AllMerged,
    /// The slots below the largest `stable` are merged, too.
    StableMerged,
    /// One VIEW_CHANGE counts for two members.
    QuorumOfF,
    /// Members of earlier sessions aren't asked.
    NewMembersOnly,
    /// A session is active as soon as one member has begun a view of it.
    ActiveEarly,
    /// A session's sequencer stamps before the session is active.
    ProgrammedEarly,
    /// A leader starts its view once more when another VIEW_CHANGE comes.
    TwoStarts,
    /// A START_VIEW counts in a view that has begun.
    RepeatedStartCounts,
    /// A member keeps its own no-ops in a new view.
    KeepsNoops,
    /// A view is the last normal one before its log is complete.
    NormalEarly,
    /// The old log makes room before the new one is complete.
    MakesRoom,
    /// A replica that forgot goes on under its name.
    Forgets,
    /// A client is content with f+1 followers.
    FollowersSuffice,
    /// A deposed leader keeps what it executed.
    NoRollback,
    /// A leader that takes over a later view's state goes on.
    LeadsOn,
    /// Changes are stored some time after they were shown.
    AnswersBeforeStored,
    /// A leader's answers to a crowd are final before their slots are stable.
    CrowdAnsweredEarly,
}

impl Mutation {
    pub const ALL: [Mutation; 24] = [
        Mutation::StampsAgain,
        Mutation::OldSessionTaken,
        Mutation::GapNotAwaited,
        Mutation::GapAnsweredEarly,
        Mutation::BehindTrustsItself,
        Mutation::SyncAnsweredEarly,
        Mutation::RequestWins,
        Mutation::AllMerged,
        Mutation::StableMerged,
        Mutation::QuorumOfF,
        Mutation::NewMembersOnly,
        Mutation::ActiveEarly,
        Mutation::ProgrammedEarly,
        Mutation::TwoStarts,
        Mutation::RepeatedStartCounts,
        Mutation::KeepsNoops,
        Mutation::NormalEarly,
        Mutation::MakesRoom,
        Mutation::Forgets,
        Mutation::FollowersSuffice,
        Mutation::NoRollback,
        Mutation::LeadsOn,
        Mutation::AnswersBeforeStored,
        Mutation::CrowdAnsweredEarly,
    ];

    /// Falsifies a packet before a replica takes it.
    pub fn before(self, world: &mut World, message: &mut Message, out: &mut Sent) {
        let h = message.header;
        let host = world.hosts.get_mut(&message.to).expect("a host");
        let replica = &mut host.replica;
        let is_in_view = replica.status() == Status::Normal && replica.view() == h.rnd;
        match (self, h.msgtype) {
            (Mutation::GapAnsweredEarly, MsgType::GapCommit)
                if is_in_view && replica.next() < h.inst && !replica.leads() =>
            {
                let answer = Header {
                    inst: h.inst,
                    request: h.request,
                    ..replica.header(MsgType::GapCommitRep, h.rnd)
                };
                out.0.push((To::Sender, answer, Vec::new()));
            }
            (Mutation::SyncAnsweredEarly, MsgType::SyncPrepare)
                if is_in_view && !replica.leads() =>
            {
                let answer = Header {
                    inst: h.inst,
                    ..replica.header(MsgType::SyncRep, h.rnd)
                };
                out.0.push((To::Sender, answer, Vec::new()));
            }
            (Mutation::BehindTrustsItself, MsgType::SyncPrepare) if is_in_view => {
                let max_value = replica.deployment().max_value;
                let told = SyncPrepare::parse(&message.value, h.inst, max_value);
                let stable = told.expect("a leader's own").noops.stable;
                replica.duty.prepared = replica.duty.prepared.max(stable.min(replica.next()));
            }
            (Mutation::RequestWins, MsgType::ViewChange) => message.value.truncate(8),
            (Mutation::AllMerged, MsgType::ViewChange) => {
                message.header.vrnd = Round(h.rnd.0 - 1);
            }
            (Mutation::StableMerged, MsgType::ViewChange) => {
                let noops =
                    Noops::parse(&message.value, h.inst, u16::MAX).expect("a replica's own");
                let mut merged = Vec::new();
                Noops::append(&mut merged, 0, noops.ranges());
                message.value = merged;
            }
            (Mutation::QuorumOfF, MsgType::ViewChange) => {
                let sessions = replica.sessions.needed(h.rnd).unwrap_or_default();
                let members = sessions.iter().flat_map(|s| &s.members);
                let mut others = members.filter(|m| m.node != h.swid && m.node != message.to);
                if let Some(other) = others.next().copied() {
                    let mut again = message.clone();
                    again.header.swid = other.node;
                    again.header.client = other.nonce;
                    let _ = feed(replica, 0, &again, out);
                }
            }
            (Mutation::RepeatedStartCounts, MsgType::StartView)
                if is_in_view && h.inst >= replica.stable() =>
            {
                replica.log.truncate(h.inst);
            }
            _ => {}
        }
    }

    /// Falsifies the replica or its packets after it took a packet.
    pub fn after(self, world: &mut World, message: &Message, before: Replica, out: &mut Sent) {
        let h = message.header;
        let node = message.to;
        let host = world.hosts.get_mut(&node).expect("a host");
        let replica = &mut host.replica;
        let is_collecting = replica.status() == Status::ViewChange && replica.change.plan.is_some();
        let has_begun =
            replica.status() == Status::Normal && before.last_normal() != replica.view();
        match self {
            Mutation::GapNotAwaited if replica.leads() => {
                replica.duty.agreed = replica.next();
                replica.duty.open_gap = None;
            }
            Mutation::KeepsNoops if has_begun => {
                let noop = Entry::noop(view::stamp(replica.view()));
                let old: Vec<Instance> = before
                    .log
                    .noops(before.stable()..before.next())
                    .into_iter()
                    .flatten()
                    .collect();
                for inst in old {
                    if (replica.stable()..replica.next()).contains(&inst) {
                        replica.log.replace(inst, &noop);
                    }
                }
            }
            Mutation::NormalEarly if is_collecting => replica.last_normal = replica.view(),
            Mutation::MakesRoom if is_collecting => {
                replica.log.truncate(replica.stable());
                replica.changed_from(replica.stable());
            }
            Mutation::TwoStarts => {
                if has_begun && replica.leads() {
                    world.before_start.insert(node, before);
                } else if h.msgtype == MsgType::ViewChange && replica.leads() {
                    let replica = replica.clone();
                    if let Some(earlier) = world.before_start.get(&node) {
                        if earlier.view() == replica.view() {
                            let mut earlier = earlier.clone();
                            let _ = feed(&mut earlier, 0, message, out);
                        }
                    }
                }
            }
            _ => {}
        }
    }
    /// Falsifies a replica after it took over another one's state.
    pub fn after_restored(self, replica: &mut Replica, before: Replica, out: &mut Sent) {
        if self == Mutation::LeadsOn && before.leads() && !replica.leads() {
            replica.view = before.view;
            replica.status = before.status;
            replica.change = before.change;
            replica.begun = before.begun;
            replica.duty = before.duty;
            replica.duty.prepared = replica.duty.prepared.max(replica.stable);
            out.0.clear();
        }
    }
}
