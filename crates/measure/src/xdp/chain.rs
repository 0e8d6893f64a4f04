// SPDX-License-Identifier: Apache-2.0
//! The whole chain at real links, driven by the kernel: requests to the leader, three acceptors on
//! links of their own, quorum learners at the replicas' links, their rings, a callback in user
//! space, which checks that each instance comes once and holds what was sent.
//!
//! Frames are made on every CPU given, as a network card's queues would bring them; what a frame
//! leads to happens on its CPU. The same links with bare forwarding are measured beside.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use aya::programs::xdp::XdpLink;
use paxos::MsgType;

use super::{ready, wiring};
use crate::generator::{Generator, Target, can_be_copied};
use crate::network::{Namespace, veth};
use loader::acceptor::Acceptor;
use loader::interface::Interface;
use loader::layout::Decision;
use loader::learner::decision;
use loader::object::{Object, Result, Role, directory};
use loader::ring::Ring;
use loader::run::counter;
use loader::sys::pin_to_cpu;

/// Tries of one system call: each call costs milliseconds.
const CHUNK: u32 = 1 << 22;
/// The most values under way, which is fewer than a ring has room for.
const OUTSTANDING: u64 = 24_576;
/// Values that acceptors still keep after they were delivered.
const KEPT: u64 = 8_192;
/// How long a reader of an empty ring sleeps: a ring has room for twenty times as much. A tenth of
/// it costs the chain a tenth in switches between threads.
const NAP: Duration = Duration::from_millis(1);
/// The longest time until the kernel begins, which may be a second on a busy machine.
const BEGIN: Duration = Duration::from_secs(10);
/// If nothing has arrived for this time, the missing values are lost.
const PATIENCE: Duration = Duration::from_secs(1);

/// The settings of the measurement.
#[derive(Clone, Debug)]
pub struct Options {
    /// Learners, each with a link to every acceptor.
    pub replicas: usize,
    /// Runs of each kind.
    pub runs: usize,
    /// Seconds of a run.
    pub seconds: f64,
    /// CPUs that make frames.
    pub cpus: Vec<usize>,
    /// True if packets are signed.
    pub signs: bool,
}

/// The measurements of one run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Run {
    /// Values stamped by the leader.
    pub sent: u64,
    /// Values that the callbacks of all replicas have seen, each instance once and with what was
    /// sent: that of the one that saw least.
    pub delivered: u64,
    /// The number of instances that came more than once, at all replicas together.
    pub repeated: u64,
    /// Decisions that hold something else than what was sent, or lie elsewhere.
    pub wrong: u64,
    /// Delivered values a second.
    pub values_per_s: f64,
    /// The rate of bare forwarding over the same links; the slowest receiver counts.
    pub forwarding_values_per_s: f64,
}

/// Measures; needs the privilege to make namespaces and to load programs.
pub fn chain(options: &Options) -> Result<Vec<Run>> {
    let dir = directory()?;
    let mut bare = Bare::new(&dir, options)?;
    let mut roles = Roles::new(&dir, options)?;
    (0..options.runs)
        .map(|at| {
            let forwarding = bare.run(options)?;
            // Leaders take the counters of a client once, and generators begin anew.
            if at > 0 && options.signs {
                roles = Roles::new(&dir, options)?;
            }
            let run = roles.run(options)?;
            Ok(Run {
                forwarding_values_per_s: forwarding,
                ..run
            })
        })
        .collect()
}

/// Frames sent off at once, so that what all of them lead to fits the links' queues.
fn batch(replicas: usize) -> u32 {
    64 / replicas.next_power_of_two() as u32
}

// ---- The network

/// One link, given by the interfaces at its ends.
type Ends = (Interface, Interface);

/// A switch, three nodes on links of their own, and replicas with a link to each of those.
struct Network {
    switch: Namespace,
    nodes: Vec<Namespace>,
    replicas: Vec<Namespace>,
    /// The links from the switch to each node.
    down: Vec<Ends>,
    /// The links from each node to each replica.
    up: Vec<Vec<Ends>>,
}

