// SPDX-License-Identifier: Apache-2.0
//! Nodes of a lab on DPDK, whose ports are interfaces of its hosts: each at its own host's, or
//! several in one process.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use node::cluster_file::{Draft, NodeDraft, Plane};

use crate::error::Error;

/// The host of nodes that share a process.
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
/// The last byte of the first address at the port. No host of a lab has it, nor one of those behind
/// it.
const FIRST_ADDRESS: u8 = 201;
/// The kernel's part of a node has its control port at the node's host, from this number on.
const FIRST_CONTROL: u16 = 7101;

/// Moves nodes to the interface of their host.
pub fn put_at_interface(draft: &mut Draft, names: &[&str]) -> Result<(), Error> {
    for name in names {
        at_interface(node(draft, name)?);
    }
    Ok(())
}

/// Moves nodes to the interface of [`HOST`], where one process can have them all: each has an
/// address of its own there.
pub fn put_together(draft: &mut Draft, names: &[&str]) -> Result<(), Error> {
    let IpAddr::V4(host) = node(draft, HOST)?.address.ip() else {
        return Err(Error::new("a port of DPDK wants a network of IPv4"));
    };
    if names.len() > usize::from(u8::MAX - FIRST_ADDRESS) {
        return Err(Error::new("too many nodes for one port of DPDK"));
    }
    let [a, b, c, _] = host.octets();
    for (at, name) in names.iter().enumerate() {
        let node = node(draft, name)?;
        let own = Ipv4Addr::new(a, b, c, FIRST_ADDRESS + at as u8);
        node.address = SocketAddr::new(own.into(), node.address.port());
        node.control = SocketAddr::new(host.into(), FIRST_CONTROL + at as u16);
        at_interface(node);
    }
    Ok(())
}

fn node<'a>(draft: &'a mut Draft, name: &str) -> Result<&'a mut NodeDraft, Error> {
    let found = draft.nodes.iter_mut().find(|node| node.name == name);
    found.ok_or_else(|| Error::new(format!("the cluster has no {name}")))
}

fn at_interface(node: &mut NodeDraft) {
    node.plane = Some(Plane::Dpdk);
    node.dpdk_port = Some(PORT.to_owned());
    node.dpdk_args = ARGUMENTS.map(str::to_owned).into();
    node.workers = None;
}
