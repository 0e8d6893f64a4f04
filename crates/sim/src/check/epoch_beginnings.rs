// SPDX-License-Identifier: Apache-2.0
//! Checks epochs that begin below what a replica has executed: the replica must stop as soon as it
//! is told. If epochs have begun again, it can't tell a new message from a late one, but it must
//! execute nothing more, and stop.

use std::collections::BTreeMap;

use paxos::{Epoch, Instance, NodeId, PartitionId};

use super::{Findings, Invariant};

/// A replica's partition.
type Of = (NodeId, PartitionId);

/// The replicas' positions when epochs were issued, before anything could be decided in them.
#[derive(Debug, Default)]
pub struct Beginnings {
    stood: BTreeMap<Of, BTreeMap<Epoch, Stood>>,
    /// The replicas that continue although an epoch that was issued a second time begins below
    /// their position.
    must_stop: BTreeMap<Of, (Epoch, Instance)>,
}

#[derive(Clone, Copy, Debug)]
struct Stood {
    next: Instance,
    /// The epoch is issued a second time, or follows one that was issued a second time.
    anew: bool,
}

impl Beginnings {
    /// Notes that an epoch is issued while a replica's next instance is `next`.
    pub fn issued(&mut self, of: Of, epoch: Epoch, next: Instance) {
        let stood = self.stood.entry(of).or_default();
        let anew = stood
            .last_key_value()
            .is_some_and(|(last, before)| *last >= epoch || before.anew);
        stood.retain(|before, _| *before < epoch);
        stood.insert(epoch, Stood { next, anew });
    }

    /// Notes that a process starts at `next`, since a power failure may have lost something.
    pub fn starts(&mut self, of: Of, next: Instance) {
        self.must_stop.remove(&of);
        for stood in self.stood.entry(of).or_default().values_mut() {
            stood.next = next.min(stood.next);
        }
    }

    /// Notes that the disk is empty, or has another replica's state.
    pub fn replaced(&mut self, of: Of) {
        self.stood.remove(&of);
        self.must_stop.remove(&of);
    }

    /// Notes that a replica whose next instance is `next` was told that `epoch` begins at `at`.
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

    /// Notes that a replica has stopped, for whatever reason.
    pub fn stops(&mut self, of: Of) {
        self.must_stop.remove(&of);
    }

    /// Checks a replica that executes something.
    pub fn executes(&self, of: Of, findings: &mut Findings) {
        if let Some(told) = self.must_stop.get(&of) {
            must_have_stopped("executes", of, *told, findings);
        }
    }

    /// Checks at the end that all replicas that had to stop have stopped.
    pub fn end(&self, findings: &mut Findings) {
        for (of, told) in &self.must_stop {
            must_have_stopped("has not stopped", *of, *told, findings);
        }
    }
}

fn must_have_stopped(what: &str, of: Of, (epoch, at): (Epoch, Instance), findings: &mut Findings) {
    findings.report(Invariant::Alarm, || {
        format!(
            "replica {} {what}, though epoch {epoch} was issued for the second time and begins at \
             {at}, below it",
            of.0
        )
    });
}
