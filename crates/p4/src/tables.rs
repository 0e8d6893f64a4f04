// SPDX-License-Identifier: Apache-2.0
//! The entries of a program's tables and multicast groups, in the language of BMv2's command line
//! (`simple_switch_CLI`). In a program that isn't a combination the role is at `ingress.role`;
//! [`of_role`] is for the others.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use paxos::{Configuration, Deployment, Epoch, GroupId, Learner, Member, NodeId};

use crate::Result;
use crate::bmv2::CPU_PORT;

/// The role's place in a program of one role.
const ALONE: &str = "ingress.role.";

/// Copies of a command over several partitions: as many as one names at most (`MAX_VECTOR_HERE`).
pub const MAX_VECTOR: u16 = 12;
/// The first multicast group of the first group. Each group has as many as a command may name
/// partitions, and some spare ones.
const FIRST_MULTICAST: u16 = 16;

const ENTER: &str = "ingress.role.enter";

/// The place of a group in the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterPlace {
    /// The role.
    pub deployment: Deployment,
    /// Slots of a partition, a power of two.
    pub slots: u64,
    /// The number among the node's groups.
    pub index: u16,
    /// The number of partitions before the group's first one.
    pub first_partition: u32,
    /// The number of slots before the group's first one.
    pub first_slot: u64,
}

impl RegisterPlace {
    /// Returns the multicast group for one copy a member.
    pub fn members(&self) -> u16 {
        FIRST_MULTICAST * (1 + self.index)
    }
}

/// A receiver of a group's multicast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// The number in the group.
    pub number: u8,
    /// The address at which the receiver listens; for a replica, that of partition 0.
    pub to: SocketAddr,
    /// The source address of the copy.
    pub from: SocketAddr,
    /// The hardware address of the receiver.
    pub mac_to: [u8; 6],
    /// The hardware address of the source.
    pub mac_from: [u8; 6],
    /// Partition p listens on the p-th port from there.
    pub port_per_partition: bool,
}

/// Returns these lines for a role of a combination, in which each role has its own name.
pub fn of_role(name: &str, lines: &[String]) -> Vec<String> {
    let there = format!("ingress.{name}.");
    lines
        .iter()
        .map(|line| line.replace(ALONE, &there))
        .collect()
}

/// Takes the role's addresses away, so that it gets no packets; then everything else but a
/// learner's configurations.
pub fn clear() -> Vec<String> {
    let enter = [
        "own4",
        "own6",
        "own_order",
        "nodes4",
        "nodes6",
        "askers4",
        "askers6",
        "groups",
    ];
    let enter = enter.map(|table| format!("{ENTER}.{table}"));
    let others = [
        "ingress.others.beside",
        "egress.members4",
        "egress.members6",
    ];
    let all = enter.into_iter().chain(others.map(str::to_owned));
    all.map(|table| format!("table_clear {table}")).collect()
}

/// Takes the role's addresses away: packets to them go to the switch's own machine.
pub fn take_off() -> Vec<String> {
    ["own4", "own6"]
        .map(|table| format!("table_clear {ENTER}.{table}"))
        .to_vec()
}

/// Orders name the role by its node. This comes first of all.
pub fn own_order(node: NodeId, cluster: u32, port: u16) -> String {
    format!("table_add {ENTER}.own_order {ENTER}.own {node} => {node} {cluster} {port} 1")
}

/// Returns the entry by which packets to this address are for the role. It must be added last of
/// all.
pub fn own(node: NodeId, cluster: u32, address: SocketAddr) -> String {
    let (table, mask) = match address {
        SocketAddr::V4(_) => ("own4", "0xffffffff"),
        SocketAddr::V6(_) => ("own6", "0xffffffffffffffffffffffffffffffff"),
    };
    let (ip, port) = (address.ip(), address.port());
    format!("table_add {ENTER}.{table} {ENTER}.own {ip}&&&{mask} => {node} {cluster} {port} 1 1")
}

