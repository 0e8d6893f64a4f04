// SPDX-License-Identifier: Apache-2.0
//! One replica executes random logs with commands over several partitions, as two sessions of
//! NOPaxos may leave them. Its copy of a log may be wrong beyond what is stable, like a deposed
//! leader's; it is executed as far as allowed and then changes. Messages between partitions are
//! late, and there are kills and power failures. Each partition's state of the stable log, and
//! everything stored, must be what the logs say. [V-ALIVE] [V-STABLE] [V-KEPT] [V-SEALED]

mod common;

use common::definition::{Effect, tallies};
use common::siblings::{SESSION, stamped};
use common::written::*;
use common::*;
use paxos::{Flags, Instance, PartitionId};
use replica::protocol::ReplyAddress;
use replica::{Settings, SiblingMessage, Worker};
use std::collections::VecDeque;

// ---- Logs and their meaning

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Entry {
    Open,
    Noop,
    /// A command with this number.
    Single(u64),
    /// A copy of this vector.
    Copy(usize),
}

#[derive(Clone, Debug)]
struct Vectored {
    session: u32,
    places: Vec<(PartitionId, Instance)>,
    request: u64,
}

#[derive(Debug)]
struct World {
    length: usize,
    /// For each partition, the position at which the second session begins.
    sealed: Vec<usize>,
    /// For each partition and slot, the entry that the first session's sequencer has stamped, also
    /// beyond the sealed position.
    first: Vec<Vec<Entry>>,
    logs: Vec<Vec<Entry>>,
    vectors: Vec<Vectored>,
    /// The expected tally for each partition and position.
    expected: Vec<Vec<Tally>>,
}

impl World {
    fn draw(rng: &mut Rng) -> World {
        let partitions = rng.between(2, 3) as usize;
        let length = rng.between(4, 10) as usize;
        let sealed: Vec<usize> = (0..partitions)
            .map(|_| rng.between(1, length as u64) as usize)
            .collect();
        let mut world = World {
            length,
            sealed: sealed.clone(),
            first: Vec::new(),
            logs: Vec::new(),
            vectors: Vec::new(),
            expected: Vec::new(),
        };
        world.first = world.stamp(1, vec![1; partitions], rng);
        let second = world.stamp(2, sealed.clone(), rng);
        for pid in 0..partitions {
            let stamped = |inst: usize| match inst < sealed[pid] {
                true => world.first[pid][inst],
                false => second[pid][inst],
            };
            let mut log: Vec<Entry> = (0..length).map(stamped).collect();
            for entry in &mut log[1..] {
                if rng.chance(150_000) {
                    *entry = Entry::Noop;
                }
            }
            world.logs.push(log);
        }
        world.expected = world.expect();
        world
    }

    /// Stamps entries from these slots on, until the logs are full.
    fn stamp(&mut self, session: u32, mut next: Vec<usize>, rng: &mut Rng) -> Vec<Vec<Entry>> {
        let partitions = next.len();
        let mut stamped = vec![vec![Entry::Noop; self.length]; partitions];
        stamped.iter_mut().for_each(|log| log[0] = Entry::Open);
        for number in 0..rng.between(2, 14) {
            let mut pids: Vec<usize> = (0..partitions).collect();
            let several = rng.chance(600_000);
            while pids.len() > if several { 2 } else { 1 } {
                pids.remove(rng.below(pids.len() as u64) as usize);
            }
            if pids.iter().any(|pid| next[*pid] == self.length) {
                continue;
            }
            let entry = match several {
                true => Entry::Copy(self.vectors.len()),
                false => Entry::Single(u64::from(session) * 20 + number),
            };
            let places: Vec<_> = pids
                .iter()
                .map(|pid| (*pid as PartitionId, next[*pid] as Instance))
                .collect();
            for pid in pids {
                stamped[pid][next[pid]] = entry;
                next[pid] += 1;
            }
            if several {
                // Some commands are sent again, whether or not the first copy was lost.
                let again = self.vectors.iter().find(|v| v.places[0].0 == places[0].0);
                let repeated = again.filter(|_| rng.chance(350_000)).map(|v| v.request);
                let request = repeated.unwrap_or(u64::from(session) * 20 + number);
                self.vectors.push(Vectored {
                    session,
                    places,
                    request,
                });
            }
        }
        stamped
    }

    fn is_alive(&self, number: usize) -> bool {
        let mut places = self.vectors[number].places.iter();
        places.all(|(pid, place)| {
            self.logs[usize::from(*pid)][*place as usize] == Entry::Copy(number)
        })
    }

