// SPDX-License-Identifier: Apache-2.0
//! Binds the sockets that the cluster file names, and accepts connections.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use crate::Error;
use crate::cluster_file::{Node, Plane};
use crate::host::{Stop, wait};

/// The pause of a process that is short of descriptors or memory, before it tries again.
const SHORTAGE: Duration = Duration::from_millis(200);

/// Accepts connections from a listener until a stop is requested.
pub(crate) struct Connections<'a> {
    listener: TcpListener,
    /// The name of the listener in messages.
    what: &'static str,
    stop: &'a Stop,
    /// The last attempt failed, and an error was printed.
    failing: bool,
}

impl<'a> Connections<'a> {
    /// Returns the connections of a listener, which must be non-blocking.
    pub fn new(listener: TcpListener, what: &'static str, stop: &'a Stop) -> Connections<'a> {
        Connections {
            listener,
            what,
            stop,
            failing: false,
        }
    }

    /// Waits before the next attempt. While the process is short of descriptors, a connection stays
    /// in the queue, so waiting for the listener would return at once again and again.
    fn wait_after(&mut self, e: &io::Error) -> io::Result<()> {
        match e.kind() {
            io::ErrorKind::WouldBlock => {
                wait(&[self.listener.as_fd(), self.stop.as_fd()], None)?;
            }
            io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
            _ => {
                if !std::mem::replace(&mut self.failing, true) {
                    warn!(server = self.what, error = %e, "can't take a connection; trying on");
                }
                wait(&[self.stop.as_fd()], Some(SHORTAGE))?;
            }
        }
        Ok(())
    }
}

impl Iterator for Connections<'_> {
    type Item = TcpStream;

    fn next(&mut self) -> Option<TcpStream> {
        while !self.stop.is_requested() {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    self.failing = false;
                    return Some(stream);
                }
                Err(e) => self.wait_after(&e).ok()?,
            }
        }
        None
    }
}

/// How long a node waits for an address that its machine doesn't have yet, as after a boot.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(60);
const ADDRESS_INTERVAL: Duration = Duration::from_millis(500);

/// Waits until this machine has the addresses at which a node listens, a minute for each at most or
/// until the stop. If one is still missing then, the node's own attempt to listen there fails and
/// says so.
pub fn await_addresses(node: &Node, stop: &Stop) {
    let is_here = |ip| match UdpSocket::bind((ip, 0)) {
        Ok(_) => true,
        Err(e) => e.kind() != io::ErrorKind::AddrNotAvailable,
    };
    for (key, ip) in own_addresses(node) {
        if is_here(ip) {
            continue;
        }
        warn!(
            "this machine doesn't have the address {ip} (`{key}` of {}): waiting for it, for {} s \
             at most. If the node belongs to another machine, start it there",
            node.name,
            ADDRESS_TIMEOUT.as_secs()
        );
        if !until(ADDRESS_TIMEOUT, ADDRESS_INTERVAL, stop, || is_here(ip)) {
            return;
        }
        info!("the address {ip} is here");
    }
}