impl Network {
    fn new(replicas: usize) -> Result<Network> {
        let namespaces = |n| (0..n).map(|_| Namespace::new()).collect::<Result<Vec<_>>>();
        let switch = Namespace::new()?;
        let nodes = namespaces(ready::ACCEPTORS.len())?;
        let replicas = namespaces(replicas)?;
        let mut network = Network {
            switch,
            nodes,
            replicas,
            down: Vec::new(),
            up: Vec::new(),
        };
        for (at, node) in network.nodes.iter().enumerate() {
            let port = format!("node{at}");
            network
                .down
                .push(veth((&network.switch, &port), (node, "switch"))?);
            let links = network.replicas.iter().enumerate().map(|(to, replica)| {
                let (near, far) = (format!("replica{to}"), format!("node{at}"));
                veth((node, &near), (replica, &far))
            });
            network.up.push(links.collect::<Result<_>>()?);
        }
        network
            .switch
            .inside(|| can_be_copied(&network.down[0].0))?;
        Ok(network)
    }
}

fn to_each(links: &[Ends]) -> Vec<(&Interface, [u8; 6])> {
    links.iter().map(|(near, far)| (near, far.mac)).collect()
}

/// Returns the number of the only port.
fn only(links: &[Ends]) -> Option<u32> {
    match links {
        [(near, _)] => Some(near.index),
        _ => None,
    }
}

// ---- The roles

struct Roles {
    network: Network,
    leader: Object,
    acceptors: Vec<(Object, Acceptor)>,
    learners: Vec<Object>,
    trimmed: u64,
    _links: Vec<XdpLink>,
}

impl Roles {
    fn new(dir: &Path, options: &Options) -> Result<Roles> {
        let network = Network::new(options.replicas)?;
        let sign = |object: &mut Object| match options.signs {
            true => ready::sign(object),
            false => Ok(()),
        };
        let mut links = Vec::new();
        let (mut leader, _) = ready::stamping(dir, Role::Leader, 1)?;
        sign(&mut leader)?;
        let wire = || wiring::multicast(&mut leader, &to_each(&network.down), false);
        network.switch.inside(wire)?;
        Generator::new(&mut leader, Target::Program("leader"))?;
        let mut acceptors = Vec::new();
        for (at, number) in ready::ACCEPTORS.into_iter().enumerate() {
            let (mut object, acceptor) = ready::acceptor(dir, number)?;
            sign(&mut object)?;
            let node = &network.nodes[at];
            node.inside(|| wiring::multicast(&mut object, &to_each(&network.up[at]), false))?;
            let end = &network.down[at].1;
            links.push(wiring::attach(&mut object, "acceptor", node, end)?);
            acceptors.push((object, acceptor));
        }
        let mut learners = Vec::new();
        for (at, replica) in network.replicas.iter().enumerate() {
            let mut object = ready::learner(dir, 0)?;
            sign(&mut object)?;
            for from in &network.up {
                links.push(wiring::attach(
                    &mut object,
                    "learner",
                    replica,
                    &from[at].1,
                )?);
            }
            learners.push(object);
        }
        Ok(Roles {
            network,
            leader,
            acceptors,
            learners,
            trimmed: 0,
            _links: links,
        })
    }

