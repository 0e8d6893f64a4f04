// SPDX-License-Identifier: Apache-2.0
//! Draws orders that change the members while the cluster serves, planned hand-overs, and faults of
//! those concerned at the time.

use paxos::Time;

use super::BEGIN;
use crate::plan::{Action, Name, Scenario, Spares};
use crate::queue::MILLISECOND;
use crate::rng::Rng;

/// The members as the orders so far leave them, if each is carried out.
struct Drawn {
    leaders: Vec<Name>,
    acceptors: Vec<Name>,
    replicas: Vec<Name>,
    /// The nodes that may still be added.
    spares: Vec<Name>,
}

/// Provides the nodes that may be added, and returns how long the run lasts: a change takes a few
/// hundred milliseconds.
pub fn prepare(scenario: &mut Scenario, duration: Time) -> Time {
    let mut rng = Rng::new(scenario.seed ^ 0x6d65_6d62_6572_7300);
    scenario.spares = Spares {
        leaders: rng.between(0, 2) as u8,
        acceptors: 9 - scenario.acceptors.max(5),
        replicas: rng.between(1, 4) as u8,
    };
    // Several partitions make a change longer, and catching up harder.
    scenario.slots = scenario.slots.max(32);
    scenario.window = scenario.window.min(scenario.slots - 8);
    duration.max(1_500 * MILLISECOND)
}

/// Draws the orders, with what befalls the nodes meanwhile.
pub fn changes(scenario: &Scenario, duration: Time, actions: &mut Vec<(Time, Action)>) {
    let mut rng = Rng::new(scenario.seed ^ 0x6368_616e_6765_7300);
    let mut drawn = Drawn::new(scenario);
    let mut at = BEGIN + rng.below(100 * MILLISECOND);
    while at < BEGIN + duration {
        match rng.chance(250_000) {
            true => hand_over(scenario, at, &mut rng, actions),
            false => order(&mut drawn, at, &mut rng, actions),
        }
        at += rng.between(50, 900) * MILLISECOND;
    }
}

impl Drawn {
    fn new(scenario: &Scenario) -> Drawn {
        let spares = scenario.spares;
        let names = |first: u8, count: u8, kind: fn(u8) -> Name| {
            let names = (first + 1..=first + count).map(kind);
            names.collect::<Vec<_>>()
        };
        let of_leaders = names(scenario.leaders, spares.leaders, Name::Leader);
        let of_acceptors = names(scenario.acceptors, spares.acceptors, Name::Acceptor);
        let of_replicas = names(scenario.replicas, spares.replicas, Name::Replica);
        Drawn {
            leaders: names(0, scenario.leaders, Name::Leader),
            acceptors: names(0, scenario.acceptors, Name::Acceptor),
            replicas: names(0, scenario.replicas, Name::Replica),
            spares: [of_leaders, of_acceptors, of_replicas].concat(),
        }
    }

    /// Takes some spares of a kind.
    fn take(&mut self, count: usize, is_it: fn(&Name) -> bool) -> Vec<Name> {
        let spares = self.spares.iter().copied().filter(is_it);
        let taken: Vec<Name> = spares.take(count).collect();
        self.spares.retain(|name| !taken.contains(name));
        taken
    }
}

/// Removes some of the names at random, but leaves at least `least`.
fn remove(names: &mut Vec<Name>, count: usize, least: usize, rng: &mut Rng) -> Vec<Name> {
    let count = count.min(names.len().saturating_sub(least));
    let removed = (0..count).map(|_| names.remove(rng.below(names.len() as u64) as usize));
    removed.collect()
}

