// SPDX-License-Identifier: Apache-2.0
//! Draws a plan from a seed: a cluster, a load, and faults.

mod falsehoods;
mod members;
mod ordered;

use paxos::Time;

use crate::application::Span;
use crate::linearizability::Op;
use crate::network::Rates;
use crate::plan::{Action, Direction, Name, OrderedSettings, Plan, Scenario, Spares};
use crate::queue::{MICROSECOND, MILLISECOND};
use crate::rng::Rng;

/// The time by which the first epoch is in force, if nothing hinders it.
const BEGIN: Time = 60 * MILLISECOND;

/// The parts of a plan that aren't drawn.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Acceptors are durable, or not; drawn if `None`. NOPaxos replicas are durable only if this
    /// says so.
    pub durable: Option<bool>,
    /// The number of learner nodes; drawn if `None`.
    pub learners: Option<u8>,
    /// Nothing goes wrong at all.
    pub calm: bool,
    /// There are several partitions, and commands over them.
    pub spanning: bool,
    /// The group uses NOPaxos.
    pub ordered: bool,
    /// Clients read without the log in each run.
    pub reads: bool,
    /// Clients send commands that are longer than a value in each run.
    pub large: bool,
    /// With NOPaxos each run has courses of events that chance would rarely cause.
    pub courses: bool,
    /// Operators change the members, and order planned hand-overs.
    pub members: bool,
}

/// Returns the plan of a seed.
pub fn plan(seed: u64, limits: &Limits) -> Plan {
    if limits.ordered {
        return ordered::plan(seed, limits);
    }
    let mut rng = Rng::new(seed ^ 0x7061_786f_735f_7369);
    let mut scenario = scenario(seed, &mut rng);
    if let Some(durable) = limits.durable {
        scenario.durable = durable;
    }
    if let Some(learners) = limits.learners {
        scenario.learners = learners;
    }
    if limits.spanning {
        scenario.partitions = 2 + (seed % 2) as u8;
    }
    // One run in sixteen is long, with more epochs, more trims and older packets.
    let length = if rng.chance(62_500) { 5 } else { 1 };
    let duration = length * rng.between(400, 3_000) * MILLISECOND;
    let duration = match limits.members {
        true => members::prepare(&mut scenario, duration),
        false => duration,
    };
    let mut actions = Vec::new();
    load(&scenario, duration, length, &mut rng, &mut actions);
    if limits.calm {
        scenario.rates = Rates::PERFECT;
    } else {
        faults(&scenario, duration, length, &mut rng, &mut actions);
        if !limits.members {
            loss(&scenario, duration, &mut actions);
        }
        disks(&scenario, duration, &mut actions);
        old_copies(&scenario, duration, &mut actions);
        bad_disks(&scenario, duration, &mut actions);
        rivals(&scenario, duration, &mut actions);
        falsehoods::claims(&scenario, duration, &mut actions);
        falsehoods::refusals(&scenario, duration, &mut actions);
        walks(&scenario, duration, &mut actions);
        match limits.members {
            true => members::changes(&scenario, duration, &mut actions),
            false => stores(&scenario, duration, &mut actions),
        }
    }
    spanning(&scenario, duration, length, &mut actions);
    reads(&scenario, duration, limits, &mut actions);
    large(&scenario, duration, limits, &mut actions);
    deadly(&mut scenario, limits, &mut actions);
    actions.sort_by_key(|(at, _)| *at);
    Plan { scenario, actions }
}

