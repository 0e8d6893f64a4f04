// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos up`: runs a whole cluster on this machine, durable in a directory, until it is told
//! to end.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use local_cluster::resp::{Connection, Reply, Server};
use local_cluster::{Error, Processes};
use node::cluster_file::{ApplicationKind, Passwords, Role};
use node::{ClusterFile, Stop};
use serde_json::json;

use crate::new_cluster::{self, CLUSTER_FILE, PASSWORD_FILE};
use crate::stop::stop_nodes;

const DEFAULT_PORT: u16 = 6379;
const DEFAULT_REPLICAS: usize = 3;
/// The controller's port for browsers. It is free, since the nodes' address is drawn.
const PAGE_PORT: u16 = 8080;
/// How often nodes are checked.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The time after which a node that has ended is started again, so that one that always ends at
/// once doesn't keep a CPU busy.
const RESTART_AFTER: Duration = Duration::from_secs(1);
/// The time that nodes have to end, since some store much when they do.
const END_WITHIN: Duration = Duration::from_secs(60);
/// How many bytes of a node's log are shown if the node can't start.
const LOG_SHOWN: usize = 500;

/// Options of `wirepaxos up`.
#[derive(Args)]
#[command(after_help = "Example: wirepaxos up &  redis-cli SET fruit apple\n\
    Started again with the same --data it goes on with what it has; its number of replicas and its \
                        addresses stay.")]
pub struct Options {
    /// Replicate this application: redis, rocksdb or leveldb [default: redis]
    #[arg(long, value_parser = new_cluster::application)]
    app: Option<ApplicationKind>,
    /// Run this many replicas, each with its own port: 1, 2, 3, 5 or 7 [default: 3]
    #[arg(long, value_parser = new_cluster::replicas)]
    replicas: Option<usize>,
    /// Serve Redis clients of the first replica at this port, and those of the others at the next
    /// ones [default: 6379]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=65528))]
    port: Option<u16>,
    /// Serve Redis clients at this address; where other machines reach it, as with 0.0.0.0, they
    /// need the password that is drawn [default: 127.0.0.1]
    #[arg(long)]
    listen: Option<IpAddr>,
    /// Keep everything in this directory: cluster file, key, data and logs
    #[arg(long, default_value = "wirepaxos.data")]
    data: PathBuf,
    /// Print a JSON object once it serves, and another one at its end
    #[arg(long)]
    json: bool,
}

/// Runs the cluster until SIGINT or SIGTERM.
pub fn run(options: &Options) -> Result<(), Error> {
    let start = Instant::now();
    let stop = Stop::new()?;
    stop.on_signals()?;
    let (cluster, is_new) = open(options)?;
    refuse_what_cannot_run(&cluster)?;
    let mut nodes = Nodes::start(options, cluster, is_new, stop)?;
    if nodes.await_service()? {
        nodes.say_it_serves(start.elapsed());
        nodes.look_after()?;
    }
    nodes.end()
}

/// Opens the cluster of an earlier start, or creates a new one. Returns whether no node ever ran.
fn open(options: &Options) -> Result<(ClusterFile, bool), Error> {
    let file = options.data.join(CLUSTER_FILE);
    if !file.try_exists()? {
        return Ok((create(options)?, true));
    }
    let cluster = ClusterFile::load(&file)?;
    refuse_another_shape(options, &cluster)?;
    let is_new = !cluster.data.try_exists()?;
    Ok((cluster, is_new))
}

fn create(options: &Options) -> Result<ClusterFile, Error> {
    let host = IpAddr::V4(node::loopback::draw()?);
    let app = options.app.unwrap_or(ApplicationKind::Redis);
    let mut draft = new_cluster::draft("nodes", app)?;
    draft.add_node(Role::Controller, host).metrics = Some(SocketAddr::new(host, PAGE_PORT));
    draft.add_nodes(&[(Role::Leader, 2)], host);
    for _ in 0..3 {
        new_cluster::add_acceptor(&mut draft, host);
    }
    let port = options.port.unwrap_or(DEFAULT_PORT);
    let listen = options.listen.unwrap_or(Ipv4Addr::LOCALHOST.into());
    for at in 0..options.replicas.unwrap_or(DEFAULT_REPLICAS) {
        new_cluster::add_replica(
            &mut draft,
            host,
            SocketAddr::from((listen, port + at as u16)),
        );
    }
    if !listen.is_loopback() {
        new_cluster::demand_password(&mut draft);
    }
    refuse_what_cannot_run(&draft.check()?)?;
    new_cluster::write(&options.data, &draft)
}

