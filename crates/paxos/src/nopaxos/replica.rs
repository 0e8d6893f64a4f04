// SPDX-License-Identifier: Apache-2.0
//! A replica of one partition: its state, and normal operation (docs/protocol/nopaxos-replicas.md).
//!
//! The sequencer has put the requests in order; replicas agree on what was lost, and on who leads. The leader
//! answers clients as soon as it has executed a request, and followers acknowledge how far their logs are filled. A
//! client is done when both name one view. Gaps are in `gap.rs`, synchronisation in `sync.rs`, view changes in
//! `view_change.rs`.
//!
//! Nothing is executed here. Whoever executes reads the log: [`Replica::ready`], [`Replica::stable`],
//! [`Replica::entry`], and [`Replica::take_rewind`] after it ran ahead of what is stable.
//!
//! **Time changes nothing that must survive.** What a timer decides (a no-op, a synchronisation, another view)
//! leaves [`Replica::tick`] as a packet to this very node, and takes effect when it comes back through
//! [`Replica::step`]. [N-TIME] What a durable replica must have on disk before anything of it leaves,
//! [`Replica::unstored`] says, whatever it was that changed it. [N-STORED]

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
    Deployment, Flags, Header, Instance, Member, MsgType, Outbox, Packet, PartitionId, Reason,
    Round, Time, To, Verdict,
};
use std::ops::Range;

// ---- Types

/// How a replica behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct ReplicaSettings {
    /// The deployment that it serves.
    pub deployment: Deployment,
    /// The partition.
    pub pid: PartitionId,
    /// Slots of the log.
    pub slots: usize,
    /// Names this memory: drawn at random where it starts, never 0.
    pub nonce: u64,
    /// How long an answer to GAP_REQUEST is waited for at first.
    pub ask_after: Time,
    /// How long the leader looks for a lost request before it puts a no-op there.
    pub give_up_after: Time,
    /// Slots after which the leader synchronises.
    pub sync_slots: u64,
    /// How long a slot waits for its synchronisation at most.
    pub sync_after: Time,
    /// How often an idle leader shows that it is alive.
    pub heartbeat: Time,
    /// After so much silence of the leader a follower asks for another view.
    pub silence: Time,
}

impl ReplicaSettings {
    /// The usual times.
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

/// What a replica does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Status {
    /// It has all of its view's log, and takes part.
    Normal,
    /// It goes to its view; its log is still that of its last normal one.
    ViewChange,
    /// It was never in a view, or only in some before a loss that was accepted.
    Stranger,
}

/// Says to clients how far this follower's log is filled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ack {
    /// To be sent to each address that the values of these slots name; there is no value.
    pub header: Header,
    /// What is filled since the last one.
    pub slots: Range<Instance>,
}

/// A view that f+1 members have begun; for the controller.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Started {
    /// The digest of its session, as these members know it.
    pub session: u64,
    /// The view.
    pub view: Round,
    /// Where its log ended when it began: slots below are never stamped in its session.
    pub end: Instance,
    /// Who has that log.
    pub members: Vec<Member>,
}

// ---- State

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Replica {
    pub(super) settings: ReplicaSettings,
    pub(super) sessions: Sessions,
    pub(super) view: Round,
    /// The last view in which it was normal.
    pub(super) last_normal: Round,
    pub(super) status: Status,
    pub(super) log: Log,
    /// Everything below is in every later view's log. It never falls.
    pub(super) stable: Instance,
    /// What it has told clients in this view.
    acked: Instance,
    /// The first slot that changed above what was stable.
    rewind: Option<Instance>,
    /// Two stamps for one slot: nothing more is executed in the session.
    pub(super) in_conflict: bool,
    /// What it needs begins with a checkpoint that reaches at least here.
    pub(super) short_of: Option<Instance>,
    pub(super) lacks: Lacks,
    pub(super) duty: Duty,
    pub(super) change: Change,
    /// The START_VIEW of the view that it leads.
    pub(super) begun: Option<Begun>,
    pub(super) counts: Counts,
    /// Which start of a memory that is stored it is.
    pub(super) start: Option<Start>,
    /// Read from disk, and not yet let go on.
    pub(super) mute: bool,
    pub(super) last_stored: LastStored,
}