fn scenario(seed: u64, rng: &mut Rng) -> Scenario {
    let slots = rng.between(24, 64) as u16;
    Scenario {
        seed,
        leaders: 2 + u8::from(rng.chance(200_000)),
        acceptors: *rng.pick(&[3, 3, 3, 5]),
        replicas: *rng.pick(&[1, 3, 3, 3, 3]),
        learners: learners(seed),
        sequencers: 0,
        clients: rng.between(1, 4) as u8,
        partitions: *rng.pick(&[1, 1, 1, 2]),
        slots,
        window: slots - rng.between(4, 10) as u16,
        durable: rng.chance(400_000),
        checkpoint_every: rng.between(2, u64::from(slots / 4)) as u16,
        session_window: *rng.pick(&[2, 4, 16, 64]),
        ordered_values: ordered_values(seed),
        drift: *rng.pick(&[0, 50, 1_000, 5_000]),
        batch: *rng.pick(&[1, 1, 2, 8]),
        answers_wait: answers_wait(seed),
        ordered: OrderedSettings {
            few: few(seed),
            ahead: ahead(seed),
        },
        spares: Spares::default(),
        rates: rates(rng),
    }
}

/// Draws the number of learner nodes separately, so that plans without learners don't depend on it.
fn learners(seed: u64) -> u8 {
    *Rng::new(seed ^ 0x6c65_6172_6e65_7273).pick(&[0, 0, 1, 2])
}

/// Draws separately how many values an ordered session may have in flight.
fn ordered_values(seed: u64) -> u8 {
    *Rng::new(seed ^ 0x6f72_6465_7265_6420).pick(&[1, 4])
}

/// Draws separately whether answers wait. Each order has half of the seeds.
fn answers_wait(seed: u64) -> bool {
    Rng::new(seed ^ 0x616e_7377_6572_7377).chance(500_000)
}

/// Draws separately what counts as few clients: some leaders have a crowd all the time, some now
/// and then, and some never.
fn few(seed: u64) -> u8 {
    *Rng::new(seed ^ 0x6372_6f77_6400_0000).pick(&[0, 1, 2, 7])
}

/// Draws separately how far execution may run ahead; with few commands a leader waits for the
/// others all the time.
fn ahead(seed: u64) -> u8 {
    *Rng::new(seed ^ 0x6168_6561_6400_0000).pick(&[2, 8, u8::MAX, u8::MAX])
}

fn rates(rng: &mut Rng) -> Rates {
    // Parts per million: from a good network to one that loses every tenth packet.
    let harshness = *rng.pick(&[0, 1_000, 1_000, 10_000, 10_000, 50_000, 100_000]);
    let mut rate = |share: u64| rng.below(harshness * share / 100 + 1) as u32;
    Rates {
        loss: rate(100),
        duplicate: rate(100),
        slow: rate(100),
        late: rate(30),
        hour: rate(10),
        corrupt: rate(20),
    }
}

// ---- Load

fn load(
    scenario: &Scenario,
    duration: Time,
    length: u64,
    rng: &mut Rng,
    actions: &mut Vec<(Time, Action)>,
) {
    let keys = rng.between(1, 6) as u8;
    let bursts = length * rng.between(5, 40);
    for _ in 0..bursts {
        let mut at = BEGIN + rng.below(duration);
        let client = rng.between(1, u64::from(scenario.clients)) as u8;
        let pid = rng.below(scenario.partitions.into()) as u8;
        for _ in 0..rng.between(1, 24) {
            let submit = Action::Submit {
                client,
                pid,
                key: rng.below(keys.into()) as u8,
                op: operation(rng),
                padding: *rng.pick(&[0, 0, 30, 200]),
            };
            actions.push((at, submit));
            at += rng.below(400) * MICROSECOND;
        }
    }
}

/// Adds commands over several partitions, if there are several. They are drawn separately, so that
/// the rest of a plan doesn't depend on them.
fn spanning(scenario: &Scenario, duration: Time, length: u64, actions: &mut Vec<(Time, Action)>) {
    let mut rng = Rng::new(scenario.seed ^ 0x7370_616e_6e69_6e67);
    if scenario.partitions < 2 {
        return;
    }
    let keys = rng.between(1, 4);
    for _ in 0..length * rng.between(3, 30) {
        let mut at = BEGIN + rng.below(duration);
        let client = rng.between(1, u64::from(scenario.clients)) as u8;
        for _ in 0..rng.between(1, 8) {
            let mut pids: Vec<u8> = (0..scenario.partitions).collect();
            while pids.len() > 2 && rng.chance(600_000) {
                pids.remove(rng.below(pids.len() as u64) as usize);
            }
            let span = match rng.below(4) {
                0 => Span::Read,
                _ => Span::Fold(rng.below(1 << 16)),
            };
            let keys = pids.into_iter().map(|pid| (pid, rng.below(keys) as u8));
            let keys = keys.collect();
            actions.push((at, Action::Span { client, keys, span }));
            at += rng.below(600) * MICROSECOND;
        }
    }
}