/// Returns the entry by which a packet in a node's name counts only if it comes from the node's
/// address. [M-SENDER]
pub fn node((node, address): (NodeId, IpAddr)) -> String {
    let table = if address.is_ipv4() {
        "nodes4"
    } else {
        "nodes6"
    };
    format!("table_add {ENTER}.{table} {ENTER}.at_home {node} {address} =>")
}

/// Returns the entry by which commands count from addresses that begin with `bits` bits of this
/// one. [M-ASKER]
pub fn asker((address, bits): (IpAddr, u8)) -> String {
    let table = if address.is_ipv4() {
        "askers4"
    } else {
        "askers6"
    };
    format!("table_add {ENTER}.{table} {ENTER}.at_home {address}/{bits} =>")
}

/// Returns the entries by which commands count from anywhere.
pub fn any_asker() -> Vec<String> {
    let all = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    all.map(|address| asker((address, 0))).to_vec()
}

/// Returns the table entry of the role's group.
pub fn group(place: &RegisterPlace) -> String {
    let Deployment {
        group,
        partitions,
        max_value,
        ..
    } = place.deployment;
    format!(
        "table_add {ENTER}.groups {ENTER}.of_group {group} => {partitions} {max_value} {} {} {} {} \
         {}",
        place.index,
        place.first_partition,
        place.slots,
        place.first_slot,
        place.members()
    )
}

/// Passes packets that aren't for the role between the switch's own machine and this port.
pub fn beside(port: u16) -> String {
    format!("table_add ingress.others.beside ingress.others.pass_by {CPU_PORT} => {port}")
}

/// Returns the table entry with a copy's addresses.
pub fn copy(place: &RegisterPlace, copy: &Copy) -> String {
    let family = if copy.to.is_ipv4() { '4' } else { '6' };
    let partitions = if copy.port_per_partition { u16::MAX } else { 0 };
    format!(
        "table_add egress.members{family} egress.to_member{family} {} {} => {} {} {} {} {} {} \
         {partitions}",
        place.members(),
        copy.number,
        mac(copy.mac_to),
        mac(copy.mac_from),
        copy.to.ip(),
        copy.from.ip(),
        copy.to.port(),
        copy.from.port(),
    )
}

/// Returns the empty multicast group for commands over `partitions` partitions.
fn multicast_group(place: &RegisterPlace, partitions: u16) -> String {
    format!("mc_mgrp_create {}", place.members() + partitions - 1)
}

/// Returns a copy that leaves by `port`, for the member of a number and the partition at a place of
/// a command's vector. The switch answers with a handle.
fn multicast_node(number: u8, partition: u16, port: u16) -> String {
    format!(
        "mc_node_create {} {port}",
        partition << 8 | u16::from(number)
    )
}

/// Puts a copy into the group for commands over `partitions` partitions. A copy is in one group
/// only.
fn in_multicast_group(place: &RegisterPlace, partitions: u16, handle: &str) -> String {
    let group = place.members() + partitions - 1;
    format!("mc_node_associate {group} {handle}")
}

/// Returns the handles of the nodes that `multicast_node` has made, by what the switch has said.
fn handles(said: &str) -> Vec<String> {
    let handle = |line: &str| {
        Some(
            line.split_once("node was created with handle ")?
                .1
                .to_owned(),
        )
    };
    said.lines().filter_map(handle).collect()
}

/// Returns what removes all multicast that `mc_dump` has shown.
pub fn remove_multicast(dump: &str) -> Vec<String> {
    let number = |line: &str, before: &str| -> Option<String> {
        let (_, rest) = line.split_once(before)?;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        (!digits.is_empty()).then_some(digits)
    };
    let groups = dump.lines().filter_map(|line| number(line, "mgrp("));
    let groups = groups.map(|group| format!("mc_mgrp_destroy {group}"));
    let nodes = dump.lines().filter_map(|line| number(line, "(L1h="));
    let nodes = nodes.map(|node| format!("mc_node_destroy {node}"));
    // A node looks for its group when it goes.
    nodes.chain(groups).collect()
}

