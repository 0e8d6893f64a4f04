// SPDX-License-Identifier: Apache-2.0
//! This machine as a switch: a bridge over several interfaces, with the forwarder at each of them,
//! and links within for its roles.
//!
//! The bridge has the switch's name, and everything that is made says so in its alias. So what
//! there is of a switch can be found again by its name alone, also what an interrupted [`up`] has
//! left.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::attach::{Attachment, Mode, pin_path, remove_link};
use crate::features;
use crate::forwarder::{ALIAS, Forwarder, RoutedHost, Routes, SwitchedRole, Wiring};
use crate::identity::claim_switch;
use crate::interface::Interface;
use crate::ip;
use crate::kernel_links::{self, KernelLink};
use crate::layout::Route;
use crate::neighbour::make_known;
use crate::object::{self, Result};
use crate::occupant::Occupant;
use crate::pins::mount_bpffs;
use crate::switch::Switch;
use crate::veth;

/// The longest name of a switch: interfaces' names have at most 15 bytes, and those of the links
/// within contain it.
const MAX_NAME: usize = 8;

/// The switch that is wanted.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The name, also that of its bridge.
    pub name: String,
    /// The cluster that it serves.
    pub cluster: u32,
    /// The interfaces, by name.
    pub ports: Vec<String>,
    /// The own addresses, with their networks.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The addresses of roles that the switch will call.
    pub roles: Vec<IpAddr>,
    /// Addresses that are behind its ports.
    pub hosts: Vec<IpAddr>,
}

/// A switch as it is.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The interfaces.
    pub ports: Vec<PortStatus>,
    /// The own addresses, with their networks.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The addresses of its roles, each with the role whose program the switch calls for it.
    pub roles: Vec<(IpAddr, Option<String>)>,
    /// Addresses behind its ports: the port's name, and the hardware address that takes frames for
    /// it.
    pub hosts: Vec<(IpAddr, String, [u8; 6])>,
}

/// An interface of a switch.
#[derive(Clone, Debug)]
pub struct PortStatus {
    /// The name.
    pub name: String,
    /// The driver, where that says so.
    pub driver: Option<String>,
    /// True if there is somebody at the other end.
    pub is_up: bool,
    /// True if the forwarder is there.
    pub forwards: bool,
}

/// Makes the switch, or replaces the program of the one that there is, in place. What doesn't fit
/// is refused before anything changes.
pub fn up(mount: &Path, plan: &Plan) -> Result<()> {
    check_name(&plan.name)?;
    let directory = object::directory()?;
    let links = kernel_links::all()?;
    let before = bridge_of(&links, &plan.name)?;
    check_addresses(plan)?;
    let pins = pins_of(mount, &plan.name);
    let ports = check_ports(&links, plan, &pins)?;
    mount_bpffs(mount)?;
    fs::create_dir_all(&pins)
        .map_err(|e| format!("can't make {}: {e}; a switch needs root", pins.display()))?;
    claim_switch(&pins, &plan.name, plan.cluster)?;
    let built = build(plan, &ports, &links, before, &directory, &pins);
    if let (Err(_), None) = (&built, before) {
        // The first error is the one to report.
        let _ = remove(mount, &plan.name);
    }
    built
}

/// Looks where hosts are, and sends frames for them there. Those that aren't found stay where they
/// were; returned are those that nobody knows.
pub fn find_hosts(mount: &Path, name: &str, hosts: &[IpAddr]) -> Result<Vec<IpAddr>> {
    let pins = pins_of(mount, name);
    let mut routes = Routes::open(&pins)?.ok_or_else(|| no_switch(name))?;
    let known = routes.all()?;
    let mut unknown = Vec::new();
    for (address, (place, is_fresh)) in hosts.iter().zip(kernel_links::places(name, hosts)?) {
        if !is_fresh {
            make_known(*address);
        }
        let Some(place) = place else {
            if !known.contains_key(address) {
                unknown.push(*address);
            }
            continue;
        };
        let route = Route::to_host(&RoutedHost {
            address: *address,
            port: Interface::named(&place.port)?,
            mac: place.mac,
        });
        if known.get(address) != Some(&route) {
            routes.insert(*address, &route)?;
        }
    }
    Ok(unknown)
}