/// Adds reads without the log in a quarter of the runs, drawn separately.
fn reads(scenario: &Scenario, duration: Time, limits: &Limits, actions: &mut Vec<(Time, Action)>) {
    let mut rng = Rng::new(scenario.seed ^ 0x7265_6164_7300);
    let drawn = rng.chance(250_000) && !limits.calm;
    if !drawn && !limits.reads {
        return;
    }
    for _ in 0..rng.between(3, 40) {
        let mut at = BEGIN + rng.below(duration);
        let replica = rng.between(1, scenario.replicas.into()) as u8;
        for _ in 0..rng.between(1, 8) {
            let read = Action::Read {
                client: rng.between(1, scenario.clients.into()) as u8,
                replica,
                pid: rng.below(scenario.partitions.into()) as u8,
                key: rng.below(4) as u8,
            };
            actions.push((at, read));
            at += rng.below(600) * MICROSECOND;
        }
    }
}

/// Adds commands longer than a value in a quarter of the runs that have no other purpose, drawn
/// separately.
fn large(scenario: &Scenario, duration: Time, limits: &Limits, actions: &mut Vec<(Time, Action)>) {
    let mut rng = Rng::new(scenario.seed ^ 0x6c61_7267_6500);
    let drawn = rng.chance(250_000) && *limits == Limits::default();
    if !drawn && !limits.large {
        return;
    }
    for _ in 0..rng.between(3, 30) {
        let mut at = BEGIN + rng.below(duration);
        let client = rng.between(1, scenario.clients.into()) as u8;
        let pid = rng.below(scenario.partitions.into()) as u8;
        for _ in 0..rng.between(1, 4) {
            let submit = Action::Submit {
                client,
                pid,
                key: rng.below(4) as u8,
                op: operation(&mut rng),
                padding: rng.between(400, 3_000) as u16,
            };
            actions.push((at, submit));
            at += rng.below(2_000) * MICROSECOND;
        }
    }
}

/// Lets programs die of commands for a rare key in one of eight runs that have no other purpose,
/// drawn separately. All replicas wait until the log says what they have promised, so it has room
/// for what clients repeat meanwhile. A program that dies of a command has never survived it.
fn deadly(scenario: &mut Scenario, limits: &Limits, actions: &mut Vec<(Time, Action)>) {
    let mut rng = Rng::new(scenario.seed ^ 0x6465_6164_6c79);
    if !rng.chance(125_000) || *limits != Limits::default() {
        return;
    }
    (scenario.slots, scenario.window) = (8_000, 7_900);
    let survivor = rng.between(0, u64::from(scenario.replicas)) as u8;
    let (pid, key) = (rng.below(scenario.partitions.into()), rng.between(3, 5));
    for replica in (1..=scenario.replicas).filter(|replica| *replica != survivor) {
        let poison = Action::Poison(Name::Replica(replica), pid as u8, key as u8);
        actions.push((0, poison));
    }
}

fn operation(rng: &mut Rng) -> Op {
    match rng.below(10) {
        0 | 1 => Op::Get,
        2 => Op::Set(rng.below(4)),
        3 => Op::CompareAndSet(rng.below(4), rng.below(4)),
        4..=6 => Op::Append(rng.below(1 << 16)),
        _ => Op::Incr,
    }
}

// ---- Faults

