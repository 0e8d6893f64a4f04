// SPDX-License-Identifier: Apache-2.0
//! Agreement by NOPaxos: the network has put the commands in order, and replicas agree on what it
//! lost.
//!
//! ```text
//!  ORDERED ──> receiver ──slot by slot──> log of the replica ──> execution: leader up to `ready`,
//!                 └──────missing────────> gaps, views, synchronisation      others up to `stable`
//! ```
//!
//! When a timer of the replica decides something, the replica sends a packet to itself, which is
//! handed back to it here at once and never leaves the process. A replica's memory may be stored:
//! [`NoPaxos::replica_mut`] says what must be on disk before its packets leave.

mod memory;
mod sequencer;

use super::poll::Poll;
use super::{
    Agreement, AgreementStatus, Answers, Decided, Event, Log, News, Rules, Speculative, Stepped,
};
use crate::settings::{Settings, Wanted};
use paxos::nopaxos::log::Entry;
use paxos::nopaxos::receiver::{Delivery, ReceiverSettings};
use paxos::nopaxos::{Ack, Receiver, Replica, ReplicaSettings, Session, Status, view};
use paxos::outbox::Sent;
use paxos::{
    Epoch, Header, Instance, MsgType, NodeId, Outbox, Packet, Reason, Round, Time, To, Verdict,
};
use std::collections::VecDeque;
use std::ops::Range;

/// How long a missing slot is waited for after a later one has come, if packets have overtaken each
/// other recently.
const REORDER_WAIT: Time = 50_000;
/// The time within which overtaking counts as recent.
const REORDERED_FOR: Time = 1_000_000_000;
/// The most missing slots that are told to the replica at a time.
const MAX_MISSING: usize = 1_024;
/// The time after which work that stays due is looked at again. A sequencer of an earlier session
/// is told at most this often that it isn't heard.
const PAUSE: Time = 1_000_000;

/// The agreement of one partition by NOPaxos.
pub struct NoPaxos {
    settings: Settings,
    nonce: u64,
    replica: Replica,
    receiver: Receiver,
    /// The session that the receiver listens to; 0 = none yet.
    listens_to: Epoch,
    /// Packets are expected to overtake each other until this time.
    reordered_until: Time,
    /// Packets of the replica to itself.
    to_self: VecDeque<(Header, Vec<u8>)>,
    /// Packets that the replica sent when there was no outbox to take them.
    unsent: Sent,
    /// The next instance to execute, and the next one after those that are on disk.
    executed: Instance,
    durable: Instance,
    /// Everything below this instance is given up. [F-ANEW]
    given_up: Instance,
    /// The place in this partition of the last command over several partitions of which another
    /// partition has a copy, and the round that stamped it.
    begun: (Round, Instance),
    /// The view of the memory that was read from disk, and the instance below which that memory
    /// knew the log to be stable.
    found: (Round, Instance),
    /// The time of the last look at what is due, and if another look is due at once.
    now: Time,
    is_due: bool,
    /// The questions of a leader that hears nothing, which asks the sequencer how far it is.
    poll: Poll,
    /// The number of ordered packets that have arrived.
    told: u64,
    /// The number of slots that were filled by asking.
    repaired: u64,
    /// The latest unknown session that a packet has named.
    mentioned: Epoch,
    /// The session that was told last, if this replica knows it with another configuration.
    contradiction: Option<Epoch>,
    rejected_at: Time,
}

/// An outbox that keeps packets of the replica to itself and passes on the rest.
struct Looped<'a, O> {
    node: NodeId,
    to_self: &'a mut VecDeque<(Header, Vec<u8>)>,
    out: &'a mut O,
}

impl<O: Outbox> Outbox for Looped<'_, O> {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        if to == To::Node(self.node) {
            self.to_self.push_back((*header, value.to_vec()));
        } else {
            self.out.send(to, header, value);
        }
    }
}

impl Log for NoPaxos {
    fn entry(&self, inst: Instance) -> Option<Decided<'_>> {
        let entry = self.replica.entry(inst)?;
        Some(Decided {
            inst,
            flags: entry.flags,
            client: entry.client,
            request: entry.request,
            value: entry.value,
        })
    }

    fn ready(&self) -> Instance {
        self.replica.ready()
    }

    fn stable(&self) -> Instance {
        self.replica.stable()
    }

    fn answers(&self) -> Answers {
        match self.replica.leads() && !self.replica.in_conflict() {
            true => Answers::Here(self.replica.view()),
            false => Answers::Elsewhere,
        }
    }

    fn held_below(&self) -> Instance {
        self.replica.held_below()
    }
}

