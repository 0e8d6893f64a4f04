// SPDX-License-Identifier: Apache-2.0
//! The plan of a torture, which is a pure function of its seed and options.

mod drawing;

use std::collections::BTreeMap;
use std::fmt;

use ::lab::{Shape, Topology};
use drawing::Drawing;
use lab::topology::Role;
use node::cluster_file::Protocol;
use test_world::Rng;

/// Acceptors, and replicas: f = 1 and g = 1. With NOPaxos replicas alone.
const THREE: u8 = 3;
/// Time before the first fault, and after the last one.
const CALM_MS: u64 = 3000;
/// Operations in a run whose packets are recorded: a trace has some kilobytes for each.
const TRACED_OPERATIONS: f64 = 12_000.0;
const RATE: f64 = 1200.0;
/// Clients in a crowd, and in how many of a million runs there is one.
const CROWD: u32 = 24;
const CROWDED: u32 = 700_000;
/// The most slots of an acceptor if there are several partitions.
const MOST_SLOTS: usize = 4096;

/// The planes on which nodes handle their packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planes {
    /// All nodes use sockets.
    Udp,
    /// All nodes handle packets in the kernel.
    Xdp,
    /// Each node uses sockets or the kernel.
    Mixed,
}

impl Planes {
    const ALL: [Planes; 3] = [Planes::Udp, Planes::Xdp, Planes::Mixed];

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Planes::Udp => "udp",
            Planes::Xdp => "xdp",
            Planes::Mixed => "mixed",
        }
    }

    /// Returns the planes of this name.
    pub fn named(name: &str) -> Option<Planes> {
        Planes::ALL.into_iter().find(|planes| planes.name() == name)
    }
}

/// The options that the seed doesn't decide.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The seed.
    pub seed: u64,
    /// How long there are faults.
    pub minutes: f64,
    /// How the cluster agrees.
    pub protocol: Protocol,
    /// On which planes.
    pub planes: Planes,
    /// True if leaders, acceptors and learners are in the switches.
    pub in_switch: bool,
    /// `rocksdb` or `leveldb`.
    pub app: String,
    /// Storage of acceptors, with NOPaxos of replicas, where it isn't to be drawn.
    pub durable: Option<bool>,
    /// The number of partitions, where it isn't to be drawn.
    pub partitions: Option<u16>,
    /// If set, the plan consists of this many kills, one after the other, instead of all other
    /// faults and however long that takes.
    pub kills: Option<u32>,
}

impl Wanted {
    /// Acceptors in the kernel are volatile. NOPaxos's replicas are never there.
    pub fn may_be_durable(&self) -> bool {
        let in_kernel = self.planes == Planes::Xdp || self.in_switch;
        self.protocol == Protocol::NoPaxos || !in_kernel
    }
}

/// A whole run.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The cluster.
    pub shape: Shape,
    /// True if nodes record their packets.
    pub trace: bool,
    /// Operations a second that clients try to send, together.
    pub rate: f64,
    /// Clients of the library that all send at once, now and then; with NOPaxos.
    pub crowd: u32,
    /// Faults begin at the start and end here. Those that have to wait delay the others, some of
    /// which then are left out, but for kills in a row.
    pub end_ms: u64,
    /// True if every step is carried out, however late.
    pub all: bool,
    /// The steps in the order of time.
    pub steps: Vec<Step>,
}

/// A fault and its moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Since the start.
    pub at_ms: u64,
    /// The kind under which the fault is counted.
    pub kind: &'static str,
    /// The fault itself.
    pub fault: Fault,
}

