//! A cluster of real roles within bounds, as something to explore.
//!
//! A state is: for each place the number of its actor's state, which once-only things have
//! happened, and the set of messages sent. Roles are deterministic, so each (actor state, input)
//! runs the role once; afterwards the result is looked up.
//!
//! **Symmetry.** Acceptors that the bounds don't tell apart can be exchanged. States that differ by
//! such an exchange only are one state: the fingerprint is the least of those of all its exchanged
//! forms. How to exchange acceptors inside a candidate or a recover isn't for us to know; but each
//! actor's state came from an earlier one by an input, so its exchanged form comes from the exchanged
//! earlier one by the exchanged input, which again runs nothing but the real code.
//!
//! **Fingerprints** are sums of one 128-bit number for each message sent and each actor's state, so
//! a step adds a few numbers instead of hashing a state.

use std::collections::HashMap;

use paxos::wire::value::Rejection;
use paxos::{
    Acceptor, Enable, Flags, Header, Leader, Learner, MsgType, Program, Reason, Recover,
    RecoverSettings, To, Verdict,
};

use crate::actor::{Actor, Control, Outputs, Repairer, record};
use crate::bounds::{Bounds, Local, leader_nonce, memory_nonce};
use crate::explore::{Fingerprint, Mixer, Model};
use crate::judge::Judge;
use crate::mutation::{Mutation, falsify_input, falsify_step};
use crate::network::{Message, MessageId, Messages, Payload, Place, describe};

/// Places that a state has room for.
const MAX_PLACES: usize = 10;

/// As many ways as there are to exchange three acceptors.
const MAX_SYMMETRIES: usize = 6;

/// A state of the whole cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct State {
    /// Which of the bounds' `locals` have happened: one bit each.
    used: u32,
    /// By place: number of the actor's state.
    actors: [u32; MAX_PLACES],
    /// Ascending.
    sent: Vec<MessageId>,
    /// By symmetry: the fingerprint of the exchanged form.
    prints: [Fingerprint; MAX_SYMMETRIES],
}

/// Where an actor's state came from.
#[derive(Clone, Copy, Debug)]
enum Origin {
    Start,
    Message(u32, MessageId),
    Local(u32, u8),
}

/// What happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A message arrives.
    Deliver(Place, MessageId),
    /// One of the bounds' `locals` happens.
    Local(u8),
}

/// What an actor makes of an input.
#[derive(Clone, Debug)]
struct Step {
    next: u32,
    /// Ascending.
    sends: Box<[MessageId]>,
    flaw: Option<Box<str>>,
}

/// In the tables: not yet tried.
const UNKNOWN: u32 = 0;
/// In the tables: changes nothing, sends nothing.
const NOTHING: u32 = 1;
const FIRST: u32 = 2;

/// The model.
pub struct Cluster {
    bounds: Bounds,
    mutation: Option<Mutation>,
    messages: Messages,
    /// All actors' states that were ever reached, numbered.
    actors: Vec<Actor>,
    origins: Vec<(Place, Origin)>,
    numbers: HashMap<(Place, Fingerprint), u32>,
    symmetries: Vec<Vec<u8>>,
    /// By symmetry and number: the number of the exchanged form.
    exchanged_actors: Vec<HashMap<u32, u32>>,
    /// By symmetry and number: what the exchanged form adds to a fingerprint; 0 = not looked up.
    actor_prints: Vec<Vec<Fingerprint>>,
    message_prints: Vec<Vec<Fingerprint>>,
    exchanged_messages: Vec<Vec<MessageId>>,
    steps: Vec<Step>,
    /// By actor's number, then by message: a place in `steps`, or see the constants.
    taken: Vec<Vec<u32>>,
    happened: HashMap<(u32, u8), u32>,
    judge: Judge,
}

