// SPDX-License-Identifier: Apache-2.0
//! View changes: another leader, or another session of the sequencer
//! (docs/protocol/nopaxos-views.md).
//!
//! ```text
//! any replica            leader of the new view w           its source         members of w
//!     | VIEW_CHANGE_REQ(w)        |                            |                    |
//!     |-------------------------->|--------------------------->|------------------->|
//!     | VIEW_CHANGE(w): last normal view, end, stable, no-ops  |                    |
//!     |-------------------------->|<---------------------------|--------------------|
//!     |                           | GAP_REQUEST: what it lacks |                    |
//!     |                           |<-------------------------->|                    |
//!     |                           | START_VIEW(w): end, stable, no-ops              |
//!     |                           |------------------------------------------------>|
//!     |                           |           GAP_REQUEST: what it lacks            |
//!     |                           |<----------------------------------------------->|
//!     |                           |<------------------------------- START_VIEW_REP  |
//! ```
//!
//! The log stays as it is until the log of the new view is complete. A [`Plan`] says what the new
//! log consists of, and fetched entries lie beside the old log until one exchange puts them in.
//! [W-UNTOUCHED]

mod collecting;

use std::ops::Range;

use super::replica::{Duty, Replica, Started, Status, no_value, send, sender};
use super::session::{Session, Stage};
use super::view;
use crate::reader::Reader;
use crate::wire::nopaxos::{Noops, max_noop_ranges};
use crate::{Header, Instance, Member, MsgType, Outbox, Packet, Reason, Round, Time, To, Verdict};
pub(in crate::nopaxos) use collecting::Plan;
use collecting::union;

// ---- Types

/// The progress towards the view that the replica goes to.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Default)]
pub(super) struct Change {
    /// The time at which the change began, or last made progress.
    since: Time,
    /// The time at which VIEW_CHANGE was sent last.
    told_at: Time,
    /// For the view's leader, the VIEW_CHANGEs that came.
    told: Vec<LogSummary>,
    /// The plan of the new log, once it is known.
    pub(super) plan: Option<Plan>,
}

/// A member's VIEW_CHANGE.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
struct LogSummary {
    member: Member,
    last_normal: Round,
    next: Instance,
    stable: Instance,
    noops: Vec<Range<Instance>>,
}

/// The content of a START_VIEW. A view has only one. [W-ONCE]
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub(super) struct Begun {
    origin: Round,
    end: Instance,
    value: Vec<u8>,
}

impl Begun {
    pub(super) fn end(&self) -> Instance {
        self.end
    }

    pub(super) fn save(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.origin.0.to_be_bytes());
        out.extend_from_slice(&self.end.to_be_bytes());
        out.extend_from_slice(&(self.value.len() as u16).to_be_bytes());
        out.extend_from_slice(&self.value);
    }

    pub(super) fn load(r: &mut Reader<'_>) -> Result<Begun, &'static str> {
        let (origin, end, len) = (Round(r.u32()?), r.u64()?, r.u16()?);
        Ok(Begun {
            origin,
            end,
            value: r.take(len.into())?.to_vec(),
        })
    }
}

impl Replica {
    /// Returns the view that this replica has begun as its leader, once f+1 members have its log,
    /// for the controller.
    pub fn started(&self) -> Option<Started> {
        let (begun, session) = (self.begun.as_ref()?, self.session()?);
        if !self.leads() {
            return None;
        }
        let has_it = |place: usize| self.duty.peers[place].started;
        let members = session.members.iter().enumerate();
        let members: Vec<Member> = members
            .filter(|(place, member)| has_it(*place) || **member == self.member())
            .map(|(_, member)| *member)
            .collect();
        (members.len() > session.f as usize).then_some(Started {
            session: session.digest(),
            view: self.view,
            end: begun.end,
            members,
        })
    }

