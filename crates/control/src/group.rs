// SPDX-License-Identifier: Apache-2.0
//! The control of one group: runs the attempt for the newest epoch, and repeats the orders of the
//! epoch in force. [`plan`] decides when a new epoch is needed, and who is in it.

mod ahead;
mod belief;
mod concerned_nodes;
mod draws;
mod enrol;
mod evidence;
mod lanes;
mod loss;
mod members;
mod memories;
mod order;
mod pace;
pub(crate) mod plan;
mod replicas;
mod report;
mod ring_space;
mod session;
mod stop;
mod view_askers;

use crate::attempt::{Attempt, Wish};
use crate::memory::MemoryRecord;
use crate::settings::Settings;
use crate::state::Handed;
use crate::status::FailoverStatus;
use crate::suspicion::Suspicion;
use crate::{ControlOutbox, GroupSettings, GroupState, Message, Peer, Refused, Store};
use ahead::Ahead;
use belief::Claim;
use lanes::OutsideLanes;
use memories::EarlierStart;
use order::{Order, Waiter};
use pace::Pace;
use paxos::wire::value::{Probe, Rejection};
use paxos::{
    Candidate, Configuration, Deployment, Epoch, MsgType, Packet, Reason, Round, SplitMix, Stage,
    Time, Verdict,
};
use plan::Patience;
use session::Complaint;
use stop::Stopping;
use view_askers::ViewAskers;

pub(crate) struct GroupControl {
    settings: GroupSettings,
    timing: Settings,
    deployment: Deployment,
    suspicion: Suspicion,
    state: GroupState,
    attempt: Option<Attempt>,
    /// What is read before the next epoch is issued.
    ahead: Option<Ahead>,
    pace: Pace,
    random: SplitMix,
    /// The operator's order, and the askers who wait for the next epoch in force.
    order: Option<Order>,
    waiting: Vec<Waiter>,
    view_askers: ViewAskers,
    /// Replicas are being stopped, since that order accepts a loss.
    stopping: Option<Stopping>,
    /// The last epoch would have leapt in only some of its partitions.
    torn: bool,
    /// The time since when a configuration other than the one in force is wanted.
    changed: Option<Time>,
    /// The last epoch in which a process start asked for a lane or an incarnation and none was
    /// left.
    used_up: Epoch,
    /// The lanes that command lines have drawn.
    outside_lanes: OutsideLanes,
    /// The last epoch that this process issued, or 0. This process may not give out lanes and
    /// incarnations of other epochs.
    issued: Epoch,
    /// A session that an earlier process left *writing* and that no replica reports; 0 if there is
    /// none.
    silent_session: Epoch,
    /// A change failed, and it may or may not have been stored. It doesn't count until the state
    /// has been written again.
    doubtful: bool,
    /// Claims of acceptors about their memories that no replica confirms.
    claims: Vec<Claim>,
    /// Replicas whose logs or stores contradict a session.
    complaints: Vec<Complaint>,
    /// The reason why the store is known to be older than the cluster's state.
    stale: Option<String>,
    /// The reason why this controller must not continue.
    alarm: Option<String>,
    /// The last epoch whose leader was seen to be programmed; its order is never repeated.
    programmed: Epoch,
    /// The time since when the epoch in force has been active, or this process has run.
    in_force_since: Time,
    patience: Patience,
    /// The reason why no epoch can be issued although one is needed.
    blocked: Option<String>,
    /// The last error of the store.
    store_trouble: Option<String>,
    /// The time since when a new epoch has been needed.
    needed_since: Option<Time>,
    /// The time since when the epoch in force was needed, and the reason, until its leader shows
    /// its round.
    timed: Option<(Time, String)>,
    last_failover: Option<FailoverStatus>,
    loss: Option<String>,
    views_at: Time,
    /// The memories that acceptors have shown; the part that matters is in the store.
    memories: Vec<MemoryRecord>,
    /// The time when positions are stored next.
    memories_at: Time,
}

impl GroupControl {
    pub fn new(
        timing: &Settings,
        settings: GroupSettings,
        state: GroupState,
        seed: u64,
        now: Time,
    ) -> GroupControl {
        let deployment = settings.deployment(timing);
        let mut random = SplitMix::new(seed);
        let nonce = nonce(&mut random);
        let mut group = GroupControl {
            suspicion: Suspicion::new(
                deployment,
                settings.voters().0,
                timing.probe_interval,
                timing.suspect_after,
                nonce,
            ),
            settings: settings.sorted(),
            memories: state.memories.clone(),
            memories_at: now + timing.memory_interval,
            timing: timing.clone(),
            deployment,
            state,
            attempt: None,
            ahead: None,
            pace: Pace::new(timing.epoch_interval, timing.attempt_timeout),
            random,
            order: None,
            waiting: Vec::new(),
            view_askers: ViewAskers::default(),
            stopping: None,
            torn: false,
            changed: None,
            used_up: 0,
            outside_lanes: OutsideLanes::default(),
            issued: 0,
            silent_session: 0,
            doubtful: false,
            claims: Vec::new(),
            complaints: Vec::new(),
            stale: None,
            alarm: None,
            programmed: 0,
            in_force_since: now,
            patience: Patience::default(),
            blocked: None,
            store_trouble: None,
            needed_since: None,
            timed: None,
            last_failover: None,
            loss: None,
            views_at: now,
        };
        group.watch_all();
        group
    }

