// SPDX-License-Identifier: Apache-2.0
//! A cluster on this machine, for the demo, the benchmarks and the tests: its file, its addresses
//! and its directory. It is on loopback, or in a lab of its own, where nodes can be in the kernel
//! and links can have faults.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use keys::KeyFile;
use lab::faults::Rates;
use lab::topology::{REDIS_PASSWORD, REDIS_PORT};
use lab::{Lab, Topology, UpOptions};
use loader::pins::Pins;
use node::cluster_file::{
    ApplicationKind, Auth, Draft, GroupDraft, Plane, Protocol, Role, Storage,
};
use node::{ClusterFile, Stop};

use crate::at_port;
use crate::error::Error;
use crate::processes::Processes;
use crate::programs;
use crate::resp::Server;

/// Slots of a ring by default.
pub const SLOTS: usize = 65_536;
/// Bytes of a value at most by default.
pub const MAX_VALUE: u16 = 1024;

/// The shape of a local cluster.
#[derive(Clone, Debug)]
pub struct Shape {
    /// How the one group agrees.
    pub protocol: Protocol,
    /// Leaders, or sequencers: the first one leads, the others are backups.
    pub leaders: usize,
    /// Acceptors, odd; with NOPaxos there are none.
    pub acceptors: usize,
    /// Learners between acceptors and replicas.
    pub learners: usize,
    /// The number of replicas, which is odd.
    pub replicas: usize,
    /// Partitions of the one group.
    pub partitions: u16,
    /// Threads of a replica that execute; none: the replicas share the machine's CPUs.
    pub workers: Option<u16>,
    /// Largest value in bytes.
    pub max_value: u16,
    /// Slots of an acceptor's ring.
    pub slots: usize,
    /// `echo`, `rocksdb` or `leveldb`.
    pub application: String,
    /// True if replicas run a Redis front end.
    pub redis: bool,
    /// True if acceptors store their votes on disk.
    pub durable: bool,
    /// True if, in a lab, leaders, acceptors and learners are in the switch.
    pub in_switch: bool,
    /// True if, in a lab, the switch forwards in the kernel, wherever the nodes are.
    pub forwards: bool,
    /// CPU that each node is pinned to, by name; `None` leaves it to the scheduler.
    pub cpu_of: fn(&str) -> Option<usize>,
    /// How many microseconds nodes look for packets before they sleep; on loopback.
    pub spin_us: u64,
    /// The packets that are signed; `None` signs as much as the nodes can.
    pub auth: Option<Auth>,
}

impl Shape {
    /// Returns a cluster of Paxos whose packets aren't signed: one leader, three volatile acceptors
    /// and three replicas, which have one partition and no front end.
    pub fn of(application: &str) -> Shape {
        Shape {
            protocol: Protocol::Paxos,
            leaders: 1,
            acceptors: 3,
            learners: 0,
            replicas: 3,
            partitions: 1,
            workers: None,
            max_value: MAX_VALUE,
            slots: SLOTS,
            application: application.to_owned(),
            redis: false,
            durable: false,
            in_switch: false,
            forwards: false,
            cpu_of: |_| None,
            spin_us: 0,
            auth: Some(Auth::Off),
        }
    }
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
    pub redis: Vec<Server>,
    /// The nodes that share one process, which only nodes on DPDK do.
    pub together: Vec<String>,
    /// None: on loopback.
    lab: Option<Lab>,
    plane: Plane,
}

/// The port of a server in a replica's place; the next one is for the control plane. No node has
/// these ports.
const SERVER_PORT: u16 = 9700;
/// The same port in a lab, among those to which the lab's faults apply.
const SERVER_PORT_IN_LAB: u16 = 7090;

/// The host that this process moves to when the cluster is in a lab.
const CLIENT: &str = "client-1";

