// SPDX-License-Identifier: Apache-2.0
//! The parts of a lab: hosts, switches, links, addresses, and the cluster file for them.

mod link;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use node::cluster_file::{
    self, ApplicationKind, Auth, Draft, GroupDraft, NodeDraft, Plane, Protocol, Storage,
};
use p4::programs::{Build, MAX_VALUE};
use serde::{Deserialize, Serialize};

use crate::{Error, Result};
pub use link::{End, Link};

/// The data port of a node; a replica takes one more for each further partition.
pub const DATA_PORT: u16 = 7000;
/// The control port of a node.
pub const CONTROL_PORT: u16 = 7100;
/// The port of a replica's Redis front end.
pub const REDIS_PORT: u16 = 6379;
/// The password of Redis clients, which the front ends require since their addresses aren't
/// loopback.
pub const REDIS_PASSWORD: &str = "lab";
/// The first and last UDP port to which faults apply.
pub const CLUSTER_PORTS: (u16, u16) = (DATA_PORT, CONTROL_PORT);
/// The namespace of the wires, through which links with faults lead.
pub const WIRES: &str = "wires";
/// The port to the network of a host that is a P4 switch. The next constant is its port to its own
/// machine, at the other end of `eth0`.
pub const P4_PORT: &str = "port1";
pub(crate) const P4_CPU_PORT: &str = "cpu";
/// The link between two switches.
pub const TRUNK: &str = "trunk";

/// The default number of slots of an acceptor's ring if there are P4 switches.
const P4_SLOTS: usize = 1024;

/// The networks of all hosts.
const SUBNETS: [&str; 2] = ["10.77.0.0/24", "fd77::/64"];

/// The first number of a switch.
const SWITCH_IDS: u8 = 100;

/// How hosts are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topology {
    /// All hosts are on one switch (P4xos, figure 5).
    OneSwitch,
    /// The leader and an acceptor are on one switch, the other acceptors and the backup leader on
    /// another one, and replicas and clients on both (P4xos, figure 6).
    TwoSwitches,
}

impl Topology {
    /// All topologies with their names.
    pub const ALL: [(&str, Topology); 2] = [
        ("one-switch", Topology::OneSwitch),
        ("two-switches", Topology::TwoSwitches),
    ];

    /// Returns the topology with this name.
    pub fn named(name: &str) -> Option<Topology> {
        let found = Topology::ALL.iter().find(|(n, _)| *n == name);
        found.map(|(_, topology)| *topology)
    }

    /// Returns the name of the topology.
    pub fn name(self) -> &'static str {
        let found = Topology::ALL.iter().find(|(_, t)| *t == self);
        found.expect("ALL has all").0
    }

    fn switches(self) -> u8 {
        match self {
            Topology::OneSwitch => 1,
            Topology::TwoSwitches => 2,
        }
    }

    /// Returns the switch of the n-th host of a role.
    fn switch_of(self, n: u8) -> u8 {
        match self {
            Topology::OneSwitch => 1,
            Topology::TwoSwitches => n.min(2),
        }
    }
}

