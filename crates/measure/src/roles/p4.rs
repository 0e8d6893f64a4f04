// SPDX-License-Identifier: Apache-2.0
//! The roles' P4 programs in BMv2, at links: some frames are under way at a time, and those that
//! come out are counted. In turns with that the program without roles forwards the same frames: a
//! machine that changes its speed every few seconds does so to both.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs, process};

use keys::KeyFile;
use loader::frame;
use node::auth::{Keyring, Signer, keyring};
use p4::bmv2::{CPU_PORT, Switch, Tools};
use p4::cpu_port::CpuPort;
use p4::packet_socket::PacketSocket;
use p4::programs::{self, Build};
use p4::role::{Role, Stamps};
use p4::tables::{self, Configurations, Copy, RegisterPlace};
use paxos::auth::Algorithm;
use paxos::{Deployment, Header, Instance, MsgType, NodeId, Program, Round};

use super::AtLinks;
use super::udp::{ACCEPTORS, NONCE, REPLICA, VALUE_LEN, configuration, deployment, first_enable};
use crate::network::{Namespace, veth};

type Result<T> = std::result::Result<T, String>;

/// Frames under way: fewer than BMv2's queue has room for (64), as it drops the rest without a
/// word.
const AHEAD: u64 = 32;
/// A frame that takes longer was lost.
const PATIENCE: Duration = Duration::from_millis(200);
/// Seconds of a turn, at most.
const TURN: f64 = 1.0;
/// The number of slots of a partition.
const SLOTS: u64 = 16_384;
const BUILD: Build = Build {
    slots: SLOTS,
    partitions: 1,
    groups: 1,
    signs: false,
};
/// The ports by which frames come in and go out.
const IN: u16 = 0;
const OUT: u16 = 1;
const CONTROL: u16 = 9190;

/// The roles that are measured, each with the number of copies of what it sends.
const ROLES: [(&str, u8); 6] = [
    ("leader", 1),
    ("leader", 3),
    ("acceptor", 1),
    ("learner", 1),
    ("sequencer", 1),
    ("sequencer", 3),
];

/// The roles, with or without tags.
pub struct Measured {
    /// True if packets were signed.
    pub signs: bool,
    /// The measurements of each role.
    pub roles: Vec<AtLinks>,
}

/// Measures all roles, in `runs` runs of `seconds` each. Needs root, a P4 compiler and BMv2.
pub fn measure(runs: usize, seconds: f64, signs: bool) -> Result<Measured> {
    let made = Made::new(signs)?;
    let one = |(role, copies)| of_role(&made, role, copies, runs, seconds);
    let roles = ROLES.into_iter().map(one).collect::<Result<_>>()?;
    Ok(Measured { signs, roles })
}

fn of_role(
    made: &Made,
    role: &'static str,
    copies: u8,
    runs: usize,
    seconds: f64,
) -> Result<AtLinks> {
    let mut measured = AtLinks::new(role, made.message(role).outs(copies));
    let turns = (seconds / TURN).ceil();
    for _ in 0..runs {
        let mut bare = Bench::bare(made, role)?;
        let mut bench = Bench::new(made, role, copies)?;
        for _ in 0..turns as usize {
            let rate = bare.send(seconds / turns)?;
            measured.forwarding_msgs_per_s.push(rate);
            measured.msgs_per_s.push(bench.send(seconds / turns)?);
        }
        measured.lost += bench.lost;
    }
    Ok(measured)
}

/// The compiled programs, in a directory that goes with this, and the keys of those that sign.
struct Made {
    tools: Tools,
    dir: PathBuf,
    keyring: Option<Arc<Keyring>>,
}

impl Made {
    fn new(signs: bool) -> Result<Made> {
        let tools = Tools::find()?;
        tools.versions()?;
        let dir = env::temp_dir().join(format!("wirepaxos-bench-{}", process::id()));
        fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let made = Made {
            tools,
            dir,
            keyring: new_keyring(signs)?,
        };
        let build = Build { signs, ..BUILD };
        for role in ["leader", "acceptor", "learner", "sequencer"] {
            programs::compile(&made.tools, role, build, &made.program(role))?;
        }
        let forwarder = made.program("forwarder");
        programs::compile(&made.tools, "forwarder", BUILD, &forwarder)?;
        Ok(made)
    }

    fn program(&self, role: &str) -> PathBuf {
        self.dir.join(format!("{role}.json"))
    }