    /// Returns the same view as [`started`](Self::started), as long as the store doesn't show that
    /// its session is *active*. The controller is told again and again until then. [F-REPORT]
    pub fn unreported(&self) -> Option<Started> {
        let is_active = |s: &Session| matches!(s.stage, Stage::Active { .. });
        self.started()
            .filter(|_| !self.session().is_some_and(is_active))
    }

    // ---- When

    /// Goes to a later session, if the store shows one that is *writing*. [W-WHEN]
    pub(super) fn follow_store(&mut self, out: &mut impl Outbox) {
        let Some(newest) = self.sessions.newest_open() else {
            return;
        };
        if newest.number > self.view.epoch() {
            self.want(view::first(newest.number), out);
        }
    }

    /// Asks for the next leader, if the present one has been silent for too long. [W-WHEN]
    pub(super) fn suspect(&mut self, now: Time, out: &mut impl Outbox) {
        if now >= self.duty.heard + self.settings.silence {
            self.want_next(out);
        }
    }

    fn want_next(&mut self, out: &mut impl Outbox) {
        let is_member = self
            .session()
            .is_some_and(|s| s.place(self.member()).is_some());
        if let (true, Some(next)) = (is_member, view::next(self.view)) {
            self.want(next, out);
        }
    }

    fn want(&self, wanted: Round, out: &mut impl Outbox) {
        if self.sessions.takes_part(wanted, self.member()) {
            self.send_to_self(self.header(MsgType::ViewChangeReq, wanted), &[], out);
        }
    }

    pub(super) fn view_change_req(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        no_value(packet)?;
        let h = &packet.header;
        self.may_change_to(h)?;
        self.is_of_same_session(h)?;
        self.hear_of_view(now, h, out)
    }

    /// Goes to a later view, since a replica that has a say in it is there or goes there.
    pub(super) fn hear_of_view(
        &mut self,
        now: Time,
        h: &Header,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        self.may_change_to(h)?;
        if h.rnd <= self.view {
            return Err(Reason::WrongView);
        }
        self.change_to(h.rnd, now, out);
        Ok(Verdict::Changed)
    }

    /// Checks that both the sender and this replica have a say in the view. [W-WHO]
    fn may_change_to(&self, h: &Header) -> Result<(), Reason> {
        if self.sessions.open(h.rnd).is_none() {
            return Err(Reason::UnknownEpoch);
        }
        if !self.sessions.takes_part(h.rnd, sender(h)) {
            return Err(Reason::UnknownSender);
        }
        if !self.sessions.takes_part(h.rnd, self.member()) {
            return Err(Reason::Stranger);
        }
        Ok(())
    }

    /// Returns the session's digest, which messages of a view change carry in `request`, or 0 for
    /// other messages. [W-SAME]
    pub(super) fn named_session(&self, msgtype: MsgType, view: Round) -> u64 {
        let names_it = matches!(
            msgtype,
            MsgType::ViewChangeReq
                | MsgType::ViewChange
                | MsgType::StartView
                | MsgType::StartViewRep
        );
        let session = self.sessions.get(view.epoch()).filter(|_| names_it);
        session.map_or(0, Session::digest)
    }

    /// Refuses a sender that knows the session by another sequencer, other members, another f or
    /// another first leader. So no view begins among replicas that two controllers have told two
    /// sessions with one number. [W-SAME]
    fn is_of_same_session(&self, h: &Header) -> Result<(), Reason> {
        match self.named_session(h.msgtype, h.rnd) == h.request {
            true => Ok(()),
            false => Err(Reason::Conflict),
        }
    }

    fn change_to(&mut self, wanted: Round, now: Time, out: &mut impl Outbox) {
        self.go_to(wanted, now);
        self.begin_again(now, out);
    }

    /// Tells others of the view and of this log, as if nobody had been told yet.
    pub(super) fn begin_again(&mut self, now: Time, out: &mut impl Outbox) {
        if self.mute {
            return;
        }
        self.change.since = now;
        self.tell(now, out);
        if self.leader() == Some(self.member()) {
            self.note(self.own_log(), now, out);
        }
    }

