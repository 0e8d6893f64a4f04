// SPDX-License-Identifier: Apache-2.0
//! Tests of one packet after the other. The first part tests what the paper, its specification and
//! other implementations leave open or get wrong; the second goes through the rules.

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

// ---- What others leave open or get wrong

/// The paper, 5.2.3, step 3 (its authors say so in their specification). [W-REPEATED]
#[test]
fn a_repeated_start_view_cuts_off_nothing() {
    let mut group = Group::new(3);
    [2, 3]
        .into_iter()
        .for_each(|node| group.want(node, view_of(1, 1)));
    assert_eq!(group.pass(MsgType::ViewChange, 3, 2), Verdict::Changed);
    let start = group.take(MsgType::StartView, 2, 3);
    assert_eq!(group.step(&start), Verdict::Changed);
    group.ordered(1, 0, 1, &[2, 3]);
    assert_eq!(group.step(&start), Verdict::Answered);
    assert_eq!(group.log(3), [1]);
    let answers = group.on_the_way(MsgType::StartViewRep, 2);
    assert_eq!(answers.len(), 2, "it says again that it has begun");
}

/// The TLA+ specification: a new leader may send a second, different START-VIEW. [W-ONCE]
#[test]
fn a_view_starts_once() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1]);
    [1, 2, 3]
        .into_iter()
        .for_each(|node| group.want(node, view_of(1, 1)));
    assert_eq!(group.pass(MsgType::ViewChange, 3, 2), Verdict::Changed);
    let first = group.take(MsgType::StartView, 2, 3);
    group.lose_all();
    group.now += 100 * MS;
    group.tick(1);
    assert_eq!(group.pass(MsgType::ViewChange, 1, 2), Verdict::Answered);
    let again = group.take(MsgType::StartView, 2, 1);
    assert_eq!((again.header, &again.value), (first.header, &first.value));
    assert_eq!(first.header.inst, 0, "it began without what 1 alone has");
}

/// The TLA+ specification begins each session with a no-op for a message that never was: there message numbers are
/// counted by session. [N-APPEND]
#[test]
fn a_session_goes_on_where_the_one_before_ended() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2, 3]);
    group.ordered(1, 1, 2, &[1, 2, 3]);
    let members = group.sessions[0].members.clone();
    group.open_session(&members, 1);
    group.tick_all();
    group.settle(&[1, 2, 3]);
    let started = group.of(2).started().expect("it leads the first view");
    assert_eq!(
        (started.view, started.end, started.members.len()),
        (view_of(2, 0), 2, 3)
    );
    // The controller is told until the store shows it. [F-REPORT]
    assert_eq!(group.of(2).unreported(), Some(started));
    assert_eq!(group.of(1).unreported(), None, "it follows");
    group.activate(2, 0);
    assert_eq!(group.of(2).unreported(), None);
    group.ordered(2, 2, 3, &[1, 2, 3]);
    assert_eq!(group.log(3), [1, 2, 3]);
}

/// Two controllers with copies of one store issue session 2, each with a sequencer of its own. [W-SAME]
#[test]
fn no_view_begins_among_replicas_that_know_two_sessions_of_one_number() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2, 3]);
    let members = group.sessions[0].members.clone();
    group.open_session(&members, 0);
    let ours = group.sessions.clone();
    let mut others = ours.clone();
    others[1].nonce += 1;
    let mut known = Group::new(3);
    known.ordered(1, 0, 1, &[1, 2, 3]);
    for (node, told) in [(1, &ours), (2, &others), (3, &ours)] {
        let replica = known.replicas.get_mut(&node).unwrap();
        assert_eq!(replica.configure(told), Ok(true));
    }
    known.tick(1);
    known.tick(2);
    let conflict = Verdict::Dropped(Reason::Conflict);
    assert_eq!(known.pass(MsgType::ViewChangeReq, 1, 2), conflict);
    assert_eq!(known.pass(MsgType::ViewChange, 2, 1), conflict);
    known.tick(3);
    assert_eq!(known.pass(MsgType::ViewChange, 3, 1), Verdict::Changed);
    assert_eq!(known.pass(MsgType::StartView, 1, 2), conflict);
    let answer = Header {
        inst: 1,
        ..known.of(2).header(MsgType::StartViewRep, view_of(2, 0))
    };
    assert_eq!(known.step(&message(2, 1, answer, &[])), conflict);
    assert_eq!(known.of(1).started(), None);
    known.settle(&[1, 3]);
    let started = known.of(1).started().expect("these two know the same one");
    assert_eq!(started.members, [member(1), member(3)]);
}

/// The TLA+ specification makes a slot a no-op if a follower asked for it just before the leader
/// got it. [H-NOOP]
#[test]
fn a_followers_question_is_no_reason_for_a_no_op() {
    let mut group = Group::new(3);
    let now = group.now;
    group.replicas.get_mut(&2).unwrap().dropped(now, 0);
    group.tick(2);
    assert_eq!(group.pass(MsgType::GapRequest, 2, 1), Verdict::Answered);
    assert!(
        group.take(MsgType::GapReply, 1, 2).header.vrnd.is_none(),
        "it doesn't have it"
    );
    group.now += 5 * MS;
    group.tick(1);
    assert_eq!(group.on_the_way(MsgType::GapCommit, 2).len(), 0);
    group.ordered(1, 0, 1, &[1]);
    assert_eq!(group.log(1), [1]);
}

/// The paper, 5.2.5: recovery as in VR. A VIEW_CHANGE from before the crash counts, and so must what the recovered
/// replica acknowledges since: it acknowledges nothing. [N-MUTE]
#[test]
fn who_forgot_is_a_stranger_until_a_session_names_it() {
    let mut group = Group::new(3);
    group.want(3, view_of(1, 1));
    let before_the_crash = group.take(MsgType::ViewChange, 3, 2);
    group.lose_all();
    let reborn = Member {
        node: 3,
        nonce: 333,
    };
    group.replicas.insert(3, Replica::new(settings(reborn), 0));
    group.tell_store();
    group.now += 100 * MS;
    group.tick(3);
    assert_eq!(
        group.net.len(),
        0,
        "it shows nothing in a session that counts on another memory"
    );
    assert_eq!(
        group.stamped(1, 0, 1, 3),
        Verdict::Dropped(Reason::NotNormal)
    );
    assert_eq!(group.replicas.get_mut(&3).unwrap().take_ack(), None);

    group.ordered(1, 0, 1, &[1]);
    group.want(2, view_of(1, 1));
    assert_eq!(group.step(&before_the_crash), Verdict::Changed);
    let start = group.take(MsgType::StartView, 2, 3);
    assert_eq!(group.step(&start), Verdict::Dropped(Reason::Stranger));

    let members = [member(1), member(2), reborn];
    group.open_session(&members, 0);
    group.tick_all();
    group.settle(&[1, 2, 3]);
    assert_eq!(group.of(3).status(), Status::Normal);
}

