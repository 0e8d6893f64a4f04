// SPDX-License-Identifier: Apache-2.0
//! A replica of one partition: its state, and normal operation (docs/protocol/nopaxos-replicas.md).
//!
//! The sequencer puts the requests in order; replicas agree on which of them were lost, and on who
//! leads. The leader answers clients as soon as it has executed a request, and followers
//! acknowledge how far their logs are filled. A client is done when answer and acknowledgements
//! name one view. Gaps are in `gap.rs`, synchronisation in `sync.rs`, view changes in
//! `view_change.rs`.
//!
//! Nothing is executed here. The caller executes the log: it reads [`Replica::ready`],
//! [`Replica::stable`], [`Replica::entry`], and [`Replica::take_rewind`] after it ran ahead of what
//! is stable.
//!
//! **Time changes nothing that must survive.** A decision of a timer (a no-op, a synchronisation,
//! another view) leaves [`Replica::tick`] as a packet to this very node, and takes effect when it
//! comes back through [`Replica::step`]. [N-TIME] [`Replica::unstored`] says what a durable replica
//! must have on disk before any of its packets leaves, whatever changed it. [N-STORED]

mod accessors;
mod senders;

use super::counts::Counts;
use super::gap::Lacks;
use super::log::{Entry, Log};
use super::session::{Session, Sessions};
use super::stored::LastStored;
use super::sync::Early;
use super::view;
use super::view_change::{Begun, Change};
use crate::acceptor::Start;
use crate::{
    Deployment, Epoch, Flags, Header, Instance, Member, MsgType, Outbox, Packet, PartitionId,
    Reason, Round, Time, To, Verdict,
};
pub(in crate::nopaxos) use senders::sender;
use std::ops::Range;

// ---- Types

/// The settings of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct ReplicaSettings {
    /// The deployment that the replica serves.
    pub deployment: Deployment,
    /// The partition.
    pub pid: PartitionId,
    /// The number of slots of the log.
    pub slots: usize,
    /// The name of this memory, drawn at random when it is created; never 0.
    pub nonce: u64,
    /// How long to wait for an answer to GAP_REQUEST at first.
    pub ask_after: Time,
    /// How long the leader looks for a lost request before it puts a no-op in its slot.
    pub give_up_after: Time,
    /// The number of slots after which the leader synchronises.
    pub sync_slots: u64,
    /// The longest time that a slot waits for its synchronisation.
    pub sync_after: Time,
    /// The interval at which an idle leader shows that it is alive.
    pub heartbeat: Time,
    /// How long the leader may be silent before a follower asks for another view.
    pub silence: Time,
}

impl ReplicaSettings {
    /// Returns settings with the usual times.
    pub fn new(deployment: Deployment, pid: PartitionId, slots: usize, nonce: u64) -> Self {
        ReplicaSettings {
            deployment,
            pid,
            slots,
            nonce,
            ask_after: 100_000,
            give_up_after: 1_000_000,
            sync_slots: 256,
            sync_after: 1_000_000,
            heartbeat: 10_000_000,
            silence: 40_000_000,
        }
    }
}

/// The activity of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Status {
    /// The replica has all of its view's log, and takes part.
    Normal,
    /// The replica goes to its view; its log is still that of its last normal view.
    ViewChange,
    /// The replica was never in a view, or only in views before a loss that an operator accepted.
    Stranger,
}

/// An acknowledgement, which tells clients how far this follower's log is filled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ack {
    /// The header to send to each address that the values of these slots name. An ACK has no value.
    pub header: Header,
    /// The slots that were filled since the last acknowledgement.
    pub slots: Range<Instance>,
}

/// A view that f+1 members have begun, for the controller.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Started {
    /// The digest of the view's session, as these members know it.
    pub session: u64,
    /// The view.
    pub view: Round,
    /// The end of the view's log when it began. Slots below are never stamped in its session.
    pub end: Instance,
    /// The members that have that log.
    pub members: Vec<Member>,
}

// ---- State

