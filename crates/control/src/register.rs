// SPDX-License-Identifier: Apache-2.0
//! The store that several controllers keep among themselves: a register for each group, written by
//! Paxos.
//!
//! One controller acts. It has prepared a ballot at a majority and taken over what it found, so
//! each change takes one round to a majority; a later ballot of another controller ends that, and
//! with it whatever the first one still wants to write. Silence decides who takes over; the ballot
//! keeps the earlier one from writing. [E-BALLOT] [E-ACTS]
//!
//! The caller drives a [`Register`] so:
//!
//! 1. It calls [`Register::message`], [`Register::tick`] or [`Register::swap`].
//! 2. If [`Register::is_unsaved`], it stores [`Register::record`], then calls [`Register::saved`].
//!    If that fails it [forgets](Register::drop_messages) the messages and tries again later.
//! 3. It takes one [`Register::poll_message`] and sends it, or gives one to itself back to
//!    [`Register::message`], and repeats step 2 before the next one.
//! 4. It takes every [`Register::poll_event`].

mod acceptor;
mod founding;
mod messages;
mod proposer;
mod report;

pub use self::messages::{Condition, Hello, Mark, Part, RegisterMessage, Said, Written};

use self::founding::Collected;
use self::proposer::Stance;
use crate::{GroupState, StoreError};
use paxos::{GroupId, NodeId, SplitMix, Time};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

const MS: Time = 1_000_000;
/// How often each controller says hello.
const HELLO_INTERVAL: Time = 50 * MS;
/// How long somebody counts as heard.
const HEARD: Time = 500 * MS;
/// A hello that answers none of our last this many hellos is an old one.
const LATEST: u64 = HEARD / HELLO_INTERVAL;
/// How long an acceptor refuses other ballots after it has heard the acting controller, so that one
/// that is cut off from it alone doesn't take over.
const LOYALTY: Time = 300 * MS;
/// How long the first member waits in silence before it takes over, and how much longer each next
/// one.
const PATIENCE: Time = 600 * MS;
const PATIENCE_STEP: Time = 250 * MS;
/// How long an attempt to take over may take.
const ATTEMPT: Time = 400 * MS;
/// How long a change may take.
const SWAP: Time = 500 * MS;
/// How long it is said who should act now. Whoever it is begins at once, or not at all.
const HANDED_ON: Time = 200 * MS;
/// How often unanswered messages are repeated.
const RESEND: Time = 25 * MS;
/// How long the acting controller goes on without a majority that hears it.
const ALONE: Time = 1_000 * MS;
/// How often the acting controller looks for empty members.
const FILL_INTERVAL: Time = 1_000 * MS;

/// The number of an attempt to write. No controller uses one twice: it promises its own ballot,
/// durably, before it tells anybody. [E-BALLOT]
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash, Serialize, Deserialize,
)]
pub struct Ballot {
    /// Grows.
    pub count: u64,
    /// The controller that proposes.
    pub by: NodeId,
}

/// A controller's stored record.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The controllers that vote, ascending; only this one as long as it is alone.
    pub members: Vec<NodeId>,
    /// A random number that tells these members' records from those of earlier ones.
    pub origin: u64,
    /// The owner doesn't vote yet, since another member may lack this record. [E-FOUND]
    pub is_founding: bool,
    /// Nothing of an earlier ballot is accepted.
    pub promised: Ballot,
    /// The state that was accepted last, by group.
    pub groups: BTreeMap<GroupId, Written>,
}

impl Record {
    /// Returns the record of a controller that was alone until now.
    pub fn alone(me: NodeId, groups: impl IntoIterator<Item = (GroupId, GroupState)>) -> Record {
        let written = |state| Written {
            ballot: Ballot::default(),
            state,
        };
        Record {
            members: vec![me],
            origin: 0,
            is_founding: false,
            promised: Ballot::default(),
            groups: groups.into_iter().map(|(id, s)| (id, written(s))).collect(),
        }
    }

    /// Returns whether this is the record of a controller that is alone.
    pub fn is_alone(&self) -> bool {
        self.members.len() == 1
    }