    /// Runs the chain once, without bare forwarding, and returns the measurements.
    fn run(&mut self, options: &Options) -> Result<Run> {
        let before = self.stamped();
        let progress = Progress::new(self.learners.len(), options);
        let mut rings = Vec::new();
        for learner in &self.learners {
            rings.push(Ring::open(learner, 0)?);
        }
        let mut generators = Vec::new();
        for cpu in &options.cpus {
            let mut generator = Generator::of(&mut self.leader)?;
            generator.batch = batch(self.learners.len());
            generators.push((*cpu, generator));
        }
        let (switch, ingress) = (&self.network.switch, self.network.down[0].0.index);
        let mut limits = Vec::new();
        for (cpu, generator) in &generators {
            generator.load(*cpu, &request(*cpu, options.signs), 0, 0);
            generator.set_limit(*cpu, OUTSTANDING / 2 / options.cpus.len() as u64);
            limits.push((*cpu, Generator::of(&mut self.leader)?));
        }
        let (leader, acceptors) = (&self.leader, &self.acceptors);
        let trimmed = &mut self.trimmed;
        let result = thread::scope(|scope| {
            for (ring, seen) in rings.into_iter().zip(&progress.delivered) {
                let progress = &progress;
                scope.spawn(move || progress.read(ring, before, seen));
            }
            let sending: Vec<_> = generators
                .into_iter()
                .map(|(cpu, generator)| {
                    let progress = &progress;
                    scope.spawn(move || switch.inside(|| progress.send(&generator, cpu, ingress)))
                })
                .collect();
            let begun = progress.oversee(options.seconds, &limits, |inst| {
                // Instances go on from run to run.
                *trimmed = (*trimmed).max(before + inst);
                acceptors
                    .iter()
                    .try_for_each(|(_, a)| ready::trim(a, *trimmed))
            });
            for thread in sending {
                thread.join().expect("it doesn't panic")?;
            }
            let end = progress.settle(leader.counter(counter::CHANGED) - before);
            progress.over.store(true, Relaxed);
            begun.map(|(start, first)| (progress.least() - first, (end - start).as_secs_f64()))
        });
        progress.over.store(true, Relaxed);
        let (timed, seconds) = result?;
        Ok(Run {
            sent: self.stamped() - before,
            delivered: progress.least(),
            repeated: progress.repeated.load(Relaxed),
            wrong: progress.wrong.load(Relaxed),
            values_per_s: timed as f64 / seconds,
            forwarding_values_per_s: 0.0,
        })
    }

    fn stamped(&self) -> u64 {
        self.leader.counter(counter::CHANGED)
    }
}

/// Returns the client in whose name a CPU sends. 0 would be none: leaders refuse it.
fn client_of(cpu: usize) -> u64 {
    cpu as u64 + 1
}

/// Returns what a CPU sends: as a client of its own, so that values of different CPUs differ.
fn request(cpu: usize, signs: bool) -> Vec<u8> {
    let frame = ready::message_of(MsgType::Request, client_of(cpu));
    match signs {
        true => ready::with_room(&frame),
        false => frame,
    }
}

/// The values that a replica's callback was given in one run.
struct Taken {
    /// The value that each CPU sends.
    values: Vec<Option<[u8; super::VALUE_LEN]>>,
    first: u64,
    /// Everything from the first instance up to here came, and also the instances in `ahead`.
    next: u64,
    ahead: BTreeSet<u64>,
    repeated: u64,
    wrong: u64,
}

impl Taken {
    /// Creates the record of values from an instance on, which come from these CPUs.
    fn new(first: u64, cpus: &[usize]) -> Taken {
        let all = 0..=cpus.iter().copied().max().unwrap_or(0);
        let value = |cpu| cpus.contains(&cpu).then(|| ready::value_of(client_of(cpu)));
        Taken {
            values: all.map(value).collect(),
            first,
            next: first,
            ahead: BTreeSet::new(),
            repeated: 0,
            wrong: 0,
        }
    }

    /// Returns the number of instances that came, each once and with the right value.
    fn count(&self) -> u64 {
        self.next - self.first + self.ahead.len() as u64
    }

    fn record(&mut self, record: &[u8]) {
        let head = decision(record).expect("a whole record");
        let value = record[size_of::<Decision>()..].get(..usize::from(head.len));
        self.take(&head, value.unwrap_or_default());
    }

    fn take(&mut self, decision: &Decision, value: &[u8]) {
        let of_cpu = (0..).zip(&self.values);
        let mut sent = of_cpu.filter(|(cpu, _)| client_of(*cpu) == decision.client);
        let sent = sent.next().and_then(|(_, value)| value.as_ref());
        let whole = sent.is_some_and(|sent| sent[..] == *value);
        let plain = decision.request == ready::REQUEST && decision.flags == 0;
        if !whole || !plain || decision.pid != 0 || decision.inst < self.first {
            self.wrong += 1;
        } else if decision.inst < self.next || self.ahead.contains(&decision.inst) {
            self.repeated += 1;
        } else if decision.inst > self.next {
            self.ahead.insert(decision.inst);
        } else {
            self.next += 1;
            while self.ahead.remove(&self.next) {
                self.next += 1;
            }
        }
    }
}