impl Cluster {
    /// The cluster within `bounds`, with a deliberate mistake if one is given.
    pub fn new(bounds: &Bounds, mutation: Option<Mutation>) -> Cluster {
        assert!(bounds.places() <= MAX_PLACES && bounds.locals.len() <= 32);
        let mut symmetries = bounds.symmetries();
        // Mistakes name acceptors; with more than three, all exchanges would take too long.
        if mutation.is_some() || symmetries.len() > MAX_SYMMETRIES {
            symmetries.truncate(1);
        }
        Cluster {
            bounds: bounds.clone(),
            mutation,
            messages: Messages::default(),
            actors: Vec::new(),
            origins: Vec::new(),
            numbers: HashMap::new(),
            exchanged_actors: vec![HashMap::new(); symmetries.len()],
            exchanged_messages: vec![Vec::new(); symmetries.len()],
            actor_prints: vec![Vec::new(); symmetries.len()],
            message_prints: vec![Vec::new(); symmetries.len()],
            symmetries,
            steps: Vec::new(),
            taken: Vec::new(),
            happened: HashMap::new(),
            judge: Judge::default(),
        }
    }

    /// Different states of single actors, and different messages.
    pub fn sizes(&self) -> (usize, usize) {
        (self.actors.len(), self.messages.len())
    }

    // ---- The start

    fn first_actors(&mut self) -> Vec<Actor> {
        let b = self.bounds.clone();
        let repairer_nonce = |place: Place| 0x4e00 + u64::from(place);
        let mut actors = Vec::new();
        for place in b.acceptor_places() {
            let nonce = memory_nonce(place, 1);
            let mut acceptor = Acceptor::new(b.deployment(place), b.slots as usize, nonce);
            if !b.unborn {
                acceptor.enable(&self.first_enable(nonce)).expect("bounds");
            }
            actors.push(Actor::Acceptor(acceptor));
        }
        for place in b.leader_places() {
            let leader = place - b.acceptors;
            let mut role = Leader::new(b.deployment(place), leader_nonce(leader, 1));
            if leader == 0 && !b.unborn {
                role.program(&self.first_program()).expect("bounds");
            }
            actors.push(Actor::Leader(role));
        }
        let nonces = b.repairer_places().map(repairer_nonce).collect();
        let mut control = Control::new(b.deployment(b.control_place()), nonces, b.window);
        control.missing_promises = u8::from(self.mutation == Some(Mutation::PromisesOfF));
        if !b.unborn {
            self.activate_first(&mut control);
        }
        let lanes: Vec<u8> = (1..=b.repairers).collect();
        actors.push(Actor::Control(control));
        let configurations: Vec<_> = (1..).map_while(|epoch| b.configuration(epoch)).collect();
        for (place, lane) in b.repairer_places().zip(lanes) {
            let role = Recover::new(RecoverSettings {
                deployment: b.deployment(place),
                pid: 0,
                // Small, so that waiting times have no jitter that would tell states apart.
                retry_after: 1,
                max_open: 4,
                nonce: repairer_nonce(place),
            });
            let mut repairer = Repairer::new(role, configurations.clone());
            if !b.unborn {
                let shared = self.mutation == Some(Mutation::SharedLane);
                let lane = if shared { 1 } else { lane };
                repairer.active(1, lane, &mut Outputs::default());
            }
            actors.push(Actor::Repairer(repairer));
        }
        for place in b.learner_places() {
            let mut learner = Learner::new(b.deployment(place), b.slots as usize);
            configurations.iter().for_each(|c| {
                learner.learn(c);
            });
            actors.push(Actor::Learner(learner));
        }
        actors
    }

    fn first_enable(&self, nonce: u64) -> Enable {
        let one_is_enough = self.mutation == Some(Mutation::TrimByOne);
        Enable {
            epoch: 1,
            nonce,
            trim: vec![0],
            end: vec![0],
            replicas: self.bounds.replicas.clone(),
            g: if one_is_enough { 0 } else { self.bounds.g },
        }
    }

