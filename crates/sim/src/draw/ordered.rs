// SPDX-License-Identifier: Apache-2.0
//! Draws plans of NOPaxos groups.

mod courses;

use paxos::Time;

use super::{BEGIN, Limits, load, operation, rates};
use crate::plan::{Action, Direction, Name, Plan, Scenario};
use crate::queue::{MICROSECOND, MILLISECOND};
use crate::rng::Rng;

/// The number of slots, which suffices for everything in a run.
const ROOM: u16 = 8_192;

/// Returns the plan of a seed.
pub fn plan(seed: u64, limits: &Limits) -> Plan {
    let mut rng = Rng::new(seed ^ 0x006e_6f70_6178_6f73);
    let drawn = super::scenario(seed, &mut rng);
    let mut scenario = Scenario {
        leaders: 0,
        acceptors: 0,
        learners: 0,
        durable: limits.durable.unwrap_or(false),
        sequencers: 1 + u8::from(rng.chance(700_000)),
        replicas: *rng.pick(&[3, 3, 3, 5]),
        ..drawn
    };
    if limits.spanning {
        scenario.partitions = 2 + (seed % 2) as u8;
    }
    let duration = rng.between(400, 3_000) * MILLISECOND;
    let mut actions = Vec::new();
    load(&scenario, duration, 1, &mut rng, &mut actions);
    if limits.large {
        super::large(&scenario, duration, limits, &mut actions);
    }
    if limits.calm {
        scenario.rates = super::Rates::PERFECT;
        (scenario.slots, scenario.window) = (ROOM, ROOM);
        if seed % 2 == 0 {
            (scenario.clients, scenario.ordered.few, scenario.batch) = (4, 1, 8);
            crowds(&scenario, duration, &mut actions);
        }
    } else {
        faults(&scenario, duration, &mut rng, &mut actions);
        // Courses are drawn separately, so that the rest of a plan doesn't depend on them.
        if limits.courses || Rng::new(seed ^ 0x636f_7572_7365_7300).chance(400_000) {
            courses::add(&scenario, duration, &mut actions);
            courses::spanning::add(&scenario, duration, &mut actions);
        }
        if scenario.durable {
            power_cuts(&scenario, duration, &mut rng, &mut actions);
        }
        controllers(&scenario, duration, &mut actions);
        claims(&scenario, duration, &mut actions);
        super::falsehoods::refusals(&scenario, duration, &mut actions);
        match Rng::new(seed ^ 0x7374_6f72_6564).below(8) {
            0 => old_stores(&scenario, duration, &mut actions),
            1 => losses(&scenario, duration, &mut actions),
            _ => {}
        }
    }
    super::spanning(&scenario, duration, 1, &mut actions);
    actions.sort_by_key(|(at, _)| *at);
    Plan { scenario, actions }
}

fn faults(scenario: &Scenario, duration: Time, rng: &mut Rng, actions: &mut Vec<(Time, Action)>) {
    for _ in 0..*rng.pick(&[0, 3, 6, 10, 20]) {
        let at = BEGIN + rng.below(duration);
        let lasts = match rng.below(4) {
            0 => rng.below(2 * MILLISECOND),
            1 | 2 => rng.below(100 * MILLISECOND),
            _ => rng.below(600 * MILLISECOND),
        };
        let (begin, end) = fault(scenario, rng);
        actions.push((at, begin));
        actions.extend(end.map(|end| (at + lasts, end)));
    }
}

/// Lets all clients send at once, and then, about when the leader says that the crowd is over, two
/// commands so close together that the second may reach a follower before that message. [N-CROWD]
fn crowds(scenario: &Scenario, duration: Time, actions: &mut Vec<(Time, Action)>) {
    let mut rng = Rng::new(scenario.seed ^ 0x636f_6d65_616e_6467);
    let mut at = BEGIN;
    while at < BEGIN + duration {
        let behind = at + 10 * MILLISECOND + rng.below(6 * MILLISECOND);
        let all = (1..=scenario.clients).map(|client| (client, at));
        let close = rng.between(50, 200) * MICROSECOND;
        let two = [(1, behind), (3, behind + close)];
        for (client, at) in all.chain(two) {
            let submit = Action::Submit {
                client,
                pid: 0,
                key: 0,
                op: operation(&mut rng),
                padding: 0,
            };
            actions.push((at, submit));
        }
        at = behind + 40 * MILLISECOND;
    }
}

/// Cuts the power of all replicas at once, which only logs on disk survive.
fn power_cuts(
    scenario: &Scenario,
    duration: Time,
    rng: &mut Rng,
    actions: &mut Vec<(Time, Action)>,
) {
    for _ in 0..rng.between(1, 3) {
        let at = BEGIN + rng.below(duration);
        for replica in 1..=scenario.replicas {
            let name = Name::Replica(replica);
            let lasts = rng.below(50 * MILLISECOND);
            actions.push((at, Action::PowerOff(name)));
            actions.push((at + lasts, Action::Restart(name)));
        }
    }
}

