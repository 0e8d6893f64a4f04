// SPDX-License-Identifier: Apache-2.0
//! A cluster of real roles within bounds, as something to explore.
//!
//! A state is: for each place the number of its actor's state, which once-only things have
//! happened, and the set of messages sent. Roles are deterministic, so each (actor state, input)
//! runs the role once; afterwards the result is looked up.
//!
//! `start.rs`: how it begins; `step.rs`: what an actor makes of a message; `once.rs`: what happens
//! at most once; `symmetry.rs`: the fingerprints of exchanged forms.
//!
//! **Symmetry.** Acceptors that the bounds don't tell apart can be exchanged. States that differ by
//! such an exchange only are one state: the fingerprint is the least of those of all its exchanged
//! forms. How to exchange acceptors inside a candidate or a recover isn't for us to know; but each
//! actor's state came from an earlier one by an input, so its exchanged form comes from the exchanged
//! earlier one by the exchanged input, which again runs nothing but the real code.
//!
//! **Fingerprints** are sums of one 128-bit number for each message sent and each actor's state, so
//! a step adds a few numbers instead of hashing a state.

mod once;
mod start;
mod step;
mod symmetry;

use std::collections::HashMap;

use self::symmetry::print;
use crate::actor::Actor;
use crate::bounds::Bounds;
use crate::explore::{Fingerprint, Model};
use crate::judge::Judge;
use crate::mutation::Mutation;
use crate::network::{Message, MessageId, Messages, Place, describe};

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

    fn post(&mut self, message: Message) -> MessageId {
        let (id, new) = self.messages.number(message);
        if new {
            let message = self.messages.get(id).clone();
            self.judge.note(&self.bounds, id, &message);
        }
        id
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