/// Returns what there is of a switch.
pub fn status(mount: &Path, name: &str) -> Result<Machine> {
    let links = kernel_links::all()?;
    let pins = pins_of(mount, name);
    let (Some(bridge), Some(routes)) = (bridge_of(&links, name)?, Routes::open(&pins)?) else {
        return Err(no_switch(name));
    };
    let ports = links.iter().filter(|l| l.master.as_deref() == Some(name));
    let port_of = |index: u32| {
        let link = links.iter().find(|link| link.index == index);
        link.map_or_else(
            || format!("number {index}, which is gone"),
            |l| l.name.clone(),
        )
    };
    let switch = Switch::open(mount, name)?;
    let mut machine = Machine {
        ports: ports.map(|link| port_status(link, &pins)).collect(),
        addresses: bridge.addresses.clone(),
        roles: Vec::new(),
        hosts: Vec::new(),
    };
    for (address, route) in routes.all()? {
        match route.role {
            0 => machine
                .hosts
                .push((address, port_of(route.port), route.mac_to)),
            _ => {
                let occupant = switch.occupant(address)?;
                let occupant = occupant.map(|occupant| occupant.described());
                machine.roles.push((address, occupant));
            }
        }
    }
    let is_own =
        |(address, _): &(IpAddr, u8)| machine.roles.iter().all(|(role, _)| role != address);
    machine.addresses.retain(is_own);
    Ok(machine)
}

/// Removes a switch, also one that is there in part. Refuses while it calls roles, unless forced.
/// False if there was nothing.
pub fn down(mount: &Path, name: &str, force: bool) -> Result<bool> {
    check_name(name)?;
    let pins = pins_of(mount, name);
    match called_role(mount, name, &pins)? {
        Some((address, occupant)) if !force => Err(format!(
            "{name} calls {occupant} for packets to {address}: stop its node first (`wirepaxos \
             stop --name`), or remove the switch with --force; then that role hears nothing more"
        )),
        _ => remove(mount, name),
    }
}

/// Returns a role that the switch calls, if there is any.
fn called_role(mount: &Path, name: &str, pins: &Path) -> Result<Option<(IpAddr, String)>> {
    let Some(routes) = Routes::open(pins)? else {
        return Ok(None);
    };
    let switch = Switch::open(mount, name)?;
    for (address, route) in routes.all()? {
        if route.role != 0 {
            if let Some(occupant) = switch.occupant(address)? {
                return Ok(Some((address, occupant.described())));
            }
        }
    }
    Ok(None)
}

fn no_switch(name: &str) -> String {
    format!(
        "there is no switch {name} on this machine; make it with `wirepaxos switch up --name \
         {name}`"
    )
}

fn pins_of(mount: &Path, name: &str) -> PathBuf {
    mount.join(name)
}

fn check_name(name: &str) -> Result<()> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with('-') {
        return Ok(());
    }
    Err(format!(
        "{name:?} can't be a switch's name, which is also its bridge's: take 1 to {MAX_NAME} \
         letters, digits, `-` and `_`, in the cluster file, too (`switch`)"
    ))
}

/// Returns the bridge of a switch, if it is there; an error if the name is somebody else's.
fn bridge_of<'a>(links: &'a [KernelLink], name: &str) -> Result<Option<&'a KernelLink>> {
    match links.iter().find(|link| link.name == name) {
        Some(link) if link.alias.as_deref() != Some(ALIAS) => Err(format!(
            "there is an interface {name} that isn't a switch of WirePaxos: give the switch \
             another name, in the cluster file, too (`switch`)"
        )),
        found => Ok(found),
    }
}

