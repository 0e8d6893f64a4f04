// SPDX-License-Identifier: Apache-2.0
//! The plan of a torture, which is a pure function of its seed and options.

use std::collections::BTreeMap;
use std::fmt;

use ::lab::{Shape, Topology};
use lab::topology::{Role, TRUNK};
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

struct Drawing {
    shape: Shape,
    protocol: Protocol,
    nodes: Vec<(Role, String)>,
    rng: Rng,
}

/// A kind of fault: how often it is drawn, its name, and the function that draws it. The function
/// returns faults, each some milliseconds after the first.
type FaultKind = (u64, &'static str, fn(&mut Drawing) -> Vec<(u64, Fault)>);

const OF_PAXOS: &[FaultKind] = &[
    (10, "kill", |d| alone(d.kill(false))),
    (6, "machine dies", |d| alone(d.kill(true))),
    (5, "stop", |d| alone(d.stop())),
    (5, "both leaders", |d| alone(d.kill_all(Role::Leader))),
    (4, "all replicas", |d| alone(d.kill_all(Role::Replica))),
    (5, "f+1 acceptors", |d| alone(d.kill_voters())),
    (3, "everything at once", |d| alone(d.everything())),
    (9, "pause", |d| alone(d.pause())),
    (7, "isolation", |d| alone(d.isolate())),
    (4, "link down", |d| alone(d.link_down())),
    (7, "partition", Drawing::cut),
    (9, "bad links", |d| alone(d.weather())),
    (4, "failover by hand", |_| alone(Fault::Failover)),
    (4, "another majority", Drawing::another_majority),
    (4, "behind a replica", Drawing::behind_a_replica),
    (4, "wiped replica", |d| alone(d.wipe(Role::Replica))),
    (3, "wiped acceptor", |d| alone(d.wipe(Role::Acceptor))),
    (4, "full disk", |d| alone(d.full_disk())),
    (5, "flipped bit", |d| alone(d.damage(Damage::Flip))),
    (3, "truncated file", |d| alone(d.damage(Damage::Truncate))),
    (2, "removed file", |d| alone(d.damage(Damage::Remove))),
    (5, "old copy", |d| alone(d.damage(Damage::OldCopy))),
    (3, "foreign directory", |d| alone(d.damage(Damage::Foreign))),
];

const OF_NOPAXOS: &[FaultKind] = &[
    (16, "kill", |d| alone(d.kill(false))),
    (8, "machine dies", |d| alone(d.kill(true))),
    (5, "stop", |d| alone(d.stop())),
    (6, "both sequencers", |d| alone(d.kill_all(Role::Sequencer))),
    (5, "f+1 replicas", |d| d.if_durable(Drawing::kill_voters)),
    (4, "everything at once", |d| {
        d.if_durable(Drawing::everything)
    }),
    (9, "pause", |d| alone(d.pause())),
    (5, "paused sequencer", |d| alone(d.pause_sequencer())),
    (6, "sequencer cut off", Drawing::cut_sequencer_off),
    (6, "slow sequencer", Drawing::slow_sequencer),
    (7, "isolation", |d| alone(d.isolate())),
    (4, "link down", |d| alone(d.link_down())),
    (7, "partition", Drawing::cut),
    (7, "replica alone", Drawing::replica_alone),
    (9, "bad links", |d| alone(d.weather())),
    (5, "failover by hand", |_| alone(Fault::Failover)),
    (5, "another majority", Drawing::another_majority),
    (5, "behind a replica", Drawing::behind_a_replica),
    (4, "wiped replica", |d| alone(d.wipe(Role::Replica))),
    (2, "full disk", |d| alone(d.full_disk())),
    (5, "flipped bit", |d| alone(d.damage(Damage::Flip))),
    (3, "truncated file", |d| alone(d.damage(Damage::Truncate))),
    (2, "removed file", |d| alone(d.damage(Damage::Remove))),
    (5, "old copy", |d| alone(d.damage(Damage::OldCopy))),
    (3, "foreign directory", |d| alone(d.damage(Damage::Foreign))),
];

fn kinds(protocol: Protocol) -> &'static [FaultKind] {
    match protocol {
        Protocol::Paxos => OF_PAXOS,
        Protocol::NoPaxos => OF_NOPAXOS,
    }
}