/// The number of hosts of each role, and what runs on them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// How the hosts are connected.
    pub topology: Topology,
    /// The agreement protocol, as the cluster file names it.
    pub protocol: String,
    /// The number of leaders, of which the first one leads and the others are its backups. With
    /// NOPaxos these are sequencers.
    pub leaders: u8,
    /// The number of acceptors, which is odd; with NOPaxos there are neither acceptors nor
    /// learners.
    pub acceptors: u8,
    /// The number of learners that send decisions to replicas. Without any, acceptors' votes go to
    /// the replicas.
    pub learners: u8,
    /// The number of replicas, which is odd.
    pub replicas: u8,
    /// The number of hosts without a node, for clients.
    pub clients: u8,
    /// The application: `rocksdb`, `leveldb` or `echo`.
    pub application: String,
    /// The number of partitions of the one group.
    pub partitions: u16,
    /// The largest value in bytes.
    pub max_value: u16,
    /// The cluster file has IPv6 addresses; the hosts have both kinds in any case.
    pub ipv6: bool,
    /// The plane of leaders, acceptors and replicas, as the cluster file names it.
    pub plane: String,
    /// The nodes on another plane than `plane`, by name.
    pub planes: BTreeMap<String, String>,
    /// How many instances an acceptor remembers; `None` means the cluster file's default.
    pub slots: Option<usize>,
    /// Acceptors store their votes on disk.
    pub durable: bool,
    /// Leaders, acceptors, learners and sequencers are in the switches, as in the papers, and not
    /// on separate hosts.
    pub in_switch: bool,
    /// Switches forward in XDP even if no node is in the kernel, so that nodes behind sockets can
    /// be compared with those in the kernel.
    pub forwards: bool,
    /// The CPU to which the nodes are pinned.
    pub cpu: Option<usize>,
    /// The messages that are signed, as the cluster file names them; `None` means as many as the
    /// nodes can sign.
    pub auth: Option<String>,
}

impl Shape {
    /// Returns a shape with two leaders, three acceptors, three replicas, and a client on each
    /// switch.
    pub fn new(topology: Topology) -> Shape {
        Shape {
            topology,
            protocol: Protocol::Paxos.name().to_string(),
            leaders: 2,
            acceptors: 3,
            learners: 0,
            replicas: 3,
            clients: topology.switches(),
            application: "rocksdb".to_string(),
            partitions: 1,
            max_value: 1024,
            ipv6: false,
            plane: "udp".to_string(),
            planes: BTreeMap::new(),
            slots: None,
            durable: false,
            in_switch: false,
            forwards: false,
            cpu: None,
            auth: None,
        }
    }

    /// Returns the plane of a node.
    pub fn plane_of(&self, node: &str) -> &str {
        self.planes.get(node).unwrap_or(&self.plane)
    }

    /// Returns whether switches forward in XDP, which they must if any node is, or may be, in the
    /// kernel.
    pub(crate) fn forwards_in_kernel(&self) -> bool {
        let planes = [&self.plane].into_iter().chain(self.planes.values());
        let mut named = planes.map(|plane| Plane::named(plane));
        self.forwards || named.any(|plane| matches!(plane, Some(Plane::Xdp | Plane::Auto)))
    }

    /// Returns whether a host is a switch that runs its node's role as a P4 program, with the
    /// node's process behind it.
    pub(crate) fn is_p4(&self, host: &Host) -> bool {
        host.role.is_in_network() && self.plane_of(&host.name) == Plane::P4.name()
    }

    /// Returns the hosts that are such switches.
    pub(crate) fn p4_hosts(&self) -> Vec<Host> {
        let hosts = self.hosts().into_iter();
        hosts.filter(|host| self.is_p4(host)).collect()
    }

    /// Returns how many instances an acceptor remembers, if the cluster file must say it.
    fn slots(&self) -> Option<usize> {
        // Registers in software are made anew at each start, so there are few.
        let few = || (!self.p4_hosts().is_empty()).then_some(P4_SLOTS);
        self.slots.or_else(few)
    }

    /// Returns the largest value, which is short if there are P4 programs.
    fn max_value(&self) -> u16 {
        match self.p4_hosts().is_empty() {
            true => self.max_value,
            false => self.max_value.min(MAX_VALUE),
        }
    }

    /// Returns the messages that are signed with the lab's keys. By default these are all, but no
    /// packets if P4 programs would sign them, since a switch in software hashes step by step.
    pub fn auth(&self) -> Result<Auth> {
        match &self.auth {
            Some(name) => {
                let named = Auth::named(name);
                named.ok_or_else(|| Error::new(format!("auth {name:?} is unknown")))
            }
            None if self.p4_hosts().is_empty() => Ok(Auth::SipHash),
            None => Ok(Auth::Control),
        }
    }