    pub fn state(&self) -> &GroupState {
        &self.state
    }

    /// Returns the reason why this controller must not continue.
    pub fn alarm(&self) -> Option<&str> {
        self.alarm.as_deref()
    }

    pub fn next_deadline(&self) -> Time {
        let attempt = self.attempt.as_ref();
        let candidate = attempt.and_then(|a| a.candidate()?.next_deadline());
        let ahead = self.ahead.as_ref().map(Ahead::next_deadline);
        let due = self.suspicion.next_deadline().min(self.views_at);
        candidate.or(ahead).map_or(due, |at| at.min(due))
    }

    // ---- Inputs ----------------------------------------------------------------------------

    pub fn tick(&mut self, now: Time, store: &mut impl Store, out: &mut impl ControlOutbox) {
        if self.alarm.is_some() {
            return;
        }
        if self.doubtful {
            self.reload(store);
        }
        let probed = self.suspicion.probe(now, out);
        self.stale = self.store_is_newest().err();
        self.review_claims();
        self.tell_positions();
        if let Some(candidate) = self.candidate_mut() {
            candidate.tick(now, out);
        }
        self.drive(now, store, out);
        self.abandon_hopeless(now);
        if self.attempt.is_none() {
            self.plan(now, store, out);
        }
        if probed {
            self.tell_session(out);
            self.repeat_orders(out, false);
            self.order_all_restarted(out);
            self.stop_replicas(out);
        }
        self.store_positions(now, store);
        if now >= self.views_at {
            self.views_at = now + self.timing.view_interval;
            self.send_views(out);
            self.repeat_orders(out, true);
        }
    }

    pub fn stop(&mut self, store: &mut impl Store) {
        if self.alarm.is_none() {
            self.store_moved_positions(store);
        }
    }

    pub fn packet(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        store: &mut impl Store,
        out: &mut impl ControlOutbox,
    ) -> Verdict {
        if let Err(reason) = self.deployment.check(packet) {
            return Verdict::Dropped(reason);
        }
        if self.alarm.is_some() {
            return Verdict::Dropped(Reason::Unexpected);
        }
        if packet.header.msgtype == MsgType::ProbeAck {
            let result = self.suspicion.answer(packet);
            self.note_programmed(now, out);
            if result == Ok(self.settings.voters().0) {
                self.note_memory(packet.header.swid, store, out);
            }
            return match result {
                Ok(_) => Verdict::Changed,
                Err(reason) => Verdict::Dropped(reason),
            };
        }
        let Some(candidate) = self.candidate_mut() else {
            return self.read_ahead(now, packet, store, out);
        };
        if let Some(why) = taken_by_another(candidate.configuration(), packet) {
            self.alarm = Some(why);
            self.attempt = None;
            return Verdict::Dropped(Reason::Conflict);
        }
        if let Err(reason) = self.believe(packet) {
            return Verdict::Dropped(reason);
        }
        self.tell_positions();
        let Some(candidate) = self.candidate_mut() else {
            return Verdict::Dropped(Reason::Unexpected);
        };
        let verdict = candidate.step(now, packet, out);
        if candidate.stage() == Stage::Conflict {
            self.alarm = Some(votes_differ(packet));
            self.attempt = None;
            return verdict;
        }
        self.drive(now, store, out);
        verdict
    }