/// A replica of one partition.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Replica {
    pub(super) settings: ReplicaSettings,
    pub(super) sessions: Sessions,
    pub(super) view: Round,
    /// The last view in which the replica was normal.
    pub(super) last_normal: Round,
    pub(super) status: Status,
    pub(super) log: Log,
    /// Everything below is in every later view's log. This point never falls.
    pub(super) stable: Instance,
    /// Slots below this one are acknowledged to clients in this view.
    acked: Instance,
    /// The first slot that changed after it may have been executed.
    rewind: Option<Instance>,
    /// True if two requests were stamped with one slot, so that nothing more is executed in the
    /// session.
    pub(super) in_conflict: bool,
    /// The replica needs a checkpoint that reaches at least this slot.
    pub(super) short_of: Option<Instance>,
    pub(super) lacks: Lacks,
    pub(super) duty: Duty,
    pub(super) change: Change,
    /// The START_VIEW of the view that this replica leads.
    pub(super) begun: Option<Begun>,
    pub(super) counts: Counts,
    /// The current start of this memory, if it is stored.
    pub(super) start: Option<Start>,
    /// True if this memory was read from disk and the controller hasn't let it go on yet.
    pub(super) mute: bool,
    pub(super) last_stored: LastStored,
}

/// The work in the view in which the replica is normal.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Default)]
pub(super) struct Duty {
    /// For a leader, the progress of each member, in the order of the session.
    pub(super) peers: Vec<Peer>,
    /// For a leader, the last point that it asked to synchronise. For a follower, the point below
    /// which its log equals the leader's.
    pub(super) prepared: Instance,
    /// The leader's `stable`, as the leader last told it.
    pub(super) told_stable: Instance,
    /// For a follower, the newest SYNC_PREPARE for which it lacks requests.
    pub(super) early: Option<Early>,
    /// For a leader, the point below which f others have all no-ops.
    pub(super) agreed: Instance,
    /// For a leader, the first no-op that isn't agreed.
    pub(super) open_gap: Option<Instance>,
    /// For a leader, true if many clients at once wait for it, and the point below which other
    /// replicas wait for what is stable. [N-CROWD]
    pub(super) is_crowded: bool,
    pub(super) others_wait_below: Instance,
    /// For a leader, the point below which requests are answered only once they are stable. While
    /// the leader says that many clients wait, there is no such point and all requests are held.
    /// [N-CROWD]
    pub(super) held_below: Instance,
    /// For a follower, the slots that it must not acknowledge: from the first on, to the point at
    /// which the leader last said so. [N-CROWD]
    pub(super) crowd: Option<Range<Instance>>,
    /// The time at which the leader was last heard.
    pub(super) heard: Time,
    /// The times at which the leader last asked to synchronise, and last told its no-ops.
    pub(super) sync_at: Time,
    pub(super) gap_at: Time,
    /// The time at which the follower asks for stable slots, and the end of the slots that it asked
    /// for.
    pub(super) catch_up_at: Time,
    pub(super) catch_up_end: Instance,
}

/// A leader's knowledge of a member in this view.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub(super) struct Peer {
    /// Everything below this point is confirmed: the member has all no-ops there.
    pub(super) confirmed: Instance,
    /// The member's log equals the leader's below this point.
    pub(super) synced: Instance,
    /// True if the member has the log with which the view began.
    pub(super) started: bool,
}

impl Replica {
    /// Returns a stranger whose application has executed everything below `position`, on disk.
    ///
    /// # Panics
    /// If there are no slots, the nonce is 0, or the deployment's largest value fits no packet.
    pub fn new(settings: ReplicaSettings, position: Instance) -> Replica {
        assert!(settings.nonce != 0, "a boot nonce is never 0");
        assert!(settings.deployment.max_value as usize <= crate::wire::MAX_VALUE_LEN);
        Replica {
            settings,
            sessions: Sessions::default(),
            view: Round::NONE,
            last_normal: Round::NONE,
            status: Status::Stranger,
            log: Log::new(settings.slots, position),
            stable: position,
            acked: position,
            rewind: None,
            in_conflict: false,
            short_of: None,
            lacks: Lacks::default(),
            duty: Duty::default(),
            change: Change::default(),
            begun: None,
            counts: Counts::default(),
            start: None,
            mute: false,
            last_stored: LastStored::default(),
        }
    }

