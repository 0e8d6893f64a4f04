// SPDX-License-Identifier: Apache-2.0
//! Decides on which planes a node may be, both for the file and for the command line.

use super::{Auth, Group, Node, Plane, Protocol, Role, Storage};

/// An error and its remedy.
pub(super) type Problem = (String, &'static str);

/// The error of a node on the DPDK plane that has no port.
pub(crate) const NO_PORT: (&str, &str) = (
    "`plane = \"dpdk\"` without `dpdk_port`",
    "add the name of the port that has `address`: a card's PCI address such as \"0000:01:00.0\", \
     or that of a virtual device which `dpdk_args` makes",
);

/// The parts of a cluster that a node's plane must fit.
pub(super) struct Cluster<'a> {
    pub groups: &'a [Group],
    pub nodes: &'a [Node],
    /// Nodes record the packets that they send and receive (`trace`).
    pub records: bool,
    pub auth: Auth,
}

impl Cluster<'_> {
    /// Returns all reasons why a node can't be on its plane.
    pub fn against(&self, node: &Node) -> Vec<Problem> {
        if node.role == Role::Controller {
            return vec![said(OFF_THE_PATH)];
        }
        let of_all = [
            self.of_programs(node),
            self.of_xdp(node),
            self.of_p4(node),
            self.of_dpdk(node),
        ];
        of_all.into_iter().flatten().collect()
    }

    /// Returns the reasons that apply to programs, which neither store nor record.
    fn of_programs(&self, node: &Node) -> Vec<Problem> {
        let mut found = Vec::new();
        let place = match node.plane {
            Plane::Xdp => "in the kernel",
            Plane::P4 => "in a switch",
            _ => return found,
        };
        let plane = node.plane.name();
        if node.storage == Storage::Durable {
            found.push((
                format!(
                    "`plane = {plane:?}` with `storage = \"durable\"`: programs {place} can't \
                         write to disk"
                ),
                "make the node volatile, or take plane = \"udp\"",
            ));
        }
        if self.records {
            found.push((
                format!("`trace` with `plane = {plane:?}`: what passes {place} can't be recorded"),
                "remove `trace`, or take plane = \"udp\"",
            ));
        }
        found
    }

    fn of_xdp(&self, node: &Node) -> Vec<Problem> {
        let own = self.groups.iter().find(|g| Some(g.id) == node.group);
        let is_ordered = own.is_some_and(|g| g.protocol == Protocol::NoPaxos);
        let mut found = Vec::new();
        if node.plane != Plane::Xdp {
            return found;
        }
        if node.role == Role::Replica && is_ordered {
            found.push(said(NO_RECEIVER));
        }
        found
    }

    fn of_p4(&self, node: &Node) -> Vec<Problem> {
        let mut found = Vec::new();
        if node.plane != Plane::P4 {
            return found;
        }
        if node.role == Role::Replica {
            found.push((
                format!(
                    "`plane = \"p4\"` on a node with role = {:?}: packets end in its process",
                    node.role.name()
                ),
                "take plane = \"udp\"",
            ));
        }
        if self.auth == Auth::SipHash {
            found.push((
                "`auth = \"siphash\"` with `plane = \"p4\"`: programs in switches sign by \
                 HalfSipHash alone"
                    .to_owned(),
                "take auth = \"halfsiphash\" or \"control\", or plane = \"udp\"",
            ));
        }
        found.extend(self.slots_in_a_switch(node));
        found.extend(self.values_in_a_switch());
        found.extend(self.places_in_a_switch());
        found
    }

    fn slots_in_a_switch(&self, node: &Node) -> Option<Problem> {
        let has_slots = matches!(node.role, Role::Acceptor | Role::Learner);
        let mut slots = self.groups.iter().map(|group| group.slots);
        let odd = slots.find(|slots| !slots.is_power_of_two())?;
        has_slots.then(|| {
            (
                format!("`plane = \"p4\"` with `slots = {odd}`: no switch divides"),
                "make `slots` a power of two",
            )
        })
    }

    fn values_in_a_switch(&self) -> Option<Problem> {
        let most = p4::programs::MAX_VALUE;
        let mut values = self.groups.iter().map(|group| group.max_value);
        let long = values.find(|value| *value > most)?;
        Some((
            format!(
                "`plane = \"p4\"` with `max_value = {long}`: the programs carry values of at most \
                 {most}"
            ),
            "set max_value = 128 for the group, or take plane = \"udp\"",
        ))
    }

    fn places_in_a_switch(&self) -> Option<Problem> {
        let nodes = |role, group| {
            let all = self.nodes.iter();
            all.filter(|n| n.role == role && n.group == group).count()
        };
        let replicas = |group: &Group| nodes(Role::Replica, Some(group.id));
        let most_replicas = self.groups.iter().map(replicas).max().unwrap_or(0);
        let members = [
            (nodes(Role::Acceptor, None), Role::Acceptor),
            (most_replicas, Role::Replica),
        ];
        let places = p4::order::PLACES;
        let (n, role) = members.into_iter().find(|(n, _)| *n > places)?;
        Some((
            format!(
                "`plane = \"p4\"` with {n} {role}s of a group: a switch has places for {places}"
            ),
            "take plane = \"udp\", or fewer of them",
        ))
    }

    /// Returns the reasons that apply to DPDK. One thread polls a port, and packets that it takes
    /// never reach another node's sockets.
    fn of_dpdk(&self, node: &Node) -> Vec<Problem> {
        let mut found = Vec::new();
        if node.plane != Plane::Dpdk {
            return found;
        }
        if node.dpdk.is_none() {
            found.push(said(NO_PORT));
        }
        let is_spread = node.workers.is_some_and(|n| n > 1) || !node.worker_cpus.is_empty();
        if node.role == Role::Replica && is_spread {
            found.push(said(ONE_THREAD));
        }
        let ip = node.address.ip();
        let has_it = |n: &&Node| n.id != node.id && n.address.ip() == ip;
        if let Some(other) = self.nodes.iter().find(has_it) {
            found.push((
                format!(
                    "`plane = \"dpdk\"`, and {:?} has the IP address {ip}, too: the port takes all \
                     that is sent there",
                    other.name
                ),
                "give the node an IP address of its own",
            ));
        }
        found
    }
}

const OFF_THE_PATH: (&str, &str) = (
    "`plane` means nothing on a node with role = \"controller\"",
    "remove it; the controller isn't on the path of packets",
);

const NO_RECEIVER: (&str, &str) = (
    "`plane = \"xdp\"` on a replica of a group with `protocol = \"nopaxos\"`: no program receives \
     what is ordered",
    "take plane = \"udp\"",
);

const ONE_THREAD: (&str, &str) = (
    "`plane = \"dpdk\"` with `workers` or `worker_cpus`: one thread looks at the port, and \
     executes all partitions",
    "remove them; `cpu` says where that thread is",
);

fn said((problem, remedy): (&str, &'static str)) -> Problem {
    (problem.to_owned(), remedy)
}