/// The published C++ code rewinds its log before the new one has arrived; then the holder dies. [W-UNTOUCHED]
#[test]
fn the_log_stays_until_the_new_one_is_complete() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2]);
    // Session 2 keeps the leader, who starts its first view; nobody hears of it.
    let members = group.sessions[0].members.clone();
    group.open_session(&members, 0);
    group.tick(1);
    group.tick(3);
    assert_eq!(group.pass(MsgType::ViewChange, 3, 1), Verdict::Changed);
    assert_eq!(
        (group.of(1).status(), group.log(1)),
        (Status::Normal, vec![1])
    );
    group.lose_all();
    // 2 leads the next view, and asks 1 for the latest log. 1 dies.
    group.want(1, view_of(2, 1));
    group.want(2, view_of(2, 1));
    assert_eq!(group.pass(MsgType::ViewChange, 1, 2), Verdict::Changed);
    let question = group.take(MsgType::GapRequest, 2, 1);
    assert_eq!(question.header.inst, 0, "its own log is of an earlier view");
    group.lose_all();
    // 3 leads the third, with what 2 has.
    group.change_view(&[2, 3], view_of(2, 2));
    assert_eq!(
        (group.of(3).status(), group.log(3)),
        (Status::Normal, vec![1])
    );
    assert_eq!(group.log(2), [1]);
}

/// With f = 2 the holder of the log's tail dies while the new leader fetches it, and so does the
/// first leader. The part that the new leader has by then is told once more. [W-UNTOUCHED]
/// [W-START]
#[test]
fn two_may_die_while_a_new_log_is_collected() {
    let mut group = Group::new(5);
    group.ordered(1, 0, 1, &[1, 2, 3, 4, 5]);
    group.ordered(1, 1, 2, &[1, 2, 3]);
    // Replica 4 leads the fourth view, with entries that 3 has and 5 lacks. Replica 3 dies when it is asked, and 1 is
    // dead already.
    let fourth = view_of(1, 3);
    for node in [3, 4, 5] {
        group.want(node, fourth);
    }
    assert_eq!(group.pass(MsgType::ViewChange, 3, 4), Verdict::Changed);
    assert_eq!(group.pass(MsgType::ViewChange, 5, 4), Verdict::Changed);
    let question = group.take(MsgType::GapRequest, 4, 3);
    assert_eq!(question.header.inst, 1);
    assert_eq!(
        (group.of(4).status(), group.log(4)),
        (Status::ViewChange, vec![1])
    );
    group.lose_all();
    // 5 leads the fifth, with what 2 has.
    group.change_view(&[2, 4, 5], view_of(1, 4));
    for node in [2, 4, 5] {
        assert_eq!(
            (group.of(node).status(), group.log(node)),
            (Status::Normal, vec![1, 2]),
            "{node}"
        );
    }
}

/// The published C++ code lets a deposed leader keep its no-op if the new view has none. [W-START]
#[test]
fn a_deposed_leaders_no_op_goes() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[2, 3]);
    group.give_up(1, 0);
    group.lose_all();
    group.change_view(&[2, 3], view_of(1, 1));
    group.synchronise(2, &[1, 2, 3]);
    assert_eq!(
        (group.of(1).view(), group.of(1).status()),
        (view_of(1, 1), Status::Normal)
    );
    assert_eq!(group.log(1), [1]);
    assert_eq!(group.log(2), [1]);
}

/// The published C++ code panics if an executed operation must be taken back. [N-REWIND]
#[test]
fn a_deposed_leader_takes_back_what_it_executed_and_no_more() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2, 3]);
    group.ordered(1, 1, 2, &[1]);
    assert_eq!((group.of(1).ready(), group.of(2).ready()), (2, 0));
    group.change_view(&[2, 3], view_of(1, 1));
    group.now += 20 * MS;
    group.tick(2);
    group.settle(&[1, 2, 3]);
    assert_eq!(group.log(1), [1]);
    let replica = group.replicas.get_mut(&1).unwrap();
    assert_eq!(
        (replica.take_rewind(), replica.take_rewind()),
        (Some(1), None)
    );

    group.ordered(1, 1, 3, &[1, 2, 3]);
    group.change_view(&[1, 2, 3], view_of(1, 2));
    let replica = group.replicas.get_mut(&2).unwrap();
    assert_eq!(replica.take_rewind(), None, "all that it executed is there");
}

/// A command over several partitions is sent again, and stamped in the same slot of the next
/// session. A replica that was away knows its first copy by the same name. [W-VECTOR] [N-REWIND]
#[test]
fn a_vector_takes_the_place_of_an_earlier_one_of_the_same_command() {
    let copy = |session: Epoch, places: [Instance; 2], to: NodeId| {
        let mut value = Vec::new();
        Vector::reserve(&[0, 1], &mut value);
        Vector::stamp(&mut value, view::first(session), |pid| {
            places[usize::from(pid)]
        });
        let header = Header {
            flags: Flags::MULTI,
            ..ordered(session, 0, 5)
        };
        message(SEQUENCER, to, header, &value)
    };
    let mut group = Group::new(3);
    assert_eq!(group.step(&copy(1, [0, 8], 1)), Verdict::Changed);
    let members = group.sessions[0].members.clone();
    group.open_session(&members, 1);
    group.change_view(&[2, 3], view_of(2, 0));
    group.activate(2, 0);
    for node in [2, 3] {
        assert_eq!(group.step(&copy(2, [0, 9], node)), Verdict::Changed);
    }
    group.change_view(&[2, 3], view_of(2, 1));
    group.now += 20 * MS;
    group.tick(3);
    group.settle(&[1, 2, 3]);
    assert_eq!(group.of(1).view(), view_of(2, 1));
    let value = |node| group.of(node).entry(0).expect("filled").value.to_vec();
    assert_eq!(value(1), value(2));
    let replica = group.replicas.get_mut(&1).unwrap();
    assert_eq!(replica.take_rewind(), Some(0));
}

/// The paper, 4.3: a packet with a higher session number ends the session, and anyone can send one. [N-APPEND]
#[test]
fn a_packet_of_a_later_session_ends_nothing() {
    let mut group = Group::new(3);
    let wanted = view_of(2, 0);
    assert_eq!(
        group.stamped(2, 0, 9, 1),
        Verdict::Dropped(Reason::OldSession)
    );
    let request = group.of(2).header(MsgType::ViewChangeReq, wanted);
    let request = message(2, 1, request, &[]);
    assert_eq!(group.step(&request), Verdict::Dropped(Reason::UnknownEpoch));
    let members = group.sessions[0].members.clone();
    group.open_session(&members, 0);
    group.sessions[1].stage = Stage::Issued;
    let mut fresh = Group::new(3);
    fresh.sessions = group.sessions.clone();
    fresh.tell_store();
    assert_eq!(
        fresh.step(&request),
        Verdict::Dropped(Reason::UnknownEpoch),
        "only issued"
    );
    fresh.ordered(1, 0, 1, &[1]);
}

/// The Go implementation makes a no-op of a slot that the new leader lacks. [W-MERGE]
#[test]
fn a_new_leader_fetches_what_it_lacks() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 3]);
    group.change_view(&[2, 3], view_of(1, 1));
    assert_eq!(
        (group.of(2).status(), group.log(2)),
        (Status::Normal, vec![1])
    );
}

/// No published version bounds the log or its lists: a full log acknowledges nothing. [N-FULL]
#[test]
fn a_full_log_drops_requests_until_a_checkpoint() {
    let mut group = Group::new(3);
    for inst in 0..SLOTS as u64 {
        group.ordered(1, inst, inst + 1, &[1, 2]);
    }
    let replica = group.replicas.get_mut(&2).unwrap();
    assert_eq!(
        replica.take_ack().map(|ack| ack.header.inst),
        Some(SLOTS as u64)
    );
    let next = SLOTS as u64;
    assert_eq!(
        group.stamped(1, next, 99, 2),
        Verdict::Dropped(Reason::LogFull)
    );
    assert_eq!(group.replicas.get_mut(&2).unwrap().take_ack(), None);
    group.synchronise(1, &[1, 2]);
    assert_eq!(group.of(2).stable(), next);
    group.checkpointed(2, next);
    group.ordered(1, next, 99, &[2]);
    assert_eq!(group.log(2), [99]);
}

