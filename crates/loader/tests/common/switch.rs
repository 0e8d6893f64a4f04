// SPDX-License-Identifier: Apache-2.0
//! A switch with all roles of a group: its forwarder calls them, and they call each other.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;

use aya::maps::ProgramArray;
use loader::frame;
use loader::layout::{
    CALL_FORWARDER, CALL_WITHIN, DEVICE_WITHIN, GROUP_DELIVER, Link, MulticastMember, PORT_WITHIN,
    Route, RouteKey,
};
use loader::map_place::{self, MapPlace};
use loader::members::octets;
use loader::object::{Object, Role, Sizes};
use loader::run::{Runner, test_device};
use paxos::{Configuration, Deployment, Enable, Epoch, NodeId, Program};

use super::random::{PARTITIONS, deployment};
use super::{Loaded, configuration, first_enable};

/// The roles of the switch in the order of `roles`.
const ROLES: [(Role, NodeId); 5] = [
    (Role::Leader, 1),
    (Role::Acceptor, 11),
    (Role::Acceptor, 12),
    (Role::Acceptor, 13),
    (Role::Learner, 41),
];
pub const LEADER: usize = 0;
pub const ACCEPTORS: [usize; 3] = [1, 2, 3];
pub const LEARNER: usize = 4;
const REPLICA: NodeId = 31;
/// Nodes elsewhere that roles of the switch may be told of.
pub const CLIENT: NodeId = 7;
/// Replicas and clients are behind this port, and replicas listen here.
const PORT: u32 = 1;
pub const REPLICA_PORT: u16 = 7000;

const SLOTS: u64 = 64;

pub struct Switch {
    pub roles: Vec<Loaded>,
    runner: Runner,
    v6: bool,
    /// Holds the routes.
    _forwarder: Object,
}

impl Switch {
    /// Builds a switch with all roles. `deployment` is common to all of them; the leader's object
    /// is in a directory of its own.
    pub fn new([dir, leaders]: [&Path; 2], deployment: Deployment, slots: u64, v6: bool) -> Switch {
        let mut forwarder =
            Object::load(dir, Role::Forwarder, &Sizes::of(1, 1, 1)).expect("it loads");
        let load = |(role, node)| {
            let dir = if role == Role::Leader { leaders } else { dir };
            role_at(
                dir,
                role,
                MapPlace::only(Deployment { node, ..deployment }, slots),
                v6,
            )
        };
        let mut roles: Vec<Loaded> = ROLES.into_iter().map(load).collect();
        let own = forwarder.own_program().expect("it is there");
        let program = |loaded: &Loaded| loaded.object.own_program();
        let programs: Vec<_> = roles.iter().map(program).collect();
        for Loaded { object, .. } in &mut roles {
            let within = object.program("within").expect("it is there");
            object
                .call("own_switch", CALL_FORWARDER, &own)
                .expect("there is room");
            object
                .call("own_switch", CALL_WITHIN, &within)
                .expect("there is room");
        }
        let objects = roles.iter_mut().map(|loaded| &mut loaded.object);
        for object in objects.chain([&mut forwarder]) {
            for (entry, program) in (0..).zip(&programs) {
                let program = program.as_ref().expect("it is there");
                object.call("roles", entry, program).expect("there is room");
            }
        }
        add_routes(&mut forwarder, v6);
        Switch {
            runner: Runner::new(&mut forwarder, deployment.group).expect("it runs"),
            roles,
            v6,
            _forwarder: forwarder,
        }
    }

    /// Builds a switch whose roles take part in epoch 1, for values up to 1,400 bytes.
    pub fn in_first_epoch(directories: [&Path; 2], v6: bool) -> Switch {
        let deployment = Deployment {
            max_value: 1400,
            ..deployment(0)
        };
        let switch = Switch::new(directories, deployment, SLOTS, v6);
        let all = usize::from(PARTITIONS);
        let program = Program {
            epoch: 1,
            nonce: 1,
            next: vec![0; all],
            trimmed: vec![0; all],
            window: SLOTS,
            acceptors: ACCEPTORS.map(Switch::node).to_vec(),
            f: 1,
            replicas: vec![REPLICA],
            g: 0,
        };
        switch.begin(&program, &first_enable(1));
        switch
    }

    /// Gives the control plane's orders to all roles.
    pub fn begin(&self, program: &Program, enable: &Enable) {
        let leader = self.roles[LEADER].role.leader();
        leader.program(program).expect("its nonce");
        for acceptor in ACCEPTORS {
            let acceptor = self.roles[acceptor].role.acceptor();
            acceptor.enable(enable).expect("its nonce");
        }
        let learner = self.roles[LEARNER].role.learner();
        learner.learn(&Switch::members(program.epoch));
    }

    /// Returns the configuration of an epoch.
    pub fn members(epoch: Epoch) -> Configuration {
        configuration(epoch, &ACCEPTORS.map(Switch::node))
    }

