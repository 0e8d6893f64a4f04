// SPDX-License-Identifier: Apache-2.0
//! An epoch that begins below what a replica has executed: the replica stops as soon as it is told.

use std::collections::BTreeMap;

use paxos::{Epoch, Instance, NodeId, PartitionId};

use super::{Findings, Invariant};

/// Where replicas stood when epochs were issued, before anything could be decided in them.
#[derive(Debug, Default)]
pub struct Beginnings {
    stood: BTreeMap<(NodeId, PartitionId), BTreeMap<Epoch, Instance>>,
}

impl Beginnings {
    /// An epoch is issued while a replica's next instance is `next`.
    pub fn issued(&mut self, of: (NodeId, PartitionId), epoch: Epoch, next: Instance) {
        self.stood.entry(of).or_default().insert(epoch, next);
    }

    /// A process starts at `next`: a power failure may have taken something.
    pub fn starts(&mut self, of: (NodeId, PartitionId), next: Instance) {
        for stood in self.stood.entry(of).or_default().values_mut() {
            *stood = next.min(*stood);
        }
    }

    /// The disk is empty, or has another replica's state.
    pub fn replaced(&mut self, of: (NodeId, PartitionId)) {
        self.stood.remove(&of);
    }

    /// A replica whose next instance is `next` was told that `epoch` begins at `at`.
    pub fn told(
        &self,
        of: (NodeId, PartitionId),
        (epoch, at): (Epoch, Instance),
        next: Instance,
        goes_on: bool,
        findings: &mut Findings,
    ) {
        let stood = self.stood.get(&of).and_then(|s| s.get(&epoch)).copied();
        let beyond = stood.is_some_and(|stood| stood > at) && next > at;
        if beyond && goes_on {
            findings.report(Invariant::Alarm, || {
                format!(
                    "replica {} goes on at {next}, though epoch {epoch}, issued when it stood at \
                     {stood:?}, begins at {at}",
                    of.0
                )
            });
        }
    }
}