    /// Returns true if this replica leads its view, or is about to, and everything below `stable`
    /// is stable elsewhere without its knowledge.
    pub(super) fn is_deposed_by(&self, stable: Instance) -> bool {
        let planned = self.change.plan.as_ref().map_or(0, |plan| plan.stable);
        self.leader() == Some(self.member()) && stable > self.stable.max(planned)
    }

    /// Goes to the next view, because slots are stable that this leader hasn't made stable: a later
    /// view may have done that with another log, and followers would take what they prepared in
    /// this view for it. If no number is left for the next leader, it waits for another session.
    /// [W-DEPOSED]
    pub(super) fn step_down(&mut self, now: Time, out: &mut impl Outbox) {
        let next = view::next(self.view).unwrap_or(self.view);
        self.change_to(next, now, out);
    }

    /// Goes to a view, and leaves the log as it is. [W-UNTOUCHED]
    fn go_to(&mut self, wanted: Round, now: Time) {
        self.view = wanted;
        self.status = Status::ViewChange;
        self.lacks.clear();
        self.short_of = None;
        self.duty = Duty::default();
        self.begun = None;
        self.change = Change {
            since: now,
            ..Change::default()
        };
    }

    // ---- Telling

    /// Asks all members that have a say, and tells the leader this log. Repetitions tell the same.
    fn tell(&mut self, now: Time, out: &mut impl Outbox) {
        self.change.told_at = now;
        let request = self.header(MsgType::ViewChangeReq, self.view);
        let mut others: Vec<Member> = self.sessions.part_takers(self.view).collect();
        others.sort_unstable();
        others.dedup();
        for other in others.into_iter().filter(|other| *other != self.member()) {
            send(To::Node(other.node), request, &[], out);
        }
        let Some(leader) = self.leader() else {
            return;
        };
        let own = self.own_log();
        if leader == self.member()
            || own.noops.len() > max_noop_ranges(self.settings.deployment.max_value)
        {
            return;
        }
        let mut value = Vec::new();
        Noops::append(&mut value, own.stable, own.noops);
        let header = Header {
            inst: own.next,
            vrnd: own.last_normal,
            ..self.header(MsgType::ViewChange, self.view)
        };
        send(To::Node(leader.node), header, &value, out);
    }

    /// Returns this log for a VIEW_CHANGE. A member that was in no view yet has nothing to tell.
    /// [W-TELL]
    fn own_log(&self) -> LogSummary {
        let is_new = self.last_normal.is_none();
        LogSummary {
            member: self.member(),
            last_normal: self.last_normal,
            next: if is_new { 0 } else { self.log.next() },
            stable: if is_new { 0 } else { self.stable },
            noops: self.noops_below(self.log.next()),
        }
    }

    pub(super) fn view_change(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        let h = &packet.header;
        let max_value = self.settings.deployment.max_value;
        let noops = Noops::parse(packet.value, h.inst, max_value)?;
        self.may_change_to(h)?;
        self.is_of_same_session(h)?;
        let session = self.sessions.open(h.rnd).ok_or(Reason::UnknownEpoch)?;
        if session.leader(h.rnd, self.settings.pid) != self.member() {
            return Err(Reason::NotForRole);
        }
        if h.rnd < self.view || h.vrnd >= h.rnd {
            return Err(Reason::WrongView);
        }
        if h.rnd == self.view && self.status == Status::Normal {
            // The member has missed the START_VIEW, so it gets the same one again. [W-ONCE]
            self.send_start_view(To::Sender, out);
            return Ok(Verdict::Answered);
        }
        let told = LogSummary {
            member: sender(h),
            last_normal: h.vrnd,
            next: h.inst,
            stable: noops.stable,
            noops: noops.ranges().collect(),
        };
        let changes = h.rnd > self.view;
        if changes {
            self.change_to(h.rnd, now, out);
        }
        // A change to a later view already told this replica's own log.
        match self.note(told, now, out) || changes {
            true => Ok(Verdict::Changed),
            false => Err(Reason::Duplicate),
        }
    }

