// SPDX-License-Identifier: Apache-2.0
//! The status of a group.

use super::GroupControl;
use crate::Protocol;
use crate::status::{GroupStatus, MemberStatus};
use crate::suspicion::Watched;
use paxos::wire::value::Probe;
use paxos::{NodeId, Time};

impl GroupControl {
    pub fn status(&self, now: Time) -> GroupStatus {
        // An old copy of the store doesn't know which epoch is in force.
        let in_force = self.state.in_force().filter(|_| self.stale.is_none());
        let mut suspects: Vec<NodeId> = self.suspects(|_| true);
        suspects.dedup();
        GroupStatus {
            group: self.id(),
            active: in_force.map(|e| e.epoch),
            epochs: self.state.epochs.clone(),
            leader: in_force.map(|e| e.leader.0),
            members: self.suspicion.iter().map(|w| self.member(w)).collect(),
            behind: self.behind(),
            suspects,
            attempt: self.attempt.as_ref().map(|a| a.status(now)),
            last_failover: self.last_failover.clone(),
            refused_lanes: self.outside_lanes.refused(),
            warnings: self.warnings(),
        }
    }

    fn member(&self, watched: &Watched) -> MemberStatus {
        MemberStatus {
            node: watched.node,
            role: role_name(watched.role).into(),
            alive: self.suspicion.is_alive(watched.role, watched.node),
            nonce: watched.memory,
            start: watched.start.map(|start| start.count()),
            mute: watched.mute,
            disbelieved: watched
                .memory
                .is_some_and(|nonce| self.is_disbelieved(watched.node, nonce)),
            partitions: watched
                .partitions
                .iter()
                .map(|p| p.unwrap_or_default())
                .collect(),
        }
    }

    /// Returns the replicas whose next instance is below an acceptor's trim point.
    fn behind(&self) -> Vec<NodeId> {
        let trimmed = |pid: u16| (usize::from(pid), self.furthest_trim(pid));
        let pids = || (0..self.settings.partitions).map(trimmed);
        let is_behind = |w: &Watched| {
            pids().any(|(at, trimmed)| w.partitions[at].is_some_and(|p| Some(p.inst) < trimmed))
        };
        let replicas = self.suspicion.iter().filter(|w| w.role == Probe::Replica);
        let replicas = replicas.filter(|w| self.is_replica(w.node) && is_behind(w));
        replicas.map(|w| w.node).collect()
    }

    fn suspects(&self, wanted: impl Fn(&Watched) -> bool) -> Vec<NodeId> {
        let suspect = |w: &&Watched| self.suspicion.is_suspect(w) && wanted(w);
        let mut nodes: Vec<NodeId> = self
            .suspicion
            .iter()
            .filter(suspect)
            .map(|w| w.node)
            .collect();
        nodes.sort_unstable();
        nodes
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> = [
            &self.alarm,
            &self.loss,
            &self.stale,
            &self.blocked,
            &self.store_trouble,
        ]
        .into_iter()
        .flatten()
        .cloned()
        .collect();
        warnings.dedup();
        warnings.extend(self.forgotten());
        warnings.extend(self.not_counting());
        warnings.extend(self.doubts());
        warnings.extend(self.of_another_history());
        let s = &self.settings;
        let acceptors =
            self.suspects(|w| w.role == Probe::Acceptor && s.acceptors.contains(&w.node));
        if acceptors.len() > usize::from(s.f) {
            warnings.push(format!(
                "more than f = {} acceptors don't answer: {acceptors:?}; nothing is decided until \
                 they are back",
                s.f
            ));
        }
        let too_few_replicas = self.too_few_replicas();
        let are_named = too_few_replicas.is_some();
        warnings.extend(too_few_replicas);
        warnings.extend(self.silent(acceptors.len() > usize::from(s.f), are_named));
        let behind = self.behind();
        if !behind.is_empty() {
            warnings.push(format!(
                "replicas {behind:?} aren't whole: they need another one's checkpoint. Keep the \
                 others' disks until they have it"
            ));
        }
        warnings.extend((0..s.partitions).filter_map(|pid| self.trim_held_back(pid)));
        warnings
    }

