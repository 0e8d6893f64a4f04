// SPDX-License-Identifier: Apache-2.0
//! The cluster that is tortured: a lab, its nodes as processes, and their disks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lab::faults::Rates;
use lab::process::keep_descriptors_back;
use lab::topology::{REDIS_PASSWORD, REDIS_PORT, Role};
use lab::{Lab, Shape, UpOptions};
use loader::pins::Pins;
use node::ClusterFile;
use node::cluster_file::{Auth, Draft, Protocol};

use super::tamper;
use super::wholeness::Documents;
use local_cluster::Error;
use local_cluster::clean_up_on_signals;
use local_cluster::processes::Processes;
use local_cluster::programs;
use local_cluster::resp::{Connection, Reply, Server};
use wirepaxos::admin;

/// Room on a node's disk for each partition: a durable replica of NOPaxos has a log for each,
/// beside what it has executed.
const DISK: u64 = 512 << 20;
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
const FOREIGN_TIMEOUT: Duration = Duration::from_secs(60);
const FOREIGN_WRITES: usize = 200;

/// A cluster in a lab of its own.
pub struct Testbed {
    lab: Lab,
    /// The parts of the cluster.
    pub shape: Shape,
    /// The cluster file, read.
    pub cluster: ClusterFile,
    /// What nodes run.
    program: PathBuf,
    processes: Processes,
    /// Nodes that ended by themselves, and that nobody has asked for yet.
    ended: Vec<Ended>,
    /// Links that nothing passes, and those that take longer, in milliseconds. All have `weather`
    /// otherwise.
    cut_off: BTreeSet<String>,
    slow: BTreeMap<String, u64>,
    weather: Rates,
}

/// How a process ended by itself.
pub struct Ended {
    /// The node.
    pub node: String,
    /// True if in good order.
    pub well: bool,
    /// The status and its last words.
    pub why: String,
}

impl Testbed {
    /// Makes the lab and moves this thread, and those that it starts, to a client's host.
    pub fn new(shape: &Shape, program: PathBuf, trace: Option<PathBuf>) -> Result<Testbed, Error> {
        let lab = Lab::named(&format!("tort{}", std::process::id()))?;
        clean_up_on_signals(&lab)?;
        let options = UpOptions {
            data: None,
            wires: true,
            trace,
        };
        lab.up(shape, &options)?;
        let testbed = Testbed {
            cluster: ClusterFile::load(&lab.cluster_file())?,
            lab,
            shape: shape.clone(),
            program,
            processes: Processes::new(""),
            ended: Vec::new(),
            cut_off: BTreeSet::new(),
            slow: BTreeMap::new(),
            weather: Rates::default(),
        };
        for node in testbed.nodes() {
            testbed.lab.add_disk(&node, testbed.disk_size())?;
        }
        testbed.lab.enter("client-1")?;
        Ok(testbed)
    }

    /// Returns the lab's name.
    pub fn name(&self) -> &str {
        self.lab.name()
    }

    /// Returns the names of all nodes.
    pub fn nodes(&self) -> Vec<String> {
        let hosts = self.shape.hosts().into_iter();
        let nodes = hosts.filter(|host| host.role.is_node());
        nodes.map(|host| host.name).collect()
    }

    /// Nodes of a role.
    pub fn of_role(&self, role: Role) -> Vec<String> {
        let hosts = self.shape.hosts().into_iter();
        let nodes = hosts.filter(|host| host.role == role);
        nodes.map(|host| host.name).collect()
    }

    /// Returns the front ends.
    pub fn servers(&self) -> Result<Vec<Server>, Error> {
        let hosts = self.shape.hosts().into_iter();
        hosts
            .filter(|host| host.role == Role::Replica)
            .map(|host| {
                Ok(Server {
                    address: SocketAddr::new(host.ipv4().parse()?, REDIS_PORT),
                    password: Some(REDIS_PASSWORD),
                })
            })
            .collect()
    }

    // ---- Processes