impl LocalCluster {
    /// Draws a loopback address, makes a directory under `parent` and writes the cluster file.
    pub fn create(parent: &Path, shape: &Shape) -> Result<LocalCluster, Error> {
        let mut random = [0; 4];
        getrandom::fill(&mut random).map_err(|e| Error::new(e.to_string()))?;
        let cluster = u32::from_be_bytes(random);
        let mut draft = draft(cluster, node::loopback::draw()?, shape)?;
        let auth = shape.auth.unwrap_or(Auth::SipHash);
        draft.auth = Some(auth);
        let directory = parent.join(format!("wirepaxos-{cluster:08x}"));
        std::fs::create_dir_all(&directory)?;
        let file = directory.join("cluster.toml");
        let written = draft.write(&file)?;
        if auth != Auth::Off {
            KeyFile::new(cluster)?.create(&written.keys)?;
        }
        let redis = draft.nodes.iter().filter_map(|node| node.redis);
        Ok(LocalCluster {
            directory,
            keep: false,
            file,
            redis: redis.map(Server::from).collect(),
            nodes: draft.nodes.into_iter().map(|node| node.name).collect(),
            together: Vec::new(),
            lab: None,
            plane: Plane::Udp,
        })
    }

    /// Makes a lab of one switch whose nodes are on `plane`, with `faults` on every link, and moves
    /// this thread, and those that it starts, to a client's host. The lab goes when this is dropped
    /// or the process is told to end.
    pub fn in_lab(
        shape: &Shape,
        plane: Plane,
        faults: Option<&Rates>,
    ) -> Result<LocalCluster, Error> {
        let mut random = [0; 4];
        getrandom::fill(&mut random).map_err(|e| Error::new(e.to_string()))?;
        let lab = Lab::named(&format!("own{:08x}", u32::from_be_bytes(random)))?;
        clean_up_on_signals(&lab)?;
        let of_lab = lab_shape(shape, plane);
        let wires = faults.is_some();
        lab.up(
            &of_lab,
            &UpOptions {
                wires,
                ..UpOptions::default()
            },
        )?;
        let together = match plane {
            Plane::Dpdk => put_at_port(&lab)?,
            _ => Vec::new(),
        };
        let cluster = LocalCluster {
            directory: lab.directory(),
            keep: false,
            file: lab.cluster_file(),
            nodes: node_names(&of_lab),
            redis: Vec::new(),
            together,
            lab: Some(lab),
            plane,
        };
        cluster.furnish(shape, &of_lab, faults)
    }

    fn furnish(
        mut self,
        shape: &Shape,
        of_lab: &lab::Shape,
        faults: Option<&Rates>,
    ) -> Result<LocalCluster, Error> {
        let lab = self.lab.as_ref().expect("it is in one");
        if let Some(rates) = faults {
            self.set_faults(rates)?;
        }
        if shape.redis {
            let hosts = of_lab.hosts().into_iter();
            let replicas = hosts.filter(|h| h.name.starts_with("replica-"));
            let server = |host: lab::Host| {
                Ok(Server {
                    address: SocketAddr::new(host.ipv4().parse()?, REDIS_PORT),
                    password: Some(REDIS_PASSWORD),
                })
            };
            self.redis = replicas.map(server).collect::<Result<_, Error>>()?;
        }
        lab.start_switches(&[])?;
        lab.enter(CLIENT)?;
        Ok(self)
    }

    /// Makes a command run at the host of a node.
    pub fn place(&self, command: &mut Command, host: &str) -> Result<(), Error> {
        match &self.lab {
            None => Ok(()),
            Some(lab) => Ok(lab.place(command, host)?),
        }
    }

    /// Lets a node's machine die: its process ends, and its part in the kernel or switch is removed
    /// with all that it remembers.
    pub fn crash(&self, processes: &mut Processes, name: &str) -> Result<(), Error> {
        processes.kill(name);
        if let Some(lab) = &self.lab {
            lab.reboot_switch(name)?;
        }
        let cluster = ClusterFile::load(&self.file)?;
        if Pins::are_left(&cluster.bpffs, cluster.cluster, name) {
            let pins = Pins::of_node(&cluster.bpffs, cluster.cluster, name);
            pins.and_then(|pins| pins.remove()).map_err(Error::new)?;
        }
        Ok(())
    }

    /// Sets other faults on all links of its lab, which was made with some.
    pub fn set_faults(&self, rates: &Rates) -> Result<(), Error> {
        let lab = self.lab.as_ref();
        let lab = lab.ok_or_else(|| Error::new("faults are for clusters in a lab"))?;
        let program = programs::wirepaxos_lab()?;
        Ok(lab.set_faults(&program, &["all".to_string()], rates)?)
    }