/// A leader with many no-ops commits no further one until it has synchronised. [H-LIST]
#[test]
fn lists_of_no_ops_fit_one_datagram() {
    let mut group = Group::new(3);
    for replica in group.replicas.values_mut() {
        (replica.settings.sync_after, replica.settings.heartbeat) = (Time::MAX / 2, Time::MAX / 2);
    }
    let half = max_noop_ranges(group.of(1).deployment().max_value) / 2;
    for n in 0..half as u64 {
        group.ordered(1, 2 * n, n + 1, &[1, 2, 3]);
        group.give_up(1, 2 * n + 1);
        group.settle(&[1, 2, 3]);
    }
    let end = 2 * half as u64;
    group.ordered(1, end, 99, &[1, 2, 3]);
    let stable = group.of(1).stable();
    assert_eq!(stable, 0, "nothing was synchronised meanwhile");
    let now = group.now;
    group.replicas.get_mut(&1).unwrap().dropped(now, end + 1);
    group.tick(1);
    group.now += 2 * MS;
    let mut out = Sent::default();
    group
        .replicas
        .get_mut(&1)
        .unwrap()
        .give_up(group.now, &mut out);
    assert_eq!(out.0.len(), 0, "it waits");
    group.synchronise(1, &[1, 2, 3]);
    group
        .replicas
        .get_mut(&1)
        .unwrap()
        .give_up(group.now, &mut out);
    assert_eq!(out.0.len(), 1);
}

// ---- Normal operation

/// The leader executes ahead of what is stable, and followers acknowledge once for each batch of packets. [N-ANSWER]
/// [N-ACK]
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

// ---- Gaps

/// A missing entry is accepted from any replica, and kept until all entries before it are there. [H-ASK]
#[test]
fn an_entry_is_taken_from_anybody_and_kept_for_its_turn() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2]);
    group.ordered(1, 1, 2, &[1, 2]);
    let now = group.now;
    [0, 1]
        .into_iter()
        .for_each(|slot| group.replicas.get_mut(&3).unwrap().dropped(now, slot));
    group.tick(3);
    let question = group.take(MsgType::GapRequest, 3, 1);
    assert_eq!(
        (question.header.inst, &question.value[..]),
        (0, &[0, 0, 0, 2][..])
    );
    // The leader doesn't answer, so another member is asked after a timeout.
    group.now += MS;
    group.tick(3);
    assert_eq!(group.pass(MsgType::GapRequest, 3, 2), Verdict::Answered);
    let mut answers = group.on_the_way(MsgType::GapReply, 3);
    answers.reverse();
    for answer in &answers {
        assert_eq!(group.step(answer), Verdict::Changed);
    }
    assert_eq!(group.log(3), [1, 2]);
}

/// A slot of two sessions may hold two commands, and somebody may tell of the earlier one. [H-ASK]
#[test]
fn an_entry_of_another_session_fills_no_gap() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2]);
    let now = group.now;
    group.replicas.get_mut(&3).unwrap().dropped(now, 0);
    group.tick(3);
    assert_eq!(group.pass(MsgType::GapRequest, 3, 1), Verdict::Answered);
    let mut answer = group.take(MsgType::GapReply, 1, 3);
    let stamp = std::mem::replace(&mut answer.header.vrnd, view::first(2));
    assert_eq!(group.step(&answer), Verdict::Dropped(Reason::OldSession));
    assert_eq!(group.log(3), [0; 0]);
    answer.header.vrnd = stamp;
    assert_eq!(group.step(&answer), Verdict::Changed);
    assert_eq!(group.log(3), [1]);
}

/// A no-op for a missing entry is accepted from the leader only. [H-ASK]
#[test]
fn a_no_op_is_taken_from_the_leader_alone() {
    let mut group = Group::new(3);
    let noop = |from: NodeId| Header {
        vrnd: view::first(1),
        flags: Flags::NOOP,
        swid: from,
        client: 0,
        ..Group::new(3).of(1).header(MsgType::GapReply, view_of(1, 0))
    };
    assert_eq!(
        group.step(&message(2, 3, noop(2), &[])),
        Verdict::Dropped(Reason::Unexpected)
    );
    assert_eq!(
        group.step(&message(2, 1, noop(2), &[])),
        Verdict::Dropped(Reason::Unexpected)
    );
    assert_eq!(group.step(&message(1, 3, noop(1), &[])), Verdict::Changed);
    assert_eq!(group.log(3), [0]);
}

/// The slot at which session 2 begins, in which a loss is accepted.
const ANEW: Instance = 1 << 32;

/// Returns a group in which only node 3 still has the log of session 1. The store has session 2, in
/// which a loss is accepted, and no node is told yet; nodes 1 and 2 have executed less than node 3.
fn lost() -> Group {
    let mut group = Group::new(3);
    for inst in 0..3 {
        group.ordered(1, inst, inst + 1, &[1, 2, 3]);
    }
    group.synchronise(1, &[1, 2, 3]);
    let reborn = [1, 2].map(|node| Member { node, nonce: 500 });
    for (member, position) in reborn.into_iter().zip([1, 2]) {
        let replica = Replica::new(settings(member), position);
        group.replicas.insert(member.node, replica);
    }
    group.sessions.push(Session {
        anew: Some(ANEW),
        ..session(2, &[reborn[0], reborn[1], member(3)], 0)
    });
    group
}

/// A session with an accepted loss begins with empty logs. [F-ANEW]
#[test]
fn a_session_in_which_a_loss_is_accepted_begins_anew() {
    let mut group = lost();
    group.sessions[1].stage = Stage::Issued;
    group.tell_store();
    assert_eq!(
        (group.of(3).stable(), group.of(3).next()),
        (3, 3),
        "not yet"
    );
    group.sessions[1].stage = Stage::Writing;
    group.tell_store();
    assert_eq!(
        (
            group.of(3).status(),
            group.of(3).stable(),
            group.of(3).next()
        ),
        (Status::Stranger, ANEW, ANEW)
    );
    // A late packet of the session before changes nothing.
    let late = group.stamped(1, 3, 4, 3);
    assert_eq!(late, Verdict::Dropped(Reason::NotNormal));
    let old = Group::new(3)
        .of(2)
        .header(MsgType::ViewChangeReq, view_of(1, 1));
    let late = group.step(&message(2, 3, old, &[]));
    assert_eq!(late, Verdict::Dropped(Reason::UnknownEpoch));
    // Nodes 1 and 2 begin it alone. They never had what was lost, and execute nothing below.
    group.change_view(&[1, 2], view_of(2, 0));
    for node in [1, 2] {
        let r = group.of(node);
        assert_eq!((r.status(), r.view()), (Status::Normal, view_of(2, 0)));
        assert_eq!((r.stable(), r.next()), (ANEW, ANEW));
    }
    assert_eq!(group.of(1).started().unwrap().end, ANEW);
    group.activate(2, 0);
    group.ordered(2, ANEW, 9, &[1, 2]);
    for _ in 0..3 {
        group.synchronise(1, &[1, 2, 3]);
        group.now += MS;
        group.tick_all();
        group.settle(&[1, 2, 3]);
    }
    for node in [1, 2, 3] {
        assert_eq!(
            (group.log(node), group.of(node).stable()),
            (vec![9], ANEW + 1)
        );
    }
}

