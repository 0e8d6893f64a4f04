// SPDX-License-Identifier: Apache-2.0
//! Switches that forward in XDP, for labs whose nodes run there: a frame that a program sends over a
//! veth pair is taken at once only by another program. Roles can be in them, too.

use std::net::IpAddr;
use std::path::Path;

use loader::forwarder::Forwarder;
use loader::interface::Interface;
use loader::object;

use crate::topology::{Host, Role};
use crate::up::queues;
use crate::{Error, Lab, Result, Shape, interface, namespace};

impl Lab {
    /// Puts the forwarder at every port of every switch. What it has no route for goes to the
    /// bridge.
    pub(crate) fn attach_forwarders(&self, shape: &Shape) -> Result<()> {
        let hosts = shape.hosts();
        let (switches, others): (Vec<_>, Vec<_>) =
            hosts.into_iter().partition(|h| h.role == Role::Switch);
        for switch in &switches {
            let run = || self.attach_forwarder(switch, &others, shape);
            namespace::inside(&self.namespace(&switch.name), || {
                run().map_err(|e| Error::new(format!("{}: {e}", switch.name)))
            })?;
        }
        Ok(())
    }

    fn attach_forwarder(
        &self,
        switch: &Host,
        others: &[Host],
        shape: &Shape,
    ) -> std::result::Result<(), String> {
        let pins = self.bpffs().join(&switch.name);
        std::fs::create_dir_all(&pins).map_err(|e| format!("{}: {e}", pins.display()))?;
        let mut forwarder = Forwarder::load_kept(&object::directory()?, &pins)?;
        let is_inside = |host: &&Host| host.in_switch && host.switch == switch.switch;
        for host in others.iter().filter(|host| !is_inside(host)) {
            let port = Interface::named(&shape.port_to(switch, host))?;
            for address in addresses(host)? {
                forwarder.add_route(address, &port, host.mac_bytes(0))?;
            }
        }
        let links = shape.links();
        let ends = links.iter().flat_map(|link| [&link.near, &link.far]);
        for end in ends.filter(|end| end.host == switch.name) {
            let port = Interface::named(&end.interface)?;
            forwarder.add_port(&port)?;
            forwarder.attach_kept(&port, &pins)?;
        }
        for (number, role) in (0..).zip(others.iter().filter(is_inside)) {
            open_to_role(&mut forwarder, role, number, &pins)?;
        }
        Ok(())
    }
}

/// Has the forwarder call a role in its switch, and gives it the link by which the others there reach
/// it: one of its own, as a link holds a few hundred frames.
fn open_to_role(
    forwarder: &mut Forwarder,
    role: &Host,
    number: u8,
    pins: &Path,
) -> std::result::Result<(), String> {
    let ends = role.loopback();
    add_loopback(&ends).map_err(|e| e.to_string())?;
    let [out, back] = ends.map(|end| Interface::named(&end));
    let (out, back) = (out?, back?);
    for address in addresses(role)? {
        forwarder.add_role(address, number, &out, back.mac)?;
    }
    for port in [&out, &back] {
        forwarder.add_port(port)?;
        forwarder.attach_kept(port, pins)?;
    }
    Ok(())
}

/// Within the caller's namespace. What no role takes of it comes to the switch's own stack, from an
/// address of that itself.
fn add_loopback(ends: &[String; 2]) -> Result<()> {
    let [out, back] = ends;
    let queues = queues();
    let lines = [
        format!("link add name {out} {queues} type veth peer name {back} {queues}"),
        format!("link set {out} addrgenmode none up"),
        format!("link set {back} addrgenmode none up"),
    ];
    namespace::ip(None, &lines)?;
    ends.iter().try_for_each(|end| {
        interface::prepare_for_xdp(end)?;
        interface::accept_own_addresses(end)
    })
}

fn addresses(host: &Host) -> std::result::Result<[IpAddr; 2], String> {
    let parse = |text: String| text.parse().map_err(|e| format!("{text}: {e}"));
    Ok([parse(host.ipv4())?, parse(host.ipv6())?])
}
