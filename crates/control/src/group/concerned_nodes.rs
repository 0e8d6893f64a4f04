// SPDX-License-Identifier: Apache-2.0
//! Lists the nodes that a group's epochs concern: those of the cluster file, and those that leave.

use super::GroupControl;
use paxos::NodeId;
use paxos::wire::value::Probe;

impl GroupControl {
    /// Returns the nodes that are told views.
    pub(super) fn nodes(&self) -> Vec<NodeId> {
        let s = &self.settings;
        let mut nodes: Vec<NodeId> = [
            &s.leaders,
            &s.acceptors,
            &s.replicas,
            &s.leaving,
            &s.learners,
        ]
        .into_iter()
        .flatten()
        .copied()
        .collect();
        for record in &self.state.epochs {
            nodes.extend(record.acceptors.iter().map(|a| a.0));
            nodes.extend(&record.replicas);
        }
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// Begins to watch all leaders, voters and replicas of the cluster file and of the epochs.
    pub(super) fn watch_all(&mut self) {
        let s = &self.settings;
        let (stamper, (voter, _)) = (s.stamper(), s.voters());
        let leaders = s.leaders.iter().map(|&n| (stamper, n));
        let acceptors = s.acceptors.iter().map(|&n| (Probe::Acceptor, n));
        let replicas = s.replicas.iter().chain(&s.leaving);
        let replicas = replicas.map(|&n| (Probe::Replica, n));
        let mut all: Vec<(Probe, NodeId)> = leaders.chain(acceptors).chain(replicas).collect();
        for record in &self.state.epochs {
            all.push((stamper, record.leader.0));
            all.extend(record.acceptors.iter().map(|a| (voter, a.0)));
            all.extend(record.replicas.iter().map(|&n| (Probe::Replica, n)));
        }
        for (role, node) in all {
            self.suspicion.watch(role, node);
        }
    }
}
