// SPDX-License-Identifier: Apache-2.0
//! Serves Prometheus metrics, which are the node's status document in another form.
//!
//! A thread answers every HTTP request with the numbers of the status document. It asks for that document over the
//! control plane like any other asker, so it shares nothing with the working threads.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use control::OUTSIDE;
use serde_json::Value;

use crate::Error;
use crate::cluster_file::{ClusterFile, Node};
use crate::control_peers::ControlPeers;
use crate::host::Stop;
use crate::listen::{Connections, cannot_listen};
use crate::status;

/// The time limit for a scraper's request, and for the node's answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Members of an object that name it instead of measuring it, and so become labels.
const LABELS: [&str; 8] = [
    "name",
    "role",
    "group",
    "pid",
    "node",
    "replica",
    "application",
    "storage",
];

/// A metrics server that runs until it is dropped.
pub struct Server {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on `address` for scrapers of `node`.
    pub fn start(address: SocketAddr, cluster: &ClusterFile, node: &Node) -> Result<Server, Error> {
        let (peers, control) = (ControlPeers::new(cluster, OUTSIDE), node.control);
        let listen = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let stop = Stop::new()?;
            let stopped = stop.clone();
            let thread = std::thread::Builder::new().name("metrics".to_owned());
            let thread = thread.spawn(move || serve(listener, &peers, control, &stopped))?;
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

fn serve(listener: TcpListener, peers: &ControlPeers, control: SocketAddr, stop: &Stop) {
    for mut scraper in Connections::new(listener, "metrics", stop) {
        // A scraper that disconnects or is too slow misses its answer.
        let _ = answer(&mut scraper, peers, control);
    }
}

fn answer(scraper: &mut TcpStream, peers: &ControlPeers, control: SocketAddr) -> io::Result<()> {
    scraper.set_nonblocking(false)?;
    scraper.set_read_timeout(Some(TIMEOUT))?;
    scraper.set_write_timeout(Some(TIMEOUT))?;
    // Every request gets the same answer, so the request only has to be read.
    let _ = scraper.read(&mut [0; 4096])?;
    let answers = status::ask(peers, &[control], TIMEOUT);
    let answer = answers.ok().and_then(|mut all| all.remove(&control));
    let (status, body) = match answer {
        Some(document) => ("200 OK", text(&document)),
        None => (
            "503 Service Unavailable",
            "the node doesn't answer\n".to_owned(),
        ),
    };
    write!(
        scraper,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Returns every number and truth value of a document, named by its path; list entries are named by their labels.
fn text(document: &Value) -> String {
    let mut out = String::new();
    walk("wirepaxos", &[], document, &mut out);
    out
}

fn walk(path: &str, labels: &[(String, String)], value: &Value, out: &mut String) {
    match value {
        Value::Number(number) => line(path, labels, number, out),
        Value::Bool(truth) => line(path, labels, u8::from(*truth), out),
        Value::Object(members) => {
            let mut labels = labels.to_vec();
            for (key, value) in members
                .iter()
                .filter(|(key, _)| LABELS.contains(&key.as_str()))
            {
                let shown = value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned);
                labels.retain(|(known, _)| known != key);
                labels.push((key.clone(), shown));
            }
            let measured = |(key, _): &(&String, &Value)| !LABELS.contains(&key.as_str());
            for (key, value) in members.iter().filter(measured) {
                walk(&format!("{path}_{}", plain(key)), &labels, value, out);
            }
        }
        Value::Array(entries) => {
            for entry in entries.iter().filter(|entry| entry.is_object()) {
                walk(path, labels, entry, out);
            }
        }
        Value::Null | Value::String(_) => {}
    }
}

fn line(path: &str, labels: &[(String, String)], value: impl std::fmt::Display, out: &mut String) {
    let label = |(key, value): &(String, String)| {
        let value = value
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        format!("{key}=\"{value}\"")
    };
    let labels: Vec<_> = labels.iter().map(label).collect();
    let _ = writeln!(out, "{path}{{{}}} {value}", labels.join(","));
}

fn plain(key: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    key.chars().map(plain).collect()
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
    fn a_document_becomes_named_and_labelled_numbers() {
        let document = json!({
            "node": 7, "name": "a\"b", "role": "acceptor", "warnings": ["words"],
            "groups": [{ "group": 0, "member": true, "nonce": "ab",
                         "partitions": [{ "pid": 1, "trim": 5 }] }],
            "counters": { "sent": { "phase2b": 3 } },
        });
        let shown = text(&document);
        let mut lines: Vec<_> = shown.lines().collect();
        lines.sort_unstable();
        let own = "name=\"a\\\"b\",node=\"7\",role=\"acceptor\"";
        assert_eq!(
            lines,
            [
                format!("wirepaxos_counters_sent_phase2b{{{own}}} 3"),
                format!("wirepaxos_groups_member{{{own},group=\"0\"}} 1"),
                format!("wirepaxos_groups_partitions_trim{{{own},group=\"0\",pid=\"1\"}} 5"),
            ]
        );
    }

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
        node.keep_status(id, &json!({ "node": 7, "commands": 12 }));
        node.send_status(from, id, 0);
        let mut shown = String::new();
        scraper.read_to_string(&mut shown).unwrap();
        assert!(shown.starts_with("HTTP/1.1 200 OK\r\n"), "{shown}");
        assert!(
            shown.ends_with("\r\n\r\nwirepaxos_commands{node=\"7\"} 12\n"),
            "{shown}"
        );
        drop(server);
        assert!(TcpStream::connect(free).is_err());
    }
}
