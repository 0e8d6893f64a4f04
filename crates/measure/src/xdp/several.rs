// SPDX-License-Identifier: Apache-2.0
//! A role's program on several CPUs at once, in test-run: what its messages have in common goes
//! from one CPU's cache to the other's.

use std::path::Path;
use std::sync::Barrier;
use std::thread;

use paxos::{MsgType, PartitionId};

use super::{CHUNK, chunks, median, ready};
use crate::generator::{self, Generator, Target};
use crate::stats;
use loader::object::{Object, Result, Role};
use loader::run::counter;
use loader::sys::pin_to_cpu;

/// The cost of a message while all CPUs stamp at once.
#[derive(Clone, PartialEq, Debug)]
pub struct Several {
    /// The number of CPUs.
    pub cpus: usize,
    /// The cost if all messages go to one partition, so that each takes the next of its instances.
    pub one_partition: Shared,
    /// Each CPU's messages go to a partition of its own.
    pub partition_each: Shared,
}

/// The cost for one way to share partitions.
#[derive(Clone, PartialEq, Debug)]
pub struct Shared {
    /// Nanoseconds a message on its CPU, the wrapper's taken off; the median of all chunks.
    pub ns_per_msg: f64,
    /// Messages a second of all CPUs together at that rate.
    pub msgs_per_s: f64,
    /// The number of messages that weren't stamped, of those in `messages`.
    pub refused: u64,
    /// The number of messages made in all.
    pub messages: u64,
}

impl Several {
    /// Medians of several runs.
    pub fn median<'a>(runs: impl Iterator<Item = &'a Several>) -> Option<Several> {
        let runs: Vec<&Several> = runs.collect();
        let cpus = runs.first()?.cpus;
        let of = |pick: fn(&Several) -> &Shared| {
            let ns: Vec<f64> = runs.iter().map(|run| pick(run).ns_per_msg).collect();
            let sum = |count: fn(&Shared) -> u64| runs.iter().map(|run| count(pick(run))).sum();
            let (refused, messages) = (sum(|s| s.refused), sum(|s| s.messages));
            Shared::at(cpus, stats::median(&ns), refused, messages)
        };
        Some(Several {
            cpus,
            one_partition: of(|run| &run.one_partition),
            partition_each: of(|run| &run.partition_each),
        })
    }
}

impl Shared {
    fn at(cpus: usize, ns_per_msg: f64, refused: u64, messages: u64) -> Shared {
        Shared {
            ns_per_msg,
            msgs_per_s: cpus as f64 * 1e9 / ns_per_msg,
            refused,
            messages,
        }
    }
}

/// Measures a leader or a sequencer on all CPUs at once; returns nothing on a machine with one CPU.
pub(super) fn stamping(
    dir: &Path,
    role: Role,
    seconds: f64,
    signs: bool,
) -> Result<Option<Several>> {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    if cpus == 1 {
        return Ok(None);
    }
    let (mut object, _) = ready::stamping(dir, role, cpus as PartitionId)?;
    if signs {
        ready::sign(&mut object)?;
    }
    let mut measure = |first: u64, pid_of: fn(usize) -> PartitionId| {
        // Each request's counter is taken once, so each CPU is another client each time.
        let frame = |cpu| {
            let frame = ready::message_to(MsgType::Request, first + cpu as u64, pid_of(cpu));
            match signs {
                true => ready::with_room(&frame),
                false => frame,
            }
        };
        measure(&mut object, (0..cpus).map(frame).collect(), seconds)
    };
    Ok(Some(Several {
        cpus,
        one_partition: measure(7, |_| 0)?,
        partition_each: measure(7 + cpus as u64, |cpu| cpu as PartitionId)?,
    }))
}

fn measure(object: &mut Object, frames: Vec<Vec<u8>>, seconds: f64) -> Result<Shared> {
    let role = Target::Program(object.role().name());
    let generator = Generator::new(object, role)?;
    let cpus = frames.len();
    for (cpu, frame) in frames.iter().enumerate() {
        generator.load(cpu, frame, 0, 0);
    }
    let before = object.counter(counter::CHANGED);
    let (mut alone, mut with_role) = (Vec::new(), Vec::new());
    for _ in chunks(seconds) {
        generator::aim(object, Target::Program("bench_nothing"))?;
        alone.push(chunk(object, &frames)?);
        generator::aim(object, role)?;
        with_role.push(chunk(object, &frames)?);
    }
    let messages = u64::from(CHUNK) * (alone.len() * cpus) as u64;
    let ns_per_msg = (median(&mut with_role) - median(&mut alone)).max(1.0);
    let refused = messages - (object.counter(counter::CHANGED) - before);
    Ok(Shared::at(cpus, ns_per_msg, refused, messages))
}

/// Runs all CPUs at once, and returns the mean nanoseconds for a message on each.
fn chunk(object: &mut Object, frames: &[Vec<u8>]) -> Result<f64> {
    let begin = Barrier::new(frames.len());
    let run_on = |cpu: usize, generator: Generator, frame: &[u8]| -> Result<f64> {
        let pinned = pin_to_cpu(cpu).map_err(|error| error.to_string());
        // A thread that can't go on mustn't leave the others waiting.
        begin.wait();
        pinned?;
        Ok(f64::from(generator.run(frame, CHUNK)?.ns))
    };
    thread::scope(|scope| {
        let generators = frames.iter().map(|_| Generator::of(object));
        let generators = generators.collect::<Result<Vec<_>>>()?;
        let threads: Vec<_> = generators
            .into_iter()
            .zip(frames)
            .enumerate()
            .map(|(cpu, (generator, frame))| {
                let run_on = &run_on;
                scope.spawn(move || run_on(cpu, generator, frame))
            })
            .collect();
        let mut sum = 0.0;
        for thread in threads {
            sum += thread.join().expect("it doesn't panic")?;
        }
        Ok(sum / frames.len() as f64)
    })
}
