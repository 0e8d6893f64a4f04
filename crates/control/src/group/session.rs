// SPDX-License-Identifier: Apache-2.0
//! Carries on the sessions of a sequencer, and decides when another one is needed
//! (docs/protocol/nopaxos-views.md).
//!
//! Only the store remembers a session that isn't active yet. So whoever finds it there carries it
//! on, as long as its sequencer and its replicas have the memories that it names; another session
//! would get no further. [F-RESUME]

use super::GroupControl;
use super::plan::{lacking, listed};
use crate::attempt::Change;
use crate::message::MemberRecord;
use crate::status::PartitionStatus;
use crate::suspicion::Watched;
use crate::{ControlOutbox, EpochRecord, EpochState, Protocol, Store};
use paxos::nopaxos::{SessionChange, Started, view};
use paxos::wire::value::Probe;
use paxos::{Configuration, Epoch, Instance, Member, NodeId, PartitionId, Reason, Round, Time};

/// How long replicas may need to report a view of a session that the store has as *writing*, as a
/// multiple of an attempt's patience.
const SILENT_PATIENCE: Time = 10;

/// A replica whose log or store contradicts a session.
pub(super) struct Complaint {
    member: MemberRecord,
    /// The first session that the replica complained about.
    first: Epoch,
    /// The last session that the replica complained about.
    last: Epoch,
}

impl GroupControl {
    // ---- Carrying on -----------------------------------------------------------------------

    /// Continues the unfinished session in the store, and returns whether it can be finished.
    /// [F-RESUME]
    pub(super) fn resume_session(
        &mut self,
        now: Time,
        store: &mut impl Store,
        out: &mut impl ControlOutbox,
    ) -> bool {
        let Some(last) = self.unfinished_session().cloned() else {
            return false;
        };
        let is_wanted = (self.order.is_none() && self.is_as_wanted(&last)) || self.state.is_full();
        if !is_wanted || self.doubtful || self.stale.is_some() || self.quorums(&last).is_err() {
            return false;
        }
        // A loss isn't accepted a second time without an order, since the lost memory may have been
        // found. [F-ANEW]
        if last.anew.is_some() && last.state == EpochState::Issued {
            return false;
        }
        let partitions = self.settings.partitions;
        let change = last
            .session(0)
            .map(|session| SessionChange::resume(session, partitions));
        let Some(Ok(change)) = change else {
            return false;
        };
        self.blocked = None;
        let since = *self.needed_since.get_or_insert(now);
        let reason = format!("session {} was left unfinished", last.epoch);
        self.begin(Change::Session(change), reason, since, now, store, out);
        true
    }

    fn unfinished_session(&self) -> Option<&EpochRecord> {
        let last = self.state.epochs.last()?;
        let is_ours = self.settings.protocol == Protocol::NoPaxos && last.lead.is_some();
        (is_ours && last.state != EpochState::Active).then_some(last)
    }

    /// Returns whether the session's sequencer has the memory that the session names, and the next
    /// session would have the same members.
    fn is_as_wanted(&self, last: &EpochRecord) -> bool {
        let (node, nonce) = last.leader;
        let is_configured = self.settings.leaders.contains(&node);
        let (voters, f) = self.next_voters(last);
        is_configured
            && self.suspicion.memory(Probe::Sequencer, node) == Some(nonce)
            && (voters, f) == (last.acceptors.clone(), last.f)
            && !self.are_leaders_used_up(last)
            && !self.was_active(last)
            && self.silent_session != last.epoch
    }

    /// Returns whether the session's sequencer shows its round. No sequencer is programmed before
    /// the store has its session as *active*, so then this store is an earlier copy; replicas know
    /// that the session is active, and report no view of it any more. [F-PROGRAM] [F-RESUME]
    fn was_active(&self, last: &EpochRecord) -> bool {
        let (node, nonce) = last.leader;
        let sequencer = self.suspicion.get(Probe::Sequencer, node);
        let shows = |w: &Watched| w.memory == Some(nonce) && w.round() == Round::base(last.epoch);
        sequencer.is_some_and(shows)
    }

    fn quorums(&self, last: &EpochRecord) -> Result<(), String> {
        self.has_quorum(&last.configuration())?;
        self.needed_quorums()
    }

    /// Gives up a session that can't be finished. A slow session stays, since another one with the
    /// same members would be no faster; but one that this process found *writing* and that no
    /// replica reports may already have become active, and then no replica ever will report it.
    /// [F-RESUME]
    pub(super) fn abandon_session(&mut self, now: Time) {
        let Some(last) = self.unfinished_session().cloned() else {
            return;
        };
        if self.state.is_full() {
            return;
        }
        let configuration = last.configuration();
        let (node, nonce) = last.leader;
        let sequencer_gone = self.suspicion.memory(Probe::Sequencer, node) != Some(nonce);
        let changed = self.has_changed_memories(&configuration) || self.are_leaders_used_up(&last);
        let lacks_quorum = self.quorums(&last).is_err();
        let (was_active, was_found) = (self.was_active(&last), self.issued != last.epoch);
        let (patience, delay) = (self.timing.attempt_timeout, self.timing.rejoin_delay);
        let failures = self.pace.failures();
        let Some(attempt) = &mut self.attempt else {
            return;
        };
        if sequencer_gone || was_active || attempt.is_outdated(now, changed, delay) {
            self.attempt = None;
        } else if was_found && attempt.is_stuck(now, patience * SILENT_PATIENCE, failures) {
            self.silent_session = last.epoch;
            self.give_up(now);
        } else if lacks_quorum && attempt.is_stuck(now, patience, failures) {
            self.give_up(now);
        }
    }

