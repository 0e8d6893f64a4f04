// SPDX-License-Identifier: Apache-2.0
//! The end of a run: faults stop, and everything must complete.

use paxos::Time;

use super::Cluster;
use super::client::{ClientHost, Wish};
use super::layout::NodeIndex;
use super::mutation::Mutation;
use super::protocol::Protocol;
use super::replica::ReplicaHost;
use crate::check::{Invariant, has_no_circle};
use crate::linearizability::{self, Linearizable, Op};
use crate::network::Rates;
use crate::queue::{MILLISECOND, SECOND};

/// The time within which outstanding commands must complete after all faults have ended.
const PATIENCE: Time = 60 * SECOND;
/// How often completion is checked.
const LOOK: Time = 20 * MILLISECOND;
/// How often an operator who has seen more than f memories lost tries to continue.
const ORDER: Time = 2 * SECOND;

impl<G: Protocol> Cluster<G> {
    pub(super) fn end_faults(&mut self) {
        self.world.note(|_| "action   all faults end".into());
        self.world.network.heal();
        self.world.network.rates = Rates::PERFECT;
        self.world.release();
        for at in 0..self.world.layout.names.len() {
            self.host_mut(at as NodeIndex).paused = false;
            self.set_full(self.world.layout.names[at], false);
        }
        for replica in &mut self.replicas {
            if replica.is_killed() {
                replica.crash(false);
            }
            replica.spare();
        }
        self.start_all();
        for acceptor in &mut self.acceptors {
            acceptor.forget_log(&mut self.world);
            acceptor.start(&mut self.world);
        }
        for client in &mut self.clients {
            client.start(&mut self.world);
        }
    }

    pub(super) fn settle(&mut self) {
        // Replicas that stop with an alarm complete nothing, however long one waits.
        let only = self.world.mutation.and_then(Mutation::only);
        let patience = match only {
            Some(Invariant::Alarm) => SECOND,
            _ => PATIENCE,
        };
        let deadline = self.world.queue.now() + patience;
        let mut order_at = self.world.queue.now() + ORDER;
        while self.is_sound() && self.world.queue.now() < deadline {
            if self.is_done() {
                return;
            }
            if self.world.has_forgotten && self.world.queue.now() >= order_at {
                order_at += ORDER;
                self.go_on();
            } else if self.controller.is_lost() && self.world.queue.now() >= order_at {
                order_at += ORDER;
                self.rebuild();
            }
            let next = self.world.queue.now() + LOOK;
            self.run_until(next);
        }
        if self.is_sound() {
            self.report_stuck();
        }
    }

    /// Acts as an operator who has seen more than f memories lost. A session can't continue if
    /// requests that its client knows as done are undone, so clients open new ones.
    fn go_on(&mut self) {
        self.controller.accept_loss(&mut self.world);
        if self.world.executions.has_given_up() {
            for client in &mut self.clients {
                client.crash();
                client.start(&mut self.world);
                let wish = Wish::Single {
                    pid: 0,
                    key: 0,
                    op: Op::Incr,
                    padding: 0,
                };
                client.wish(&mut self.world, wish);
            }
        }
    }

    fn staying_replicas(&self) -> impl Iterator<Item = &ReplicaHost<G>> {
        let members = &self.world.members;
        let replicas = self.replicas.iter();
        replicas.filter(|r| members.stays(r.host.at))
    }

    fn is_done(&self) -> bool {
        let idle = self.clients.iter().all(|c| c.outstanding() == 0);
        let equal = self.world.pids().all(|pid| {
            let executions = &self.world.executions;
            let (executed, contents) = (executions.executed(pid), executions.contents(pid));
            // The commands that were given up may be as many as have come since, so contents are
            // compared, too.
            let is_on_line = |r: &ReplicaHost<G>| {
                !executions.has_given_up() || r.store(pid.into()).contents() == contents
            };
            let same = |r: &ReplicaHost<G>| r.store(pid.into()).committed_position() == executed;
            self.staying_replicas().all(|r| same(r) && is_on_line(r))
        });
        let executions = &self.world.executions;
        let settled = executions.waits_to_be_stored().is_none() && executions.are_whole();
        let changed = self.controller.has_changed_members(&self.world);
        idle && settled && equal && changed && self.controller.in_force()
    }

