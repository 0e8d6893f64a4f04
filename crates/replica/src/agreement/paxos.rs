// SPDX-License-Identifier: Apache-2.0
//! Paxos: a learner counts votes, and what it misses is repaired.
//!
//! ```text
//!  PHASE2B, DELIVER ──> learner ──decided──> ring ──in order──> execution
//!  PHASE1B, REJECT  ──> recover ──decided──────^
//!                          ^
//!  gaps, polls ────────────'  QUERY, then repair rounds
//! ```

mod epochs;
mod gap;
mod repair;
mod ring;
mod shown;

use self::epochs::Epochs;
use self::gap::{Gaps, Holes};
use self::ring::Ring;
use self::shown::Shown;
use super::poll::Poll;
use super::{Agreement, Decided, Log, News, Stepped};
use crate::settings::{EpochView, Settings, Turn, Wanted};
use paxos::read::is_for_reads;
use paxos::wire::value::{ProbeReport, RangeReport};
use paxos::{
    Bound, Epoch, Flags, Header, HostLearner, Instance, Learned, MsgType, NodeId, Outbox, Packet,
    ReadBounds, ReadSettings, Reason, Recover, RecoverSettings, Round, SplitMix, Time, To, Verdict,
};
use std::ops::Range;

/// A gap is asked about for this fraction of the time after which it counts as old before anything is proposed for it: whoever
/// says that there is no vote may get the proposal yet.
const REPAIR_DIVISOR: Time = 8;

/// See the module.
pub struct Paxos {
    settings: Settings,
    nonce: u64,
    /// Where execution stands.
    next: Instance,
    /// From there on, the first instance whose value isn't in the ring.
    ready: Instance,
    ring: Ring,
    learner: HostLearner,
    recover: Recover,
    gaps: Gaps,
    holes: Holes,
    shown: Shown,
    poll: Poll,
    reads: ReadBounds,
    epochs: Epochs,
    /// Instances below that are undecided are old enough to be repaired, from `repair_from` on.
    repair_below: Instance,
    repair_from: Instance,
    /// Whether a repair has found something, and none was begun since.
    has_found: bool,
    /// How many repairs have found a value.
    repaired: u64,
    /// How many decisions came that nobody here had asked for.
    told: u64,
    /// Acceptors have forgotten everything below.
    trimmed: Instance,
    /// What an operator's override gave up last: these instances hold nothing.
    given_up: Range<Instance>,
}

impl Log for Paxos {
    fn entry(&self, inst: Instance) -> Option<Decided<'_>> {
        self.ring.get(inst)
    }

    fn ready(&self) -> Instance {
        self.ready
    }

    fn stable(&self) -> Instance {
        self.ready
    }
}

impl Agreement for Paxos {
    type EpochView = EpochView;
    const HAS_MARKERS: bool = true;
    const BOUNDS_READS: bool = true;
    const TRIM_TO: &'static [To] = &[To::Acceptors, To::Leader];

    fn open(settings: &Settings, nonce: u64, next: Instance, now: Time) -> Paxos {
        let deployment = settings.deployment;
        let mut learner = HostLearner::new(deployment, settings.buffer, &settings.learners);
        learner.set_floor(settings.pid, next);
        let recover = Recover::new(RecoverSettings {
            deployment,
            pid: settings.pid,
            retry_after: settings.repair_after,
            propose_after: settings.repair_after / REPAIR_DIVISOR,
            max_open: settings.repair_limit,
            nonce,
        });
        Paxos {
            nonce,
            next,
            ready: next,
            ring: Ring::new(settings.buffer),
            learner,
            recover,
            gaps: Gaps::new(settings.repair_after),
            holes: Holes::new(settings.ask_after),
            shown: Shown::default(),
            poll: Poll::new(settings.poll_interval, now),
            reads: ReadBounds::new(ReadSettings {
                deployment,
                pid: settings.pid,
                retry_after: settings.repair_after,
                nonce,
            }),
            epochs: Epochs::default(),
            repair_below: 0,
            repair_from: 0,
            has_found: false,
            repaired: 0,
            told: 0,
            trimmed: 0,
            given_up: 0..0,
            settings: settings.clone(),
        }
    }

    // ---- Handlers

