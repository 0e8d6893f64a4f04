// SPDX-License-Identifier: Apache-2.0
//! Agreement by Paxos: a learner counts votes, and instances that it misses are repaired.
//!
//! ```text
//!  PHASE2B, DELIVER ──> learner ──decided──> ring ──in order──> execution
//!  PHASE1B, REJECT  ──> recover ──decided──────^
//!                          ^
//!  gaps, polls ────────────'  QUERY, then repair rounds
//! ```

mod epochs;
mod gap;
mod log_extent;
mod repair;
mod ring;

use self::epochs::Epochs;
use self::gap::{Gaps, Holes};
use self::log_extent::LogExtent;
use self::ring::Ring;
use super::poll::Poll;
use super::{Agreement, AgreementStatus, BoundedReads, Decided, Event, Log, News, Rules, Stepped};
use crate::settings::{EpochView, Settings, Turn, Wanted};
use paxos::read::is_for_reads;
use paxos::wire::value::{ProbeReport, RangeReport};
use paxos::{
    Epoch, Flags, Header, HostLearner, Instance, Learned, MsgType, NodeId, Outbox, Packet,
    ReadBounds, ReadSettings, Reason, Recover, RecoverSettings, Round, SplitMix, Time, To, Verdict,
};
use std::ops::Range;

/// The part of the repair time for which a gap is only asked about before a repair proposes
/// anything, since an acceptor that reports no vote may still get the leader's proposal.
const REPAIR_DIVISOR: Time = 8;

/// The agreement of one partition by Paxos.
pub struct Paxos {
    settings: Settings,
    nonce: u64,
    /// The next instance to execute.
    next: Instance,
    /// The first instance from `next` on whose value isn't in the ring.
    ready: Instance,
    ring: Ring,
    learner: HostLearner,
    recover: Recover,
    gaps: Gaps,
    holes: Holes,
    extent: LogExtent,
    poll: Poll,
    reads: ReadBounds,
    epochs: Epochs,
    /// The range of undecided instances that are old enough to be repaired: from `repair_from` up
    /// to `repair_below`.
    repair_below: Instance,
    repair_from: Instance,
    /// True if a repair has found something and no new repair was begun since.
    has_found: bool,
    /// The number of repairs that have found a value.
    repaired: u64,
    /// The number of decisions that arrived without a question.
    told: u64,
    /// Acceptors have forgotten everything below this instance.
    trimmed: Instance,
    /// The instances that an operator's override gave up last; they hold nothing.
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
    const RULES: Rules = Rules {
        has_markers: true,
        spans: true,
        bounds_reads: true,
        trim_to: &[To::Acceptors, To::Leader],
    };

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
            extent: LogExtent::default(),
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

    // ---- News from execution

    fn keep(&mut self, value: &Decided<'_>) {
        self.insert(value);
    }