    /// Returns the build options of the P4 programs.
    pub(crate) fn p4_build(&self) -> Build {
        let slots = self.slots().unwrap_or(P4_SLOTS) as u64 * u64::from(self.partitions);
        Build {
            slots: slots.max(Build::SMALL.slots),
            partitions: u64::from(self.partitions).max(Build::SMALL.partitions),
            signs: self.auth().is_ok_and(|auth| auth.of_packets().is_some()),
            ..Build::SMALL
        }
    }

    /// Returns an error if the shape is invalid.
    pub fn check(&self) -> Result<()> {
        let counts = [
            ("leaders", self.leaders),
            ("acceptors", self.acceptors),
            ("replicas", self.replicas),
        ];
        for (what, count) in counts {
            if !(1..=9).contains(&count) {
                return Err(Error::new(format!("{count} {what}: take 1 to 9")));
            }
        }
        if self.acceptors % 2 == 0 || self.replicas % 2 == 0 {
            return Err(Error::new("take odd numbers of acceptors and of replicas"));
        }
        for (what, count) in [("clients", self.clients), ("learners", self.learners)] {
            if count > 9 {
                return Err(Error::new(format!("{count} {what}: take 0 to 9")));
            }
        }
        if !(1..=64).contains(&self.partitions) {
            return Err(Error::new(format!(
                "{} partitions: take 1 to 64",
                self.partitions
            )));
        }
        self.protocol()?;
        self.auth()?;
        let hosts = self.hosts();
        let is_node = |name: &&String| hosts.iter().any(|h| h.role.is_node() && h.name == **name);
        if let Some(name) = self.planes.keys().find(|name| !is_node(name)) {
            return Err(Error::new(format!(
                "no node is called {name:?}, whose plane was given"
            )));
        }
        if self.in_switch && !self.p4_hosts().is_empty() {
            return Err(Error::new(
                "roles on the p4 plane are switches of their own: leave in-switch out",
            ));
        }
        self.application().map(drop)
    }

    /// Returns whether a sequencer orders the commands.
    fn is_ordered(&self) -> Result<bool> {
        self.protocol().map(|p| p == Protocol::NoPaxos)
    }

    fn protocol(&self) -> Result<Protocol> {
        let named = Protocol::ALL
            .into_iter()
            .find(|p| p.name() == self.protocol);
        named.ok_or_else(|| Error::new(format!("no protocol is called {:?}", self.protocol)))
    }

    /// Returns all hosts and switches, hosts first.
    pub fn hosts(&self) -> Vec<Host> {
        let mut hosts = vec![self.host(Role::Controller, 1, 0)];
        let network = match self.is_ordered() {
            Ok(true) => vec![(Role::Sequencer, self.leaders, 60)],
            _ => vec![
                (Role::Leader, self.leaders, 10),
                (Role::Acceptor, self.acceptors, 20),
                (Role::Learner, self.learners, 50),
            ],
        };
        let ends = [
            (Role::Replica, self.replicas, 30),
            (Role::Client, self.clients, 40),
        ];
        for (role, count, first_id) in network.into_iter().chain(ends) {
            hosts.extend((1..=count).map(|n| self.host(role, n, first_id)));
        }
        hosts
            .extend((1..=self.topology.switches()).map(|n| self.host(Role::Switch, n, SWITCH_IDS)));
        hosts
    }

    fn host(&self, role: Role, n: u8, first_id: u8) -> Host {
        let switch = match role {
            Role::Switch => n,
            _ => self.topology.switch_of(n),
        };
        Host {
            name: match role {
                Role::Controller => "controller".to_string(),
                _ => format!("{}-{n}", role.name()),
            },
            role,
            id: first_id + n,
            switch,
            in_switch: self.in_switch && role.is_in_network(),
        }
    }