fn check_addresses(plan: &Plan) -> Result<()> {
    let is_in = |address: &IpAddr| {
        let mut networks = plan.addresses.iter();
        networks.any(|(own, prefix)| same_network(*own, *address, *prefix))
    };
    for (what, all) in [("role", &plan.roles), ("host", &plan.hosts)] {
        if let Some(outside) = all.iter().find(|address| !is_in(address)) {
            return Err(format!(
                "the {what} {outside} is in none of the switch's networks: all whom it serves are \
                 at its ports. Give it an address there, such as --address {}",
                example(*outside)
            ));
        }
    }
    if let Some(both) = plan.roles.iter().find(|role| plan.hosts.contains(role)) {
        return Err(format!(
            "{both} is both in the switch and behind a port: `switch` in the cluster file is to be \
             the same for all nodes with that address"
        ));
    }
    match plan.roles.len() {
        0..=255 => Ok(()),
        n => Err(format!("{n} roles: a switch has room for 255")),
    }
}

fn example(near: IpAddr) -> String {
    match near {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            format!("{a}.{b}.{c}.254/24")
        }
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::fe/64")
        }
    }
}

fn same_network(one: IpAddr, other: IpAddr, prefix: u8) -> bool {
    let (one, other, len) = match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            (u128::from(one.to_bits()), other.to_bits().into(), 32)
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits(), other.to_bits(), 128),
        _ => return false,
    };
    let rest = len - u32::from(prefix).min(len);
    one.checked_shr(rest) == other.checked_shr(rest)
}

/// Returns the ports if all of them can be used, or why one of them can not.
fn check_ports(links: &[KernelLink], plan: &Plan, pins: &Path) -> Result<Vec<Interface>> {
    let mut ports: Vec<Interface> = Vec::new();
    for name in &plan.ports {
        if ports.iter().any(|port| port.name == *name) {
            return Err(format!("--port {name} is there twice: leave one out"));
        }
        ports.push(check_port(links, name, plan, pins)?);
    }
    Ok(ports)
}

fn check_port(links: &[KernelLink], name: &str, plan: &Plan, pins: &Path) -> Result<Interface> {
    let Some(link) = links.iter().find(|link| link.name == name) else {
        let all: Vec<_> = links.iter().map(|link| link.name.as_str()).collect();
        return Err(format!(
            "there is no interface {name} on this machine; it has {}",
            all.join(", ")
        ));
    };
    let port = Interface::named(name).map_err(|_| {
        format!("{name} isn't an Ethernet interface: only those can be a switch's ports")
    })?;
    if let Some((address, prefix)) = link.addresses.first() {
        return Err(format!(
            "{name} has the address {address}/{prefix}, and a port of a switch has none: whoever \
             reaches this machine by it would lose it. Remove it (`ip address del \
             {address}/{prefix} dev {name}`), and let the switch have it: --address \
             {address}/{prefix}"
        ));
    }
    if let Some(master) = link.master.as_ref().filter(|master| **master != plan.name) {
        return Err(format!(
            "{name} is a port of {master}: take it out (`ip link set {name} nomaster`), or take \
             another interface"
        ));
    }
    let is_ours = Mode::ALL
        .into_iter()
        .any(|mode| pin_path(pins, mode, &port).exists());
    if let Some(occupant) = Occupant::of(&port)?.filter(|_| !is_ours) {
        return Err(format!(
            "{name} has {} already, and an interface takes one: stop its node, or take it off (`ip \
             link set dev {name} xdp off`)",
            occupant.described()
        ));
    }
    if features::runs_programs(&port) == Some(false) {
        return Err(no_native(&port, "its driver has no XDP"));
    }
    Ok(port)
}

fn no_native(port: &Interface, why: &str) -> String {
    let driver = veth::driver(&port.name);
    format!(
        "{} (driver {}) can't be a port: {why}. A switch copies frames in the driver. Take a card \
         whose driver has XDP, and takes redirected frames, or leave this one out, and put its \
         host's roles behind sockets there (`plane = \"udp\"`)",
        port.name,
        driver.as_deref().unwrap_or("unknown")
    )
}

