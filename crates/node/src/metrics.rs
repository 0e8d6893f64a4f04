// SPDX-License-Identifier: Apache-2.0
//! Serves Prometheus metrics, which are numbers of the node's status document.
//!
//! A thread answers every HTTP request with them. It asks for that document over the
//! control plane like any other asker, so it shares nothing with the working threads.

mod families;
mod text;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use control::OUTSIDE;
use paxos::NodeId;

use crate::Error;
use crate::cluster_file::{ClusterFile, Node};
use crate::control_peers::ControlPeers;
use crate::host::Stop;
use crate::listen::{Connections, cannot_listen};
use crate::status;

/// The time limit for a scraper's request, and for the node's answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// A metrics server that runs until it is dropped.
pub struct Server {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on `address` for scrapers of `node`.
    pub fn start(address: SocketAddr, cluster: &ClusterFile, node: &Node) -> Result<Server, Error> {
        let source = Source {
            peers: ControlPeers::new(cluster, OUTSIDE),
            control: node.control,
            names: cluster
                .nodes
                .iter()
                .map(|n| (n.id, n.name.clone()))
                .collect(),
        };
        let listen = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let stop = Stop::new()?;
            let stopped = stop.clone();
            let thread = std::thread::Builder::new().name("metrics".to_owned());
            let thread = thread.spawn(move || serve(listener, &source, &stopped))?;
            Ok(Server {
                stop,
                thread: Some(thread),
            })
        };
        listen().map_err(|e: io::Error| Error::new(cannot_listen(address, "TCP", "metrics", &e)))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.request();
        if let Some(thread) = self.thread.take() {
            // The thread holds nothing that a panic could have damaged.
            let _ = thread.join();
        }
    }
}

/// The node whose numbers are served.
struct Source {
    peers: ControlPeers,
    control: SocketAddr,
    names: BTreeMap<NodeId, String>,
}

impl Source {
    fn name(&self, id: u64) -> String {
        let name = NodeId::try_from(id).ok();
        let name = name.and_then(|id| self.names.get(&id));
        name.map_or_else(|| format!("node {id}"), Clone::clone)
    }
}

fn serve(listener: TcpListener, source: &Source, stop: &Stop) {
    for mut scraper in Connections::new(listener, "metrics", stop) {
        // A scraper that disconnects or is too slow misses its answer.
        let _ = answer(&mut scraper, source);
    }
}

fn answer(scraper: &mut TcpStream, source: &Source) -> io::Result<()> {
    scraper.set_nonblocking(false)?;
    scraper.set_read_timeout(Some(TIMEOUT))?;
    scraper.set_write_timeout(Some(TIMEOUT))?;
    // Every request gets the same answer, so the request only has to be read.
    let _ = scraper.read(&mut [0; 4096])?;
    let answers = status::ask(&source.peers, &[source.control], TIMEOUT);
    let answer = answers.ok().and_then(|mut all| all.remove(&source.control));
    let (status, body) = match answer {
        Some(document) => ("200 OK", text::text(&document, &|id| source.name(id))),
        None => (
            "503 Service Unavailable",
            "the node doesn't answer\n".to_owned(),
        ),
    };
    write!(
        scraper,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control_socket::ControlSocket;
    use crate::host::wait;
    use control::Message;
    use serde_json::json;
    use std::os::fd::AsFd;

    #[test]
    fn a_scraper_gets_the_status_and_the_thread_ends() {
        let host = crate::loopback::draw().unwrap();
        let sample = include_str!("../../../testdata/cluster.toml");
        let sample = sample.replace("127.0.0.1", &host.to_string());
        let cluster = crate::cluster_file::parse(&sample, "test").unwrap();
        let leader = cluster.node("leader-1").unwrap();
        let free: SocketAddr = (host, 9999).into();
        let mut node = ControlSocket::bind(&cluster, leader).unwrap();
        let server = Server::start(free, &cluster, leader).unwrap();
        let mut scraper = TcpStream::connect(free).unwrap();
        scraper.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut receive = || {
            wait(&[node.as_fd()], Some(Duration::from_secs(10))).unwrap();
            node.receive()
        };
        // The first message is answered with a challenge.
        let (message, from) = receive().or_else(receive).unwrap();
        let Message::StatusRequest { id, part: 0 } = message else {
            panic!("{message:?}");
        };
        node.keep_status(
            id,
            &json!({ "name": "leader-1", "role": "leader", "uptime_s": 12 }),
        );
        node.send_status(from, id, 0);
        let mut shown = String::new();
        scraper.read_to_string(&mut shown).unwrap();
        assert!(shown.starts_with("HTTP/1.1 200 OK\r\n"), "{shown}");
        let uptime = "wirepaxos_uptime_seconds{node=\"leader-1\",role=\"leader\"} 12\n";
        assert!(shown.contains(uptime), "{shown}");
        drop(server);
        assert!(TcpStream::connect(free).is_err());
    }
}
