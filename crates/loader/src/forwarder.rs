// SPDX-License-Identifier: Apache-2.0
//! The program of a switch: it forwards frames by their destination's address, or passes them to
//! the role that has it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use aya::maps::{HashMap, Map, MapData};

use crate::attach::Attachment;
use crate::interface::Interface;
use crate::layout::{Route, RouteKey};
use crate::members::octets;
use crate::object::{Object, Result, Role, Sizes, whole};
use crate::veth;

/// Ports and routes of one switch. All of its functions are about the calling thread's network
/// namespace.
#[derive(Debug)]
pub struct Forwarder {
    object: Object,
}

/// The name under which a forwarder's program is pinned, among its maps.
pub(crate) const PROGRAM: &str = "program";

/// The alias of the link within a switch. If the switch isn't a lab's, the switch's name follows.
pub(crate) const ALIAS: &str = "wirepaxos-switch";

/// The ports, hosts and roles of a switch.
#[derive(Clone, Debug, Default)]
pub struct Wiring {
    /// The interfaces by which frames come in and go out.
    pub ports: Vec<Interface>,
    /// The hosts behind the ports.
    pub hosts: Vec<RoutedHost>,
    /// The roles that run in the switch itself.
    pub roles: Vec<SwitchedRole>,
}

/// A host behind a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutedHost {
    /// Frames to this address
    pub address: IpAddr,
    /// leave by this port,
    pub port: Interface,
    /// to this hardware address.
    pub mac: [u8; 6],
}

/// A role of the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchedRole {
    /// A number of its own for each role.
    pub number: u8,
    /// Packets to these addresses are for this host.
    pub addresses: Vec<IpAddr>,
    /// The ends of the link by which other roles' copies come to it: one of its own, as a link
    /// holds a few hundred frames. They go out by the first.
    pub loopback: [String; 2],
}

impl Forwarder {
    /// Loads the program from `dir`; it stays where it is attached as long as `pins` has it.
    pub fn load_kept(dir: &Path, pins: &Path) -> Result<Forwarder> {
        let mut object = Object::load_kept(dir, Role::Forwarder, &Sizes::of(1, 1, 1), pins)?;
        object.pin_program(&pins.join(PROGRAM))?;
        Ok(Forwarder { object })
    }

    /// Forwards between all ports, and calls the roles. How the program runs at each port.
    pub fn wire(&mut self, wiring: &Wiring, pins: &Path) -> Result<Vec<Attachment>> {
        for host in &wiring.hosts {
            self.add_route(host)?;
        }
        let mut attached = Vec::new();
        for port in &wiring.ports {
            self.add_port(port)?;
            attached.push(self.object.attach_kept(port, pins)?);
        }
        for role in &wiring.roles {
            self.open_to(role, pins)?;
        }
        Ok(attached)
    }

    /// Lets the forwarder call a role's program, and gives the role its link.
    fn open_to(&mut self, role: &SwitchedRole, pins: &Path) -> Result<()> {
        if Interface::named(&role.loopback[1]).is_err() {
            veth::add_loopback(&role.loopback, ALIAS)?;
        }
        let [out, back] = [&role.loopback[0], &role.loopback[1]].map(|end| Interface::named(end));
        let (out, back) = (out?, back?);
        for address in &role.addresses {
            self.add_role(*address, role.number, &out, back.mac)?;
        }
        for port in [&out, &back] {
            self.add_port(port)?;
            self.object.attach_kept(port, pins)?;
        }
        Ok(())
    }

    /// Lets frames leave by a port.
    fn add_port(&mut self, port: &Interface) -> Result<()> {
        let added = self.object.forward_by(port.index);
        added.map_err(|e| format!("{}: {e}", port.name))
    }

    fn add_route(&mut self, host: &RoutedHost) -> Result<()> {
        let route = Route::to_host(host);
        self.object
            .insert("routes", &RouteKey::of(host.address), &route)
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
        let route = Route {
            port: loopback.index,
            broadcast: 0,
            mac_to: to,
            mac_from: loopback.mac,
            role: 1 + u32::from(role),
        };
        self.object.insert("routes", &RouteKey::of(address), &route)
    }
}

impl Route {
    /// Returns the route to a host, by the host's port.
    pub(crate) fn to_host(host: &RoutedHost) -> Route {
        Route {
            port: host.port.index,
            broadcast: 0,
            mac_to: host.mac,
            mac_from: host.port.mac,
            role: 0,
        }
    }
}

/// The routes of an existing switch, whoever has loaded it.
#[derive(Debug)]
pub(crate) struct Routes(HashMap<MapData, RouteKey, Route>);

impl Routes {
    /// Opens the routes of a forwarder, or returns `None` if it has no pins.
    pub fn open(pins: &Path) -> Result<Option<Routes>> {
        let path = pins.join("routes");
        if !path.exists() {
            return Ok(None);
        }
        let failed = |why: String| format!("{}: {why}", path.display());
        let map = MapData::from_pin(&path).map_err(|e| failed(whole(&e)))?;
        let map = Map::HashMap(map).try_into();
        map.map(|map| Some(Routes(map)))
            .map_err(|e| failed(whole(&e)))
    }

    /// Returns all routes.
    pub fn all(&self) -> Result<BTreeMap<IpAddr, Route>> {
        let routes = self.0.iter();
        let named = routes.map(|route| route.map(|(key, route)| (key.address(), route)));
        let all: std::result::Result<_, _> = named.collect();
        all.map_err(|e| format!("routes: {}", whole(&e)))
    }

    pub fn insert(&mut self, address: IpAddr, route: &Route) -> Result<()> {
        let set = self.0.insert(RouteKey::of(address), route, 0);
        set.map_err(|e| format!("routes: {}", whole(&e)))
    }

    pub fn remove(&mut self, address: IpAddr) -> Result<()> {
        let removed = self.0.remove(&RouteKey::of(address));
        removed.map_err(|e| format!("routes: {}", whole(&e)))
    }
}

impl RouteKey {
    /// Returns the key of an address.
    pub fn of(address: IpAddr) -> RouteKey {
        RouteKey {
            address: octets(address),
            family: if address.is_ipv4() { 4 } else { 6 },
        }
    }

    fn address(&self) -> IpAddr {
        let [a, b, c, d, ..] = self.address;
        match self.family {
            4 => [a, b, c, d].into(),
            _ => self.address.into(),
        }
    }
}
