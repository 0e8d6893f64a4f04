// SPDX-License-Identifier: Apache-2.0
//! Programs at real links, for measurements.

use aya::programs::XdpFlags;
use aya::programs::xdp::XdpLink;

use super::ready;
use crate::network::Namespace;
use loader::frame;
use loader::interface::Interface;
use loader::layout::{Link, MAX_MEMBERS, MulticastMember};
use loader::members::octets;
use loader::object::{Object, Result, whole};

/// Puts a program at an interface, in the driver, until the link is dropped.
pub(super) fn attach(
    object: &mut Object,
    program: &str,
    namespace: &Namespace,
    interface: &Interface,
) -> Result<XdpLink> {
    let found = object.xdp(program)?;
    namespace
        .inside(|| found.attach_to_if_index(interface.index, XdpFlags::DRV_MODE))
        .and_then(|id| found.take_link(id))
        .map_err(|e| format!("{program} at {}: {}", interface.name, whole(&e)))
}

/// Sends the object's multicast out by these ports, to one member behind each. Bare forwarding has
/// no `egress` program.
pub(super) fn multicast(
    object: &mut Object,
    ports: &[(&Interface, [u8; 6])],
    bare: bool,
) -> Result<()> {
    let indices: Vec<u32> = ports.iter().map(|(port, _)| port.index).collect();
    if bare && ports.len() == 1 {
        return object.forward_by(indices[0]);
    }
    object.multicast_to(&indices, !bare)?;
    let mut links = Vec::new();
    for (index, (port, to)) in ports.iter().enumerate() {
        let member = MulticastMember {
            mac_to: *to,
            mac_from: port.mac,
            family: 4,
            ip_to: [
                10,
                4,
                0,
                index as u8 + 1,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
            ],
            ip_from: octets(frame::V4_FROM.into()),
            port_to: frame::PORT,
            port_from: frame::PORT,
            partitions: 0,
            role: 0,
        };
        links.push(Link {
            ifindex: port.index,
            group: ready::GROUP.into(),
            entries: 1,
            members: 1,
            index: index as u32,
            unused: 0,
            member: [member; MAX_MEMBERS],
        });
    }
    object.set_links(&links)
}