    fn expect(&self) -> Vec<Vec<Tally>> {
        tallies(&self.logs, |_, _, entry| match *entry {
            Entry::Single(number) => Effect::Counts(number),
            Entry::Copy(number) if self.is_alive(number) => Effect::Spans {
                places: &self.vectors[number].places,
                request: self.vectors[number].request,
            },
            Entry::Open | Entry::Noop | Entry::Copy(_) => Effect::Nothing,
        })
    }

    fn value(&self, entry: Entry) -> Value {
        match entry {
            Entry::Open => {
                let op = open(false, 64, ReplyAddress::default());
                (Flags::NONE, 7, 0, op.to_bytes())
            }
            Entry::Noop => (Flags::NOOP, 0, 0, Vec::new()),
            Entry::Single(number) => (Flags::NONE, SESSION, number, command(number)),
            Entry::Copy(number) => {
                let vector = &self.vectors[number];
                let value = stamped(vector.session, &vector.places, &command(vector.request));
                (Flags::MULTI, SESSION, vector.request, value)
            }
        }
    }
}

// ---- Schedules

struct Run<'a> {
    world: &'a World,
    rng: Rng,
    disks: Vec<Disk>,
    partitions: Vec<Ahead<Durable>>,
    /// For each partition, the length of its log that is already final.
    right: Vec<usize>,
    /// Messages by sender and receiver.
    mail: Vec<Vec<VecDeque<SiblingMessage>>>,
    /// The number of times that execution was taken back.
    rollbacks: u64,
}