    #[inline]
    fn executed(&mut self, next: Instance) {
        // Values usually come in order, so that none waits.
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

    /// Begins further repairs, since the ring has room again.
    #[inline]
    fn go_on(&mut self, now: Time, out: &mut impl Outbox) {
        if std::mem::take(&mut self.has_found) {
            self.start_repairs(now);
            self.recover.tick(now, out);
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Restored(next) => {
                self.executed(next);
                self.recover.forget_below(next);
            }
            Event::Durable(_) => {}
            Event::GivenUp(instances) => self.give_up(instances),
            // Everything up to there was begun, since the epoch's marker is decided there.
            Event::Begins(at) => self.gaps.begun_below(at.saturating_add(1)),
            Event::Stamped(round, place) => self.begun_by(round, place),
            // A lane of another epoch than the active one is ignored, and a second lane.
            Event::Lane(now, epoch, lane) => {
                if self.epochs.set_lane(epoch, lane) {
                    self.tell_epoch(now);
                }
            }
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
            // Before the first view there is nobody to ask.
            self.poll
                .next_deadline()
                .filter(|_| self.epochs.last().is_some()),
        ];
        deadlines.into_iter().flatten().min()
    }

    // ---- News from the node, and its questions

    fn configure(&mut self, now: Time, epochs: &[EpochView], marker: Epoch) -> bool {
        let earlier = epochs.partition_point(|e| e.configuration.epoch < marker);
        let Some(news) = self.epochs.take(&epochs[earlier..]) else {
            return false;
        };
        if let Some(last) = self.epochs.last() {
            self.extent.configure(last);
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
            // Instances that the change of epochs left undecided, or decided unseen, may never be
            // mentioned again.
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

    fn status(&self) -> AgreementStatus {
        AgreementStatus {
            floor: self.trimmed,
            waiting: self.ring.waiting(),
            repaired: self.repaired,
            // A repair waits for votes.
            wants_votes: self.recover.open() > 0,
            ..AgreementStatus::default()
        }
    }

    fn bounded_reads(&mut self) -> Option<&mut impl BoundedReads> {
        Some(&mut self.reads)
    }
}

impl Paxos {
    // ---- Votes and decisions

    /// Counts a vote, and gives it to the repairs that wait for one.
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

    /// Tells execution and repair what the learner concluded from a vote or a decision.
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
            // The verdict is `answered`, since a count of votes needn't survive.
            Learned::Counted => {
                // Near the next instance one acceptor's vote is enough, so that a client that waits
                // for a reply doesn't wait for a poll.
                let near = self.next.saturating_add(self.settings.repair_limit as u64);
                self.gaps.begun_below(end.min(near));
                self.extent.by_acceptor(h.swid, end);
                Stepped::only(Verdict::Answered)
            }
            Learned::Dropped(Reason::Window) => {
                match h.msgtype {
                    MsgType::Deliver => self.ask_about(h.inst),
                    // The vote has no slot yet, but together with others' it shows that everything
                    // below was begun.
                    _ => self.extent.by_acceptor(h.swid, end),
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

    /// Takes a value that the learner calls decided; a repair may have found it before. The value
    /// lies within the ring. [X-ORDER]
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

    /// Puts a value into the ring; returns false if it was known.
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

    // ---- Instances that were begun

    /// Asks the acceptors about an instance that has no slot yet and that a single packet calls
    /// decided, unless there is enough to repair before it.
    fn ask_about(&mut self, inst: Instance) {
        let begun = self.gaps.begun();
        if begun <= inst && begun < self.next.saturating_add(self.ring.len()) {
            self.poll.soon();
        }
    }

    fn begun_by(&mut self, round: Round, place: Instance) {
        // The leader of that round's epoch has stamped the place. If the epoch is older than the
        // active one, this says nothing new: everything up to the marker was begun already, and
        // nothing behind it counts. [V-GAP]
        if self.epochs.active() == Some(round.epoch()) {
            let bound = self.next.saturating_add(self.settings.window);
            self.gaps.begun_below(place.saturating_add(1).min(bound));
        }
    }

    /// Takes an acceptor's answer to our poll, or to a question for reads. [X-POLL]
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
        self.extent.by_acceptor(h.swid, report.end.max(report.trim));
        Ok(Verdict::Answered)
    }

    /// Takes the leader's answer to our poll: everything below its next instance was begun, whether
    /// or not an acceptor has heard of it. It counts only after two such answers, and only as far
    /// as the leader's window reaches from here.
    fn on_leader_shows(&mut self, packet: &Packet<'_>) -> Result<Verdict, Reason> {
        let h = &packet.header;
        ProbeReport::parse(packet.value)?;
        if !self.poll.is_answer(self.nonce, h) {
            return Err(Reason::Unexpected);
        }
        // A leader that has retired shows no round, and a leader of another epoch doesn't count
        // here.
        if self.epochs.active().map(Round::base) != Some(h.rnd) {
            return Err(Reason::Stale);
        }
        if let Some(next) = self.extent.by_leader(h.rnd, h.request, h.inst) {
            let bound = self.next.saturating_add(self.settings.window);
            self.gaps.begun_below(next.min(bound));
        }
        Ok(Verdict::Answered)
    }

    // ---- Epochs

    fn give_up(&mut self, instances: Range<Instance>) {
        self.ring.forget(&instances);
        self.ready = self.next;
        self.find_ready();
        self.recover.forget_below(instances.end);
        self.trimmed = self.trimmed.max(instances.end);
        self.given_up = instances;
    }

    fn tell_epoch(&mut self, now: Time) {
        // Without a lane, which exists only in an active epoch, `recover` only asks. That is still
        // useful: values with f+1 votes are decided in any epoch, and an epoch whose marker finds
        // the acceptors' rings full waits until this replica has executed, and reported what it has
        // stored.
        let last = self.epochs.last().map(|c| (c, self.epochs.lane()));
        self.recover.set_epoch(now, last);
    }

    /// Delays the repairs of each replica by its place among the replicas, so that usually one
    /// replica repairs for all.
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

    /// Returns the instance from which on another replica's checkpoint would help: the trimmed one
    /// or, while a repair is stuck, one that a single acceptor calls trimmed. [X-CATCHUP]
    fn needs_state_from(&self) -> Option<Instance> {
        let trimmed = (self.next < self.trimmed).then_some(self.trimmed);
        trimmed.or_else(|| self.recover.doubtful_trim())
    }
}

/// Returns a result whose news is that the log may have changed.
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
