// SPDX-License-Identifier: Apache-2.0
//! Waits until another node may be lost, or another fault may begin.

use std::time::{Duration, Instant};

use lab::topology::Role;
use local_cluster::Error;

use super::super::testbed::Testbed;
use super::super::wholeness;
use super::{LOOK_EVERY, Nemesis, Skipped, Suspect, WHOLE_TIMEOUT};

impl<'a> Nemesis<'a> {
    pub(super) fn those_up(&self, nodes: &[String]) -> Vec<String> {
        let up = |node: &&String| {
            let away = self.down.contains(*node) || self.paused.contains(*node);
            !away && self.bed.runs(node)
        };
        nodes.iter().filter(up).cloned().collect()
    }

    /// Waits until the cluster can stand the loss of an acceptor's memory, or of the disk of a node
    /// of this role.
    pub(super) fn await_disk_of(&mut self, node: &str) -> Result<Result<(), Skipped>, Error> {
        if self.those_up(&[node.to_string()]).is_empty() || self.full.contains_key(node) {
            return Ok(Err("down already, or its disk is full".to_string()));
        }
        if !node.starts_with("replica") {
            return self.await_acceptors();
        }
        if self.a_log_may_go() {
            return Ok(Err("a replica's disk is full".to_string()));
        }
        self.renew_damaged_replicas()?;
        if self.disk_lost {
            let whole = self.await_that(WHOLE_TIMEOUT, Testbed::replicas_are_whole, |_| true)?;
            if let Err(why) = whole {
                return Ok(Err(why));
            }
        }
        self.disk_lost = true;
        Ok(Ok(()))
    }

    /// Waits until the cluster can stand the loss of these nodes' logs, if any of them has its log
    /// in memory only.
    pub(super) fn await_logs_of(&mut self, nodes: &[String]) -> Result<Result<(), Skipped>, Error> {
        let volatile = nodes.iter().find(|node| self.bed.has_volatile_log(node));
        match volatile.cloned() {
            Some(node) => self.await_disk_of(&node),
            None => Ok(Ok(())),
        }
    }

    /// Returns whether a replica may end at any moment, since its disk has no room, and its log
    /// with it.
    pub(super) fn a_log_may_go(&self) -> bool {
        self.full.keys().any(|node| self.bed.has_volatile_log(node))
    }

    /// Gives replicas with damaged stores empty ones. A store finds damage when it reads it,
    /// perhaps much later, and until then another disk must not be lost.
    fn renew_damaged_replicas(&mut self) -> Result<(), Error> {
        let damaged = |(node, s): (&String, &Suspect)| {
            let waits = node.starts_with("replica") && !s.foreign;
            waits.then(|| node.clone())
        };
        let damaged: Vec<String> = self.suspects.iter().filter_map(damaged).collect();
        for node in damaged {
            self.suspects.remove(&node);
            self.outcome.tolerated += 1;
            self.say.line(&format!("  {node} begins anew"));
            self.bed.kill(&node, true)?;
            self.repair(&node)?;
            self.disk_lost = true;
        }
        Ok(())
    }

    /// Waits until the acceptors are whole. A node that went on with damaged files until then has
    /// taken no harm.
    pub(super) fn await_acceptors(&mut self) -> Result<Result<(), Skipped>, Error> {
        let concerns = |node: &str| !node.starts_with("replica");
        let whole = self.await_that(WHOLE_TIMEOUT, Testbed::acceptors_are_whole, concerns)?;
        if whole.is_ok() {
            let before = self.suspects.len();
            self.suspects.retain(|node, _| !concerns(node));
            self.outcome.tolerated += (before - self.suspects.len()) as u64;
        }
        Ok(whole)
    }

    pub(super) fn await_whole(&mut self, limit: Duration) -> Result<Result<(), Skipped>, Error> {
        let both = |bed: &Testbed| {
            bed.acceptors_are_whole()?;
            bed.replicas_are_whole()
        };
        self.await_that(limit, both, |_| true)
    }

    /// Waits until `holds` succeeds. With suspects there are two attempts, because they may be what
    /// keeps the cluster from being whole.
    fn await_that(
        &mut self,
        limit: Duration,
        holds: impl Fn(&Testbed) -> Result<(), String>,
        concerns: impl Fn(&str) -> bool,
    ) -> Result<Result<(), Skipped>, Error> {
        let first = self.attempt(limit, &holds)?;
        let suspects = self.suspects.keys().filter(|node| concerns(node));
        let suspects: Vec<String> = suspects.cloned().collect();
        if first.is_ok() || suspects.is_empty() {
            return Ok(first);
        }
        for node in suspects {
            if node.starts_with("acceptor") && !self.others_hold(&node) {
                continue;
            }
            if node == "controller" && self.has_gone_on(&node) {
                self.suspects.remove(&node);
                self.outcome.tolerated += 1;
                continue;
            }
            if let Some(suspect) = self.suspects.remove(&node) {
                let refusal = format!("{node} ({}): it stays away", suspect.what);
                self.say.line(&format!("  {refusal}; it begins anew"));
                self.outcome.refusals.push(refusal);
                self.bed.kill(&node, true)?;
                self.repair(&node)?;
            }
        }
        self.attempt(limit, &holds)
    }

    /// Returns whether the controller has issued epochs with the files that it was given: then what
    /// was kept of it is an old copy.
    fn has_gone_on(&self, controller: &str) -> bool {
        let suspect = &self.suspects[controller];
        wholeness::has_issued_since(&suspect.before, &self.bed.documents())
    }

    /// Returns whether all other acceptors have the memory that the epoch in force counts on.
    fn others_hold(&self, node: &str) -> bool {
        let mut others = self.bed.of_role(Role::Acceptor);
        others.retain(|other| other != node);
        wholeness::are_members(&self.bed.documents(), &others).is_ok()
    }

    fn attempt(
        &mut self,
        limit: Duration,
        holds: &impl Fn(&Testbed) -> Result<(), String>,
    ) -> Result<Result<(), Skipped>, Error> {
        let deadline = Instant::now() + limit;
        loop {
            self.run_for(LOOK_EVERY)?;
            match holds(self.bed) {
                Ok(()) if self.foreign_suspects() == 0 => return Ok(Ok(())),
                Ok(()) => {}
                Err(why) if Instant::now() > deadline => return Ok(Err(why)),
                Err(_) => {}
            }
        }
    }

    /// Returns how many suspects have another cluster's files and so can't be whole, whatever they
    /// report.
    fn foreign_suspects(&self) -> usize {
        self.suspects.values().filter(|s| s.foreign).count()
    }
}
