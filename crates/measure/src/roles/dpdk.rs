// SPDX-License-Identifier: Apache-2.0
//! The roles behind a port of DPDK: a pair of memif ports, a ring in memory between them. There is
//! no wire and no card, so this is what role, frames and DPDK take, and nothing else.
//!
//! One thread plays both ends in turn, and only the role's end is timed. Beside it stands bare
//! forwarding: another such port, whose end sends as many frames on as the role does, without
//! looking into them.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use dpdk::frame::{Content, Head, Mac, parse, payload_sum};
use dpdk::neighbours::Neighbours;
use dpdk::{BURST, Eal, Port, ROOM, Station};
use node::plane::{DataPlane, DpdkPlane, SendBatch, Sends};
use paxos::{
    Acceptor, Header, Instance, Leader, Learner, MsgType, Outbox, Packet, Program, To, Verdict,
};

use super::udp::{
    ACCEPTORS, Message, NONCE, REPLICA, SLOTS, configuration, deployment, first_enable,
    first_program, trim,
};
use crate::stats::median;

/// Messages that come at once.
pub const BURSTS: [usize; 2] = [1, BURST];
/// Ends a measurement that can't begin.
const LIMIT: Duration = Duration::from_secs(10);

const NEAR: [u8; 4] = [10, 0, 0, 1];
const FAR: [u8; 4] = [10, 0, 0, 2];
const PORT: u16 = 7000;

/// The measurements of one role.
pub struct Measured {
    /// `leader`, `acceptor` or `learner`.
    pub role: &'static str,
    /// Frames that it sends for a message.
    pub frames_per_msg: f64,
    /// The measurements at each of [`BURSTS`].
    pub at: [AtBurst; 2],
    /// The time from a message to the packets that it causes, one message at a time, with both ends
    /// in turn on one core. For a learner it is the time to a decision.
    pub round_trip_ns: f64,
}

/// The cost of a message if this many come at once (medians).
#[derive(Clone, Copy)]
pub struct AtBurst {
    /// Messages that come at once.
    pub burst: usize,
    /// Nanoseconds at the role's end, with the reading of the clock.
    pub ns_per_msg: f64,
    /// The cost of bare forwarding.
    pub forwarding_ns_per_msg: f64,
}

/// Measures the roles this often, this long each time.
pub fn measure(runs: usize, seconds: f64) -> Result<Vec<Measured>, String> {
    let mut bench = Bench::new()?;
    let time = Duration::from_secs_f64(seconds / (2 * BURSTS.len() + 1) as f64);
    Ok(vec![
        bench.measure("leader", 3.0, runs, time, &mut leader()),
        bench.measure("acceptor", 1.0, runs, time, &mut acceptor()),
        bench.measure("learner", 1.0 / 3.0, runs, time, &mut learner()),
    ])
}

/// A role, and the messages for it.
trait Role {
    /// Returns the message of this number, and sometimes does something before.
    fn message(&mut self, number: u64) -> &[u8];

    fn step(&mut self, packet: &Packet<'_>, way: &mut Way);
}

struct Stamps(Leader, Message);

fn leader() -> Stamps {
    let mut role = Leader::new(deployment(1), NONCE);
    let program = Program {
        acceptors: ACCEPTORS.to_vec(),
        f: 1,
        ..first_program()
    };
    role.program(&program)
        .expect("a new leader takes a program");
    Stamps(role, Message::new(MsgType::Request, 0))
}

impl Role for Stamps {
    fn message(&mut self, number: u64) -> &[u8] {
        forget_below(number, |packet| self.0.step(packet, &mut Nowhere));
        self.1.at(0)
    }

    fn step(&mut self, packet: &Packet<'_>, way: &mut Way) {
        assert_eq!(self.0.step(packet, way), Verdict::Changed);
    }
}

struct Votes(Acceptor, Message);

fn acceptor() -> Votes {
    let mut role = Acceptor::new(deployment(ACCEPTORS[0]), SLOTS, NONCE);
    role.enable(&first_enable())
        .expect("a stranger can be enabled");
    Votes(role, Message::new(MsgType::Phase2a, 1))
}

impl Role for Votes {
    fn message(&mut self, number: u64) -> &[u8] {
        forget_below(number, |packet| self.0.step(packet, &mut Nowhere));
        self.1.at(number)
    }

    fn step(&mut self, packet: &Packet<'_>, way: &mut Way) {
        assert_eq!(self.0.step(packet, way), Verdict::Changed);
    }
}

struct Counts(Learner, [Message; 3]);

fn learner() -> Counts {
    let mut role = Learner::new(deployment(REPLICA), SLOTS);
    role.learn(&configuration());
    Counts(
        role,
        ACCEPTORS.map(|node| Message::new(MsgType::Phase2b, node)),
    )
}

impl Role for Counts {
    fn message(&mut self, number: u64) -> &[u8] {
        let votes = ACCEPTORS.len() as u64;
        self.1[(number % votes) as usize].at(number / votes)
    }

