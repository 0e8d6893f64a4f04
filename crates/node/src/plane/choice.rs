// SPDX-License-Identifier: Apache-2.0
//! Chooses the plane on which a node's role runs.

use loader::interface::Interface;
use loader::occupant::Occupant;
use loader::pins::Pins;
use loader::switch::Switch;
use tracing::{info, warn};

use crate::Error;
use crate::cluster_file::{ClusterFile, Node, Plane, Role, Storage};

/// Returns the role in the kernel, which `open` makes, or `None` if it must run behind sockets.
/// Prints the choice and its reason.
pub(crate) fn in_kernel<T>(
    cluster: &ClusterFile,
    node: &Node,
    open: impl FnOnce() -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    let left = Pins::are_left(&cluster.bpffs, cluster.cluster, &node.name);
    let why_not = match node.plane {
        Plane::Xdp => return open().map(Some),
        Plane::Dpdk if left => return Err(still_in_kernel(cluster, node)),
        // No program sees the packets that a DPDK port takes.
        Plane::Dpdk => return Ok(None),
        Plane::Udp | Plane::P4 => {
            refuse_kernel(cluster, node)?;
            return Ok(None);
        }
        Plane::Auto if cluster.trace.is_some() => {
            Error::new("what passes in the kernel can't be recorded (`trace`)")
        }
        Plane::Auto if node.storage == Storage::Durable => {
            Error::new("programs in the kernel can't store votes on disk")
        }
        Plane::Auto => match open() {
            Ok(role) => return Ok(Some(role)),
            // The pinned programs still run and take packets before any socket does.
            Err(why) if left => return Err(why),
            Err(why) => {
                forget_attempt(cluster, node)?;
                why
            }
        },
    };
    info!(why = %why_not, "plane: udp, since xdp isn't possible");
    refuse_deafness(cluster, node)?;
    Ok(None)
}

/// Returns an error if a program in the kernel takes the node's packets, be it its own or another
/// node's.
pub(crate) fn refuse_kernel(cluster: &ClusterFile, node: &Node) -> Result<(), Error> {
    match Pins::are_left(&cluster.bpffs, cluster.cluster, &node.name) {
        true => Err(still_in_kernel(cluster, node)),
        false => refuse_deafness(cluster, node),
    }
}

/// Returns how many UDP ports the node uses, starting with its own.
fn node_ports(cluster: &ClusterFile, node: &Node) -> u16 {
    let group = node.group.filter(|_| node.role == Role::Replica);
    let group = group.and_then(|id| cluster.group(id));
    group.map_or(1, |group| group.partitions)
}

/// Returns an error if a program takes the packets that this node would expect at its sockets:
/// another node's program, perhaps of another cluster, or this node's own that is pinned elsewhere.
pub(crate) fn refuse_deafness(cluster: &ClusterFile, node: &Node) -> Result<(), Error> {
    let (first, ports) = (node.address, node_ports(cluster, node));
    // Some interfaces, such as loopback, have no programs, and a process without the privilege
    // can't ask.
    let Ok((place, Some(occupant))) = occupant(cluster, node) else {
        return Ok(());
    };
    let there = occupant.described();
    match occupant.takes(first, ports) {
        Some(true) => Err(Error::new(format!(
            "at {place} is {there}: it takes what is sent to {first}, and this node would hear \
             nothing. Stop that node (`wirepaxos stop` with its cluster file), or give this one \
             another address"
        ))),
        Some(false) => Ok(()),
        None => {
            warn!(
                "plane: at {place} is {there}: should it take what is sent to {first}, this node \
                 hears nothing"
            );
            Ok(())
        }
    }
}

/// Removes what a failed start has left, since it would keep the node from using sockets at the
/// next start.
fn forget_attempt(cluster: &ClusterFile, node: &Node) -> Result<(), Error> {
    if Pins::are_left(&cluster.bpffs, cluster.cluster, &node.name) {
        Pins::of_node(&cluster.bpffs, cluster.cluster, &node.name)?.remove()?;
    }
    Ok(())
}

/// Returns whose program is attached where the node's packets arrive.
fn occupant(cluster: &ClusterFile, node: &Node) -> Result<(String, Option<Occupant>), String> {
    let own = node.address.ip();
    match &node.switch {
        Some(name) => {
            let occupant = Switch::open(&cluster.bpffs, name)?.occupant(own)?;
            Ok((name.clone(), occupant))
        }
        None => {
            let interface = Interface::with_address(own)?;
            let occupant = Occupant::of(&interface)?;
            Ok((interface.name, occupant))
        }
    }
}

fn still_in_kernel(cluster: &ClusterFile, node: &Node) -> Error {
    Error::new(format!(
        "programs of {name} run in the kernel, with their memory in {bpffs}. Run the node with \
         `plane = \"xdp\"`, or do so once and stop it with `wirepaxos stop --name {name}`, which \
         takes them off. Without its memory, when that is removed, an acceptor re-joins as a new \
         member",
        name = node.name,
        bpffs = cluster.bpffs.display(),
    ))
}
