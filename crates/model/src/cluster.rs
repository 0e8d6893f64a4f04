// SPDX-License-Identifier: Apache-2.0
//! A cluster of real roles within bounds, as something to explore.
//!
//! A state is: for each place the number of its actor's state, which once-only things have
//! happened, and the set of messages sent. Roles are deterministic, so each (actor state, input)
//! runs the role once; afterwards the result is looked up. Which roles there are, what may happen
//! to them, and what must hold is said by a [`System`]: one a protocol.
//!
//! **Symmetry.** Actors that the system doesn't tell apart can be exchanged (`symmetry.rs`). States
//! that differ by such an exchange only are one state: the fingerprint is the least of those of all
//! its exchanged forms. How to exchange acceptors inside a candidate or a recover isn't for us to
//! know; but each actor's state came from an earlier one by an input, so its exchanged form comes
//! from the exchanged earlier one by the exchanged input, which again runs nothing but the real
//! code.
//!
//! **Fingerprints** are sums of one 128-bit number for each message sent and each actor's state, so
//! a step adds a few numbers instead of hashing a state.

mod symmetry;

use std::collections::HashMap;

use self::symmetry::print;
use crate::explore::{Fingerprint, Model};
use crate::network::{ActorId, Message, MessageId, Messages, describe};
use crate::systems::{Happened, Reached, System};

/// Places that a state has room for.
const MAX_PLACES: usize = 10;

/// The number of ways to exchange three acceptors.
const MAX_SYMMETRIES: usize = 6;

/// A state of the whole cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct State {
    /// Which of the system's locals have happened: one bit each.
    used: u32,
    /// The number of each actor's state, by the actor's place.
    actors: [u32; MAX_PLACES],
    /// The messages that were sent, in ascending order.
    sent: Vec<MessageId>,
    /// The fingerprint of each exchanged form, by symmetry.
    prints: [Fingerprint; MAX_SYMMETRIES],
}

/// The origin of an actor's state.
#[derive(Clone, Copy, Debug)]
enum Origin {
    Start,
    Message(u32, MessageId),
    Local(u32, u8),
}

/// A step of the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A message arrives.
    Deliver(ActorId, MessageId),
    /// An event of the system without a message.
    Local(u8),
}

/// The result of an actor's step.
#[derive(Clone, Debug)]
struct Step {
    next: u32,
    /// The messages that the step sends, in ascending order.
    sends: Box<[MessageId]>,
    flaw: Option<Box<str>>,
}

/// An entry of the tables for an input that wasn't tried yet.
const UNKNOWN: u32 = 0;
/// An entry of the tables for an input that changes nothing and sends nothing.
const NOTHING: u32 = 1;
const FIRST: u32 = 2;

/// The model.
pub struct Cluster<S: System> {
    system: S,
    places: usize,
    messages: Messages,
    /// All states of actors that were ever reached; a state's index is its number.
    actors: Vec<S::Actor>,
    origins: Vec<(ActorId, Origin)>,
    numbers: HashMap<(ActorId, Fingerprint), u32>,
    symmetries: Vec<Vec<u8>>,
    /// The number of the exchanged form, by symmetry and number of the state.
    exchanged_actors: Vec<HashMap<u32, u32>>,
    /// The part of the exchanged form in a fingerprint, by symmetry and number of the state; 0 =
    /// not computed yet.
    actor_prints: Vec<Vec<Fingerprint>>,
    message_prints: Vec<Vec<Fingerprint>>,
    exchanged_messages: Vec<Vec<MessageId>>,
    steps: Vec<Step>,
    /// The step that each actor's state takes for each message: an index in `steps`, or one of the
    /// constants above.
    taken: Vec<Vec<u32>>,
    happened: HashMap<(u32, u8), u32>,
}

impl<S: System> Cluster<S> {
    /// Returns the cluster of a system.
    pub fn of(system: S) -> Cluster<S> {
        let places = system.places();
        assert!(places <= MAX_PLACES && system.locals() <= 32);
        let mut symmetries = system.symmetries();
        // With more than three acceptors all exchanges would take too long.
        if symmetries.len() > MAX_SYMMETRIES {
            symmetries.truncate(1);
        }
        Cluster {
            system,
            places,
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
        }
    }

    /// Returns the numbers of different states of single actors, and of different messages.
    pub fn sizes(&self) -> (usize, usize) {
        (self.actors.len(), self.messages.len())
    }