impl Run<'_> {
    fn new(world: &World, rng: Rng) -> Run<'_> {
        let count = world.logs.len();
        let disks: Vec<Disk> = (0..count).map(|_| Disk::default()).collect();
        let open = |(pid, disk): (usize, &Disk)| {
            disk.with(|d| d.spans = true);
            Ahead::new(settings_of(pid, count), Durable::open(disk))
        };
        Run {
            world,
            rng,
            partitions: disks.iter().enumerate().map(open).collect(),
            disks,
            right: vec![0; count],
            mail: vec![vec![VecDeque::new(); count]; count],
            rollbacks: 0,
        }
    }

    fn go(mut self) -> Result<u64, String> {
        for _ in 0..self.rng.between(50, 500) {
            self.step();
            self.check()?;
        }
        self.ends()?;
        Ok(self.rollbacks)
    }

    fn step(&mut self) {
        let pid = self.rng.below(self.partitions.len() as u64) as usize;
        match self.rng.below(100) {
            0..35 => self.grow(pid),
            35..50 => {
                let stable = self.partitions[pid].stable;
                let more = self.rng.below(self.right[pid] as u64 + 1 - stable);
                self.partitions[pid].stable_below(stable + more);
            }
            50..70 => {
                let from = self.rng.below(self.partitions.len() as u64) as usize;
                for _ in 0..self.rng.between(1, 3) {
                    self.deliver(from, pid);
                }
            }
            70..88 => self.finish(pid),
            88..92 => self.partitions[pid].tick(),
            92..95 => self.checkpoint(pid),
            95..97 => self.seal(pid),
            97 => self.kill(false),
            98 => self.kill(true),
            _ => drop(self.partitions[pid].worker.digest().unwrap()),
        }
    }

    /// Adds an entry, right or wrong, at the end of the log or in place of a wrong one.
    fn grow(&mut self, pid: usize) {
        let (right, length) = (self.right[pid], self.partitions[pid].log.len());
        let is_wrong = length > right;
        let is_mended = is_wrong && self.rng.chance(400_000);
        let at = if is_mended { right } else { length };
        if at >= self.world.length {
            return;
        }
        let goes_wrong = match is_wrong {
            true => !is_mended,
            false => self.rng.chance(250_000),
        };
        let entry = match (goes_wrong, self.rng.below(3)) {
            (false, _) => self.world.logs[pid][at],
            (true, 0) => Entry::Noop,
            (true, 1) => Entry::Single(60 + at as u64),
            (true, _) => self.world.first[pid][at],
        };
        self.partitions[pid].put(at, self.world.value(entry));
        if at == right && entry == self.world.logs[pid][at] {
            self.right[pid] = at + 1;
        }
    }

    fn finish(&mut self, pid: usize) {
        let partition = &mut self.partitions[pid];
        partition.finish();
        for (to, message) in std::mem::take(&mut partition.out.mail) {
            self.mail[pid][usize::from(to)].push_back(message);
        }
    }

    fn deliver(&mut self, from: usize, to: usize) -> bool {
        let Some(message) = self.mail[from][to].pop_front() else {
            return false;
        };
        let partition = &mut self.partitions[to];
        let now = partition.now;
        partition.worker.sibling(now, from as PartitionId, message);
        true
    }

    fn checkpoint(&mut self, pid: usize) {
        let partition = &mut self.partitions[pid];
        if let Some(write) = partition.worker.take_checkpoint() {
            partition
                .worker
                .end_checkpoint(partition.now, write())
                .unwrap();
        }
        if !partition.worker.is_checkpointing() {
            partition.worker.checkpoint(partition.now).unwrap();
        }
        self.finish(pid);
    }

    fn seal(&mut self, pid: usize) {
        let at = self.world.sealed[pid] as Instance;
        self.partitions[pid].worker.begins(2, at);
    }

    fn kill(&mut self, power: bool) {
        let count = self.partitions.len();
        self.mail = vec![vec![VecDeque::new(); count]; count];
        for (partition, disk) in self.partitions.iter_mut().zip(&self.disks) {
            if power && self.rng.chance(600_000) {
                disk.power_failure();
            }
            self.rollbacks += partition.worker.statistics().rollbacks;
            partition.out = Out::default();
            partition.restart(Durable::open(disk));
        }
    }

    fn check(&mut self) -> Result<(), String> {
        for (pid, partition) in self.partitions.iter_mut().enumerate() {
            let next = partition.worker.next();
            let expected = |inst: Instance| &self.world.expected[pid][inst as usize];
            let holds = &partition.worker.application().tally;
            if next <= partition.stable && holds != expected(next) {
                return Err(format!(
                    "partition {pid} holds {holds:?} at {next}, the logs say {:?}",
                    expected(next)
                ));
            }
            let app = Durable::open(&self.disks[pid]);
            let stored = Worker::<_, Written>::open_in(partition.settings.clone(), app, 1, 0);
            let mut stored = stored.map_err(|e| e.to_string())?;
            let next = stored.next();
            if next > partition.stable || stored.application().tally != *expected(next) {
                return Err(format!(
                    "partition {pid} has stored {next} and what isn't so"
                ));
            }
        }
        Ok(())
    }

    /// Runs to the end without further faults, and checks that nothing is kept.
    fn ends(&mut self) -> Result<(), String> {
        let count = self.partitions.len();
        for pid in 0..count {
            self.seal(pid);
            for at in self.right[pid]..self.world.length {
                let value = self.world.value(self.world.logs[pid][at]);
                self.partitions[pid].put(at, value);
            }
            self.right[pid] = self.world.length;
            self.partitions[pid].stable_below(self.world.length as Instance);
        }
        self.settle();
        self.check()?;
        let stand: Vec<_> = self.partitions.iter().map(|p| p.worker.next()).collect();
        if stand
            .iter()
            .any(|next| *next != self.world.length as Instance)
        {
            return Err(format!("they stand still at {stand:?}"));
        }
        (0..count).for_each(|pid| self.checkpoint(pid));
        self.settle();
        let kept = |p: &Ahead<Durable>| p.worker.execution().kept_outcomes();
        if self.partitions.iter().any(|p| kept(p) > 0) {
            return Err("outcomes are kept".into());
        }
        let rollbacks = self
            .partitions
            .iter()
            .map(|p| p.worker.statistics().rollbacks);
        self.rollbacks += rollbacks.sum::<u64>();
        Ok(())
    }

    fn settle(&mut self) {
        let count = self.partitions.len();
        let mut again = true;
        while again {
            (0..count).for_each(|pid| self.finish(pid));
            again = false;
            for pair in 0..count * count {
                while self.deliver(pair / count, pair % count) {
                    again = true;
                }
            }
        }
    }
}

fn settings_of(pid: usize, partitions: usize) -> Settings {
    let mut settings = ahead_settings();
    settings.deployment.partitions = partitions as u16;
    settings.pid = pid as PartitionId;
    settings
}

#[test]
fn what_is_stable_and_what_is_stored_is_what_the_logs_say() {
    let (mut alive, mut dead, mut rollbacks) = (0, 0, 0);
    for seed in 0..3_000 {
        let mut rng = Rng::new(seed);
        let world = World::draw(&mut rng);
        for number in 0..world.vectors.len() {
            match world.is_alive(number) {
                true => alive += 1,
                false => dead += 1,
            }
        }
        match Run::new(&world, rng).go() {
            Ok(taken_back) => rollbacks += taken_back,
            Err(why) => panic!("seed {seed}: {why}\n{world:#?}"),
        }
    }
    assert!(
        alive > 1_000 && dead > 1_000 && rollbacks > 1_000,
        "{alive} {dead} {rollbacks}"
    );
}