/// Makes a group's multicast: `members` copies of each command by `port`, and as many for each of
/// the partitions that one may name. `run` runs lines.
pub fn make_multicast(
    place: &RegisterPlace,
    members: u8,
    port: u16,
    mut run: impl FnMut(&[String]) -> Result<String>,
) -> Result<()> {
    let most = place.deployment.partitions.min(MAX_VECTOR);
    let mut made = Vec::new();
    let mut lines = Vec::new();
    for partitions in 1..=most {
        lines.push(multicast_group(place, partitions));
        for partition in 0..partitions {
            for number in 0..members {
                lines.push(multicast_node(number, partition, port));
                made.push(partitions);
            }
        }
    }
    let handles = handles(&run(&lines)?);
    if handles.len() != made.len() {
        return Err(format!(
            "the switch has made {} copies of {}",
            handles.len(),
            made.len()
        ));
    }
    let in_group = made.iter().zip(&handles);
    let lines: Vec<_> = in_group
        .map(|(partitions, handle)| in_multicast_group(place, *partitions, handle))
        .collect();
    run(&lines).map(drop)
}

/// The configurations by which a learner of a group counts.
#[derive(Clone, Debug)]
pub struct Configurations {
    deployment: Deployment,
    known: BTreeMap<Epoch, Configuration>,
}

impl Configurations {
    /// Creates the entries of a learner that knows no configuration yet.
    pub fn of(deployment: Deployment) -> Configurations {
        Configurations {
            deployment,
            known: BTreeMap::new(),
        }
    }

    /// Returns the number of the group.
    pub fn group(&self) -> GroupId {
        self.deployment.group
    }

    /// Takes one in, if the role in Rust would; says whether anything has changed. It forgets what
    /// that forgets.
    pub fn learn(&mut self, configuration: &Configuration) -> bool {
        let mut rust = Learner::new(self.deployment, 1);
        for known in self.known.values() {
            rust.learn(known);
        }
        if !rust.learn(configuration) {
            return false;
        }
        self.known
            .insert(configuration.epoch, configuration.clone());
        self.known.retain(|epoch, _| rust.knows(*epoch));
        true
    }

    /// Returns the epochs, newest first.
    pub fn epochs(&self) -> Vec<Epoch> {
        self.known.keys().rev().copied().collect()
    }

    /// Returns the entries of all configurations: for each first its acceptors, then how many of
    /// them decide. [M-BANK]
    pub fn lines(&self) -> Vec<String> {
        let group = self.deployment.group;
        let all = self.known.values();
        all.flat_map(|one| configuration(group, one)).collect()
    }
}

fn configuration(group: GroupId, configuration: &Configuration) -> Vec<String> {
    let (epoch, quorum) = (configuration.epoch, configuration.f + 1);
    let voter = |(place, acceptor): (usize, &Member)| {
        let (node, bit) = (acceptor.node, 1 << place);
        format!(
            "table_add ingress.role.voters ingress.role.votes_as {group} {epoch} {node} => {bit}"
        )
    };
    let voters = configuration.acceptors.iter().enumerate().map(voter);
    let known =
        format!("table_add ingress.role.known ingress.role.decided_by {group} {epoch} => {quorum}");
    voters.chain([known]).collect()
}

/// Returns the lines after which a learner knows no epoch: first it knows of no configuration, then
/// of no acceptor.
pub fn clear_configurations() -> Vec<String> {
    ["known", "voters"]
        .map(|table| format!("table_clear ingress.role.{table}"))
        .to_vec()
}

fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_multicast_that_is_shown_is_removed() {
        let dump = "==========\nMC ENTRIES\n**********\nmgrp(16)\n  -> (L1h=0, rid=0) -> \
                    (ports=[1], lags=[])\n  -> (L1h=12, rid=1) -> (ports=[1], \
                    lags=[])\n**********\nmgrp(17)\n==========\nLAGS\n==========\n";
        assert_eq!(
            remove_multicast(dump),
            [
                "mc_node_destroy 0",
                "mc_node_destroy 12",
                "mc_mgrp_destroy 16",
                "mc_mgrp_destroy 17"
            ]
        );
        assert_eq!(
            handles("Creating node\nnode was created with handle 3\nx"),
            ["3"]
        );
    }
}