    /// Tells replicas of an unfinished session as often as they are probed, since no request is
    /// served until they know of it.
    pub(super) fn tell_session(&self, out: &mut impl ControlOutbox) {
        if self.attempt.is_some() && self.unfinished_session().is_some() {
            self.send_views(out);
        }
    }

    /// Notes the report of a leader that its view has begun. [F-STARTED]
    pub(super) fn note_started(
        &mut self,
        now: Time,
        pid: PartitionId,
        leader: Member,
        started: &Started,
        store: &mut impl Store,
        out: &mut impl ControlOutbox,
    ) {
        let given_up = self.state.given_up.as_ref();
        if given_up.is_some_and(|given_up| started.end < given_up.of(pid).end) {
            return;
        }
        let session = self.attempt.as_mut().and_then(|a| a.session_mut());
        match session.map(|session| session.view_started(pid, leader, started)) {
            Some(Ok(())) => self.drive(now, store, out),
            Some(Err(Reason::Conflict)) => {
                self.alarm = Some(self.issued_by_another(leader.node, started.view));
                self.attempt = None;
            }
            _ => {}
        }
    }

    fn issued_by_another(&self, replica: NodeId, view: Round) -> String {
        format!(
            "group {}: replica {replica} knows another session {} than this controller's, or \
             another end of its log: two controllers work on this cluster, the other one with a \
             copy of this one's state file. This controller stops. Find the other one, and keep \
             the one whose store has the newest epoch",
            self.id(),
            view.epoch()
        )
    }

    /// Returns the part of each partition that f+1 members of the session have on disk. They may
    /// forget what the sequencer stamps up to there, from the first slot on; too small a value is
    /// harmless, and grows by their TRIMs. [Q-WINDOW]
    pub(super) fn on_disk_at_members(&self, next: &[Instance]) -> Vec<Instance> {
        let Some(last) = self.state.epochs.last() else {
            return vec![0; next.len()];
        };
        let on_disk = |&(node, nonce): &MemberRecord, pid: usize| {
            let replica = self.suspicion.get(Probe::Replica, node);
            let replica = replica.filter(|w| w.memory == Some(nonce));
            let shown = replica.and_then(|w| w.partitions.get(pid).copied().flatten());
            shown.map_or(0, |p| p.trim)
        };
        let covered = |(pid, next): (usize, &Instance)| {
            let members = last.acceptors.iter();
            let mut shown: Vec<Instance> = members.map(|m| on_disk(m, pid)).collect();
            shown.sort_unstable_by(|a, b| b.cmp(a));
            let covered = shown.get(usize::from(last.f)).copied().unwrap_or(0);
            // Nobody needs the instances that were given up.
            let given_up = self.state.given_up.as_ref();
            let given_up = given_up.map_or(0, |given_up| given_up.of(pid as PartitionId).end);
            covered.max(given_up).min(*next)
        };
        next.iter().enumerate().map(covered).collect()
    }

    // ---- When another session is needed ----------------------------------------------------

    /// Returns why the replicas need another session, if they do. [F-NEED]
    pub(super) fn replica_trouble(&self, last: &EpochRecord) -> Option<String> {
        last.lead?;
        if self.are_leaders_used_up(last) {
            return Some(format!(
                "session {} has had half of the leaders that it can have",
                last.epoch
            ));
        }
        let complains = |c: &&Complaint| c.first == last.epoch && c.last == last.epoch;
        let complaint = self.complaints.iter().find(complains)?;
        Some(format!(
            "replica {}: what it has contradicts the log of session {}",
            complaint.member.0, last.epoch
        ))
    }

    /// Returns whether half of the session's possible leaders are used. This is early enough that
    /// the last leaders have a successor. More than f replicas must show it, so that a spoilt
    /// memory alone makes no session. [F-NEED]
    fn are_leaders_used_up(&self, session: &EpochRecord) -> bool {
        let is_late = |shown: &&PartitionStatus| {
            let shown = Round(shown.round);
            shown.epoch() == session.epoch && view::number(shown) > view::MAX_LEADER / 2
        };
        (0..self.settings.partitions).any(|pid| {
            let late = self.shown(Probe::Replica, pid).filter(is_late);
            late.count() > usize::from(session.f)
        })
    }

