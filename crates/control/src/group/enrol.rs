// SPDX-License-Identifier: Apache-2.0
//! The orders of an epoch in force or being prepared: ProgramLeader and EnableAcceptor.

use super::GroupControl;
use crate::status::FailoverStatus;
use crate::suspicion::Watched;
use crate::{ControlOutbox, Message, Peer};
use paxos::wire::value::Probe;
use paxos::{Configuration, Instance, Member, Round, Time};

impl GroupControl {
    /// Repeats ProgramLeader until the leader shows the round, and EnableAcceptor to strangers
    /// until they show one. With `all` it also goes to the other members, since a floor doesn't
    /// show whether they know the replicas whose TRIM counts.
    pub(super) fn repeat_orders(&mut self, out: &mut impl ControlOutbox, all: bool) {
        self.program_leader(out);
        let Some((configuration, trim, end)) = self.enabling() else {
            return;
        };
        for acceptor in &configuration.acceptors {
            let watched = self.suspicion.get(Probe::Acceptor, acceptor.node);
            let there = |w: &&Watched| w.memory == Some(acceptor.nonce) && !w.mute && !w.lost;
            let Some(watched) = watched.filter(there) else {
                continue;
            };
            if all || !watched.has_round() {
                let message = Message::EnableAcceptor {
                    group: self.id(),
                    epoch: configuration.epoch,
                    nonce: acceptor.nonce,
                    trim: trim.clone(),
                    end: end.clone(),
                    replicas: configuration.replicas.clone(),
                    g: configuration.g,
                };
                out.control(Peer::Node(acceptor.node), message);
            }
        }
    }

    pub(super) fn enabling(&self) -> Option<(Configuration, Vec<Instance>, Vec<Instance>)> {
        let Some(attempt) = &self.attempt else {
            return self.enabling_active();
        };
        let configuration = attempt.candidate()?.configuration().clone();
        match &attempt.enable {
            Some((trim, end)) => Some((configuration, trim.clone(), end.clone())),
            None if self.state.last_active().is_some() => self.enabling_active(),
            None => self.enabling_first(configuration),
        }
    }

    /// Returns the members of the last active epoch to enable. If a later one was issued, these are
    /// only the members that still are strangers, since the next epoch may need their promise.
    /// [C-LATE]
    fn enabling_active(&self) -> Option<(Configuration, Vec<Instance>, Vec<Instance>)> {
        let handed = self.state.handed.as_ref()?;
        let mut configuration = self.state.last_active()?.configuration();
        if self.state.in_force().is_none() {
            configuration.acceptors.retain(|a| self.is_stranger(a));
        }
        Some((configuration, handed.trim.clone(), handed.end.clone()))
    }

    /// Returns the members of an unfinished first epoch to enable, who may still be strangers and
    /// so can't promise anything to the next epoch. Enabling them is such a promise: a stranger has
    /// never voted, and with the new floor it never will in the unfinished epoch. [C-FIRST]
    fn enabling_first(
        &self,
        mut configuration: Configuration,
    ) -> Option<(Configuration, Vec<Instance>, Vec<Instance>)> {
        let needed = self.state.needed();
        let named = |member: &Member| {
            let before = |c: &&Configuration| c.epoch < configuration.epoch;
            let mut before = needed.iter().filter(before);
            before.any(|c| c.acceptors.contains(member))
        };
        let acceptors = configuration.acceptors.iter().copied().filter(named);
        configuration.acceptors = acceptors.filter(|a| self.is_stranger(a)).collect();
        let start = vec![0; usize::from(self.settings.partitions)];
        Some((configuration, start.clone(), start))
    }

    fn is_stranger(&self, acceptor: &Member) -> bool {
        let watched = self.suspicion.get(Probe::Acceptor, acceptor.node);
        watched.is_some_and(|w| !w.has_round())
    }

    /// Repeats ProgramLeader until the leader shows its round. [C-HANDOVER] [F-PROGRAM]
    pub(super) fn program_leader(&self, out: &mut impl ControlOutbox) {
        let (Some(record), Some(handed)) = (self.state.in_force(), &self.state.handed) else {
            return;
        };
        if self.programmed == record.epoch {
            return;
        }
        let message = Message::ProgramLeader {
            group: self.id(),
            epoch: record.epoch,
            nonce: record.leader.1,
            next: handed.next.clone(),
            trimmed: handed.trim.clone(),
            window: self.settings.window,
            acceptors: record.acceptors.iter().map(|(node, _)| *node).collect(),
            f: record.f,
            replicas: record.replicas.clone(),
            g: record.g,
        };
        out.control(Peer::Node(record.leader.0), message);
    }

    pub(super) fn note_programmed(&mut self, now: Time, out: &mut impl ControlOutbox) {
        let Some(record) = self.state.in_force() else {
            return;
        };
        let (epoch, (node, nonce)) = (record.epoch, record.leader);
        let Some(leader) = self.suspicion.get(self.settings.stamper(), node) else {
            return;
        };
        if leader.memory != Some(nonce) || leader.round() != Round::base(epoch) {
            return;
        }
        self.programmed = epoch;
        if let Some((started, reason)) = self.timed.take() {
            self.last_failover = Some(FailoverStatus {
                epoch,
                reason,
                duration_us: (now - started) / 1_000,
            });
            // Clients that reached the new leader before its order were refused; tell them the
            // view. [E-ASKED]
            self.tell_who_asked(now, out);
        }
    }
}
