// SPDX-License-Identifier: Apache-2.0
//! A node that runs a leader.

use control::{Message, Views};
use paxos::{Leader, Packet, Program, Verdict};

use super::host::Host;
use super::inconsistent_stamps::InconsistentStamps;
use super::layout::{Endpoint, NodeIndex};
use super::mutation::{self, Mutation};
use super::world::{Outgoing, Sender, World};
use crate::observe::Observed;

/// A leader or a backup leader.
pub struct LeaderHost {
    /// The machine.
    pub host: Host,
    role: Option<Leader>,
    nonce: u64,
    out: Outgoing,
    /// For a mutation, the program that it was given, which outlives its memory.
    programmed: Option<Program>,
    /// For a mutation, a command that waits for another one.
    inconsistent_stamps: InconsistentStamps,
}

impl LeaderHost {
    /// Returns a machine without a process.
    pub fn new(host: Host) -> LeaderHost {
        LeaderHost {
            host,
            role: None,
            nonce: 0,
            out: Outgoing::default(),
            programmed: None,
            inconsistent_stamps: InconsistentStamps::default(),
        }
    }

    /// Returns whether a process runs.
    pub fn is_up(&self) -> bool {
        self.role.is_some()
    }

    /// Starts a process with an empty memory.
    pub fn start(&mut self, world: &mut World) {
        if self.is_up() || !world.members.is_in(self.host.at) {
            return;
        }
        self.host.start(world);
        let keeps_nonce = world.mutated(Mutation::LeaderReusesRound) && self.nonce != 0;
        if !keeps_nonce {
            self.nonce = world.rng.nonce();
        }
        let mut leader = Leader::new(self.host.deployment(world), self.nonce);
        if let Some(program) = self.programmed.as_ref().filter(|_| keeps_nonce) {
            let _ = leader.program(program);
        }
        self.role = Some(leader);
        let nonce = self.nonce;
        world.observe(self.host.at, Observed::LeaderStarted { nonce });
    }

    /// Kills the process.
    pub fn crash(&mut self) {
        self.role = None;
        // A leader stores nothing.
        self.host.kept = Views::default();
        self.inconsistent_stamps = InconsistentStamps::default();
    }

    /// Handles an arriving packet.
    pub fn packet(
        &mut self,
        world: &mut World,
        from: Endpoint,
        packet: &Packet<'_>,
        damaged: bool,
    ) -> Option<Verdict> {
        let leader = self.role.as_mut()?;
        world.observe(self.host.at, Observed::Received(packet));
        let watched = (damaged || world.steps % 64 == 0).then(|| leader.clone());
        let verdict = leader.step(packet, &mut self.out);
        if let Some(before) = watched {
            world.judge(self.host.endpoint(0), damaged, verdict, || {
                before == *leader
            });
        }
        if let Some(header) = mutation::refused_by_another(world, &packet.header) {
            let again = Packet { header, ..*packet };
            let _ = leader.step(&again, &mut self.out);
        }
        if world.mutated(Mutation::StampsCrosswise) {
            self.inconsistent_stamps.spoil(&mut self.out);
        }
        let at = self.host.endpoint(0);
        let who = Sender::Proposer(self.host.process);
        world.post(at, who, Some(from), Some(self.host.at), &self.out);
        self.out.clear();
        Some(verdict)
    }

    /// Handles an arriving control message.
    pub fn control(&mut self, world: &mut World, from: NodeIndex, message: &Message) {
        let Some(leader) = self.role.as_mut() else {
            return;
        };
        if let Message::RecordRequest { group } = message {
            self.host.tell_record(world, from, *group);
            return;
        }
        if let Some((_, program)) = message.program() {
            if leader.program(&program).is_ok() {
                world.observe(self.host.at, Observed::Programmed(&program));
                self.programmed = Some(program);
            }
            return;
        }
        let Message::View(view) = message else {
            return;
        };
        // A leader counts nothing by configurations, so it ignores a view that contradicts another.
        let newer = self.host.take_view(world, view).unwrap_or(false);
        if let Some(epoch) = view.begun().filter(|_| newer) {
            leader.retire(epoch);
            world.observe(self.host.at, Observed::Retired(epoch));
        }
    }
}
