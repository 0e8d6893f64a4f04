// SPDX-License-Identifier: Apache-2.0
//! Clusters that agree by NOPaxos: sequencers, replicas with their receivers, the controller with
//! its change of session, and a client that counts answers.
//!
//! Whatever a replica's timers, the store or another replica may make it do, it may do at any
//! moment: it goes to a view ([`Local::Go`]), asks and synchronises ([`Local::Tick`]), or gives a
//! slot up ([`Local::GiveUp`]).

pub mod actor;
pub mod bounds;
mod judge;
pub mod mutation;

use paxos::nopaxos::{Sequencer, Stage, view};
use paxos::{Header, MsgType, NodeId, To};

use self::actor::{Actor, CONTROLLER, Client, Control, Host, LATER, NOW, program, settle_all};
use self::bounds::{Bounds, Local};
use self::judge::{Judge, flaw_of_step};
use self::mutation::{Mutation, falsify_input, falsify_step};
use super::{Happened, Reached, System};
use crate::actor::Outputs;
use crate::explore::Fingerprint;
use crate::network::{ActorId, Message, MessageId, Payload, Sent, mask};

/// The model of clusters with NOPaxos, as this module describes.
pub struct NoPaxos {
    bounds: Bounds,
    locals: Vec<Local>,
    mutation: Option<Mutation>,
    judge: Judge,
}

impl NoPaxos {
    /// Creates the cluster within `bounds`, with a deliberate mistake if one is given.
    pub fn new(bounds: &Bounds, mutation: Option<Mutation>) -> NoPaxos {
        NoPaxos {
            bounds: bounds.clone(),
            locals: bounds.locals(),
            mutation,
            judge: Judge::default(),
        }
    }

    fn stranger(&self, place: ActorId, incarnation: u64) -> Host {
        let b = &self.bounds;
        let nonce = b.member(place, incarnation).nonce;
        let mut host = Host::new(b.deployment(place), nonce, b.slots, b.syncs);
        host.keeps = self.mutation == Some(Mutation::NoRollback);
        host
    }

    /// Returns replicas that are normal in the first session's first view.
    fn replicas(&self) -> Vec<Host> {
        let mut first = self.bounds.session(1);
        first.stage = Stage::Writing;
        let places = self.bounds.replica_places();
        let mut hosts: Vec<Host> = places.map(|p| self.stranger(p, 1)).collect();
        let mut sent = Vec::new();
        for host in &mut hosts {
            let told = host.replica.configure(std::slice::from_ref(&first));
            told.expect("bounds make sense");
            let mut out = Outputs::default();
            host.tick(NOW, &mut out);
            sent.push((host.replica.member().node, out.packets));
        }
        settle_all(&mut hosts, sent);
        first.stage = Stage::Active { by: view::first(1) };
        for host in &mut hosts {
            let told = host.replica.configure(std::slice::from_ref(&first));
            told.expect("bounds make sense");
            assert_eq!(host.replica.last_normal(), view::first(1));
        }
        hosts
    }

    fn sequencer(&self, session: u32) -> Sequencer {
        let b = &self.bounds;
        let deployment = b.deployment(b.sequencer_place(session));
        let mut sequencer = Sequencer::new(deployment, b.sequencer_nonce(session));
        if session == 1 {
            let program = program(&b.session(1), vec![0], b.end());
            sequencer.program(&program).expect("bounds make sense");
        }
        sequencer
    }

    /// Returns a client's request: each session's sequencer gets another one's, so that one can
    /// tell their messages apart.
    fn request(&self, client: u64, to: ActorId) -> Message {
        Message::request(client, self.bounds.client_place(), 1 << to)
    }

    /// Returns what the first session's sequencer has stamped.
    fn stamped(&self) -> Vec<Message> {
        let mut sequencer = Actor::Sequencer(self.sequencer(1));
        let place = self.bounds.sequencer_place(1);
        let request = self.request(1, place);
        let mut stamped = Vec::new();
        for _ in 0..self.bounds.slots {
            let out = sequencer.receive(&request.payload);
            stamped.extend(self.messages_of(place, request.from, &sequencer, out));
        }
        stamped
    }