    fn first_program(&self) -> Program {
        Program {
            epoch: 1,
            nonce: leader_nonce(0, 1),
            next: vec![0],
            trimmed: vec![0],
            window: self.bounds.window,
            replicas: self.bounds.replicas.clone(),
            g: self.bounds.g,
        }
    }

    fn activate_first(&self, control: &mut Control) {
        let configuration = self.bounds.configuration(1).expect("the first epoch");
        let handed = control::state::Handed {
            next: vec![0],
            trim: vec![0],
            end: vec![0],
        };
        let store = &mut control.store;
        store.issue(record(&configuration)).expect("a fresh store");
        store.mark_writing(1).expect("just issued");
        store.mark_active(1, handed).expect("just marked writing");
        control.draw_first_lanes();
    }

    fn requests(&self) -> Vec<Message> {
        let leaders = mask(self.bounds.leader_places());
        let request = |client| Message {
            payload: Payload::Packet {
                header: Header {
                    cluster: 1,
                    group: 1,
                    client,
                    request: 1,
                    ..Header::new(MsgType::Request)
                },
                value: Vec::new(),
            },
            from: self.bounds.control_place(),
            to: leaders,
            memory: 0,
        };
        let mut requests: Vec<Message> = (1..=self.bounds.clients).map(request).collect();
        if !self.bounds.unborn && self.mutation == Some(Mutation::LeaderStampsAgain) {
            requests.push(Message {
                payload: Payload::Program(self.first_program()),
                from: self.bounds.control_place(),
                to: 1 << self.bounds.leader_places().start,
                memory: 0,
            });
        }
        requests
    }

    // ---- Numbers

    fn number(&mut self, place: Place, actor: Actor, origin: Origin) -> u32 {
        let key = (place, actor.fingerprint());
        if let Some(&known) = self.numbers.get(&key) {
            return known;
        }
        let number = self.actors.len() as u32;
        self.actors.push(actor);
        self.origins.push((place, origin));
        self.taken.push(Vec::new());
        self.numbers.insert(key, number);
        number
    }

    // ---- Symmetry

    fn exchanged_place(&self, symmetry: usize, place: Place) -> Place {
        let way = &self.symmetries[symmetry];
        way.get(usize::from(place)).copied().unwrap_or(place)
    }

    /// The number of the exchanged form of an actor's state.
    fn exchanged_actor(&mut self, symmetry: usize, number: u32) -> u32 {
        if symmetry == 0 {
            return number;
        }
        if let Some(&known) = self.exchanged_actors[symmetry].get(&number) {
            return known;
        }
        let (place, origin) = self.origins[number as usize];
        let place = self.exchanged_place(symmetry, place);
        let exchanged = match origin {
            // Actors begin in the order of their places.
            Origin::Start => u32::from(place),
            Origin::Message(from, id) => {
                let from = self.exchanged_actor(symmetry, from);
                let id = self.exchanged_message(symmetry, id);
                let step = self.deliver(place, from, id);
                self.next_of(step, from)
            }
            Origin::Local(from, at) => {
                let from = self.exchanged_actor(symmetry, from);
                let step = self.happen(at, from);
                self.next_of(step, from)
            }
        };
        self.exchanged_actors[symmetry].insert(number, exchanged);
        exchanged
    }

    fn next_of(&self, step: u32, before: u32) -> u32 {
        match step {
            NOTHING => before,
            step => self.steps[(step - FIRST) as usize].next,
        }
    }

    fn exchanged_message(&mut self, symmetry: usize, id: MessageId) -> MessageId {
        if symmetry == 0 {
            return id;
        }
        let known = self.exchanged_messages[symmetry].get(usize::from(id));
        if let Some(&known) = known.filter(|known| **known != MessageId::MAX) {
            return known;
        }
        let message = self.messages.get(id).clone();
        let message = self.bounds.exchanged(&self.symmetries[symmetry], message);
        let exchanged = self.post(message);
        let row = &mut self.exchanged_messages[symmetry];
        if row.len() <= usize::from(id) {
            row.resize(usize::from(id) + 1, MessageId::MAX);
        }
        row[usize::from(id)] = exchanged;
        exchanged
    }