/// A replica that ran ahead of what was stable goes back before it goes on. [F-ANEW] [N-REWIND]
#[test]
fn what_ran_ahead_of_an_accepted_loss_is_taken_back() {
    let mut group = lost();
    let _ = group.replicas.get_mut(&3).unwrap().take_rewind();
    let stable = group.of(3).stable();
    group.ordered(1, 3, 4, &[3]);
    group.tell_store();
    assert_eq!(
        group.replicas.get_mut(&3).unwrap().take_rewind(),
        Some(stable)
    );
    assert!(group.of(3).entry(3).is_none());
}

/// Sessions after an accepted loss need no members of the sessions before it. [F-ANEW]
#[test]
fn sessions_after_an_accepted_loss_ask_none_before_it() {
    let mut group = lost();
    // No replica goes there, because its sequencer dies, say. The loss stays accepted, and nothing
    // was stamped since.
    let members = group.sessions[1].members.clone();
    group.open_session(&members, 1);
    group.change_view(&[1, 2], view_of(3, 0));
    assert_eq!(
        (group.of(2).status(), group.of(2).next()),
        (Status::Normal, ANEW)
    );
    group.activate(3, 0);
    group.ordered(3, ANEW, 9, &[1, 2]);
    // From then on session 3 is asked like any other.
    group.open_session(&members, 0);
    group.lose_all();
    group.change_view(&[1, 3], view_of(4, 0));
    assert_eq!(
        (group.of(1).status(), group.log(1), group.log(3)),
        (Status::Normal, vec![9], vec![9])
    );
}

/// Members of a session that one controller has begun anew, and another one with a copy of the
/// store hasn't, must not begin its view together. [W-SAME] [F-ANEW]
#[test]
fn an_accepted_loss_makes_another_session_of_it() {
    let mut group = lost();
    let anew = group.sessions[1].clone();
    group.tell_store();
    let usual = Session {
        anew: None,
        ..anew.clone()
    };
    assert_ne!(anew.digest(), usual.digest());
    let further = Session {
        anew: Some(ANEW + 1),
        ..anew.clone()
    };
    for other in [usual, further] {
        let told = [group.sessions[0].clone(), other];
        let replica = group.replicas.get_mut(&3).unwrap();
        let why = replica.configure(&told).unwrap_err();
        assert_eq!(why, "a session is told with two configurations");
    }
}

#[test]
fn what_a_replica_does_is_counted() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2, 3]);
    group.ordered(1, 1, 2, &[1, 2]);
    let now = group.now;
    group.replicas.get_mut(&3).unwrap().dropped(now, 1);
    assert_eq!(group.of(3).open_gaps(), 1);
    group.tick(3);
    group.settle(&[1, 2, 3]);
    assert_eq!(group.of(3).open_gaps(), 0);
    let before = group.replicas.clone();
    // No replica has slot 2. The order is repeated, and a slot counts once.
    group.give_up(1, 2);
    assert_eq!(group.of(1).open_gaps(), 1);
    let order = group.take(MsgType::GapCommit, 1, 3);
    let _ = (group.step(&order), group.step(&order));
    group.settle(&[1, 2, 3]);
    group.synchronise(1, &[1, 2, 3]);
    let shown = |replica: &Replica| {
        let c = replica.counts();
        [c.gaps_asked, c.gaps_found, c.gaps_given_up, c.view_changes]
    };
    assert_eq!(shown(group.of(1)), [1, 0, 1, 1]);
    assert_eq!(shown(group.of(2)), [0, 0, 1, 1]);
    assert_eq!(shown(group.of(3)), [1, 1, 1, 1]);
    for (node, replica) in &group.replicas {
        let before = before[node].counts().synchronisations;
        assert!(replica.counts().synchronisations > before, "{node}");
    }
    group.change_view(&[2, 3], view_of(1, 1));
    assert_eq!(shown(group.of(3)), [1, 1, 1, 2]);
    // The counts are no state.
    let mut same = before[&3].clone();
    same.counts = group.of(3).counts();
    assert_eq!(same, before[&3]);
}

/// The leader doesn't answer commands behind a no-op until f others have the no-op. [H-NOOP]
#[test]
fn the_leader_answers_beyond_a_no_op_once_f_others_have_it() {
    let mut group = Group::new(3);
    group.give_up(1, 0);
    group.ordered(1, 1, 2, &[1]);
    assert_eq!((group.of(1).next(), group.of(1).ready()), (2, 0));
    assert_eq!(group.pass(MsgType::GapCommit, 1, 2), Verdict::Changed);
    let answer = group.take(MsgType::GapCommitRep, 2, 1);
    assert_eq!(group.step(&answer), Verdict::Changed);
    assert_eq!(group.of(1).ready(), 2);
    assert_eq!(group.step(&answer), Verdict::Dropped(Reason::Duplicate));
}

/// A follower replaces an acknowledged request by the leader's no-op, and confirms once it has everything below.
/// [H-NOOP] [H-OBEY]
#[test]
fn a_no_op_goes_over_what_was_acknowledged_and_is_confirmed_when_all_below_is_filled() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2]);
    group.ordered(1, 1, 2, &[2]);
    assert!(group.replicas.get_mut(&2).unwrap().take_ack().is_some());
    group.give_up(1, 1);
    assert_eq!(group.of(1).ready(), 1);
    // Node 3 lacks slot 0, so it can't show what it would answer for.
    assert_eq!(group.pass(MsgType::GapCommit, 1, 3), Verdict::Answered);
    assert_eq!(group.on_the_way(MsgType::GapCommitRep, 1).len(), 0);
    assert_eq!(group.pass(MsgType::GapCommit, 1, 2), Verdict::Changed);
    assert_eq!(group.log(2), [1, 0]);
    assert_eq!(group.pass(MsgType::GapCommitRep, 2, 1), Verdict::Changed);
    assert_eq!(group.of(1).ready(), 2);
    // A late packet is dropped.
    assert_eq!(group.stamped(1, 1, 2, 1), Verdict::Dropped(Reason::Stale));
    assert_eq!(group.log(1), [1, 0]);
}

/// A GAP_COMMIT from a former leader belongs to another view. [H-OBEY]
#[test]
fn a_former_leaders_order_counts_for_nothing() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2, 3]);
    group.give_up(1, 1);
    let order = group.take(MsgType::GapCommit, 1, 3);
    group.change_view(&[2, 3], view_of(1, 1));
    group.ordered(1, 1, 2, &[2, 3]);
    assert_eq!(group.step(&order), Verdict::Dropped(Reason::WrongView));
    assert_eq!(group.log(3), [1, 2]);
}

// ---- Synchronisation

/// A point becomes stable once f followers have everything below it. [Y-POINT] [Y-APPLY]
#[test]
fn a_point_is_stable_once_f_others_have_all_below() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2, 3]);
    let mut out = Sent::default();
    group.of(1).synchronise(&mut out);
    group.send(1, None, out);
    assert_eq!(group.of(1).stable(), 0);
    assert_eq!(group.pass(MsgType::SyncPrepare, 1, 2), Verdict::Changed);
    assert_eq!(group.pass(MsgType::SyncRep, 2, 1), Verdict::Changed);
    assert_eq!(group.of(1).stable(), 1);
    let commit = group.take(MsgType::SyncCommit, 1, 3);
    assert_eq!(group.step(&commit), Verdict::Changed);
    assert_eq!(group.of(3).stable(), 0, "it has applied no SYNC_PREPARE");
    assert_eq!(group.pass(MsgType::SyncCommit, 1, 2), Verdict::Changed);
    assert_eq!((group.of(2).stable(), group.of(2).ready()), (1, 1));
}