impl Agreement for NoPaxos {
    type EpochView = Session;
    const RULES: Rules = Rules {
        has_markers: false,
        spans: true,
        bounds_reads: false,
        // The sequencer gets TRIM, since the members' memories are the log.
        trim_to: &[To::Leader],
    };

    fn open(settings: &Settings, nonce: u64, next: Instance, now: Time) -> NoPaxos {
        NoPaxos {
            nonce,
            replica: Replica::new(replica_settings(settings, nonce), next),
            receiver: Receiver::new(ReceiverSettings {
                deployment: settings.deployment,
                pid: settings.pid,
                slots: settings.buffer,
                reorder_wait: 0,
            }),
            listens_to: 0,
            reordered_until: 0,
            to_self: VecDeque::new(),
            unsent: Sent::default(),
            executed: next,
            durable: next,
            given_up: 0,
            begun: (Round::NONE, 0),
            found: (Round::NONE, 0),
            now,
            is_due: false,
            poll: Poll::new(settings.poll_interval, now),
            told: 0,
            repaired: 0,
            mentioned: 0,
            contradiction: None,
            rejected_at: 0,
            settings: settings.clone(),
        }
    }

    // ---- Handlers

    #[inline]
    fn step<'p>(&mut self, now: Time, packet: &Packet<'p>, out: &mut impl Outbox) -> Stepped<'p> {
        if self.replica.is_mute() {
            return Stepped::dropped(Reason::Restarted);
        }
        let verdict = match packet.header.msgtype {
            MsgType::Ordered => self.on_ordered(now, packet, out),
            MsgType::ProbeAck => {
                let shown = self.on_sequencer_shows(now, packet);
                shown.unwrap_or_else(Verdict::Dropped)
            }
            _ => self.on_message(now, packet, out),
        };
        let changed = self.hand_on(now, out);
        let news = match changed || verdict == Verdict::Changed {
            true => News::Kept,
            false => News::Nothing,
        };
        Stepped { verdict, news }
    }

    /// Takes an ORDERED that the kernel program has found to be of the session. The replica's
    /// packets in response leave with the batch.
    fn deliver<'p>(&mut self, now: Time, packet: &Packet<'p>) -> Stepped<'p> {
        if packet.header.msgtype != MsgType::Ordered {
            return Stepped::dropped(Reason::NotForRole);
        }
        let mut unsent = std::mem::take(&mut self.unsent);
        let stepped = self.step(now, packet, &mut unsent);
        self.unsent = unsent;
        stepped
    }

    // ---- News from execution

    /// Keeps a value that another replica has behind the state that was taken over from it, where
    /// the value is stable.
    fn keep(&mut self, value: &Decided<'_>) {
        let session = self.replica.view().epoch().max(1);
        let entry = Entry {
            stamp: view::first(session),
            flags: value.flags,
            client: value.client,
            request: value.request,
            value: value.value,
        };
        let mut out = looped(&self.settings, &mut self.to_self, &mut self.unsent);
        let learned = self.replica.learned(self.now, value.inst, &entry, &mut out);
        self.is_due |= learned;
    }

    fn executed(&mut self, next: Instance) {
        self.executed = next;
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Restored(next) => self.restored(next),
            Event::Durable(durable) => {
                self.durable = durable;
                self.is_due = true;
            }
            Event::GivenUp(instances) => self.give_up(instances),
            Event::Stamped(round, place) => {
                self.begun = self.begun.max((round, place));
                self.look_for_begun();
            }
            // There are no markers here, and repairs use no rounds.
            Event::Begins(_) | Event::Lane(..) => {}
        }
    }

    // ---- Time

    fn end_batch(&mut self, now: Time, waits: bool, out: &mut impl Outbox) -> bool {
        if waits {
            let mut out = looped(&self.settings, &mut self.to_self, out);
            self.replica.hurry(&mut out);
        }
        self.tick(now, out)
    }

    fn tick(&mut self, now: Time, out: &mut impl Outbox) -> bool {
        self.now = now;
        self.is_due = false;
        if self.replica.is_mute() {
            return false;
        }
        for (to, header, value) in self.unsent.0.drain(..) {
            out.send(to, &header, &value);
        }
        let forgets = self.durable > self.replica.floor();
        if forgets {
            let mut out = looped(&self.settings, &mut self.to_self, out);
            self.replica.checkpointed(now, self.durable, &mut out);
        }
        let handed_on = self.hand_on(now, out);
        self.adapt_to_reordering(now);
        for slots in self.receiver.missing(now, MAX_MISSING) {
            slots.for_each(|slot| self.replica.dropped(now, slot));
        }
        self.look_for_begun();
        let mut looped = looped(&self.settings, &mut self.to_self, out);
        self.replica.tick(now, &mut looped);
        self.ask_sequencer(now, out);
        self.hand_on(now, out) || handed_on || forgets
    }

    fn next_deadline(&self) -> Option<Time> {
        if self.is_due {
            return Some(self.now);
        }
        let deadlines = [
            self.replica.next_deadline().map(|at| self.later(at)),
            self.receiver.missing_deadline(self.now),
            self.poll
                .next_deadline()
                .filter(|_| self.replica.leads())
                .map(|at| self.later(at)),
        ];
        deadlines.into_iter().flatten().min()
    }

    // ---- News from the node, and its questions

    fn configure(&mut self, _: Time, sessions: &[Session], _: Epoch) -> bool {
        self.contradiction = self.replica.contradiction(sessions);
        let news = self.replica.configure(sessions).unwrap_or(false);
        self.is_due |= news;
        news
    }

    fn epoch(&self) -> Option<Epoch> {
        Some(self.replica.sessions().newest_open()?.number)
    }

    fn replicas(&self) -> Vec<NodeId> {
        let session = self.replica.sessions().newest_open();
        session.map_or(Vec::new(), |s| s.members.iter().map(|m| m.node).collect())
    }

    fn wanted(&self) -> Wanted {
        let known = self.replica.sessions().newest().unwrap_or(0);
        let mentioned = self.mentioned.max(self.receiver.later().unwrap_or(0));
        let is_used_up = view::next(self.replica.view()).is_none();
        Wanted {
            lane_for: None,
            incarnation: false,
            checkpoint_at_least: self.needs_state_from(),
            new_epoch: (self.replica.in_conflict() || is_used_up) && !self.replica.is_mute(),
            view_with: Some(mentioned).filter(|session| *session > known),
        }
    }

    fn status(&self) -> AgreementStatus {
        let floor = self.replica.wants_checkpoint();
        AgreementStatus {
            floor: floor.unwrap_or(self.replica.floor()),
            waiting: self.replica.next().saturating_sub(self.executed) as usize,
            repaired: self.repaired,
            wants_votes: false,
            contradiction: self.contradiction,
            shown: Some(self.shown()),
            memory: Some(self.memory()),
        }
    }

    fn speculative(&mut self) -> Option<&mut impl Speculative> {
        Some(self)
    }
}