    #[inline]
    fn step<'p>(&mut self, now: Time, packet: &Packet<'p>, out: &mut impl Outbox) -> Stepped<'p> {
        match packet.header.msgtype {
            MsgType::Phase2b => self.on_vote(now, packet, out),
            MsgType::Deliver => {
                let learned = self.learner.step_checked(packet);
                self.on_learned(packet, learned)
            }
            MsgType::Phase1b if packet.header.flags.has(Flags::RANGE) => {
                let shown = self.on_range(now, packet);
                Stepped::only(shown.unwrap_or_else(Verdict::Dropped))
            }
            MsgType::Phase1b | MsgType::Reject => {
                let verdict = self.recover.step(now, packet, out);
                match self.take_outcomes() {
                    true => kept(verdict),
                    false => Stepped::only(verdict),
                }
            }
            MsgType::ProbeAck => {
                let shown = self.on_leader_shows(packet);
                Stepped::only(shown.unwrap_or_else(Verdict::Dropped))
            }
            _ => Stepped::dropped(Reason::NotForRole),
        }
    }

    #[inline]
    fn deliver<'p>(&mut self, _: Time, packet: &Packet<'p>) -> Stepped<'p> {
        let learned = self.learner.take_checked(packet);
        self.on_learned(packet, learned)
    }

    /// While a repair waits for votes.
    fn wants_votes(&self) -> bool {
        self.recover.open() > 0
    }

    // ---- What execution tells

    fn keep(&mut self, value: &Decided<'_>) {
        self.insert(value);
    }

    #[inline]
    fn executed(&mut self, next: Instance) {
        // As a rule values come in order, and none waits.
        if self.ring.waiting() == 0 {
            self.ready = next;
        } else {
            self.ring.forget(&(self.next..next));
            self.ready = self.ready.max(next);
            self.find_ready();
        }
        self.next = next;
        self.learner.set_floor(self.settings.pid, next);
    }

    /// The ring has room again.
    #[inline]
    fn go_on(&mut self, now: Time, out: &mut impl Outbox) {
        if std::mem::take(&mut self.has_found) {
            self.start_repairs(now);
            self.recover.tick(now, out);
        }
    }

    fn restored(&mut self, next: Instance) {
        self.executed(next);
        self.recover.forget_below(next);
    }

    fn begun_by(&mut self, round: Round, place: Instance) {
        // The leader has stamped it, in the epoch of that round. Of an earlier epoch than the active one
        // everything was begun up to the marker, and nothing counts behind it. [V-GAP]
        if self.epochs.active() == Some(round.epoch()) {
            let bound = self.next.saturating_add(self.settings.window);
            self.gaps.begun_below(place.saturating_add(1).min(bound));
        }
    }

    // ---- Time

    fn end_batch(&mut self, now: Time, _: bool, out: &mut impl Outbox) -> bool {
        self.reads.tick(now, out);
        self.follow_gaps(now);
        false
    }

    fn tick(&mut self, now: Time, out: &mut impl Outbox) -> bool {
        self.reads.tick(now, out);
        self.repair(now, out);
        self.poll_tail(now, out);
        false
    }

    fn next_deadline(&self) -> Option<Time> {
        let deadlines = [
            self.gaps.next_deadline(),
            self.holes.next_deadline(),
            self.recover.next_deadline(),
            self.reads.next_deadline(),
            // There is nobody to ask before the first view.
            self.poll
                .next_deadline()
                .filter(|_| self.epochs.last().is_some()),
        ];
        deadlines.into_iter().flatten().min()
    }

    // ---- What the node tells, and what it asks

    fn configure(&mut self, now: Time, epochs: &[EpochView], marker: Epoch) -> bool {
        let earlier = epochs.partition_point(|e| e.configuration.epoch < marker);
        let Some(news) = self.epochs.take(&epochs[earlier..]) else {
            return false;
        };
        if let Some(last) = self.epochs.last() {
            self.shown.configure(last);
        }
        for configuration in self.epochs.configurations() {
            self.learner.learn(configuration);
            self.recover.learn(configuration);
        }
        self.tell_epoch(now);
        let active = self.epochs.active().and(self.epochs.last());
        self.reads.set_epoch(active);
        if news {
            self.take_turn();
            // Whatever the change of epochs left decided, or undecided, may never be mentioned
            // again.
            self.poll.hurry(now);
        }
        news
    }

    fn epoch(&self) -> Option<Epoch> {
        self.epochs.last().map(|last| last.epoch)
    }

    fn replicas(&self) -> Vec<NodeId> {
        self.epochs
            .last()
            .map_or(Vec::new(), |last| last.replicas.clone())
    }

    /// Ignored for another epoch than the active one, and once there is one.
    fn set_lane(&mut self, now: Time, epoch: Epoch, lane: u8) {
        if self.epochs.set_lane(epoch, lane) {
            self.tell_epoch(now);
        }
    }

    /// Its marker is decided there.
    fn begins(&mut self, at: Instance) {
        self.gaps.begun_below(at.saturating_add(1));
    }

    fn give_up(&mut self, instances: Range<Instance>) {
        self.ring.forget(&instances);
        self.ready = self.next;
        self.find_ready();
        self.recover.forget_below(instances.end);
        self.trimmed = self.trimmed.max(instances.end);
        self.given_up = instances;
    }

    fn wanted(&self) -> Wanted {
        let repairing = self.recover.open() > 0;
        Wanted {
            lane_for: self.epochs.without_lane().filter(|_| repairing),
            incarnation: false,
            checkpoint_at_least: self.needs_state_from(),
            new_epoch: self.recover.needs_epoch(),
            view_with: self.epochs.unknown(self.recover.later_epoch()),
        }
    }

    fn floor(&self) -> Instance {
        self.trimmed
    }

    fn want_bound(&mut self) -> u64 {
        self.reads.want()
    }

    fn take_bound(&mut self) -> Option<Bound> {
        self.reads.take_bound()
    }

    fn waiting(&self) -> usize {
        self.ring.waiting()
    }

    fn repaired(&self) -> u64 {
        self.repaired
    }
}