    /// Notes a VIEW_CHANGE, unless it is known, and starts the view if it can. Returns true if
    /// either changed anything; a view that this replica has led before starts no more. [W-ONCE]
    fn note(&mut self, told: LogSummary, now: Time, out: &mut impl Outbox) -> bool {
        let is_new = !self.change.told.iter().any(|t| t.member == told.member);
        if is_new {
            self.change.told.push(told);
        }
        let is_over = self.last_normal == self.view;
        let starts = !is_over && self.change.plan.is_none() && self.has_quorum();
        if starts {
            let plan = self.merged();
            if plan.end < self.stable {
                // The application holds more than any view can have, so it belongs to another
                // history.
                self.in_conflict = true;
                return is_new;
            }
            self.change.plan = Some(plan);
            self.collect(now, out);
        }
        is_new || starts
    }

    // ---- The new leader

    /// Returns true if f+1 members of each session that must be asked have told their logs.
    /// [W-QUORUM]
    fn has_quorum(&self) -> bool {
        let Some(needed) = self.sessions.needed(self.view) else {
            return false;
        };
        let told = |member: &Member| self.change.told.iter().any(|t| t.member == *member);
        needed.iter().all(|session| {
            let answered = session.members.iter().filter(|m| told(m)).count();
            answered > session.f as usize
        })
    }

    /// Returns the log of the new view, from the VIEW_CHANGEs of a quorum. Below the largest
    /// `stable` only the log of a member that told this point counts, since lists of no-ops begin
    /// there; from there on the logs of the members that were normal in the latest view count, and
    /// a slot is a no-op if any of them has one. [W-MERGE]
    fn merged(&self) -> Plan {
        let told = &self.change.told;
        let origin = told.iter().map(|t| t.last_normal).max();
        let origin = origin.unwrap_or(Round::NONE);
        let latest = || told.iter().filter(|t| t.last_normal == origin);
        let stable = told.iter().map(|t| t.stable).max().unwrap_or(0);
        let stable = stable.max(self.sessions.begin());
        let end = latest().map(|t| t.next).max().unwrap_or(0).max(stable);
        let all_noops = latest().flat_map(|t| t.noops.iter().cloned());
        let others = || told.iter().filter(|t| t.member != self.member());
        let below = others().find(|t| t.stable == stable);
        let above = others().filter(|t| t.last_normal == origin);
        Plan {
            below: below.map_or(0, |t| t.member.node),
            above: above.map(|t| (t.member.node, t.next)).collect(),
            ..Plan::new(self, origin, stable..end, union(all_noops, stable..end))
        }
    }

    /// Begins the view, whose log is complete. [W-START]
    fn begin(&mut self, plan: Plan, now: Time, out: &mut impl Outbox) {
        let mut value = Vec::new();
        Noops::append(&mut value, plan.stable, plan.noops.iter().cloned());
        self.begun = Some(Begun {
            origin: plan.origin,
            end: plan.end,
            value,
        });
        self.exchange(plan, now);
        let session = self.session();
        let others: Vec<Member> = session.map_or(Vec::new(), |s| s.members.clone());
        for other in others.into_iter().filter(|other| *other != self.member()) {
            self.send_start_view(To::Node(other.node), out);
        }
    }

    fn send_start_view(&self, to: To, out: &mut impl Outbox) {
        if let Some(begun) = &self.begun {
            let header = Header {
                inst: begun.end,
                vrnd: begun.origin,
                ..self.header(MsgType::StartView, self.view)
            };
            send(to, header, &begun.value, out);
        }
    }

