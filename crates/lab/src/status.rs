// SPDX-License-Identifier: Apache-2.0
//! The state of a lab.

use std::path::PathBuf;

use serde::Serialize;

use crate::faults::Direction;
use crate::process::Process;
use crate::topology::{Link, WIRES};
use crate::{Error, Lab, Result, Shape, namespace};

/// A lab in its current state.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// The name.
    pub name: String,
    /// How the hosts are connected.
    pub topology: String,
    /// The directory of the lab's files.
    pub directory: PathBuf,
    /// The cluster file, for `wirepaxos status -c` and the like inside one of the lab's namespaces.
    pub cluster_file: PathBuf,
    /// The hosts and switches.
    pub hosts: Vec<HostStatus>,
    /// The links.
    pub links: Vec<LinkStatus>,
    /// All processes that run in the lab.
    pub processes: Vec<Process>,
    /// Each direction of every link that leads through a wire.
    pub faults: Vec<Direction>,
}

/// A host or a switch.
#[derive(Clone, Debug, Serialize)]
pub struct HostStatus {
    /// The name.
    pub name: String,
    /// The network namespace.
    pub namespace: String,
    /// The purpose of the host.
    pub role: String,
    /// The interface with its addresses.
    pub interface: String,
    /// The IPv4 address.
    pub ipv4: String,
    /// The IPv6 address.
    pub ipv6: String,
    /// The hardware address.
    pub mac: String,
    /// The process that runs its node.
    pub node_pid: Option<u32>,
}

/// A link.
#[derive(Clone, Debug, Serialize)]
pub struct LinkStatus {
    /// The name.
    pub name: String,
    /// The link leads through a wire.
    pub wired: bool,
    /// The ends.
    pub ends: Vec<EndStatus>,
}

/// An end of a link.
#[derive(Clone, Debug, Serialize)]
pub struct EndStatus {
    /// The host that has this end.
    pub host: String,
    /// The name of the interface on that host.
    pub interface: String,
    /// The index of the interface on that host.
    pub index: u64,
    /// The hardware address.
    pub mac: String,
    /// The interface is up and the other end is there.
    pub up: bool,
    /// The interface has an XDP program.
    pub xdp: bool,
}

impl Lab {
    /// Returns the state of everything.
    pub fn status(&self) -> Result<Status> {
        let state = self.state_when_up()?;
        let processes = self.processes();
        let faults = self.faults()?;
        Ok(Status {
            name: self.name.clone(),
            topology: state.shape.topology.name().to_string(),
            directory: self.directory(),
            cluster_file: self.cluster_file(),
            hosts: self.hosts(&state.shape, &processes),
            links: self.links(&state.shape)?,
            processes,
            faults,
        })
    }

    /// Returns the shape that was requested when the lab was made.
    pub fn shape(&self) -> Result<Shape> {
        let state = self.state()?;
        let state = state.ok_or_else(|| Error::new(format!("there is no lab {}", self.name)))?;
        Ok(state.shape)
    }

    fn hosts(&self, shape: &Shape, processes: &[Process]) -> Vec<HostStatus> {
        let node = |name: &str| {
            let mut nodes = processes.iter().filter(|p| p.node() == Some(name));
            nodes.next().map(|p| p.pid)
        };
        shape
            .hosts()
            .iter()
            .map(|host| HostStatus {
                name: host.name.clone(),
                namespace: self.namespace(&host.machine()),
                role: host.role.name().to_string(),
                interface: host.interface().to_string(),
                ipv4: host.ipv4(),
                ipv6: host.ipv6(),
                mac: host.mac(0),
                node_pid: node(&host.name),
            })
            .collect()
    }

    fn links(&self, shape: &Shape) -> Result<Vec<LinkStatus>> {
        let names = shape.machines().map(|h| h.name);
        let shown: Vec<(String, serde_json::Value)> = names
            .chain([WIRES.to_string()])
            .map(|name| {
                let json = namespace::ip_json(&self.namespace(&name), &["link", "show"])?;
                Ok((name, json))
            })
            .collect::<Result<_>>()?;
        let end = |host: &str, interface: &str| find(&shown, host, interface);
        let link = |link: Link| LinkStatus {
            wired: end(WIRES, &link.wire()[0]).is_some(),
            ends: [&link.near, &link.far]
                .iter()
                .filter_map(|e| end(&e.host, &e.interface))
                .collect(),
            name: link.name,
        };
        Ok(shape.links().into_iter().map(link).collect())
    }
}

fn find(shown: &[(String, serde_json::Value)], host: &str, interface: &str) -> Option<EndStatus> {
    let (_, json) = shown.iter().find(|(name, _)| name == host)?;
    let found = json.as_array()?.iter().find(|i| i["ifname"] == interface)?;
    Some(EndStatus {
        host: host.to_string(),
        interface: interface.to_string(),
        index: found["ifindex"].as_u64()?,
        mac: found["address"].as_str()?.to_string(),
        up: found["operstate"] == "UP",
        xdp: found.get("xdp").is_some(),
    })
}
