// SPDX-License-Identifier: Apache-2.0
//! Two replicas execute random logs with commands over several partitions, by random schedules:
//! values in any order, late messages, kills, power failures that take each partition's unsynced
//! tail separately, checkpoints, and installs of the other replica's state. After each step each
//! partition must hold exactly what the logs say of its position. In other runs a loss is accepted:
//! the ranges that are given up begin at one replica's positions. The mistakes at the end, in what
//! the replica stores or is told, must be noticed. [V-ALIVE] [V-RECORD] [G-COMPLETE]

#[path = "../common/mod.rs"]
mod common;
mod logs;

use common::definition::{Effect, tallies};
use common::siblings::*;
use common::*;
use logs::World;
use paxos::wire::value::emit_marker;
use paxos::{Flags, Instance, PartitionId};
use replica::{Restored, SiblingMessage};

// ---- Schedules

/// A rule that is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    /// No outcome is stored, so a partition that has passed a copy calls it dead.
    NoRecord,
    /// Only the lowest partition stores the outcome.
    LowestRecordsAlone,
    /// The outcome is forgotten once siblings have committed it, before they have synced it.
    ForgottenAtCommit,
    /// The epoch of the last marker isn't stored.
    MarkerNotStored,
    /// A partition takes the other replica's state over by itself.
    FetchedAlone,
    /// A replica stores no note that it has begun an install.
    NoJournal,
    /// The source forgets outcomes while its partitions are copied one after the other.
    CopiedWithoutHold,
    /// A partition goes on behind its range whatever its siblings do.
    LeapsAlone,
}

/// For each partition, the position of a copy and its bytes.
type Copies = Vec<(Instance, Vec<u8>)>;

struct Run<'a> {
    world: &'a World,
    rng: Rng,
    mistake: Option<Mistake>,
    replicas: [Replica; 2],
    /// For each replica, the state that is being installed.
    installing: [Option<Copies>; 2],
    /// The beginnings of the ranges that were given up, and what each partition behind them holds.
    lost: Option<(Vec<Instance>, Vec<Tally>)>,
}

/// The end of the ranges that are given up.
const END: Instance = 1 << 32;