/// The state that the threads of a run share.
struct Progress {
    /// The CPUs that send.
    cpus: Vec<usize>,
    signs: bool,
    /// The number of values delivered at each replica.
    delivered: Vec<AtomicU64>,
    repeated: AtomicU64,
    wrong: AtomicU64,
    /// True if nothing more is sent.
    stop: AtomicBool,
    /// True if nothing more is read.
    over: AtomicBool,
}

impl Progress {
    fn new(replicas: usize, options: &Options) -> Progress {
        Progress {
            cpus: options.cpus.clone(),
            signs: options.signs,
            repeated: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            delivered: (0..replicas).map(|_| AtomicU64::new(0)).collect(),
            stop: AtomicBool::new(false),
            over: AtomicBool::new(false),
        }
    }

    fn least(&self) -> u64 {
        let all = self.delivered.iter().map(|seen| seen.load(Relaxed));
        all.min().unwrap_or(0)
    }

    /// Makes requests on one CPU until it is told to stop; `limit` says how many.
    fn send(&self, generator: &Generator, cpu: usize, ingress: u32) -> Result<()> {
        pin_to_cpu(cpu).map_err(|e| e.to_string())?;
        let frame = request(cpu, self.signs);
        while !self.stop.load(Relaxed) {
            generator.send(ingress, &frame, CHUNK)?;
        }
        Ok(())
    }

    /// Reads a replica's ring until it is told that nothing more comes.
    fn read(&self, mut ring: Ring, first: u64, delivered: &AtomicU64) {
        let mut taken = Taken::new(first, &self.cpus);
        let mut read = 0u32;
        while !self.over.load(Relaxed) {
            while ring.next(|record| taken.record(record)).is_some() {
                read = read.wrapping_add(1);
                if read % 256 == 0 {
                    delivered.store(taken.count(), Relaxed);
                }
            }
            delivered.store(taken.count(), Relaxed);
            thread::sleep(NAP);
        }
        self.repeated.fetch_add(taken.repeated, Relaxed);
        self.wrong.fetch_add(taken.wrong, Relaxed);
    }

    /// Lets the run go on for its time: tells generators how far they may go, and acceptors what to
    /// forget. The time begins with the first values, and this returns how many those were.
    fn oversee(
        &self,
        seconds: f64,
        generators: &[(usize, Generator)],
        mut trim: impl FnMut(u64) -> Result<()>,
    ) -> Result<(Instant, u64)> {
        let asked = Instant::now();
        while self.least() == 0 && asked.elapsed() < BEGIN {
            thread::sleep(NAP);
        }
        let (start, first) = (Instant::now(), self.least());
        let (mut seen, mut since) = (first, start);
        let mut result = Ok(());
        while result.is_ok() && start.elapsed().as_secs_f64() < seconds {
            let least = self.least();
            let made: u64 = generators.iter().map(|(cpu, g)| g.made(*cpu)).sum();
            let more = (least + OUTSTANDING).saturating_sub(made) / generators.len() as u64;
            for (cpu, generator) in generators {
                generator.set_limit(*cpu, generator.made(*cpu) + more);
            }
            if least != seen {
                (seen, since) = (least, Instant::now());
            } else if since.elapsed() > PATIENCE {
                break;
            }
            result = trim(least.saturating_sub(KEPT));
            thread::sleep(NAP);
        }
        for (cpu, generator) in generators {
            generator.set_limit(*cpu, 0);
        }
        self.stop.store(true, Relaxed);
        result.map(|()| (start, first))
    }

