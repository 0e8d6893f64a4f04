//! How long a role's program takes, message by message, by BPF_PROG_TEST_RUN.
//!
//! A wrapper makes the packet new before each repetition, with the next instance, so the whole ring
//! is walked; every repetition must be accepted, else there is no result. The wrapper's own time,
//! measured by turns with the role's, is taken off.

use std::path::Path;

use paxos::{Configuration, Deployment, Enable, Flags, Header, Member, MsgType, Program, Round};

use crate::acceptor::Acceptor;
use crate::frame;
use crate::generator::{self, Generator, Target};
use crate::layout::{Route, RouteKey};
use crate::leader::Leader;
use crate::learner::Learner;
use crate::object::{Object, Result, Role, Sizes, directory};
use crate::place::{self, Place};
use crate::ring::Ring;
use crate::run::{Runner, action, counter, test_device};
use crate::sys::pin_to_this_cpu;

/// Bytes of a value: with Ethernet, IPv4 and UDP the frame has 154 bytes.
pub const VALUE_LEN: usize = 64;
const SLOTS: u32 = 65_536;
/// Repetitions of one system call: half a ring, as acceptors are trimmed in between.
const CHUNK: u32 = 32_768;
const CHUNKS: usize = 32;
const NONCE: u64 = 1;
const ACCEPTORS: [u16; 3] = [11, 12, 13];

/// What one role takes for a message.
#[derive(Clone, PartialEq, Debug)]
pub struct RoleMeasurement {
    /// `leader`, `acceptor`, `learner`, `forwarder`, or `egress`: what each multicast copy takes.
    pub role: &'static str,
    /// Nanoseconds a message, the wrapper's taken off; the median of all chunks.
    pub ns_per_msg: f64,
    /// Messages a second of one core at that rate.
    pub msgs_per_s: f64,
    /// The same for bare forwarding, measured in the same run.
    pub forwarding_ns_per_msg: f64,
    /// What was taken off: making the packet, and the tail call.
    pub wrapper_ns: f64,
    /// Messages of this measurement, all accepted.
    pub messages: u64,
}

/// Measures all roles, one after the other, on the CPU of the calling thread. Takes a second or
/// two; needs the privilege to load programs.
pub fn roles() -> Result<Vec<RoleMeasurement>> {
    roles_from(&directory()?)
}

/// The same with the objects of another directory.
pub fn roles_from(dir: &Path) -> Result<Vec<RoleMeasurement>> {
    let mut measured = vec![forwarder(dir)?];
    measured.extend(leader(dir)?);
    measured.push(acceptor(dir)?);
    measured.push(learner(dir)?);
    let forwarding = measured[0].ns_per_msg;
    for role in &mut measured {
        role.forwarding_ns_per_msg = forwarding;
    }
    Ok(measured)
}

fn place() -> Place {
    let deployment = Deployment {
        cluster: 0xc1,
        group: 1,
        partitions: 1,
        max_value: 1024,
        node: 11,
    };
    Place::only(deployment, SLOTS.into())
}

fn load(dir: &Path, role: Role) -> Result<Object> {
    Object::load(dir, role, &Sizes::of(1, 1, SLOTS))
}