    /// Notes that a replica found a contradiction. Another session settles it once; if it is still
    /// there then, the replica's store is of another history.
    pub(super) fn take_complaint(&mut self, member: MemberRecord, session: Epoch) {
        let in_force = self.state.in_force().filter(|e| e.epoch == session);
        let Some(record) = in_force.filter(|e| e.acceptors.contains(&member)) else {
            return;
        };
        let is_member = |c: &Complaint| record.acceptors.contains(&c.member);
        self.complaints.retain(is_member);
        match self.complaints.iter_mut().find(|c| c.member == member) {
            Some(known) => known.last = session,
            None => self.complaints.push(Complaint {
                member,
                first: session,
                last: session,
            }),
        }
    }

    /// Returns warnings for `status` about replicas whose store is of another history.
    pub(super) fn of_another_history(&self) -> impl Iterator<Item = String> + '_ {
        let last = self.state.last_epoch();
        let still = move |c: &&Complaint| c.first < c.last && c.last == last;
        self.complaints.iter().filter(still).map(|c| {
            format!(
                "REPLICA {} HAS EXECUTED WHAT NO OTHER HAS: session {} didn't settle it. Stop it, \
                 keep its directory, and start it with an empty one",
                c.member.0, c.last
            )
        })
    }

    /// Returns an error unless f+1 logs are there of the last active session, and of each later one
    /// to whose views replicas could go. [W-QUORUM] [F-LOST]
    pub(super) fn needed_logs(&self) -> Result<(), String> {
        let able = |node, nonce| self.suspicion.memory(Probe::Replica, node) == Some(nonce);
        for configuration in self.state.needed() {
            let lacking = lacking(&configuration, able);
            if configuration.acceptors.len() - lacking.len() >= configuration.quorum() {
                continue;
            }
            // A mute replica will be allowed to continue, or be lost.
            let gone = |node: &NodeId| {
                let watched = self.suspicion.get(Probe::Replica, *node);
                watched.is_some_and(|w| {
                    !self.suspicion.is_suspect(w) && w.memory.is_some() && (!w.mute || w.lost)
                })
            };
            let (lost, silent): (Vec<NodeId>, Vec<NodeId>) = lacking.into_iter().partition(gone);
            return Err(too_few_logs(&configuration, &lost, &silent));
        }
        Ok(())
    }

    /// Returns who leads first: the current leader of partition 0, or else a replica that is there
    /// and has the log.
    pub(super) fn next_lead(&self, next: &Configuration) -> u16 {
        let is_there = |m: &Member| self.suspicion.memory(Probe::Replica, m.node) == Some(m.nonce);
        let last = self.state.last_active();
        let has_log = |m: &Member| {
            last.is_some_and(|last| last.acceptors.contains(&(m.node, m.nonce))) && is_there(m)
        };
        let leads = |m: &Member| Some(*m) == self.leader_now() && has_log(m);
        let place = |of: &dyn Fn(&Member) -> bool| next.acceptors.iter().position(of);
        let place = place(&leads)
            .or_else(|| place(&has_log))
            .or_else(|| place(&is_there));
        place.unwrap_or(0) as u16
    }

    /// Returns who leads partition 0 in the latest view that a replica shows.
    fn leader_now(&self) -> Option<Member> {
        let shown = self.shown(Probe::Replica, 0).map(|p| Round(p.round));
        let latest = shown.max().filter(|shown| !shown.is_none())?;
        let of = |e: &&EpochRecord| e.epoch == latest.epoch();
        let session = self.state.epochs.iter().find(of)?.session(0)?;
        Some(session.leader(latest, 0))
    }

    /// Returns an error if a stored epoch is of the other protocol, since all epochs of a group are
    /// sessions, or none is.
    pub(super) fn protocol_is_the_same(&self) -> Result<(), String> {
        let of = |e: &EpochRecord| match e.lead {
            None => Protocol::Paxos,
            Some(_) => Protocol::NoPaxos,
        };
        let mut epochs = self.state.epochs.iter();
        let Some(other) = epochs.find(|e| of(e) != self.settings.protocol) else {
            return Ok(());
        };
        let (was, is) = (of(other).name(), self.settings.protocol.name());
        Err(format!(
            "epoch {} of group {} is of protocol \"{was}\", and the cluster file says \"{is}\": a \
             group keeps its protocol. Write protocol = \"{was}\" again; a group with another one \
             needs a number of its own",
            other.epoch,
            self.id()
        ))
    }
}

fn too_few_logs(of: &Configuration, lost: &[NodeId], silent: &[NodeId]) -> String {
    let mut what = Vec::new();
    if !silent.is_empty() {
        what.push(format!(
            "node {} doesn't answer: start it again",
            listed(silent)
        ));
    }
    if !lost.is_empty() {
        what.push(format!(
            "node {} has lost its log. Keep the directories of all replicas: `wirepaxos failover \
             --accept-data-loss` goes on from what they have executed",
            listed(lost)
        ));
    }
    format!(
        "more than f = {} logs of session {} are missing: {}",
        of.f,
        of.epoch,
        what.join("; ")
    )
}