/// What goes on in the view in which the replica is normal.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Default)]
pub(super) struct Duty {
    /// Of a leader: what the members have said, in the order of the session.
    pub(super) peers: Vec<Peer>,
    /// Of a leader: the last point that it asked to synchronise. Of a follower: its log below equals the leader's.
    pub(super) prepared: Instance,
    /// The leader's `stable`, as it has told it last.
    pub(super) told_stable: Instance,
    /// Of a follower: the newest SYNC_PREPARE for which it lacks requests.
    pub(super) early: Option<Early>,
    /// Of a leader: f others have all no-ops below.
    pub(super) agreed: Instance,
    /// Of a leader: the first no-op that isn't agreed.
    pub(super) open_gap: Option<Instance>,
    /// Of a leader: whether many clients at once wait for it, and what others wait for. [N-CROWD]
    pub(super) is_crowded: bool,
    pub(super) others_wait_below: Instance,
    /// Of a leader: what it executes below is answered once it is stable. There is no end while it says so. [N-CROWD]
    pub(super) held_below: Instance,
    /// Of a follower that is to acknowledge nothing: from where on, and where the leader last said so. [N-CROWD]
    pub(super) crowd: Option<Range<Instance>>,
    /// When the leader was last heard.
    pub(super) heard: Time,
    /// When the leader last asked to synchronise, and last told its no-ops.
    pub(super) sync_at: Time,
    pub(super) gap_at: Time,
    /// When, and up to where, the follower asks for what is stable.
    pub(super) catch_up_at: Time,
    pub(super) catch_up_end: Instance,
}

/// What a leader knows of a member in this view.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub(super) struct Peer {
    /// It has all no-ops below.
    pub(super) confirmed: Instance,
    /// Its log below equals the leader's.
    pub(super) synced: Instance,
    /// It has the log that the view began with.
    pub(super) started: bool,
}

impl Replica {
    /// A stranger whose application has executed everything below `position`, on disk.
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

