// SPDX-License-Identifier: Apache-2.0
//! Deliberate mistakes, made from outside the roles, as in [`crate::mutation`].

use paxos::nopaxos::{Stage, Started, Status, view};
use paxos::wire::nopaxos::Noops;
use paxos::{Header, MsgType, Round, To};

use super::actor::{Actor, CONTROLLER, Host};
use super::bounds::Bounds;
use crate::actor::Outputs;
use crate::network::Payload;

/// A mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutation {
    /// A sequencer that is told to stamp begins again.
    StampsAgain,
    /// ORDERED of another session is taken.
    OldSessionTaken,
    /// The leader passes a no-op before f others have it.
    GapNotAwaited,
    /// SYNC_PREPARE is answered by who hasn't applied it.
    SyncAnsweredEarly,
    /// VIEW_CHANGEs don't show no-ops.
    RequestWins,
    /// VIEW_CHANGEs of all views are merged.
    AllMerged,
    /// One VIEW_CHANGE counts for two members.
    QuorumOfF,
    /// Members of earlier sessions aren't asked.
    NewMembersOnly,
    /// A session is active as soon as its leader has begun it.
    ActiveEarly,
    /// A replica that forgot its log continues under its old name.
    Forgets,
    /// A deposed leader keeps what it executed.
    NoRollback,
    /// A client counts the leader's own word as another's.
    LeaderCountsTwice,
}

/// Falsifies what an actor gets.
pub fn falsify_input(mutation: Mutation, to: &Actor, payload: &mut Payload) {
    match (to, payload) {
        (Actor::Replica(host), Payload::Packet { header, value }) => {
            falsify_packet(mutation, host, header, value);
        }
        (Actor::Replica(_), Payload::Sessions(told)) if mutation == Mutation::NewMembersOnly => {
            let last = told.len() - 1;
            if !matches!(told[last].stage, Stage::Active { .. }) {
                told[..last]
                    .iter_mut()
                    .for_each(|s| s.stage = Stage::Writing);
            }
        }
        _ => {}
    }
}

fn falsify_packet(mutation: Mutation, host: &Host, header: &mut Header, value: &mut Vec<u8>) {
    let replica = &host.replica;
    match (mutation, header.msgtype) {
        (Mutation::OldSessionTaken, MsgType::Ordered) => {
            header.rnd = view::stamp(replica.view());
            let session = replica.sessions().open(replica.view());
            header.swid = session.map_or(header.swid, |s| s.sequencer);
        }
        (Mutation::RequestWins, MsgType::ViewChange) => {
            value.truncate(8);
            header.value_len = 8;
        }
        (Mutation::AllMerged, MsgType::ViewChange) => header.vrnd = Round(header.rnd.0 - 1),
        _ => {}
    }
}

/// Falsifies what an actor keeps and sends after it took a message, or after something happened to
/// it.
pub fn falsify_step(
    mutation: Mutation,
    bounds: &Bounds,
    before: &Actor,
    after: &mut Actor,
    payload: Option<&Payload>,
    out: &mut Outputs,
) {
    match (before, after) {
        (Actor::Replica(before), Actor::Replica(after)) => {
            falsify_replica(mutation, bounds, before, after, payload, out);
        }
        (Actor::Sequencer(_), Actor::Sequencer(after)) => {
            if let (Mutation::StampsAgain, Some(Payload::Program(program))) = (mutation, payload) {
                let mut again = paxos::nopaxos::Sequencer::new(*after.deployment(), after.nonce());
                let _ = again.program(program);
                *after = again;
            }
        }
        (Actor::Client(_), after @ Actor::Client(_)) => {
            let Some(Payload::Packet { header, .. }) = payload else {
                return;
            };
            if mutation == Mutation::LeaderCountsTwice && header.msgtype == MsgType::Reply {
                let other = if header.swid == 11 { 12 } else { 11 };
                let word = Header {
                    msgtype: MsgType::Ack,
                    inst: header.inst + 1,
                    vrnd: bounds.session(header.rnd.epoch()).shown(),
                    swid: other,
                    value_len: 0,
                    ..*header
                };
                let forged = Payload::Packet {
                    header: word,
                    value: Vec::new(),
                };
                out.delivered.extend(after.receive(&forged).delivered);
            }
        }
        _ => {}
    }
}

