// SPDX-License-Identifier: Apache-2.0
//! Breadth-first search through all states that can be reached.
//!
//! Of a visited state only its fingerprint, its parent and its depth are kept; a counter-example is
//! found again by walking down from the start. Two states with one fingerprint would hide one of
//! them: with 128 bits and 10^8 states the chance is below 10^-22.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::{Duration, Instant};

/// Identifies a state.
pub type Fingerprint = u128;

/// A model that can be explored.
pub trait Model {
    /// A state of the whole.
    type State: Clone;
    /// A step from one state to another.
    type Action: Clone;

    /// Returns where it begins.
    fn initial(&mut self) -> Self::State;
    /// Calls `visit` with every step from `state` and the fingerprint of what it leads to, or with
    /// what is wrong with the step itself.
    fn successors(
        &mut self,
        state: &Self::State,
        visit: &mut dyn FnMut(Self::Action, Result<Fingerprint, String>),
    );
    /// Returns what a step leads to: most are known already, and needn't be built.
    fn apply(&mut self, state: &Self::State, action: &Self::Action) -> Self::State;
    /// Returns a fingerprint that is equal for states that need not be told apart.
    fn fingerprint(&self, state: &Self::State) -> Fingerprint;
    /// Returns what is wrong with `state`, the first time it is reached, from `parent`, in which
    /// all was well.
    fn flaw(&mut self, parent: Option<&Self::State>, state: &Self::State) -> Option<String>;
    /// Returns one line that describes a step.
    fn describe(&self, action: &Self::Action) -> String;
    /// Counts that say which interesting things were reached; see [`Report::reached`].
    fn reached(&self) -> Vec<(&'static str, u64)>;
}

/// The limits at which a search stops although there is more.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Visited states.
    pub states: usize,
    /// Time.
    pub time: Duration,
}

impl Default for Limits {
    /// Returns what fits a test.
    fn default() -> Self {
        Limits {
            states: 60_000_000,
            time: Duration::from_secs(3_600),
        }
    }
}

/// A violation and how to get there.
#[derive(Clone, Debug)]
pub struct CounterExample {
    /// The property that is violated.
    pub flaw: String,
    /// The steps, one line each. No shorter way leads there.
    pub steps: Vec<String>,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Report {
    /// Different states visited.
    pub states: usize,
    /// Steps taken, also to states that were known.
    pub transitions: u64,
    /// Steps from the start to the farthest state.
    pub depth: usize,
    /// How long it took.
    pub time: Duration,
    /// True if nothing was left out.
    pub complete: bool,
    /// The counts of interesting events that were reached, because a search that never decides
    /// anything proves nothing.
    pub reached: Vec<(&'static str, u64)>,
    /// The first violation.
    pub counter_example: Option<CounterExample>,
}

impl Report {
    /// Returns the events in `of` that the search should have reached and hasn't.
    pub fn missed(&self, of: &[&'static str]) -> Vec<&'static str> {
        let is_seen = |what: &&str| self.reached.iter().any(|(seen, _)| seen == what);
        of.iter().copied().filter(|what| !is_seen(what)).collect()
    }
}

/// Fingerprints are hashes already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only fingerprints are hashed");
    }
    fn write_u128(&mut self, n: u128) {
        self.0 = n as u64;
    }
}

/// A visited state's parent, by its number. Numbers grow in the order of discovery.
type Visited = HashMap<Fingerprint, u32, BuildHasherDefault<Identity>>;

struct Search<'a, M: Model> {
    model: &'a mut M,
    visited: Visited,
    /// The fingerprint of each state, by number. The state's parent is in `visited`.
    order: Vec<Fingerprint>,
    transitions: u64,
    found: Vec<(M::Action, Result<Fingerprint, String>)>,
}

/// Visits every state within `limits`, nearest first, and stops at the first violation.
pub fn explore<M: Model>(model: &mut M, limits: &Limits) -> Report {
    let begun = Instant::now();
    let start = model.initial();
    let mut search = Search {
        visited: Visited::default(),
        order: Vec::new(),
        transitions: 0,
        found: Vec::new(),
        model,
    };
    let mut flaw = search.model.flaw(None, &start).map(|what| (what, 0, None));
    let fingerprint = search.model.fingerprint(&start);
    search.visited.insert(fingerprint, 0);
    search.order.push(fingerprint);
    let mut layer = vec![start];
    let mut first = 0;
    let mut depth = 0;
    let mut complete = true;
    while flaw.is_none() && !layer.is_empty() {
        let mut next = Vec::new();
        for (at, state) in layer.iter().enumerate() {
            flaw = search.expand((first + at) as u32, state, &mut next);
            let full = search.order.len() >= limits.states;
            if full || at % 1024 == 0 && begun.elapsed() >= limits.time {
                complete = false;
            }
            if flaw.is_some() || !complete {
                break;
            }
        }
        first += layer.len();
        layer = next;
        if !complete {
            break;
        }
        depth += usize::from(!layer.is_empty());
    }
    let counter_example = flaw.map(|(flaw, number, last)| CounterExample {
        flaw,
        steps: search.way_to(number, last),
    });
    Report {
        states: search.order.len(),
        transitions: search.transitions,
        depth,
        time: begun.elapsed(),
        complete: complete && counter_example.is_none(),
        reached: search.model.reached(),
        counter_example,
    }
}

/// A violation, the number of the state in which it was found, and the further step that leads to
/// it.
type Flaw<A> = (String, u32, Option<A>);

impl<M: Model> Search<'_, M> {
    fn expand(
        &mut self,
        number: u32,
        state: &M::State,
        next: &mut Vec<M::State>,
    ) -> Option<Flaw<M::Action>> {
        let mut found = std::mem::take(&mut self.found);
        self.model
            .successors(state, &mut |action, result| found.push((action, result)));
        let mut flaw = None;
        for (action, result) in found.drain(..) {
            if flaw.is_none() {
                flaw = self.visit(number, state, action, result, next);
            }
        }
        self.found = found;
        flaw
    }

