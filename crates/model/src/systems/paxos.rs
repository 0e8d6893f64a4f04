// SPDX-License-Identifier: Apache-2.0
//! Clusters that agree by Paxos: leaders, acceptors, learners, repairing hosts, and the controller
//! with its candidates.
//!
//! `start.rs`: how a cluster begins; `step.rs`: what an actor makes of a message; `once.rs`: what
//! happens at most once.

mod one_time_events;
mod start;
mod step;

use paxos::NodeId;

use super::{Happened, Reached, System};
use crate::actor::{Actor, Outputs};
use crate::bounds::Bounds;
use crate::cluster::Cluster;
use crate::explore::Fingerprint;
use crate::judge::Judge;
use crate::mutation::Mutation;
use crate::network::{ActorId, Message, MessageId, Sent};

/// The model of clusters with Paxos, as this module describes.
pub struct Paxos {
    bounds: Bounds,
    mutation: Option<Mutation>,
    judge: Judge,
}

impl Cluster<Paxos> {
    /// Creates the cluster within `bounds`, with a deliberate mistake if one is given.
    pub fn new(bounds: &Bounds, mutation: Option<Mutation>) -> Cluster<Paxos> {
        Cluster::of(Paxos {
            bounds: bounds.clone(),
            mutation,
            judge: Judge::default(),
        })
    }
}

impl System for Paxos {
    type Actor = Actor;

    fn fingerprint(actor: &Actor) -> Fingerprint {
        actor.fingerprint()
    }

    fn places(&self) -> usize {
        self.bounds.places()
    }

    fn node(&self, place: ActorId) -> NodeId {
        self.bounds.node(place)
    }

    fn symmetries(&self) -> Vec<Vec<u8>> {
        let mut symmetries = self.bounds.symmetries();
        // Mistakes name acceptors.
        if self.mutation.is_some() {
            symmetries.truncate(1);
        }
        symmetries
    }

    fn exchanged(&self, way: &[u8], message: Message) -> Message {
        self.bounds.exchanged(way, message)
    }

    fn first_actors(&mut self) -> Vec<Actor> {
        self.begin()
    }

    fn first_messages(&self) -> Vec<Message> {
        self.requests()
    }

    fn take(&self, actor: &Actor, message: &Message) -> Happened<Actor> {
        self.step(actor, message.payload.clone())
    }

    fn messages_of(
        &self,
        place: ActorId,
        sender: ActorId,
        after: &Actor,
        out: Outputs,
    ) -> Vec<Message> {
        self.post(place, sender, after, out)
    }

    fn locals(&self) -> usize {
        self.bounds.locals.len()
    }

    fn place_of_local(&self, at: usize) -> ActorId {
        self.place_of(&self.bounds.locals[at])
    }

    fn repeats(&self, _: usize) -> bool {
        false
    }

    fn may_happen(&self, at: usize, used: u32, sent: &Sent) -> bool {
        self.is_possible(at, used, sent)
    }

    fn happen(&self, at: usize, actor: &Actor) -> Happened<Actor> {
        let mut after = actor.clone();
        let mut out = Outputs::default();
        self.carry_out(&self.bounds.locals[at], &mut after, &mut out);
        Happened {
            after,
            out,
            flaw: None,
        }
    }

    fn describe_local(&self, at: usize) -> String {
        format!("{:?}", self.bounds.locals[at])
    }

    fn note(&mut self, id: MessageId, message: &Message) {
        self.judge.note(&self.bounds, id, message);
    }

    fn flaw(&mut self, reached: &Reached<'_, Actor>) -> Option<String> {
        let Paxos { bounds, judge, .. } = self;
        let sent = reached.sent;
        let mut fresh = reached.fresh.iter();
        if let Some(flaw) = fresh.find_map(|id| judge.flaw_of_message(*id, sent)) {
            return Some(flaw);
        }
        let mut changed = reached.changed.iter();
        changed.find_map(|place| match reached.actor(*place) {
            Actor::Acceptor(acceptor) => judge
                .flaw_of_memory(reached.numbers[*place], acceptor, sent)
                .or_else(|| judge.flaw_of_trim(bounds, acceptor.trim(0), sent)),
            Actor::Leader(leader) => judge.flaw_of_trim(bounds, leader.trimmed(0), sent),
            _ => None,
        })
    }

    fn seen(&self) -> Vec<(&'static str, u64)> {
        self.judge.seen()
    }
}
