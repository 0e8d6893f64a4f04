// SPDX-License-Identifier: Apache-2.0
//! What must hold in every state of a cluster that agrees by NOPaxos.
//!
//! | property | invariant |
//! |---|---|
//! | what a leader answered and f others acknowledged is in all logs of later views | INV-10 |
//! | no slot is committed with two contents | INV-10 |
//! | what a client counts as final is committed | INV-10 |
//! | a view starts with one log; what its leader answers for a slot is one content | INV-11 |
//! | a view's followers have that content, but for no-ops of which they haven't heard | INV-11 |
//! | stable slots never change, all replicas' are equal, and later views have them | INV-12 |
//! | an answer was computed on the log that it names, or, if on none, on stable slots | INV-13 |
//! | who isn't a member of a session shows nothing in it | INV-14 |
//! | no slot of a session carries two messages, none lies below where the session begins | INV-15 |
//! | a packet that is dropped changes nothing, and nobody raises an alarm | INV-8, INV-12 |
//!
//! Answers are judged by the messages on the wire, whoever sees them and when.

use std::collections::BTreeMap;
use std::ops::Range;

use paxos::nopaxos::Replica;
use paxos::wire::nopaxos::Noops;
use paxos::{Epoch, Header, Instance, MsgType, NodeId, Reason, Round, Verdict};

use super::actor::{Actor, content};
use super::bounds::Bounds;
use crate::actor::Outputs;
use crate::network::{Message, MessageId, Payload, Sent};
use crate::systems::Reached;

/// The contents of a message that matter to the judge.
enum Fact {
    /// The message says nothing of interest.
    Nothing,
    /// The message says something that nobody may say.
    Forbidden(String),
    /// The leader of a view answers, on this log.
    Reply(Round, NodeId, Vec<u8>),
    /// A member of a view has everything below.
    Ack(Round, NodeId, Instance),
    /// A view starts.
    Start(Start),
    /// A slot of a session.
    Stamp(Epoch, Instance),
    /// A session's sequencer may stamp from here on.
    Program(Epoch, Instance),
    /// A client counts an answer on this log as final.
    Final(Vec<u8>),
}

/// A START_VIEW.
#[derive(PartialEq, Eq)]
struct Start {
    view: Round,
    end: Instance,
    stable: Instance,
    noops: Vec<Range<Instance>>,
}

/// A prefix of a log that is committed in a view.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Committed {
    view: Round,
    log: Vec<u8>,
}

/// Everything that messages say, by their numbers.
#[derive(Default)]
pub struct Judge {
    facts: Vec<Fact>,
    seen: BTreeMap<&'static str, u64>,
}