/// Disturbs the controller in half of the runs, drawn separately.
fn controllers(scenario: &Scenario, duration: Time, actions: &mut Vec<(Time, Action)>) {
    let mut rng = Rng::new(scenario.seed ^ 0x636f_6e74_726f_6c6c);
    if rng.chance(500_000) {
        return;
    }
    let name = Name::Controller;
    for _ in 0..rng.between(1, 4) {
        let at = rng.below(BEGIN + duration);
        let lasts = *rng.pick(&[2, 20, 100, 400]) * MILLISECOND;
        let (begin, end) = match rng.below(8) {
            0..4 => (Action::Crash(name), Action::Restart(name)),
            4 => (Action::Pause(name), Action::Resume(name)),
            5 => (Action::DiskFull(name), Action::DiskFree(name)),
            6 => (Action::Isolate(name, Direction::In), Action::Heal),
            _ => (Action::Isolate(name, Direction::Both), Action::Heal),
        };
        actions.push((at, begin));
        actions.push((at + rng.below(lasts), end));
        if rng.chance(500_000) {
            actions.push((at + rng.below(lasts), Action::Failover));
        }
    }
}

/// Damages a replica's memory in one of sixteen runs, so that it shows a checkpoint or a view that
/// can't be.
fn claims(scenario: &Scenario, duration: Time, actions: &mut Vec<(Time, Action)>) {
    let mut rng = Rng::new(scenario.seed ^ 0x636c_6169_6d73);
    if !rng.chance(62_500) {
        return;
    }
    let replica = Name::Replica(rng.between(1, scenario.replicas.into()) as u8);
    let trim = *rng.pick(&[0, 1 << 20, 1 << 38]);
    let leader = *rng.pick(&[0, 1, 3_000, 1 << 20]);
    let at = BEGIN + rng.below(duration);
    actions.push((at, Action::Claim(replica, trim, leader)));
    if rng.chance(500_000) {
        let later = at + rng.below(duration);
        actions.push((later, Action::Crash(Name::Sequencer(1))));
        let back = later + rng.below(600 * MILLISECOND);
        actions.push((back, Action::Restart(Name::Sequencer(1))));
    }
}

/// Puts an old copy of the controller's store in its place, and the newest one back later.
fn old_stores(scenario: &Scenario, duration: Time, actions: &mut Vec<(Time, Action)>) {
    let mut rng = Rng::new(scenario.seed ^ 0x6f6c_6473_746f_7265);
    for _ in 0..rng.between(1, 3) {
        let copied = rng.below(BEGIN + duration);
        let at = copied + rng.below(200 * MILLISECOND);
        actions.push((copied, Action::BackUp));
        if rng.chance(700_000) {
            let ordered = copied + rng.below(at - copied + 1);
            actions.push((ordered, Action::Failover));
        }
        actions.push((at, Action::Restore));
        let back = at + rng.below(20 * MILLISECOND);
        actions.push((back, Action::Restart(Name::Controller)));
        if rng.chance(500_000) {
            actions.push((back + rng.below(300 * MILLISECOND), Action::Failover));
        }
        if rng.chance(500_000) {
            actions.push((back + rng.below(400 * MILLISECOND), Action::Rebuild));
        }
    }
}

/// Makes more than f replicas lose their logs while another one lags, and an operator accept that.
fn losses(scenario: &Scenario, duration: Time, actions: &mut Vec<(Time, Action)>) {
    let mut rng = Rng::new(scenario.seed ^ 0x6c6f_7373_6573);
    let count = u64::from(scenario.replicas);
    for _ in 0..rng.between(1, 2) {
        let at = BEGIN + rng.below(duration);
        let lagging = Name::Replica(rng.between(1, count) as u8);
        actions.push((at, Action::Isolate(lagging, Direction::In)));
        actions.push((at + rng.below(60 * MILLISECOND), Action::Heal));
        let first = rng.below(count);
        for n in first..first + rng.between(count / 2 + 1, count) {
            let replica = Name::Replica((n % count) as u8 + 1);
            let at = at + rng.below(40 * MILLISECOND);
            actions.push((at, Action::Forget(replica)));
            let back = at + rng.below(100 * MILLISECOND);
            actions.push((back, Action::Restart(replica)));
        }
        for _ in 0..rng.between(1, 4) {
            let order = at + rng.below(800 * MILLISECOND);
            actions.push((order, Action::AcceptLoss));
        }
    }
}

/// Draws a fault, and the action that ends it.
fn fault(scenario: &Scenario, rng: &mut Rng) -> (Action, Option<Action>) {
    let (name, other) = (node(scenario, rng), node(scenario, rng));
    match rng.below(100) {
        0..20 => (Action::Crash(name), Some(Action::Restart(name))),
        20..30 => (Action::PowerOff(name), Some(Action::Restart(name))),
        30..50 => (Action::Pause(name), Some(Action::Resume(name))),
        50..75 => {
            let direction = *rng.pick(&[Direction::In, Direction::Out, Direction::Both]);
            (Action::Isolate(name, direction), Some(Action::Heal))
        }
        75..85 => (Action::Cut(name, other), Some(Action::Heal)),
        85..97 => {
            let before = Action::Network(scenario.rates);
            (Action::Network(rates(rng)), Some(before))
        }
        _ => (Action::Hour, None),
    }
}

fn node(scenario: &Scenario, rng: &mut Rng) -> Name {
    let mut number = |n: u8| rng.between(1, n.into()) as u8;
    let (sequencer, replica) = (number(scenario.sequencers), number(scenario.replicas));
    let client = number(scenario.clients);
    match rng.below(10) {
        0..3 => Name::Sequencer(sequencer),
        3..9 => Name::Replica(replica),
        _ => Name::Client(client),
    }
}
