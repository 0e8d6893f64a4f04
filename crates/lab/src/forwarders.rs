// SPDX-License-Identifier: Apache-2.0
//! Switches that forward in XDP, for labs whose nodes run in the kernel, since only another program
//! takes a frame at once that a program sends over a veth pair. Roles can be in these switches,
//! too.

use std::net::IpAddr;

use loader::forwarder::{Forwarder, RoutedHost, SwitchedRole, Wiring};
use loader::interface::Interface;
use loader::object;
use node::cluster_file::Plane;

use crate::topology::{Host, Role};
use crate::{Error, Lab, Result, Shape, namespace};

impl Lab {
    /// Attaches the forwarder to every port of every switch. Frames without a route go to the
    /// bridge.
    pub(crate) fn attach_forwarders(&self, shape: &Shape) -> Result<()> {
        let hosts = shape.hosts();
        for host in hosts.iter().filter(|host| wants_program(host, shape)) {
            namespace::inside(&self.namespace(&host.name), || {
                let attached = self.attach_passing(host);
                attached.map_err(|e| Error::new(format!("{}: {e}", host.name)))
            })?;
        }
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

    /// Attaches a forwarder without routes to a host's end, so that everything passes.
    fn attach_passing(&self, host: &Host) -> std::result::Result<(), String> {
        let wiring = Wiring {
            ports: vec![Interface::named(host.interface())?],
            ..Wiring::default()
        };
        self.forward(&host.name, &wiring)
    }

    fn attach_forwarder(
        &self,
        switch: &Host,
        others: &[Host],
        shape: &Shape,
    ) -> std::result::Result<(), String> {
        self.forward(&switch.name, &wiring(switch, others, shape)?)
    }

    fn forward(&self, machine: &str, wiring: &Wiring) -> std::result::Result<(), String> {
        let pins = self.bpffs().join(machine);
        std::fs::create_dir_all(&pins).map_err(|e| format!("{}: {e}", pins.display()))?;
        let mut forwarder = Forwarder::load_kept(&object::directory()?, &pins)?;
        forwarder.wire(wiring, &pins).map(drop)
    }
}

/// Returns whether a host's end of its link needs a program that nobody else attaches. Roles of a
/// switch answer by XDP_TX, after which the kernel wakes the other end of a veth pair only if there
/// is a program (`veth_xdp_flush`); otherwise the answer would wait there for the next frame.
fn wants_program(host: &Host, shape: &Shape) -> bool {
    let has_its_own = match host.role {
        Role::Client | Role::Controller => false,
        Role::Switch => true,
        _ => shape.plane_of(&host.name) != Plane::Udp.name(),
    };
    shape.in_switch && !host.in_switch && !has_its_own
}

fn wiring(switch: &Host, others: &[Host], shape: &Shape) -> std::result::Result<Wiring, String> {
    let links = shape.links();
    let ends = links.iter().flat_map(|link| [&link.near, &link.far]);
    let own = ends.filter(|end| end.host == switch.name);
    let mut wiring = Wiring {
        ports: own
            .map(|end| Interface::named(&end.interface))
            .collect::<std::result::Result<_, _>>()?,
        ..Wiring::default()
    };
    let is_inside = |host: &Host| host.in_switch && host.switch == switch.switch;
    for host in others {
        let addresses = addresses(host)?;
        if is_inside(host) {
            wiring.roles.push(SwitchedRole {
                number: wiring.roles.len() as u8,
                addresses: addresses.into(),
                loopback: host.loopback(),
            });
            continue;
        }
        let port = Interface::named(&shape.port_to(switch, host))?;
        wiring.hosts.extend(addresses.map(|address| RoutedHost {
            address,
            port: port.clone(),
            mac: host.mac_bytes(0),
        }));
    }
    Ok(wiring)
}

fn addresses(host: &Host) -> std::result::Result<[IpAddr; 2], String> {
    let parse = |text: String| text.parse().map_err(|e| format!("{text}: {e}"));
    Ok([parse(host.ipv4())?, parse(host.ipv6())?])
}