/// Orders a change of acceptors, replicas or leaders. The order is refused if the change before it
/// isn't in force yet, and is then given again.
fn order(drawn: &mut Drawn, at: Time, rng: &mut Rng, actions: &mut Vec<(Time, Action)>) {
    let (add, leave) = match rng.below(10) {
        0..4 => acceptors(drawn, rng),
        4..8 => replicas(drawn, rng),
        _ => leaders(drawn, rng),
    };
    if add.is_empty() && leave.is_empty() {
        return;
    }
    for tries in 0..3 {
        let again = at + tries * 400 * MILLISECOND;
        actions.push((again, Action::Members(add.clone(), leave.clone())));
        for name in &add {
            let begins = again + rng.below(60 * MILLISECOND);
            actions.push((begins, Action::Restart(*name)));
        }
    }
    for _ in 0..rng.below(4) {
        let concerned: Vec<Name> = add.iter().chain(&leave).copied().collect();
        trouble(*rng.pick(&concerned), at, rng, actions);
    }
    if rng.chance(300_000) {
        trouble(Name::Controller, at, rng, actions);
    }
}

/// Draws two acceptors more, two fewer, or an exchange of one or two.
fn acceptors(drawn: &mut Drawn, rng: &mut Rng) -> (Vec<Name>, Vec<Name>) {
    let is_it = |name: &Name| matches!(name, Name::Acceptor(_));
    let few = drawn.acceptors.len() <= 3;
    let (come, go) = match rng.below(5) {
        0 | 1 if few => (2, 0),
        0 | 1 => (0, 2),
        2 | 3 => (1, 1),
        _ => (2, 2),
    };
    let add = drawn.take(come, is_it);
    // There are odd numbers of acceptors before and after.
    let go = match add.len() == come {
        true => go,
        false => add.len(),
    };
    let leave = remove(&mut drawn.acceptors, go, 1, rng);
    drawn.acceptors.extend(&add);
    (add, leave)
}

fn replicas(drawn: &mut Drawn, rng: &mut Rng) -> (Vec<Name>, Vec<Name>) {
    let is_it = |name: &Name| matches!(name, Name::Replica(_));
    let (come, go) = *rng.pick(&[(1, 0), (2, 0), (1, 1), (1, 1), (2, 2), (0, 1), (0, 2)]);
    let add = drawn.take(come, is_it);
    drawn.replicas.extend(&add);
    let leave = remove(&mut drawn.replicas, go, 1, rng);
    let both: Vec<Name> = add.iter().filter(|n| leave.contains(n)).copied().collect();
    let only = |names: Vec<Name>| names.into_iter().filter(|n| !both.contains(n)).collect();
    (only(add), only(leave))
}

fn leaders(drawn: &mut Drawn, rng: &mut Rng) -> (Vec<Name>, Vec<Name>) {
    let is_it = |name: &Name| matches!(name, Name::Leader(_));
    let add = drawn.take(1, is_it);
    let leave = remove(&mut drawn.leaders, rng.below(2) as usize, 1, rng);
    drawn.leaders.extend(&add);
    (add, leave)
}

/// Orders a planned hand-over. Now and then an acceptor forgets while votes are read ahead.
fn hand_over(scenario: &Scenario, at: Time, rng: &mut Rng, actions: &mut Vec<(Time, Action)>) {
    let leaders = scenario.leaders + scenario.spares.leaders;
    let to = Name::Leader(rng.between(1, leaders.into()) as u8);
    actions.push((at, Action::HandOver(to)));
    if rng.chance(400_000) {
        let acceptor = rng.between(1, scenario.acceptors.into()) as u8;
        let at = at + rng.below(10 * MILLISECOND);
        trouble(Name::Acceptor(acceptor), at, rng, actions);
    }
}

/// Draws what befalls a node soon, and ends some time later.
fn trouble(name: Name, at: Time, rng: &mut Rng, actions: &mut Vec<(Time, Action)>) {
    let at = at + rng.below(300 * MILLISECOND);
    let end = at + rng.below(250 * MILLISECOND);
    let (begin, ends) = match rng.below(6) {
        0 | 1 => (Action::Crash(name), Action::Restart(name)),
        2 => (Action::PowerOff(name), Action::Restart(name)),
        3 => (Action::Wipe(name), Action::Restart(name)),
        _ => (Action::Pause(name), Action::Resume(name)),
    };
    actions.push((at, begin));
    actions.push((end, ends));
}
