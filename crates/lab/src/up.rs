// SPDX-License-Identifier: Apache-2.0
//! Builds a lab.

use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;

use keys::KeyFile;
use loader::veth;
use node::cluster_file::{Auth, Draft};

use crate::topology::{Host, Role, WIRES};
use crate::{Error, Lab, Result, Shape, interface, namespace, state::State};

/// The options of `up` besides the shape.
#[derive(Clone, Debug, Default)]
pub struct UpOptions {
    /// The directory in which the nodes store their data, in a directory of the lab's name. `None`
    /// means the lab's own directory, in memory.
    pub data: Option<PathBuf>,
    /// Every link leads through a wire from the start, for faults.
    pub wires: bool,
    /// The directory in which the nodes record what they receive and send; it outlives the lab.
    pub trace: Option<PathBuf>,
}

impl Lab {
    /// Makes namespaces, links, addresses and the cluster file. If this fails or is interrupted,
    /// `down` removes what was made.
    pub fn up(&self, shape: &Shape, options: &UpOptions) -> Result<()> {
        Lab::must_be_root()?;
        shape.check()?;
        let _lock = self.lock()?;
        if self.state()?.is_some() || !namespace::list(&self.prefix()).is_empty() {
            return Err(Error::new(format!(
                "lab {name} is there already; remove it with: wirepaxos-lab lab down --name {name}",
                name = self.name
            )));
        }
        let mut state = State {
            shape: shape.clone(),
            data: self.data(options)?,
            complete: false,
        };
        self.store(&state)?;
        let built = self.build(&state, options);
        if built.is_err() {
            // The first error is reported. If the removal fails, too, the state file stays.
            let _ = self.remove();
        }
        built?;
        state.complete = true;
        self.store(&state)
    }

    fn data(&self, options: &UpOptions) -> Result<PathBuf> {
        let Some(parent) = &options.data else {
            return Ok(self.directory().join("data"));
        };
        let data = std::path::absolute(parent)
            .map_err(Error::at(parent.display()))?
            .join(format!("wirepaxos-lab-{}", self.name));
        if data.exists() {
            // An existing directory would be removed with the lab.
            return Err(Error::new(format!(
                "{} exists already; remove it, or name another directory",
                data.display()
            )));
        }
        Ok(data)
    }

    /// Returns the directory for traces. It must be empty, since another cluster's traces can't be
    /// continued.
    fn trace(&self, options: &UpOptions) -> Result<Option<PathBuf>> {
        let Some(directory) = &options.trace else {
            return Ok(None);
        };
        fs::create_dir_all(directory).map_err(Error::at(directory.display()))?;
        let mut there = fs::read_dir(directory).map_err(Error::at(directory.display()))?;
        if there.next().is_some() {
            return Err(Error::new(format!(
                "{} isn't empty: remove the traces of another lab, or name another directory",
                directory.display()
            )));
        }
        let absolute = std::path::absolute(directory);
        absolute.map(Some).map_err(Error::at(directory.display()))
    }

    fn build(&self, state: &State, options: &UpOptions) -> Result<()> {
        self.make_files(state, options)?;
        let hosts = state.shape.hosts();
        // The step that takes longest, and fails on most machines, comes first.
        self.compile_p4(&state.shape)?;
        self.add_namespaces(&state.shape)?;
        self.add_links(&state.shape)?;
        self.add_cpu_ports(&state.shape)?;
        for host in hosts.iter().filter(|h| !h.in_switch) {
            let lines = self.configuration(host, &hosts, &state.shape);
            namespace::ip(Some(&self.namespace(&host.name)), &lines)?;
        }
        if options.wires {
            self.wire_all(&state.shape)?;
        }
        if state.shape.forwards_in_kernel() {
            self.attach_forwarders(&state.shape)?;
        }
        let mut machines = state.shape.machines();
        machines.try_for_each(|host| interface::send_by_cpu(&self.namespace(&host.name)))
    }