    fn step(&mut self, packet: &Packet<'_>, way: &mut Way) {
        // The third vote comes too late.
        let verdict = self.0.step(packet, way);
        assert!(!matches!(verdict, Verdict::Rejected(_)), "{verdict:?}");
    }
}

/// Trims the first half of the ring a window before it is full.
fn forget_below(number: Instance, step: impl FnOnce(&Packet<'_>) -> Verdict) {
    let half = SLOTS as Instance / 2;
    if number >= half && number % half == 0 {
        // The last ones may be on their way.
        let trim = trim(number - BURST as Instance);
        let packet = Packet::parse(&trim).expect("it is well-formed");
        assert_eq!(step(&packet), Verdict::Changed);
    }
}

struct Nowhere;

impl Outbox for Nowhere {
    fn send(&mut self, _: To, _: &Header, _: &[u8]) {}
}

/// The way by which a role sends its packets of one turn, to addresses at the far end.
struct Way {
    batch: SendBatch,
    all: [SocketAddr; 3],
}

impl Outbox for Way {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        let to = match to {
            To::Acceptors => &self.all[..],
            _ => &self.all[..1],
        };
        self.batch.push_all(to, header, value);
    }
}

/// Two pairs of ports: one with a role at its near end, and one that forwards.
struct Bench {
    near: DpdkPlane,
    far: Port,
    forwarder: Port,
    behind: Port,
    way: Way,
    head: Head,
    /// Messages that the roles have had.
    number: u64,
}

impl Bench {
    fn new() -> Result<Bench, String> {
        let eal = start()?;
        let port = |number: u8| eal.open(&format!("net_memif{number}"), ROOM);
        let [near, far, forwarder, behind] = [port(0)?, port(1)?, port(2)?, port(3)?];
        let own = SocketAddr::from((NEAR, PORT));
        let [from, to]: [Mac; 2] = [far.mac(), near.mac()];
        // The other nodes have an address each, and are all at the far end.
        let all = [0, 1, 2].map(|port| SocketAddr::from((FAR, PORT + port)));
        let mut bench = Bench {
            head: Head::new([from, to], all[0], own),
            near: DpdkPlane::at(Station::new(near, own, [IpAddr::from(FAR)])),
            far,
            forwarder,
            behind,
            way: Way {
                batch: SendBatch::new(),
                all,
            },
            number: 0,
        };
        bench.meet()?;
        Ok(bench)
    }

    /// Waits until both ends of each pair see each other.
    fn meet(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        let mut node = Neighbours::new(FAR.into(), self.far.mac(), [NEAR.into()]);
        while begun.elapsed() < LIMIT {
            self.near.receive().map_err(|e| e.to_string())?;
            self.far.receive();
            let frames = self.far.frames().iter().map(|frame| frame.bytes());
            let questions = frames.filter(|frame| parse(frame, false) == Content::Neighbour);
            let answers: Vec<_> = questions.filter_map(|q| node.take(q)).collect();
            for answer in answers {
                self.far
                    .push(answer.len(), |frame| frame.copy_from_slice(&answer));
            }
            self.far.flush();
            let mut warnings = Vec::new();
            self.near.status(&mut warnings);
            if warnings.is_empty() && self.forwarder.is_up() && self.behind.is_up() {
                return Ok(());
            }
        }
        Err("the ports don't find each other".to_owned())
    }

    fn measure(
        &mut self,
        name: &'static str,
        frames_per_msg: f64,
        runs: usize,
        time: Duration,
        role: &mut impl Role,
    ) -> Measured {
        self.number = 0;
        let at = BURSTS.map(|burst| {
            let (mut own, mut bare) = (Vec::new(), Vec::new());
            for _ in 0..runs {
                own.push(self.run(burst, time, frames_per_msg, role));
                bare.push(self.forward(burst, time, frames_per_msg));
            }
            AtBurst {
                burst,
                ns_per_msg: median(&own),
                forwarding_ns_per_msg: median(&bare),
            }
        });
        let round_trips: Vec<_> = (0..runs).map(|_| self.round_trips(time, role)).collect();
        Measured {
            role: name,
            frames_per_msg,
            at,
            round_trip_ns: median(&round_trips),
        }
    }

