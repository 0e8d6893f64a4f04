// SPDX-License-Identifier: Apache-2.0
//! Tests of one packet after the other. The first part tests what the paper, its specification and
//! other implementations leave open or get wrong; the second goes through the rules.

mod client;
mod gaps;
mod left_open;
mod synchronisation;
mod view_changes;

use std::collections::BTreeMap;

use super::world::{Message, SEQUENCER, SLOTS, feed, ordered, settings};
use crate::nopaxos::{Entry, Quorum, Replica, Session, Stage, Status, view};
use crate::outbox::Sent;
use crate::wire::nopaxos::{Noops, SyncPrepare, max_noop_ranges};
use crate::wire::value::Vector;
use crate::{
    Epoch, Flags, Header, Instance, Member, MsgType, NodeId, Reason, Round, Time, To, Verdict,
};

const MS: Time = 1_000_000;

/// Replicas whose packets wait until a test passes them on.
struct Group {
    replicas: BTreeMap<NodeId, Replica>,
    sessions: Vec<Session>,
    net: Vec<Message>,
    now: Time,
}

fn member(node: NodeId) -> Member {
    Member {
        node,
        nonce: u64::from(node) * 11,
    }
}

fn session(number: Epoch, members: &[Member], lead: u16) -> Session {
    Session {
        number,
        sequencer: SEQUENCER,
        nonce: 9,
        members: members.to_vec(),
        f: (members.len() / 2) as u8,
        lead,
        stage: Stage::Writing,
        anew: None,
    }
}

fn view_of(session: Epoch, number: u32) -> Round {
    Round(view::first(session).0 + number)
}

impl Group {
    /// Returns a group whose session 1 is active. All replicas are normal in its first view, which
    /// the first one leads.
    fn new(replicas: u16) -> Group {
        let members: Vec<Member> = (1..=replicas).map(member).collect();
        let mut group = Group {
            replicas: members
                .iter()
                .map(|m| (m.node, Replica::new(settings(*m), 0)))
                .collect(),
            sessions: vec![session(1, &members, 0)],
            net: Vec::new(),
            now: MS,
        };
        group.tell_store();
        group.tick_all();
        group.settle(&group.nodes());
        group.activate(1, 0);
        for replica in group.replicas.values() {
            assert_eq!(
                (replica.status(), replica.view()),
                (Status::Normal, view_of(1, 0))
            );
        }
        group
    }

    fn nodes(&self) -> Vec<NodeId> {
        self.replicas.keys().copied().collect()
    }

    fn tell_store(&mut self) {
        for replica in self.replicas.values_mut() {
            replica.configure(&self.sessions).expect("the store's own");
        }
    }

    fn activate(&mut self, session: Epoch, number: u32) {
        let by = view_of(session, number);
        self.sessions[session as usize - 1].stage = Stage::Active { by };
        self.tell_store();
    }

    /// Makes another session *writing*, with these members and this one's turn to lead first.
    fn open_session(&mut self, members: &[Member], lead: u16) {
        let number = self.sessions.len() as Epoch + 1;
        self.sessions.push(session(number, members, lead));
        self.tell_store();
    }

    fn of(&self, node: NodeId) -> &Replica {
        &self.replicas[&node]
    }

    /// Returns the requests in a log by their numbers; 0 is a no-op.
    fn log(&self, node: NodeId) -> Vec<u64> {
        let replica = self.of(node);
        let entries =
            (replica.floor()..replica.next()).map(|inst| replica.entry(inst).expect("filled"));
        entries
            .map(|e| if e.is_noop() { 0 } else { e.request })
            .collect()
    }

    fn step(&mut self, message: &Message) -> Verdict {
        let mut out = Sent::default();
        let replica = self.replicas.get_mut(&message.to).expect("a replica");
        let verdict = feed(replica, self.now, message, &mut out);
        self.send(message.to, Some(message.from), out);
        verdict
    }

    fn send(&mut self, from: NodeId, asker: Option<NodeId>, out: Sent) {
        for (to, header, value) in out.0 {
            let to = match to {
                To::Node(node) => node,
                To::Sender => asker.expect("a packet came from somewhere"),
                _ => panic!("replicas send to nodes"),
            };
            let message = Message {
                from,
                to,
                header,
                value,
            };
            if to == from {
                let _ = self.step(&message);
            } else {
                self.net.push(message);
            }
        }
    }

    /// Hands request `request` in slot `inst` to these nodes.
    fn ordered(&mut self, session: Epoch, inst: Instance, request: u64, to: &[NodeId]) {
        for node in to {
            assert_eq!(
                self.stamped(session, inst, request, *node),
                Verdict::Changed
            );
        }
    }