    fn receivers(&self, to: To, sender: ActorId, header: &Header) -> u32 {
        let b = &self.bounds;
        match to {
            To::Replicas => mask(b.replica_places()),
            To::Node(node) => b.place_of(node).map_or(0, |place| 1 << place),
            To::Sender => 1 << sender,
            // Answers.
            _ if b.client && matches!(header.msgtype, MsgType::Reply | MsgType::Ack) => {
                1 << b.client_place()
            }
            _ => 0,
        }
    }

    fn carry_out(&self, local: Local, actor: &mut Actor, out: &mut Outputs) {
        match (local, &mut *actor) {
            (Local::Tick(_), Actor::Replica(host)) => host.tick(NOW, out),
            (Local::GiveUp(_), Actor::Replica(host)) => {
                if host.replica.leads() {
                    host.tick(LATER, out);
                }
            }
            (Local::Go(_, view), Actor::Replica(host)) => host.go(view, out),
            (Local::Open, Actor::Control(control)) => control.open(self.bounds.session(2), out),
            (Local::Crash(place), Actor::Replica(host)) => {
                let forgets = self.mutation == Some(Mutation::Forgets);
                let known = host.replica.sessions().clone();
                **host = self.stranger(place, if forgets { 1 } else { 2 });
                // The store tells it what it told the one before.
                let told: Vec<_> = (1..).map_while(|n| known.get(n).cloned()).collect();
                host.replica.configure(&told).expect("the store's own");
            }
            _ => unreachable!("a local happens at its own place"),
        }
    }
}

impl System for NoPaxos {
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

    /// Members lead in turn, so no two are alike.
    fn symmetries(&self) -> Vec<Vec<u8>> {
        vec![self.bounds.replica_places().collect()]
    }

    fn exchanged(&self, _: &[u8], message: Message) -> Message {
        message
    }

    fn first_actors(&mut self) -> Vec<Actor> {
        let b = &self.bounds;
        let mut first = b.session(1);
        first.stage = Stage::Active { by: view::first(1) };
        let sessions: Vec<_> = (1..=b.views.len() as u32).map(|n| b.session(n)).collect();
        let replicas = self.replicas().into_iter();
        let replicas = replicas.map(|host| Actor::Replica(Box::new(host)));
        let sequencers = [1, 2].map(|session| Actor::Sequencer(self.sequencer(session)));
        let control = Actor::Control(Control::new(first, b.end()));
        let client = Actor::Client(Client::new(&sessions));
        replicas
            .chain(sequencers)
            .chain([control, client])
            .collect()
    }

    fn first_messages(&self) -> Vec<Message> {
        let b = &self.bounds;
        let mut messages = match b.stamps {
            true => vec![
                self.request(1, b.sequencer_place(1)),
                self.request(2, b.sequencer_place(1)),
            ],
            false => self.stamped(),
        };
        if b.views.len() > 1 {
            messages.push(self.request(3, b.sequencer_place(2)));
        }
        if self.mutation == Some(Mutation::StampsAgain) {
            let first = program(&b.session(1), vec![0], b.end());
            messages.push(Message {
                payload: Payload::Program(first),
                from: b.control_place(),
                to: 1 << b.sequencer_place(1),
                memory: 0,
            });
        }
        messages
    }

    fn take(&self, before: &Actor, message: &Message) -> Happened<Actor> {
        let mut payload = message.payload.clone();
        if let Some(mutation) = self.mutation {
            falsify_input(mutation, before, &mut payload);
        }
        let mut after = before.clone();
        let mut out = after.receive(&payload);
        if let Some(mutation) = self.mutation {
            let payload = Some(&payload);
            falsify_step(
                mutation,
                &self.bounds,
                before,
                &mut after,
                payload,
                &mut out,
            );
        }
        let flaw = flaw_of_step(before, &after, &out);
        Happened { after, out, flaw }
    }

