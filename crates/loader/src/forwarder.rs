// SPDX-License-Identifier: Apache-2.0
//! A switch: frames go on by the destination's address, or to the role that has it.

use std::net::IpAddr;
use std::path::Path;

use crate::attach::Attachment;
use crate::interface::Interface;
use crate::layout::{Route, RouteKey};
use crate::members::octets;
use crate::object::{Object, Result, Role, Sizes};

/// Ports and routes of one switch. All of its functions are about the calling thread's network
/// namespace.
#[derive(Debug)]
pub struct Forwarder {
    object: Object,
}

/// Where a forwarder's program is pinned, among its maps.
pub(crate) const PROGRAM: &str = "program";

impl Forwarder {
    /// Loads the program from `dir`; it stays where it is attached as long as `pins` has it.
    pub fn load_kept(dir: &Path, pins: &Path) -> Result<Forwarder> {
        let mut object = Object::load_kept(dir, Role::Forwarder, &Sizes::of(1, 1, 1), pins)?;
        object.pin_program(&pins.join(PROGRAM))?;
        Ok(Forwarder { object })
    }

    /// Lets frames leave by a port.
    pub fn add_port(&mut self, port: &Interface) -> Result<()> {
        let added = self.object.forward_by(port.index);
        added.map_err(|e| format!("{}: {e}", port.name))
    }

    /// Sends frames for an address out of a port, to the hardware address `to`.
    pub fn add_route(&mut self, address: IpAddr, port: &Interface, to: [u8; 6]) -> Result<()> {
        self.insert(address, port, to, 0)
    }

    /// Hands frames for an address to a role of this switch ([`crate::switch::Switch::attach`]), or
    /// to the kernel's stack while there is none. Roles send each other copies by `loopback`, whose
    /// other end, another port, has the hardware address `to`. `role` is a number of its own for
    /// each of the switch's roles, below 256.
    pub fn add_role(
        &mut self,
        address: IpAddr,
        role: u8,
        loopback: &Interface,
        to: [u8; 6],
    ) -> Result<()> {
        self.insert(address, loopback, to, 1 + u32::from(role))
    }

    fn insert(
        &mut self,
        address: IpAddr,
        port: &Interface,
        mac_to: [u8; 6],
        role: u32,
    ) -> Result<()> {
        let route = Route {
            port: port.index,
            broadcast: 0,
            mac_to,
            mac_from: port.mac,
            role,
        };
        self.object.insert("routes", &RouteKey::of(address), &route)
    }

    /// Begins to forward what comes in by a port.
    pub fn attach_kept(&mut self, port: &Interface, pins: &Path) -> Result<Attachment> {
        self.object.attach_kept(port, pins)
    }
}

impl RouteKey {
    /// Of an address.
    pub fn of(address: IpAddr) -> RouteKey {
        RouteKey {
            address: octets(address),
            family: if address.is_ipv4() { 4 } else { 6 },
        }
    }
}