/// A follower answers a SYNC_PREPARE that has overtaken requests as soon as these are there, even
/// by another way. [Y-APPLY]
#[test]
fn a_point_that_comes_before_its_requests_waits_for_them() {
    let mut group = Group::new(3);
    let mut synchronised = Vec::new();
    for slots in [0..2, 2..3, 3..4] {
        for inst in slots {
            group.ordered(1, inst, inst + 1, &[1]);
        }
        let mut out = Sent::default();
        group.of(1).synchronise(&mut out);
        group.send(1, None, out);
        synchronised.push(group.take(MsgType::SyncPrepare, 1, 2));
    }
    // The newest counts, whatever comes after it.
    for at in [0, 2, 1] {
        assert_eq!(group.step(&synchronised[at]), Verdict::Answered);
    }
    for inst in 0..3 {
        group.ordered(1, inst, inst + 1, &[2]);
        assert!(group.on_the_way(MsgType::SyncRep, 1).is_empty());
    }
    let entry = group.of(1).entry(3).expect("filled");
    let header = Header {
        inst: 3,
        vrnd: entry.stamp,
        flags: entry.flags,
        request: entry.request,
        client: entry.client,
        ..group.of(1).header(MsgType::GapReply, view_of(1, 0))
    };
    let value = entry.value.to_vec();
    let _ = group.step(&message(1, 2, header, &value));
    assert_eq!(group.pass(MsgType::SyncRep, 2, 1), Verdict::Changed);
    assert_eq!(group.of(1).stable(), 4);
    assert_eq!(group.pass(MsgType::SyncCommit, 1, 2), Verdict::Changed);
    assert_eq!(group.of(2).stable(), 4);
    assert!(group.on_the_way(MsgType::SyncRep, 1).is_empty(), "once");
}

/// A waiting SYNC_PREPARE counts in its view alone, and shows no life of the leader when its turn
/// has come. [Y-APPLY] [N-MUTE]
#[test]
fn a_point_of_an_earlier_view_waits_for_nothing() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1]);
    let mut out = Sent::default();
    group.of(1).synchronise(&mut out);
    group.send(1, None, out);
    let prepare = group.take(MsgType::SyncPrepare, 1, 3);
    assert_eq!(group.step(&prepare), Verdict::Answered);
    let silent_at = group.now + settings(member(3)).silence;
    let mut later = group.of(3).clone();
    group.now += 30 * MS;
    group.ordered(1, 0, 1, &[3]);
    assert_eq!(group.on_the_way(MsgType::SyncRep, 1).len(), 1);
    assert_eq!(group.of(3).next_deadline(), Some(silent_at));
    std::mem::swap(group.replicas.get_mut(&3).expect("there"), &mut later);
    group.lose_all();
    group.change_view(&[2, 3], view_of(1, 1));
    group.lose_all();
    group.ordered(1, 0, 1, &[2, 3]);
    assert_eq!(group.log(3), [1]);
    assert!(group.net.is_empty(), "no answer");
}

/// A follower has a request where the others have agreed on a no-op, of which it never heard. Then that slot becomes
/// stable. [Y-BEHIND]
#[test]
fn who_is_behind_takes_everything_from_the_leader() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[3]);
    group.give_up(1, 0);
    group.settle(&[1, 2]);
    group.synchronise(1, &[1, 2]);
    assert_eq!((group.of(1).stable(), group.of(2).stable()), (1, 1));
    assert_eq!(group.log(3), [1]);
    group.ordered(1, 1, 2, &[1, 2, 3]);
    group.synchronise(1, &[1, 2, 3]);
    assert_eq!((group.of(3).stable(), group.log(3)), (0, vec![1, 2]));
    for _ in 0..3 {
        group.now += MS;
        group.tick_all();
        group.settle(&[1, 2, 3]);
    }
    assert_eq!((group.of(3).stable(), group.log(3)), (2, vec![0, 2]));
}

/// A leader that lacks the tail of a burst learns of it. [Y-TAIL]
#[test]
fn a_followers_answer_shows_the_tail() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[2, 3]);
    group.now += 20 * MS;
    group.tick(1);
    group.settle(&[1, 2, 3]);
    group.now += MS;
    group.tick(1);
    group.settle(&[1, 2, 3]);
    assert_eq!(group.log(1), [1]);
}

/// A sequencer that was copied stamps one slot twice. [Y-ALARM]
#[test]
fn logs_that_differ_raise_an_alarm() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 3]);
    group.ordered(1, 0, 2, &[2]);
    group.synchronise(1, &[1, 2, 3]);
    assert!(group.of(2).in_conflict() && !group.of(3).in_conflict());
    assert_eq!(
        (group.of(2).stable(), group.of(2).ready()),
        (0, 0),
        "it executes nothing"
    );
    let prepare = {
        let mut value = Vec::new();
        SyncPrepare::append(&mut value, 0, 1, []);
        let header = Header {
            inst: 1,
            ..group.of(1).header(MsgType::SyncPrepare, view_of(1, 0))
        };
        message(1, 3, header, &value)
    };
    assert_eq!(group.step(&prepare), Verdict::Dropped(Reason::Conflict));
}

/// The slots that it has prepared may be part of those that differ. [Y-ALARM] [Y-APPLY]
#[test]
fn nothing_becomes_stable_in_a_session_with_a_conflict() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2, 3]);
    let mut out = Sent::default();
    group.of(1).synchronise(&mut out);
    group.send(1, None, out);
    let _ = group.pass(MsgType::SyncPrepare, 1, 2);
    group.lose_all();
    assert_eq!(group.of(2).stable(), 0, "nobody has heard its answer");
    group.ordered(1, 1, 2, &[1, 3]);
    group.ordered(1, 1, 3, &[2]);
    for _ in 0..2 {
        group.synchronise(1, &[1, 2, 3]);
    }
    assert!(group.of(2).in_conflict());
    assert_eq!((group.of(1).stable(), group.of(3).stable()), (2, 2));
    assert_eq!(group.of(2).stable(), 0);
}

// ---- View changes

/// If one log has a request where another one has a no-op of the latest view, the new view's log has the no-op.
/// [W-MERGE]
#[test]
fn a_no_op_of_the_latest_view_wins() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[2]);
    group.give_up(1, 0);
    group.settle(&[1, 3]);
    assert_eq!((group.of(1).ready(), group.log(3)), (1, vec![0]));
    group.change_view(&[2, 3], view_of(1, 1));
    assert_eq!((group.log(2), group.log(3)), (vec![0], vec![0]));
}

/// Lists begin at `stable`: below the largest one only its reporter's log counts. [W-MERGE]
#[test]
fn below_the_largest_stable_nothing_is_merged() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[2]);
    group.give_up(1, 0);
    group.settle(&[1, 3]);
    group.synchronise(1, &[1, 3]);
    assert_eq!(group.of(3).stable(), 1);
    group.change_view(&[2, 3], view_of(1, 1));
    assert_eq!((group.log(2), group.of(2).stable()), (vec![0], 1));
}