fn alone(fault: Fault) -> Vec<(u64, Fault)> {
    vec![(0, fault)]
}

impl Drawing {
    fn new(shape: &Shape, protocol: Protocol, rng: Rng) -> Drawing {
        let hosts = shape.hosts().into_iter();
        let nodes = hosts.filter(|h| h.role.is_node());
        Drawing {
            shape: shape.clone(),
            protocol,
            nodes: nodes.map(|h| (h.role, h.name)).collect(),
            rng,
        }
    }

    /// Draws kills of one process after the other, of those that agree and execute. Each comes back
    /// soon, often while the one before it is still starting.
    fn kills(&mut self, count: u32) -> (Vec<Step>, u64) {
        let victims = [Role::Leader, Role::Sequencer, Role::Acceptor, Role::Replica];
        let victims = self.of_roles(&victims);
        let mut at_ms = CALM_MS;
        let mut kill = |_| {
            at_ms += self.rng.between(100, 1200);
            let fault = Fault::Kill {
                nodes: vec![self.rng.pick(&victims).clone()],
                machine: false,
                for_ms: self.rng.between(50, 800),
            };
            let kind = "kill";
            Step { at_ms, kind, fault }
        };
        let steps = (0..count).map(&mut kill).collect();
        (steps, at_ms + CALM_MS)
    }

    fn steps(&mut self, end_ms: u64) -> Vec<Step> {
        let kinds = kinds(self.protocol);
        let total: u64 = kinds.iter().map(|kind| kind.0).sum();
        let mut steps = Vec::new();
        let mut at_ms = CALM_MS.min(end_ms / 4);
        while at_ms + CALM_MS.min(end_ms / 4) < end_ms {
            let mut left = self.rng.below(total);
            let chosen = kinds.iter().find(|kind| {
                let found = left < kind.0;
                left = left.saturating_sub(kind.0);
                found
            });
            let (_, kind, make) = chosen.expect("left is below the total");
            for (after_ms, fault) in make(self) {
                at_ms += after_ms;
                steps.push(Step { at_ms, kind, fault });
            }
            at_ms += self.rng.between(300, 4500);
        }
        steps
    }

    fn of_roles(&self, roles: &[Role]) -> Vec<String> {
        let nodes = self.nodes.iter().filter(|(role, _)| roles.contains(role));
        nodes.map(|(_, name)| name.clone()).collect()
    }

    fn any(&mut self) -> String {
        self.rng.pick(&self.nodes).1.clone()
    }

    /// Returns who puts commands in order.
    fn stampers(&self) -> Role {
        match self.protocol {
            Protocol::Paxos => Role::Leader,
            Protocol::NoPaxos => Role::Sequencer,
        }
    }

    /// Returns the role of which a majority decides.
    fn voters(&self) -> Role {
        match self.protocol {
            Protocol::Paxos => Role::Acceptor,
            Protocol::NoPaxos => Role::Replica,
        }
    }

    fn one_of(&mut self, role: Role) -> String {
        let names = self.of_roles(&[role]);
        self.rng.pick(&names).clone()
    }

    /// Draws how long a fault lasts, mostly a short time.
    fn for_ms(&mut self, longest: u64) -> u64 {
        let most = match self.rng.below(4) {
            0 => longest,
            _ => longest / 4,
        };
        self.rng.between(100, most.max(101))
    }

    fn kill(&mut self, machine: bool) -> Fault {
        Fault::Kill {
            nodes: vec![self.any()],
            machine,
            for_ms: self.for_ms(6000),
        }
    }

    fn stop(&mut self) -> Fault {
        Fault::Stop {
            nodes: vec![self.any()],
            hang_up: self.rng.chance(300_000),
            for_ms: self.for_ms(6000),
        }
    }

    fn kill_all(&mut self, role: Role) -> Fault {
        Fault::Kill {
            nodes: self.of_roles(&[role]),
            machine: true,
            for_ms: self.for_ms(4000),
        }
    }

    fn kill_voters(&mut self) -> Fault {
        let nodes = self.majority();
        let for_ms = self.for_ms(4000);
        self.machines_die(nodes, for_ms)
    }

    /// Draws at least f+1 voters.
    fn majority(&mut self) -> Vec<String> {
        let mut nodes = self.of_roles(&[self.voters()]);
        if self.rng.chance(500_000) {
            let spared = self.rng.below(nodes.len() as u64) as usize;
            nodes.remove(spared);
        }
        nodes
    }