    fn marks(&self) -> Vec<(GroupId, Mark)> {
        let groups = self.groups.iter();
        groups.map(|(id, w)| (*id, w.mark())).collect()
    }
}

/// The result of reading a controller's record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// Nothing, and whether there was a record once.
    Nothing {
        /// There was a record.
        lost: bool,
    },
    /// A record.
    Record(Record),
}

/// Something that the controller's main part must know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// This controller acts from now on, with these states. The ballot names the time until
    /// [`Event::Ended`].
    Acts(Ballot, BTreeMap<GroupId, GroupState>),
    /// It stands by again, for this reason.
    Ended(String),
    /// The end of a [`Register::swap`].
    Swapped(Result<(), StoreError>),
}

/// One controller's part in the register.
pub struct Register {
    me: NodeId,
    /// The controllers of the cluster file, ascending.
    members: Vec<NodeId>,
    nonce: u64,
    record: Option<Record>,
    lost: bool,
    unsaved: bool,
    peers: BTreeMap<NodeId, Heard>,
    /// A controller that has another cluster file, and the members there.
    stranger: Option<(NodeId, Vec<NodeId>)>,
    stance: Stance,
    collected: Option<Collected>,
    /// The highest ballot that anybody has shown.
    highest: Ballot,
    /// The main part of this controller works.
    alive: bool,
    due: Due,
    random: SplitMix,
    out: Outputs,
}

/// When the next attempt, hello, repetition and fill are due.
struct Due {
    attempt: Time,
    hello: Time,
    resend: Time,
    fill: Time,
    /// The controller that should act in the place of this one, and until when hellos say so.
    handed_on: Option<(NodeId, Time)>,
}

#[derive(Default)]
struct Outputs {
    /// The number of the last hello.
    hellos: u64,
    messages: VecDeque<(NodeId, Said)>,
    events: VecDeque<Event>,
}

/// The last hello of a peer.
struct Heard {
    hello: Hello,
    at: Time,
    /// The peer has heard this process lately, so the hello isn't an old one.
    both_ways: bool,
}

impl Register {
    /// Returns the part of controller `me` among `members`. `nonce` must differ at every process
    /// start.
    pub fn new(
        me: NodeId,
        mut members: Vec<NodeId>,
        found: Found,
        nonce: u64,
        now: Time,
    ) -> Register {
        members.sort_unstable();
        let (record, lost) = match found {
            Found::Nothing { lost } => (None, lost),
            Found::Record(record) => (Some(record), true),
        };
        let mut register = Register {
            me,
            members,
            nonce,
            record,
            lost,
            unsaved: false,
            peers: BTreeMap::new(),
            stranger: None,
            stance: Stance::StandsBy,
            collected: None,
            highest: Ballot::default(),
            alive: true,
            due: Due {
                attempt: 0,
                hello: now,
                resend: now,
                fill: now,
                handed_on: None,
            },
            random: SplitMix::new(nonce),
            out: Outputs::default(),
        };
        register.wait(now);
        register
    }

    // ---- Inputs ----------------------------------------------------------------------------

    /// Handles a message from another controller, or from this one to itself.
    pub fn message(&mut self, now: Time, from: NodeId, message: RegisterMessage) {
        if !self.members.contains(&from) {
            return;
        }
        if message.members != self.members {
            self.stranger = Some((from, message.members));
            return;
        }
        // Nobody begins to act on answers that were left lying.
        self.give_up_late(now);
        let votes = !matches!(message.said, Said::Hello(_) | Said::Join(_));
        if votes
            && self
                .record
                .as_ref()
                .is_none_or(|r| r.origin != message.origin)
        {
            return;
        }
        match message.said {
            Said::Hello(hello) => self.heard(now, from, hello),
            Said::Prepare { ballot } => self.prepare(now, from, ballot),
            Said::Promise { ballot, groups } => self.promise(now, from, ballot, groups),
            Said::Refused { ballot, promised } => self.refused(now, ballot, promised),
            Said::Fetch { ballot, group } => self.fetch(from, ballot, group),
            Said::Fetched {
                ballot,
                group,
                written,
            } => self.fetched(now, ballot, group, written),
            Said::Accept {
                ballot,
                group,
                state,
            } => self.accept(now, from, ballot, group, state),
            Said::Accepted {
                ballot,
                group,
                version,
            } => self.accepted(now, from, ballot, group, version),
            Said::Join(part) => self.join(now, from, part),
        }
    }