    /// Returns the first of these sessions that this replica knows with another configuration, if
    /// it must not follow them. [E-ONE]
    pub fn contradiction(&self, told: &[Session]) -> Option<Epoch> {
        self.sessions.contradiction(told, self.last_normal.epoch())
    }

    /// Takes the store's sessions, in ascending order and without a gap; `by` of an active one is
    /// that of this partition. Returns true if anything is new, which an older view of the store
    /// never is; [`tick`](Self::tick) acts on it.
    pub fn configure(&mut self, told: &[Session]) -> Result<bool, &'static str> {
        if self.contradiction(told).is_some() {
            return Err("a session is told with two configurations");
        }
        let is_news = self.sessions.learn(told)?;
        self.give_up_below(self.sessions.begin());
        Ok(is_news)
    }

    /// Gives up everything that this log holds below `inst`, since an operator has accepted a loss
    /// and all logs begin there. The replica takes part in no view until it is in a later one, and
    /// execution must take back what ran ahead of the stable slots. [F-ANEW]
    pub fn give_up_below(&mut self, inst: Instance) {
        if inst <= self.stable {
            return;
        }
        self.changed_from(self.stable);
        self.log.raise_floor(inst);
        self.stable = inst;
        self.acked = self.acked.max(inst);
        self.short_of = self.short_of.filter(|short| *short > inst);
        self.lacks.clear();
        self.begun = None;
        self.duty = Duty::default();
        self.change = Change::default();
        if self.status == Status::Normal {
            self.status = Status::Stranger;
        }
    }

    /// Forgets everything below `inst`, since a durable checkpoint covers it.
    pub fn checkpointed(&mut self, now: Time, inst: Instance, out: &mut impl Outbox) {
        self.log.raise_floor(inst.min(self.stable));
        self.collect(now, out);
    }

    /// Notes that another replica's durable checkpoint has replaced the application's state, which
    /// now stands at `inst` whatever it had executed. A leader that doesn't know all slots below to
    /// be stable leads no more. [W-CHECKPOINT] [W-DEPOSED]
    pub fn restored(&mut self, now: Time, inst: Instance, out: &mut impl Outbox) {
        let is_deposed = self.is_deposed_by(inst);
        self.log.raise_floor(inst);
        self.stable = self.stable.max(inst);
        self.duty.prepared = self.duty.prepared.max(inst);
        self.rewind = self.rewind.filter(|rewind| *rewind > inst);
        self.short_of = self.short_of.filter(|short| *short > inst);
        self.filled();
        if is_deposed {
            self.step_down(now, out);
        }
        self.collect(now, out);
    }

    /// Takes the next slot that isn't known to be stable from a replica whose log is stable
    /// further. Returns false if this is another slot or there is no room; a leader that takes it
    /// leads no more. [W-CHECKPOINT] [W-DEPOSED]
    pub fn learned(
        &mut self,
        now: Time,
        inst: Instance,
        entry: &Entry<'_>,
        out: &mut impl Outbox,
    ) -> bool {
        if inst != self.stable || inst == self.log.next() && self.append(entry).is_err() {
            return false;
        }
        let is_deposed = self.is_deposed_by(inst + 1);
        self.put(inst, entry);
        self.stable = inst + 1;
        self.duty.prepared = self.duty.prepared.max(self.stable);
        if is_deposed {
            self.step_down(now, out);
        }
        self.collect(now, out);
        true
    }

    /// Notes that everything below `end` was stamped in the view's session, which the caller knows
    /// for certain. [H-ASK]
    pub fn stamped(&mut self, now: Time, end: Instance) {
        if self.status == Status::Normal {
            self.stamped_below(end, now);
        }
    }

    // ---- Handlers

    /// Takes one packet, and returns what became of it.
    #[inline]
    pub fn step(&mut self, now: Time, packet: &Packet<'_>, out: &mut impl Outbox) -> Verdict {
        match self.settings.deployment.check(packet) {
            Ok(()) => self.step_checked(now, packet, out),
            Err(reason) => Verdict::Dropped(reason),
        }
    }

    /// Takes one packet, as [`step`](Self::step) does, that has passed [`Deployment::check`].
    #[inline]
    pub fn step_checked(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Verdict {
        debug_assert_eq!(self.settings.deployment.check(packet), Ok(()));
        let handled = self.handle(now, packet, out);
        match self.follow_early(now, out) {
            true => Verdict::Changed,
            false => handled.unwrap_or_else(Verdict::Dropped),
        }
    }

    #[inline]
    fn handle(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        if packet.header.pid != self.settings.pid {
            return Err(Reason::UnknownPartition);
        }
        if self.mute {
            return Err(Reason::Restarted);
        }
        match packet.header.msgtype {
            MsgType::Ordered => self.ordered(packet),
            MsgType::GapRequest => self.gap_request(packet, out),
            MsgType::GapReply => self.gap_reply(now, packet, out),
            MsgType::GapCommit => self.gap_commit(now, packet, out),
            MsgType::GapCommitRep => self.gap_commit_rep(packet),
            MsgType::ViewChangeReq => self.view_change_req(now, packet, out),
            MsgType::ViewChange => self.view_change(now, packet, out),
            MsgType::StartView => self.start_view(now, packet, out),
            MsgType::StartViewRep => self.start_view_rep(packet, out),
            MsgType::SyncPrepare => self.sync_prepare(now, packet, out),
            MsgType::SyncRep => self.sync_rep(now, packet, out),
            MsgType::SyncCommit => self.sync_commit(now, packet),
            _ => Err(Reason::NotForRole),
        }
    }

    /// Appends the next request of the view's session. Nothing else is ever appended by ORDERED.
    /// [N-APPEND]
    #[inline]
    fn ordered(&mut self, packet: &Packet<'_>) -> Result<Verdict, Reason> {
        let h = &packet.header;
        if self.status != Status::Normal {
            return Err(Reason::NotNormal);
        }
        if h.rnd != view::stamp(self.view) {
            return Err(Reason::OldSession);
        }
        if self.sessions.open(self.view).map(|s| s.sequencer) != Some(h.swid) {
            return Err(Reason::UnknownSender);
        }
        if h.inst < self.log.next() {
            return Err(Reason::Stale);
        }
        if h.inst > self.log.next() {
            // The receiver in front of this replica hands over one slot after the other.
            return Err(Reason::Window);
        }
        self.append(&Entry {
            stamp: h.rnd,
            flags: h.flags.of_value(),
            client: h.client,
            request: h.request,
            value: packet.value,
        })?;
        Ok(Verdict::Changed)
    }

    // ---- Time

    /// Does the work that is due. Packets to this very node must come back through
    /// [`step`](Self::step).
    pub fn tick(&mut self, now: Time, out: &mut impl Outbox) {
        if self.mute {
            return;
        }
        self.follow_store(out);
        match self.status {
            Status::Normal if self.leads() => {
                self.ask(now, out);
                self.give_up(now, out);
                self.repeat_gap_commit(now, out);
                self.synchronise_if_due(now, out);
            }
            Status::Normal => {
                self.ask(now, out);
                self.catch_up(now, out);
                self.suspect(now, out);
            }
            Status::ViewChange => self.go_on_changing(now, out),
            Status::Stranger => {}
        }
    }

    /// Returns when [`tick`](Self::tick) is next due.
    pub fn next_deadline(&self) -> Option<Time> {
        if self.mute {
            return None;
        }
        match self.status {
            Status::Normal if self.leads() => {
                let gap = self.gap_deadline();
                let sync = self.sync_deadline();
                let asked = self.lacks.deadline(self.settings.give_up_after);
                [gap, sync, asked].into_iter().flatten().min()
            }
            Status::Normal => {
                let silent = self.duty.heard + self.settings.silence;
                let asked = self.lacks.ask_deadline();
                let behind = self.is_behind().then_some(self.duty.catch_up_at);
                [Some(silent), asked, behind].into_iter().flatten().min()
            }
            Status::ViewChange => self.change_deadline(),
            Status::Stranger => None,
        }
    }

    // ---- What all parts share

    /// Appends an entry, or refuses it if there is no room. [N-FULL]
    pub(super) fn append(&mut self, entry: &Entry<'_>) -> Result<(), Reason> {
        if !self.log.push(entry) {
            return Err(Reason::LogFull);
        }
        self.filled();
        Ok(())
    }

    /// Appends the entries that were found for the following slots, since the log got longer.
    fn filled(&mut self) {
        while let Some(found) = self.lacks.take(self.log.next()) {
            if !self.log.push(&found.entry()) {
                break;
            }
        }
    }

    /// Puts another entry into a filled slot, and returns true if that changed the slot. It
    /// compares values and not only names, since a command over several partitions that was sent
    /// again in a later session has the same name and another vector. [W-VECTOR]
    pub(super) fn put(&mut self, inst: Instance, entry: &Entry<'_>) -> bool {
        fn what<'a>(e: &Entry<'a>) -> (u64, u64, Flags, &'a [u8]) {
            (e.client, e.request, e.flags, e.value)
        }
        let is_there = self
            .log
            .get(inst)
            .is_some_and(|old| what(&old) == what(entry));
        if !is_there {
            self.log.replace(inst, entry);
            self.changed_from(inst);
        }
        !is_there
    }

    /// Notes that the entries from `inst` on have changed or are gone.
    pub(super) fn changed_from(&mut self, inst: Instance) {
        self.rewind = Some(self.rewind.map_or(inst, |rewind| rewind.min(inst)));
    }

    /// Makes acknowledgements begin at `inst`, so that clients of later slots are told of this
    /// view.
    pub(super) fn acknowledge_from(&mut self, inst: Instance) {
        self.acked = inst;
    }

    /// Skips the acknowledgement of these slots, for which no client waits. Slots before them may
    /// still need one. [N-CROWD]
    pub(super) fn pass_crowd(&mut self, crowd: &Range<Instance>) {
        if self.acked >= crowd.start {
            self.acked = self.acked.max(crowd.end);
        }
    }

    /// Returns the no-ops of this log from `stable` to `end`, as a list for a message.
    pub(super) fn noops_below(&self, end: Instance) -> Vec<Range<Instance>> {
        self.log.noops(self.stable..end)
    }
}