    fn make_files(&self, state: &State, options: &UpOptions) -> Result<()> {
        let trace = self.trace(options)?;
        let directory = self.directory();
        for path in [&directory, &state.data] {
            fs::create_dir_all(path).map_err(Error::at(path.display()))?;
        }
        let draft = Draft {
            bpffs: Some(self.bpffs()),
            trace,
            ..state.shape.cluster_file(random()?, &state.data)?
        };
        // The bpffs is mounted here and not by a node, since `ip netns exec` would remove a node's
        // mount again.
        loader::pins::mount_bpffs(&self.bpffs()).map_err(Error::new)?;
        let written = draft.write(&self.cluster_file());
        let written = written.map_err(|e| Error::new(e.to_string()))?;
        if written.auth == Auth::Off {
            return Ok(());
        }
        let made = KeyFile::new(written.cluster).and_then(|keys| keys.create(&written.keys));
        made.map_err(|e| Error::new(e.to_string()))
    }

    fn add_namespaces(&self, shape: &Shape) -> Result<()> {
        let names = shape.machines().map(|h| h.name).chain([WIRES.to_string()]);
        let lines: Vec<String> = names
            .map(|name| format!("netns add {}", self.namespace(&name)))
            .collect();
        namespace::ip(None, &lines)
    }

    fn add_links(&self, shape: &Shape) -> Result<()> {
        let links = shape.links();
        let queues = veth::queues();
        let lines: Vec<String> = links
            .iter()
            .map(|link| {
                format!(
                    "link add name {} {queues} netns {} address {} type veth peer name {} {queues} \
                     netns {} address {}",
                    link.near.interface,
                    self.namespace(&link.near.host),
                    link.near.mac,
                    link.far.interface,
                    self.namespace(&link.far.host),
                    link.far.mac,
                )
            })
            .collect();
        namespace::ip(None, &lines)?;
        for host in shape.machines() {
            let ends = links.iter().flat_map(|link| [&link.near, &link.far]);
            let own: Vec<_> = ends.filter(|end| end.host == host.name).collect();
            namespace::inside(&self.namespace(&host.name), || {
                let mut ends = own.iter().map(|end| &end.interface);
                ends.try_for_each(|end| veth::prepare_for_xdp(end).map_err(Error::new))
            })?;
        }
        Ok(())
    }

    /// Returns the lines for addresses and neighbours. A switch has its addresses on a bridge over
    /// its ports.
    fn configuration(&self, host: &Host, all: &[Host], shape: &Shape) -> Vec<String> {
        let device = host.interface();
        let mut lines = vec!["link set lo up".to_string()];
        let inside = |other: &&Host| other.in_switch && other.machine() == host.name;
        if host.role == Role::Switch {
            lines.push(format!(
                "link add {device} address {} type bridge stp_state 0 mcast_snooping 0",
                host.mac(0)
            ));
            for link in shape.links() {
                for end in [&link.near, &link.far] {
                    if end.host == host.name {
                        lines.push(port_line(&end.interface));
                    }
                }
            }
        }
        lines.push(format!("link set {device} up"));
        lines.push(format!("address add {}/24 dev {device}", host.ipv4()));
        lines.push(format!("address add {}/64 dev {device} nodad", host.ipv6()));
        for role in all.iter().filter(inside) {
            lines.push(format!("address add {}/32 dev {device}", role.ipv4()));
            lines.push(format!(
                "address add {}/128 dev {device} nodad",
                role.ipv6()
            ));
        }
        // Neighbours are fixed, so that nothing waits for ARP and programs find them in the
        // kernel's tables.
        let elsewhere = |other: &&Host| other.id != host.id && !inside(other);
        for other in all.iter().filter(elsewhere) {
            for address in [other.ipv4(), other.ipv6()] {
                lines.push(format!(
                    "neighbour add {address} lladdr {} dev {device} nud permanent",
                    other.mac(0)
                ));
            }
        }
        lines
    }
}

/// Returns the line that adds a port to its switch's bridge.
pub(crate) fn port_line(port: &str) -> String {
    format!("link set {port} master bridge addrgenmode none up")
}

fn random() -> Result<u32> {
    let mut bytes = [0; 4];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(Error::at("/dev/urandom"))?;
    Ok(u32::from_be_bytes(bytes))
}
