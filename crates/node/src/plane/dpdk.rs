// SPDX-License-Identifier: Apache-2.0
//! The DPDK plane: a role's process takes packets from a port that DPDK drives, and sends them by it, without the
//! kernel. The port has the node's address for itself.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use dpdk::frame::Head;
use dpdk::{Eal, LIBRARY, ROOM, Station};
use serde_json::{Value, json};
use tracing::{info, warn};

use super::{Arrival, DataPlane, SendBatch, SendCounters, Sends};
use crate::Error;
use crate::cluster_file::{ClusterFile, Node};

/// Where the library for DPDK is looked for first.
pub const DIR_VARIABLE: &str = "WIREPAXOS_DPDK_DIR";

/// What the longest packet of a cluster takes.
const NEEDED_MTU: u16 = 1_500;

/// An address at a port of DPDK.
pub struct DpdkPlane {
    station: Station,
    /// Whom it couldn't send to, or what was too long.
    refused: u64,
}

/// The library by which DPDK is reached, or what to do where there is none.
pub fn library() -> Result<PathBuf, String> {
    let found = loader::built::directory(DIR_VARIABLE, "dpdk", LIBRARY)?;
    found.map(|directory| directory.join(LIBRARY)).ok_or_else(|| {
        format!(
            "there is no library for DPDK: install DPDK (apt-get install libdpdk-dev) and build it (`make -C \
             programs/dpdk`), or say in {DIR_VARIABLE} in which directory it is"
        )
    })
}

impl DpdkPlane {
    /// At the node's port.
    pub(crate) fn open(cluster: &ClusterFile, node: &Node) -> Result<DpdkPlane, Error> {
        let settings = node.dpdk.as_ref().ok_or_else(|| {
            let (problem, remedy) = crate::cluster_file::NO_PORT;
            Error::configuration(problem, remedy)
        })?;
        let eal = Eal::start(&library()?, &arguments(&settings.args, node.cpu))?;
        let port = eal.open(&settings.port, ROOM)?;
        info!(
            "plane: dpdk; {} is at port {} ({})",
            node.address.ip(),
            settings.port,
            port.driver()
        );
        if port.mtu() < NEEDED_MTU {
            warn!(
                "plane: the MTU of port {} is {}: packets longer than that aren't sent. Take one of at least {NEEDED_MTU}",
                settings.port,
                port.mtu()
            );
        }
        let nodes = cluster.nodes.iter().map(|n| n.address.ip());
        Ok(DpdkPlane::at(Station::new(port, node.address, nodes)))
    }

    /// With a station that is there.
    pub fn at(station: Station) -> DpdkPlane {
        DpdkPlane {
            station,
            refused: 0,
        }
    }
}

/// The file's arguments, and what else a node wants as long as they don't say otherwise: nothing of it is to be seen by
/// other processes that use DPDK, and its thread stays where the system, or `cpu`, puts it.
fn arguments(given: &[String], cpu: Option<usize>) -> Vec<String> {
    let has = |names: &[&str]| {
        let mut given = given.iter();
        given.any(|argument| names.iter().any(|name| argument.starts_with(name)))
    };
    let mut all = given.to_vec();
    if !has(&["--file-prefix", "--in-memory", "--no-shconf"]) {
        // The one isn't for memory without hugepages.
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

/// The CPUs that this thread may run on, as a list of ranges.
fn allowed_cpus() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.map_or("0", str::trim).to_owned()
}

impl Sends for DpdkPlane {
    fn send(&mut self, batch: &mut SendBatch) {
        if batch.is_empty() {
            return;
        }
        let mut latest: Option<(SocketAddr, Option<Head>)> = None;
        for run in batch.outgoing() {
            let to = run.name.address();
            // Runs to one address come one after the other.
            if latest.as_ref().is_none_or(|(known, _)| *known != to) {
                latest = Some((to, self.station.head(to)));
            }
            let Some((_, Some(head))) = &latest else {
                self.refused += u64::from(run.datagrams);
                continue;
            };
            for datagram in run.bytes.chunks(usize::from(run.size)) {
                self.refused += u64::from(!self.station.push(head, datagram));
            }
        }
        self.station.flush();
        batch.clear();
    }
}

impl DataPlane for DpdkPlane {
    /// It is looked at all the time.
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
            sent: self.station.port().sent(),
            dropped: self.station.port().dropped(),
            refused: self.refused,
        }
    }

    fn status(&self, warnings: &mut Vec<String>) -> Value {
        let unreachable = self.station.unreachable();
        if !unreachable.is_empty() {
            let list: Vec<_> = unreachable.iter().map(ToString::to_string).collect();
            warnings.push(format!(
                "no hardware address is known for {}: nothing is sent there",
                list.join(", ")
            ));
        }
        if !self.station.is_up() {
            warnings.push(
                "nobody is at the other end of the port: check the cable, or the peer of a virtual port"
                    .to_owned(),
            );
        }
        let (port, counters) = (self.station.port(), self.station.counters());
        json!({
            "name": "dpdk",
            "driver": port.driver(),
            "up": self.station.is_up(),
            "unreachable": unreachable,
            "missed": port.missed(),
            "others": counters.others,
            "too_long": counters.too_long,
            "malformed": counters.malformed,
            "damaged": counters.damaged,
        })
    }
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