    /// Draws a fault of a node whose log is on disk. A log in memory goes with its process, however
    /// that ends, so no two of those may end at once.
    fn if_durable(&mut self, fault: fn(&mut Drawing) -> Fault) -> Vec<(u64, Fault)> {
        match self.shape.durable {
            true => alone(fault(self)),
            false => Vec::new(),
        }
    }

    fn everything(&mut self) -> Fault {
        let nodes = self.nodes.iter().map(|(_, name)| name.clone()).collect();
        let for_ms = self.for_ms(3000);
        self.machines_die(nodes, for_ms)
    }

    /// Returns the fault in which these machines die at once, a majority of the acceptors among
    /// them. What volatile acceptors remember is only kept by a stop in good order, so they are
    /// stopped instead.
    fn machines_die(&self, nodes: Vec<String>, for_ms: u64) -> Fault {
        match self.shape.durable {
            true => Fault::Kill {
                nodes,
                machine: true,
                for_ms,
            },
            false => Fault::Stop {
                nodes,
                hang_up: false,
                for_ms,
            },
        }
    }

    fn pause(&mut self) -> Fault {
        let mut nodes = vec![self.any()];
        if self.rng.chance(250_000) {
            nodes.push(self.any());
            nodes.sort();
            nodes.dedup();
        }
        Fault::Pause {
            nodes,
            for_ms: self.for_ms(10_000),
        }
    }

    fn pause_sequencer(&mut self) -> Fault {
        Fault::Pause {
            nodes: vec![self.one_of(Role::Sequencer)],
            for_ms: self.rng.between(200, 8000),
        }
    }

    /// Cuts the sequencer off; it goes on stamping for whoever still reaches it, or believes that
    /// it does.
    fn cut_sequencer_off(&mut self) -> Vec<(u64, Fault)> {
        let links = vec![self.one_of(Role::Sequencer)];
        let for_ms = self.rng.between(100, 8000);
        match self.shape.in_switch {
            true => Vec::new(),
            false => alone(Fault::Isolate { links, for_ms }),
        }
    }

    /// Slows the sequencer down, so that what it has stamped may arrive when another one stamps.
    fn slow_sequencer(&mut self) -> Vec<(u64, Fault)> {
        let link = self.one_of(Role::Sequencer);
        let delay_ms = *self.rng.pick(&[1, 10, 100, 500]) + self.rng.below(10);
        let for_ms = self.rng.between(200, 8000);
        match self.shape.in_switch {
            true => Vec::new(),
            false => alone(Fault::Slow {
                link,
                delay_ms,
                for_ms,
            }),
        }
    }

    /// Lets one replica alone hear the sequencers. If it leads, it is ahead of all others, and soon
    /// deposed.
    fn replica_alone(&mut self) -> Vec<(u64, Fault)> {
        let mut others = self.of_roles(&[Role::Replica]);
        let one = self.rng.below(others.len() as u64) as usize;
        let mut from = self.of_roles(&[Role::Sequencer]);
        from.push(others.remove(one));
        let for_ms = self.rng.between(50, 3000);
        match self.reaches_by_stacks() {
            true => alone(Fault::Cut {
                from,
                to: others,
                both_ways: true,
                for_ms,
            }),
            false => Vec::new(),
        }
    }

    /// Returns whether all are behind stacks of hosts of their own.
    fn reaches_by_stacks(&self) -> bool {
        self.shape.plane == "udp" && !self.shape.in_switch
    }

    fn links(&self) -> Vec<String> {
        let links = self.shape.links().into_iter().map(|link| link.name);
        links.filter(|name| !name.starts_with("client")).collect()
    }

    fn isolate(&mut self) -> Fault {
        let all = self.links();
        let two_switches = self.shape.topology == Topology::TwoSwitches;
        let mut links = vec![self.rng.pick(&all).clone()];
        match self.rng.below(4) {
            0 if two_switches => links = vec![TRUNK.to_string()],
            1 => links.push(self.rng.pick(&all).clone()),
            _ => {}
        }
        links.sort();
        links.dedup();
        Fault::Isolate {
            links,
            for_ms: self.for_ms(10_000),
        }
    }