/// Returns the addresses that the kernel of the node's machine has, with their keys in the cluster
/// file. At a DPDK port and in a switch the role's own address is none of them.
fn own_addresses(node: &Node) -> Vec<(&'static str, IpAddr)> {
    let in_kernel = node.plane != Plane::Dpdk && node.switch.is_none();
    let all = [
        ("address", in_kernel.then_some(node.address)),
        ("control", Some(node.control)),
        ("redis", node.redis),
        ("metrics", node.metrics),
    ];
    let mut found: Vec<(&'static str, IpAddr)> = Vec::new();
    for (key, address) in all {
        let Some(ip) = address.map(|address| address.ip()) else {
            continue;
        };
        if found.iter().all(|(_, known)| *known != ip) {
            found.push((key, ip));
        }
    }
    found
}

/// Returns whether something is so within `limit`; looks again after each `interval`, until the
/// stop.
fn until(
    limit: Duration,
    interval: Duration,
    stop: &Stop,
    mut is_so: impl FnMut() -> bool,
) -> bool {
    let begun = Instant::now();
    while !stop.is_requested() && begun.elapsed() < limit {
        if is_so() {
            return true;
        }
        if wait(&[stop.as_fd()], Some(interval)).is_err() {
            return false;
        }
    }
    false
}

/// Opens a non-blocking UDP socket; `key` is the name of the address in the cluster file.
pub(crate) fn udp(address: SocketAddr, key: &str) -> Result<UdpSocket, Error> {
    let bind = || {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    bind().map_err(|e| Error::new(cannot_listen(address, "UDP", key, &e)))
}

/// Returns why a node can't listen at an address, and the remedy. `key` is the name of the address
/// in the cluster file.
pub fn cannot_listen(address: SocketAddr, protocol: &str, key: &str, why: &io::Error) -> String {
    let (ip, port) = (address.ip(), address.port());
    let remedy = match why.kind() {
        io::ErrorKind::AddrNotAvailable => format!(
            "this machine doesn't have the address {ip}: start the node on the machine that has \
             it, or correct `{key}` in the cluster file"
        ),
        io::ErrorKind::AddrInUse => format!(
            "another process has the port; the node runs already (`wirepaxos status`), or another \
             program does (`ss -anp 'sport = {port}'`), so stop one of them, or take another port \
             for `{key}`"
        ),
        io::ErrorKind::PermissionDenied => {
            format!("only root may take port {port}: take one from 1024 on for `{key}`")
        }
        _ => "correct the address in the cluster file".into(),
    };
    format!("can't listen on {address} ({protocol}, `{key}`): {why}; {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_cannot_be_taken_is_refused_with_what_to_do() {
        let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
        for (address, remedy) in [
            (taken.local_addr().unwrap(), "another process has the port"),
            // This address is reserved for documentation, so no machine has it.
            (
                "192.0.2.1:7000".parse().unwrap(),
                "this machine doesn't have the address 192.0.2.1",
            ),
        ] {
            let refused = udp(address, "control").unwrap_err().to_string();
            assert!(refused.contains(remedy), "{refused}");
            assert!(refused.contains("`control`"), "{refused}");
        }
    }

    #[test]
    fn an_address_that_comes_late_is_waited_for_until_the_limit_or_the_stop() {
        let stop = Stop::new().unwrap();
        let (moment, never) = (Duration::from_millis(1), Duration::from_secs(3_600));
        let mut looks = 0;
        let came = until(never, moment, &stop, || {
            looks += 1;
            looks == 3
        });
        assert!(came && looks == 3);
        assert!(!until(moment, moment, &stop, || false), "the limit");
        stop.request();
        assert!(!until(never, never, &stop, || false), "the stop");
    }

    #[test]
    fn a_node_waits_for_each_address_of_its_machine_once() {
        let sample = include_str!("../../../testdata/cluster.toml");
        let cluster = crate::cluster_file::parse(sample, "test").unwrap();
        let mut node = cluster.node("replica-1").unwrap().clone();
        node.redis = Some("192.0.2.1:6379".parse().unwrap());
        let keys = |node: &Node| {
            let own = own_addresses(node).into_iter();
            own.map(|(key, _)| key).collect::<Vec<_>>()
        };
        assert_eq!(keys(&node), ["address", "redis"]);
        node.plane = Plane::Dpdk;
        assert_eq!(keys(&node), ["control", "redis"]);
    }

    #[test]
    fn who_is_short_of_descriptors_pauses_says_so_once_and_goes_on() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let stop = Stop::new().unwrap();
        let mut connections = Connections::new(listener, "test", &stop);
        // A connection waits, as it does while it can't be accepted.
        let _waits = TcpStream::connect(address).unwrap();
        let begun = Instant::now();
        for _ in 0..2 {
            let shortage = io::Error::from_raw_os_error(libc::EMFILE);
            connections.wait_after(&shortage).unwrap();
            assert!(connections.failing, "said, and not again");
        }
        assert!(begun.elapsed() >= 2 * SHORTAGE, "no pause, a spin");
        assert!(connections.next().is_some() && !connections.failing);
        stop.request();
        assert!(connections.next().is_none());
    }
}