    fn stamped(&mut self, session: Epoch, inst: Instance, request: u64, to: NodeId) -> Verdict {
        self.step(&Message {
            from: SEQUENCER,
            to,
            header: ordered(session, inst, request),
            value: vec![request as u8],
        })
    }

    fn tick(&mut self, node: NodeId) {
        let mut out = Sent::default();
        let replica = self.replicas.get_mut(&node).expect("a replica");
        replica.tick(self.now, &mut out);
        self.send(node, None, out);
    }

    fn tick_all(&mut self) {
        self.nodes().into_iter().for_each(|node| self.tick(node));
    }

    /// Returns messages on their way, in order, without taking them.
    fn on_the_way(&self, msgtype: MsgType, to: NodeId) -> Vec<Message> {
        let wanted = |m: &&Message| m.header.msgtype == msgtype && m.to == to;
        self.net.iter().filter(wanted).cloned().collect()
    }

    /// Takes the last message of this type between these two off the network.
    fn take(&mut self, msgtype: MsgType, from: NodeId, to: NodeId) -> Message {
        let is_it = |m: &Message| (m.header.msgtype, m.from, m.to) == (msgtype, from, to);
        let at = self.net.iter().rposition(is_it);
        let at = at.unwrap_or_else(|| panic!("no {} from {from} to {to}", msgtype.name()));
        self.net.remove(at)
    }

    fn pass(&mut self, msgtype: MsgType, from: NodeId, to: NodeId) -> Verdict {
        let message = self.take(msgtype, from, to);
        self.step(&message)
    }

    /// Passes everything on among these nodes until nothing is left. Everything else is lost.
    fn settle(&mut self, among: &[NodeId]) {
        while !self.net.is_empty() {
            for message in std::mem::take(&mut self.net) {
                if among.contains(&message.to) && among.contains(&message.from) {
                    let _ = self.step(&message);
                }
            }
        }
    }

    fn lose_all(&mut self) {
        self.net.clear();
    }

    /// Makes `node` want this view.
    fn want(&mut self, node: NodeId, wanted: Round) {
        let header = self.of(node).header(MsgType::ViewChangeReq, wanted);
        let _ = self.step(&message(node, node, header, &[]));
    }

    /// Makes all these nodes go to a view, as far as it gets among them.
    fn change_view(&mut self, among: &[NodeId], wanted: Round) {
        among.iter().for_each(|node| self.want(*node, wanted));
        self.settle(among);
    }

    /// Makes the leader give up slot `inst`, so that its GAP_COMMITs are on their way.
    fn give_up(&mut self, leader: NodeId, inst: Instance) {
        let now = self.now;
        self.replicas
            .get_mut(&leader)
            .expect("it")
            .dropped(now, inst);
        self.tick(leader);
        self.now += 2 * MS;
        self.tick(leader);
        assert_eq!(self.log(leader).last(), Some(&0), "a no-op is there");
    }

    fn checkpointed(&mut self, node: NodeId, inst: Instance) {
        let now = self.now;
        let replica = self.replicas.get_mut(&node).expect("a replica");
        replica.checkpointed(now, inst, &mut Sent::default());
    }

    /// Replaces the application's state by another replica's.
    fn restored(&mut self, node: NodeId, inst: Instance) {
        let mut out = Sent::default();
        let replica = self.replicas.get_mut(&node).expect("a replica");
        replica.restored(self.now, inst, &mut out);
        self.send(node, None, out);
    }

    /// Lets the leader make its ready slots stable, among these nodes.
    fn synchronise(&mut self, leader: NodeId, among: &[NodeId]) {
        let mut out = Sent::default();
        self.of(leader).synchronise(&mut out);
        self.send(leader, None, out);
        self.settle(among);
    }
}

fn message(from: NodeId, to: NodeId, header: Header, value: &[u8]) -> Message {
    Message {
        from,
        to,
        header: Header {
            value_len: value.len() as u16,
            ..header
        },
        value: value.to_vec(),
    }
}

fn noops(stable: Instance, ranges: &[std::ops::Range<Instance>]) -> Vec<u8> {
    let mut value = Vec::new();
    Noops::append(&mut value, stable, ranges.iter().cloned());
    value
}

// ---- Normal operation