/// A fault of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// SIGKILL, and a new start later. `machine`: what they have in the kernel goes, too.
    Kill {
        nodes: Vec<String>,
        machine: bool,
        for_ms: u64,
    },
    /// SIGTERM or SIGHUP, which both end a node in good order, and a new start later.
    Stop {
        nodes: Vec<String>,
        hang_up: bool,
        for_ms: u64,
    },
    /// SIGSTOP, and SIGCONT later.
    Pause { nodes: Vec<String>, for_ms: u64 },
    /// No packet of the cluster passes these links.
    Isolate { links: Vec<String>, for_ms: u64 },
    /// A link is down.
    LinkDown { link: String, for_ms: u64 },
    /// Packets from some nodes to others are lost, and perhaps also those in the other direction.
    Cut {
        from: Vec<String>,
        to: Vec<String>,
        both_ways: bool,
        for_ms: u64,
    },
    /// All links lose, double, reorder and damage packets, each with a rate in thousandths.
    Weather {
        loss: u32,
        duplicate: u32,
        reorder: u32,
        corrupt: u32,
        for_ms: u64,
    },
    /// Everything that passes this link comes late.
    Slow {
        link: String,
        delay_ms: u64,
        for_ms: u64,
    },
    /// An operator's order.
    Failover,
    /// A node is killed and comes back with an empty disk.
    Wipe { node: String, for_ms: u64 },
    /// No room on a node's disk.
    FullDisk { node: String, for_ms: u64 },
    /// A node's files are changed between stop and start.
    Damage {
        node: String,
        damage: Damage,
        salt: u64,
    },
}

/// A damage to a stopped node's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// A bit of a file is flipped.
    Flip,
    /// A file is cut in the middle of what is in it.
    Truncate,
    /// A file is gone.
    Remove,
    /// An older copy of the whole directory is put back.
    OldCopy,
    /// Another cluster's directory is there.
    Foreign,
}

