//! A switch without a role: frames go on by the destination's address.

use std::net::IpAddr;
use std::path::Path;

use aya::maps::DevMapHash;

use crate::attach::Attachment;
use crate::interface::Interface;
use crate::layout::{Route, RouteKey};
use crate::members::octets;
use crate::object::{Object, Result, Role, Sizes, whole};

/// Ports and routes of one switch. All of its functions are about the calling thread's network
/// namespace.
#[derive(Debug)]
pub struct Forwarder {
    object: Object,
}

impl Forwarder {
    /// Loads the program from `dir`; it stays where it is attached as long as `pins` has it.
    pub fn load_kept(dir: &Path, pins: &Path) -> Result<Forwarder> {
        let object = Object::load_kept(dir, Role::Forwarder, &Sizes::of(1, 1, 1), pins)?;
        Ok(Forwarder { object })
    }

    /// Lets frames leave by a port.
    pub fn add_port(&mut self, port: &Interface) -> Result<()> {
        let map = self.object.ebpf().map_mut("ports").ok_or("no map ports")?;
        let mut map: DevMapHash<_> = map.try_into().map_err(|e| whole(&e))?;
        map.insert(port.index, port.index, None, 0)
            .map_err(|e| format!("{}: redirects to it are refused: {}", port.name, whole(&e)))
    }

    /// Sends frames for an address out of a port, to the hardware address `to`.
    pub fn add_route(&mut self, address: IpAddr, port: &Interface, to: [u8; 6]) -> Result<()> {
        let key = RouteKey {
            address: octets(address),
            family: if address.is_ipv4() { 4 } else { 6 },
        };
        let route = Route {
            port: port.index,
            broadcast: 0,
            mac_to: to,
            mac_from: port.mac,
        };
        self.object.insert("routes", &key, &route)
    }

    /// Begins to forward what comes in by a port.
    pub fn attach_kept(&mut self, port: &Interface, pins: &Path) -> Result<Attachment> {
        self.object.attach_kept(port, pins)
    }
}