    fn link_down(&mut self) -> Fault {
        let all = self.links();
        Fault::LinkDown {
            link: self.rng.pick(&all).clone(),
            for_ms: self.for_ms(8000),
        }
    }

    fn cut(&mut self) -> Vec<(u64, Fault)> {
        if !self.reaches_by_stacks() {
            return Vec::new();
        }
        let (mut from, mut to) = (Vec::new(), Vec::new());
        for (_, name) in &self.nodes {
            match self.rng.below(3) {
                0 => from.push(name.clone()),
                1 => to.push(name.clone()),
                // Reaches both sides.
                _ => {}
            }
        }
        let both_ways = self.rng.chance(600_000);
        let for_ms = self.for_ms(10_000);
        match from.is_empty() || to.is_empty() {
            true => Vec::new(),
            false => alone(Fault::Cut {
                from,
                to,
                both_ways,
                for_ms,
            }),
        }
    }

    /// Cuts off all voters but one for a while, and then that one, while the leader or the
    /// sequencer changes: what was decided without a majority is lost.
    fn another_majority(&mut self) -> Vec<(u64, Fault)> {
        let mut others = self.of_roles(&[self.voters()]);
        if self.shape.in_switch && self.protocol == Protocol::Paxos {
            return Vec::new();
        }
        let chosen = self.rng.below(others.len() as u64) as usize;
        let one = others.remove(chosen);
        let for_ms = self.rng.between(300, 2000);
        let isolate = |links, for_ms| Fault::Isolate { links, for_ms };
        vec![
            (0, isolate(others, for_ms)),
            (for_ms, isolate(vec![one], 3000)),
            (0, Fault::Failover),
        ]
    }

    /// Cuts a replica off while the leader or the sequencer changes, so that it has to learn later
    /// what was decided before and after.
    fn behind_a_replica(&mut self) -> Vec<(u64, Fault)> {
        let links = vec![self.one_of(Role::Replica)];
        let for_ms = self.rng.between(200, 3000);
        let cut_off = Fault::Isolate { links, for_ms };
        let leaders = self.kill_all(self.stampers());
        vec![(0, cut_off), (for_ms / 2, leaders)]
    }

    fn weather(&mut self) -> Fault {
        let most = *self.rng.pick(&[10, 50, 150]);
        let mut rate = || match self.rng.chance(600_000) {
            true => self.rng.between(1, most) as u32,
            false => 0,
        };
        let (loss, duplicate, reorder, corrupt) = (rate().max(1), rate(), rate(), rate() / 4);
        Fault::Weather {
            loss,
            duplicate,
            reorder,
            corrupt,
            for_ms: self.for_ms(20_000),
        }
    }

    fn wipe(&mut self, role: Role) -> Fault {
        Fault::Wipe {
            node: self.one_of(role),
            for_ms: self.for_ms(6000),
        }
    }

    /// Fills the disk of a node that writes all the time.
    fn full_disk(&mut self) -> Fault {
        let mut roles = vec![Role::Replica, Role::Controller];
        if self.shape.durable {
            roles.push(Role::Acceptor);
        }
        let names = self.of_roles(&roles);
        Fault::FullDisk {
            node: self.rng.pick(&names).clone(),
            for_ms: self.for_ms(10_000),
        }
    }

    fn damage(&mut self, damage: Damage) -> Fault {
        let names = self.of_roles(&[Role::Replica, Role::Controller, Role::Acceptor]);
        Fault::Damage {
            node: self.rng.pick(&names).clone(),
            damage,
            salt: self.rng.next(),
        }
    }
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
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn wanted(seed: u64, planes: Planes) -> Wanted {
        Wanted {
            seed,
            minutes: 2.0,
            protocol: Protocol::Paxos,
            planes,
            in_switch: false,
            app: "leveldb".to_string(),
            durable: None,
            partitions: None,
            kills: None,
        }
    }

    fn of_nopaxos(seed: u64, planes: Planes) -> Plan {
        draw(&Wanted {
            protocol: Protocol::NoPaxos,
            ..wanted(seed, planes)
        })
    }

    #[test]
    fn a_seed_is_a_plan() {
        let draw = |seed| draw(&wanted(seed, Planes::Udp));
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let text = draw(7).to_string();
        assert_eq!(text, draw(7).to_string());
        assert_eq!(text.lines().count(), draw(7).steps.len() + 1);
    }