    fn print_of_message(&mut self, symmetry: usize, id: MessageId) -> Fingerprint {
        let at = usize::from(id);
        if let Some(&known) = self.message_prints[symmetry].get(at).filter(|p| **p != 0) {
            return known;
        }
        let exchanged = self.exchanged_message(symmetry, id);
        remember(
            &mut self.message_prints[symmetry],
            at,
            print(1, exchanged.into()),
        )
    }

    fn print_of_actor(&mut self, symmetry: usize, number: u32) -> Fingerprint {
        let at = number as usize;
        if let Some(&known) = self.actor_prints[symmetry].get(at).filter(|p| **p != 0) {
            return known;
        }
        let exchanged = self.exchanged_actor(symmetry, number);
        remember(
            &mut self.actor_prints[symmetry],
            at,
            print(2, exchanged.into()),
        )
    }

    /// The fingerprints after a step.
    fn prints_after(
        &mut self,
        state: &State,
        place: Place,
        step: u32,
        used: u32,
    ) -> [Fingerprint; MAX_SYMMETRIES] {
        let before = state.actors[usize::from(place)];
        let next = self.next_of(step, before);
        let mut prints = state.prints;
        for (symmetry, print_of) in prints.iter_mut().enumerate().take(self.symmetries.len()) {
            let mut sum = *print_of;
            if next != before {
                let removed = self.print_of_actor(symmetry, before);
                let added = self.print_of_actor(symmetry, next);
                sum = sum.wrapping_sub(removed).wrapping_add(added);
            }
            if used != state.used {
                sum = sum
                    .wrapping_sub(print(3, state.used.into()))
                    .wrapping_add(print(3, used.into()));
            }
            if step != NOTHING {
                for at in 0..self.steps[(step - FIRST) as usize].sends.len() {
                    let id = self.steps[(step - FIRST) as usize].sends[at];
                    if state.sent.binary_search(&id).is_err() {
                        sum = sum.wrapping_add(self.print_of_message(symmetry, id));
                    }
                }
            }
            *print_of = sum;
        }
        prints
    }

    fn post(&mut self, message: Message) -> MessageId {
        let (id, new) = self.messages.number(message);
        if new {
            let message = self.messages.get(id).clone();
            self.judge.note(&self.bounds, id, &message);
        }
        id
    }

    // ---- Steps

    /// What the actor at `place` makes of a message.
    fn deliver(&mut self, place: Place, actor: u32, id: MessageId) -> u32 {
        let known = self.taken[actor as usize].get(usize::from(id));
        if let Some(&step) = known.filter(|step| **step != UNKNOWN) {
            return step;
        }
        let step = self.try_deliver(place, actor, id);
        let row = &mut self.taken[actor as usize];
        if row.len() <= usize::from(id) {
            row.resize(usize::from(id) + 1, UNKNOWN);
        }
        row[usize::from(id)] = step;
        step
    }

    fn try_deliver(&mut self, place: Place, number: u32, id: MessageId) -> u32 {
        let message = self.messages.get(id).clone();
        let mut payload = message.payload;
        let before = self.actors[number as usize].clone();
        if let Some(mutation) = self.mutation {
            falsify_input(mutation, &self.bounds, &before, &mut payload);
        }
        let mut after = before.clone();
        let mut out = after.receive(&payload);
        if let Some(mutation) = self.mutation {
            falsify_step(mutation, &before, &mut after, &payload, &mut out);
        }
        let flaw = self.flaw_of_step(&before, &after, &payload, &out);
        let origin = Origin::Message(number, id);
        self.keep(place, origin, number, after, message.from, out, flaw)
    }