fn faults(
    scenario: &Scenario,
    duration: Time,
    length: u64,
    rng: &mut Rng,
    actions: &mut Vec<(Time, Action)>,
) {
    let count = length * *rng.pick(&[0, 3, 6, 10, 15, 30]);
    // Half of the runs have only a few kinds of fault, so that these meet one another more often.
    let few: Vec<u64> = (0..3).map(|_| rng.below(100)).collect();
    let swarm = rng.chance(500_000);
    let mut at = BEGIN;
    for _ in 0..count {
        // Faults often come together.
        at = match rng.chance(400_000) {
            true => at + rng.below(8 * MILLISECOND),
            false => BEGIN + rng.below(duration),
        };
        let lasts = match rng.below(4) {
            0 => rng.below(2 * MILLISECOND),
            1 | 2 => rng.below(100 * MILLISECOND),
            _ => rng.below(600 * MILLISECOND),
        };
        let kind = if swarm {
            *rng.pick(&few)
        } else {
            rng.below(100)
        };
        let (begin, end) = fault(scenario, kind, rng);
        actions.push((at, begin));
        if let Some(end) = end {
            actions.push((at + lasts, end));
        }
    }
}

/// Makes more than f acceptors forget while a replica lags, in one of eight runs, and an operator
/// continue. This is drawn separately, so that other plans don't depend on it.
fn loss(scenario: &Scenario, duration: Time, actions: &mut Vec<(Time, Action)>) {
    let mut rng = Rng::new(scenario.seed ^ 0x666f_7267_6574);
    if !rng.chance(125_000) {
        return;
    }
    for _ in 0..rng.between(1, 2) {
        let at = BEGIN + rng.below(duration);
        let lagging = Name::Replica(rng.between(1, scenario.replicas.into()) as u8);
        actions.push((at, Action::Isolate(lagging, Direction::In)));
        let healed = at + rng.below(60 * MILLISECOND);
        actions.push((healed, Action::Heal));
        let lost = rng.between(
            u64::from(scenario.acceptors / 2 + 1),
            scenario.acceptors.into(),
        );
        let first = rng.below(scenario.acceptors.into());
        for n in first..first + lost {
            let acceptor = Name::Acceptor((n % u64::from(scenario.acceptors)) as u8 + 1);
            let at = at + rng.below(80 * MILLISECOND);
            actions.push((at, Action::Forget(acceptor)));
            let back = at + rng.below(100 * MILLISECOND);
            actions.push((back, Action::Restart(acceptor)));
        }
        for _ in 0..rng.between(1, 4) {
            let order = at + rng.below(800 * MILLISECOND);
            actions.push((order, Action::AcceptLoss));
        }
    }
}

/// Replaces the replicas' disks, one after the other, in one of eight runs, drawn separately.
fn disks(scenario: &Scenario, duration: Time, actions: &mut Vec<(Time, Action)>) {
    let mut rng = Rng::new(scenario.seed ^ 0x0064_6973_6b73);
    if !rng.chance(125_000) {
        return;
    }
    for _ in 0..rng.between(2, 12) {
        let at = BEGIN + rng.below(duration);
        let replica = Name::Replica(rng.between(1, scenario.replicas.into()) as u8);
        actions.push((at, Action::Wipe(replica)));
        let back = at + rng.below(50 * MILLISECOND);
        actions.push((back, Action::Restart(replica)));
    }
}

/// Loses the controller's store, or puts an old copy in its place, in one of eight runs, drawn
/// separately. It is made anew later. Nothing else is lost in these runs that the protocol doesn't
/// count on.
fn stores(scenario: &Scenario, duration: Time, actions: &mut Vec<(Time, Action)>) {
    let mut rng = Rng::new(scenario.seed ^ 0x7374_6f72_6573);
    let is_beyond = |(_, action): &(Time, Action)| {
        matches!(
            action,
            Action::Forget(_)
                | Action::PutBack(_)
                | Action::Lie(_)
                | Action::Rot(_)
                | Action::Rival
        )
    };
    if !rng.chance(125_000) || actions.iter().any(is_beyond) {
        return;
    }
    for _ in 0..rng.between(1, 3) {
        let at = BEGIN + rng.below(duration);
        if rng.chance(500_000) {
            let copied = BEGIN + rng.below(at - BEGIN + 1);
            actions.push((copied, Action::BackUp));
            actions.push((at, Action::Restore));
        } else {
            actions.push((at, Action::Forget(Name::Controller)));
        }
        for _ in 0..rng.between(1, 3) {
            if rng.chance(500_000) {
                let failover = at + rng.below(300 * MILLISECOND);
                actions.push((failover, Action::Failover));
            }
            actions.push((at + rng.below(400 * MILLISECOND), Action::Rebuild));
        }
    }
}

