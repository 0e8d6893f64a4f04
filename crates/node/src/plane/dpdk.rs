// SPDX-License-Identifier: Apache-2.0
//! The DPDK plane. A role's process receives packets from a port that DPDK drives and sends them
//! there, without the kernel. The port has the node's address for itself.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use dpdk::{Eal, LIBRARY, Link, Outlet, ROOM, Shared, Station, View};
use serde_json::{Value, json};
use tracing::{info, warn};

use super::{Arrival, DataPlane, SendBatch, SendCounters, Sends};
use crate::Error;
use crate::cluster_file::{ClusterFile, DpdkSettings, Node};

/// The environment variable with the directory where the library for DPDK is searched first.
pub const DIR_VARIABLE: &str = "WIREPAXOS_DPDK_DIR";

/// The MTU that the longest packet of a cluster needs.
const NEEDED_MTU: u16 = 1_500;

/// An address at a DPDK port.
pub struct DpdkPlane {
    station: Station,
    /// Packets that were too long or whose receiver was unreachable.
    refused: u64,
}

/// Returns the path of the library that reaches DPDK, or an error with the remedy if there is none.
pub fn library() -> Result<PathBuf, String> {
    let found = loader::program_files::directory(DIR_VARIABLE, "dpdk", LIBRARY)?;
    found.map(|directory| directory.join(LIBRARY)).ok_or_else(|| {
        format!(
            "there is no library for DPDK: install DPDK (apt-get install libdpdk-dev) and build it \
             (`make -C programs/dpdk`), or say in {DIR_VARIABLE} in which directory it is"
        )
    })
}

/// The ports of a process's nodes.
#[derive(Default)]
pub(crate) struct Ports(Mutex<Vec<(String, Shared)>>);

impl Ports {
    /// Opens a node's port, if it isn't open yet.
    pub fn open(&self, node: &Node) -> Result<(), Error> {
        self.of(node).map(|_| ())
    }

    /// Returns the plane's part of a node's status document.
    pub fn status(&self, node: &Node, warnings: &mut Vec<String>) -> Value {
        match self.of(node) {
            Ok(link) => status(&View::of(&link, node.address.ip()), warnings),
            Err(_) => Value::Null,
        }
    }

    /// Returns a node's port, which other nodes of the process may share.
    fn of(&self, node: &Node) -> Result<Shared, Error> {
        let settings = node.dpdk.as_ref().ok_or_else(|| {
            let (problem, remedy) = crate::cluster_file::NO_PORT;
            Error::configuration(problem, remedy)
        })?;
        let name = &settings.port;
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, port)) = known.iter().find(|(known, _)| known == name) {
            return Ok(port.clone());
        }
        let link = open(settings, node.cpu)?;
        known.push((name.clone(), link.clone()));
        Ok(link)
    }
}

/// Starts DPDK, if it hasn't started yet, and opens a port.
fn open(settings: &DpdkSettings, cpu: Option<usize>) -> Result<Shared, Error> {
    let eal = Eal::start(&library()?, &arguments(&settings.args, cpu))?;
    let port = eal.open(&settings.port, ROOM)?;
    info!("plane: dpdk, port {} ({})", settings.port, port.driver());
    if port.mtu() < NEEDED_MTU {
        warn!(
            "plane: the MTU of port {} is {}: packets longer than that aren't sent. Take one of at \
             least {NEEDED_MTU}",
            settings.port,
            port.mtu()
        );
    }
    Ok(Link::of(port))
}

impl DpdkPlane {
    /// Opens an address at a node's port.
    pub(crate) fn open(
        cluster: &ClusterFile,
        node: &Node,
        address: SocketAddr,
        ports: &Ports,
    ) -> Result<DpdkPlane, Error> {
        let port = ports.of(node)?;
        let nodes = cluster.nodes.iter().map(|n| n.address.ip());
        Ok(DpdkPlane::at(Station::at(port, address, nodes)))
    }

    /// Returns a plane at an existing station.
    pub fn at(station: Station) -> DpdkPlane {
        DpdkPlane {
            station,
            refused: 0,
        }
    }
}