    pub fn message(
        &mut self,
        now: Time,
        from: Peer,
        message: &Message,
        store: &mut impl Store,
        out: &mut impl ControlOutbox,
    ) {
        if self.alarm.is_some() {
            return;
        }
        match message {
            Message::ViewRequest { .. } => {
                self.view_askers.note(now, from);
                out.control(from, Message::View(self.state.view(self.id())));
            }
            Message::LaneRequest {
                epoch, node, nonce, ..
            } => self.draw_lane(from, *epoch, (*node, *nonce), store, out),
            Message::IncarnationRequest { node, nonce, .. } => {
                self.draw_incarnation(from, *node, *nonce, store, out);
            }
            &Message::EarlierStart {
                node,
                nonce,
                start,
                earlier,
                known,
                ..
            } => {
                let told = EarlierStart {
                    node,
                    nonce,
                    start,
                    earlier,
                    known,
                };
                self.take_earlier_start(&told, store, out);
            }
            Message::ExecutionStopped {
                node,
                nonce,
                start,
                epoch,
                next,
                ..
            } => self.take_stopped(*node, (*nonce, *start), *epoch, next),
            Message::ViewStarted { .. } => {
                if let Some((pid, leader, started)) = message.started() {
                    self.note_started(now, pid, leader, &started, store, out);
                }
            }
            Message::SessionWanted {
                node, nonce, epoch, ..
            } => self.take_complaint((*node, *nonce), *epoch),
            Message::Failover {
                epoch,
                to,
                forced,
                accept_data_loss,
                ..
            } => {
                if *forced {
                    let order = Order {
                        epoch: *epoch,
                        to: *to,
                        accept_data_loss: *accept_data_loss,
                        since: now,
                    };
                    self.take_order(now, from, order, out);
                } else {
                    // All nodes are probed all the time, so a client's suspicion adds nothing. It
                    // is only answered with the view that the client may have missed.
                    out.control(from, Message::View(self.state.view(self.id())));
                }
            }
            _ => {}
        }
    }

    // ---- The epoch on its way --------------------------------------------------------------

    fn candidate_mut(&mut self) -> Option<&mut Candidate> {
        self.attempt.as_mut()?.candidate_mut()
    }

    /// Carries out the steps of the attempt.
    fn drive(&mut self, now: Time, store: &mut impl Store, out: &mut impl ControlOutbox) {
        while let Some(wish) = self.attempt.as_mut().and_then(Attempt::poll) {
            let done = match wish {
                Wish::MarkWriting => self.mark_writing(now, store, out),
                Wish::EnableFresh { trim, end } => {
                    if let Some(attempt) = &mut self.attempt {
                        attempt.enable = Some((trim, end));
                    }
                    self.repeat_orders(out, true);
                    Ok(())
                }
                Wish::MarkActive(hand_over) => {
                    let handed = Handed::from(hand_over);
                    self.torn = self.state.leaps_in_a_part(&handed.trim);
                    let whole = if self.torn { Err(()) } else { Ok(()) };
                    whole.and_then(|()| {
                        self.mark_active(store, |state, epoch| state.mark_active(epoch, handed))
                    })
                }
                Wish::MarkSessionActive(begins) => {
                    let trim = self.on_disk_at_members(&begins.next);
                    self.mark_active(store, |state, epoch| {
                        state.mark_session_active(epoch, begins, trim)
                    })
                }
                Wish::Finish => {
                    self.finish(now, out);
                    Ok(())
                }
            };
            if done.is_err() {
                self.give_up(now);
            }
        }
        if self.attempt.as_ref().is_some_and(Attempt::is_superseded) {
            self.give_up(now);
        }
    }

    fn mark_writing(
        &mut self,
        now: Time,
        store: &mut impl Store,
        out: &mut impl ControlOutbox,
    ) -> Result<(), ()> {
        let epoch = self.state.last_epoch();
        self.change(store, |state| state.mark_writing(epoch))?;
        self.send_views(out);
        if let Some(attempt) = &mut self.attempt {
            attempt.marked_writing(now, out);
        }
        Ok(())
    }

    fn mark_active(
        &mut self,
        store: &mut impl Store,
        mark: impl FnOnce(&mut GroupState, Epoch) -> Result<(), Refused>,
    ) -> Result<(), ()> {
        let epoch = self.state.last_epoch();
        self.change(store, |state| mark(state, epoch))?;
        if let Some(attempt) = &mut self.attempt {
            attempt.marked_active();
        }
        Ok(())
    }

    fn finish(&mut self, now: Time, out: &mut impl ControlOutbox) {
        let Some(attempt) = self.attempt.take() else {
            return;
        };
        self.pace.succeeded();
        self.in_force_since = now;
        self.needed_since = None;
        self.changed = None;
        self.patience.ordered = None;
        self.timed = Some((attempt.started, attempt.reason));
        self.repeat_orders(out, true);
        self.send_views(out);
        self.tell_who_asked(now, out);
        self.answer_active(out);
    }

    fn give_up(&mut self, now: Time) {
        self.attempt = None;
        self.pace.failed(now);
    }

    /// Gives up an epoch that can't be finished as it is.
    fn abandon_hopeless(&mut self, now: Time) {
        let Some(candidate) = self.attempt.as_ref().and_then(Attempt::candidate) else {
            return self.abandon_session(now);
        };
        let configuration = candidate.configuration();
        let leader = configuration.leader;
        let leader_gone = self.suspicion.memory(Probe::Leader, leader.node) != Some(leader.nonce);
        let changed = self.has_changed_memories(configuration);
        let (patience, delay) = (self.timing.attempt_timeout, self.timing.rejoin_delay);
        let failures = self.pace.failures();
        let Some(attempt) = &mut self.attempt else {
            return;
        };
        if leader_gone || attempt.is_outdated(now, changed, delay) {
            self.attempt = None;
        } else if attempt.is_stuck(now, patience, failures) {
            self.give_up(now);
        }
    }