    fn message(&self, role: &str) -> Message {
        Message::of(role, self.keyring.clone())
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // Nobody misses the directory's contents.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Returns those of a cluster's nodes, if its packets are signed.
fn new_keyring(signs: bool) -> Result<Option<Arc<Keyring>>> {
    if !signs {
        return Ok(None);
    }
    let file = KeyFile::new(deployment(1).cluster).map_err(|error| error.to_string())?;
    Ok(Some(Arc::new(keyring(&file, Algorithm::HalfSipHash))))
}

/// A switch with a link at each side.
struct Bench {
    switch: Switch,
    socket: PacketSocket,
    into: u32,
    out: u32,
    cpu: u32,
    message: Message,
    outs: f64,
    /// Messages that were sent.
    made: u64,
    lost: u64,
    ends: Namespace,
    at: Namespace,
}

impl Bench {
    /// Starts a switch between its links, with empty tables.
    fn start(tools: &Tools, compiled: &Path, message: Message, outs: f64) -> Result<Bench> {
        let (ends, at) = (Namespace::new()?, Namespace::new()?);
        at.ip(&["link set lo up".into()])?;
        let link = |port: u16| {
            let names = (format!("end{port}"), format!("port{port}"));
            veth((&ends, &names.0), (&at, &names.1)).map(|(end, _)| (end.index, names.1))
        };
        let [into, out, cpu] = [link(IN)?, link(OUT)?, link(CPU_PORT)?];
        let ports = [(IN, &into.1[..]), (OUT, &out.1), (CPU_PORT, &cpu.1)];
        let switch = at.inside(|| tools.start(compiled, &ports, CONTROL))?;
        let socket = ends.inside(PacketSocket::open).map_err(|e| e.to_string())?;
        Ok(Bench {
            switch,
            socket,
            into: into.0,
            out: out.0,
            cpu: cpu.0,
            message,
            outs,
            made: 0,
            lost: 0,
            ends,
            at,
        })
    }

    /// Returns the path without roles, for the same frames.
    fn bare(made: &Made, role: &str) -> Result<Bench> {
        let program = made.program("forwarder");
        let bench = Bench::start(&made.tools, &program, made.message(role), 1.0)?;
        let macs = "02:00:00:00:00:02 02:00:00:00:00:01";
        bench.run(&[format!(
            "table_add forward.routes4 forward.to_port 10.0.0.0/8 => {OUT} {macs}"
        )])?;
        Ok(bench)
    }

    /// Starts a role that is ready for messages and sends this many copies of each.
    fn new(made: &Made, name: &str, copies: u8) -> Result<Bench> {
        let message = made.message(name);
        let outs = message.outs(copies);
        let bench = Bench::start(&made.tools, &made.program(name), message, outs)?;
        let place = RegisterPlace {
            deployment: Deployment {
                max_value: programs::MAX_VALUE,
                ..deployment(node_of(name))
            },
            slots: SLOTS,
            index: 0,
            first_partition: 0,
            first_slot: 0,
        };
        bench.run(&entries(&place, copies))?;
        tables::make_multicast(&place, copies, OUT, |lines| bench.run(lines))?;
        let port = bench.ends.inside(|| CpuPort::open(bench.cpu))?;
        let mut role = Role::new(port, place.deployment);
        if let Some(keyring) = &made.keyring {
            role.use_keys(keyring)?;
        }
        ready(&mut role, name)?;
        if name == "learner" {
            let mut known = Configurations::of(place.deployment);
            known.learn(&configuration());
            bench.run(&known.lines())?;
        }
        Ok(bench)
    }

    fn run(&self, lines: &[String]) -> Result<String> {
        self.at.inside(|| self.switch.tables.run(lines))
    }

    /// Sends messages, and returns how many a second led to what they should.
    fn send(&mut self, seconds: f64) -> Result<f64> {
        let start = Instant::now();
        let (mut under_way, mut came, mut done) = (0, 0.0, 0);
        let mut last = start;
        while start.elapsed().as_secs_f64() < seconds {
            while under_way < AHEAD {
                self.send_next();
                under_way += 1;
            }
            if self.next_out()? {
                came += 1.0 / self.outs;
                let whole = came as u64;
                (done, under_way) = (done + whole, under_way.saturating_sub(whole));
                came -= whole as f64;
                last = Instant::now();
            } else if last.elapsed() > PATIENCE {
                self.lost += under_way;
                (under_way, last) = (0, Instant::now());
            }
        }
        let rate = done as f64 / start.elapsed().as_secs_f64();
        self.drain(under_way, came)?;
        Ok(rate)
    }

    /// Waits for what is still under way.
    fn drain(&mut self, under_way: u64, mut came: f64) -> Result<()> {
        let mut last = Instant::now();
        while (came as u64) < under_way && last.elapsed() < PATIENCE {
            if self.next_out()? {
                (came, last) = (came + 1.0 / self.outs, Instant::now());
            }
        }
        self.lost += under_way.saturating_sub(came.round() as u64);
        Ok(())
    }

    fn send_next(&mut self) {
        if self.message.kind == MsgType::Phase2a && self.made % (SLOTS / 2) == 0 {
            let trim = self.message.trim(self.made.saturating_sub(SLOTS / 4));
            self.socket.send(self.into, &trim);
        }
        let frame = self.message.frame(self.made);
        // A frame that the kernel refuses counts as lost, like one that the switch loses.
        self.socket.send(self.into, &frame);
        self.made += 1;
    }

    /// Returns whether a frame has come out; waits for one for a moment.
    fn next_out(&self) -> Result<bool> {
        let mut buffer = [0; 2048];
        match self.socket.receive(&mut buffer) {
            Ok(Some((interface, _))) => Ok(interface == self.out),
            Ok(None) => {
                self.socket.wait(Duration::from_millis(1));
                Ok(false)
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

fn node_of(role: &str) -> NodeId {
    match role {
        "acceptor" => ACCEPTORS[0],
        "learner" => REPLICA,
        _ => 1,
    }
}

/// Returns the table entries of a role that sends `copies` copies.
fn entries(place: &RegisterPlace, copies: u8) -> Vec<String> {
    let at = &place.deployment;
    let own: SocketAddr = ([10, 0, 0, 1], frame::PORT).into();
    let from = IpAddr::from(frame::V4_FROM);
    let nodes = ACCEPTORS.into_iter().chain([1, REPLICA]);
    let mut lines = vec![
        tables::own_order(at.node, at.cluster, frame::PORT),
        tables::group(place),
    ];
    lines.extend(nodes.map(|node| tables::node((node, from))));
    lines.push(tables::asker((from, 32)));
    for number in 0..copies {
        let copy = Copy {
            number,
            to: ([10, 4, 0, number], frame::PORT).into(),
            from: own,
            mac_to: [2, 0, 0, 0, 1, number],
            mac_from: [2, 0, 0, 0, 1, 0xff],
            port_per_partition: false,
        };
        lines.push(tables::copy(place, &copy));
    }
    lines.push(tables::own(at.node, at.cluster, own));
    lines
}

/// Does what a node's process and the controller do before the first message.
fn ready(role: &mut Role<CpuPort>, name: &str) -> Result<()> {
    let program = Program {
        epoch: 1,
        nonce: NONCE,
        next: vec![0],
        trimmed: vec![0],
        window: u64::MAX,
        acceptors: ACCEPTORS.to_vec(),
        f: 1,
        replicas: ACCEPTORS.to_vec(),
        g: 1,
    };
    match name {
        "learner" => Ok(()),
        "acceptor" => {
            role.begin(NONCE)?;
            role.enable(&first_enable())
        }
        _ => {
            let stamps = match name {
                "leader" => Stamps::Leader,
                _ => Stamps::Sequencer,
            };
            role.begin(NONCE)?;
            role.program(&program, stamps)
        }
    }
}

/// The messages that a role is sent.
struct Message {
    kind: MsgType,
    signer: Signer,
}

impl Message {
    fn of(role: &str, keyring: Option<Arc<Keyring>>) -> Message {
        let kind = match role {
            "acceptor" => MsgType::Phase2a,
            "learner" => MsgType::Phase2b,
            _ => MsgType::Request,
        };
        Message {
            kind,
            signer: Signer::new(keyring),
        }
    }

    /// Returns the number of frames that one frame leads to. A decision takes two votes.
    fn outs(&self, copies: u8) -> f64 {
        match self.kind {
            MsgType::Phase2b => 0.5,
            _ => copies.into(),
        }
    }

    /// Returns the frame of this number: votes come in pairs.
    fn frame(&mut self, number: u64) -> Vec<u8> {
        let (inst, sender) = match self.kind {
            MsgType::Phase2b => (number / 2, ACCEPTORS[(number % 2) as usize]),
            MsgType::Phase2a => (number, 1),
            _ => (0, 0),
        };
        let round = match self.kind {
            MsgType::Request => Round::NONE,
            _ => Round::base(1),
        };
        let header = Header {
            rnd: round,
            vrnd: match self.kind {
                MsgType::Phase2b => round,
                _ => Round::NONE,
            },
            client: 5,
            request: inst + 1,
            ..header(self.kind, sender, inst)
        };
        self.framed(&header, &[0x5a; VALUE_LEN])
    }

    /// Returns a TRIM by which the replica says that it needs nothing below any more.
    fn trim(&mut self, inst: Instance) -> Vec<u8> {
        let header = Header {
            // The replica's incarnation and the epoch that it knows.
            client: 1,
            request: 1,
            ..header(MsgType::Trim, REPLICA, inst)
        };
        self.framed(&header, &[])
    }

    fn framed(&mut self, header: &Header, value: &[u8]) -> Vec<u8> {
        let signed = self.signer.datagram(header, value);
        let datagram = signed.unwrap_or_else(|| header.datagram(value));
        frame::build(&datagram, false)
    }
}

fn header(kind: MsgType, sender: NodeId, inst: Instance) -> Header {
    let at = deployment(sender);
    Header {
        cluster: at.cluster,
        group: at.group,
        swid: sender,
        inst,
        ..Header::new(kind)
    }
}