    /// Returns a warning if the group doesn't go on without the replicas that are silent.
    fn too_few_replicas(&self) -> Option<String> {
        let s = &self.settings;
        let silent = self.suspects(|w| w.role == Probe::Replica && self.is_replica(w.node));
        let answer = s.replicas.iter().filter(|id| !silent.contains(id)).count();
        let (needed, why) = match s.protocol {
            Protocol::Paxos => (
                usize::from(s.g) + 1,
                format!(
                    "trim is held back, and the leader stops when its window of {} instances is \
                     full",
                    s.window
                ),
            ),
            Protocol::NoPaxos => (
                s.replicas.len().saturating_sub(usize::from(s.g)),
                "no command is answered until they are back".to_owned(),
            ),
        };
        (answer < needed && !silent.is_empty()).then(|| {
            format!("of the replicas {needed} must answer, and these don't: {silent:?}; {why}")
        })
    }

    /// Returns a warning about each member that answers and doesn't count yet.
    fn not_counting(&self) -> Vec<String> {
        let members = self.state.in_force().into_iter().flat_map(|e| &e.acceptors);
        let warning = |&(node, nonce): &(NodeId, u64)| {
            let watched = self.suspicion.get(self.settings.voters().0, node)?;
            let why = match watched.memory? {
                _ if watched.lost || self.suspicion.is_suspect(watched) => return None,
                memory if memory != nonce => "has another memory than the active epoch names",
                _ if watched.mute => "was read from disk and hasn't been compared yet",
                _ => return None,
            };
            let role = role_name(watched.role);
            Some(format!(
                "{role} {node} {why}, so it doesn't vote: wait until it does before you stop \
                 another node"
            ))
        };
        members.filter_map(warning).collect()
    }

    /// Returns a warning about each suspected node, needed now or not. It leaves out the roles of
    /// which so many nodes are suspected that another warning names them.
    fn silent(&self, without_acceptors: bool, without_replicas: bool) -> Vec<String> {
        let s = &self.settings;
        let is_meant = |w: &&Watched| {
            let (nodes, is_named) = match w.role {
                Probe::Leader | Probe::Sequencer => (&s.leaders, false),
                Probe::Acceptor => (&s.acceptors, without_acceptors),
                Probe::Replica => (&s.replicas, without_replicas),
            };
            self.suspicion.is_suspect(w) && nodes.contains(&w.node) && !is_named
        };
        let silent = self.suspicion.iter().filter(is_meant);
        let warning = |w: &Watched| {
            format!(
                "{} {} doesn't answer the controller's PROBEs: start it, or let UDP packets pass \
                 between its `address` and the controller's",
                role_name(w.role),
                w.node
            )
        };
        silent.map(warning).collect()
    }

    /// Returns a warning when three quarters of the leader's window are used.
    fn trim_held_back(&self, pid: u16) -> Option<String> {
        let leader = self.state.in_force()?.leader.0;
        let leader = self.suspicion.get(self.settings.stamper(), leader)?;
        let at = leader.partitions[usize::from(pid)]?;
        let open = at.inst.saturating_sub(at.trim);
        (open > self.settings.window / 4 * 3).then(|| {
            format!(
                "trim is held back in partition {pid}: {open} of {} instances are open; look at \
                 the replicas' checkpoints",
                self.settings.window
            )
        })
    }
}

/// Returns the name of a role as in `status`.
pub(super) const fn role_name(role: Probe) -> &'static str {
    match role {
        Probe::Leader => "leader",
        Probe::Acceptor => "acceptor",
        Probe::Replica => "replica",
        Probe::Sequencer => "sequencer",
    }
}
