// SPDX-License-Identifier: Apache-2.0
//! Hosts that are P4 switches: BMv2 runs between a host's link and its own machine, on which the
//! node's process runs. Packets that aren't for the role pass through.

use std::path::PathBuf;

use loader::veth;
use p4::bmv2::{CPU_PORT, Tools};
use p4::programs;

use crate::process::Process;
use crate::topology::{Host, P4_CPU_PORT, P4_PORT};
use crate::{Error, Lab, Result, Shape, namespace};

/// The port on its own machine where a switch accepts commands, which is the cluster file's
/// default.
const CONTROL_PORT: u16 = 9090;
/// The port to the network, which is also the cluster file's default.
const NETWORK: u16 = 1;

impl Lab {
    /// Compiles the programs of all P4 switches.
    pub(crate) fn compile_p4(&self, shape: &Shape) -> Result<()> {
        let hosts = shape.p4_hosts();
        if hosts.is_empty() {
            return Ok(());
        }
        let tools = tools()?;
        tools.versions().map_err(Error::new)?;
        let mut roles: Vec<_> = hosts.iter().map(|host| host.role.name()).collect();
        roles.sort_unstable();
        roles.dedup();
        for role in roles {
            let out = self.program(role);
            programs::compile(&tools, role, shape.p4_build(), &out).map_err(Error::new)?;
        }
        Ok(())
    }

    fn program(&self, role: &str) -> PathBuf {
        self.directory().join(format!("{role}.json"))
    }

    /// Adds the links between P4 switches and their own machines.
    pub(crate) fn add_cpu_ports(&self, shape: &Shape) -> Result<()> {
        for host in shape.p4_hosts() {
            let (device, queues) = (host.interface(), veth::queues());
            let lines = [
                format!(
                    "link add name {device} {queues} address {} type veth peer name {P4_CPU_PORT} \
                     {queues}",
                    host.mac(0)
                ),
                format!("link set {P4_CPU_PORT} addrgenmode none up"),
                format!("link set {P4_PORT} addrgenmode none up"),
            ];
            let name = self.namespace(&host.name);
            namespace::ip(Some(&name), &lines)?;
            namespace::inside(&name, || {
                [device, P4_CPU_PORT]
                    .iter()
                    .try_for_each(|end| veth::prepare_for_xdp(end).map_err(Error::new))
            })?;
        }
        Ok(())
    }

    /// Starts the P4 switches of these nodes, or all, that don't run, and waits until they do.
    pub fn start_switches(&self, names: &[String]) -> Result<()> {
        let hosts = self.state_when_up()?.shape.p4_hosts();
        let processes = if hosts.is_empty() {
            Vec::new()
        } else {
            self.processes()
        };
        for host in &hosts {
            let wanted = names.is_empty() || names.contains(&host.name);
            let runs = |process: &Process| process.host == host.name && process.is_p4_switch();
            if wanted && !processes.iter().any(runs) {
                self.start_switch(host)?;
            }
        }
        Ok(())
    }

    /// Power-cycles a node's P4 switch, if it has one, so that its tables and its memory are empty.
    pub fn reboot_switch(&self, node: &str) -> Result<()> {
        let hosts = self.state_when_up()?.shape.p4_hosts();
        let Some(host) = hosts.iter().find(|host| host.name == node) else {
            return Ok(());
        };
        self.kill_while_there(|process| process.host == node && process.is_p4_switch())?;
        self.start_switch(host)
    }

    fn start_switch(&self, host: &Host) -> Result<()> {
        let compiled = self.program(host.role.name());
        let ports = [(NETWORK, P4_PORT), (CPU_PORT, P4_CPU_PORT)];
        let command = tools()?.switch(&compiled, &ports, CONTROL_PORT);
        self.spawn(&host.name, &format!("{}-switch", host.name), command)?;
        let tables = p4::bmv2::Tables::at(([127, 0, 0, 1], CONTROL_PORT).into());
        let tables = tables.map_err(Error::new)?;
        namespace::inside(&self.namespace(&host.name), || {
            tables
                .wait_until_there()
                .map_err(|e| Error::new(format!("{}: {e}", host.name)))
        })
    }
}

fn tools() -> Result<Tools> {
    Tools::find().map_err(Error::new)
}