pub(super) fn send(to: To, header: Header, value: &[u8], out: &mut impl Outbox) {
    let value_len = value.len() as u16;
    out.send(
        to,
        &Header {
            value_len,
            ..header
        },
        value,
    );
}

/// Returns the verdict for a message from a sender that was heard, whether or not it changed
/// anything.
pub(super) fn heard(changed: bool) -> Verdict {
    match changed {
        true => Verdict::Changed,
        false => Verdict::Answered,
    }
}

pub(super) fn no_value(packet: &Packet<'_>) -> Result<(), Reason> {
    match packet.value.is_empty() {
        true => Ok(()),
        false => Err(Reason::BadValue),
    }
}

/// Returns the entry that a GAP_REPLY carries, or `None` if its sender doesn't have it.
pub(super) fn entry_of<'a>(packet: &Packet<'a>) -> Result<Option<Entry<'a>>, Reason> {
    let h = &packet.header;
    if h.vrnd.is_none() {
        return Ok(None);
    }
    if !h.vrnd.is_base() {
        return Err(Reason::BadRound);
    }
    let noop = h.flags.has(Flags::NOOP);
    if noop && (h.flags.of_value() != Flags::NOOP || !packet.value.is_empty()) {
        return Err(Reason::BadValue);
    }
    if !noop && h.client == 0 {
        return Err(Reason::BadSession);
    }
    Ok(Some(Entry {
        stamp: h.vrnd,
        flags: h.flags.of_value(),
        client: h.client,
        request: h.request,
        value: packet.value,
    }))
}