    /// Says hello, repeats what isn't answered, takes over after silence, and gives up what takes
    /// too long.
    pub fn tick(&mut self, now: Time) {
        if now >= self.due.hello {
            self.due.hello = now + HELLO_INTERVAL;
            self.say_hello(now);
            self.found(now);
        }
        self.give_up_late(now);
        if now >= self.due.resend {
            self.due.resend = now + RESEND;
            self.resend();
        }
        if now >= self.due.attempt && self.may_take_over(now) {
            self.take_over(now);
        }
        if now >= self.due.fill {
            self.due.fill = now + FILL_INTERVAL;
            self.begin_to_fill(now);
        }
    }

    /// Says that the main part of this controller works, or that it doesn't, so that another one
    /// may take over.
    pub fn set_alive(&mut self, alive: bool) {
        self.alive = alive;
    }

    /// Lets another controller act in the place of this one, if this one acts and that one answers.
    /// It begins without waiting for silence; if it fails, one takes over after silence as ever.
    /// [E-HANDON]
    pub fn hand_on(&mut self, now: Time, to: NodeId) {
        let Some(hello) = self.condition_of(now, to) else {
            return;
        };
        let can = matches!(self.stance, Stance::Acts(_)) && self.is_fellow(hello);
        if can {
            self.due.handed_on = Some((to, now + HANDED_ON));
            self.end(now, format!("controller {to} acts in its place"));
            // All must know that nobody acts before that one asks them.
            self.due.hello = now;
        }
    }

    /// Returns the other controllers that could act: they answer, and vote.
    pub fn fellows(&self, now: Time) -> Vec<NodeId> {
        let can = |peer: &NodeId| {
            let hello = self.condition_of(now, *peer);
            hello.is_some_and(|hello| self.is_fellow(hello))
        };
        self.peers().filter(can).collect()
    }

    /// Returns when the next [`tick`](Self::tick) is due.
    pub fn next_deadline(&self) -> Time {
        match self.stance {
            Stance::StandsBy => self.due.hello,
            _ => self.due.hello.min(self.due.resend),
        }
    }

    // ---- Outputs ---------------------------------------------------------------------------

    /// Returns what must be stored, if there is anything.
    pub fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    /// Returns whether the record has changed since it was [saved](Self::saved).
    pub fn is_unsaved(&self) -> bool {
        self.unsaved
    }

    /// Notes that the record is stored durably.
    pub fn saved(&mut self) {
        self.unsaved = false;
    }

    /// Forgets the messages that may not leave, as the record can't be stored.
    pub fn drop_messages(&mut self) {
        self.out.messages.clear();
    }

    /// Returns the next message. It may leave only once the record is stored.
    pub fn poll_message(&mut self) -> Option<(NodeId, RegisterMessage)> {
        let (to, said) = self.out.messages.pop_front()?;
        let message = RegisterMessage {
            members: self.members.clone(),
            origin: self.record.as_ref().map_or(0, |r| r.origin),
            said,
        };
        Some((to, message))
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.out.events.pop_front()
    }

    // ---- What all parts use ----------------------------------------------------------------

    fn say(&mut self, to: NodeId, said: Said) {
        self.out.messages.push_back((to, said));
    }

    /// Returns the members that vote: this controller alone, or all.
    fn voters(&self) -> &[NodeId] {
        self.record.as_ref().map_or(&[], |r| &r.members)
    }

    fn quorum(&self) -> usize {
        self.voters().len() / 2 + 1
    }

    fn peers(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.members.iter().copied().filter(|m| *m != self.me)
    }

