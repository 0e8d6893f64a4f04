//! A cluster on this machine's loopback: its file, its ports and its directory, for the demo, the
//! benchmarks and the tests.

use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Slots of a ring by default.
pub const SLOTS: usize = 65_536;

/// What a local cluster is made of.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Leaders: the first one leads, the others are backups.
    pub leaders: usize,
    /// Acceptors, odd.
    pub acceptors: usize,
    /// Replicas, odd.
    pub replicas: usize,
    /// Partitions of the one group.
    pub partitions: u16,
    /// Slots of an acceptor's ring.
    pub slots: usize,
    /// `echo`, `rocksdb` or `leveldb`.
    pub application: String,
    /// Whether replicas run a Redis front end.
    pub redis: bool,
    /// Whether acceptors store their votes on disk.
    pub durable: bool,
    /// CPU that each node is pinned to, by name; `None` leaves it to the scheduler.
    pub cpu_of: fn(&str) -> Option<usize>,
}

/// A cluster's directory and addresses.
pub struct LocalCluster {
    /// Removed when dropped, unless kept.
    directory: PathBuf,
    keep: bool,
    /// The cluster file.
    pub file: PathBuf,
    /// Names of all nodes, controller first.
    pub nodes: Vec<String>,
    /// The replicas' front ends.
    pub redis: Vec<SocketAddr>,
}

impl LocalCluster {
    /// Draws a loopback address, makes a directory under `parent` and writes the cluster file.
    pub fn create(parent: &Path, shape: &Shape) -> io::Result<LocalCluster> {
        let mut random = [0; 4];
        getrandom::fill(&mut random).map_err(|e| io::Error::other(e.to_string()))?;
        let cluster = u32::from_be_bytes(random);
        let host = node::loopback::draw().map_err(|e| io::Error::other(e.to_string()))?;
        let directory = parent.join(format!("wirepaxos-{cluster:08x}"));
        std::fs::create_dir_all(&directory)?;
        let mut writer = FileWriter::new(host);
        writer.head(cluster, shape);
        writer.nodes(shape);
        let file = directory.join("cluster.toml");
        std::fs::write(&file, &writer.text)?;
        Ok(LocalCluster {
            directory,
            keep: false,
            file,
            nodes: writer.names,
            redis: writer.redis,
        })
    }

    /// Where the nodes keep their data and logs.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Leaves the directory in place, for a look at the logs.
    pub fn keep(&mut self) {
        self.keep = true;
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        if !self.keep {
            let _ = std::fs::remove_dir_all(&self.directory);
        }
    }
}

struct FileWriter {
    text: String,
    names: Vec<String>,
    redis: Vec<SocketAddr>,
    host: Ipv4Addr,
    next_port: u16,
    next_id: u16,
}

impl FileWriter {
    fn new(host: Ipv4Addr) -> FileWriter {
        FileWriter {
            text: String::new(),
            names: Vec::new(),
            redis: Vec::new(),
            host,
            next_port: 7000,
            next_id: 1,
        }
    }

    fn head(&mut self, cluster: u32, shape: &Shape) {
        let _ = write!(
            self.text,
            "cluster = \"{cluster:08x}\"\ndata = \"data\"\n\n\
             [[group]]\nid = 1\npartitions = {}\nslots = {}\napplication = \"{}\"\n",
            shape.partitions, shape.slots, shape.application
        );
    }

    fn nodes(&mut self, shape: &Shape) {
        self.node("controller", "controller", shape);
        for (role, count) in [
            ("leader", shape.leaders),
            ("acceptor", shape.acceptors),
            ("replica", shape.replicas),
        ] {
            for n in 1..=count {
                self.node(&format!("{role}-{n}"), role, shape);
            }
        }
    }

    fn node(&mut self, name: &str, role: &str, shape: &Shape) {
        let ports = if role == "replica" {
            shape.partitions
        } else {
            1
        };
        let address = self.ports(ports);
        let control = self.ports(1);
        let _ = write!(
            self.text,
            "\n[[node]]\nname = \"{name}\"\nid = {}\nrole = \"{role}\"\n\
             address = \"{address}\"\ncontrol = \"{control}\"\n",
            self.next_id
        );
        if role == "acceptor" && shape.durable {
            self.text.push_str("storage = \"durable\"\n");
        }
        if role == "replica" && shape.redis {
            let redis = self.ports(1);
            let _ = writeln!(self.text, "redis = \"{redis}\"");
            self.redis.push(redis);
        }
        if let Some(cpu) = (shape.cpu_of)(name) {
            let _ = writeln!(self.text, "cpu = {cpu}");
        }
        self.next_id += 1;
        self.names.push(name.to_string());
    }

    /// The first of `count` ports in a row.
    fn ports(&mut self, count: u16) -> SocketAddr {
        let first = self.next_port;
        self.next_port += count;
        (self.host, first).into()
    }
}