/// Returns an error if the options ask for something other than the choices of the first start,
/// which stay.
fn refuse_another_shape(options: &Options, cluster: &ClusterFile) -> Result<(), Error> {
    let [first, ..] = front_ends(cluster)[..] else {
        return Err(Error::new(format!(
            "{} describes no cluster of `wirepaxos up`: it has no replica with a `redis` address; \
             name another directory by --data",
            options.data.display()
        )));
    };
    let app = cluster.groups[0].application;
    let has = [
        (
            "--app",
            options.app.map(|app| app.name().to_string()),
            app.name().to_string(),
        ),
        (
            "--replicas",
            options.replicas.map(|n| n.to_string()),
            front_ends(cluster).len().to_string(),
        ),
        (
            "--port",
            options.port.map(|port| port.to_string()),
            first.port().to_string(),
        ),
        (
            "--listen",
            options.listen.map(|address| address.to_string()),
            first.ip().to_string(),
        ),
    ];
    for (option, asked, there) in has {
        if asked.as_ref().is_some_and(|asked| *asked != there) {
            return Err(Error::new(format!(
                "the cluster in {} was made with {option} {there}: leave {option} out to go on \
                 with it, or name another directory by --data",
                options.data.display()
            )));
        }
    }
    Ok(())
}

fn front_ends(cluster: &ClusterFile) -> Vec<SocketAddr> {
    cluster.nodes.iter().filter_map(|node| node.redis).collect()
}

/// Returns an error if a server is missing or a port is taken, before any node is started.
fn refuse_what_cannot_run(cluster: &ClusterFile) -> Result<(), Error> {
    let wants_redis = cluster.groups[0].application == ApplicationKind::Redis;
    if wants_redis && !apps::redis::is_installed() {
        return Err(Error::new(
            "there is no redis-server in the search path: install the package redis-server, or \
             take --app rocksdb",
        ));
    }
    for address in front_ends(cluster) {
        if let Err(e) = TcpListener::bind(address) {
            return Err(Error::new(format!(
                "{address} can't be had ({e}): stop what listens there (perhaps the service \
                 redis-server, or this cluster itself), or make a cluster with another --port in \
                 another --data"
            )));
        }
    }
    Ok(())
}

/// The nodes of the cluster as child processes.
struct Nodes<'a> {
    options: &'a Options,
    cluster: ClusterFile,
    processes: Processes,
    stop: Arc<Stop>,
    /// No node of this cluster ever ran.
    is_new: bool,
    /// Nodes that have ended, and when each is started again.
    down: BTreeMap<String, Instant>,
}

