// SPDX-License-Identifier: Apache-2.0
//! Checks of the cluster as a whole: numbers, names, roles and addresses.

use crate::cluster_file::validate::find_group;
use std::collections::BTreeMap;
use std::net::SocketAddr;

use toml::Spanned;

use super::super::read::{RawGroup, RawNode};
use super::super::{Group, Node, Protocol, Role};
use super::{Check, at};

/// The ports that one socket of a node takes.
struct Taken {
    pub(super) at: usize,
    what: &'static str,
    pub(super) node: String,
    pub(super) address: SocketAddr,
    ports: u16,
    udp: bool,
    tcp: bool,
    between_nodes: bool,
}

impl Taken {
    fn collides(&self, other: &Taken) -> bool {
        let (a, b) = (self.address, other.address);
        let any = |ip: std::net::IpAddr| ip.is_unspecified();
        let same_host = a.ip() == b.ip()
            || a.is_ipv4() == b.is_ipv4() && (any(a.ip()) || any(b.ip()))
            // An IPv6 socket on any address also takes the IPv4 port.
            || a.is_ipv6() && any(a.ip())
            || b.is_ipv6() && any(b.ip());
        let last = |t: &Taken| t.address.port().saturating_add(t.ports - 1);
        let overlap = a.port() <= last(other) && b.port() <= last(self);
        let protocol = self.udp && other.udp || self.tcp && other.tcp;
        same_host && overlap && protocol
    }
}

fn ports(node: &Node, raw: &RawNode, groups: &[Spanned<RawGroup>]) -> Vec<Taken> {
    let replica = node.role == Role::Replica;
    let partitions = node
        .group
        .filter(|_| replica)
        .and_then(|id| find_group(groups, i64::from(id)))
        .and_then(|g| g.partitions.as_ref())
        .map_or(1, |p| (*p.get_ref()).clamp(1, 64) as u16);
    let taken = |what, at, address, udp, tcp| Taken {
        at,
        what,
        node: node.name.clone(),
        address,
        ports: 1,
        udp,
        tcp,
        between_nodes: udp,
    };
    let mut all = vec![
        Taken {
            ports: partitions,
            ..taken("`address`", at(&raw.address), node.address, true, false)
        },
        taken("`control`", at(&raw.control), node.control, true, replica),
    ];
    if let (Some(address), Some(raw)) = (node.peer, &raw.peer) {
        all.push(taken("`peer`", at(raw), address, true, false));
    }
    if let (Some(address), Some(raw)) = (node.redis, &raw.redis) {
        all.push(taken("`redis`", at(raw), address, false, true));
    }
    if let (Some(address), Some(raw)) = (node.metrics, &raw.metrics) {
        all.push(taken("`metrics`", at(raw), address, false, true));
    }
    // An unreadable address has already been reported.
    all.retain(|t| t.address.port() != 0);
    all
}

impl Check {
    pub(super) fn unique_groups(&mut self, groups: &[Spanned<RawGroup>]) {
        if groups.is_empty() {
            self.error(
                0,
                "there is no group",
                "add a [[group]] with `id` and `application`",
            );
        }
        self.unique("group `id`", groups.iter().map(|g| &g.get_ref().id));
    }

    pub(super) fn unique_nodes(&mut self, nodes: &[Spanned<RawNode>]) {
        self.unique("node `id`", nodes.iter().map(|n| &n.get_ref().id));
        self.unique("`name`", nodes.iter().map(|n| &n.get_ref().name));
    }

    fn unique<'a, T: Ord + std::fmt::Debug + 'a>(
        &mut self,
        what: &str,
        all: impl Iterator<Item = &'a Spanned<T>>,
    ) {
        let mut seen = BTreeMap::new();
        for one in all {
            if seen.insert(one.get_ref(), ()).is_some() {
                self.error(
                    at(one),
                    format!("{what} {:?} is taken twice", one.get_ref()),
                    "give each its own",
                );
            }
        }
    }