/// Old members are asked, and f+1 new ones alone don't suffice. [W-QUORUM] [W-WHO]
#[test]
fn a_new_session_asks_the_members_of_the_last_active_one() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2]);
    let new = [member(3), member(4), member(5)];
    for m in &new[1..] {
        group.replicas.insert(m.node, Replica::new(settings(*m), 0));
    }
    group.open_session(&new, 0);
    for node in [3, 4, 5] {
        group.tick(node);
    }
    group.settle(&[3, 4, 5]);
    assert_eq!(
        group.of(3).status(),
        Status::ViewChange,
        "3 is one of f+1 old ones"
    );
    group.tick(1);
    group.now += 20 * MS;
    group.tick(3);
    group.settle(&[1, 3, 4, 5]);
    assert_eq!(
        (group.of(3).status(), group.log(3)),
        (Status::Normal, vec![1])
    );
    assert_eq!(
        group.of(1).status(),
        Status::ViewChange,
        "it is no member any more"
    );
}

/// A view asks the members of every session that may have committed something. [W-QUORUM]
#[test]
fn whom_a_view_asks() {
    let members: Vec<Vec<Member>> = (0..4)
        .map(|n| (n + 1..n + 4).map(member).collect())
        .collect();
    let mut store: Vec<Session> = (1..=4)
        .map(|number| session(number, &members[number as usize - 1], 0))
        .collect();
    store[0].stage = Stage::Active { by: view_of(1, 0) };
    store[2].stage = Stage::Issued;
    let asked = |told: &[Session], wanted: Round| {
        let mut sessions = crate::nopaxos::Sessions::default();
        sessions.learn(told).ok()?;
        let needed = sessions.needed(wanted)?;
        Some(needed.iter().map(|s| s.number).collect::<Vec<_>>())
    };
    // The last active session and every later one that was writing are asked; from the second view
    // on its own members, too.
    assert_eq!(asked(&store, view_of(4, 0)), Some(vec![1, 2]));
    assert_eq!(asked(&store, view_of(4, 1)), Some(vec![1, 2, 4]));
    assert_eq!(asked(&store, view_of(3, 0)), None, "it was never writing");
    // Only views above the one by which it became active are content with its own members.
    store[3].stage = Stage::Active { by: view_of(4, 2) };
    assert_eq!(asked(&store, view_of(4, 3)), Some(vec![4]));
    assert_eq!(asked(&store, view_of(4, 2)), Some(vec![1, 2, 4]));
    assert_eq!(asked(&store, view_of(4, 1)), Some(vec![1, 2, 4]));
    // If sessions are missing in between, nothing may be concluded.
    store[3].stage = Stage::Writing;
    assert_eq!(asked(&store[1..], view_of(4, 0)), None);
    // Before the first active one nothing was ever stamped.
    store[0].stage = Stage::Writing;
    assert_eq!(asked(&store, view_of(4, 0)), Some(vec![4]));
}

/// The sessions that the store shows are believed only if they fit the earlier ones. [E-NEWER]
#[test]
fn an_older_or_contradicting_view_of_the_store_changes_nothing() {
    let mut group = Group::new(3);
    let replica = group.replicas.get_mut(&1).unwrap();
    let mut older = group.sessions.clone();
    older[0].stage = Stage::Writing;
    assert_eq!(replica.configure(&older), Ok(false));
    let mut other = group.sessions.clone();
    other[0].members[0].nonce = 5;
    assert!(replica.configure(&other).is_err());
    let mut gap = group.sessions.clone();
    gap.push(session(3, &gap[0].members.clone(), 0));
    assert!(replica.configure(&gap).is_err());
    let mut even = group.sessions.clone();
    let two = session(2, &even[0].members[..2], 0);
    even.push(two);
    assert!(replica.configure(&even).is_err());
    assert!(replica.configure(&[]).is_err());
}

/// If the leader is silent, a follower begins the next view, as long as the session has leader numbers left. [W-WHEN]
#[test]
fn a_silent_leader_is_replaced_and_leader_numbers_end() {
    let mut group = Group::new(3);
    group.now += 30 * MS;
    group.tick(2);
    assert_eq!(group.of(2).view(), view_of(1, 0));
    group.now += 20 * MS;
    group.tick(2);
    group.settle(&[2, 3]);
    assert_eq!(
        (group.of(2).view(), group.of(2).leads()),
        (view_of(1, 1), true)
    );
    // A view that no node starts is followed by the next, and the last one by none.
    let last = view_of(1, view::MAX_LEADER);
    group.want(3, last);
    assert_eq!(group.of(3).view(), last);
    group.now += 1_000 * MS;
    group.tick(3);
    assert_eq!(group.of(3).view(), last);
}

/// A member that has missed a view hears of it by the leader's heartbeat. [W-WHEN]
#[test]
fn who_has_missed_a_view_follows() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[2, 3]);
    group.change_view(&[2, 3], view_of(1, 1));
    group.now += 20 * MS;
    group.tick(2);
    group.settle(&[1, 2, 3]);
    assert_eq!(
        (group.of(1).status(), group.of(1).view()),
        (Status::Normal, view_of(1, 1))
    );
    assert_eq!(group.log(1), [1]);
}

/// A new member reports an empty log, even if its application already has a state. [W-TELL]
#[test]
fn a_new_member_tells_an_empty_log_whatever_its_application_holds() {
    let mut group = Group::new(3);
    let reborn = Member {
        node: 3,
        nonce: 333,
    };
    group.replicas.insert(3, Replica::new(settings(reborn), 7));
    group.open_session(&[member(1), member(2), reborn], 0);
    group.tick(3);
    let told = group.take(MsgType::ViewChange, 3, 1);
    assert_eq!((told.header.inst, told.header.vrnd), (0, Round::NONE));
    assert_eq!(told.value, noops(0, &[]));
}

/// A disk of another history holds more than its group can have. [Y-ALARM]
#[test]
fn who_holds_more_than_its_group_starts_no_view() {
    let mut group = Group::new(3);
    let reborn = Member {
        node: 3,
        nonce: 333,
    };
    group.replicas.insert(3, Replica::new(settings(reborn), 7));
    group.open_session(&[member(1), member(2), reborn], 2);
    group.tick_all();
    group.settle(&[1, 2, 3]);
    let replica = group.of(3);
    assert_eq!(
        (replica.status(), replica.in_conflict()),
        (Status::ViewChange, true)
    );
    // The replica doesn't follow a view that starts below, either.
    group.change_view(&[1, 2], view_of(2, 1));
    group.now += 20 * MS;
    group.tick(1);
    let start = group.of(1).begun.clone();
    assert!(start.is_some(), "the others go on");
    group.tick(3);
    assert_eq!(group.of(3).status(), Status::ViewChange);
}

/// The log with which a view began becomes stable once f other replicas have it. [W-STABLE]
#[test]
fn what_a_view_began_with_is_stable_once_f_others_have_it() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[2]);
    [2, 3]
        .into_iter()
        .for_each(|node| group.want(node, view_of(1, 1)));
    assert_eq!(group.pass(MsgType::ViewChange, 3, 2), Verdict::Changed);
    assert_eq!(
        (group.of(2).ready(), group.of(2).stable()),
        (1, 0),
        "it may execute"
    );
    assert_eq!(group.of(2).started(), None);
    group.settle(&[2, 3]);
    assert_eq!((group.of(2).stable(), group.of(3).stable()), (1, 1));
    let started = group.of(2).started().expect("f+1 have it");
    assert_eq!(
        (started.end, started.members),
        (1, vec![member(2), member(3)])
    );
}

