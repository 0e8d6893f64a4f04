// SPDX-License-Identifier: Apache-2.0
//! Messages a second of one core with live frames over veth: frames are made in the kernel, cross a
//! link to the role in the driver of its far end, and what the role sends crosses links of its own
//! to where it is counted and dropped. In turns with that bare forwarding, in the role's place,
//! makes as many frames of each message: a machine that changes its speed every few seconds does so
//! to both.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use aya::programs::xdp::XdpLink;
use paxos::MsgType;

use super::{ready, wiring};
use crate::generator::{Generator, Target};
use crate::network::{Namespace, veth};
use crate::roles::AtLinks;
use loader::acceptor::Acceptor;
use loader::interface::Interface;
use loader::layout::GROUP_DELIVER;
use loader::object::{Object, Result, Role, Sizes, directory};
use loader::run::counter;
use loader::sys::pin_to_cpu;

const CPU: usize = 0;
/// Frames at once: few enough for the links' queues when the kernel leaves some to its thread.
const BATCH: u32 = 16;
/// No path is as fast as this.
const MOST_A_SECOND: f64 = 20e6;

/// Seconds of a turn, at most.
const TURN: f64 = 0.25;

/// The measurements of one role at links.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// The role's measurements.
    pub at_links: AtLinks,
    /// Frames of bare forwarding that didn't arrive, in all turns together.
    pub forwarding_lost: u64,
}

/// Measures all roles on the first CPU, in `runs` runs of `seconds` each; needs the
/// privilege to make namespaces and to load programs.
pub fn roles(runs: usize, seconds: f64, signs: bool) -> Result<Vec<Measured>> {
    let dir = directory()?;
    [Role::Leader, Role::Acceptor, Role::Learner, Role::Sequencer]
        .into_iter()
        .map(|role| measure(&dir, role, runs, seconds, signs))
        .collect()
}

fn measure(dir: &Path, role: Role, runs: usize, seconds: f64, signs: bool) -> Result<Measured> {
    let frames_per_msg = match role {
        Role::Leader | Role::Sequencer => 3.0,
        Role::Learner => 0.5,
        _ => 1.0,
    };
    let mut measured = AtLinks::new(role.name(), frames_per_msg);
    let mut forwarding_lost = 0;
    let turns = (seconds / TURN).ceil();
    for _ in 0..runs {
        let mut bare = Bench::new(dir, role, true, signs)?;
        let mut bench = Bench::new(dir, role, false, signs)?;
        for _ in 0..turns as usize {
            let rate = bare.send(seconds / turns)?;
            measured.forwarding_msgs_per_s.push(rate);
            measured.msgs_per_s.push(bench.send(seconds / turns)?);
        }
        forwarding_lost += bare.lost();
        measured.lost += bench.lost();
    }
    Ok(Measured {
        at_links: measured,
        forwarding_lost,
    })
}

/// A source, a node under test and sinks.
struct Bench {
    role: Role,
    source: Object,
    generator: Generator,
    node: Object,
    acceptor: Option<Acceptor>,
    sink: Object,
    frame: Vec<u8>,
    from: (Namespace, Interface),
    _links: Vec<XdpLink>,
    _namespaces: [Namespace; 2],
}

