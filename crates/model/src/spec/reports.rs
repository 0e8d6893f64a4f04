//! What replicas have reported as no longer needed.

use std::collections::BTreeMap;

use paxos::{Header, Instance, NodeId, PartitionId};

/// TRIM reports of the replicas of a configuration.
#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct Reports {
    replicas: Vec<NodeId>,
    g: u8,
    largest: BTreeMap<(PartitionId, NodeId), Instance>,
}

impl Reports {
    pub fn change(&mut self, replicas: &[NodeId], g: u8) {
        self.replicas = replicas.to_vec();
        self.g = g;
        self.largest
            .retain(|(_, replica), _| replicas.contains(replica));
    }

    /// Notes a report; says what g+1 replicas cover, if the report counts.
    pub fn note(&mut self, h: &Header) {
        if self.replicas.contains(&h.swid) {
            let known = self.largest.entry((h.pid, h.swid)).or_default();
            *known = h.inst.max(*known);
        }
    }

    pub fn covered(&self, pid: PartitionId) -> Instance {
        let report = |replica: &NodeId| self.largest.get(&(pid, *replica)).copied().unwrap_or(0);
        let mut all: Vec<Instance> = self.replicas.iter().map(report).collect();
        all.sort_unstable();
        all.reverse();
        all.get(usize::from(self.g)).copied().unwrap_or(0)
    }
}