fn build(
    plan: &Plan,
    ports: &[Interface],
    links: &[KernelLink],
    before: Option<&KernelLink>,
    directory: &Path,
    pins: &Path,
) -> Result<()> {
    let new: Vec<&Interface> = ports
        .iter()
        .filter(|port| !is_port(links, &port.name, &plan.name))
        .collect();
    let lines = bridge_lines(plan, ports, before);
    ip::batch(&[], &lines).map_err(|e| {
        format!(
            "{e}; a switch needs root, and a kernel with bridges and veth (`modprobe bridge veth`)"
        )
    })?;
    let wiring = Wiring {
        ports: ports.to_vec(),
        hosts: Vec::new(),
        roles: numbered_roles(plan, pins)?,
    };
    forget_others(plan, pins)?;
    let mut forwarder = Forwarder::load_kept(directory, pins)?;
    let attached = forwarder.wire(&wiring, pins)?;
    for (port, attachment) in ports.iter().zip(&attached) {
        if let Err(why) = is_fit(port, attachment, pins) {
            drop(attached);
            leave(&new, pins);
            return Err(why);
        }
    }
    let gone = links
        .iter()
        .filter(|link| is_port(links, &link.name, &plan.name));
    let gone = gone.filter(|link| !plan.ports.contains(&link.name));
    let gone: Vec<_> = gone
        .map(|link| Interface::named(&link.name))
        .collect::<Result<_>>()?;
    leave(&gone.iter().collect::<Vec<_>>(), pins);
    Ok(())
}

fn is_port(links: &[KernelLink], port: &str, switch: &str) -> bool {
    let mut links = links.iter();
    links.any(|link| link.name == port && link.master.as_deref() == Some(switch))
}

/// Takes the forwarder off ports, which belong to no switch then.
fn leave(ports: &[&Interface], pins: &Path) {
    for port in ports {
        for mode in Mode::ALL {
            let _ = remove_link(&pin_path(pins, mode, port));
        }
        let _ = ip::batch(&[], &[format!("link set {} nomaster", port.name)]);
    }
}

/// Copies are written one after the other into the same frame where the program isn't in the
/// driver.
fn is_fit(port: &Interface, attached: &Attachment, pins: &Path) -> Result<()> {
    if attached.mode == Mode::Generic {
        let _ = remove_link(&pin_path(pins, Mode::Generic, port));
        let why = attached.why_generic.as_deref();
        return Err(no_native(port, why.unwrap_or("it runs no program")));
    }
    match features::takes_redirects(port) {
        Some(false) => Err(no_native(
            port,
            "its driver takes no frames that others redirect to it (on a veth pair, switch GRO on \
             at the other end: `ethtool -K DEV gro on`)",
        )),
        _ => Ok(()),
    }
}

fn bridge_lines(plan: &Plan, ports: &[Interface], before: Option<&KernelLink>) -> Vec<String> {
    let name = &plan.name;
    let mut lines = Vec::new();
    if before.is_none() {
        lines.push(format!(
            "link add {name} type bridge stp_state 0 mcast_snooping 0"
        ));
        lines.push(format!("link set {name} alias {ALIAS}"));
    }
    for port in ports {
        lines.push(format!("link set {} master {name} up", port.name));
    }
    lines.push(format!("link set {name} up"));
    let host = |address: &IpAddr| (*address, if address.is_ipv4() { 32 } else { 128 });
    let wanted: Vec<(IpAddr, u8)> = plan
        .addresses
        .iter()
        .copied()
        .chain(plan.roles.iter().map(host))
        .collect();
    for (address, prefix) in &wanted {
        let nodad = if address.is_ipv6() { " nodad" } else { "" };
        lines.push(format!(
            "address replace {address}/{prefix} dev {name}{nodad}"
        ));
    }
    let there = before.into_iter().flat_map(|bridge| &bridge.addresses);
    for (address, prefix) in there.filter(|there| !wanted.contains(there)) {
        lines.push(format!("address del {address}/{prefix} dev {name}"));
    }
    lines
}