    /// Writes a cluster file in which the first replica's host serves as leader, or sequencer, and
    /// controller, on ports of their own, and returns its path and that host: for a server in the
    /// replica's place.
    pub fn file_for_server(&self) -> Result<(PathBuf, String), Error> {
        let host = "replica-1".to_string();
        let [data, control] = self.ports_of_server();
        let file = self.file_where("server.toml", |draft| {
            let ip = ip_of(draft, &host)?;
            for node in &mut draft.nodes {
                match node.role {
                    Role::Leader | Role::Sequencer if node.name.ends_with("-1") => {
                        node.address = SocketAddr::new(ip, data);
                    }
                    Role::Controller => node.control = SocketAddr::new(ip, control),
                    _ => {}
                }
            }
            Ok(())
        })?;
        Ok((file, host))
    }

    /// Returns the cluster file in which the first leader's host is also the controller's, for a
    /// process that takes the place of both.
    pub fn file_for_switch(&self) -> Result<PathBuf, Error> {
        let [_, control] = self.ports_of_server();
        self.file_where("switch.toml", |draft| {
            let ip = ip_of(draft, "leader-1")?;
            let mut nodes = draft.nodes.iter_mut();
            let controller = nodes.find(|node| node.role == Role::Controller);
            let controller = controller.ok_or_else(|| Error::new("there is no controller"))?;
            controller.control = SocketAddr::new(ip, control);
            Ok(())
        })
    }

    fn ports_of_server(&self) -> [u16; 2] {
        let first = match &self.lab {
            None => SERVER_PORT,
            Some(_) => SERVER_PORT_IN_LAB,
        };
        [first, first + 1]
    }

    fn file_where(
        &self,
        name: &str,
        change: impl FnOnce(&mut Draft) -> Result<(), Error>,
    ) -> Result<PathBuf, Error> {
        let mut draft = Draft::from(&ClusterFile::load(&self.file)?);
        // A server in a node's place accepts unsigned packets.
        draft.auth = None;
        change(&mut draft)?;
        let file = self.directory.join(name);
        draft.write(&file)?;
        Ok(file)
    }

    /// Sets how often the controller probes, and after how many unanswered PROBEs it suspects a
    /// node. Call it before nodes are started.
    pub fn set_probing(&self, probe_ms: u64, suspect_after: u32) -> Result<(), Error> {
        let mut draft = Draft::from(&ClusterFile::load(&self.file)?);
        let controller = draft.controller.get_or_insert_default();
        controller.probe_ms = Some(probe_ms);
        controller.suspect_after = Some(suspect_after);
        draft.write(&self.file)?;
        Ok(())
    }