    /// Returns the record if this controller votes. [E-EMPTY] [E-FOUND]
    fn voting(&self) -> Option<&Record> {
        self.record.as_ref().filter(|r| !r.is_founding)
    }

    /// Returns what a peer has said lately, after it heard this process.
    fn condition_of(&self, now: Time, peer: NodeId) -> Option<&Hello> {
        let heard = self.peers.get(&peer)?;
        (heard.both_ways && now < heard.at + HEARD).then_some(&heard.hello)
    }

    fn condition(&self) -> Condition {
        match &self.record {
            None => Condition::Empty { lost: self.lost },
            Some(r) if r.is_founding => Condition::Founding { origin: r.origin },
            Some(r) if r.is_alone() && self.members.len() > 1 => Condition::Alone,
            Some(r) => Condition::Member { origin: r.origin },
        }
    }

    fn say_hello(&mut self, now: Time) {
        self.out.hellos += 1;
        let heard = self.peers.iter();
        let heard = heard.filter(|(_, h)| now < h.at + HEARD);
        let hello = Hello {
            nonce: self.nonce,
            number: self.out.hellos,
            heard: heard
                .map(|(node, h)| (*node, h.hello.nonce, h.hello.number))
                .collect(),
            condition: self.condition(),
            promised: self.promised(),
            acting: self.acts_in().filter(|_| self.alive),
            follows: self.follows_another(now, self.me),
            hands_on_to: self
                .due
                .handed_on
                .filter(|(_, until)| now < *until)
                .map(|(to, _)| to),
        };
        for peer in self.peers().collect::<Vec<_>>() {
            self.say(peer, Said::Hello(hello.clone()));
        }
    }

    /// Takes a hello. It counts only if it answers one that was said here lately: an old one may be
    /// of a process that is dead. [E-ACTS]
    fn heard(&mut self, now: Time, from: NodeId, hello: Hello) {
        let is_answer = |(node, nonce, number): &(NodeId, u64, u64)| {
            (*node, *nonce) == (self.me, self.nonce) && number + LATEST >= self.out.hellos
        };
        let both_ways = hello.heard.iter().any(is_answer);
        let is_older = |known: &Heard| match known.hello.nonce == hello.nonce {
            true => hello.number <= known.hello.number,
            false => known.both_ways && now < known.at + HEARD && !both_ways,
        };
        if from == self.me || self.peers.get(&from).is_some_and(is_older) {
            return;
        }
        self.stranger = self.stranger.take().filter(|(node, _)| *node != from);
        if both_ways && self.is_fellow(&hello) {
            self.highest = self.highest.max(hello.promised);
            if hello.acting.is_some_and(|ballot| self.is_not_older(ballot)) {
                self.wait(now);
                self.due.handed_on = None;
            }
            self.outbid(now, hello.promised);
            if hello.acting.is_none() && hello.hands_on_to == Some(self.me) {
                (self.due.attempt, self.due.hello) = (now, now);
            }
        }
        let heard = Heard {
            hello,
            at: now,
            both_ways,
        };
        self.peers.insert(from, heard);
    }

    /// Returns whether a peer votes together with this controller.
    fn is_fellow(&self, hello: &Hello) -> bool {
        let origin = self.record.as_ref().map(|record| record.origin);
        origin.is_some_and(|origin| hello.condition == Condition::Member { origin })
    }

    fn promised(&self) -> Ballot {
        self.record
            .as_ref()
            .map_or_else(Ballot::default, |record| record.promised)
    }

    /// Returns whether nothing later than a ballot is promised here.
    fn is_not_older(&self, ballot: Ballot) -> bool {
        ballot >= self.promised()
    }

    /// Puts the next attempt off: the members take turns, so that two rarely collide. [E-ACTS]
    fn wait(&mut self, now: Time) {
        let rank = self.members.iter().position(|m| *m == self.me);
        let step = PATIENCE_STEP * rank.unwrap_or(0) as Time;
        let spread = self.random.draw() % (PATIENCE_STEP / 2);
        self.due.attempt = now + PATIENCE + step + spread;
    }
}