    /// Starts a node, unless it runs.
    pub fn start(&mut self, node: &str) -> Result<(), Error> {
        if self.processes.pid(node).is_some() {
            return Ok(());
        }
        let file = self.lab.cluster_file();
        self.start_with(node, &file)
    }

    fn start_with(&mut self, node: &str, file: &Path) -> Result<(), Error> {
        let mut command = Command::new(&self.program);
        command.arg("node").arg("-c").arg(file);
        command.args(["--name", node]);
        keep_descriptors_back(&mut command);
        self.lab.place(&mut command, node)?;
        let logs = self.lab.directory();
        Ok(self.processes.start(command, &logs, node)?)
    }

    /// Returns whether it runs, perhaps paused.
    pub fn runs(&self, node: &str) -> bool {
        self.processes.pid(node).is_some()
    }

    /// Kills a node by SIGKILL. If `machine`, its part in the kernel is removed as well.
    pub fn kill(&mut self, node: &str, machine: bool) -> Result<(), Error> {
        self.processes.kill(node);
        let (bpffs, cluster) = (&self.cluster.bpffs, self.cluster.cluster);
        if machine && Pins::are_left(bpffs, cluster, node) {
            let pins = Pins::of_node(bpffs, cluster, node);
            pins.and_then(|pins| pins.remove()).map_err(Error::new)?;
        }
        Ok(())
    }

