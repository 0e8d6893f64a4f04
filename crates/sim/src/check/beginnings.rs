// SPDX-License-Identifier: Apache-2.0
//! An epoch that begins below what a replica has executed: the replica stops as soon as it is told. If
//! epochs have begun anew, it can't tell what it is told from what is late; but it executes nothing more,
//! and stops.

use std::collections::BTreeMap;

use paxos::{Epoch, Instance, NodeId, PartitionId};

use super::{Findings, Invariant};

/// A replica's partition.
type Of = (NodeId, PartitionId);

/// Where replicas stood when epochs were issued, before anything could be decided in them.
#[derive(Debug, Default)]
pub struct Beginnings {
    stood: BTreeMap<Of, BTreeMap<Epoch, Stood>>,
    /// Those that go on although an epoch that was issued for the second time begins below them.
    must_stop: BTreeMap<Of, (Epoch, Instance)>,
}

#[derive(Clone, Copy, Debug)]
struct Stood {
    next: Instance,
    /// The epoch is issued for the second time, or follows one that was.
    anew: bool,
}

impl Beginnings {
    /// An epoch is issued while a replica's next instance is `next`.
    pub fn issued(&mut self, of: Of, epoch: Epoch, next: Instance) {
        let stood = self.stood.entry(of).or_default();
        let anew = stood
            .last_key_value()
            .is_some_and(|(last, before)| *last >= epoch || before.anew);
        stood.retain(|before, _| *before < epoch);
        stood.insert(epoch, Stood { next, anew });
    }

    /// A process starts at `next`: a power failure may have taken something.
    pub fn starts(&mut self, of: Of, next: Instance) {
        self.must_stop.remove(&of);
        for stood in self.stood.entry(of).or_default().values_mut() {
            stood.next = next.min(stood.next);
        }
    }

    /// The disk is empty, or has another replica's state.
    pub fn replaced(&mut self, of: Of) {
        self.stood.remove(&of);
        self.must_stop.remove(&of);
    }

    /// A replica whose next instance is `next` was told that `epoch` begins at `at`.
    pub fn told(
        &mut self,
        of: Of,
        (epoch, at): (Epoch, Instance),
        next: Instance,
        goes_on: bool,
        findings: &mut Findings,
    ) {
        let stood = self.stood.get(&of).and_then(|s| s.get(&epoch)).copied();
        let Some(stood) = stood.filter(|s| goes_on && s.next > at && next > at) else {
            return;
        };
        if stood.anew {
            self.must_stop.insert(of, (epoch, at));
            return;
        }
        findings.report(Invariant::Alarm, || {
            format!(
                "replica {} goes on at {next}, though epoch {epoch}, issued when it stood at \
                 {}, begins at {at}",
                of.0, stood.next
            )
        });
    }

    /// A replica has stopped, for whatever reason.
    pub fn stops(&mut self, of: Of) {
        self.must_stop.remove(&of);
    }

    /// A replica executes something.
    pub fn executes(&self, of: Of, findings: &mut Findings) {
        if let Some(told) = self.must_stop.get(&of) {
            must_have_stopped("executes", of, *told, findings);
        }
    }

    /// The run ends.
    pub fn end(&self, findings: &mut Findings) {
        for (of, told) in &self.must_stop {
            must_have_stopped("has not stopped", *of, *told, findings);
        }
    }
}

fn must_have_stopped(what: &str, of: Of, (epoch, at): (Epoch, Instance), findings: &mut Findings) {
    findings.report(Invariant::Alarm, || {
        format!(
            "replica {} {what}, though epoch {epoch} was issued for the second time and begins at {at}, \
             below it",
            of.0
        )
    });
}