fn forwarder(dir: &Path) -> Result<RoleMeasurement> {
    let mut object = load(dir, Role::Forwarder)?;
    let key = RouteKey {
        address: [10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        family: 4,
    };
    // To every entry of `multicast`: that there is none doesn't matter in a test run.
    let route = Route {
        broadcast: 1,
        mac_to: [2, 0, 0, 0, 0, 1],
        mac_from: [2, 0, 0, 0, 0, 2],
        ..Route::default()
    };
    object.insert("routes", &key, &route)?;
    let mut bench = Wrapped::new(object, Role::Forwarder.name(), MsgType::Request, 0)?;
    bench.measure(action::REDIRECT, |_, _| Ok(()))
}

/// The leader, and what each copy of its proposals takes on egress.
fn leader(dir: &Path) -> Result<[RoleMeasurement; 2]> {
    let (mut object, place) = (load(dir, Role::Leader)?, place());
    let leader = Leader::new(&object, place, NONCE)?;
    leader.program(&Program {
        epoch: 1,
        nonce: leader.nonce(),
        next: vec![0],
        trimmed: vec![0],
        window: u64::MAX,
        replicas: vec![31],
        g: 0,
    })?;
    place::open(&mut object, &place, 0, &test_device(&place))?;
    Runner::new(&mut object, place.deployment.group)?;
    let mut bench = Wrapped::new(object, Role::Leader.name(), MsgType::Request, 0)?;
    let stamping = bench.measure(action::REDIRECT, |_, _| Ok(()))?;
    let mut bench = Wrapped::new(bench.object, "test_egress", MsgType::Phase2a, 0)?;
    let egress = bench.measure(action::PASS, |_, _| Ok(()))?;
    Ok([stamping, egress])
}

fn acceptor(dir: &Path) -> Result<RoleMeasurement> {
    let (mut object, place) = (load(dir, Role::Acceptor)?, place());
    let acceptor = Acceptor::new(&object, place, NONCE)?;
    place::open(&mut object, &place, 0, &test_device(&place))?;
    let mut bench = Wrapped::new(object, Role::Acceptor.name(), MsgType::Phase2a, 0)?;
    bench.measure(action::REDIRECT, |_, next| {
        // Makes room for the next chunk.
        let enable = Enable {
            epoch: 1,
            nonce: acceptor.nonce(),
            trim: vec![next],
            end: vec![0],
            replicas: vec![31],
            g: 0,
        };
        Ok(acceptor.enable(&enable)?)
    })
}

fn learner(dir: &Path) -> Result<RoleMeasurement> {
    let (mut object, place) = (load(dir, Role::Learner)?, place());
    let learner = Learner::new(&object, place, 0)?;
    let member = |node| Member { node, nonce: 1 };
    learner.learn(&Configuration {
        epoch: 1,
        leader: member(1),
        acceptors: ACCEPTORS.into_iter().map(member).collect(),
        f: 1,
        replicas: vec![31],
        g: 0,
    });
    place::open(&mut object, &place, 0, &test_device(&place))?;
    // Two votes an instance: the first is counted, the second decides. A third would be dropped.
    let mut bench = Wrapped::new(object, Role::Learner.name(), MsgType::Phase2b, 1)?;
    bench.measure(action::DROP, |object, next| {
        let mut ring = Ring::open(object, 0)?;
        let mut decided = 0;
        while ring.next(|_| ()).is_some() {
            decided += 1;
        }
        let expected = if next == 0 { 0 } else { u64::from(CHUNK) / 2 };
        if decided == expected {
            Ok(())
        } else {
            Err(format!(
                "{decided} decisions in the ring, expected {expected}"
            ))
        }
    })
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
    ) -> Result<Wrapped> {
        let cpu = pin_to_this_cpu().map_err(|error| error.to_string())?;
        let frame = message(msgtype);
        let generator = Generator::new(&mut object, Target::Program(name))?;
        generator.load(cpu, &frame, ACCEPTORS[0], shift);
        Ok(Wrapped {
            object,
            name,
            generator,
            cpu,
            frame,
            shift,
        })
    }

    /// `between` is told the next instance before each chunk.
    fn measure(
        &mut self,
        expected: u32,
        mut between: impl FnMut(&mut Object, u64) -> Result<()>,
    ) -> Result<RoleMeasurement> {
        let is_role = self.name == self.object.role().name();
        let before = self.object.counter(counter::CHANGED);
        let (mut alone, mut with_role) = (Vec::new(), Vec::new());
        let mut made = 0;
        for _ in 0..CHUNKS {
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

/// A frame with a message of this type, as a role accepts it; instance and sender 0.
pub(crate) fn message(msgtype: MsgType) -> Vec<u8> {
    let round = match msgtype {
        MsgType::Request => Round::NONE,
        _ => Round::base(1),
    };
    let header = Header {
        group: 1,
        cluster: 0xc1,
        rnd: round,
        vrnd: round,
        flags: Flags::NONE,
        client: 7,
        request: 1,
        ..Header::new(msgtype)
    };
    frame::build(&header.datagram(&[b'x'; VALUE_LEN]), false)
}

fn median(of: &mut [f64]) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}