/// Another end belongs to another view of this number, or to nobody's view. [W-STABLE]
#[test]
fn who_confirms_another_end_than_the_views_counts_for_nothing() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[2]);
    [2, 3]
        .into_iter()
        .for_each(|node| group.want(node, view_of(1, 1)));
    assert_eq!(group.pass(MsgType::ViewChange, 3, 2), Verdict::Changed);
    let mut answers = Vec::new();
    while answers.is_empty() {
        for message in std::mem::take(&mut group.net) {
            match message.header.msgtype {
                MsgType::StartViewRep => answers.push(message),
                _ if [2, 3].contains(&message.to) => drop(group.step(&message)),
                _ => {}
            }
        }
    }
    let answer = answers.remove(0);
    for inst in [0, 2] {
        let mut other = answer.clone();
        other.header.inst = inst;
        assert_eq!(group.step(&other), Verdict::Dropped(Reason::Unexpected));
        assert_eq!((group.of(2).stable(), group.of(2).started()), (0, None));
    }
    assert_eq!(group.step(&answer), Verdict::Changed);
    assert_eq!(group.of(2).stable(), 1);
}

/// Slots that were trimmed come with a checkpoint. [W-CHECKPOINT]
#[test]
fn a_replica_below_everybodys_floor_wants_a_checkpoint() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2]);
    group.ordered(1, 1, 2, &[1, 2]);
    group.synchronise(1, &[1, 2]);
    for node in [1, 2] {
        group.checkpointed(node, 2);
    }
    group.ordered(1, 2, 3, &[1, 2]);
    for _ in 0..4 {
        group.now += MS;
        group.tick_all();
        group.settle(&[1, 2, 3]);
    }
    assert_eq!(group.of(3).wants_checkpoint(), Some(2));
    group.restored(3, 2);
    assert_eq!(group.of(3).wants_checkpoint(), None);
    for _ in 0..4 {
        group.now += MS;
        group.tick_all();
        group.settle(&[1, 2, 3]);
    }
    assert_eq!((group.of(3).stable(), group.log(3)), (3, vec![3]));
}

/// The leader alone knew that two slots were stable, and has forgotten its log. It leads the next session, whose logs count
/// from slot 0 on, with nothing but a checkpoint of these slots. [W-CHECKPOINT]
#[test]
fn who_lacks_what_a_new_leader_has_only_in_its_checkpoint_wants_one() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2]);
    group.ordered(1, 1, 2, &[1, 2]);
    let mut out = Sent::default();
    group.of(1).synchronise(&mut out);
    group.send(1, None, out);
    let _ = group.pass(MsgType::SyncPrepare, 1, 2);
    let _ = group.pass(MsgType::SyncRep, 2, 1);
    group.lose_all();
    assert_eq!((group.of(1).stable(), group.of(2).stable()), (2, 0));
    let reborn = Member {
        node: 1,
        nonce: 333,
    };
    group.replicas.insert(1, Replica::new(settings(reborn), 2));
    group.open_session(&[reborn, member(2), member(3)], 0);
    group.tick_all();
    group.settle(&[1, 2, 3]);
    let status = [1, 2, 3].map(|node| group.of(node).status());
    assert_eq!(status, [Status::Normal, Status::Normal, Status::ViewChange]);
    assert_eq!(group.of(3).wants_checkpoint(), Some(2));
    group.restored(3, 2);
    group.settle(&[1, 2, 3]);
    let third = group.of(3);
    assert_eq!((third.status(), third.stable()), (Status::Normal, 2));
}

/// A packet is dropped only if it changes nothing, whatever earlier packet has made the change
/// possible. [Y-APPLY]
#[test]
fn who_follows_what_came_early_says_so() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1]);
    let mut out = Sent::default();
    group.of(1).synchronise(&mut out);
    group.send(1, None, out);
    let _ = group.pass(MsgType::SyncPrepare, 1, 3);
    group.restored(3, 1);
    assert!(group.on_the_way(MsgType::SyncRep, 1).is_empty());
    // The state has this slot already.
    assert_eq!(group.stamped(1, 0, 1, 3), Verdict::Changed);
    assert_eq!(group.on_the_way(MsgType::SyncRep, 1).len(), 1);
}

/// A VIEW_CHANGE in the replica's own name, which it never sent, makes it go to that view. [W-TELL]
#[test]
fn who_goes_to_another_view_says_so() {
    let mut group = Group::new(3);
    let header = Header {
        vrnd: view_of(1, 0),
        ..group.of(2).header(MsgType::ViewChange, view_of(1, 1))
    };
    let told = message(2, 2, header, &noops(0, &[]));
    assert_eq!(group.step(&told), Verdict::Changed);
    assert_eq!(group.of(2).view(), view_of(1, 1));
    assert_eq!(group.step(&told), Verdict::Dropped(Reason::Duplicate));
}

/// Returns a group in which nodes 1 and 2 have a request in slot 0, in the first view. The others
/// go to a later view, and make a no-op stable there.
fn two_are_left_in_the_first_view() -> Group {
    let mut group = Group::new(5);
    group.ordered(1, 0, 1, &[1, 2]);
    group.synchronise(1, &[1, 2]);
    assert_eq!((group.of(1).stable(), group.of(2).stable()), (0, 0));
    group.change_view(&[3, 4, 5], view_of(1, 2));
    group.give_up(3, 0);
    group.settle(&[3, 4, 5]);
    group.synchronise(3, &[3, 4, 5]);
    assert_eq!((group.of(3).stable(), group.log(3)), (1, vec![0]));
    group
}

/// Checks that node 2 hears nothing of node 1 that would make its request stable. Then both follow
/// the others.
fn node_2_is_not_misled(mut group: Group) {
    group.now += 20 * MS;
    group.tick(1);
    group.settle(&[1, 2]);
    assert_eq!(group.of(2).stable(), 0, "{:?}", group.log(2));
    assert!(!group.of(1).leads());
    for _ in 0..40 {
        group.now += 10 * MS;
        group.tick_all();
        group.settle(&group.nodes());
    }
    let leader = group.of(3).leader();
    for node in group.nodes() {
        let replica = group.of(node);
        assert_eq!(
            (replica.status(), replica.leader(), replica.stable()),
            (Status::Normal, leader, 1)
        );
    }
    assert_eq!(group.log(2), [0]);
}

/// The leader's followers would take what a later view has made stable for what they have prepared
/// in this one. [W-DEPOSED]
#[test]
fn a_leader_that_takes_over_a_state_leads_no_more() {
    let mut group = two_are_left_in_the_first_view();
    group.restored(1, 1);
    node_2_is_not_misled(group);
}

/// Stable slots that follow a state depose a leader, too. [W-DEPOSED]
#[test]
fn a_leader_that_learns_what_is_stable_elsewhere_leads_no_more() {
    let mut group = two_are_left_in_the_first_view();
    let mut out = Sent::default();
    let noop = Entry::noop(view::first(1));
    let replica = group.replicas.get_mut(&1).expect("a replica");
    assert!(replica.learned(group.now, 0, &noop, &mut out));
    group.send(1, None, out);
    node_2_is_not_misled(group);
}

/// The log that it has collected so far may lack what is stable elsewhere. [W-DEPOSED]
#[test]
fn a_leader_that_takes_over_a_state_before_its_view_has_begun_leaves_it() {
    let mut group = Group::new(3);
    group.want(2, view_of(1, 1));
    assert_eq!(group.of(2).leader(), Some(member(2)));
    group.restored(2, 1);
    assert_eq!(group.of(2).view(), view_of(1, 2));
}

