// SPDX-License-Identifier: Apache-2.0
//! A node that runs a sequencer.

use control::{Message, Views};
use paxos::nopaxos::Sequencer;
use paxos::{Packet, Program, Verdict};

use super::host::Host;
use super::inconsistent_stamps::InconsistentStamps;
use super::layout::{Endpoint, NodeIndex};
use super::mutation::Mutation;
use super::world::{Outgoing, Sender, World};
use crate::observe::Observed;

/// A sequencer, or a spare one.
pub struct SequencerHost {
    /// The machine.
    pub host: Host,
    role: Option<Sequencer>,
    nonce: u64,
    out: Outgoing,
    /// For mutations, the program that it was given, and a command that waits for another one.
    programmed: Option<Program>,
    inconsistent_stamps: InconsistentStamps,
}

impl SequencerHost {
    /// Returns a machine without a process.
    pub fn new(host: Host) -> SequencerHost {
        SequencerHost {
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
        if self.is_up() {
            return;
        }
        self.host.start(world);
        let keeps_nonce = world.mutated(Mutation::SequencerBeginsAgain) && self.nonce != 0;
        if !keeps_nonce {
            self.nonce = world.rng.nonce();
        }
        let nonce = self.nonce;
        world.observe(self.host.at, Observed::SequencerStarted { nonce });
        let mut sequencer = Sequencer::new(self.host.deployment(world), self.nonce);
        if let Some(program) = self.programmed.as_ref().filter(|_| keeps_nonce) {
            let _ = sequencer.program(program);
        }
        self.role = Some(sequencer);
    }

    /// Kills the process.
    pub fn crash(&mut self) {
        self.role = None;
        // A sequencer stores nothing.
        self.host.kept = Views::default();
        self.inconsistent_stamps = InconsistentStamps::default();
    }

    /// Handles an arriving control message.
    pub fn control(&mut self, world: &mut World, from: NodeIndex, message: &Message) {
        let Some(sequencer) = self.role.as_mut() else {
            return;
        };
        if let Message::RecordRequest { group } = message {
            self.host.tell_record(world, from, *group);
        } else if let Some((_, program)) = message.program() {
            if sequencer.program(&program).is_ok() {
                world.observe(self.host.at, Observed::Programmed(&program));
                self.programmed = Some(program);
            }
        } else if let Message::View(view) = message {
            // A sequencer counts nothing by members, so it ignores a view that contradicts another.
            let newer = self.host.take_view(world, view).unwrap_or(false);
            if let Some(session) = view.begun().filter(|_| newer) {
                sequencer.retire(session);
                world.observe(self.host.at, Observed::Retired(session));
            }
        }
    }

    /// Handles an arriving packet.
    pub fn packet(
        &mut self,
        world: &mut World,
        from: Endpoint,
        packet: &Packet<'_>,
        damaged: bool,
    ) -> Option<Verdict> {
        let sequencer = self.role.as_mut()?;
        world.observe(self.host.at, Observed::Received(packet));
        let watched = (damaged || world.steps % 64 == 0).then(|| sequencer.clone());
        let verdict = sequencer.step(packet, &mut self.out);
        if let Some(before) = watched {
            world.judge(self.host.endpoint(0), damaged, verdict, || {
                before == *sequencer
            });
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
}