    pub(super) fn start_view_rep(
        &mut self,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        no_value(packet)?;
        let h = &packet.header;
        let place = self.sent_by_follower(h)?;
        self.is_of_same_session(h)?;
        if self.begun.as_ref().map(|begun| begun.end) != Some(h.inst) {
            return Err(Reason::Unexpected);
        }
        Ok(self.synced(place, h.inst, out))
    }

    // ---- A member

    /// Handles START_VIEW of a later view, or of this one unless it has begun here already: a
    /// repeated one would cut off what was acknowledged since. [W-REPEATED]
    pub(super) fn start_view(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        let h = &packet.header;
        let max_value = self.settings.deployment.max_value;
        let noops = Noops::parse(packet.value, h.inst, max_value)?;
        let session = self.sessions.open(h.rnd).ok_or(Reason::UnknownEpoch)?;
        let leader = session.leader(h.rnd, self.settings.pid);
        if sender(h) != leader || leader == self.member() {
            return Err(Reason::UnknownSender);
        }
        self.is_of_same_session(h)?;
        if session.place(self.member()).is_none() {
            return Err(Reason::Stranger);
        }
        if h.rnd < self.view || h.vrnd >= h.rnd {
            return Err(Reason::WrongView);
        }
        if h.rnd == self.view && self.status == Status::Normal {
            self.answer_start_view(h.inst, out);
            return Ok(Verdict::Answered);
        }
        if h.rnd == self.view && self.change.plan.is_some() {
            return Err(Reason::Duplicate);
        }
        if h.inst < self.stable {
            return Err(Reason::Conflict);
        }
        if h.rnd > self.view {
            self.go_to(h.rnd, now);
            self.change.told_at = now;
        }
        self.change.since = now;
        self.change.plan = Some(Plan {
            below: leader.node,
            above: vec![(leader.node, h.inst)],
            ..Plan::new(self, h.vrnd, noops.stable..h.inst, noops.ranges().collect())
        });
        self.collect(now, out);
        Ok(Verdict::Changed)
    }

    fn answer_start_view(&self, end: Instance, out: &mut impl Outbox) {
        let answer = Header {
            inst: end,
            ..self.header(MsgType::StartViewRep, self.view)
        };
        if let Some(leader) = self.leader() {
            send(To::Node(leader.node), answer, &[], out);
        }
    }

    // ---- Time

    pub(super) fn go_on_changing(&mut self, now: Time, out: &mut impl Outbox) {
        if self.is_over() {
            return;
        }
        if now >= self.change.since + self.patience() {
            self.change.since = now;
            self.want_next(out);
        }
        if now >= self.change.told_at + self.repeat_after() {
            self.tell(now, out);
        }
        let Some(mut plan) = self.change.plan.take() else {
            return;
        };
        if plan.cursor < plan.end && now >= plan.asked_at + self.repeat_after() {
            plan.tries += 1;
            self.ask_source(&mut plan, now, out);
        }
        self.change.plan = Some(plan);
    }

    /// Returns true if this replica was only asked for the log of an earlier session, and is no
    /// member of the active one.
    fn is_over(&self) -> bool {
        let is_other = |s: &Session| s.place(self.member()).is_none();
        let is_active = |s: &Session| matches!(s.stage, Stage::Active { .. });
        self.session().is_some_and(|s| is_active(s) && is_other(s))
    }

    pub(super) fn change_deadline(&self) -> Option<Time> {
        if self.is_over() {
            return None;
        }
        let told = self.change.told_at + self.repeat_after();
        let asked = self.change.plan.as_ref();
        let asked = asked.map_or(told, |plan| plan.asked_at + self.repeat_after());
        Some(told.min(asked).min(self.change.since + self.patience()))
    }

    /// Returns how long to wait before the next leader tries, since a source may have died. Later
    /// leaders are given more time.
    fn patience(&self) -> Time {
        self.settings.silence * Time::from(1 + view::number(self.view).min(8))
    }

    fn repeat_after(&self) -> Time {
        self.settings.silence / 8
    }
}