impl Run<'_> {
    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn go(mut self) -> Result<(), String> {
        for _ in 0..self.rng.between(20, 400) {
            let at = self.rng.below(2) as usize;
            self.step(at);
            self.check()?;
        }
        for at in 0..2 {
            while self.installing[at].is_some() {
                self.install(at);
            }
            self.ends(at)?;
        }
        self.check()
    }

    /// Runs a schedule with a loss: the replica that has executed most shows its positions, and all
    /// go on behind them.
    fn go_with_loss(mut self) -> Result<(), String> {
        for _ in 0..self.rng.between(20, 300) {
            let at = self.rng.below(2) as usize;
            self.step(at);
        }
        for at in 0..2 {
            while self.installing[at].is_some() {
                self.install(at);
            }
        }
        let sum = |at: usize| self.replicas[at].next().iter().sum::<Instance>();
        let chosen = usize::from(sum(1) > sum(0));
        let from = self.stop(chosen);
        let completed = self.world.completed(&from);
        self.lost = Some((from, completed));
        for _ in 0..self.rng.between(0, 150) {
            let at = self.rng.below(2) as usize;
            let pid = self.rng.below(self.world.logs.len() as u64) as usize;
            match self.rng.below(10) {
                0 | 1 => self.tell_loss(at, pid),
                // The chosen replica has stopped.
                2 if at == chosen => {}
                _ => self.step_without_values(at, pid, at != chosen),
            }
            self.check()?;
        }
        self.all_go_on(chosen)?;
        self.check()
    }

    /// Stops all partitions of a replica, and returns their positions.
    fn stop(&mut self, at: usize) -> Vec<Instance> {
        let replica = &mut self.replicas[at];
        let stop = |fed: &mut Fed| {
            fed.worker.stop_execution(3).unwrap();
            assert!(fed.worker.execution().is_stopped());
            while fed.worker.execution().stopped().is_none() {
                fed.finish();
                if fed.worker.is_checkpointing() {
                    fed.write_checkpoint().unwrap();
                }
            }
            fed.worker.execution().stopped().unwrap().1
        };
        replica.partitions.iter_mut().map(stop).collect()
    }

    fn tell_loss(&mut self, at: usize, pid: usize) {
        let from = &self.lost.as_ref().expect("it is accepted").0;
        let alone = self.makes(Mistake::LeapsAlone);
        let range = |of: usize| {
            if alone && of != pid {
                0..0
            } else {
                from[of]..END
            }
        };
        let ranges: Vec<_> = (0..from.len()).map(range).collect();
        let fed = self.replicas[at].at(pid);
        fed.worker.give_up(fed.now, &ranges);
        fed.worker.begins(3, END);
        fed.tell_epoch(3);
    }

    fn step_without_values(&mut self, at: usize, pid: usize, values: bool) {
        match self.rng.below(10) {
            0 if values => {
                let inst = self.replicas[at].at(pid).worker.next();
                self.world.decide(&mut self.replicas[at], pid, inst);
            }
            0..5 => {
                let from = self.rng.below(self.world.logs.len() as u64) as usize;
                self.replicas[at].deliver(from, pid);
            }
            5..7 => self.finish(at, pid),
            7 if self.installing[at].is_none() => self.replicas[at].checkpoint(pid),
            8 => {
                let all = 0..self.world.logs.len();
                let power: Vec<usize> = all.filter(|_| self.rng.chance(300_000)).collect();
                self.kill(at, &power);
            }
            _ if values => self.install(at),
            _ => {}
        }
    }

    /// Runs all replicas past the ranges without further faults, and checks that completed commands
    /// aren't executed again.
    fn all_go_on(&mut self, chosen: usize) -> Result<(), String> {
        let all = self.world.logs.len();
        for at in [chosen, 1 - chosen] {
            while self.installing[at].is_some() {
                self.install(at);
            }
            (0..all).for_each(|pid| self.tell_loss(at, pid));
            self.replicas[at].settle();
        }
        let other = 1 - chosen;
        if self.replicas[chosen].next().iter().any(|next| *next != END) {
            return Err(format!(
                "who was chosen stands at {:?}",
                self.replicas[chosen].next()
            ));
        }
        while self.replicas[other].next().iter().any(|next| *next < END) {
            self.install(other);
        }
        self.check()?;
        for pid in 0..all {
            let fed = self.replicas[chosen].at(pid);
            fed.give(END, Flags::NOOP, (0, 0), &emit_marker(3));
        }
        self.replicas[chosen].settle();
        for (number, vector) in self.world.vectors.iter().enumerate() {
            if !self.world.is_alive(number) {
                continue;
            }
            let completed = &self.lost.as_ref().expect("it is accepted").0;
            let passed =
                |(pid, inst): &(PartitionId, Instance)| *inst < completed[usize::from(*pid)];
            if !vector.places.iter().any(passed) {
                continue;
            }
            let (inst, value) = (self.replicas[chosen].next(), command(vector.request));
            let places = vector
                .places
                .iter()
                .map(|(pid, _)| (*pid, inst[usize::from(*pid)]));
            let places: Vec<_> = places.collect();
            for (pid, inst) in &places {
                let value = stamped(3, &places, &value);
                let fed = self.replicas[chosen].at((*pid).into());
                fed.give(*inst, Flags::MULTI, (SESSION, vector.request), &value);
            }
            self.replicas[chosen].settle();
        }
        Ok(())
    }

    fn step(&mut self, at: usize) {
        let pid = self.rng.below(self.world.logs.len() as u64) as usize;
        match self.rng.below(100) {
            0..45 => {
                let inst = self.replicas[at].at(pid).worker.next() + self.rng.below(3);
                self.world.decide(&mut self.replicas[at], pid, inst);
            }
            45..65 => {
                let from = self.rng.below(self.world.logs.len() as u64) as usize;
                for _ in 0..self.rng.between(1, 4) {
                    self.replicas[at].deliver(from, pid);
                }
            }
            65..85 => self.finish(at, pid),
            85..91 if self.installing[at].is_none() => self.replicas[at].checkpoint(pid),
            91..94 => self.kill(at, &[]),
            94..97 => {
                let all = 0..self.world.logs.len();
                let power: Vec<usize> = all.filter(|_| self.rng.chance(600_000)).collect();
                self.kill(at, &power);
            }
            _ => self.install(at),
        }
    }

    fn finish(&mut self, at: usize, pid: usize) {
        let replica = &mut self.replicas[at];
        let before = replica.at(pid).disk.committed();
        replica.finish(pid);
        let fed = replica.at(pid);
        let (next, committed) = (fed.worker.next(), fed.disk.committed() != before);
        if committed && self.mistake == Some(Mistake::ForgottenAtCommit) {
            for to in (0..self.world.logs.len()).filter(|to| *to != pid) {
                replica.mail[pid][to].push_back(SiblingMessage::Synced(next));
            }
        }
    }

    fn kill(&mut self, at: usize, power: &[usize]) {
        let mistake = self.mistake;
        for (pid, fed) in self.replicas[at].partitions.iter_mut().enumerate() {
            fed.disk.with(|d| {
                for image in [&mut d.committed, &mut d.durable] {
                    spoil(image, pid, mistake);
                }
            });
        }
        self.replicas[at].kill(power);
        knows_both_epochs(&mut self.replicas[at]);
        if self.makes(Mistake::NoJournal) {
            self.installing[at] = None;
        } else if self.installing[at].is_some() {
            begin_install(&mut self.replicas[at]);
        }
    }

    /// Begins an install of the other replica's state, or goes on with it.
    fn install(&mut self, at: usize) {
        let all = self.world.logs.len();
        let Some(copies) = self.installing[at].clone() else {
            if self.installing[1 - at].is_none() {
                let copies = self.copy(1 - at);
                if self.makes(Mistake::FetchedAlone) {
                    let pid = self.rng.below(all as u64) as usize;
                    put(&mut self.replicas[at], pid, &copies[pid]);
                    return;
                }
                begin_install(&mut self.replicas[at]);
                self.installing[at] = Some(copies);
            }
            return;
        };
        let missing =
            |pid: &usize| self.replicas[at].partitions[*pid].worker.next() < copies[*pid].0;
        if let Some(pid) = (0..all).find(missing) {
            put(&mut self.replicas[at], pid, &copies[pid]);
            return;
        }
        for fed in &mut self.replicas[at].partitions {
            fed.fold();
        }
        for fed in &mut self.replicas[at].partitions {
            fed.worker.end_install(fed.now);
        }
        self.installing[at] = None;
    }

    /// Copies the partitions one after the other, while the source goes on.
    fn copy(&mut self, of: usize) -> Copies {
        let hold = !self.makes(Mistake::CopiedWithoutHold);
        for fed in self.replicas[of].partitions.iter_mut().filter(|_| hold) {
            fed.worker.execution_mut().hold();
        }
        let mut order: Vec<usize> = (0..self.world.logs.len()).collect();
        if self.rng.chance(500_000) {
            order.reverse();
        }
        let mut copies = vec![(0, Vec::new()); order.len()];
        for pid in order {
            let (position, mut snapshot) = self.replicas[of].at(pid).worker.snapshot().unwrap();
            let mut bytes = Vec::new();
            snapshot.write_to(&mut bytes).unwrap();
            copies[pid] = (position, bytes);
            for _ in 0..self.rng.below(30) {
                let pid = self.rng.below(self.world.logs.len() as u64) as usize;
                match self.rng.below(4) {
                    0 if self.lost.is_none() => {
                        let inst = self.replicas[of].at(pid).worker.next();
                        self.world.decide(&mut self.replicas[of], pid, inst);
                    }
                    0 | 1 => self.replicas[of].checkpoint(pid),
                    _ => self.replicas[of].settle(),
                }
            }
        }
        for fed in self.replicas[of].partitions.iter_mut().filter(|_| hold) {
            fed.worker.execution_mut().release();
        }
        copies
    }

    /// Checks that each partition holds what the logs say of its position.
    fn check(&mut self) -> Result<(), String> {
        for at in (0..2).filter(|at| self.installing[*at].is_none()) {
            for (pid, fed) in self.replicas[at].partitions.iter_mut().enumerate() {
                let next = fed.worker.next();
                let expected = match &self.lost {
                    Some((_, completed)) if next >= END => &completed[pid],
                    _ => &self.world.expected[pid][next as usize],
                };
                let found = &fed.worker.application().tally;
                if found != expected {
                    return Err(format!(
                        "replica {at}, partition {pid}, position {next}: {found:?}, the logs say \
                         {expected:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Runs to the end without further faults, and checks that nothing is kept.
    fn ends(&mut self, at: usize) -> Result<(), String> {
        let length = self.world.length();
        let replica = &mut self.replicas[at];
        loop {
            let before = replica.next();
            for (pid, next) in before.iter().enumerate() {
                self.world.decide(replica, pid, *next);
            }
            replica.settle();
            if replica.next() == before {
                break;
            }
        }
        if replica.next().iter().any(|next| *next != length) {
            return Err(format!("replica {at} stands still at {:?}", replica.next()));
        }
        (0..self.world.logs.len()).for_each(|pid| replica.checkpoint(pid));
        replica.settle();
        if replica.kept().iter().any(|kept| *kept > 0) {
            return Err(format!("replica {at} keeps {:?} outcomes", replica.kept()));
        }
        Ok(())
    }
}

/// Begins an install, so that the workers execute nothing from now on.
fn begin_install(replica: &mut Replica) {
    for fed in &mut replica.partitions {
        fed.worker.begin_install().unwrap();
    }
}

/// Tells the replica both epochs; the logs are decided, or confirmed, in the later one.
fn knows_both_epochs(replica: &mut Replica) {
    let partitions = &mut replica.partitions;
    partitions.iter_mut().for_each(|fed| fed.tell_epoch(2));
}

fn put(replica: &mut Replica, pid: usize, (position, copy): &(Instance, Vec<u8>)) {
    let fed = replica.at(pid);
    if fed.worker.next() < *position {
        // The end of a checkpoint would put an older state in place of this one.
        if fed.worker.is_checkpointing() {
            fed.write_checkpoint().unwrap();
        }
        let restored = fed.worker.restore(fed.now, *position, &mut &copy[..]);
        assert!(matches!(restored, Ok(Restored::To(_))), "{restored:?}");
    }
}

/// Removes from a stored image what `mistake` leaves out.
fn spoil(image: &mut Image, pid: usize, mistake: Option<Mistake>) {
    match mistake {
        Some(Mistake::NoRecord) => image.records.retain(|key, _| key[0] != b'o'),
        Some(Mistake::LowestRecordsAlone) if pid > 0 => {
            image.records.retain(|key, _| key[0] != b'o');
        }
        Some(Mistake::MarkerNotStored) => {
            for (key, value) in &mut image.records {
                let marker = match key[0] {
                    b'p' => 8..12,
                    b'c' => 16..20,
                    _ => continue,
                };
                value[marker].fill(0);
            }
        }
        _ => {}
    }
}

/// An event after a while.
#[derive(Clone, Copy)]
enum Then {
    Nothing,
    LossAccepted,
}

fn run(seed: u64, mistake: Option<Mistake>, then: Then) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let world = World::draw(&mut rng);
    let partitions = world.logs.len() as u16;
    let run = Run {
        world: &world,
        rng,
        mistake,
        replicas: [0, 1].map(|_| {
            let mut replica = Replica::empty(partitions);
            knows_both_epochs(&mut replica);
            replica
        }),
        installing: [None, None],
        lost: None,
    };
    let came_of_it = match then {
        Then::Nothing => run.go(),
        Then::LossAccepted => run.go_with_loss(),
    };
    came_of_it.map_err(|why| format!("seed {seed}: {why}\n{world:#?}"))
}

#[test]
fn each_partition_holds_what_the_logs_say() {
    for seed in 0..3_000 {
        if let Err(why) = run(seed, None, Then::Nothing) {
            panic!("{why}");
        }
    }
}

/// An accepted loss never lets a command take effect in only some of its partitions. [G-LEAP]
/// [G-COMPLETE] [G-STOP]
#[test]
fn what_is_given_up_cuts_no_command_in_two() {
    for seed in 0..3_000 {
        if let Err(why) = run(seed, None, Then::LossAccepted) {
            panic!("{why}");
        }
    }
}

#[test]
fn logs_have_living_and_dead_copies_and_repeated_ones() {
    let (mut alive, mut dead, mut repeated) = (0, 0, 0);
    for seed in 0..300 {
        let world = World::draw(&mut Rng::new(seed));
        for (number, vector) in world.vectors.iter().enumerate() {
            match world.is_alive(number) {
                true => alive += 1,
                false => dead += 1,
            }
            let earlier = &world.vectors[..number];
            repeated += u32::from(earlier.iter().any(|v| v.request == vector.request));
        }
    }
    assert!(
        alive > 100 && dead > 100 && repeated > 30,
        "{alive} {dead} {repeated}"
    );
}

/// The random runs notice each rule that is left out. [V-FORGET] [V-MARKER] [X-HOLD] [X-INSTALL]
#[test]
fn each_rule_that_is_left_out_is_missed() {
    for mistake in [
        Mistake::NoRecord,
        Mistake::LowestRecordsAlone,
        Mistake::ForgottenAtCommit,
        Mistake::MarkerNotStored,
        Mistake::FetchedAlone,
        Mistake::NoJournal,
        Mistake::CopiedWithoutHold,
    ] {
        assert!(is_noticed(mistake, Then::Nothing), "{mistake:?}");
    }
    for mistake in [Mistake::LeapsAlone, Mistake::NoRecord] {
        assert!(is_noticed(mistake, Then::LossAccepted), "{mistake:?}");
    }
}

fn is_noticed(mistake: Mistake, then: Then) -> bool {
    (0..20_000).any(|seed| {
        let run = std::panic::catch_unwind(|| run(seed, Some(mistake), then));
        !matches!(run, Ok(Ok(())))
    })
}
