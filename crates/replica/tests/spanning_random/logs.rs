// SPDX-License-Identifier: Apache-2.0
//! Logs and their meaning.

use super::*;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Entry {
    Open,
    Noop,
    Marker(u32),
    Single,
    Copy(usize),
}

#[derive(Clone, Debug)]
pub(super) struct Vectored {
    epoch: u32,
    pub(super) places: Vec<(PartitionId, Instance)>,
    pub(super) request: u64,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) logs: Vec<Vec<Entry>>,
    pub(super) vectors: Vec<Vectored>,
    /// The expected tally for each partition and position.
    pub(super) expected: Vec<Vec<Tally>>,
}

impl World {
    /// Draws logs as leaders of two epochs, lost packets and repairs may leave them.
    pub(super) fn draw(rng: &mut Rng) -> World {
        let partitions = rng.between(2, 3) as usize;
        let length = rng.between(4, 9);
        let marked = rng.chance(700_000);
        let markers: Vec<Instance> = (0..partitions)
            .map(|_| {
                if marked {
                    rng.between(1, length - 1)
                } else {
                    length
                }
            })
            .collect();
        let mut logs = vec![vec![Entry::Noop; length as usize]; partitions];
        for (log, marker) in logs.iter_mut().zip(&markers) {
            log[0] = Entry::Open;
            if marked {
                log[*marker as usize] = Entry::Marker(2);
            }
        }
        let mut vectors: Vec<Vectored> = Vec::new();
        let mut next = vec![1; partitions];
        let mut epoch = 1;
        for _ in 0..rng.between(1, 5) {
            if marked && epoch == 1 && rng.chance(300_000) {
                epoch = 2;
                next = markers.iter().map(|marker| marker + 1).collect();
            }
            let left_out = rng.below(2 * partitions as u64 - 2) as usize;
            let mut places = Vec::new();
            for pid in (0..partitions).filter(|pid| partitions == 2 || *pid != left_out) {
                let place = next[pid] + rng.below(2);
                next[pid] = place + 1;
                places.push((pid as PartitionId, place));
            }
            let fits = places.iter().all(|(_, place)| *place < length);
            if !fits {
                continue;
            }
            // Some commands are sent again, whether or not the first copy was lost.
            let again = vectors.iter().find(|v| v.places[0].0 == places[0].0);
            let repeated = again.filter(|_| rng.chance(250_000)).map(|v| v.request);
            let number = vectors.len();
            for (pid, place) in &places {
                let slot = &mut logs[usize::from(*pid)][*place as usize];
                if *slot == Entry::Noop && rng.chance(850_000) {
                    *slot = Entry::Copy(number);
                }
            }
            vectors.push(Vectored {
                epoch,
                places,
                request: repeated.unwrap_or(40 + number as u64),
            });
        }
        for slot in logs.iter_mut().flatten() {
            if *slot == Entry::Noop && rng.chance(500_000) {
                *slot = Entry::Single;
            }
        }
        let mut world = World {
            logs,
            vectors,
            expected: Vec::new(),
        };
        world.expected = world.expect();
        world
    }

    pub(super) fn length(&self) -> Instance {
        self.logs[0].len() as Instance
    }

    pub(super) fn is_alive(&self, number: usize) -> bool {
        let vector = &self.vectors[number];
        vector.places.iter().all(|(pid, place)| {
            let (before, rest) = self.logs[usize::from(*pid)].split_at(*place as usize);
            let later = |e: &Entry| matches!(e, Entry::Marker(epoch) if *epoch > vector.epoch);
            rest[0] == Entry::Copy(number) && !before.iter().any(later)
        })
    }

    pub(super) fn expect(&self) -> Vec<Vec<Tally>> {
        tallies(&self.logs, |pid, inst, entry| match *entry {
            Entry::Single => Effect::Counts(number_of(pid, inst as u64)),
            Entry::Copy(number) if self.is_alive(number) => Effect::Spans {
                places: &self.vectors[number].places,
                request: self.vectors[number].request,
            },
            Entry::Open | Entry::Noop | Entry::Marker(_) | Entry::Copy(_) => Effect::Nothing,
        })
    }

    /// Returns what each partition holds after it has gone on behind ranges that begin at these
    /// positions. A command that some partition has passed before takes effect in all.
    pub(super) fn completed(&self, from: &[Instance]) -> Vec<Tally> {
        let at = |pid: usize, inst: Instance| &self.expected[pid][inst as usize];
        let mut completed: Vec<Tally> = (0..from.len())
            .map(|pid| at(pid, from[pid]).clone())
            .collect();
        for (number, vector) in self.vectors.iter().enumerate() {
            let passed = |(pid, inst): &(PartitionId, Instance)| *inst < from[usize::from(*pid)];
            if !self.is_alive(number) || !vector.places.iter().any(passed) {
                continue;
            }
            for place in vector.places.iter().filter(|place| !passed(place)) {
                let (pid, inst) = (usize::from(place.0), place.1);
                let (before, after) = (at(pid, inst), at(pid, inst + 1));
                let tally = &mut completed[pid];
                tally.total += after.total - before.total;
                for (command, times) in &after.by_command {
                    let known = before.by_command.get(command);
                    if known != Some(times) {
                        *tally.by_command.entry(*command).or_default() +=
                            times - known.unwrap_or(&0);
                    }
                }
            }
        }
        completed
    }

    /// Decides a value in one partition of a replica.
    pub(super) fn decide(&self, replica: &mut Replica, pid: usize, inst: Instance) {
        let Some(entry) = self.logs[pid].get(inst as usize) else {
            return;
        };
        let fed = replica.at(pid);
        let _ = match *entry {
            Entry::Open => {
                let op = open(false, 64, replica::protocol::ReplyAddress::default());
                fed.decide(inst, Flags::NONE, (7, 0), &op.to_bytes())
            }
            Entry::Noop => fed.decide(inst, Flags::NOOP, (0, 0), &[]),
            Entry::Marker(epoch) => fed.decide(inst, Flags::NOOP, (0, 0), &emit_marker(epoch)),
            Entry::Single => {
                let command = command(number_of(pid, inst));
                fed.decide(inst, Flags::NONE, (SESSION, 10 + inst), &command)
            }
            Entry::Copy(number) => {
                let vector = &self.vectors[number];
                let value = stamped(vector.epoch, &vector.places, &command(vector.request));
                fed.decide(inst, Flags::MULTI, (SESSION, vector.request), &value)
            }
        };
    }
}

fn number_of(pid: usize, inst: Instance) -> u64 {
    1_000 * (pid as u64 + 1) + inst
}