    /// Returns all links: one from each machine to its switch, and one between two switches.
    pub fn links(&self) -> Vec<Link> {
        let hosts = self.hosts();
        let mut links: Vec<Link> = hosts
            .iter()
            .filter(|h| h.role != Role::Switch && !h.in_switch)
            .map(|h| Link {
                name: h.name.clone(),
                near: match self.is_p4(h) {
                    // Behind the switch is the host itself, with the addresses.
                    true => h.end(P4_PORT, h.mac(2)),
                    false => h.end("eth0", h.mac(0)),
                },
                far: switch(&hosts, h.switch).end(&h.name, h.mac(1)),
            })
            .collect();
        if self.topology == Topology::TwoSwitches {
            let (one, two) = (switch(&hosts, 1), switch(&hosts, 2));
            links.push(Link {
                name: TRUNK.to_string(),
                near: one.end(&two.name, one.mac(1)),
                far: two.end(&one.name, two.mac(1)),
            });
        }
        links
    }

    /// Returns the hosts and switches that have a network namespace, which leaves out hosts in a
    /// switch.
    pub(crate) fn machines(&self) -> impl Iterator<Item = Host> {
        self.hosts().into_iter().filter(|h| !h.in_switch)
    }

    /// Returns the machine that this host is, or is in.
    pub(crate) fn machine_of(&self, host: &str) -> Option<String> {
        let mut hosts = self.hosts().into_iter();
        hosts.find(|h| h.name == host).map(|h| h.machine())
    }

    /// Returns the port of a switch through which a host is reached.
    pub(crate) fn port_to(&self, switch: &Host, host: &Host) -> String {
        match host.switch == switch.switch {
            true => host.name.clone(),
            // There are two switches, and the port is named after the other one.
            false => format!("{}-{}", Role::Switch.name(), host.switch),
        }
    }

    /// Returns the cluster file, with every host whose role is a node's.
    pub fn cluster_file(&self, cluster: u32, data: &Path) -> Result<Draft> {
        let group = GroupDraft {
            protocol: Some(self.protocol()?),
            partitions: Some(self.partitions),
            max_value: Some(self.max_value()),
            slots: self.slots(),
            ..GroupDraft::new(0, self.application()?)
        };
        let mut draft = Draft::new(cluster, data, group);
        draft.auth = Some(self.auth()?);
        if draft.auth.and_then(Auth::of_packets).is_none() {
            draft.clients = SUBNETS
                .map(|network| network.parse().expect("it is one"))
                .into();
        }
        for host in self.hosts() {
            if let Some(role) = cluster_file::Role::named(host.role.name()) {
                draft.nodes.push(self.node(&host, role)?);
            }
        }
        Ok(draft)
    }

    fn node(&self, host: &Host, role: cluster_file::Role) -> Result<NodeDraft> {
        let ip: IpAddr = match self.ipv6 {
            true => host.ipv6(),
            false => host.ipv4(),
        }
        .parse()
        .map_err(Error::at(&host.name))?;
        let at = |port| SocketAddr::new(ip, port);
        let mut node = NodeDraft::new(
            &host.name,
            host.id.into(),
            role,
            at(DATA_PORT),
            at(CONTROL_PORT),
        );
        if host.role != Role::Controller {
            let named = self.named_plane(&host.name)?;
            // Packets of a sequencer and of a P4 switch can only be received behind sockets.
            node.plane = Some(match host.role == Role::Replica {
                true if self.is_ordered()? || named == Plane::P4 => Plane::Udp,
                _ => named,
            });
        }
        let keeper = match self.is_ordered()? {
            true => Role::Replica,
            false => Role::Acceptor,
        };
        if host.role == keeper && self.durable {
            node.storage = Some(Storage::Durable);
        }
        node.switch = host.in_switch.then(|| host.machine());
        node.cpu = self.cpu;
        // The front end needs an application that is a store.
        let has_redis = self.application()?.is_store();
        if host.role == Role::Replica && has_redis {
            node.redis = Some(at(REDIS_PORT));
            node.redis_password = Some(REDIS_PASSWORD.to_string());
        }
        Ok(node)
    }