/// The leader executes ahead of what is stable, and followers acknowledge once for each batch of
/// packets. [N-ANSWER] [N-ACK]
#[test]
fn the_leader_runs_ahead_and_followers_acknowledge_once_a_batch() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2]);
    group.ordered(1, 1, 2, &[1, 2]);
    assert_eq!((group.of(1).ready(), group.of(1).stable()), (2, 0));
    assert_eq!((group.of(2).ready(), group.of(2).stable()), (0, 0));
    assert_eq!(group.replicas.get_mut(&1).unwrap().take_ack(), None);
    let ack = group
        .replicas
        .get_mut(&2)
        .unwrap()
        .take_ack()
        .expect("two slots");
    assert_eq!(
        (ack.header.rnd, ack.header.inst, ack.header.client),
        (view_of(1, 0), 2, 0)
    );
    assert_eq!(ack.slots, 0..2);
    assert_eq!(group.replicas.get_mut(&2).unwrap().take_ack(), None);
}

/// A replica appends only the next request of its view's session. [N-APPEND]
#[test]
fn only_the_next_request_of_the_session_is_appended() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[2]);
    assert_eq!(group.stamped(1, 0, 1, 2), Verdict::Dropped(Reason::Stale));
    assert_eq!(group.stamped(1, 2, 3, 2), Verdict::Dropped(Reason::Window));
    let foreign = Header {
        swid: 91,
        ..ordered(1, 1, 2)
    };
    let foreign = message(91, 2, foreign, b"x");
    assert_eq!(
        group.step(&foreign),
        Verdict::Dropped(Reason::UnknownSender)
    );
    group.want(2, view_of(1, 1));
    assert_eq!(
        group.stamped(1, 1, 2, 2),
        Verdict::Dropped(Reason::NotNormal)
    );
    assert_eq!(group.log(2), [1]);
}

/// A node that isn't normal in the view of a message, or isn't a member of its session, takes no
/// part. [N-MUTE]
#[test]
fn messages_of_strangers_former_members_and_other_views_change_nothing() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2, 3]);
    let before = group.replicas.clone();
    let types = [
        (MsgType::GapCommit, noops(0, &[0..1])),
        (MsgType::GapCommitRep, vec![]),
        (MsgType::StartViewRep, vec![]),
        (MsgType::SyncRep, vec![]),
        (MsgType::SyncCommit, vec![]),
        (MsgType::GapRequest, vec![0, 0, 0, 1]),
        (MsgType::ViewChange, noops(0, &[])),
        (MsgType::StartView, noops(0, &[])),
        (MsgType::ViewChangeReq, vec![]),
    ];
    for (msgtype, value) in types {
        for to in [1, 2] {
            let from_leader = group.of(1).header(msgtype, view_of(1, 1));
            let stranger = Header {
                client: 999,
                inst: 1,
                request: 1,
                ..from_leader
            };
            let other_view = Header {
                client: member(3).nonce,
                swid: 3,
                rnd: view_of(1, 0),
                ..stranger
            };
            let unknown = Header {
                rnd: view_of(5, 0),
                ..other_view
            };
            for header in [stranger, other_view, unknown] {
                let header = match msgtype {
                    // A member may send these messages in this very view.
                    MsgType::GapRequest | MsgType::GapCommitRep | MsgType::SyncRep
                        if header.rnd == view_of(1, 0) =>
                    {
                        continue;
                    }
                    MsgType::StartViewRep | MsgType::ViewChange if header.rnd == view_of(1, 0) => {
                        continue;
                    }
                    _ => header,
                };
                let verdict = group.step(&message(header.swid, to, header, &value));
                assert!(
                    matches!(verdict, Verdict::Dropped(_)),
                    "{msgtype:?} {header:?}: {verdict:?}"
                );
            }
        }
    }
    assert!(before == group.replicas);
    assert_eq!(group.net.len(), 0);
}

/// Lists that overlap, descend, or leave their range are refused, and so are values where there are
/// none. [N-MUTE]
#[test]
fn malformed_messages_change_nothing() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2, 3]);
    let before = group.replicas.clone();
    let overlapping = [noops(0, &[0..3]), noops(0, &[2..4])[8..].to_vec()].concat();
    let cases = [
        (MsgType::GapCommit, overlapping),
        (MsgType::GapCommit, noops(0, &[0..9])),
        (MsgType::GapCommit, vec![0; 7]),
        (MsgType::SyncPrepare, noops(0, &[])),
        (MsgType::StartView, vec![0; 12]),
        (MsgType::SyncCommit, vec![0]),
        (MsgType::GapRequest, vec![0, 0, 0, 65]),
    ];
    for (msgtype, value) in cases {
        let header = Header {
            inst: 4,
            ..group.of(1).header(msgtype, view_of(1, 0))
        };
        let verdict = group.step(&message(1, 2, header, &value));
        assert_eq!(verdict, Verdict::Dropped(Reason::BadValue), "{msgtype:?}");
    }
    assert!(before == group.replicas);
}