    fn visit(
        &mut self,
        number: u32,
        state: &M::State,
        action: M::Action,
        result: Result<Fingerprint, String>,
        next: &mut Vec<M::State>,
    ) -> Option<Flaw<M::Action>> {
        self.transitions += 1;
        let fingerprint = match result {
            Ok(fingerprint) => fingerprint,
            Err(what) => return Some((what, number, Some(action))),
        };
        let Entry::Vacant(entry) = self.visited.entry(fingerprint) else {
            return None;
        };
        entry.insert(number);
        self.order.push(fingerprint);
        let reached = self.model.apply(state, &action);
        if let Some(what) = self.model.flaw(Some(state), &reached) {
            return Some((what, number, Some(action)));
        }
        next.push(reached);
        None
    }

    /// Returns the steps from the start to a state, and one more.
    fn way_to(&mut self, number: u32, last: Option<M::Action>) -> Vec<String> {
        let mut way = vec![number];
        while way[way.len() - 1] != 0 {
            let child = self.order[way[way.len() - 1] as usize];
            way.push(self.visited[&child]);
        }
        let mut state = self.model.initial();
        let mut steps = Vec::new();
        for number in way.into_iter().rev().skip(1) {
            let wanted = self.order[number as usize];
            let mut found = Vec::new();
            self.model
                .successors(&state, &mut |action, result| found.push((action, result)));
            let mut found = found.into_iter();
            let taken = found.find(|(_, result)| *result == Ok(wanted));
            let (action, _) = taken.expect("a visited state has a way to it");
            steps.push(self.model.describe(&action));
            state = self.model.apply(&state, &action);
        }
        steps.extend(last.map(|action| self.model.describe(&action)));
        steps
    }
}

/// A 128-bit hash of words: two lanes of multiply and fold, each with its own odd constants.
#[derive(Clone, Copy)]
pub struct Mixer(u64, u64);

impl Default for Mixer {
    fn default() -> Self {
        Mixer(0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344)
    }
}