    /// Tells what the store holds of the sessions, in ascending order and without a gap; `by` of an active one is
    /// that of this partition. An older view changes nothing. True if anything is new. What follows from it is done by
    /// [`tick`](Self::tick).
    pub fn configure(&mut self, told: &[Session]) -> Result<bool, &'static str> {
        let is_news = self.sessions.learn(told)?;
        self.give_up_below(self.sessions.begin());
        Ok(is_news)
    }

    /// An operator has accepted a loss: whatever this log holds below `inst` is given up, and all logs begin there.
    /// Until it is in a later view it takes part in none. What ran ahead of what was stable is taken back. [F-ANEW]
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

    /// A durable checkpoint covers everything below `inst`: the log forgets it.
    pub fn checkpointed(&mut self, now: Time, inst: Instance, out: &mut impl Outbox) {
        self.log.raise_floor(inst.min(self.stable));
        self.collect(now, out);
    }

    /// Another replica's durable checkpoint has taken the place of the application's state, which stands at `inst`
    /// now, whatever it had executed. A leader that doesn't know all of that to be stable leads no more.
    /// [W-CHECKPOINT] [W-DEPOSED]
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

    /// The next slot that isn't known to be stable, as a replica has it whose log is stable further. False if it
    /// is another slot, or there is no room. A leader leads no more. [W-CHECKPOINT] [W-DEPOSED]
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

    /// Everything below `end` was stamped in the view's session, as whoever says so knows for certain. [H-ASK]
    pub fn stamped(&mut self, now: Time, end: Instance) {
        if self.status == Status::Normal {
            self.stamped_below(end, now);
        }
    }

    // ---- What execution and the node look at

    /// The deployment that it serves.
    pub fn deployment(&self) -> &Deployment {
        &self.settings.deployment
    }

    /// Node and boot nonce.
    pub fn member(&self) -> Member {
        Member {
            node: self.settings.deployment.node,
            nonce: self.settings.nonce,
        }
    }

    /// Which start of its memory it is, if that is stored.
    pub fn start(&self) -> Option<Start> {
        self.start
    }

    /// Whether it was read from disk and not yet let go on. [N-RESTART]
    pub fn is_mute(&self) -> bool {
        self.mute
    }

    /// What it does.
    pub fn status(&self) -> Status {
        self.status
    }

    /// The view that it is in, or goes to.
    pub fn view(&self) -> Round {
        self.view
    }

    /// The last view in which it was normal.
    pub fn last_normal(&self) -> Round {
        self.last_normal
    }

    /// What the store has told of the sessions.
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// What it has done.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Who leads the view that it is in, or goes to.
    pub fn led_by(&self) -> Option<Member> {
        self.leader()
    }

    /// How many slots it knows to be stamped and lacks, or has given up and not all have agreed.
    pub fn open_gaps(&self) -> usize {
        self.lacks.count() + usize::from(self.leads() && self.duty.open_gap.is_some())
    }

    /// Whether another slot has room in the log. [N-FULL]
    pub fn has_room(&self) -> bool {
        self.log.next() < self.log.end()
    }

    /// Everything below is filled.
    pub fn next(&self) -> Instance {
        self.log.next()
    }

    /// The oldest slot that it keeps.
    pub fn floor(&self) -> Instance {
        self.log.floor()
    }

    /// What lies in a slot that is filled and kept.
    pub fn entry(&self, inst: Instance) -> Option<Entry<'_>> {
        self.log.get(inst)
    }

    /// Everything below may be executed, by an application that can take it back: by a leader as far as all gaps
    /// are agreed, by all others as far as the log is stable. It falls when a leader is deposed; what was executed
    /// beyond stays until [`take_rewind`](Self::take_rewind) says otherwise. [N-ANSWER]
    pub fn ready(&self) -> Instance {
        if !self.leads() || self.in_conflict {
            return self.stable;
        }
        self.duty.open_gap.unwrap_or(self.log.next())
    }

    /// Everything below never changes.
    pub fn stable(&self) -> Instance {
        self.stable
    }

    /// The first slot above `stable` that isn't what it was, once: whoever executed it takes that back. [N-REWIND]
    pub fn take_rewind(&mut self) -> Option<Instance> {
        self.rewind.take()
    }

    /// What it needs isn't in anybody's log any more, or has no room in its own: it begins with another replica's
    /// checkpoint, from here or later.
    pub fn wants_checkpoint(&self) -> Option<Instance> {
        self.short_of.filter(|inst| *inst > self.stable)
    }

    /// Whether its log and the leader's differ where they can't: an alarm, which only a new session ends.
    pub fn in_conflict(&self) -> bool {
        self.in_conflict
    }

    /// Whether it takes part in its view. [N-MUTE] [N-RESTART]
    fn is_normal(&self) -> bool {
        self.status == Status::Normal && !self.mute
    }

    /// Whether it leads the view, and the view has begun.
    pub fn leads(&self) -> bool {
        self.is_normal() && self.leader() == Some(self.member())
    }

    /// Tells whether many clients at once wait for answers, and up to where other replicas wait for what is stable. A
    /// leader goes by it from the next synchronisation on. [N-CROWD]
    pub fn set_crowded(&mut self, is_crowded: bool, others_wait_below: Instance) {
        self.duty.is_crowded = is_crowded;
        self.duty.others_wait_below = others_wait_below;
    }

    /// What a leader executes below is answered once it is stable. Followers acknowledge it to nobody. [N-CROWD]
    pub fn held_below(&self) -> Instance {
        self.duty.held_below
    }

    /// The ACK that is due after a batch of packets. A leader has none: it answers. [N-ACK]
    pub fn take_ack(&mut self) -> Option<Ack> {
        if self.mute {
            return None;
        }
        let next = self.log.next();
        let crowd = self.duty.crowd.as_ref();
        let end = crowd.map_or(next, |crowd| crowd.start.max(self.acked).min(next));
        let slots = self.acked..end;
        self.acked = slots.end;
        if slots.is_empty() || self.status != Status::Normal || self.leads() {
            return None;
        }
        let header = self.ack();
        Some(Ack { header, slots })
    }

    /// The ACK with which a follower answers a READ: the reader's name is put in. [N-READ]
    pub fn echo(&self) -> Result<Header, Reason> {
        match self.is_normal() && !self.leads() {
            true => Ok(self.ack()),
            false => Err(Reason::NotNormal),
        }
    }

    fn ack(&self) -> Header {
        Header {
            inst: self.log.next(),
            vrnd: self.session().map_or(Round::NONE, Session::shown),
            client: 0,
            ..self.header(MsgType::Ack, self.view)
        }
    }

    // ---- Handlers

    /// Takes one packet.
    #[inline]
    pub fn step(&mut self, now: Time, packet: &Packet<'_>, out: &mut impl Outbox) -> Verdict {
        match self.settings.deployment.check(packet) {
            Ok(()) => self.step_checked(now, packet, out),
            Err(reason) => Verdict::Dropped(reason),
        }
    }

    /// The same with a packet that has passed [`Deployment::check`].
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

    /// The next request of the view's session; nothing else is ever appended this way. [N-APPEND]
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
            // The receiver before it hands over one slot after the other.
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

    /// Does what is due. Packets to this very node come back through [`step`](Self::step).
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

    /// When [`tick`](Self::tick) is next due.
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

    /// Appends, unless there is no room. [N-FULL]
    pub(super) fn append(&mut self, entry: &Entry<'_>) -> Result<(), Reason> {
        if !self.log.push(entry) {
            return Err(Reason::LogFull);
        }
        self.filled();
        Ok(())
    }

    /// The log got longer: what was found for the slots that follow has its turn.
    fn filled(&mut self) {
        while let Some(found) = self.lacks.take(self.log.next()) {
            if !self.log.push(&found.entry()) {
                break;
            }
        }
    }

    /// Puts something else into a slot that is filled, unless it is there. Its name doesn't tell: a command over several
    /// partitions that was sent again in a later session has the same one, and another vector. [W-VECTOR]
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

    /// Notes that what was there from `inst` on is gone.
    pub(super) fn changed_from(&mut self, inst: Instance) {
        self.rewind = Some(self.rewind.map_or(inst, |rewind| rewind.min(inst)));
    }

    /// Clients of slots from here on are told of this view.
    pub(super) fn acknowledge_from(&mut self, inst: Instance) {
        self.acked = inst;
    }

    /// Nobody waits for an acknowledgement of these slots. What comes before them may still be owed one. [N-CROWD]
    pub(super) fn pass_crowd(&mut self, crowd: &Range<Instance>) {
        if self.acked >= crowd.start {
            self.acked = self.acked.max(crowd.end);
        }
    }

    /// The no-ops that this log has below `end`, as a list of a message.
    pub(super) fn noops_below(&self, end: Instance) -> Vec<Range<Instance>> {
        self.log.noops(self.stable..end)
    }

    /// A message of this member about a view.
    pub(super) fn header(&self, msgtype: MsgType, view: Round) -> Header {
        let deployment = &self.settings.deployment;
        Header {
            group: deployment.group,
            cluster: deployment.cluster,
            pid: self.settings.pid,
            rnd: view,
            swid: deployment.node,
            client: self.settings.nonce,
            request: self.named_session(msgtype, view),
            ..Header::new(msgtype)
        }
    }

    /// To all other members of the view's session.
    pub(super) fn broadcast(&self, header: Header, value: &[u8], out: &mut impl Outbox) {
        let session = self.sessions.get(header.rnd.epoch());
        for member in session.iter().flat_map(|s| &s.members) {
            if *member != self.member() {
                send(To::Node(member.node), header, value, out);
            }
        }
    }

    /// To this node.
    pub(super) fn send_to_self(&self, header: Header, value: &[u8], out: &mut impl Outbox) {
        send(To::Node(self.settings.deployment.node), header, value, out);
    }

    /// Who leads the view.
    pub(super) fn leader(&self) -> Option<Member> {
        let session = self.sessions.open(self.view)?;
        Some(session.leader(self.view, self.settings.pid))
    }

    /// The session of the view.
    pub(super) fn session(&self) -> Option<&Session> {
        self.sessions.open(self.view)
    }

    /// The sender of a message between members of the view in which this replica is normal: its place in the
    /// session. Whoever isn't normal, or not in this view, takes no part. [N-MUTE]
    pub(super) fn sent_by_member(&self, h: &Header) -> Result<usize, Reason> {
        let session = self.sessions.get(h.rnd.epoch());
        let session = session.ok_or(Reason::UnknownEpoch)?;
        let place = session.place(sender(h)).ok_or(Reason::UnknownSender)?;
        if h.rnd != self.view {
            return Err(Reason::WrongView);
        }
        if self.status != Status::Normal {
            return Err(Reason::NotNormal);
        }
        Ok(place)
    }

    /// The same of a message that only the view's leader sends.
    pub(super) fn sent_by_leader(&self, h: &Header) -> Result<(), Reason> {
        self.sent_by_member(h)?;
        match self.leader() == Some(sender(h)) {
            true => Ok(()),
            false => Err(Reason::UnknownSender),
        }
    }

    /// The same of a message that only the view's leader takes, and only from others.
    pub(super) fn sent_by_follower(&self, h: &Header) -> Result<usize, Reason> {
        let place = self.sent_by_member(h)?;
        if !self.leads() {
            return Err(Reason::NotForRole);
        }
        match sender(h) == self.member() {
            true => Err(Reason::UnknownSender),
            false => Ok(place),
        }
    }

    /// How many others a leader needs.
    pub(super) fn f(&self) -> usize {
        self.session().map_or(usize::MAX, |s| s.f as usize)
    }

    /// f others of the leader have got there: the f-th largest.
    pub(super) fn by_f(&self, of: impl Fn(&Peer) -> Instance) -> Instance {
        let mut reached: Vec<Instance> = self.duty.peers.iter().map(of).collect();
        reached.sort_unstable_by(|a, b| b.cmp(a));
        match self.f() {
            0 => self.log.next(),
            f => reached.get(f - 1).copied().unwrap_or(0),
        }
    }
}

/// The memory that sent a message between replicas.
pub(super) fn sender(h: &Header) -> Member {
    Member {
        node: h.swid,
        nonce: h.client,
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

/// Of a message whose sender was heard, whether or not it changed anything.
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

/// The entry that a GAP_REPLY carries; `None` if its sender doesn't have it.
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
