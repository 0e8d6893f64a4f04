// SPDX-License-Identifier: Apache-2.0
//! A node that runs a learner, which counts votes for the replicas and stores nothing.

use control::Message;
use paxos::{Learner, Packet, Reason, Time, Verdict};

use super::host::Host;
use super::layout::Endpoint;
use super::mutation::{self, Mutation};
use super::world::{GROUP, Outgoing, Sender, World};
use crate::observe::Observed;
use crate::queue::MILLISECOND;

/// The time after which views are asked for again.
const ASK_AGAIN: Time = 20 * MILLISECOND;

/// A learner.
pub struct LearnerHost {
    /// The machine.
    pub host: Host,
    role: Option<Learner>,
    out: Outgoing,
    asked_at: Time,
}

impl LearnerHost {
    /// Returns a machine without a process.
    pub fn new(host: Host) -> LearnerHost {
        LearnerHost {
            host,
            role: None,
            out: Outgoing::default(),
            asked_at: 0,
        }
    }

    /// Returns whether a process runs.
    pub fn is_up(&self) -> bool {
        self.role.is_some()
    }

    /// Starts a process that has counted nothing and knows no epoch.
    pub fn start(&mut self, world: &mut World) {
        if self.is_up() {
            return;
        }
        self.host.start(world);
        self.asked_at = 0;
        let slots = world.scenario.slots.into();
        self.role = Some(Learner::new(self.host.deployment(world), slots));
    }

    /// Kills the process.
    pub fn crash(&mut self) {
        self.role = None;
    }

    /// Handles an arriving packet.
    pub fn packet(
        &mut self,
        world: &mut World,
        from: Endpoint,
        packet: &Packet<'_>,
        damaged: bool,
    ) -> Option<Verdict> {
        let learner = self.role.as_mut()?;
        world.observe(self.host.at, Observed::Received(packet));
        let at = self.host.endpoint(0);
        let watched = (damaged || world.steps % 64 == 0).then(|| learner.clone());
        let verdict = learner.step(packet, &mut self.out);
        if let Some(before) = watched {
            world.judge(at, damaged, verdict, || before == *learner);
        }
        let twice = Mutation::LearnerNodeCountsTwice;
        if let Some((header, value)) = mutation::second_vote(world, twice, packet) {
            let forged = Packet {
                header,
                tag: None,
                value: &value,
            };
            let _ = learner.step(&forged, &mut self.out);
        }
        world.post(at, Sender::Learner, Some(from), None, &self.out);
        self.out.clear();
        if verdict == Verdict::Dropped(Reason::UnknownEpoch) {
            self.ask_for_view(world);
        }
        Some(verdict)
    }

    fn ask_for_view(&mut self, world: &mut World) {
        let now = self.host.now(world);
        if now >= self.asked_at + ASK_AGAIN {
            self.asked_at = now;
            world.control(self.host.at, 0, Message::ViewRequest { group: GROUP });
        }
    }

    /// Handles an arriving control message.
    pub fn control(&mut self, world: &mut World, message: &Message) {
        let Some(learner) = self.role.as_mut() else {
            return;
        };
        let Message::View(view) = message else {
            return;
        };
        match self.host.take_view(world, view) {
            Ok(true) => {
                for epoch in view.begun_epochs() {
                    learner.learn(&epoch.configuration());
                }
            }
            Ok(false) => {}
            Err(why) => {
                world.note(|_| format!("stops    {}: {why}", self.host.name));
                self.crash();
            }
        }
    }
}
