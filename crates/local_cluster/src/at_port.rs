// SPDX-License-Identifier: Apache-2.0
//! Nodes on DPDK: all but the controller are one process, at the interface of a host of the lab.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use node::cluster_file::{Draft, NodeDraft, Plane, Role};

use crate::error::Error;

/// The process of all of them, and the host where it runs.
pub const HOST: &str = "replica-1";
/// An interface of the kernel as a port.
const PORT: &str = "net_af_packet0";
const ARGUMENTS: [&str; 5] = [
    "--no-huge",
    "-m",
    "128",
    "--no-pci",
    "--vdev=net_af_packet0,iface=eth0",
];
/// The last byte of the first address at the port. No host of a lab has it, nor one of those behind it.
const FIRST_ADDRESS: u8 = 201;
/// What the kernel keeps of a node is at its host, on a port of its own.
const FIRST_CONTROL: u16 = 7101;

/// Moves the nodes to the port, each with an address of its own there. Returns their names.
pub fn move_to_port(draft: &mut Draft) -> Result<Vec<String>, Error> {
    let nodes = draft.nodes.iter();
    let host = nodes.clone().find(|node| node.name == HOST);
    let host = host.ok_or_else(|| Error::new(format!("the cluster has no {HOST}")))?;
    let IpAddr::V4(host) = host.address.ip() else {
        return Err(Error::new("a port of DPDK wants a network of IPv4"));
    };
    let moved: Vec<&mut NodeDraft> = draft
        .nodes
        .iter_mut()
        .filter(|node| node.role != Role::Controller)
        .collect();
    if moved.len() > usize::from(u8::MAX - FIRST_ADDRESS) {
        return Err(Error::new("too many nodes for one port of DPDK"));
    }
    let mut names = Vec::new();
    for (at, node) in moved.into_iter().enumerate() {
        let [a, b, c, _] = host.octets();
        let own = Ipv4Addr::new(a, b, c, FIRST_ADDRESS + at as u8);
        node.address = SocketAddr::new(own.into(), node.address.port());
        node.control = SocketAddr::new(host.into(), FIRST_CONTROL + at as u16);
        node.plane = Some(Plane::Dpdk);
        node.dpdk_port = Some(PORT.to_owned());
        node.dpdk_args = ARGUMENTS.map(str::to_owned).into();
        node.workers = None;
        names.push(node.name.clone());
    }
    Ok(names)
}
