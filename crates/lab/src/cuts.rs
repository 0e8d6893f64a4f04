// SPDX-License-Identifier: Apache-2.0
//! Keeps hosts from reaching one another: takes links down, and cuts pairs of hosts.

use crate::topology::Host;
use crate::{Error, Lab, Result, namespace};

/// An address that no interface has, so that nobody takes frames for it.
const NOBODY: &str = "02:77:ff:ff:ff:ff";

impl Lab {
    /// Takes a link down, or up again, at its switch.
    pub fn set_link(&self, name: &str, up: bool) -> Result<()> {
        let links = self.state_when_up()?.shape.links();
        let link = links.iter().find(|link| link.name == name);
        let link = link.ok_or_else(|| Error::new(format!("no link {name}")))?;
        let state = if up { "up" } else { "down" };
        let line = format!("link set {} {state}", link.far.interface);
        namespace::ip(Some(&self.namespace(&link.far.host)), &[line])
    }

    /// Sets whether packets from these hosts to those arrive. To cut them, the neighbour entry gets
    /// a hardware address that nobody has; only hosts' stacks use it, since the forwarder's
    /// programs look at IP addresses.
    pub fn set_reachable(&self, from: &[String], to: &[String], reachable: bool) -> Result<()> {
        let hosts = self.state_when_up()?.shape.hosts();
        let find = |name: &String| -> Result<&Host> {
            let found = hosts.iter().find(|host| host.name == *name);
            found.ok_or_else(|| Error::new(format!("no host {name}")))
        };
        let targets: Vec<&Host> = to.iter().map(find).collect::<Result<_>>()?;
        for source in from.iter().map(find).collect::<Result<Vec<_>>>()? {
            let lines: Vec<String> = targets
                .iter()
                .flat_map(|target| {
                    [target.ipv4(), target.ipv6()].map(|address| {
                        let own = target.mac(0);
                        let mac = if reachable { &own } else { NOBODY };
                        let device = source.interface();
                        format!(
                            "neighbour replace {address} lladdr {mac} dev {device} nud permanent"
                        )
                    })
                })
                .collect();
            namespace::ip(Some(&self.namespace(&source.machine())), &lines)?;
        }
        Ok(())
    }
}