impl<'a> Nodes<'a> {
    fn start(
        options: &'a Options,
        cluster: ClusterFile,
        is_new: bool,
        stop: Arc<Stop>,
    ) -> Result<Nodes<'a>, Error> {
        let mut nodes = Nodes {
            options,
            is_new,
            processes: Processes::new(std::env::current_exe()?),
            stop,
            down: BTreeMap::new(),
            cluster,
        };
        let names: Vec<String> = nodes.cluster.nodes.iter().map(|n| n.name.clone()).collect();
        for name in names {
            nodes.start_node(&name)?;
        }
        Ok(nodes)
    }

    fn start_node(&mut self, name: &str) -> Result<(), Error> {
        let mut command = process::Command::new(std::env::current_exe()?);
        command
            .arg("node")
            .arg("-c")
            .arg(self.options.data.join(CLUSTER_FILE))
            .args(["--name", name]);
        // Ctrl-C is meant for this process alone, which stops the nodes in order.
        command.process_group(0);
        Ok(self.processes.start(command, &self.options.data, name)?)
    }

    /// Waits until each front end answers a command that went through the group, but for those
    /// whose nodes can't start. Returns false if this process was told to end meanwhile.
    ///
    /// # Errors
    /// If no replica can start, or if a node of a new cluster can't. In one that has data the
    /// others may go on without it, and it may need them to be mended.
    fn await_service(&mut self) -> Result<bool, Error> {
        let mut waiting = self.servers()?;
        let (mut is_served, mut failed) = (false, BTreeSet::new());
        while !waiting.is_empty() {
            if self.stop.is_requested() {
                return Ok(false);
            }
            for (name, status) in self.restart_what_ended()? {
                let said = last_words(&self.options.data, &name);
                let why = format!("{name} doesn't start ({status}): {said}");
                waiting.retain(|(node, _)| *node != name);
                if self.is_new || (waiting.is_empty() && !is_served) {
                    return Err(Error::new(why));
                }
                if failed.insert(name) {
                    eprintln!("{why}\nIt is tried again, and the others go on if they can.");
                }
            }
            waiting.retain(|(_, server)| {
                let serves = answers(*server);
                is_served |= serves;
                !serves
            });
            node::host::wait(&[self.stop.as_fd()], Some(Duration::from_millis(20)))?;
        }
        Ok(true)
    }

    /// Returns all front ends by their nodes' names, with the password that they want. Of users the
    /// operator alone has the passwords.
    fn servers(&self) -> Result<Vec<(String, Server)>, Error> {
        let replicas = self.cluster.nodes.iter();
        let replicas = replicas.filter_map(|node| Some((node, node.redis?)));
        let servers = replicas.map(|(node, address)| {
            // The password is wanted for as long as this process runs.
            let password = match node.passwords()? {
                Some(Passwords::One(word)) => Some(&*word.leak()),
                Some(Passwords::OfUsers(_)) | None => None,
            };
            Ok((node.name.clone(), Server { address, password }))
        });
        servers.collect()
    }

    /// Returns what a redis-cli of the operator's needs before its name, and as an option.
    fn credentials(&self, data: &str) -> (String, &'static str) {
        let mut passwords = self.cluster.nodes.iter().map(|node| node.passwords());
        match passwords.find_map(|of| of.ok().flatten()) {
            None => (String::new(), ""),
            Some(Passwords::One(_)) => {
                (format!("REDISCLI_AUTH=$(cat {data}/{PASSWORD_FILE}) "), "")
            }
            Some(Passwords::OfUsers(_)) => (String::new(), " --user NAME --askpass"),
        }
    }

    fn say_it_serves(&self, after: Duration) {
        let redis = front_ends(&self.cluster);
        if self.options.json {
            let data = &self.options.data;
            println!(
                "{}",
                json!({ "serves": true, "redis": redis, "data": data, "page": self.page(),
                    "ms": after.as_millis() as u64 })
            );
            return;
        }
        let app = self.cluster.groups[0].application.name();
        let list: Vec<_> = redis.iter().map(SocketAddr::to_string).collect();
        let data = self.options.data.display();
        println!(
            "{app}, {} replicas, serves after {:.1} s at {}",
            redis.len(),
            after.as_secs_f64(),
            list.join(", ")
        );
        let (password, user) = self.credentials(&data.to_string());
        println!(
            "  try      {password}redis-cli -p {}{user} SET fruit apple",
            redis[0].port()
        );
        println!("  look     wirepaxos status -c {data}/{CLUSTER_FILE}");
        if let Some(page) = self.page() {
            println!("           or in a browser: {page}");
        }
        println!("  data     {data}, also each node's log; started again, it goes on");
        println!("  Ctrl-C   stops it in good order");
    }

    /// Returns the address of the controller's page. A cluster of an older version may have none.
    fn page(&self) -> Option<String> {
        let metrics = self.cluster.controller_node().metrics;
        metrics.map(|address| format!("http://{address}/"))
    }

    /// Restarts nodes that end, until this process is told to end.
    fn look_after(&mut self) -> Result<(), Error> {
        while !self.stop.is_requested() {
            node::host::wait(&[self.stop.as_fd()], Some(LOOK_EVERY))?;
            for (name, status) in self.restart_what_ended()? {
                eprintln!(
                    "{name} has ended ({status}) and is started again: {}",
                    last_words(&self.options.data, &name)
                );
            }
        }
        Ok(())
    }

    /// Returns the nodes that have just ended, and starts again those that ended a while ago.
    fn restart_what_ended(&mut self) -> Result<Vec<(String, ExitStatus)>, Error> {
        let now = Instant::now();
        let ended = self.processes.reap();
        for (name, _) in &ended {
            self.down.insert(name.clone(), now + RESTART_AFTER);
        }
        let due = self.down.iter().filter(|(_, at)| **at <= now);
        let due: Vec<String> = due.map(|(name, _)| name.clone()).collect();
        for name in due {
            self.down.remove(&name);
            self.start_node(&name)?;
        }
        Ok(ended)
    }

    /// Ends all nodes, leaders first, so that nothing new is ordered while the others store their
    /// states.
    fn end(mut self) -> Result<(), Error> {
        if !self.options.json {
            println!("stopping");
        }
        stop_nodes(&self.cluster, None)?;
        let in_order = self.processes.wait_all(END_WITHIN);
        if self.options.json {
            println!("{}", json!({ "stopped": in_order }));
        }
        match in_order {
            true => Ok(()),
            false => Err(Error::new(format!(
                "some nodes didn't end within {} s and were killed; what was acknowledged is \
                 stored",
                END_WITHIN.as_secs()
            ))),
        }
    }
}

/// Returns whether a front end answers a read that goes through the group. A user's key may have
/// that name, and be of any type. Where there are users it asks for one of them instead.
fn answers(server: Server) -> bool {
    let ask = || -> std::io::Result<Reply> {
        let mut connection = Connection::open(server, Duration::from_secs(1))?;
        connection.call(&[b"GET", b"wirepaxos"])
    };
    match ask() {
        Ok(Reply::Error(text)) => text.starts_with("WRONGTYPE") || text.starts_with("NOAUTH"),
        answer => answer.is_ok(),
    }
}

/// Returns the end of a node's log.
fn last_words(data: &Path, name: &str) -> String {
    let log = data.join(format!("{name}.log"));
    let text = std::fs::read(&log).unwrap_or_default();
    let shown = String::from_utf8_lossy(&text[text.len().saturating_sub(LOG_SHOWN)..]).into_owned();
    let line = shown
        .trim()
        .lines()
        .last()
        .unwrap_or("it said nothing")
        .to_string();
    format!("{line} (more in {})", log.display())
}