/// Copies an acceptor's disk and puts it back later, in a quarter of the runs with disks, drawn
/// separately.
fn old_copies(scenario: &Scenario, duration: Time, actions: &mut Vec<(Time, Action)>) {
    let mut rng = Rng::new(scenario.seed ^ 0x6f6c_6463_6f70);
    if !rng.chance(250_000) {
        return;
    }
    for _ in 0..rng.between(1, 3) {
        let acceptor = Name::Acceptor(rng.between(1, scenario.acceptors.into()) as u8);
        let copied = BEGIN + rng.below(duration);
        // A volatile acceptor's memory is on disk only between a stop and a start.
        let in_order = !scenario.durable || rng.chance(200_000);
        if in_order {
            actions.push((copied, Action::Stop));
        }
        actions.push((copied, Action::CopyDisk(acceptor)));
        let again = copied + rng.below(100 * MILLISECOND);
        match in_order {
            true => actions.push((again, Action::Start)),
            false if rng.chance(500_000) => {
                actions.push((again, Action::Crash(acceptor)));
                actions.push((again + MILLISECOND, Action::Restart(acceptor)));
            }
            false => {}
        }
        let back = again + rng.below(500 * MILLISECOND);
        actions.push((back, Action::PutBack(acceptor)));
        let restart = back + rng.below(50 * MILLISECOND);
        actions.push((restart, Action::Restart(acceptor)));
        if rng.chance(500_000) {
            let away = again + rng.below(200 * MILLISECOND);
            actions.push((away, Action::Crash(Name::Controller)));
            starts_again(acceptor, restart, in_order, &mut rng, actions);
        }
    }
}

/// Makes some of the acceptors' disks lie about syncs and flip bits, in a quarter of the runs with
/// disks, drawn separately.
fn bad_disks(scenario: &Scenario, duration: Time, actions: &mut Vec<(Time, Action)>) {
    let mut rng = Rng::new(scenario.seed ^ 0x6261_6464_6973);
    if !scenario.durable || !rng.chance(250_000) {
        return;
    }
    for _ in 0..rng.between(1, 4) {
        let acceptor = Name::Acceptor(rng.between(1, scenario.acceptors.into()) as u8);
        let at = BEGIN + rng.below(duration);
        if rng.chance(500_000) {
            actions.push((at, Action::Lie(acceptor)));
            let off = at + rng.below(300 * MILLISECOND);
            actions.push((off, Action::PowerOff(acceptor)));
            actions.push((off + rng.below(20 * MILLISECOND), Action::Restart(acceptor)));
            continue;
        }
        // The flipped bit is found while it is in use, or at the next start.
        let crashed = at + rng.below(4) * MILLISECOND;
        actions.push((at, Action::Rot(acceptor)));
        actions.push((crashed, Action::Crash(acceptor)));
        let back = crashed + rng.below(50 * MILLISECOND);
        actions.push((back, Action::Restart(acceptor)));
        let given_up = back + rng.below(100 * MILLISECOND);
        actions.push((given_up, Action::ForgetLog(acceptor)));
        actions.push((given_up, Action::Restart(acceptor)));
    }
}

/// Starts an acceptor so often before it is compared that its start's number is as large as any.
fn starts_again(
    acceptor: Name,
    started: Time,
    in_order: bool,
    rng: &mut Rng,
    actions: &mut Vec<(Time, Action)>,
) {
    let mut at = started;
    for _ in 0..rng.between(1, 3) {
        at += 2 * MILLISECOND;
        let (ends, begins) = match in_order {
            true => (Action::Stop, Action::Start),
            false => (Action::PowerOff(acceptor), Action::Restart(acceptor)),
        };
        actions.push((at, ends));
        actions.push((at + MILLISECOND, begins));
    }
    let compared = at + rng.below(50 * MILLISECOND);
    actions.push((compared, Action::Restart(Name::Controller)));
}