impl Speculative for NoPaxos {
    fn take_rewind(&mut self) -> Option<Instance> {
        self.replica.take_rewind()
    }

    fn acknowledges(&self) -> bool {
        self.replica.status() == Status::Normal && !self.replica.leads()
    }

    fn set_crowded(&mut self, is_crowded: bool, others_wait_below: Instance) {
        self.replica.set_crowded(is_crowded, others_wait_below);
    }

    fn take_ack(&mut self) -> Option<Ack> {
        self.replica.take_ack()
    }
}

impl NoPaxos {
    /// Returns the replica role, for callers that need its view, or report a session that has
    /// begun.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Sets the waiting time for missing slots: a missing slot is asked for at once, unless it may
    /// only be late. [O-WAIT]
    fn adapt_to_reordering(&mut self, now: Time) {
        if self.receiver.take_overtaken() {
            self.reordered_until = now.saturating_add(REORDERED_FOR);
        }
        self.receiver
            .set_reorder_wait(match now < self.reordered_until {
                true => REORDER_WAIT,
                false => 0,
            });
    }

    /// Marks a place of this log as stamped, because another partition has a copy of its command.
    /// If the view is changing, the place is looked for in the next view. [V-GAP]
    fn look_for_begun(&mut self) {
        let (round, place) = self.begun;
        if round == view::stamp(self.replica.view()) && place >= self.replica.next() {
            self.replica.stamped(self.now, place.saturating_add(1));
        }
    }

    // ---- Events

    fn restored(&mut self, next: Instance) {
        let mut out = looped(&self.settings, &mut self.to_self, &mut self.unsent);
        self.replica.restored(self.now, next, &mut out);
        self.executed = next;
        self.durable = next;
        self.is_due = true;
    }

    fn give_up(&mut self, instances: Range<Instance>) {
        self.given_up = instances.end;
        self.replica.give_up_below(instances.end);
        // Execution has already gone back to the last stable state by itself.
        let _ = self.replica.take_rewind();
        self.is_due = true;
    }

    /// Returns the instance from which on another replica's state is needed, also if execution
    /// can't go on behind instances that were given up.
    fn needs_state_from(&self) -> Option<Instance> {
        let behind = (self.executed < self.given_up).then_some(self.given_up);
        self.replica.wants_checkpoint().or(behind)
    }

    // ---- Packets

