// SPDX-License-Identifier: Apache-2.0
//! Hosts that don't reach one another: links that are down, and pairs of hosts with nothing between
//! them.

use crate::topology::Host;
use crate::{Error, Lab, Result, namespace};

/// An address that no interface has: nobody takes frames to it.
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

    /// Sets whether what these hosts send to those arrives: the hardware address is one that nobody
    /// has, or theirs again. Only hosts' stacks use it; the forwarder's programs look at IP
    /// addresses.
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