impl Judge {
    fn see(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn see_if(&mut self, is_so: bool, what: &'static str) {
        if is_so {
            self.see(what);
        }
    }

    /// Returns how many interesting things were reached.
    pub fn seen(&self) -> Vec<(&'static str, u64)> {
        self.seen.iter().map(|(what, n)| (*what, *n)).collect()
    }

    /// Notes what a message says, the first time it is sent in any state.
    pub fn note(&mut self, bounds: &Bounds, id: MessageId, message: &Message) {
        debug_assert_eq!(self.facts.len(), usize::from(id));
        let fact = match &message.payload {
            Payload::Packet { header, value } => {
                self.see_packet(message, header);
                let forbidden = forbidden(bounds, message, header);
                forbidden.unwrap_or_else(|| fact_of(bounds, header, value))
            }
            Payload::Program(program) => {
                self.see("sessions handed over");
                Fact::Program(program.epoch, program.next[0])
            }
            Payload::Delivered { value, .. } => {
                self.see("answers that a client counts");
                Fact::Final(value.bytes.clone())
            }
            _ => Fact::Nothing,
        };
        self.facts.push(fact);
    }

    fn see_packet(&mut self, message: &Message, h: &Header) {
        let is_of_second = h.rnd.epoch() > 1;
        match h.msgtype {
            MsgType::Reply => self.see_if(h.rnd > Round::base(1), "answers of later views"),
            MsgType::Ack => self.see_if(message.memory & 0xf > 1, "re-joined memories"),
            MsgType::GapCommitRep => self.see("no-ops agreed"),
            MsgType::SyncCommit => self.see("stable slots"),
            MsgType::Ordered => self.see_if(is_of_second, "slots of later sessions"),
            _ => {}
        }
    }

    // ---- Properties

    /// Returns what is wrong with a state.
    pub fn flaw(&mut self, bounds: &Bounds, reached: &Reached<'_, Actor>) -> Option<String> {
        let sent = reached.sent;
        let mut fresh = reached.fresh.iter();
        fresh
            .find_map(|id| self.flaw_of_message(*id, sent))
            .or_else(|| self.flaw_of_logs(bounds, reached))
            .or_else(|| self.flaw_of_finals(bounds, reached))
            .or_else(|| flaw_of_stable(bounds, reached))
    }

    fn fact(&self, id: MessageId) -> &Fact {
        &self.facts[usize::from(id)]
    }

    fn flaw_of_message(&self, id: MessageId, sent: &Sent) -> Option<String> {
        let mut others = sent.iter().filter(|other| **other != id);
        match self.fact(id) {
            Fact::Forbidden(what) => Some(what.clone()),
            Fact::Stamp(session, inst) => {
                others.find_map(|other| self.bad_stamp(*session, *inst, self.fact(*other)))
            }
            Fact::Start(start) => {
                let differs = |o: &Start| o.view == start.view && o != start;
                others
                    .any(|other| matches!(self.fact(*other), Fact::Start(o) if differs(o)))
                    .then(|| format!("INV-11: {} starts with two logs", start.view))
            }
            Fact::Reply(view, _, log) => others.find_map(|other| match self.fact(*other) {
                Fact::Reply(of, _, other) if of == view && differ(log, other) => Some(format!(
                    "INV-11: the leader of {view} answers on {log:?} and on {other:?}"
                )),
                _ => None,
            }),
            _ => None,
        }
    }

    /// Returns an error if a session stamps a slot with two requests (INV-15).
    fn bad_stamp(&self, session: Epoch, inst: Instance, other: &Fact) -> Option<String> {
        match other {
            Fact::Stamp(of, at) if (*of, *at) == (session, inst) => Some(format!(
                "INV-15: slot {inst} of session {session} is stamped twice"
            )),
            Fact::Program(of, begins) if *of == session && inst < *begins => Some(format!(
                "INV-15: slot {inst} of session {session} is stamped, which begins at {begins}"
            )),
            _ => None,
        }
    }

    /// Returns the longest prefix of each view that its leader has answered and f others have
    /// acknowledged.
    fn committed(&self, bounds: &Bounds, sent: &Sent) -> Vec<Committed> {
        let mut committed: Vec<Committed> = Vec::new();
        for id in sent {
            let Fact::Reply(view, leader, log) = self.fact(*id) else {
                continue;
            };
            let known = committed.iter_mut().find(|c| c.view == *view);
            let is_longer = known.as_ref().is_none_or(|c| c.log.len() < log.len());
            let reach = (*view, log.len() as Instance);
            if !is_longer || !self.is_acknowledged(bounds, reach, *leader, sent) {
                continue;
            }
            match known {
                Some(known) => known.log.clone_from(log),
                None => committed.push(Committed {
                    view: *view,
                    log: log.clone(),
                }),
            }
        }
        committed
    }

    /// Returns true if f others than the leader of a view have everything below a slot.
    fn is_acknowledged(
        &self,
        bounds: &Bounds,
        (view, end): (Round, Instance),
        leader: NodeId,
        sent: &Sent,
    ) -> bool {
        let mut who = 0u64;
        for id in sent {
            match self.fact(*id) {
                Fact::Ack(of, node, next) if *of == view && *next >= end && *node != leader => {
                    who |= 1 << node;
                }
                _ => {}
            }
        }
        who.count_ones() >= bounds.f().into()
    }

    /// Returns an error if a committed entry is missing in a later view or log (INV-10).
    fn flaw_of_logs(&mut self, bounds: &Bounds, reached: &Reached<'_, Actor>) -> Option<String> {
        let committed = self.committed(bounds, reached.sent);
        if committed.is_empty() {
            return None;
        }
        self.see("answers committed");
        for (at, one) in committed.iter().enumerate() {
            for other in &committed[..at] {
                if differ(&one.log, &other.log) {
                    return Some(format!("INV-10: {one:?} and {other:?} are committed"));
                }
            }
            let mut starts = reached.sent.iter().filter_map(|id| match self.fact(*id) {
                Fact::Start(start) if start.view > one.view => Some(start),
                _ => None,
            });
            if let Some(start) = starts.find(|start| !start.has(one)) {
                return Some(format!(
                    "INV-10: {one:?} is committed, {} starts with {} slots, no-ops {:?}",
                    start.view, start.end, start.noops
                ));
            }
            let replicas = (0..reached.numbers.len()).filter_map(|p| reached.actor(p).replica());
            let mut same = replicas.clone().filter(|r| r.last_normal() == one.view);
            if let Some(replica) = same.find(|r| !fits(r, &one.log)) {
                return Some(format!(
                    "INV-11: {one:?} is committed, {} has {:?} in that view",
                    replica.member().node,
                    log_of(replica)
                ));
            }
            let mut later = replicas.filter(|r| r.last_normal() > one.view);
            if let Some(replica) = later.find(|r| !has(r, &one.log)) {
                return Some(format!(
                    "INV-10: {one:?} is committed, {} has {:?} in {}",
                    replica.member().node,
                    log_of(replica),
                    replica.last_normal()
                ));
            }
        }
        None
    }

    /// Returns an error if a client counts something as final that isn't committed (INV-10).
    fn flaw_of_finals(&self, bounds: &Bounds, reached: &Reached<'_, Actor>) -> Option<String> {
        let mut finals = reached.fresh.iter().filter_map(|id| match self.fact(*id) {
            Fact::Final(log) => Some(log),
            _ => None,
        });
        let committed = self.committed(bounds, reached.sent);
        let replicas = (0..reached.numbers.len()).filter_map(|p| reached.actor(p).replica());
        let stable = replicas.map(Replica::stable).max().unwrap_or(0);
        let is_committed = |log: &Vec<u8>| {
            let is_stable = log.len() as Instance <= stable;
            is_stable || committed.iter().any(|c| c.log.starts_with(log))
        };
        let wrong = finals.find(|log| !is_committed(log))?;
        Some(format!(
            "INV-10: a client counts {wrong:?}, which isn't committed"
        ))
    }
}

/// Returns the violation if a message says something that nobody may say (INV-14).
fn forbidden(bounds: &Bounds, message: &Message, h: &Header) -> Option<Fact> {
    let shows = matches!(
        h.msgtype,
        MsgType::Ack
            | MsgType::Reply
            | MsgType::GapCommit
            | MsgType::GapCommitRep
            | MsgType::SyncPrepare
            | MsgType::SyncRep
            | MsgType::SyncCommit
            | MsgType::StartView
            | MsgType::StartViewRep
    );
    if !shows || h.rnd.is_none() {
        return None;
    }
    let session = bounds.session(h.rnd.epoch());
    let sender = (h.swid, message.memory);
    let is_member = session.members.iter().any(|m| (m.node, m.nonce) == sender);
    (!is_member).then(|| {
        let (node, memory) = sender;
        let msgtype = h.msgtype.name();
        Fact::Forbidden(format!(
            "INV-14: memory {memory:#x} of {node} shows {msgtype} of {}",
            h.rnd
        ))
    })
}

fn fact_of(bounds: &Bounds, h: &Header, value: &[u8]) -> Fact {
    match h.msgtype {
        MsgType::Reply if !h.rnd.is_none() => {
            Fact::Reply(h.rnd, bounds.leader(h.rnd), value.to_vec())
        }
        MsgType::Ack => Fact::Ack(h.rnd, h.swid, h.inst),
        MsgType::Ordered => Fact::Stamp(h.rnd.epoch(), h.inst),
        MsgType::StartView => {
            let noops = Noops::parse(value, h.inst, u16::MAX).expect("a leader's own");
            Fact::Start(Start {
                view: h.rnd,
                end: h.inst,
                stable: noops.stable,
                noops: noops.ranges().collect(),
            })
        }
        _ => Fact::Nothing,
    }
}

fn differ(one: &[u8], other: &[u8]) -> bool {
    one.iter().zip(other).any(|(a, b)| a != b)
}

impl Start {
    /// Returns whether it can be a log with this beginning.
    fn has(&self, committed: &Committed) -> bool {
        let is_noop = |inst: Instance| self.noops.iter().any(|r| r.contains(&inst));
        let mut slots = (self.stable as usize)..committed.log.len();
        self.end >= committed.log.len() as Instance
            && slots.all(|at| is_noop(at as Instance) == (committed.log[at] == 0))
    }
}

fn has(replica: &Replica, log: &[u8]) -> bool {
    let mut slots = log.iter().enumerate();
    slots.all(|(at, what)| content(replica, at as Instance) == Some(*what))
}

/// Returns true if the replica has this log as far as its own log reaches, except for no-ops of
/// which it hasn't heard.
fn fits(replica: &Replica, log: &[u8]) -> bool {
    let mut slots = log.iter().enumerate();
    slots.all(|(at, what)| {
        let own = content(replica, at as Instance);
        *what == 0 || own.is_none_or(|own| own == *what)
    })
}

fn log_of(replica: &Replica) -> Vec<u8> {
    let slots = replica.floor()..replica.next();
    slots.filter_map(|inst| content(replica, inst)).collect()
}

/// Returns an error unless stable prefixes are equal, and in every log of a later view (INV-12).
fn flaw_of_stable(bounds: &Bounds, reached: &Reached<'_, Actor>) -> Option<String> {
    let replica = |place: usize| reached.actor(place).replica();
    for one in reached.changed.iter().filter_map(|p| replica(*p)) {
        for other in bounds.replica_places().filter_map(|p| replica(p.into())) {
            let mut both = 0..one.stable().min(other.stable());
            if let Some(inst) = both.find(|i| content(one, *i) != content(other, *i)) {
                return Some(format!(
                    "INV-12: stable slot {inst} of {} is {:?}, of {} {:?}",
                    one.member().node,
                    content(one, inst),
                    other.member().node,
                    content(other, inst)
                ));
            }
            for (early, late) in [(one, other), (other, one)] {
                if late.last_normal() > early.last_normal()
                    && !has(late, &log_of(early)[..early.stable() as usize])
                {
                    return Some(format!(
                        "INV-12: {:?} of {} is stable to {}, {} has {:?} in a later view",
                        log_of(early),
                        early.member().node,
                        early.stable(),
                        late.member().node,
                        log_of(late)
                    ));
                }
            }
        }
    }
    None
}

/// Returns what is wrong with a step: INV-8, INV-12, INV-13.
pub fn flaw_of_step(before: &Actor, after: &Actor, out: &Outputs) -> Option<Box<str>> {
    let (Actor::Replica(was), Actor::Replica(is)) = (before, after) else {
        return None;
    };
    if let Some(Verdict::Dropped(reason)) = out.verdict {
        let has_effects = was.replica != is.replica || !out.packets.0.is_empty();
        if reason == Reason::Conflict {
            return Some("INV-12: a replica raises the alarm".into());
        }
        if has_effects {
            return Some(format!("INV-8: it is dropped ({reason:?}) but has effects").into());
        }
    }
    if was.replica.member() != is.replica.member() {
        return None;
    }
    let (old, new) = (was.replica.stable(), is.replica.stable());
    let mut stable = 0..old;
    if new < old || stable.any(|i| content(&was.replica, i) != content(&is.replica, i)) {
        return Some("INV-12: a stable slot changes".into());
    }
    let is_in_log = |log: &[u8]| has(&is.replica, log);
    if !is_in_log(&is.executed) {
        let (log, executed) = (log_of(&is.replica), &is.executed);
        return Some(format!("INV-13: {executed:?} was executed, the log is {log:?}").into());
    }
    let replies = out.packets.0.iter();
    let mut replies = replies.filter(|(_, h, _)| h.msgtype == MsgType::Reply);
    let wrong = replies.find(|(_, h, log)| {
        log.len() as Instance != h.inst + 1
            || !is_in_log(log)
            || h.rnd.is_none() && h.inst >= is.replica.stable()
    });
    wrong.map(|(_, h, log)| format!("INV-13: slot {} is answered on {log:?}", h.inst).into())
}
