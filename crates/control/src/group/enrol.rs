// SPDX-License-Identifier: Apache-2.0
//! The orders of an epoch in force or being prepared: ProgramLeader and EnableAcceptor.

use super::GroupControl;
use crate::status::FailoverStatus;
use crate::suspicion::Watched;
use crate::{ControlOutbox, Message, Peer};
use paxos::wire::value::Probe;
use paxos::{Configuration, Instance, Member, Round, Time};

/// Members to enable, with T and E.
type Enabling = (Configuration, Vec<Instance>, Vec<Instance>);

impl GroupControl {
    /// Repeats ProgramLeader until the leader shows the round, and EnableAcceptor to strangers
    /// until they show one. With `all` it also goes to the other members, since a floor doesn't
    /// show whether they know the replicas whose TRIM counts.
    pub(super) fn repeat_orders(&mut self, out: &mut impl ControlOutbox, all: bool) {
        self.program_leader(out);
        for enabling in self.enabling() {
            self.repeat_enabling(&enabling, all, out);
        }
    }

    fn repeat_enabling(&self, enabling: &Enabling, all: bool, out: &mut impl ControlOutbox) {
        let (configuration, trim, end) = enabling;
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

    fn enabling(&self) -> Vec<Enabling> {
        let Some(attempt) = &self.attempt else {
            return self.enabling_active().into_iter().collect();
        };
        let Some(candidate) = attempt.candidate() else {
            return Vec::new();
        };
        let configuration = candidate.configuration();
        if let Some((trim, end)) = &attempt.enable {
            return vec![(configuration.clone(), trim.clone(), end.clone())];
        }
        let unfinished = self.enabling_unfinished(configuration);
        self.enabling_active()
            .into_iter()
            .chain([unfinished])
            .collect()
    }

    /// Returns the members of the last active epoch to enable. If a later one was issued, these are
    /// only the members that still are strangers, since the next epoch may need their promise.
    /// [C-LATE]
    fn enabling_active(&self) -> Option<Enabling> {
        let handed = self.state.handed.as_ref()?;
        let mut configuration = self.state.last_active()?.configuration();
        if self.state.in_force().is_none() {
            configuration.acceptors.retain(|a| self.is_stranger(a));
        }
        Some((configuration, handed.trim.clone(), handed.end.clone()))
    }

    /// Returns the members of unfinished epochs to enable, who may still be strangers and so can't
    /// promise anything to the next epoch. Enabling them is such a promise: a stranger has never
    /// voted, and with the new floor it never will in an unfinished epoch. [C-FIRST]
    fn enabling_unfinished(&self, next: &Configuration) -> Enabling {
        let needed = self.state.needed().into_iter();
        let unfinished = needed.filter(|c| c.epoch < next.epoch && self.is_unfinished(c));
        let members = unfinished.flat_map(|c| c.acceptors);
        let mut strangers: Vec<Member> = members.filter(|a| self.is_stranger(a)).collect();
        strangers.sort_unstable_by_key(|a| a.node);
        strangers.dedup();
        let configuration = Configuration {
            acceptors: strangers,
            ..next.clone()
        };
        let start = vec![0; usize::from(self.settings.partitions)];
        (configuration, start.clone(), start)
    }

    /// Returns whether an epoch was marked *writing*, and never *active*.
    pub(super) fn is_unfinished(&self, configuration: &Configuration) -> bool {
        let active = self.state.last_active().map_or(0, |last| last.epoch);
        configuration.epoch > active
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
