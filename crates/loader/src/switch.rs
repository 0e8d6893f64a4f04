// SPDX-License-Identifier: Apache-2.0
//! A role at a switch: the switch's forwarder calls its program for packets to the role's address,
//! by whichever port they come in, and its copies leave by the ports of those that they are for.
//! The papers' switches are of this kind; so is a server with several interfaces that forwards
//! between them.
//!
//! Copies that are all for roles of the same switch need no link: those are called, one after the
//! other. Where some are for others, and for a command over several partitions, they go once
//! around: out of one end of a link within the switch (`Route::port`, for the switch's own
//! addresses) and in by the other, which is a port like all others.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use aya::maps::{HashMap, Map, MapData, MapError, MapInfo, ProgramArray};
use aya::programs::{ProgramFd, ProgramInfo};

use crate::forwarder::PROGRAM;
use crate::layout::{CALL_FORWARDER, CALL_WITHIN, Device, Route, RouteKey};
use crate::object::{Object, Result, whole};
use crate::occupant::Occupant;
use crate::station::Hop;
use crate::sys::program_at;

/// A switch, by the maps that its forwarder has pinned.
#[derive(Debug)]
pub struct Switch {
    pins: PathBuf,
    name: String,
    routes: HashMap<MapData, RouteKey, Route>,
}

/// The pinned map of its roles.
const ROLES: &str = "roles";

/// The beginning of the names of pins that stand for a switch's calls of a node's program.
const PIN: &str = "link-switch-";

impl Switch {
    /// Returns the switch of this name whose forwarder has its maps in the BPF file system at
    /// `mount`.
    pub fn open(mount: &Path, name: &str) -> Result<Switch> {
        let pins = mount.join(name);
        // Links to it lie in other directories.
        let pins = fs::canonicalize(&pins).unwrap_or(pins);
        let routes = MapData::from_pin(pins.join("routes")).map_err(|e| {
            format!(
                "there is no switch {name}: no forwarder has its maps in {}: {}",
                pins.display(),
                whole(&e)
            )
        })?;
        let routes = Map::HashMap(routes).try_into().map_err(|e| whole(&e))?;
        Ok(Switch {
            pins,
            name: name.to_owned(),
            routes,
        })
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns where packets for an address go now: by a port, unless a role's program is there to
    /// be called. The node of an address of the switch's own may be behind sockets, and a host may
    /// not have been found yet.
    pub fn hop(&self, to: IpAddr) -> Result<Hop> {
        let Some(route) = self.known_route(to)? else {
            return Ok(Hop::UNKNOWN);
        };
        let called = self.program_of(&route)?.is_some();
        Ok(Hop {
            port: route.port,
            mac_from: route.mac_from,
            mac_to: Some(route.mac_to),
            role: if called { route.role as u16 } else { 0 },
        })
    }

    fn program(&self) -> Result<ProgramFd> {
        let path = self.pins.join(PROGRAM);
        let failed = |why: String| format!("{}: {why}", path.display());
        let program = ProgramInfo::from_pin(&path).map_err(|e| failed(whole(&e)))?;
        program.fd().map_err(|e| failed(whole(&e)))
    }

    fn route(&self, to: IpAddr) -> Result<Route> {
        let route = self.known_route(to)?;
        route.ok_or_else(|| format!("{} has no route to {to}", self.name))
    }

    fn known_route(&self, to: IpAddr) -> Result<Option<Route>> {
        match self.routes.get(&RouteKey::of(to), 0) {
            Ok(route) => Ok(Some(route)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(e) => Err(format!("{}: {}", self.name, whole(&e))),
        }
    }

    /// Lets an object that is loaded with these pins call the switch's roles: it finds their map
    /// there.
    pub fn lend_roles(&self, pins: &Path) -> Result<()> {
        let (own, lent) = (self.pins.join(ROLES), pins.join(ROLES));
        let failed = |e: io::Error| format!("{}: {e}", lent.display());
        match fs::remove_file(&lent) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed(e)),
            _ => symlink(own, &lent).map_err(failed),
        }
    }

    /// Returns the program that the switch calls for packets to `own`.
    pub fn occupant(&self, own: IpAddr) -> Result<Option<Occupant>> {
        let number = self.program_of(&self.route(own)?)?;
        Ok(number.map(Occupant::numbered))
    }

    /// The number of the program that is called for a route.
    fn program_of(&self, route: &Route) -> Result<Option<u32>> {
        let Some(slot) = route.role.checked_sub(1) else {
            return Ok(None);
        };
        let failed = |why: String| format!("{}: {why}", self.name);
        let info = MapInfo::from_pin(self.pins.join(ROLES)).map_err(|e| failed(whole(&e)))?;
        let map = info.fd().map_err(|e| failed(whole(&e)))?;
        program_at(map.as_fd(), slot).map_err(|e| failed(e.to_string()))
    }

    fn refuse_occupied(&self, own: IpAddr, by: &Device) -> Result<()> {
        match self.occupant(own)?.filter(|occupant| !occupant.is_of(by)) {
            None => Ok(()),
            Some(other) => Err(format!(
                "for packets to {own} {} calls {}: stop its node (`wirepaxos stop` with its \
                 cluster file), or use another of the switch's addresses",
                self.name,
                other.described()
            )),
        }
    }

    /// Makes the switch call the role's program for packets to `own`, until the pin in `pins` is
    /// removed. Returns true if it called an earlier version before, which is replaced so that no
    /// packet passes in between.
    pub fn attach(&self, object: &mut Object, own: IpAddr, pins: &Path) -> Result<bool> {
        let slot = self.route(own)?.role.checked_sub(1).ok_or_else(|| {
            format!(
                "{own} isn't an address of {}, so it calls no role for it",
                self.name
            )
        })?;
        self.refuse_occupied(own, &object.device()?)?;
        object.call("own_switch", CALL_FORWARDER, &self.program()?)?;
        let within = object.program("within")?;
        object.call("own_switch", CALL_WITHIN, &within)?;
        let program = object.own_program()?;
        // The pin first: what is called can then be found, and taken off.
        let pin = pins.join(format!("{PIN}{slot}"));
        let replaced = match symlink(&self.pins, &pin) {
            Ok(()) => false,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => true,
            Err(e) => return Err(format!("{}: {e}", pin.display())),
        };
        roles(&self.pins)?
            .set(slot, &program, 0)
            .map_err(|e| format!("{}: it takes no program: {}", self.name, whole(&e)))?;
        Ok(replaced)
    }
}

/// Makes a switch no longer call the program for which `pin` stands. Does nothing if `pin` is for
/// something else.
pub(crate) fn take_off(pin: &Path) -> Result<()> {
    let name = pin.file_name().and_then(|name| name.to_str());
    let slot = name.and_then(|name| name.strip_prefix(PIN)?.parse().ok());
    let (Some(slot), Ok(switch)) = (slot, fs::read_link(pin)) else {
        return Ok(());
    };
    // A switch that is gone calls nobody.
    if !switch.join(ROLES).exists() {
        return Ok(());
    }
    match roles(&switch)?.clear_index(&slot) {
        Ok(()) => Ok(()),
        // A switch that was made again since calls nobody, either.
        Err(MapError::SyscallError(e)) if e.io_error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(format!("{}: {}", switch.display(), whole(&e))),
    }
}

fn roles(pins: &Path) -> Result<ProgramArray<MapData>> {
    let map = MapData::from_pin(pins.join(ROLES));
    let map = map.map_err(|e| format!("{}: {}", pins.display(), whole(&e)))?;
    Map::ProgramArray(map).try_into().map_err(|e| whole(&e))
}
