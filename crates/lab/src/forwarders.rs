//! Switches that forward in XDP, for labs whose nodes run there: a frame that a program sends over a
//! veth pair is taken at once only by another program.

use std::net::IpAddr;

use xdp::forwarder::Forwarder;
use xdp::interface::Interface;
use xdp::object;

use crate::topology::{Host, Role};
use crate::{Error, Lab, Result, Shape, namespace};

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
        for host in others {
            let port = Interface::named(&shape.port_to(switch, host))?;
            let mac = host.mac_bytes(0);
            for address in [host.ipv4(), host.ipv6()] {
                let address: IpAddr = address.parse().map_err(|e| format!("{address}: {e}"))?;
                forwarder.add_route(address, &port, mac)?;
            }
        }
        let links = shape.links();
        let ends = links.iter().flat_map(|link| [&link.near, &link.far]);
        for end in ends.filter(|end| end.host == switch.name) {
            let port = Interface::named(&end.interface)?;
            forwarder.add_port(&port)?;
            forwarder.attach_kept(&port, &pins)?;
        }
        Ok(())
    }
}