    /// Stops all these nodes by SIGTERM or SIGHUP, and by SIGKILL if that takes too long. Returns
    /// those that didn't end in good order. A node that has only just started gets its signal once
    /// it can handle it.
    pub fn stop(&mut self, nodes: &[String], hang_up: bool) -> Vec<Ended> {
        let signal = if hang_up { libc::SIGHUP } else { libc::SIGTERM };
        let deadline = Instant::now() + STOP_TIMEOUT;
        for node in nodes {
            while self.processes.is_at_mercy_of(node, signal) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.reap();
        for node in nodes {
            self.processes.signal(node, signal);
        }
        let deadline = Instant::now() + STOP_TIMEOUT;
        while nodes.iter().any(|node| self.runs(node)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
            self.reap();
        }
        let told = |ended: &Ended| nodes.contains(&ended.node);
        let (ended, others) = std::mem::take(&mut self.ended)
            .into_iter()
            .partition::<Vec<_>, _>(told);
        self.ended = others;
        let mut badly: Vec<Ended> = ended.into_iter().filter(|e| !e.well).collect();
        for node in nodes.iter().filter(|node| self.runs(node)) {
            badly.push(Ended {
                node: node.clone(),
                well: false,
                why: format!("it doesn't in {STOP_TIMEOUT:?}"),
            });
        }
        nodes.iter().for_each(|node| self.processes.kill(node));
        badly
    }

    /// Sends SIGSTOP or SIGCONT to a node.
    pub fn pause(&self, node: &str, pause: bool) {
        let signal = if pause { libc::SIGSTOP } else { libc::SIGCONT };
        self.processes.signal(node, signal);
    }

    /// Nodes that ended by themselves since the last call.
    pub fn ended(&mut self) -> Vec<Ended> {
        self.reap();
        std::mem::take(&mut self.ended)
    }

    fn reap(&mut self) {
        let ended = self.processes.reap();
        let in_words = |(node, status): (String, std::process::ExitStatus)| {
            let how = match (status.code(), status.signal()) {
                (Some(code), _) => format!("status {code}"),
                (_, Some(signal)) => format!("signal {signal}"),
                _ => "somehow".to_string(),
            };
            let last = self.last_words(&node);
            Ended {
                why: format!("{how}: {last}"),
                well: status.success(),
                node,
            }
        };
        let ended: Vec<Ended> = ended.into_iter().map(in_words).collect();
        self.ended.extend(ended);
    }

    fn last_words(&self, node: &str) -> String {
        let log = self.lab.directory().join(format!("{node}.log"));
        let log = std::fs::read_to_string(log).unwrap_or_default();
        let last = log.lines().rev().find(|line| !line.trim().is_empty());
        last.unwrap_or("it said nothing").to_string()
    }

    // ---- Memory and disks

    /// Returns whether a node's memory of votes is only in memory, and where: `None` for nodes that
    /// have none, or have it on disk.
    pub fn is_volatile_acceptor(&self, node: &str) -> bool {
        node.starts_with("acceptor") && !self.shape.durable
    }

    /// Returns whether the group agrees by NOPaxos.
    pub fn is_ordered(&self) -> bool {
        self.cluster.groups[0].protocol == Protocol::NoPaxos
    }

    /// Returns whether a node is a replica whose log goes with its process.
    pub fn has_volatile_log(&self, node: &str) -> bool {
        self.is_ordered() && node.starts_with("replica") && !self.shape.durable
    }

    /// Returns where it stores things.
    pub fn disk(&self, node: &str) -> Result<PathBuf, Error> {
        Ok(self.lab.data_of(node)?)
    }

    /// Returns where copies of directories are kept, away from all nodes.
    pub fn aside(&self, name: &str) -> PathBuf {
        self.lab.directory().join("aside").join(name)
    }

    fn disk_size(&self) -> u64 {
        DISK * u64::from(self.shape.partitions)
    }

    /// Returns whether a node's disk has no more room.
    pub fn set_full(&self, node: &str, full: bool) -> Result<(), Error> {
        if !full {
            return Ok(self.lab.resize_disk(node, self.disk_size())?);
        }
        // If somebody writes meanwhile, the size is too small, and is refused.
        let mut last = Ok(());
        for _ in 0..20 {
            let used = used(&self.disk(node)?)?;
            last = self.lab.resize_disk(node, used.max(4096));
            if last.is_ok() {
                break;
            }
        }
        Ok(last?)
    }

    // ---- Links

    /// Returns whether nothing of the cluster passes these links.
    pub fn set_cut_off(&mut self, links: &[String], cut_off: bool) -> Result<(), Error> {
        for link in links {
            match cut_off {
                true => self.cut_off.insert(link.clone()),
                false => self.cut_off.remove(link),
            };
        }
        self.apply_faults(links)
    }

    /// Delays all packets on a link by this time, in milliseconds.
    pub fn set_slow(&mut self, link: &str, delay_ms: u64) -> Result<(), Error> {
        match delay_ms {
            0 => self.slow.remove(link),
            _ => self.slow.insert(link.to_string(), delay_ms),
        };
        self.apply_faults(&[link.to_string()])
    }

    /// Faults on all links that aren't cut off.
    pub fn set_weather(&mut self, rates: Rates) -> Result<(), Error> {
        self.weather = rates;
        let links = self.shape.links().into_iter().map(|link| link.name);
        let open = |name: &String| !self.cut_off.contains(name) && !name.starts_with("client");
        let links: Vec<String> = links.filter(open).collect();
        self.apply_faults(&links)
    }

    /// Makes these links what they are to be.
    fn apply_faults(&self, links: &[String]) -> Result<(), Error> {
        let program = programs::own()?;
        let set = |links: &[String], rates: &Rates| match links.is_empty() {
            true => Ok(()),
            false => self.lab.set_faults(&program, links, rates),
        };
        let (cut_off, open): (Vec<_>, Vec<_>) = links
            .iter()
            .cloned()
            .partition(|link| self.cut_off.contains(link));
        let (slow, open): (Vec<_>, Vec<_>) = open
            .into_iter()
            .partition(|link| self.slow.contains_key(link));
        let nothing_passes = Rates {
            loss: 1.0,
            ..Rates::default()
        };
        set(&cut_off, &nothing_passes)?;
        for link in slow {
            let delay_us = self.slow[&link] as u32 * 1000;
            let rates = Rates {
                delay_us,
                ..self.weather
            };
            set(&[link], &rates)?;
        }
        Ok(set(&open, &self.weather)?)
    }

    /// Takes a link down, or up.
    pub fn set_link(&self, link: &str, up: bool) -> Result<(), Error> {
        Ok(self.lab.set_link(link, up)?)
    }

    /// Returns whether what these send to those arrives.
    pub fn set_reachable(&self, from: &[String], to: &[String], yes: bool) -> Result<(), Error> {
        Ok(self.lab.set_reachable(from, to, yes)?)
    }

    // ---- Looking

    /// Returns the documents of all nodes that answer.
    pub fn documents(&self) -> Documents {
        admin::ask_all(&self.cluster).unwrap_or_default()
    }

    /// Returns where each replica stands, and its digest.
    pub fn digests(&self) -> Result<Vec<(String, u64, String)>, Error> {
        Ok(admin::digests(&self.cluster)?.found)
    }

    /// Copies cluster file and logs to a directory.
    pub fn save_logs(&self, to: &Path) -> Result<(), Error> {
        for entry in std::fs::read_dir(self.lab.directory())? {
            let path = entry?.path();
            let wanted = path.extension().is_some_and(|e| e == "log" || e == "toml");
            if let (true, Some(name)) = (wanted, path.file_name()) {
                std::fs::copy(&path, to.join(name))?;
            }
        }
        Ok(())
    }

    // ---- Another cluster

    /// Runs another cluster on these machines for a moment, and keeps its nodes' directories.
    pub fn make_foreign(&mut self) -> Result<(), Error> {
        let file = self.lab.directory().join("foreign.toml");
        let data = self.lab.directory().join("foreign");
        let mut draft = Draft {
            cluster: self.cluster.cluster ^ 1,
            data: data.clone(),
            // These machines' keys are the first cluster's.
            auth: Some(Auth::Off),
            trace: None,
            ..Draft::from(&self.cluster)
        };
        for node in &mut draft.nodes {
            node.plane = None;
            node.switch = None;
        }
        draft.write(&file)?;
        for node in self.nodes() {
            self.start_with(&node, &file)?;
        }
        let written = self.write_some();
        let nodes = self.nodes();
        self.stop(&nodes, false);
        written?;
        for node in nodes {
            let from = data.join(&node);
            if from.exists() {
                tamper::copy(&from, &self.aside(&format!("foreign-{node}")))?;
            }
        }
        std::fs::remove_dir_all(&data)?;
        Ok(std::fs::remove_file(&file)?)
    }

    fn write_some(&mut self) -> Result<(), Error> {
        let server = self.servers()?[0];
        let deadline = Instant::now() + FOREIGN_TIMEOUT;
        let mut written = 0;
        while written < FOREIGN_WRITES {
            if Instant::now() > deadline {
                return Err(Error::new("the other cluster doesn't serve"));
            }
            let Ok(mut connection) = Connection::open(server, Duration::from_secs(2)) else {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            };
            while written < FOREIGN_WRITES {
                let key = format!("foreign-{written}");
                match connection.call(&[b"SET", key.as_bytes(), b"foreign"]) {
                    Ok(Reply::Simple(_)) => written += 1,
                    _ => break,
                }
            }
        }
        Ok(())
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        let names: BTreeMap<_, _> = self.processes.pids().into_iter().collect();
        names.keys().for_each(|node| self.processes.kill(node));
        if let Err(e) = self.lab.down() {
            eprintln!(
                "wirepaxos-lab: {e}; try: wirepaxos-lab lab down --name {}",
                self.lab.name()
            );
        }
    }
}

/// Returns the bytes in use on the file system at a path, in whole pages.
fn used(path: &Path) -> Result<u64, Error> {
    let output = Command::new("df")
        .args(["--block-size=1", "--output=used"])
        .arg(path)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let number = text
        .lines()
        .nth(1)
        .and_then(|line| line.trim().parse().ok());
    number.ok_or_else(|| Error::new(format!("df {}: {text}", path.display())))
}