impl Damage {
    const ALL: [(Damage, &'static str); 5] = [
        (Damage::Flip, "flipped bit"),
        (Damage::Truncate, "truncated file"),
        (Damage::Remove, "removed file"),
        (Damage::OldCopy, "old copy"),
        (Damage::Foreign, "foreign directory"),
    ];
}

/// Draws the run.
pub fn draw(wanted: &Wanted) -> Plan {
    let mut rng = Rng::new(wanted.seed);
    let mut shape = draw_shape(wanted, &mut rng.fork(1));
    let trace = wanted.planes == Planes::Udp && rng.chance(400_000);
    // What nodes of NOPaxos record under all of these faults wasn't held against the specification
    // yet.
    let trace = trace && wanted.protocol == Protocol::Paxos;
    let mut drawing = Drawing::new(&shape, wanted.protocol, rng.fork(2));
    let (steps, end_ms) = match wanted.kills {
        Some(count) => drawing.kills(count),
        None => {
            let end_ms = (wanted.minutes * 60_000.0) as u64;
            (drawing.steps(end_ms), end_ms)
        }
    };
    shape.partitions = wanted
        .partitions
        .unwrap_or_else(|| *rng.fork(3).pick(&[1, 1, 2, 4]));
    if shape.partitions > 1 {
        // Each partition has a ring, and the disks have little room.
        shape.slots = shape.slots.map(|slots| slots.min(MOST_SLOTS));
    }
    // Each partition has a leader of its own: spread over several, so few are no crowd.
    let may_be_crowded = wanted.protocol == Protocol::NoPaxos && shape.partitions == 1;
    let is_crowded = may_be_crowded && rng.fork(4).chance(CROWDED);
    Plan {
        shape,
        trace,
        crowd: if is_crowded { CROWD } else { 0 },
        rate: match trace {
            true => (TRACED_OPERATIONS * 1000.0 / end_ms as f64).clamp(20.0, RATE),
            false => RATE,
        },
        end_ms,
        all: wanted.kills.is_some(),
        steps,
    }
}

fn draw_shape(wanted: &Wanted, rng: &mut Rng) -> Shape {
    let topology = *rng.pick(&[Topology::OneSwitch, Topology::TwoSwitches]);
    let durable = rng.chance(500_000) && wanted.may_be_durable();
    let slots = *rng.pick(&[256, 1024, 4096, 65536]);
    let mut shape = Shape {
        acceptors: THREE,
        replicas: THREE,
        learners: *rng.pick(&[0, 0, 1, 2]),
        application: wanted.app.clone(),
        durable: wanted.durable.unwrap_or(durable),
        in_switch: wanted.in_switch,
        plane: match wanted.planes {
            Planes::Udp => "udp".to_string(),
            _ => "xdp".to_string(),
        },
        slots: Some(slots),
        clients: 1,
        ..Shape::new(topology)
    };
    if wanted.protocol == Protocol::NoPaxos {
        shape.protocol = wanted.protocol.name().to_string();
        shape.learners = 0;
    }
    if wanted.planes == Planes::Mixed {
        shape.planes = mixed(&shape, rng);
    }
    shape
}

/// Draws the nodes that use sockets instead of the kernel. Durable acceptors always do.
fn mixed(shape: &Shape, rng: &mut Rng) -> BTreeMap<String, String> {
    let hosts = shape.hosts().into_iter();
    let by_socket = hosts.filter(|h| {
        let drawn = rng.chance(500_000);
        h.role.is_node() && (drawn || h.role == Role::Acceptor && shape.durable)
    });
    by_socket.map(|h| (h.name, "udp".to_string())).collect()
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Kill {
                nodes,
                machine,
                for_ms,
            } => {
                let what = if *machine {
                    "the machine of"
                } else {
                    "SIGKILL"
                };
                write!(f, "{what} {}, back after {for_ms} ms", nodes.join(" "))
            }
            Fault::Stop {
                nodes,
                hang_up,
                for_ms,
            } => {
                let signal = if *hang_up { "SIGHUP" } else { "SIGTERM" };
                write!(f, "{signal} {}, back after {for_ms} ms", nodes.join(" "))
            }
            Fault::Pause { nodes, for_ms } => write!(f, "{} for {for_ms} ms", nodes.join(" ")),
            Fault::Isolate { links, for_ms } => write!(f, "{} for {for_ms} ms", links.join(" ")),
            Fault::LinkDown { link, for_ms } => write!(f, "{link} for {for_ms} ms"),
            Fault::Cut {
                from,
                to,
                both_ways,
                for_ms,
            } => {
                let arrow = if *both_ways { "and" } else { "to" };
                let (from, to) = (from.join(" "), to.join(" "));
                write!(f, "from {from} {arrow} {to} for {for_ms} ms")
            }
            Fault::Weather {
                loss,
                duplicate,
                reorder,
                corrupt,
                for_ms,
            } => write!(
                f,
                "of 1000 datagrams {loss} lost, {duplicate} doubled, {reorder} held back, \
                 {corrupt} damaged, for {for_ms} ms"
            ),
            Fault::Slow {
                link,
                delay_ms,
                for_ms,
            } => write!(f, "{link} by {delay_ms} ms, for {for_ms} ms"),
            Fault::Failover => write!(f, "to whoever is next"),
            Fault::Wipe { node, for_ms } => write!(f, "{node}, back after {for_ms} ms"),
            Fault::FullDisk { node, for_ms } => write!(f, "{node} for {for_ms} ms"),
            Fault::Damage { node, salt, damage } => {
                let named = Damage::ALL.iter().find(|(d, _)| d == damage);
                let name = named.map_or("", |(_, name)| name);
                write!(f, "{node} ({name}, {salt:016x})")
            }
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = &self.shape;
        let storage = if shape.durable { "durable" } else { "volatile" };
        writeln!(
            f,
            "{}, plane {}{}, {}, {} partitions, {}, {}, {:.0} operations/s{}{}",
            shape.topology.name(),
            match shape.planes.is_empty() {
                true => shape.plane.clone(),
                false => format!("mixed (udp: {})", names(&shape.planes)),
            },
            if shape.in_switch {
                ", in the switch"
            } else {
                ""
            },
            match shape.protocol == Protocol::NoPaxos.name() {
                true => format!("{}, {storage} replicas", shape.protocol),
                false => format!("{storage} acceptors, {} learners", shape.learners),
            },
            shape.partitions,
            shape.application,
            match shape.slots {
                Some(slots) => format!("slots = {slots}"),
                None => "slots by default".to_string(),
            },
            self.rate,
            match self.crowd {
                0 => String::new(),
                crowd => format!(", a crowd of {crowd} now and then"),
            },
            if self.trace { ", traced" } else { "" },
        )?;
        for step in &self.steps {
            let at = step.at_ms as f64 / 1000.0;
            writeln!(f, "{at:7.1} s  {:<18} {}", step.kind, step.fault)?;
        }
        Ok(())
    }
}

fn names(planes: &BTreeMap<String, String>) -> String {
    let names: Vec<&str> = planes.keys().map(String::as_str).collect();
    names.join(" ")
}

#[cfg(test)]
mod tests;