    /// Returns whether a member answers from another memory than the one in the configuration.
    fn has_changed_memories(&self, configuration: &Configuration) -> bool {
        let (role, _) = self.settings.voters();
        configuration.acceptors.iter().any(|a| {
            let memory = self.suspicion.memory(role, a.node);
            memory.is_some_and(|nonce| nonce != a.nonce)
        })
    }

    fn send_views(&self, out: &mut impl ControlOutbox) {
        let view = self.state.view(self.id());
        for node in self.nodes() {
            out.control(Peer::Node(node), Message::View(view.clone()));
        }
    }

    // ---- The store -------------------------------------------------------------------------

    fn change(
        &mut self,
        store: &mut impl Store,
        change: impl FnOnce(&mut GroupState) -> Result<(), Refused>,
    ) -> Result<(), ()> {
        let mut state = self.state.clone();
        match change(&mut state) {
            Ok(()) => self.save(state, store),
            Err(_) => Err(()),
        }
    }

    /// Stores `state`. If this fails, nothing that depends on it may be done.
    fn save(&mut self, mut state: GroupState, store: &mut impl Store) -> Result<(), ()> {
        if state.version == self.state.version {
            return Ok(());
        }
        if self.doubtful {
            // The new state was made from the known one, but another one may be stored.
            self.reload(store);
            return Err(());
        }
        state.memories = self.memories_to_keep(&state);
        match store.swap(self.settings.id, self.state.version, &state) {
            Ok(()) => {
                self.memories.clone_from(&state.memories);
                self.state = state;
                self.store_trouble = None;
                Ok(())
            }
            Err(why) => {
                self.reload(store);
                self.store_trouble.get_or_insert(why.to_string());
                Err(())
            }
        }
    }

    /// Loads the state again after a failed change, and stores it as a change of its own. The
    /// loaded state may still get lost (a rename that isn't synced), so it counts only once that
    /// has succeeded; until then the known state stays valid. [E-DOUBT]
    fn reload(&mut self, store: &mut impl Store) {
        self.doubtful = true;
        let id = self.settings.id;
        let stored = store.load(id).and_then(|mut state| {
            let version = state.version;
            state.version += 1;
            store.swap(id, version, &state)?;
            Ok(state)
        });
        match stored {
            Ok(state) => {
                self.state = state;
                self.doubtful = false;
                self.store_trouble = None;
            }
            Err(why) => self.store_trouble = Some(why.to_string()),
        }
        // A session continues from the state that is now in the store, whoever wrote it. [F-RESUME]
        let last = self.state.last_epoch();
        let goes_on = |a: &Attempt| a.epoch == last && a.candidate().is_some();
        if self.doubtful || !self.attempt.as_ref().is_some_and(goes_on) {
            self.attempt = None;
        }
    }
}

/// Returns why this controller must stop, if another one proposes in its epoch. An acceptor shows
/// this by refusing the round as a conflict: another candidate has raised the floor to that round,
/// or has proposed another value in it. [C-ALONE]
fn taken_by_another(ours: &Configuration, packet: &Packet<'_>) -> Option<String> {
    let header = &packet.header;
    let refused = header.msgtype == MsgType::Reject && header.rnd == Round::base(ours.epoch);
    let rejection = Rejection::parse(packet.value).ok().filter(|_| refused)?;
    (rejection.reason == Reason::Conflict).then(|| {
        format!(
            "group {}: acceptor {} has heard of another candidate for epoch {}: two controllers \
             work on this cluster, the other one with a copy of this one's state file. This \
             controller stops. Find the other one, and keep the one whose store has the newest \
             epoch",
            header.group, header.swid, ours.epoch
        )
    })
}

/// Returns why this controller must stop when votes contradict one another, so that the chosen
/// value is unknown. [C-CONFLICT]
fn votes_differ(packet: &Packet<'_>) -> String {
    let header = &packet.header;
    format!(
        "group {}: partition {}, instance {}: acceptor {} has voted for another value in round {} \
         than another acceptor has: there were two controllers, or a memory or the state file was \
         restored from an old copy. This controller stops. Keep the data directories of all nodes, \
         and find out which",
        header.group, header.pid, header.inst, header.swid, header.vrnd
    )
}

/// Returns a random number other than 0.
fn nonce(random: &mut SplitMix) -> u64 {
    random.draw().max(1)
}
