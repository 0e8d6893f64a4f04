// SPDX-License-Identifier: Apache-2.0
//! How long a role's program takes, message by message, by BPF_PROG_TEST_RUN.
//!
//! A wrapper makes the packet new before each repetition, with the next instance, so the whole ring
//! is walked; every repetition must be accepted, or there is no result. The wrapper's own time,
//! measured by turns with the role's, is taken off.

pub mod chain;
pub mod live;
mod ready;
pub mod several;
mod wiring;

use std::path::Path;
use std::thread;
use std::time::Instant;

use paxos::MsgType;

use self::several::Several;
use crate::generator::{self, Generator, Target};
use loader::object::{Object, Result, Role, directory};
use loader::ring::Ring;
use loader::run::{Runner, action, counter};
use loader::sys::pin_to_this_cpu;

/// Bytes of a value: with Ethernet, IPv4 and UDP the frame has 154 bytes.
pub const VALUE_LEN: usize = 64;
/// Repetitions of one system call: half a ring, as acceptors are trimmed in between.
const CHUNK: u32 = 32_768;
/// The least number of measurements of each role, however little time there is: a median of fewer
/// says nothing.
const MIN_CHUNKS: usize = 3;

/// The cost of a message for one role.
#[derive(Clone, PartialEq, Debug)]
pub struct RoleMeasurement {
    /// `leader`, `acceptor`, `learner`, `sequencer`, `receiver`, `forwarder`, or `egress`: what
    /// each multicast copy takes.
    pub role: &'static str,
    /// Nanoseconds a message, the wrapper's taken off; the median of all chunks.
    pub ns_per_msg: f64,
    /// Messages a second of one core at that rate.
    pub msgs_per_s: f64,
    /// The nanoseconds of a message for bare forwarding, measured in the same run.
    pub forwarding_ns_per_msg: f64,
    /// The nanoseconds that were subtracted for making the packet and for the tail call.
    pub wrapper_ns: f64,
    /// Messages of this measurement, all accepted.
    pub messages: u64,
    /// The cost on several CPUs at once, for roles that write common data for all messages.
    pub several: Option<Several>,
}

/// Measures all roles for this many seconds each, one after the other on one CPU, and those that
/// stamp on all CPUs at once. Needs the privilege to load programs.
pub fn roles(seconds: f64, signs: bool) -> Result<Vec<RoleMeasurement>> {
    roles_from(&directory()?, seconds, signs)
}

/// Measures the roles with the objects of another directory. If `signs`, the roles check and make
/// tags.
pub fn roles_from(dir: &Path, seconds: f64, signs: bool) -> Result<Vec<RoleMeasurement>> {
    // A thread of its own, as it binds itself to a CPU.
    let on_its_own = || on_this_thread(dir, seconds, signs);
    let measured = thread::scope(|scope| scope.spawn(on_its_own).join());
    measured.expect("it doesn't panic")
}

fn on_this_thread(dir: &Path, seconds: f64, signs: bool) -> Result<Vec<RoleMeasurement>> {
    // First, while all CPUs are this thread's.
    let of_leaders = several::stamping(dir, Role::Leader, seconds, signs)?;
    let of_sequencers = several::stamping(dir, Role::Sequencer, seconds, signs)?;
    let mut measured = vec![forwarder(dir, seconds, signs)?];
    measured.extend(leader(dir, seconds, signs)?);
    measured.push(acceptor(dir, seconds, signs)?);
    measured.push(learner(dir, seconds, signs)?);
    measured.push(sequencer(dir, seconds, signs)?);
    measured.push(receiver(dir, seconds, signs)?);
    let forwarding = measured[0].ns_per_msg;
    for role in &mut measured {
        role.forwarding_ns_per_msg = forwarding;
        role.several = match role.role {
            "leader" => of_leaders.clone(),
            "sequencer" => of_sequencers.clone(),
            _ => None,
        };
    }
    Ok(measured)
}

fn forwarder(dir: &Path, seconds: f64, signs: bool) -> Result<RoleMeasurement> {
    // The copies go to every entry of `multicast`; in a test run it doesn't matter that there is
    // none.
    let object = ready::forwarder(dir, None)?;
    let mut bench = Wrapped::new(object, Role::Forwarder.name(), MsgType::Request, 0, signs)?;
    bench.measure(seconds, action::REDIRECT, |_, _| Ok(()))
}

/// Measures the leader, and what each copy of its proposals costs on egress.
fn leader(dir: &Path, seconds: f64, signs: bool) -> Result<[RoleMeasurement; 2]> {
    let (mut object, _) = ready::stamping(dir, Role::Leader, 1)?;
    Runner::new(&mut object, ready::GROUP)?;
    let mut bench = Wrapped::new(object, Role::Leader.name(), MsgType::Request, 0, signs)?;
    let stamping = bench.measure(seconds, action::REDIRECT, |_, _| Ok(()))?;
    let mut bench = Wrapped::new(bench.object, "test_egress", MsgType::Phase2a, 0, signs)?;
    let egress = bench.measure(seconds, action::PASS, |_, _| Ok(()))?;
    Ok([stamping, egress])
}