impl Mixer {
    /// Takes one word.
    #[inline]
    pub fn word(&mut self, word: u64) {
        self.0 = fold(self.0 ^ word, 0x9e37_79b9_7f4a_7c15);
        self.1 = fold(self.1.rotate_left(23) ^ word, 0xd6e8_feb8_6659_fd93);
    }

    /// Returns the hash of everything that was written.
    pub fn finish(self) -> Fingerprint {
        let low = fold(self.0 ^ self.1.rotate_left(32), 0xa076_1d64_78bd_642f);
        let high = fold(self.1 ^ low, 0xe703_7ed1_a0b4_28db);
        u128::from(high) << 64 | u128::from(low)
    }
}

/// Returns the high and low half of a product, and the factor so that nothing is lost at 0.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ (product >> 64) as u64 ^ a.rotate_left(29)
}

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        Mixer::finish(*self) as u64
    }
    fn write(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two counters to 9; the sum of 15 is forbidden, or a step from (3, 3).
    struct Counters {
        forbidden: u32,
        bad_step: bool,
    }

    impl Model for Counters {
        type State = (u32, u32);
        type Action = &'static str;

        fn initial(&mut self) -> (u32, u32) {
            (0, 0)
        }
        fn successors(
            &mut self,
            &(a, b): &(u32, u32),
            visit: &mut dyn FnMut(&'static str, Result<Fingerprint, String>),
        ) {
            if self.bad_step && (a, b) == (3, 3) {
                visit("stumble", Err("stumbled".into()));
            }
            if a < 9 {
                visit("a", Ok(self.fingerprint(&(a + 1, b))));
            }
            if b < 9 {
                visit("b", Ok(self.fingerprint(&(a, b + 1))));
            }
        }
        fn apply(&mut self, &(a, b): &(u32, u32), action: &&'static str) -> (u32, u32) {
            match *action {
                "a" => (a + 1, b),
                _ => (a, b + 1),
            }
        }
        fn fingerprint(&self, &(a, b): &(u32, u32)) -> Fingerprint {
            let mut mixer = Mixer::default();
            mixer.word(a.into());
            mixer.word(b.into());
            mixer.finish()
        }
        fn flaw(&mut self, _: Option<&(u32, u32)>, &(a, b): &(u32, u32)) -> Option<String> {
            (a + b == self.forbidden).then(|| format!("{a} + {b}"))
        }
        fn describe(&self, action: &&'static str) -> String {
            action.to_string()
        }
        fn reached(&self) -> Vec<(&'static str, u64)> {
            Vec::new()
        }
    }

    #[test]
    fn visits_every_state_once() {
        let mut model = Counters {
            forbidden: 99,
            bad_step: false,
        };
        let report = explore(&mut model, &Limits::default());
        assert_eq!((report.states, report.depth), (100, 18));
        assert_eq!(report.transitions, 180);
        assert!(report.complete && report.counter_example.is_none());
    }

    #[test]
    fn shows_a_shortest_way_to_a_violation() {
        for forbidden in [1, 15] {
            let mut model = Counters {
                forbidden,
                bad_step: false,
            };
            let report = explore(&mut model, &Limits::default());
            let way = report.counter_example.unwrap();
            assert_eq!(way.steps.len(), forbidden as usize);
            let a = way.steps.iter().filter(|s| *s == "a").count();
            assert_eq!(way.flaw, format!("{a} + {}", way.steps.len() - a));
            assert!(!report.complete);
        }
    }

    #[test]
    fn shows_a_step_that_is_wrong_in_itself() {
        let mut model = Counters {
            forbidden: 99,
            bad_step: true,
        };
        let way = explore(&mut model, &Limits::default()).counter_example;
        let way = way.unwrap();
        assert_eq!((way.flaw.as_str(), way.steps.len()), ("stumbled", 7));
        assert_eq!(way.steps[6], "stumble");
    }

    #[test]
    fn says_so_when_it_left_something_out() {
        let mut model = Counters {
            forbidden: 99,
            bad_step: false,
        };
        let limits = Limits {
            states: 50,
            ..Limits::default()
        };
        let report = explore(&mut model, &limits);
        assert!(!report.complete && report.counter_example.is_none());
        assert!(report.states < 60);
    }
}