/// Adds a second controller on a copy of the store in one of sixteen runs, drawn separately.
fn rivals(scenario: &Scenario, duration: Time, actions: &mut Vec<(Time, Action)>) {
    let mut rng = Rng::new(scenario.seed ^ 0x7269_7661_6c73);
    if !rng.chance(62_500) {
        return;
    }
    for _ in 0..rng.between(1, 6) {
        actions.push((BEGIN + rng.below(duration), Action::Failover));
        actions.push((BEGIN + rng.below(duration), Action::Rival));
    }
}

/// Reads everything that a replica has now and then, in a quarter of the runs, drawn separately.
fn walks(scenario: &Scenario, duration: Time, actions: &mut Vec<(Time, Action)>) {
    let mut rng = Rng::new(scenario.seed ^ 0x7761_6c6b_7300);
    if !rng.chance(250_000) {
        return;
    }
    for _ in 0..rng.between(2, 12) {
        let walk = Action::Walk {
            client: rng.between(1, scenario.clients.into()) as u8,
            replica: rng.between(1, scenario.replicas.into()) as u8,
        };
        actions.push((BEGIN + rng.below(duration), walk));
    }
}

/// Draws a fault by a number below a hundred, and the action that ends it.
fn fault(scenario: &Scenario, kind: u64, rng: &mut Rng) -> (Action, Option<Action>) {
    let name = node(scenario, rng);
    match kind {
        0..30 => (Action::Crash(name), Some(Action::Restart(name))),
        30..42 => (Action::PowerOff(name), Some(Action::Restart(name))),
        42..52 => (Action::Pause(name), Some(Action::Resume(name))),
        52..66 => {
            let direction = *rng.pick(&[Direction::In, Direction::Out, Direction::Both]);
            (Action::Isolate(name, direction), Some(Action::Heal))
        }
        66..72 => {
            let other = node(scenario, rng);
            (Action::Cut(name, other), Some(Action::Heal))
        }
        72..78 => {
            let calm = Action::Network(scenario.rates);
            (Action::Network(rates(rng)), Some(calm))
        }
        78..86 => {
            let replica = Name::Replica(rng.between(1, scenario.replicas.into()) as u8);
            let kill = Action::KillIn(replica, rng.below(12) as u8);
            (kill, Some(Action::Restart(replica)))
        }
        86..90 => (Action::DiskFull(name), Some(Action::DiskFree(name))),
        90..94 => (Action::Failover, None),
        94 => (Action::Wipe(name), Some(Action::Restart(name))),
        95..97 => (Action::Stop, Some(Action::Start)),
        _ => (Action::Hour, None),
    }
}

fn node(scenario: &Scenario, rng: &mut Rng) -> Name {
    if scenario.learners > 0 && rng.chance(200_000) {
        return Name::Learner(rng.between(1, scenario.learners.into()) as u8);
    }
    let mut number = |n: u8| rng.between(1, n.into()) as u8;
    let (leader, acceptor) = (number(scenario.leaders), number(scenario.acceptors));
    let (replica, client) = (number(scenario.replicas), number(scenario.clients));
    match rng.below(20) {
        0..5 => Name::Leader(leader),
        5..12 => Name::Acceptor(acceptor),
        12..17 => Name::Replica(replica),
        17 | 18 => Name::Controller,
        _ => Name::Client(client),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_has_one_plan_and_it_can_be_read_back() {
        for seed in 0..100 {
            let drawn = plan(seed, &Limits::default());
            assert_eq!(drawn, plan(seed, &Limits::default()));
            assert_eq!(drawn.scenario.invalid(), None);
            let read = Plan::parse(&drawn.to_string()).unwrap();
            // Times are printed in microseconds, so a fraction of one would be lost.
            assert_eq!(read.to_string(), drawn.to_string());
        }
    }
}