    /// Checks that the roles fit the protocols, since each protocol has roles of its own.
    pub(super) fn roles(&mut self, nodes: &[Node], raw: &[Spanned<RawNode>], groups: &[Group]) {
        let speaks = |protocol| groups.iter().any(|g| g.protocol == protocol);
        let leads = |n: &Node| n.role == Role::Leader && !n.leaving;
        if speaks(Protocol::Paxos) && !nodes.iter().any(leads) {
            self.error(
                0,
                "there is no leader",
                "add a node with role = \"leader\", and a second one as its backup",
            );
        }
        for (node, raw) in nodes.iter().zip(raw) {
            let (protocol, why) = match node.role {
                Role::Leader => (Protocol::Paxos, "NOPaxos has sequencers in their place"),
                Role::Acceptor => (
                    Protocol::Paxos,
                    "in NOPaxos replicas remember what was stamped",
                ),
                Role::Learner => (Protocol::Paxos, "in NOPaxos there is nothing to learn"),
                Role::Sequencer => (Protocol::NoPaxos, "Paxos has leaders in their place"),
                Role::Controller | Role::Replica => continue,
            };
            if !groups.is_empty() && !speaks(protocol) {
                let (role, protocol) = (node.role.name(), protocol.name());
                self.error(
                    at(raw),
                    format!("role = {role:?}, and no group has protocol = {protocol:?}: {why}"),
                    format!("remove this node, or give a group protocol = {protocol:?}"),
                );
            }
        }
    }

    /// Refuses `storage` for replicas of a Paxos group, whose acceptors remember the decided
    /// values.
    pub(super) fn logs(&mut self, nodes: &[Node], raw: &[Spanned<RawNode>], groups: &[Group]) {
        for (node, raw) in nodes.iter().zip(raw) {
            let own = groups.iter().find(|g| Some(g.id) == node.group);
            let storage = raw.get_ref().storage.as_ref();
            let in_paxos = own.is_some_and(|g| g.protocol == Protocol::Paxos);
            let has_none = in_paxos && node.role == Role::Replica;
            if let Some(storage) = storage.filter(|_| has_none) {
                self.error(
                    at(storage),
                    "`storage` means nothing on a replica of a group with `protocol = \"paxos\"`: \
                     acceptors remember what is decided",
                    "remove it; acceptors have it, and replicas with NOPaxos",
                );
            }
        }
    }

    /// Checks the sequencers' groups: only one may be a group's first choice, since one stamps at a
    /// time.
    pub(super) fn sequencers(
        &mut self,
        nodes: &[Node],
        raw_nodes: &[Spanned<RawNode>],
        groups: &[Group],
        raw_groups: &[Spanned<RawGroup>],
    ) {
        let sequencers = || {
            let all = nodes.iter().zip(raw_nodes);
            all.filter(|(n, _)| n.role == Role::Sequencer)
        };
        for (group, raw) in groups.iter().zip(raw_groups) {
            let id = group.id;
            let mut own = sequencers().filter(|(n, _)| n.group == Some(id));
            let first = own.next();
            if group.protocol == Protocol::Paxos {
                if let Some((_, raw)) = first {
                    self.error(
                        at(raw),
                        format!("a sequencer of group {id}, whose protocol is \"paxos\""),
                        "name a group with protocol = \"nopaxos\", or leave `group` out",
                    );
                }
                continue;
            }
            if first.is_none() && !sequencers().any(|(n, _)| n.group.is_none()) {
                self.error(
                    at(raw),
                    format!("group {id} has no sequencer"),
                    "add a node with role = \"sequencer\", and a second one as its spare",
                );
            }
            for (_, raw) in own {
                self.error(
                    at(raw),
                    format!("a second sequencer of group {id}, and one stamps at a time"),
                    "leave `group` out: then this one is a spare, which any group can go over to",
                );
            }
        }
    }

    /// Checks that no two sockets of one host need the same port, and that all nodes use one IP
    /// version.
    pub(super) fn addresses(
        &mut self,
        nodes: &[Node],
        raw: &[Spanned<RawNode>],
        groups: &[Spanned<RawGroup>],
    ) {
        let mut taken: Vec<Taken> = Vec::new();
        for (node, raw) in nodes.iter().zip(raw) {
            for new in ports(node, raw.get_ref(), groups) {
                self.fits(&new, &taken);
                taken.push(new);
            }
        }
    }

    fn fits(&mut self, new: &Taken, taken: &[Taken]) {
        let Taken { address, ports, .. } = new;
        if address.port().checked_add(ports - 1).is_none() {
            self.error(
                new.at,
                format!("{} needs {ports} ports from {address} on", new.what),
                format!("choose a port of at most {}", 65_536 - u32::from(*ports)),
            );
        }
        if let Some(other) = taken.iter().find(|t| t.collides(new)) {
            self.error(
                new.at,
                format!(
                    "{} of {:?} takes {address} as {} of {:?} does",
                    new.what, new.node, other.what, other.node
                ),
                "choose another port; a replica takes one for each partition",
            );
        }
        let family = |t: &Taken| t.between_nodes && t.address.is_ipv4() != address.is_ipv4();
        if new.between_nodes && taken.first().is_some_and(family) {
            self.error(
                new.at,
                format!("{address} is of another IP version than the first node's"),
                "give all nodes IPv4 addresses, or all IPv6",
            );
        }
    }
}