    /// Returns the nanoseconds of a message at the role's end.
    fn run(
        &mut self,
        burst: usize,
        time: Duration,
        frames_per_msg: f64,
        role: &mut impl Role,
    ) -> f64 {
        let begun = Instant::now();
        let (mut took, mut messages, mut sent) = (Duration::ZERO, 0, 0);
        while begun.elapsed() < time {
            for _ in 0..burst {
                self.send(role);
            }
            self.far.flush();
            let turn = Instant::now();
            let taken = self.turn(role);
            took += turn.elapsed();
            assert_eq!(taken, burst, "a ring in memory loses nothing");
            messages += taken;
            sent += received(&mut self.far);
        }
        // A vote or two may be waiting for a third one.
        let expected = messages as f64 * frames_per_msg;
        assert!(
            sent as f64 + 3.0 >= expected,
            "{sent} frames for {messages}"
        );
        took.as_nanos() as f64 / messages as f64
    }

    /// Returns the nanoseconds from a message to the packets that it causes.
    fn round_trips(&mut self, time: Duration, role: &mut impl Role) -> f64 {
        let (begun, mut trips) = (Instant::now(), 0);
        while begun.elapsed() < time {
            loop {
                self.send(role);
                self.far.flush();
                assert_eq!(self.turn(role), 1, "a ring in memory loses nothing");
                // A vote alone decides nothing.
                if self.far.receive() > 0 {
                    break;
                }
            }
            trips += 1;
        }
        begun.elapsed().as_nanos() as f64 / f64::from(trips)
    }

    /// Sends the next message, from the far end.
    fn send(&mut self, role: &mut impl Role) {
        let (head, message) = (&mut self.head, role.message(self.number));
        let len = head.frame_len(message.len());
        let write = |frame: &mut [u8]| head.write(message, payload_sum(message), frame);
        let pushed = self.far.push(len, write);
        assert!(pushed, "there is a buffer");
        self.number += 1;
    }

    /// Returns what a node's process does in a turn. How many messages it has had.
    fn turn(&mut self, role: &mut impl Role) -> usize {
        self.near.receive().expect("a port has no errors");
        let mut taken = 0;
        for arrival in self.near.arrivals() {
            for datagram in arrival.datagrams() {
                let packet = Packet::parse(datagram).expect("it is well-formed");
                role.step(&packet, &mut self.way);
                taken += 1;
            }
        }
        self.near.send(&mut self.way.batch);
        taken
    }

    /// Measures the nanoseconds of a frame that is forwarded `frames_per_msg` times.
    fn forward(&mut self, burst: usize, time: Duration, frames_per_msg: f64) -> f64 {
        let message = [0x5a; super::udp::VALUE_LEN + paxos::wire::HEADER_LEN];
        let sum = payload_sum(&message);
        let begun = Instant::now();
        let (mut took, mut messages, mut owed) = (Duration::ZERO, 0, 0.0);
        while begun.elapsed() < time {
            for _ in 0..burst {
                let head = &mut self.head;
                let len = head.frame_len(message.len());
                self.behind
                    .push(len, |frame| head.write(&message, sum, frame));
            }
            self.behind.flush();
            let turn = Instant::now();
            let taken = self.forwarder.receive();
            owed = send_on(&mut self.forwarder, frames_per_msg, owed);
            took += turn.elapsed();
            assert_eq!(taken, burst, "a ring in memory loses nothing");
            messages += taken;
            received(&mut self.behind);
        }
        took.as_nanos() as f64 / messages as f64
    }
}

/// Returns how many frames there are, none of which is looked at.
fn received(port: &mut Port) -> usize {
    std::iter::from_fn(|| Some(port.receive()).filter(|n| *n > 0)).sum()
}

/// Sends each frame that was received on, as often as a role would; returns what is left of a frame
/// to be sent.
fn send_on(port: &mut Port, frames_per_msg: f64, mut owed: f64) -> f64 {
    port.send_on(|| {
        owed += frames_per_msg;
        // A third is no whole number.
        let copies = (owed + 1e-6).floor();
        owed -= copies;
        copies as usize
    });
    port.flush();
    owed
}

/// DPDK with two pairs of ports.
fn start() -> Result<Eal, String> {
    let socket = std::env::temp_dir().join(format!("wirepaxos-bench-{}", std::process::id()));
    let mut arguments: Vec<_> = [
        "--no-huge",
        "-m",
        "256",
        "--no-pci",
        "--no-shconf",
        "--no-telemetry",
        "-l",
        "0",
    ]
    .map(str::to_owned)
    .into();
    for port in 0..4 {
        let role = if port % 2 == 0 { "server" } else { "client" };
        let (pair, socket) = (port / 2, socket.display());
        arguments.push(format!(
            "--vdev=net_memif{port},id={pair},role={role},socket={socket}"
        ));
    }
    Eal::start(&node::plane::dpdk::library()?, &arguments)
}