fn sequencer(dir: &Path, seconds: f64, signs: bool) -> Result<RoleMeasurement> {
    let (object, _) = ready::stamping(dir, Role::Sequencer, 1)?;
    let mut bench = Wrapped::new(object, Role::Sequencer.name(), MsgType::Request, 0, signs)?;
    bench.measure(seconds, action::REDIRECT, |_, _| Ok(()))
}

fn acceptor(dir: &Path, seconds: f64, signs: bool) -> Result<RoleMeasurement> {
    let (object, acceptor) = ready::acceptor(dir, ready::ACCEPTORS[0])?;
    let mut bench = Wrapped::new(object, Role::Acceptor.name(), MsgType::Phase2a, 0, signs)?;
    // Makes room for the next chunk.
    bench.measure(seconds, action::REDIRECT, |_, next| {
        ready::trim(&acceptor, next)
    })
}

fn learner(dir: &Path, seconds: f64, signs: bool) -> Result<RoleMeasurement> {
    let object = ready::learner(dir, 0)?;
    // Two votes an instance: the first is counted, the second decides. A third would be dropped.
    let mut bench = Wrapped::new(object, Role::Learner.name(), MsgType::Phase2b, 1, signs)?;
    bench.measure(seconds, action::DROP, |object, next| {
        empty_ring(object, if next == 0 { 0 } else { CHUNK / 2 })
    })
}

fn receiver(dir: &Path, seconds: f64, signs: bool) -> Result<RoleMeasurement> {
    let (object, receiver) = ready::receiver(dir)?;
    let mut bench = Wrapped::new(object, Role::Receiver.name(), MsgType::Ordered, 0, signs)?;
    bench.measure(seconds, action::DROP, |object, next| {
        // Makes room for the next chunk.
        receiver.windows().set_floor(0, next);
        empty_ring(object, if next == 0 { 0 } else { CHUNK })
    })
}

/// Reads all records in ring 0, of which there must be `expected`.
fn empty_ring(object: &Object, expected: u32) -> Result<()> {
    let mut ring = Ring::open(object, 0)?;
    let mut found = 0;
    while ring.next(|_| ()).is_some() {
        found += 1;
    }
    if found == expected {
        Ok(())
    } else {
        Err(format!("{found} records in the ring, expected {expected}"))
    }
}

/// A program behind the wrapper.
struct Wrapped {
    object: Object,
    name: &'static str,
    generator: Generator,
    cpu: usize,
    frame: Vec<u8>,
    shift: u32,
}

impl Wrapped {
    fn new(
        mut object: Object,
        name: &'static str,
        msgtype: MsgType,
        shift: u32,
        signs: bool,
    ) -> Result<Wrapped> {
        let cpu = pin_to_this_cpu().map_err(|error| error.to_string())?;
        let mut frame = ready::message(msgtype);
        if signs {
            frame = ready::with_room(&frame);
            ready::sign(&mut object)?;
        }
        let generator = Generator::new(&mut object, Target::Program(name))?;
        generator.load(cpu, &frame, ready::ACCEPTORS[0], shift);
        Ok(Wrapped {
            object,
            name,
            generator,
            cpu,
            frame,
            shift,
        })
    }

    /// Measures `chunk` by `chunk`, and tells `between` the next instance before each.
    fn measure(
        &mut self,
        seconds: f64,
        expected: u32,
        mut between: impl FnMut(&mut Object, u64) -> Result<()>,
    ) -> Result<RoleMeasurement> {
        let is_role = self.name == self.object.role().name();
        let before = self.object.counter(counter::CHANGED);
        let (mut alone, mut with_role) = (Vec::new(), Vec::new());
        let mut made = 0;
        for _ in chunks(seconds) {
            generator::aim(&mut self.object, Target::Program("bench_nothing"))?;
            alone.push(self.chunk(action::DROP)?);
            // The role's packets follow each other without a gap.
            self.generator.set_made(self.cpu, made);
            between(&mut self.object, made >> self.shift)?;
            generator::aim(&mut self.object, Target::Program(self.name))?;
            with_role.push(self.chunk(expected)?);
            made += u64::from(CHUNK);
        }
        let accepted = self.object.counter(counter::CHANGED) - before;
        if is_role && accepted != made {
            return Err(format!("{}: {accepted} of {made} accepted", self.name));
        }
        let wrapper_ns = median(&mut alone);
        let ns_per_msg = (median(&mut with_role) - wrapper_ns).max(1.0);
        Ok(RoleMeasurement {
            role: if is_role { self.name } else { "egress" },
            ns_per_msg,
            msgs_per_s: 1e9 / ns_per_msg,
            forwarding_ns_per_msg: 0.0,
            wrapper_ns,
            messages: made,
            several: None,
        })
    }

    fn chunk(&self, expected: u32) -> Result<f64> {
        let run = self.generator.run(&self.frame, CHUNK)?;
        if run.action != expected {
            return Err(format!("{} gave back {}", self.name, run.action));
        }
        Ok(f64::from(run.ns))
    }
}

/// Returns as many chunks as there is time for.
fn chunks(seconds: f64) -> impl Iterator<Item = usize> {
    let start = Instant::now();
    (0..).take_while(move |done| *done < MIN_CHUNKS || start.elapsed().as_secs_f64() < seconds)
}

fn median(of: &mut [f64]) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}