    /// INV-8, and the alarm that an acceptor raises.
    fn flaw_of_step(
        &self,
        before: &Actor,
        after: &Actor,
        payload: &Payload,
        out: &Outputs,
    ) -> Option<Box<str>> {
        let reason = match out.verdict {
            Some(Verdict::Dropped(reason) | Verdict::Rejected(reason)) => reason,
            _ => return None,
        };
        let sent_more =
            matches!(out.verdict, Some(Verdict::Dropped(_))) && !out.packets.0.is_empty();
        if before.fingerprint() != after.fingerprint() || sent_more {
            return Some(
                format!("INV-8: {payload:?} is refused ({reason:?}) but has effects").into(),
            );
        }
        let alarm = reason == Reason::Conflict;
        alarm.then(|| format!("INV-3: {payload:?} raises the alarm").into())
    }

    #[allow(clippy::too_many_arguments)] // two calls
    fn keep(
        &mut self,
        place: Place,
        origin: Origin,
        number: u32,
        after: Actor,
        sender: Place,
        out: Outputs,
        flaw: Option<Box<str>>,
    ) -> u32 {
        let memory = match &after {
            Actor::Acceptor(acceptor) => acceptor.nonce(),
            _ => 0,
        };
        let next = self.number(place, after, origin);
        let mut sends = Vec::new();
        for (to, header, value) in out.packets.0 {
            let to = self.receivers(to, sender, &header);
            let for_the_record = matches!(header.msgtype, MsgType::Phase2b | MsgType::Phase1b);
            if self.is_moot(place, &header, &value) || to == 0 && !for_the_record {
                continue;
            }
            let payload = Payload::Packet { header, value };
            sends.push((payload, to));
        }
        for (node, payload) in out.orders {
            let to = self.bounds.place_of(node).map_or(0, |place| 1 << place);
            if !self.is_idle_order(&payload) {
                sends.push((payload, to));
            }
        }
        for (inst, value) in out.delivered {
            sends.push((Payload::Delivered { inst, value }, 0));
        }
        let mut sends: Vec<MessageId> = sends
            .into_iter()
            .map(|(payload, to)| {
                self.post(Message {
                    payload,
                    from: place,
                    to,
                    memory,
                })
            })
            .collect();
        sends.sort_unstable();
        sends.dedup();
        if next == number && sends.is_empty() && flaw.is_none() {
            return NOTHING;
        }
        let step = Step {
            next,
            sends: sends.into(),
            flaw,
        };
        self.steps.push(step);
        FIRST + (self.steps.len() - 1) as u32
    }

    /// Messages that can't matter to whom they go, and would only multiply states.
    ///
    /// - A candidate sends QUERY to see votes in its own round; all other answers it drops. Here
    ///   every vote may reach it directly, at any time (see `receivers`), which is no less.
    /// - REJECT(window) and REJECT(not_leader) make a proposer try again. Nothing is ever lost for
    ///   good here, so nobody needs to.
    /// - REJECT(preempted) with a round of no later epoch is ignored by candidates and leaders.
    fn is_moot(&self, from: Place, h: &Header, value: &[u8]) -> bool {
        let range = h.flags.has(Flags::RANGE);
        match h.msgtype {
            MsgType::Query => from == self.bounds.control_place() && !range,
            MsgType::Reject => Rejection::parse(value).is_ok_and(|r| match r.reason {
                Reason::Window | Reason::NotLeader => true,
                Reason::Preempted => h.rnd.is_base() && r.round.epoch() <= h.rnd.epoch(),
                _ => false,
            }),
            _ => false,
        }
    }

    /// Enabling a member that goes on only tells it its replicas again and raises `end`, which
    /// nothing reads any more in this epoch; left out where the replicas stay and nothing is
    /// trimmed, to have fewer states.
    fn is_idle_order(&self, payload: &Payload) -> bool {
        let Payload::Enable(enable) = payload else {
            return false;
        };
        let first = self.bounds.configuration(1);
        let first = first.filter(|_| !self.bounds.unborn);
        let goes_on = |c: &paxos::Configuration| {
            c.acceptors
                .iter()
                .any(|member| member.nonce == enable.nonce)
        };
        !self.bounds.enables_all && first.as_ref().is_some_and(goes_on)
    }