/// The view has gone on meanwhile. [W-CHECKPOINT] [N-REWIND]
#[test]
fn a_state_that_reaches_beyond_where_the_view_began_is_kept() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2]);
    let view = view_of(1, 1);
    group.change_view(&[1, 2], view);
    group.want(3, view);
    let _ = group.pass(MsgType::ViewChange, 3, 2);
    assert_eq!(group.pass(MsgType::StartView, 2, 3), Verdict::Changed);
    group.ordered(1, 1, 2, &[1, 2]);
    group.synchronise(2, &[1, 2]);
    group.restored(3, 2);
    let replica = group.replicas.get_mut(&3).expect("a replica");
    assert_eq!(
        (replica.status(), replica.view(), replica.stable()),
        (Status::Normal, view, 2)
    );
    assert_eq!(replica.take_rewind(), None);
}

/// Slots that the leader has made stable itself are nothing new. [W-DEPOSED]
#[test]
fn a_leader_that_takes_over_what_is_stable_in_its_view_goes_on() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2]);
    group.synchronise(1, &[1, 2]);
    group.restored(1, 1);
    assert!(group.of(1).leads());
}

/// The leader begins no view twice, and waits for another session. [W-DEPOSED] [W-ONCE]
#[test]
fn a_leader_without_a_next_number_leads_no_more_either() {
    let mut group = Group::new(3);
    let last = view::last(1);
    let nodes = group.nodes();
    group.change_view(&nodes, last);
    let leader = group.of(1).leader().expect("a view has one").node;
    assert!(group.of(leader).leads());
    group.restored(leader, 1);
    for other in nodes.into_iter().filter(|node| *node != leader) {
        let header = Header {
            vrnd: view_of(1, 0),
            ..group.of(other).header(MsgType::ViewChange, last)
        };
        let _ = group.step(&message(other, leader, header, &noops(0, &[])));
    }
    assert_eq!(
        (group.of(leader).status(), group.of(leader).leads()),
        (Status::ViewChange, false)
    );
    let members: Vec<Member> = (1..=3).map(member).collect();
    group.open_session(&members, 0);
    group.tick(leader);
    assert_eq!(group.of(leader).view(), view_of(2, 0));
}

// ---- The client

fn reply(view: Round, from: NodeId, inst: Instance) -> Header {
    Header {
        rnd: view,
        swid: from,
        inst,
        client: 7,
        request: inst + 1,
        ..Header::new(MsgType::Reply)
    }
}

fn ack(view: Round, from: NodeId, next: Instance) -> Header {
    ack_in(&session_of_five(), view, from, next)
}

fn ack_in(session: &Session, view: Round, from: NodeId, next: Instance) -> Header {
    Header {
        rnd: view,
        vrnd: session.shown(),
        swid: from,
        inst: next,
        ..Header::new(MsgType::Ack)
    }
}

fn session_of_five() -> Session {
    let members: Vec<Member> = (1..=5).map(member).collect();
    session(1, &members, 0)
}

fn client() -> Quorum<&'static str> {
    let mut quorum = Quorum::new(0);
    quorum.learn(&session_of_five()).unwrap();
    quorum
}

/// An answer is final once f other members of its view have acknowledged the slot. [K-QUORUM] [K-NEWEST]
#[test]
fn an_answer_is_final_with_f_others_of_its_view() {
    let mut client = client();
    assert_eq!(client.reply(&reply(view_of(1, 0), 1, 0), "a"), Ok(None));
    assert_eq!(client.reply(&reply(view_of(1, 0), 1, 1), "b"), Ok(None));
    client.ack(&ack(view_of(1, 0), 2, 2)).unwrap();
    assert_eq!(client.ack(&ack(view_of(1, 0), 2, 1)), Err(Reason::Stale));
    assert_eq!(client.next(), None, "f is 2");
    client.ack(&ack(view_of(1, 1), 3, 9)).unwrap();
    assert_eq!(client.next(), None, "of another view");
    client.ack(&ack(view_of(1, 0), 4, 1)).unwrap();
    assert_eq!((client.next(), client.next()), (Some("a"), None));
    client.ack(&ack(view_of(1, 0), 5, 2)).unwrap();
    assert_eq!((client.next(), client.next()), (Some("b"), None));
}

/// Acknowledgements of followers prove nothing without the leader's answer. [K-LEADER]
#[test]
fn followers_alone_prove_nothing() {
    let mut client = client();
    assert_eq!(
        client.reply(&reply(view_of(1, 0), 2, 0), "x"),
        Err(Reason::UnknownSender)
    );
    assert_eq!(
        client.ack(&ack(view_of(1, 0), 1, 9)),
        Err(Reason::UnknownSender)
    );
    assert_eq!(
        client.ack(&ack(view_of(1, 0), 6, 9)),
        Err(Reason::UnknownSender)
    );
    assert_eq!(
        client.reply(&reply(view_of(2, 0), 1, 0), "x"),
        Err(Reason::UnknownEpoch)
    );
    client.reply(&reply(view_of(1, 1), 2, 0), "new").unwrap();
    assert_eq!(
        client.reply(&reply(view_of(1, 0), 1, 0), "old"),
        Err(Reason::Stale)
    );
}

/// An answer from a stable slot is final without any acknowledgement. [K-STABLE]
#[test]
fn an_answer_from_a_stable_slot_is_final_by_itself() {
    let mut client = client();
    assert_eq!(client.reply(&reply(Round::NONE, 4, 0), "a"), Ok(Some("a")));
}

/// Two controllers with copies of one store have issued session 1, each with the boot nonces that it saw. A member of
/// the other one is another member here. [K-SAME]
#[test]
fn who_acknowledges_in_another_session_of_that_number_is_no_member() {
    let mut other = session_of_five();
    other.members[1].nonce += 1;
    let mut client = client();
    client.reply(&reply(view_of(1, 0), 1, 0), "a").unwrap();
    for follower in 2..=5 {
        let ack = ack_in(&other, view_of(1, 0), follower, 9);
        assert_eq!(client.ack(&ack), Err(Reason::Conflict));
    }
    assert_eq!(client.next(), None);
    assert_eq!(client.learn(&other), Err(Reason::Conflict));
    for follower in 2..=3 {
        client.ack(&ack(view_of(1, 0), follower, 9)).unwrap();
    }
    assert_eq!(client.next(), Some("a"), "the first one stays");
}

/// ACK shows the session's digest, by which clients notice that a replica is in another session. [K-SAME]
#[test]
fn a_follower_shows_clients_which_session_it_is_in() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2]);
    let follower = group.replicas.get_mut(&2).unwrap();
    let ack = follower.take_ack().unwrap().header;
    let members: Vec<Member> = (1..=3).map(member).collect();
    assert_eq!(ack.vrnd, session(1, &members, 0).shown());
}

/// The session was issued with three members by a store that was replaced by an older copy, and
/// begins with five. [E-ONE]
#[test]
fn a_session_that_was_only_issued_counts_nothing() {
    let five = session_of_five();
    let three = Session {
        stage: Stage::Issued,
        ..session(1, &five.members[..3], 0)
    };
    let mut client = Quorum::new(0);
    client.learn(&three).unwrap();
    assert_eq!(client.newest(), 0);
    client.learn(&five).unwrap();
    client.reply(&reply(view_of(1, 0), 1, 0), "a").unwrap();
    client.ack(&ack(view_of(1, 0), 2, 1)).unwrap();
    assert_eq!(client.next(), None, "f is 2");
    client.ack(&ack(view_of(1, 0), 3, 1)).unwrap();
    assert_eq!(client.next(), Some("a"));
}