    /// Waits for the last of the values sent; when the last one came.
    fn settle(&self, sent: u64) -> Instant {
        let (mut seen, mut since) = (self.least(), Instant::now());
        while self.least() < sent && since.elapsed() < PATIENCE {
            thread::sleep(NAP);
            if self.least() != seen {
                (seen, since) = (self.least(), Instant::now());
            }
        }
        since
    }
}

// ---- Bare forwarding

struct Bare {
    network: Network,
    switch: Object,
    sinks: Vec<Object>,
    _nodes: Vec<Object>,
    _links: Vec<XdpLink>,
}

impl Bare {
    /// Prepares bare forwarding; its generators sign frames if the roles do.
    fn new(dir: &Path, options: &Options) -> Result<Bare> {
        let network = Network::new(options.replicas)?;
        let mut links = Vec::new();
        let mut switch = ready::forwarder(dir, None)?;
        if options.signs {
            ready::sign(&mut switch)?;
        }
        let wire = || wiring::multicast(&mut switch, &to_each(&network.down), true);
        network.switch.inside(wire)?;
        Generator::new(&mut switch, Target::Program("forwarder"))?;
        let mut nodes = Vec::new();
        for (at, node) in network.nodes.iter().enumerate() {
            let mut object = ready::forwarder(dir, only(&network.up[at]))?;
            node.inside(|| wiring::multicast(&mut object, &to_each(&network.up[at]), true))?;
            let end = &network.down[at].1;
            links.push(wiring::attach(&mut object, "forwarder", node, end)?);
            nodes.push(object);
        }
        let mut sinks = Vec::new();
        for (at, replica) in network.replicas.iter().enumerate() {
            let mut object = ready::forwarder(dir, None)?;
            for from in &network.up {
                links.push(wiring::attach(
                    &mut object,
                    "bench_sink",
                    replica,
                    &from[at].1,
                )?);
            }
            sinks.push(object);
        }
        Ok(Bare {
            network,
            switch,
            sinks,
            _nodes: nodes,
            _links: links,
        })
    }

    /// Values a second: a third of the frames that the slowest sink takes.
    fn run(&mut self, options: &Options) -> Result<f64> {
        let counts = || self.sinks.iter().map(|sink| sink.counter(counter::CHANGED));
        let (switch, ingress) = (&self.network.switch, self.network.down[0].0.index);
        let signs = options.signs;
        let stop = AtomicBool::new(false);
        let mut generators = Vec::new();
        for cpu in &options.cpus {
            let mut generator = Generator::of(&mut self.switch)?;
            generator.batch = batch(self.sinks.len());
            generators.push((*cpu, generator));
        }
        let all = Generator::of(&mut self.switch)?;
        let taken = || counts().min().unwrap_or(0) / ready::ACCEPTORS.len() as u64;
        let before = taken();
        thread::scope(|scope| {
            let stop = &stop;
            let sending: Vec<_> = generators
                .into_iter()
                .map(|(cpu, generator)| {
                    let frame = request(cpu, signs);
                    let flood = move || flood(&generator, cpu, ingress, &frame, stop);
                    scope.spawn(move || switch.inside(flood))
                })
                .collect();
            let asked = Instant::now();
            while taken() == before && asked.elapsed() < BEGIN {
                thread::sleep(NAP);
            }
            let (start, first) = (Instant::now(), taken());
            thread::sleep(Duration::from_secs_f64(options.seconds));
            let rate = (taken() - first) as f64 / start.elapsed().as_secs_f64();
            stop.store(true, Relaxed);
            for cpu in &options.cpus {
                all.set_limit(*cpu, 0);
            }
            let mut results = sending.into_iter().map(|t| t.join().expect("no panic"));
            results.try_for_each(|result| result).map(|()| rate)
        })
    }
}

fn flood(
    generator: &Generator,
    cpu: usize,
    ingress: u32,
    frame: &[u8],
    stop: &AtomicBool,
) -> Result<()> {
    pin_to_cpu(cpu).map_err(|e| e.to_string())?;
    generator.load(cpu, frame, 0, 0);
    while !stop.load(Relaxed) {
        generator.send(ingress, frame, CHUNK)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