    fn report_stuck(&mut self) {
        let outstanding: usize = self.clients.iter().map(ClientHost::outstanding).sum();
        let positions = self.staying_replicas().map(|r| {
            let of = |pid| r.store(usize::from(pid)).committed_position();
            self.world.pids().map(of).collect::<Vec<_>>()
        });
        let positions: Vec<_> = positions.collect();
        let executed: Vec<u64> = self
            .world
            .pids()
            .map(|p| self.world.executions.executed(p))
            .collect();
        let in_force = self.controller.in_force();
        let controller = self.controller.waits_for(&self.world);
        let invariant = if outstanding > 0 {
            Invariant::Liveness
        } else {
            Invariant::Convergence
        };
        self.world.findings.now = self.world.queue.now();
        let executions = &self.world.executions;
        executions.check_told(&mut self.world.findings);
        if outstanding == 0 {
            executions.check_all_or_nothing(&mut self.world.findings);
        }
        self.world.findings.report(invariant, || {
            format!(
                "{outstanding} commands are outstanding, replicas are at {positions:?} of \
                 {executed:?}, an epoch in force: {in_force}{controller}"
            )
        });
    }

    pub(super) fn check_history(&mut self) {
        for pid in self.world.pids() {
            let expected = self.world.executions.contents(pid);
            let differs = |r: &&ReplicaHost<G>| r.store(pid.into()).contents() != expected;
            let different = self.staying_replicas().filter(differs);
            let different: Vec<_> = different.map(|r| r.host.name).collect();
            for name in different {
                self.world.findings.report(Invariant::Convergence, || {
                    format!("{name} ends with other contents in partition {pid}")
                });
            }
        }
        let executions = &self.world.executions;
        executions.check_all_or_nothing(&mut self.world.findings);
        // Commands that were given up had an effect for a while, and then none.
        if executions.has_given_up() {
            return;
        }
        let reads = &self.world.reads;
        let history = &self.world.history;
        let asked = |id: u64| {
            let operation = &history[id as usize];
            (operation.call, operation.answer.map(|(at, _)| at))
        };
        let findings = &mut self.world.findings;
        self.world.executions.check_reads(reads, asked, findings);
        let executions = &self.world.executions;
        let when = |at: usize| asked(at as u64);
        if executions.has_spanning() {
            if !has_no_circle(&executions.histories(), when) {
                self.world.findings.report(Invariant::Order, || {
                    "no order of all commands is that of each partition and fits what clients saw"
                        .into()
                });
            }
            return;
        }
        // A key belongs to one partition, so partitions can be checked one after the other. For
        // some seeds the search runs although the claim holds, to check the claim.
        let explained = self.claim_holds();
        if explained && self.world.scenario.seed % 64 != 0 {
            return;
        }
        match linearizability::check(&self.world.history) {
            Linearizable::Yes => {}
            Linearizable::Unknown { .. } => self.world.findings.undecided = !explained,
            Linearizable::No { key } => self.report_history(key),
        }
    }

    fn report_history(&mut self, key: u64) {
        self.world.findings.report(Invariant::Linearizable, || {
            let of_key = self.world.history.iter().filter(|o| o.key == key);
            let lines: Vec<String> = of_key.map(|o| format!("{o:?}")).collect();
            format!(
                "no order explains what clients saw of key {} in partition {}:\n{}",
                key >> 8,
                key & 0xff,
                lines.join("\n")
            )
        });
    }

    /// Returns whether the order in which the replicas executed explains what clients saw.
    fn claim_holds(&self) -> bool {
        let order = self.world.executions.order();
        let history = &self.world.history;
        self.world.pids().all(|pid| {
            let here = |at: &usize| history[*at].key & 0xff == u64::from(pid);
            let numbers: Vec<usize> = (0..history.len()).filter(here).collect();
            let place = |at: &usize| numbers.binary_search(at).ok();
            let order: Vec<usize> = order.iter().filter_map(place).collect();
            let history: Vec<_> = numbers.iter().map(|at| history[*at]).collect();
            linearizability::explains(&order, &history)
        })
    }
}
