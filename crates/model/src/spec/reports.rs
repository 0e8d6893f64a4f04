// SPDX-License-Identifier: Apache-2.0
//! The instances that replicas have reported as no longer needed.

use std::collections::BTreeMap;

use paxos::{Header, Instance, NodeId, PartitionId, Round};

/// TRIM reports of the replicas of a configuration.
#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct Reports {
    replicas: Vec<NodeId>,
    g: u8,
    /// The newest disk that has reported, and the largest that it has reported.
    newest: BTreeMap<(PartitionId, NodeId), (u64, Instance)>,
}

impl Reports {
    pub fn change(&mut self, replicas: &[NodeId], g: u8) {
        self.replicas = replicas.to_vec();
        self.g = g;
        self.newest
            .retain(|(_, replica), _| replicas.contains(replica));
    }

    /// Notes a report, if it counts: of a replica that knows the epoch of `round`, and of no older
    /// disk than the one that has reported.
    pub fn note(&mut self, h: &Header, round: Round) {
        let knows = h.request >= u64::from(round.epoch());
        if h.client != 0 && knows && self.replicas.contains(&h.swid) {
            let known = self.newest.entry((h.pid, h.swid)).or_default();
            *known = (h.client, h.inst).max(*known);
        }
    }

    pub fn covered(&self, pid: PartitionId) -> Instance {
        let report = |replica: &NodeId| self.newest.get(&(pid, *replica)).map_or(0, |r| r.1);
        let mut all: Vec<Instance> = self.replicas.iter().map(report).collect();
        all.sort_unstable();
        all.reverse();
        all.get(usize::from(self.g)).copied().unwrap_or(0)
    }
}