    /// Sends a client's packet into the switch; returns the action, and the frame that comes out.
    pub fn takes(&mut self, to: usize, datagram: &[u8]) -> (u32, Vec<u8>) {
        let from = SocketAddr::new(address(CLIENT, self.v6), 5000);
        let to = SocketAddr::new(address(ROLES[to].1, self.v6), frame::PORT);
        let frame = frame::between(from, to, datagram);
        let (action, out) = self.runner.frame(&frame).expect("it runs");
        (action, out.to_vec())
    }

    /// Returns the datagram of a frame whose checksums are right.
    pub fn read<'a>(&self, out: &'a [u8]) -> Option<&'a [u8]> {
        let right =
            (self.v6 || frame::ip_checksum_is_right(out)) && frame::checksum_is_right(out, self.v6);
        right.then(|| frame::payload(out)).flatten()
    }

    /// Returns the UDP port to which a frame goes.
    pub fn port_to(&self, out: &[u8]) -> u16 {
        let at = frame::head_len(self.v6) - 6;
        u16::from_be_bytes([out[at], out[at + 1]])
    }

    pub fn node(role: usize) -> NodeId {
        ROLES[role].1
    }

    pub fn counted(&self, role: usize, what: usize) -> u64 {
        self.roles[role].object.counter(what)
    }

    /// Makes a leader propose in the name of a node that isn't at the switch, so that refusals go
    /// there.
    pub fn propose_as(&mut self, node: NodeId) {
        let links = links(Role::Leader, node, self.v6);
        let leader = &mut self.roles[LEADER].object;
        leader.set_links(&links).expect("there is room");
    }

    /// Makes the switch no longer call a role.
    pub fn take_away(&mut self, role: usize) {
        for loaded in &mut self.roles {
            let map = loaded.object.ebpf().map_mut("roles").expect("a map");
            let mut programs: ProgramArray<_> = map.try_into().expect("it has programs");
            programs.clear_index(&(role as u32)).expect("it was there");
        }
    }
}

/// Returns who a role's multicast is for.
fn members(role: Role) -> Vec<NodeId> {
    match role {
        Role::Leader => ACCEPTORS.map(Switch::node).to_vec(),
        Role::Acceptor => vec![Switch::node(LEARNER)],
        _ => vec![REPLICA],
    }
}

pub fn address(node: NodeId, v6: bool) -> IpAddr {
    match v6 {
        false => [10, 0, 0, node as u8].into(),
        true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, node).into(),
    }
}

/// Returns a role as its node makes it ready, with nothing to do yet.
fn role_at(dir: &Path, role: Role, place: MapPlace, v6: bool) -> Loaded {
    let mut loaded = Loaded::new(dir, role, place, 1);
    let object = &mut loaded.object;
    let ports = vec![PORT; members(role).len()];
    object.multicast_to(&ports, true).expect("there is room");
    let node = place.deployment.node;
    object
        .set_links(&links(role, node, v6))
        .expect("there is room");
    let own = octets(address(node, v6));
    let mut device = test_device(&place);
    device.flags = if role == Role::Leader {
        DEVICE_WITHIN
    } else {
        0
    };
    match v6 {
        false => device.ip4.copy_from_slice(&own[..4]),
        true => device.ip6 = own,
    }
    map_place::open(object, &place, GROUP_DELIVER, &device).expect("it fits");
    loaded
}

/// Returns the links to a role's members: one by their ports, and one within the switch.
fn links(role: Role, from: NodeId, v6: bool) -> [Link; 2] {
    let members = members(role);
    let mut link = Link {
        ifindex: PORT,
        group: 1,
        entries: members.len() as u32,
        members: members.len() as u32,
        ..Link::default()
    };
    for (member, to) in link.member.iter_mut().zip(members) {
        *member = member_of(to, from, v6);
    }
    let within = Link {
        ifindex: PORT_WITHIN,
        ..link
    };
    [link, within]
}

fn member_of(to: NodeId, from: NodeId, v6: bool) -> MulticastMember {
    let entry = ROLES.iter().position(|(_, node)| *node == to);
    MulticastMember {
        mac_to: [2, 0, 0, 0, 1, to as u8],
        mac_from: [2, 0, 0, 0, 2, to as u8],
        family: if v6 { 6 } else { 4 },
        ip_to: octets(address(to, v6)),
        ip_from: octets(address(from, v6)),
        port_to: if entry.is_some() {
            frame::PORT
        } else {
            REPLICA_PORT
        },
        port_from: frame::PORT,
        partitions: 0,
        role: entry.map_or(0, |entry| 1 + entry as u16),
    }
}

fn add_routes(forwarder: &mut Object, v6: bool) {
    forwarder.forward_by(PORT).expect("there is room");
    let nodes = ROLES.iter().map(|(_, node)| *node);
    for (node, role) in nodes.zip(1..).chain([(REPLICA, 0), (CLIENT, 0)]) {
        let route = Route {
            port: PORT,
            role,
            ..Route::default()
        };
        let key = RouteKey::of(address(node, v6));
        forwarder.insert("routes", &key, &route).expect("it fits");
    }
}