fn falsify_replica(
    mutation: Mutation,
    bounds: &Bounds,
    before: &Host,
    after: &mut Host,
    payload: Option<&Payload>,
    out: &mut Outputs,
) {
    let packet = match payload {
        Some(Payload::Packet { header, value }) => Some((*header, value.clone())),
        _ => None,
    };
    match mutation {
        Mutation::GapNotAwaited => {
            let told = out.packets.0.iter().find_map(|(to, h, _)| match to {
                To::Node(node) if h.msgtype == MsgType::GapCommit => Some((*node, *h)),
                _ => None,
            });
            if let Some((node, header)) = told {
                let answer = Header {
                    msgtype: MsgType::GapCommitRep,
                    ..header
                };
                forge(after, bounds, node, answer, &[], out);
            }
        }
        Mutation::SyncAnsweredEarly => {
            let Some((header, _)) = packet.filter(|(h, _)| h.msgtype == MsgType::SyncPrepare)
            else {
                return;
            };
            if after.replica.view() == header.rnd && !after.replica.leads() {
                let answer = Header {
                    msgtype: MsgType::SyncRep,
                    request: header.inst,
                    swid: after.replica.member().node,
                    client: after.replica.member().nonce,
                    value_len: 0,
                    ..header
                };
                out.packets.0.push((To::Sender, answer, Vec::new()));
                out.verdict = None;
            }
        }
        Mutation::QuorumOfF => {
            let replica = &after.replica;
            let view = replica.view();
            let own = replica.member().node;
            let is_to_lead = replica.status() == Status::ViewChange && bounds.leader(view) == own;
            if view > before.replica.view() && is_to_lead {
                let (header, value) = own_view_change(after, bounds);
                let mut others = bounds.replica_places().map(|p| bounds.node(p));
                let other = others.find(|node| *node != own).expect("2f+1");
                forge(after, bounds, other, header, &value, out);
            }
        }
        Mutation::ActiveEarly => {
            let begins = after.replica.leads() && !before.replica.leads();
            let view = after.replica.view();
            if begins && view.epoch() > 1 {
                let session = bounds.session(view.epoch());
                let started = Started {
                    session: session.digest(),
                    view,
                    end: after.replica.next(),
                    members: session.members,
                };
                let from = after.replica.member();
                out.orders
                    .push((CONTROLLER, Payload::Started { from, started }));
            }
        }
        _ => {}
    }
}

/// Returns what a replica has noted of its own log.
fn own_view_change(host: &Host, bounds: &Bounds) -> (Header, Vec<u8>) {
    let replica = &host.replica;
    let is_noop = |inst: &u64| replica.entry(*inst).is_some_and(|e| e.is_noop());
    let noops = (replica.stable()..replica.next()).filter(is_noop);
    let mut value = Vec::new();
    Noops::append(&mut value, replica.stable(), noops.map(|i| i..i + 1));
    let view = replica.view();
    let header = Header {
        cluster: 1,
        group: 1,
        inst: replica.next(),
        rnd: view,
        vrnd: replica.last_normal(),
        request: bounds.session(view.epoch()).digest(),
        ..Header::new(MsgType::ViewChange)
    };
    (header, value)
}

/// Forges a message of another member, which it never sent.
fn forge(
    host: &mut Host,
    bounds: &Bounds,
    from: u16,
    header: Header,
    value: &[u8],
    out: &mut Outputs,
) {
    let session = bounds.session(header.rnd.epoch());
    let Some(member) = session.members.iter().find(|m| m.node == from) else {
        return;
    };
    let header = Header {
        swid: member.node,
        client: member.nonce,
        value_len: value.len() as u16,
        ..header
    };
    let payload = Payload::Packet {
        header,
        value: value.to_vec(),
    };
    let mut actor = Actor::Replica(Box::new(host.clone()));
    let more = actor.receive(&payload);
    if let Actor::Replica(after) = actor {
        *host = *after;
    }
    out.packets.0.extend(more.packets.0);
    out.orders.extend(more.orders);
}