impl Bench {
    /// Prepares a role at its links. If `signs`, the source signs frames too, also before the bare
    /// path.
    fn new(dir: &Path, role: Role, bare: bool, signs: bool) -> Result<Bench> {
        let [from, at, to] = [Namespace::new()?, Namespace::new()?, Namespace::new()?];
        let (out, into) = veth((&from, "out"), (&at, "in"))?;
        let ports = if role.stamps() { 3 } else { 1 };
        let mut ends = Vec::new();
        for port in 0..ports {
            let name = format!("port{port}");
            ends.push(veth((&at, &name), (&to, &name))?);
        }
        let mut acceptor = None;
        let mut node = match role {
            _ if bare => ready::forwarder(dir, (ports == 1).then_some(ends[0].0.index))?,
            Role::Leader | Role::Sequencer => ready::stamping(dir, role, 1)?.0,
            Role::Acceptor => {
                let (object, control) = ready::acceptor(dir, ready::ACCEPTORS[0])?;
                acceptor = Some(control);
                object
            }
            _ => ready::learner(dir, GROUP_DELIVER)?,
        };
        let mut source = Object::load(dir, Role::Forwarder, &Sizes::of(1, 1, 1))?;
        let mut sink = Object::load(dir, Role::Forwarder, &Sizes::of(1, 1, 1))?;
        if signs {
            ready::sign(&mut source)?;
            ready::sign(&mut node)?;
        }
        let to_each: Vec<_> = ends.iter().map(|(near, far)| (near, far.mac)).collect();
        at.inside(|| wiring::multicast(&mut node, &to_each, bare))?;
        let program = match role {
            // Every other message leads to no frame, as every other vote does.
            Role::Learner if bare => "bench_every_other",
            _ => node.role().name(),
        };
        let mut links = vec![wiring::attach(&mut node, program, &at, &into)?];
        for (_, far) in &ends {
            links.push(wiring::attach(&mut sink, "bench_sink", &to, far)?);
        }
        let generator = from.inside(|| Generator::new(&mut source, Target::Port(out.index)))?;
        if program != node.role().name() {
            crate::generator::aim(&mut node, Target::Program("forwarder"))?;
        }
        let (msgtype, shift) = match role {
            Role::Leader | Role::Sequencer => (MsgType::Request, 0),
            Role::Acceptor => (MsgType::Phase2a, 0),
            _ => (MsgType::Phase2b, 1),
        };
        let mut frame = ready::message(msgtype);
        if signs {
            frame = ready::with_room(&frame);
        }
        generator.load(CPU, &frame, ready::ACCEPTORS[0], shift);
        Ok(Bench {
            role,
            frame,
            source,
            generator,
            node,
            acceptor,
            sink,
            from: (from, out),
            _links: links,
            _namespaces: [at, to],
        })
    }

    /// Returns what was lost in all turns.
    fn lost(&self) -> u64 {
        let made = self.generator.made(CPU);
        let accepted = self.node.counter(counter::CHANGED);
        let arrived = self.sink.counter(counter::CHANGED);
        let expected = match self.role {
            Role::Leader | Role::Sequencer => 3 * accepted,
            Role::Learner if self.node.role() == Role::Learner => {
                self.node.counter(counter::DECIDED)
            }
            _ => accepted,
        };
        made.saturating_sub(self.taken()) + expected.saturating_sub(arrived)
    }

    /// Sends frames, on one CPU, and returns messages a second from the first on: a call takes
    /// milliseconds, on a busy machine a second, to begin and to end. Meanwhile an acceptor is
    /// trimmed, and no instance sent that it has no room for.
    fn send(&mut self, seconds: f64) -> Result<f64> {
        let mut generator = Generator::of(&mut self.source)?;
        generator.batch = BATCH;
        let ((namespace, out), frame) = (&self.from, &self.frame);
        self.generator.set_limit(CPU, u64::MAX);
        self.make_room()?;
        let before = self.taken();
        thread::scope(|scope| {
            let sending = scope.spawn(move || {
                pin_to_cpu(CPU).map_err(|error| error.to_string())?;
                let frames = (seconds * MOST_A_SECOND) as u32;
                namespace.inside(|| generator.send(out.index, frame, frames))
            });
            while self.taken() == before && !sending.is_finished() {
                thread::sleep(Duration::from_millis(1));
            }
            let (start, first) = (Instant::now(), self.taken());
            let mut result = Ok(());
            while result.is_ok() && start.elapsed().as_secs_f64() < seconds {
                thread::sleep(Duration::from_millis(1));
                result = self.make_room();
            }
            let rate = (self.taken() - first) as f64 / start.elapsed().as_secs_f64();
            // The rest of the call takes no time.
            self.generator.set_limit(CPU, 0);
            sending.join().expect("it doesn't panic")?;
            result.map(|()| rate)
        })
    }

    /// Makes room by the number of messages made, not taken, so that a lost frame doesn't narrow
    /// the window for good.
    fn make_room(&self) -> Result<()> {
        let Some(acceptor) = &self.acceptor else {
            return Ok(());
        };
        let made = self.generator.made(CPU);
        let half = u64::from(ready::SLOTS) / 2;
        ready::trim(acceptor, made.saturating_sub(half))?;
        self.generator.set_limit(CPU, made + half);
        Ok(())
    }

    /// Returns the number of messages that the node has accepted.
    fn taken(&self) -> u64 {
        self.node.counter(counter::CHANGED) + self.node.counter(counter::ANSWERED)
    }
}