    fn receivers(&self, to: To, sender: Place, header: &Header) -> u32 {
        let b = &self.bounds;
        let leaders = mask(b.leader_places());
        let receivers = match to {
            To::Sender => 1 << sender,
            To::Acceptors => mask(b.acceptor_places()),
            To::Learners => mask(b.learner_places()) | mask(b.repairer_places()),
            To::Leader => leaders,
            To::Node(node) => b.place_of(node).map_or(0, |place| 1 << place),
        };
        match header.msgtype {
            MsgType::Reject if !b.rejects_to_leaders => receivers & !leaders,
            // One message, whether it answers a proposal or a QUERY.
            MsgType::Phase2b => {
                let hosts = mask(b.learner_places()) | mask(b.repairer_places());
                hosts | 1 << b.control_place()
            }
            _ => receivers,
        }
    }

    // ---- What happens once

    fn happen(&mut self, at: u8, actor: u32) -> u32 {
        if let Some(&known) = self.happened.get(&(actor, at)) {
            return known;
        }
        let local = self.bounds.locals[usize::from(at)].clone();
        let place = self.place_of_local(&local);
        let mut after = self.actors[actor as usize].clone();
        let mut out = Outputs::default();
        self.carry_out(&local, &mut after, &mut out);
        let origin = Origin::Local(actor, at);
        let step = self.keep(place, origin, actor, after, place, out, None);
        self.happened.insert((actor, at), step);
        step
    }

    fn place_of_local(&self, local: &Local) -> Place {
        let b = &self.bounds;
        match local {
            Local::Crash { acceptor } => *acceptor,
            Local::CrashLeader { leader } => b.leader_places().start + leader,
            Local::Recover { repairer, .. } | Local::TickRepairer { repairer } => {
                b.repairer_places().start + repairer
            }
            Local::Issue { .. } | Local::TickCandidates | Local::Trim { .. } => b.control_place(),
        }
    }

    fn carry_out(&self, local: &Local, actor: &mut Actor, out: &mut Outputs) {
        match (local, &mut *actor) {
            (Local::Issue { .. }, Actor::Control(control)) => {
                let epoch = control.store.last_epoch() + 1;
                let configuration = self.bounds.configuration(epoch).expect("one of the bounds");
                control.issue(&configuration, out);
            }
            (Local::TickCandidates, Actor::Control(control)) => control.tick(out),
            (Local::Trim { replica, to }, Actor::Control(_)) => {
                let header = Header {
                    cluster: 1,
                    group: 1,
                    inst: *to,
                    swid: *replica,
                    ..Header::new(MsgType::Trim)
                };
                for receivers in [To::Acceptors, To::Leader] {
                    out.packets.0.push((receivers, header, Vec::new()));
                }
            }
            (Local::Crash { .. }, Actor::Acceptor(acceptor)) => {
                let forgets = self.mutation == Some(Mutation::AcceptorForgets);
                let nonce = acceptor.nonce() + u64::from(!forgets);
                *acceptor =
                    Acceptor::new(*acceptor.deployment(), self.bounds.slots as usize, nonce);
                if forgets {
                    let _ = acceptor.enable(&self.first_enable(nonce));
                }
            }
            (Local::CrashLeader { .. }, Actor::Leader(leader)) => {
                let again = self.mutation == Some(Mutation::LeaderStampsAgain);
                *leader = Leader::new(*leader.deployment(), leader.nonce() + u64::from(!again));
            }
            (Local::Recover { inst, .. }, Actor::Repairer(repairer)) => {
                repairer.recover(*inst, out);
            }
            (Local::TickRepairer { .. }, Actor::Repairer(repairer)) => repairer.tick(out),
            _ => unreachable!("a local happens at its own place"),
        }
    }