    /// Returns the plane of its nodes, for people.
    pub fn plane(&self) -> &'static str {
        self.plane.name()
    }

    /// Returns the name of its lab, if it is in one.
    pub fn lab(&self) -> Option<&str> {
        self.lab.as_ref().map(Lab::name)
    }

    /// Returns where the nodes keep their data and logs.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Adds a line to what the cluster file says of the group, before nodes are started.
    pub fn set_in_group(&self, line: &str) -> std::io::Result<()> {
        let text = std::fs::read_to_string(&self.file)?;
        let with_line = format!("[[group]]\n{line}\n");
        std::fs::write(&self.file, text.replace("[[group]]\n", &with_line))
    }

    /// Leaves the directory in place, for a look at the logs.
    pub fn keep(&mut self) {
        self.keep = true;
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        if let Some(lab) = &self.lab {
            let _ = lab.down();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn ip_of(draft: &Draft, name: &str) -> Result<IpAddr, Error> {
    let found = draft.nodes.iter().find(|node| node.name == name);
    let found = found.ok_or_else(|| Error::new(format!("the cluster has no {name}")))?;
    Ok(found.address.ip())
}

fn lab_shape(shape: &Shape, plane: Plane) -> lab::Shape {
    lab::Shape {
        protocol: shape.protocol.name().to_string(),
        leaders: shape.leaders as u8,
        acceptors: shape.acceptors as u8,
        learners: shape.learners as u8,
        replicas: shape.replicas as u8,
        application: shape.application.clone(),
        partitions: shape.partitions,
        max_value: shape.max_value,
        plane: kernel_plane(plane).name().to_string(),
        in_switch: shape.in_switch,
        forwards: shape.forwards,
        cpu: (shape.cpu_of)("replica-1"),
        auth: shape.auth.map(|auth| auth.name().to_string()),
        ..lab::Shape::new(Topology::OneSwitch)
    }
}

/// Returns how a lab is made for it: one of DPDK is one of sockets first.
fn kernel_plane(plane: Plane) -> Plane {
    match plane {
        Plane::Dpdk => Plane::Udp,
        plane => plane,
    }
}

/// Moves all nodes of a lab but the controller, and returns their names.
fn put_at_port(lab: &Lab) -> Result<Vec<String>, Error> {
    let file = lab.cluster_file();
    let mut draft = Draft::from(&ClusterFile::load(&file)?);
    let nodes = draft.nodes.iter();
    let names: Vec<_> = nodes
        .filter(|node| node.role != Role::Controller)
        .map(|node| node.name.clone())
        .collect();
    let all: Vec<_> = names.iter().map(String::as_str).collect();
    at_port::put_together(&mut draft, &all)?;
    draft.write(&file)?;
    Ok(names)
}

fn node_names(shape: &lab::Shape) -> Vec<String> {
    let hosts = shape.hosts().into_iter();
    hosts.filter(|h| h.role.is_node()).map(|h| h.name).collect()
}

/// Takes the lab down when this process is told to end, which would leave it behind otherwise: in
/// this process's place, for whatever its threads are about to make would come too late to be
/// removed.
pub fn clean_up_on_signals(lab: &Lab) -> Result<(), Error> {
    let stop = Stop::new()?;
    stop.on_signals()?;
    let lab = lab.name().to_string();
    let program = programs::wirepaxos_lab()?;
    std::thread::Builder::new()
        .name("clean-up".to_string())
        .spawn(move || {
            while !stop.is_requested() {
                let _ = node::host::wait(&[stop.as_fd()], None);
            }
            let error = Command::new("sh")
                .args(["-c", "\"$0\" lab down --name \"$1\" >&2; exit 130"])
                .arg(program)
                .arg(lab)
                .exec();
            eprintln!("wirepaxos: can't clean up: {error}");
            std::process::exit(130);
        })?;
    Ok(())
}

fn cpus() -> u16 {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get().min(64) as u16)
}

/// Returns the draft of a cluster with all nodes on one host, each with its own ports.
fn draft(cluster: u32, host: Ipv4Addr, shape: &Shape) -> Result<Draft, Error> {
    let application = ApplicationKind::named(&shape.application).ok_or_else(|| {
        let name = &shape.application;
        Error::new(format!("no application is called {name:?}"))
    })?;
    let group = GroupDraft {
        protocol: Some(shape.protocol),
        partitions: Some(shape.partitions),
        slots: Some(shape.slots),
        max_value: Some(shape.max_value),
        ..GroupDraft::new(1, application)
    };
    let host = host.into();
    let mut draft = Draft::new(cluster, "data", group);
    let (stamper, keeper, acceptors) = match shape.protocol {
        Protocol::Paxos => (Role::Leader, Role::Acceptor, shape.acceptors),
        Protocol::NoPaxos => (Role::Sequencer, Role::Replica, 0),
    };
    for (role, count) in [
        (Role::Controller, 1),
        (stamper, shape.leaders),
        (Role::Acceptor, acceptors),
        (Role::Learner, shape.learners),
        (Role::Replica, shape.replicas),
    ] {
        for _ in 0..count {
            let node = draft.add_node(role, host);
            node.cpu = (shape.cpu_of)(&node.name);
            let spins = shape.spin_us > 0 && role != Role::Controller;
            node.spin_us = spins.then_some(shape.spin_us);
            if role == keeper && shape.durable {
                node.storage = Some(Storage::Durable);
            }
            if role == Role::Replica && shape.partitions > 1 {
                let share = || (cpus() / shape.replicas as u16).max(1);
                node.workers = Some(shape.workers.unwrap_or_else(share).min(shape.partitions));
            }
            if role == Role::Replica && shape.redis {
                node.redis = Some(SocketAddr::new(host, node.control.port() + 1));
            }
        }
    }
    Ok(draft)
}