/// Returns the arguments for DPDK: those of the cluster file, and defaults for those that it
/// doesn't set. By default other processes that use DPDK see nothing of this one, and its thread
/// runs where the system or `cpu` puts it.
fn arguments(given: &[String], cpu: Option<usize>) -> Vec<String> {
    let has = |names: &[&str]| {
        let mut given = given.iter();
        given.any(|argument| names.iter().any(|name| argument.starts_with(name)))
    };
    let mut all = given.to_vec();
    if !has(&["--file-prefix", "--in-memory", "--no-shconf"]) {
        // `--in-memory` doesn't work with `--no-huge`.
        let alone = ["--in-memory", "--no-shconf"][usize::from(has(&["--no-huge"]))];
        all.push(alone.to_owned());
    }
    if !has(&["--no-telemetry", "--telemetry"]) {
        all.push("--no-telemetry".to_owned());
    }
    if !has(&["-l", "-c", "--lcores", "-S", "-s"]) {
        let cpus = cpu.map_or_else(allowed_cpus, |cpu| cpu.to_string());
        all.push(format!("--lcores=0@({cpus})"));
    }
    all
}

/// Returns the CPUs that this thread may run on, as a list of ranges.
fn allowed_cpus() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.map_or("0", str::trim).to_owned()
}

/// Sends through a port.
pub(crate) struct PortOut<'a> {
    outlet: Outlet<'a>,
    refused: &'a mut u64,
}

impl DpdkPlane {
    /// Returns the sending side of the port.
    fn out(&mut self) -> PortOut<'_> {
        PortOut {
            outlet: self.station.outlet(),
            refused: &mut self.refused,
        }
    }

    /// Returns the datagrams of the last receive, and the sending side of the port.
    pub(crate) fn split(&mut self) -> (impl Iterator<Item = Arrival<'_>>, PortOut<'_>) {
        let (arrivals, outlet) = self.station.split();
        let arrivals = arrivals.map(|(from, datagram)| Arrival::single(datagram, from));
        let refused = &mut self.refused;
        (arrivals, PortOut { outlet, refused })
    }
}

impl Sends for PortOut<'_> {
    #[inline]
    fn send(&mut self, batch: &mut SendBatch) {
        if batch.is_empty() {
            return;
        }
        *self.refused += self.outlet.send(batch.multicasts());
        batch.clear();
    }
}

impl Sends for DpdkPlane {
    fn send(&mut self, batch: &mut SendBatch) {
        self.out().send(batch);
    }
}

impl DataPlane for DpdkPlane {
    /// Returns `None`, since the port is polled all the time.
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn receive(&mut self) -> io::Result<bool> {
        Ok(self.station.receive())
    }

    fn arrivals(&self) -> impl Iterator<Item = Arrival<'_>> {
        let arrivals = self.station.arrivals();
        arrivals.map(|(from, datagram)| Arrival::single(datagram, from))
    }

    fn may_have_more(&self) -> bool {
        self.station.is_full()
    }

    fn counters(&self) -> SendCounters {
        SendCounters {
            sent: self.station.sent(),
            dropped: self.station.dropped(),
            refused: self.refused,
        }
    }

    fn status(&self, warnings: &mut Vec<String>) -> Value {
        status(&self.station.view(), warnings)
    }
}

/// Returns a port's part of a status document.
fn status(port: &View, warnings: &mut Vec<String>) -> Value {
    let unreachable = port.unreachable();
    if !unreachable.is_empty() {
        let list: Vec<_> = unreachable.iter().map(ToString::to_string).collect();
        warnings.push(format!(
            "no hardware address is known for {}: nothing is sent there",
            list.join(", ")
        ));
    }
    if !port.is_up() {
        warnings.push(
            "nobody is at the other end of the port: check the cable, or the peer of a virtual port"
                .to_owned(),
        );
    }
    let counters = port.counters();
    json!({
        "name": "dpdk",
        "driver": port.driver(),
        "up": port.is_up(),
        "unreachable": unreachable,
        "missed": port.missed(),
        "others": counters.others,
        "too_long": counters.too_long,
        "malformed": counters.malformed,
        "damaged": counters.damaged,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_file_says_to_dpdk_is_not_said_otherwise() {
        let words = |list: &[&str]| list.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        let all = arguments(&words(&["--no-huge"]), Some(3));
        let expected = [
            "--no-huge",
            "--no-shconf",
            "--no-telemetry",
            "--lcores=0@(3)",
        ];
        assert_eq!(all, expected);
        let given = words(&["--file-prefix=a", "-l", "1", "--no-telemetry"]);
        assert_eq!(arguments(&given, Some(3)), given);
        assert!(!allowed_cpus().is_empty());
    }
}