    /// Whether it may happen now: epochs and ticks come in order, and a replica covers only what
    /// is decided.
    fn may_happen(&self, at: usize, state: &State) -> bool {
        let local = &self.bounds.locals[at];
        let before = &self.bounds.locals[..at];
        let after_others = |same: fn(&Local) -> bool| {
            let mut earlier = before.iter().enumerate().filter(|(_, local)| same(local));
            earlier.all(|(at, _)| state.used >> at & 1 == 1)
        };
        match local {
            Local::Issue { .. } => after_others(|_| true),
            Local::TickCandidates => after_others(|l| *l == Local::TickCandidates),
            Local::TickRepairer { .. } => {
                let mut same = before.iter().enumerate().filter(|(_, l)| *l == local);
                same.all(|(at, _)| state.used >> at & 1 == 1)
            }
            Local::Trim { to, .. } => self.judge.all_decided_below(*to, &state.sent),
            _ => true,
        }
    }

    /// Whether a step leads anywhere, or what is wrong with it.
    fn leads_on(&self, state: &State, place: Place, step: u32) -> Result<bool, String> {
        if step == NOTHING {
            return Ok(false);
        }
        let step = &self.steps[(step - FIRST) as usize];
        if let Some(flaw) = &step.flaw {
            return Err(flaw.to_string());
        }
        let new = |id: &MessageId| state.sent.binary_search(id).is_err();
        Ok(step.next != state.actors[usize::from(place)] || step.sends.iter().any(new))
    }

    /// Where an action happens, its step, and which `locals` have happened then.
    fn look_up(&mut self, state: &State, action: Action) -> (Place, u32, u32) {
        match action {
            Action::Deliver(place, id) => {
                let step = self.deliver(place, state.actors[usize::from(place)], id);
                (place, step, state.used)
            }
            Action::Local(at) => {
                let place = self.place_of_local(&self.bounds.locals[usize::from(at)]);
                let step = self.happen(at, state.actors[usize::from(place)]);
                (place, step, state.used | 1 << at)
            }
        }
    }

    fn least(&self, prints: &[Fingerprint; MAX_SYMMETRIES]) -> Fingerprint {
        let prints = prints[..self.symmetries.len()].iter();
        prints.copied().min().expect("the identity is there")
    }
}

impl Model for Cluster {
    type State = State;
    type Action = Action;

    fn initial(&mut self) -> State {
        let mut actors = [0; MAX_PLACES];
        for (place, actor) in self.first_actors().into_iter().enumerate() {
            actors[place] = self.number(place as Place, actor, Origin::Start);
        }
        let requests = self.requests();
        let mut sent: Vec<MessageId> = requests.into_iter().map(|r| self.post(r)).collect();
        sent.sort_unstable();
        let mut prints = [0; MAX_SYMMETRIES];
        for (symmetry, print_of) in prints.iter_mut().enumerate().take(self.symmetries.len()) {
            let mut sum = print(3, 0);
            for &id in &sent {
                sum = sum.wrapping_add(self.print_of_message(symmetry, id));
            }
            for actor in &actors[..self.bounds.places()] {
                sum = sum.wrapping_add(self.print_of_actor(symmetry, *actor));
            }
            *print_of = sum;
        }
        State {
            used: 0,
            actors,
            sent,
            prints,
        }
    }