    fn application(&self) -> Result<ApplicationKind> {
        let name = &self.application;
        let found = ApplicationKind::named(name);
        found.ok_or_else(|| Error::new(format!("no application is called {name:?}")))
    }

    fn named_plane(&self, node: &str) -> Result<Plane> {
        let name = self.plane_of(node);
        Plane::named(name).ok_or_else(|| Error::new(format!("no plane is called {name:?}")))
    }
}

fn switch(hosts: &[Host], n: u8) -> &Host {
    let mut switches = hosts.iter().filter(|h| h.role == Role::Switch);
    let found = switches.find(|h| h.switch == n);
    found.expect("the topology has this switch")
}

/// The purpose of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Role {
    Controller,
    Leader,
    Acceptor,
    Learner,
    Sequencer,
    Replica,
    Client,
    Switch,
}

impl Role {
    /// Returns the name of the role; a node's role has the name in the cluster file.
    pub fn name(self) -> &'static str {
        match self {
            Role::Controller => "controller",
            Role::Leader => "leader",
            Role::Acceptor => "acceptor",
            Role::Learner => "learner",
            Role::Sequencer => "sequencer",
            Role::Replica => "replica",
            Role::Client => "client",
            Role::Switch => "switch",
        }
    }

    /// Returns whether packets only pass through the role, so that it can be in a switch.
    fn is_in_network(self) -> bool {
        matches!(
            self,
            Role::Leader | Role::Acceptor | Role::Learner | Role::Sequencer
        )
    }

    /// Returns whether the cluster file has this role.
    pub fn is_node(self) -> bool {
        cluster_file::Role::named(self.name()).is_some()
    }
}

/// A host or a switch, which is one network namespace, or a node in a switch's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The name, which is also the node's name in the cluster file.
    pub name: String,
    /// The purpose of the host.
    pub role: Role,
    /// The last part of the host's addresses, and the node's number in the cluster file.
    pub id: u8,
    /// The number of the host's switch, or a switch's own number.
    pub switch: u8,
    /// The host is no machine, but a role in that switch.
    pub in_switch: bool,
}

impl Host {
    /// Returns the IPv4 address, in a network of 24 bits.
    pub fn ipv4(&self) -> String {
        format!("10.77.0.{}", self.id)
    }

    /// Returns the IPv6 address, in a network of 64 bits.
    pub fn ipv6(&self) -> String {
        format!("fd77::{}", self.id)
    }

    /// Returns the name of the machine that the host is, or is in: a host or a switch.
    pub fn machine(&self) -> String {
        match self.in_switch {
            true => format!("{}-{}", Role::Switch.name(), self.switch),
            false => self.name.clone(),
        }
    }

    /// Returns for a role in a switch the ends of the link, within the switch, over which other
    /// roles' packets reach it. They leave at the first end.
    pub(crate) fn loopback(&self) -> [String; 2] {
        [format!("{}-out", self.name), format!("{}-in", self.name)]
    }

    /// Returns the interface with the host's addresses; a switch has a bridge.
    pub fn interface(&self) -> &'static str {
        match self.role == Role::Switch || self.in_switch {
            true => "bridge",
            false => "eth0",
        }
    }

    /// Returns a fixed hardware address: side 0 goes with the host's addresses, 1 is the port at
    /// the other end of its link, and 2 the port of a P4 switch.
    pub fn mac(&self, side: u8) -> String {
        let bytes = self.mac_bytes(side).map(|byte| format!("{byte:02x}"));
        bytes.join(":")
    }

    /// Returns a hardware address as it stands in a frame.
    pub(crate) fn mac_bytes(&self, side: u8) -> [u8; 6] {
        let id = match self.in_switch {
            true => SWITCH_IDS + self.switch,
            false => self.id,
        };
        [0x02, 0x77, 0, 0, side, id]
    }

    fn end(&self, interface: &str, mac: String) -> End {
        End {
            host: self.name.clone(),
            interface: interface.to_string(),
            mac,
        }
    }
}

#[cfg(test)]
mod tests;