impl Paxos {
    // ---- What is decided

    /// A vote counts here, and may be what a repair waits for.
    #[inline]
    fn on_vote<'p>(
        &mut self,
        now: Time,
        packet: &Packet<'p>,
        out: &mut impl Outbox,
    ) -> Stepped<'p> {
        let learned = self.learner.step_checked(packet);
        let stepped = self.on_learned(packet, learned);
        match self.recover.open() {
            0 => stepped,
            _ => self.repair_with(now, packet, &stepped, out),
        }
    }

    fn repair_with<'p>(
        &mut self,
        now: Time,
        packet: &Packet<'p>,
        learned: &Stepped<'p>,
        out: &mut impl Outbox,
    ) -> Stepped<'p> {
        if let News::InHand(value) = &learned.news {
            self.insert(value);
        }
        let repair = self.recover.step(now, packet, out);
        self.take_outcomes();
        match (learned.verdict, repair) {
            (verdict, Verdict::Dropped(_)) => kept(verdict),
            (Verdict::Dropped(_), counted) => kept(counted),
            (verdict, _) => kept(verdict),
        }
    }

    /// What follows for execution and repair from what the learner made of a vote or a decision.
    #[inline]
    fn on_learned<'p>(&mut self, packet: &Packet<'p>, learned: Learned) -> Stepped<'p> {
        let h = &packet.header;
        let end = h.inst.saturating_add(1);
        match learned {
            Learned::Decided => {
                self.gaps.begun_below(end);
                self.holes.decided(h.inst);
                Stepped {
                    verdict: Verdict::Changed,
                    news: self.decided(decided(h, packet.value)),
                }
            }
            // `answered`, as a count of votes is nothing that must survive.
            Learned::Counted => {
                // Nearby one acceptor's vote is enough: who waits for a reply doesn't wait for a poll.
                let near = self.next.saturating_add(self.settings.repair_limit as u64);
                self.gaps.begun_below(end.min(near));
                self.shown.by_acceptor(h.swid, end);
                Stepped::only(Verdict::Answered)
            }
            Learned::Dropped(Reason::Window) => {
                match h.msgtype {
                    MsgType::Deliver => self.ask_about(h.inst),
                    // Not a slot yet, but with others' a sign that everything below was begun.
                    _ => self.shown.by_acceptor(h.swid, end),
                }
                Stepped::dropped(Reason::Window)
            }
            Learned::Dropped(Reason::UnknownEpoch) => {
                self.epochs.mentioned(h.rnd.epoch());
                Stepped::dropped(Reason::UnknownEpoch)
            }
            Learned::Dropped(reason) => Stepped::dropped(reason),
        }
    }

    /// What the learner calls decided; a repair may have found it before. It lies within the ring. [X-ORDER]
    #[inline]
    fn decided<'p>(&mut self, value: Decided<'p>) -> News<'p> {
        let asked = self.recover.open() > 0 && self.recover.decided_elsewhere(value.inst);
        self.told += u64::from(!asked);
        let is_next = value.inst == self.next && !self.ring.holds(value.inst);
        if is_next && !self.given_up.contains(&value.inst) {
            return News::InHand(value);
        }
        self.insert(&value);
        News::Kept
    }

    /// False if it was known.
    fn insert(&mut self, value: &Decided<'_>) -> bool {
        let is_news = !self.given_up.contains(&value.inst) && self.ring.insert(value);
        self.find_ready();
        is_news
    }

    fn find_ready(&mut self) {
        while self.ring.holds(self.ready) {
            self.ready += 1;
        }
    }

    // ---- What was begun

    /// An instance is said to be decided that has no slot yet. That is one packet's word: acceptors are
    /// asked, unless there is enough to repair before it.
    fn ask_about(&mut self, inst: Instance) {
        let begun = self.gaps.begun();
        if begun <= inst && begun < self.next.saturating_add(self.ring.len()) {
            self.poll.soon();
        }
    }

    /// An acceptor's answer to our poll, or to what is asked for reads. [X-POLL]
    fn on_range(&mut self, now: Time, packet: &Packet<'_>) -> Result<Verdict, Reason> {
        let h = &packet.header;
        let report = RangeReport::parse(packet.value)?;
        if is_for_reads(h) {
            if let Some(later) = self.reads.step(now, packet)? {
                self.epochs.mentioned(later);
            }
        } else if !self.poll.is_answer(self.nonce, h) {
            return Err(Reason::Unexpected);
        }
        if !self.epochs.have_acceptor(h.swid, report.nonce) {
            return Err(Reason::UnknownSender);
        }
        self.shown.by_acceptor(h.swid, report.end.max(report.trim));
        Ok(Verdict::Answered)
    }

    /// The leader's answer to our poll: everything below its next instance was begun, whether or not
    /// an acceptor has heard of it. It counts once it was given twice, and as far as the leader's window
    /// reaches from here.
    fn on_leader_shows(&mut self, packet: &Packet<'_>) -> Result<Verdict, Reason> {
        let h = &packet.header;
        ProbeReport::parse(packet.value)?;
        if !self.poll.is_answer(self.nonce, h) {
            return Err(Reason::Unexpected);
        }
        // A leader that has retired shows no round, and one of another epoch doesn't count here.
        if self.epochs.active().map(Round::base) != Some(h.rnd) {
            return Err(Reason::Stale);
        }
        if let Some(next) = self.shown.by_leader(h.rnd, h.request, h.inst) {
            let bound = self.next.saturating_add(self.settings.window);
            self.gaps.begun_below(next.min(bound));
        }
        Ok(Verdict::Answered)
    }

    // ---- Epochs

    fn tell_epoch(&mut self, now: Time) {
        // There is no lane in an epoch that isn't active, and without one recover only asks. But
        // what f+1 acceptors voted for is decided in any epoch. And an epoch whose marker finds the
        // acceptors' rings full waits until this replica has executed, and reported what it has
        // stored.
        let last = self.epochs.last().map(|c| (c, self.epochs.lane()));
        self.recover.set_epoch(now, last);
    }

    /// Spreads in time what one of the replicas does for all.
    fn take_turn(&mut self) {
        let Some(configuration) = self.epochs.last() else {
            return;
        };
        let node = self.settings.deployment.node;
        let turn = Turn::of(node, &configuration.replicas).index as u64;
        let base = self.settings.repair_after;
        let random = SplitMix::new(self.settings.seed ^ u64::from(node)).draw();
        let jitter = random % (base / 4).max(1);
        let patience = base + turn * base / 2 + jitter;
        self.gaps.set_patience(patience);
        self.recover.set_propose_after(patience / REPAIR_DIVISOR);
    }

    /// Where a checkpoint would help: at what is trimmed; while a repair is stuck, at what a single
    /// acceptor says is trimmed. [X-CATCHUP]
    fn needs_state_from(&self) -> Option<Instance> {
        let trimmed = (self.next < self.trimmed).then_some(self.trimmed);
        trimmed.or_else(|| self.recover.doubtful_trim())
    }
}

/// The log may have changed.
fn kept<'p>(verdict: Verdict) -> Stepped<'p> {
    Stepped {
        verdict,
        news: News::Kept,
    }
}

fn decided<'a>(header: &Header, value: &'a [u8]) -> Decided<'a> {
    Decided {
        inst: header.inst,
        flags: header.flags,
        client: header.client,
        request: header.request,
        value,
    }
}