    #[test]
    fn plans_are_in_order_and_leave_time_at_the_end() {
        for seed in 0..50 {
            let plan = draw(&wanted(seed, Planes::Udp));
            let times: Vec<u64> = plan.steps.iter().map(|s| s.at_ms).collect();
            assert!(times.is_sorted() && *times.last().unwrap() < plan.end_ms);
            assert!(times.len() > 20, "seed {seed}: {} steps", times.len());
        }
    }

    /// f = 1: what is lost at once never goes beyond it.
    #[test]
    fn no_two_volatile_acceptors_are_killed_at_once() {
        for seed in 0..200 {
            for planes in [Planes::Udp, Planes::Xdp, Planes::Mixed] {
                let plan = draw(&wanted(seed, planes));
                plan.shape.check().unwrap();
                for step in plan.steps {
                    let Fault::Kill { nodes, .. } = step.fault else {
                        continue;
                    };
                    let acceptors = nodes.iter().filter(|n| n.starts_with("acceptor"));
                    assert!(plan.shape.durable || acceptors.count() < 2, "seed {seed}");
                }
            }
        }
    }

    #[test]
    fn many_but_not_all_courses_of_nopaxos_have_a_crowd() {
        let crowded = (0..50).filter(|seed| of_nopaxos(*seed, Planes::Udp).crowd > 0);
        let count = crowded.count();
        assert!((10..30).contains(&count), "{count}");
        assert_eq!(draw(&wanted(7, Planes::Udp)).crowd, 0);
    }

    /// f = 1.
    #[test]
    fn no_two_volatile_logs_of_nopaxos_are_lost_at_once() {
        for seed in 0..200 {
            for planes in [Planes::Udp, Planes::Xdp, Planes::Mixed] {
                let plan = of_nopaxos(seed, planes);
                plan.shape.check().unwrap();
                for step in plan.steps {
                    let (Fault::Kill { nodes, .. } | Fault::Stop { nodes, .. }) = step.fault else {
                        continue;
                    };
                    let replicas = nodes.iter().filter(|n| n.starts_with("replica"));
                    assert!(plan.shape.durable || replicas.count() < 2, "seed {seed}");
                }
            }
        }
    }

    #[test]
    fn durable_acceptors_are_never_in_the_kernel() {
        for seed in 0..200 {
            let shape = draw(&wanted(seed, Planes::Mixed)).shape;
            for n in 1..=3 {
                let plane = shape.plane_of(&format!("acceptor-{n}"));
                assert!(!shape.durable || plane == "udp", "seed {seed}");
            }
            assert!(!draw(&wanted(seed, Planes::Xdp)).shape.durable);
        }
    }

    #[test]
    fn kills_in_a_row_are_as_many_as_asked_for() {
        let plan = draw(&Wanted {
            kills: Some(100),
            ..wanted(3, Planes::Udp)
        });
        assert_eq!(plan.steps.len(), 100);
        assert!(plan.all && plan.steps.iter().all(|step| step.kind == "kill"));
        assert!(plan.steps.iter().all(|step| step.at_ms < plan.end_ms));
        let faults: Vec<_> = plan.steps.iter().map(|s| s.fault.to_string()).collect();
        for role in ["leader", "acceptor", "replica"] {
            assert!(faults.iter().any(|fault| fault.contains(role)), "{role}");
        }
    }

    #[test]
    fn every_kind_of_fault_and_of_cluster_is_drawn() {
        let mut kinds = BTreeSet::new();
        let mut clusters = BTreeSet::new();
        let mut partitions = BTreeSet::new();
        for seed in 0..50 {
            let plan = draw(&wanted(seed, Planes::Udp));
            kinds.extend(plan.steps.iter().map(|s| s.kind));
            clusters.insert((plan.shape.durable, plan.trace, plan.shape.learners));
            partitions.insert(plan.shape.partitions);
        }
        assert_eq!(kinds.len(), OF_PAXOS.len());
        let of_nopaxos = (0..50).flat_map(|seed| of_nopaxos(seed, Planes::Udp).steps);
        let kinds: BTreeSet<_> = of_nopaxos.map(|step| step.kind).collect();
        assert_eq!(kinds.len(), OF_NOPAXOS.len());
        assert_eq!(clusters.len(), 12);
        assert_eq!(partitions, BTreeSet::from([1, 2, 4]));
    }
}