    fn number(&mut self, place: ActorId, actor: S::Actor, origin: Origin) -> u32 {
        let key = (place, S::fingerprint(&actor));
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
            self.system.note(id, self.messages.get(id));
        }
        id
    }

    /// Returns what the actor at `place` makes of a message.
    fn deliver(&mut self, place: ActorId, actor: u32, id: MessageId) -> u32 {
        let known = self.taken[actor as usize].get(usize::from(id));
        if let Some(&step) = known.filter(|step| **step != UNKNOWN) {
            return step;
        }
        let message = self.messages.get(id);
        let happened = self.system.take(&self.actors[actor as usize], message);
        let (sender, origin) = (message.from, Origin::Message(actor, id));
        let step = self.keep(place, origin, actor, sender, happened);
        let row = &mut self.taken[actor as usize];
        if row.len() <= usize::from(id) {
            row.resize(usize::from(id) + 1, UNKNOWN);
        }
        row[usize::from(id)] = step;
        step
    }

    /// Returns what becomes of an actor to which a local happens.
    fn happen(&mut self, at: u8, actor: u32) -> u32 {
        if let Some(&known) = self.happened.get(&(actor, at)) {
            return known;
        }
        let place = self.system.place_of_local(at.into());
        let happened = self.system.happen(at.into(), &self.actors[actor as usize]);
        let step = self.keep(place, Origin::Local(actor, at), actor, place, happened);
        self.happened.insert((actor, at), step);
        step
    }

    fn keep(
        &mut self,
        place: ActorId,
        origin: Origin,
        number: u32,
        sender: ActorId,
        happened: Happened<S::Actor>,
    ) -> u32 {
        let Happened { after, out, flaw } = happened;
        let sends = self.system.messages_of(place, sender, &after, out);
        let next = self.number(place, after, origin);
        let sends = sends.into_iter().map(|message| self.post(message));
        let mut sends: Vec<MessageId> = sends.collect();
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

    /// Returns whether a step leads anywhere, or what is wrong with it.
    fn leads_on(&self, state: &State, place: ActorId, step: u32) -> Result<bool, String> {
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

    /// Returns where an action happens, its step, and which `locals` have happened then.
    fn look_up(&mut self, state: &State, action: Action) -> (ActorId, u32, u32) {
        match action {
            Action::Deliver(place, id) => {
                let step = self.deliver(place, state.actors[usize::from(place)], id);
                (place, step, state.used)
            }
            Action::Local(at) => {
                let place = self.system.place_of_local(at.into());
                let step = self.happen(at, state.actors[usize::from(place)]);
                let once = u32::from(!self.system.repeats(at.into()));
                (place, step, state.used | once << at)
            }
        }
    }
}

impl<S: System> Model for Cluster<S> {
    type State = State;
    type Action = Action;

    fn initial(&mut self) -> State {
        let mut actors = [0; MAX_PLACES];
        for (place, actor) in self.system.first_actors().into_iter().enumerate() {
            actors[place] = self.number(place as ActorId, actor, Origin::Start);
        }
        let first = self.system.first_messages();
        let mut sent: Vec<MessageId> = first.into_iter().map(|m| self.post(m)).collect();
        sent.sort_unstable();
        let mut prints = [0; MAX_SYMMETRIES];
        for (symmetry, print_of) in prints.iter_mut().enumerate().take(self.symmetries.len()) {
            let mut sum = print(3, 0);
            for &id in &sent {
                sum = sum.wrapping_add(self.print_of_message(symmetry, id));
            }
            for actor in &actors[..self.places] {
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
                let place = to.trailing_zeros() as ActorId;
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
        for at in 0..self.system.locals() {
            if state.used >> at & 1 == 1 || !self.system.may_happen(at, state.used, &state.sent) {
                continue;
            }
            let action = Action::Local(at as u8);
            let (place, step, used) = self.look_up(state, action);
            match self.leads_on(state, place, step) {
                Ok(false) if used == state.used => {}
                Ok(_) => {
                    let prints = self.prints_after(state, place, step, used);
                    visit(action, Ok(self.least(&prints)));
                }
                Err(flaw) => visit(action, Err(flaw)),
            }
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
        let known = |id: &MessageId| parent.is_some_and(|p| p.sent.binary_search(id).is_ok());
        let is_changed =
            |place: &usize| parent.is_none_or(|p| p.actors[*place] != state.actors[*place]);
        let fresh: Vec<MessageId> = state.sent.iter().copied().filter(|id| !known(id)).collect();
        let changed: Vec<usize> = (0..self.places).filter(is_changed).collect();
        self.system.flaw(&Reached {
            all: &self.actors,
            numbers: &state.actors[..self.places],
            changed: &changed,
            sent: &state.sent,
            fresh: &fresh,
        })
    }

    fn describe(&self, action: &Action) -> String {
        match action {
            Action::Deliver(place, id) => {
                let message = self.messages.get(*id);
                let (from, to) = (self.system.node(message.from), self.system.node(*place));
                format!("{from} -> {to}: {}", describe(message))
            }
            Action::Local(at) => self.system.describe_local(usize::from(*at)),
        }
    }

    fn reached(&self) -> Vec<(&'static str, u64)> {
        self.system.seen()
    }
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