    fn on_message(&mut self, now: Time, packet: &Packet<'_>, out: &mut impl Outbox) -> Verdict {
        let h = &packet.header;
        let before = self.replica.next();
        let mut looped = looped(&self.settings, &mut self.to_self, out);
        let verdict = self.replica.step_checked(now, packet, &mut looped);
        if verdict == Verdict::Dropped(Reason::UnknownEpoch) {
            self.mentioned = self.mentioned.max(h.rnd.epoch());
        }
        if h.msgtype == MsgType::GapReply {
            self.repaired += self.replica.next().saturating_sub(before);
        }
        verdict
    }

    /// Takes an ORDERED. The next slot, which is the usual case, goes into the log at once; others
    /// wait in the receiver.
    #[inline]
    fn on_ordered(&mut self, now: Time, packet: &Packet<'_>, out: &mut impl Outbox) -> Verdict {
        let h = &packet.header;
        self.told += 1;
        if h.inst == self.replica.next() && h.vrnd.is_none() {
            match self.replica.step_checked(now, packet, out) {
                Verdict::Dropped(Reason::OldSession | Reason::NotNormal) => {}
                verdict => return verdict,
            }
        }
        match self.receiver.take(now, packet) {
            // The verdict is `answered`, since nobody has been told that the replica has this
            // packet.
            Verdict::Changed => Verdict::Answered,
            Verdict::Dropped(Reason::OldSession) => self.refuse_old(now, h, out),
            verdict => verdict,
        }
    }

    // ---- From the receiver to the log

    /// Hands over everything that follows from the packets so far: packets of the replica to
    /// itself, and slots that are next. Returns whether anything changed.
    fn hand_on(&mut self, now: Time, out: &mut impl Outbox) -> bool {
        let mut changed = false;
        loop {
            changed |= self.hand_back(now, out);
            self.listen();
            if !self.drain(now, out) {
                return changed;
            }
            changed = true;
        }
    }

    fn hand_back(&mut self, now: Time, out: &mut impl Outbox) -> bool {
        let mut changed = false;
        while let Some((header, value)) = self.to_self.pop_front() {
            let packet = Packet {
                header,
                tag: None,
                value: &value,
            };
            let mut looped = looped(&self.settings, &mut self.to_self, out);
            changed |= self.replica.step_checked(now, &packet, &mut looped) == Verdict::Changed;
        }
        changed
    }

    /// Makes the receiver follow the log into another session, and past slots that were filled in
    /// another way. If a view's log ends before slots that the receiver has delivered, the receiver
    /// begins there again; while the view changes, packets wait.
    fn listen(&mut self) {
        if self.replica.status() != Status::Normal {
            return;
        }
        let (next, view) = (self.replica.next(), self.replica.view());
        if self.listens_to == view.epoch() && self.receiver.position() <= next {
            self.receiver.skip_to(next);
        } else if let Some(session) = self.replica.sessions().open(view) {
            self.listens_to = session.number;
            self.receiver
                .listen(session.number, session.sequencer, next);
        }
    }

    /// Moves slots that have waited for their turn from the receiver into the log, and returns
    /// whether there were any.
    fn drain(&mut self, now: Time, out: &mut impl Outbox) -> bool {
        let is_normal = self.replica.status() == Status::Normal;
        if !is_normal || self.receiver.position() != self.replica.next() {
            return false;
        }
        let view = self.replica.view();
        let sequencer = self.replica.sessions().open(view).map(|s| s.sequencer);
        let mut drained = false;
        while self.replica.has_room() {
            let Some(Delivery::Message(message)) = self.receiver.next(now) else {
                break;
            };
            let header = Header {
                inst: message.slot,
                rnd: view::stamp(view),
                swid: sequencer.unwrap_or(0),
                flags: message.flags,
                client: message.client,
                request: message.request,
                value_len: message.value.len() as u16,
                ..self.settings.header(MsgType::Ordered)
            };
            let packet = Packet {
                header,
                tag: None,
                value: message.value,
            };
            let verdict = self.replica.step_checked(now, &packet, out);
            drained |= verdict == Verdict::Changed;
            self.receiver.skip_to(self.replica.next());
        }
        drained
    }

    /// Returns when to look again at work that is due at `at`.
    fn later(&self, at: Time) -> Time {
        match at > self.now {
            true => at,
            false => self.now + PAUSE,
        }
    }
}

fn replica_settings(settings: &Settings, nonce: u64) -> ReplicaSettings {
    let slots = settings.window as usize;
    ReplicaSettings::new(settings.deployment, settings.pid, slots, nonce)
}

fn looped<'a, O: Outbox>(
    settings: &Settings,
    to_self: &'a mut VecDeque<(Header, Vec<u8>)>,
    out: &'a mut O,
) -> Looped<'a, O> {
    Looped {
        node: settings.deployment.node,
        to_self,
        out,
    }
}
