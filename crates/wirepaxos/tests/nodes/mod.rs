// SPDX-License-Identifier: Apache-2.0
//! Clusters of a counter, whose nodes are threads of this process, and a client that counts, too.
#![allow(dead_code)] // each test program uses a part

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use client::{Client, ClientOptions, ControlClient, Outcome};
use control::{Message, OUTSIDE};
use node::{ClusterFile, ControlPeers, Services, Stop};
use paxos::Epoch;
use replica::storage::CheckpointFile;
use replica::{InMemory, StateMachine};
use serde_json::Value;

pub const CONTROLLER: &str = "controller";
/// The time after which a failing test ends.
const LIMIT: Duration = Duration::from_secs(60);

/// Answers with the number of commands, so that a command that was lost or executed twice shows at
/// once.
#[derive(Default)]
struct Counter(u64);

impl StateMachine for Counter {
    fn execute(&mut self, _: &[u8], reply: &mut Vec<u8>) {
        self.0 += 1;
        reply.extend_from_slice(self.0.to_string().as_bytes());
    }

    fn save(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.0.to_be_bytes())
    }

    fn load(from: &mut dyn Read) -> io::Result<Counter> {
        let mut bytes = [0; 8];
        from.read_exact(&mut bytes)?;
        Ok(Counter(u64::from_be_bytes(bytes)))
    }
}

fn services() -> Services {
    Services::new(Arc::new(|_, directory| {
        let file = CheckpointFile::new(directory.join("counter"));
        Ok(Box::new(InMemory::open(file, Counter::default())?))
    }))
}

/// A test's own directory, which is removed at its end.
pub struct TempDir(pub PathBuf);

impl TempDir {
    pub fn new(test: &str) -> TempDir {
        let name = format!("wirepaxos-{test}-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        TempDir(dir)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

type Running = (Arc<Stop>, JoinHandle<Result<(), node::Error>>);

/// The nodes of a cluster as threads.
pub struct Cluster {
    pub file: ClusterFile,
    running: BTreeMap<String, Running>,
}

impl Cluster {
    /// Returns a cluster whose nodes have the same ids and addresses as the nodes of equal names in
    /// every cluster at `host`.
    pub fn new(dir: &Path, host: Ipv4Addr, number: u32, copies: u16) -> Cluster {
        let mut text = format!(
            "cluster = \"{number:08x}\"\ndata = \"{number:08x}\"\n\
             [[group]]\nid = 0\napplication = \"echo\"\nslots = 256\n"
        );
        let mut add = |id: u16, name: &str, role: &str| {
            let at = |port: u16| SocketAddr::from((host, port + 10 * id));
            let (address, control) = (at(7000), at(7001));
            let _ = write!(
                text,
                "[[node]]\nname = \"{name}\"\nid = {id}\nrole = \"{role}\"\n\
                 address = \"{address}\"\ncontrol = \"{control}\"\n"
            );
        };
        add(1, CONTROLLER, "controller");
        add(2, "leader", "leader");
        for copy in 1..=copies {
            add(10 + copy, &format!("acceptor-{copy}"), "acceptor");
            add(20 + copy, &format!("replica-{copy}"), "replica");
        }
        let path = dir.join(format!("{number:08x}.toml"));
        std::fs::write(&path, text).unwrap();
        Cluster {
            file: ClusterFile::load(&path).unwrap(),
            running: BTreeMap::new(),
        }
    }

    pub fn start(&mut self, name: &str) {
        let (stop, file) = (Stop::new().unwrap(), self.file.clone());
        let (handle, node) = (stop.clone(), name.to_owned());
        let run = move || node::run(&file, &node, Some(&services()), &handle);
        let running = (stop, std::thread::spawn(run));
        self.running.insert(name.to_owned(), running);
    }

    pub fn stop(&mut self, name: &str) {
        let (stop, thread) = self.running.remove(name).unwrap();
        stop.request();
        thread.join().unwrap().unwrap();
    }

    pub fn start_all(&mut self) {
        let names: Vec<_> = self.file.nodes.iter().map(|n| n.name.clone()).collect();
        names.iter().for_each(|name| self.start(name));
    }

    pub fn stop_all(&mut self) {
        let names: Vec<_> = self.running.keys().cloned().collect();
        names.iter().for_each(|name| self.stop(name));
    }

    pub fn control(&self, name: &str) -> SocketAddr {
        self.file.node(name).unwrap().control
    }

    pub fn status(&self, name: &str) -> Option<Value> {
        let (to, peers) = (self.control(name), ControlPeers::new(&self.file, OUTSIDE));
        let answers = node::ask_status(&peers, &[to], Duration::from_secs(1));
        answers.unwrap().remove(&to)
    }

    pub fn shown(&self, name: &str, at: &str) -> u64 {
        let document = self.status(name);
        let value = document.as_ref().and_then(|d| d.pointer(at));
        value.and_then(Value::as_u64).unwrap_or_default()
    }

    pub fn epoch_after(&self, epoch: Epoch) -> Epoch {
        repeat(|| {
            let active = self.shown(CONTROLLER, "/groups/0/active") as Epoch;
            (active > epoch).then_some(active)
        })
    }

    pub fn order_an_epoch(&self, after: Epoch, accept_data_loss: bool) {
        let order = Message::Failover {
            group: 0,
            epoch: after,
            to: None,
            forced: true,
            accept_data_loss,
        };
        let mut client = ControlClient::new(&self.file).unwrap();
        client.send(self.control(CONTROLLER), &order);
        // The order may be answered late or never, but it is challenged first. [E-CHALLENGE]
        client.receive(Duration::from_millis(300));
    }

    /// Returns whether all replicas are at one instance, with one digest.
    pub fn replicas_are_equal(&self) -> bool {
        let mut client = ControlClient::new(&self.file).unwrap();
        let replicas = self.file.replicas(0);
        let mut digests = Vec::new();
        for replica in &replicas {
            let question = Message::DigestRequest { group: 0 };
            let digest = client.ask(
                &[replica.control],
                &question,
                LIMIT,
                |_, answer| match answer {
                    Message::Digest { partitions, .. } => Some(partitions),
                    _ => None,
                },
            );
            digests.push(digest.unwrap());
        }
        digests.iter().all(|digest| *digest == digests[0])
    }
}

pub fn repeat<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        assert!(begun.elapsed() < LIMIT, "it never came to that");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A client that counts acknowledged commands, each of which must get the next number.
pub struct Commands {
    client: Client,
    pub acknowledged: u64,
}

impl Commands {
    pub fn open(cluster: &Cluster) -> Commands {
        Commands::open_with(&cluster.file)
    }

    /// Opens the client with a cluster file, which may be another one than the nodes'.
    pub fn open_with(file: &ClusterFile) -> Commands {
        let options = ClientOptions {
            open_timeout: LIMIT,
            ..ClientOptions::default()
        };
        Commands {
            client: Client::open(file, options).unwrap(),
            acknowledged: 0,
        }
    }

    pub fn some(&mut self) {
        for _ in 0..10 {
            self.acknowledged += 1;
            let number = self.acknowledged.to_string().into_bytes();
            let outcome = self.client.call(0, b"next", LIMIT);
            assert_eq!(outcome, Outcome::Executed(Some(number)));
        }
    }
}
