// SPDX-License-Identifier: Apache-2.0
//! Checks at the disks that enough replicas hold what acceptors have forgotten.

use control::LEAP;

use super::Cluster;
use super::protocol::Protocol;
use super::replica::ReplicaHost;
use crate::check::Invariant;

impl<G: Protocol> Cluster<G> {
    /// Returns how many replicas may lose their disks: g of the epoch in force, or less while one
    /// with a smaller g may count, too, or where one has trimmed last.
    pub(super) fn g(&self) -> usize {
        if !self.world.members.can_change() {
            return (self.replicas.len() - 1) / 2;
        }
        let needed = self.controller.needed().into_iter().map(|c| c.g);
        let first = (self.world.scenario.replicas - 1) / 2;
        let least = self.world.members.least_g();
        needed.min().unwrap_or(first).min(least).into()
    }

    /// Checks invariant 6 at the disks: what is trimmed is on g+1 of them, not counting those that
    /// broke.
    pub(super) fn check_held(&mut self) {
        let members = &self.world.members;
        for (pid, &trim) in self.world.trimmed.iter().enumerate() {
            let holds = |r: &&ReplicaHost<G>| r.holds(pid) >= trim;
            let replicas = self.replicas.iter();
            let replicas: Vec<_> = replicas.filter(|r| members.is_in(r.host.at)).collect();
            let holders = replicas.iter().filter(|r| holds(r)).count();
            let lost = replicas.iter().filter(|r| r.is_lost() && !holds(r));
            // When an operator accepts a data loss, instances leap, whatever the disks hold.
            let furthest = self.replicas.iter().map(|r| r.holds(pid)).max();
            let leapt = trim.saturating_sub(furthest.unwrap_or(0)) >= LEAP / 2
                || trim <= self.world.executions.given_up_end(pid as u16);
            if holders + lost.count() <= self.g() && !leapt {
                self.world.findings.report(Invariant::Trim, || {
                    format!(
                        "partition {pid} is trimmed to {trim}, and {holders} replicas hold that"
                    )
                });
            }
        }
        self.held.clone_from(&self.world.trimmed);
    }
}