/// Returns the roles with their numbers, which they keep as long as the switch exists.
fn numbered_roles(plan: &Plan, pins: &Path) -> Result<Vec<SwitchedRole>> {
    let known = match Routes::open(pins)? {
        Some(routes) => routes.all()?,
        None => BTreeMap::new(),
    };
    let number = |address: &IpAddr| {
        known
            .get(address)
            .and_then(|route| route.role.checked_sub(1))
    };
    let taken: Vec<u32> = plan.roles.iter().filter_map(number).collect();
    let mut free = (0..=255).filter(|number| !taken.contains(number));
    let role = |address: &IpAddr| {
        let number = number(address)
            .or_else(|| free.next())
            .expect("there are few roles") as u8;
        SwitchedRole {
            number,
            addresses: vec![*address],
            loopback: ["out", "in"].map(|end| format!("{}-{number}-{end}", plan.name)),
        }
    };
    Ok(plan.roles.iter().map(role).collect())
}

/// Removes the routes to hosts that are no longer in the plan.
fn forget_others(plan: &Plan, pins: &Path) -> Result<()> {
    let Some(mut routes) = Routes::open(pins)? else {
        return Ok(());
    };
    for (address, route) in routes.all()? {
        let kept = if route.role == 0 {
            &plan.hosts
        } else {
            &plan.roles
        };
        if !kept.contains(&address) {
            routes.remove(address)?;
        }
    }
    Ok(())
}

fn port_status(link: &KernelLink, pins: &Path) -> PortStatus {
    let pin = Interface::named(&link.name).map(|port| pin_path(pins, Mode::Native, &port));
    PortStatus {
        name: link.name.clone(),
        driver: veth::driver(&link.name),
        is_up: link.is_up,
        forwards: pin.is_ok_and(|pin| pin.exists()),
    }
}

/// Programs leave their interfaces first; the bridge, its ports and the links within go after them.
fn remove(mount: &Path, name: &str) -> Result<bool> {
    let links = kernel_links::all()?;
    let bridge = bridge_of(&links, name)?;
    let pins = pins_of(mount, name);
    let is_there = bridge.is_some() || pins.exists();
    if pins.exists() {
        let failed = |e: std::io::Error| format!("can't remove {}: {e}", pins.display());
        for entry in fs::read_dir(&pins).map_err(failed)? {
            remove_link(&entry.map_err(failed)?.path()).map_err(failed)?;
        }
        fs::remove_dir(&pins).map_err(failed)?;
    }
    let within = format!("{name}-");
    let is_within = |link: &&KernelLink| {
        link.alias.as_deref() == Some(ALIAS)
            && link.name.starts_with(&within)
            && link.name.ends_with("-out")
    };
    let mut lines = Vec::new();
    for port in links.iter().filter(|l| l.master.as_deref() == Some(name)) {
        lines.push(format!("link set {} nomaster", port.name));
    }
    for end in links.iter().filter(is_within) {
        lines.push(format!("link delete {}", end.name));
    }
    if bridge.is_some() {
        lines.push(format!("link delete {name}"));
    }
    ip::batch(&[], &lines)?;
    Ok(is_there)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for (one, other, prefix, same) in [
            ("10.0.0.1", "10.0.0.254", 24, true),
            ("10.0.0.1", "10.0.1.1", 24, false),
            ("10.0.0.1", "192.0.2.1", 0, true),
            ("10.0.0.1", "10.0.0.2", 32, false),
            ("fd00::1", "fd00::ffff", 64, true),
            ("fd00::1", "fd01::1", 64, false),
            ("fd00::1", "fd01::1", 0, true),
            ("fd00::1", "10.0.0.1", 0, false),
        ] {
            let found = same_network(ip(one), ip(other), prefix);
            assert_eq!(found, same, "{one} {other} {prefix}");
        }
        assert_eq!(example(ip("10.1.2.3")), "10.1.2.254/24");
        assert_eq!(example(ip("fd00::3")), "fd00:0:0:0::fe/64");
    }

    #[test]
    fn names_of_switches() {
        for good in ["a", "switch-1", "rack_7"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "switch-10", "-a", "a/b", "a b"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