    /// Returns the messages for an actor's outputs. VIEW_CHANGE_REQ makes a replica go to a view,
    /// which it may do at any moment; REJECT concerns nobody here.
    fn messages_of(
        &self,
        place: ActorId,
        sender: ActorId,
        after: &Actor,
        out: Outputs,
    ) -> Vec<Message> {
        let memory = after.replica().map_or(0, |r| r.member().nonce);
        let mut messages: Vec<Message> = Vec::new();
        let mut post = |payload: Payload, to: u32| {
            // A message counts as one, no matter if it was sent to each receiver or to all.
            match messages.iter_mut().find(|m| m.payload == payload) {
                Some(same) => same.to |= to,
                None => messages.push(Message {
                    payload,
                    from: place,
                    to,
                    memory,
                }),
            }
        };
        for (to, header, value) in out.packets.0 {
            let is_moot = matches!(header.msgtype, MsgType::ViewChangeReq | MsgType::Reject);
            let to = self.receivers(to, sender, &header);
            if !is_moot {
                post(Payload::Packet { header, value }, to);
            }
        }
        for (node, payload) in out.orders {
            let to = match node {
                CONTROLLER => 1 << self.bounds.control_place(),
                node => self.bounds.place_of(node).map_or(0, |place| 1 << place),
            };
            post(payload, to);
        }
        for (inst, value) in out.delivered {
            post(Payload::Delivered { inst, value }, 0);
        }
        messages
    }

    fn locals(&self) -> usize {
        self.locals.len()
    }

    fn place_of_local(&self, at: usize) -> ActorId {
        match self.locals[at] {
            Local::Tick(place) | Local::GiveUp(place) | Local::Go(place, _) => place,
            Local::Crash(place) => place,
            Local::Open => self.bounds.control_place(),
        }
    }

    fn repeats(&self, at: usize) -> bool {
        !matches!(self.locals[at], Local::Open | Local::Crash(_))
    }

    /// Returns true if the event may happen now. A session that names the next memory comes after
    /// the loss of the one before.
    fn may_happen(&self, at: usize, used: u32, _: &Sent) -> bool {
        let crash = self
            .locals
            .iter()
            .position(|l| matches!(l, Local::Crash(_)));
        self.locals[at] != Local::Open || crash.is_none_or(|crash| used >> crash & 1 == 1)
    }

    fn happen(&self, at: usize, before: &Actor) -> Happened<Actor> {
        let local = self.locals[at];
        let mut after = before.clone();
        let mut out = Outputs::default();
        self.carry_out(local, &mut after, &mut out);
        if let Some(mutation) = self.mutation {
            falsify_step(mutation, &self.bounds, before, &mut after, None, &mut out);
        }
        // A memory that is lost keeps nothing.
        let flaw = match local {
            Local::Crash(_) => None,
            _ => flaw_of_step(before, &after, &out),
        };
        Happened { after, out, flaw }
    }

    fn describe_local(&self, at: usize) -> String {
        let place = self.place_of_local(at);
        match self.locals[at] {
            Local::Tick(_) => format!("{} does what is due", self.node(place)),
            Local::GiveUp(_) => format!("{} gives up what it asked for", self.node(place)),
            Local::Go(_, view) => format!("{} goes to {view}", self.node(place)),
            Local::Open => "the controller opens session 2".into(),
            Local::Crash(_) => format!("{} loses its memory", self.node(place)),
        }
    }

    fn note(&mut self, id: MessageId, message: &Message) {
        self.judge.note(&self.bounds, id, message);
    }

    fn flaw(&mut self, reached: &Reached<'_, Actor>) -> Option<String> {
        self.judge.flaw(&self.bounds, reached)
    }

    fn seen(&self) -> Vec<(&'static str, u64)> {
        self.judge.seen()
    }
}