    fn successors(
        &mut self,
        state: &State,
        visit: &mut dyn FnMut(Action, Result<Fingerprint, String>),
    ) {
        for &id in &state.sent {
            let mut to = self.messages.get(id).to;
            while to != 0 {
                let place = to.trailing_zeros() as Place;
                to &= to - 1;
                let action = Action::Deliver(place, id);
                let (_, step, used) = self.look_up(state, action);
                match self.leads_on(state, place, step) {
                    Ok(false) => {}
                    Ok(true) => {
                        let prints = self.prints_after(state, place, step, used);
                        visit(action, Ok(self.least(&prints)));
                    }
                    Err(flaw) => visit(action, Err(flaw)),
                }
            }
        }
        for at in 0..self.bounds.locals.len() {
            if state.used >> at & 1 == 1 || !self.may_happen(at, state) {
                continue;
            }
            let action = Action::Local(at as u8);
            let (place, step, used) = self.look_up(state, action);
            let prints = self.prints_after(state, place, step, used);
            visit(action, Ok(self.least(&prints)));
        }
    }

    fn apply(&mut self, state: &State, action: &Action) -> State {
        let (place, step, used) = self.look_up(state, *action);
        let prints = self.prints_after(state, place, step, used);
        let mut actors = state.actors;
        actors[usize::from(place)] = self.next_of(step, actors[usize::from(place)]);
        let sends: &[MessageId] = match step {
            NOTHING => &[],
            step => &self.steps[(step - FIRST) as usize].sends,
        };
        State {
            used,
            actors,
            sent: merged(&state.sent, sends),
            prints,
        }
    }

    fn fingerprint(&self, state: &State) -> Fingerprint {
        self.least(&state.prints)
    }

    fn flaw(&mut self, parent: Option<&State>, state: &State) -> Option<String> {
        let Cluster {
            bounds,
            judge,
            actors,
            ..
        } = self;
        let known = |id: &MessageId| parent.is_some_and(|p| p.sent.binary_search(id).is_ok());
        for id in state.sent.iter().filter(|id| !known(id)) {
            if let Some(flaw) = judge.flaw_of_message(*id, &state.sent) {
                return Some(flaw);
            }
        }
        for place in 0..bounds.places() {
            let number = state.actors[place];
            if parent.is_some_and(|p| p.actors[place] == number) {
                continue;
            }
            let flaw = match &actors[number as usize] {
                Actor::Acceptor(acceptor) => judge
                    .flaw_of_memory(number, acceptor, &state.sent)
                    .or_else(|| judge.flaw_of_trim(bounds, acceptor.trim(0), &state.sent)),
                Actor::Leader(leader) => judge.flaw_of_trim(bounds, leader.trimmed(0), &state.sent),
                _ => None,
            };
            if flaw.is_some() {
                return flaw;
            }
        }
        None
    }

    fn describe(&self, action: &Action) -> String {
        match action {
            Action::Deliver(place, id) => {
                let message = self.messages.get(*id);
                let (from, to) = (self.bounds.node(message.from), self.bounds.node(*place));
                format!("{from} -> {to}: {}", describe(message))
            }
            Action::Local(at) => format!("{:?}", self.bounds.locals[usize::from(*at)]),
        }
    }

    fn reached(&self) -> Vec<(&'static str, u64)> {
        self.judge.seen()
    }
}

fn remember(row: &mut Vec<Fingerprint>, at: usize, print: Fingerprint) -> Fingerprint {
    if row.len() <= at {
        row.resize(at + 1, 0);
    }
    row[at] = print;
    print
}

/// The number of one part of a state.
fn print(kind: u64, part: u64) -> Fingerprint {
    let mut mixer = Mixer::default();
    mixer.word(kind << 32 | part);
    mixer.word(part);
    mixer.finish()
}

fn mask(places: std::ops::Range<Place>) -> u32 {
    places.fold(0, |mask, place| mask | 1 << place)
}

fn merged(a: &[MessageId], b: &[MessageId]) -> Vec<MessageId> {
    let mut all = Vec::with_capacity(a.len() + b.len());
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    loop {
        let next = match (a.peek(), b.peek()) {
            (Some(x), Some(y)) if x == y => {
                b.next();
                a.next()
            }
            (Some(x), Some(y)) if x < y => a.next(),
            (Some(_), None) => a.next(),
            (_, Some(_)) => b.next(),
            (None, None) => return all,
        };
        all.extend(next);
    }
}
