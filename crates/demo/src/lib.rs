// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos-lab demo`: a replicated database that survives a dead leader, a dead acceptor and a
//! dead replica, with the proof at the end. With NOPaxos these are a sequencer, the replica that
//! leads, and one that follows.

#[macro_use]
extern crate local_cluster;

pub mod command;
mod dataset;
mod load;
mod report;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::faults::Rates;
use node::ClusterFile;
use node::cluster_file::{Auth, Plane, Protocol, Role};

use load::Load;
pub use load::Resolved;
use local_cluster::processes::Processes;
use local_cluster::resp::{Connection, Reply, Server};
use local_cluster::{Error, Narrator, programs};
use local_cluster::{LocalCluster, Shape, signed};
pub use report::{Digests, Phase, Report};
use wirepaxos::{Embedded, Program, admin};

const CONNECTIONS: usize = 16;
/// Kernels before 6.3 take their time to verify programs.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long packets that are reordered are held back at most.
const HOLD_US: u32 = 1000;
const FEW_RECORDS: usize = 5_000;
/// A killed node is started again after this time.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// The settings of a demo.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How the cluster agrees.
    pub protocol: Protocol,
    /// The replicated application: `rocksdb` or `leveldb`.
    pub app: String,
    /// The plane on which the nodes handle their packets. The kernel needs a network of namespaces
    /// and so root; `Auto` uses it if that is possible.
    pub plane: Plane,
    /// Learners that tell replicas what is decided; without any, replicas get the votes.
    pub learners: usize,
    /// True if leaders, acceptors and learners are in a switch.
    pub in_switch: bool,
    /// The share of packets that is lost, duplicated and reordered on every link, 0 to 1; wants
    /// root.
    pub faults: Option<f64>,
    /// True if all roles are in this one process; then only the leader is changed, by hand-over.
    pub embedded: bool,
    /// The packets that are signed; `None` signs as much as the nodes can.
    pub auth: Option<Auth>,
    /// Seconds of load between two faults.
    pub seconds: u64,
    /// True if the cluster's directory stays.
    pub keep: bool,
}

/// Runs the demo, and says on the way how far it is.
pub fn run(settings: &Settings, say: &Narrator) -> Result<Report, Error> {
    let shape = Shape {
        protocol: settings.protocol,
        leaders: 2,
        learners: settings.learners,
        redis: true,
        in_switch: settings.in_switch,
        auth: settings.auth,
        ..Shape::of(&settings.app)
    };
    let mut cluster = make_cluster(settings, &shape, say)?;
    if settings.keep {
        cluster.keep();
    }
    let report = Demo::start(settings, &cluster, say)?.play(say)?;
    if settings.keep {
        say.line(&format!("kept: {}", cluster.directory().display()));
    }
    Ok(report)
}

fn make_cluster(settings: &Settings, shape: &Shape, say: &Narrator) -> Result<LocalCluster, Error> {
    if settings.embedded && settings.plane != Plane::Udp {
        return Err(Error::new("--embedded is for --plane udp"));
    }
    let in_lab = settings.plane != Plane::Udp || settings.faults.is_some();
    if settings.protocol == Protocol::NoPaxos && (in_lab || settings.learners > 0) {
        return Err(Error::new(
            "--protocol nopaxos is for --plane udp, without --faults and --learners",
        ));
    }
    if settings.in_switch && settings.plane == Plane::Udp && settings.faults.is_none() {
        return Err(Error::new(
            "--in-switch is for --plane xdp, or with --faults",
        ));
    }
    let rates = settings.faults.map(|rate| Rates {
        loss: rate,
        duplicate: rate,
        reorder: rate,
        hold_us: HOLD_US,
        seed: 1,
        ..Rates::default()
    });
    let in_lab = |plane| LocalCluster::in_lab(shape, plane, rates.as_ref());
    match settings.plane {
        Plane::Udp if rates.is_none() => LocalCluster::create(&std::env::temp_dir(), shape),
        Plane::Udp => in_lab(Plane::Udp),
        Plane::Xdp | Plane::P4 => in_lab(settings.plane),
        Plane::Dpdk => Err(Error::new(
            "no demo has ports of DPDK: take --plane udp, xdp or auto",
        )),
        Plane::Auto => match in_lab(Plane::Xdp) {
            Ok(cluster) => {
                say.line("plane: xdp, in a network of namespaces");
                Ok(cluster)
            }
            Err(why) if rates.is_some() => Err(why),
            Err(why) => {
                say.line(&format!("plane: udp, since xdp isn't possible: {why}"));
                LocalCluster::create(&std::env::temp_dir(), shape)
            }
        },
    }
}

/// The nodes: processes that can be killed, or threads of this one.
enum Nodes {
    Separate(Processes),
    Embedded { _running: Embedded },
}

struct Demo<'a> {
    settings: &'a Settings,
    local: &'a LocalCluster,
    cluster: ClusterFile,
    nodes: Nodes,
    phases: Vec<report::Phase>,
}

impl<'a> Demo<'a> {
    fn start(
        settings: &'a Settings,
        local: &'a LocalCluster,
        say: &Narrator,
    ) -> Result<Self, Error> {
        let cluster = ClusterFile::load(&local.file)?;
        let nodes = if settings.embedded {
            Nodes::Embedded {
                _running: Embedded::start(&cluster, &Program::configured())?,
            }
        } else {
            let mut processes = Processes::new(programs::wirepaxos()?);
            for name in &local.nodes {
                processes.start_node(local, name)?;
            }
            Nodes::Separate(processes)
        };
        say.line(&format!(
            "started {} nodes: {} ({})",
            local.nodes.len(),
            local.nodes.join(", "),
            match (settings.embedded, local.lab()) {
                (true, _) => "one process",
                (false, None) => "a process each",
                (false, Some(_)) => "a host each",
            }
        ));
        say.line(&format!("signed: {}", signed(&cluster)));
        let mut demo = Demo {
            settings,
            local,
            cluster,
            nodes,
            phases: Vec::new(),
        };
        demo.await_service()?;
        say.line("the first epoch is active: the cluster serves");
        Ok(demo)
    }

    /// Waits until a write succeeds through every replica.
    fn await_service(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + START_TIMEOUT;
        for &server in &self.local.redis {
            while !server.serves() {
                self.complain_about_dead_nodes()?;
                if Instant::now() > deadline {
                    return Err(Error::new(format!(
                        "the replica at {} does not serve after {} s; rerun with --keep and read \
                         its log",
                        server.address,
                        START_TIMEOUT.as_secs()
                    )));
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    fn complain_about_dead_nodes(&mut self) -> Result<(), Error> {
        let Nodes::Separate(processes) = &mut self.nodes else {
            return Ok(());
        };
        match processes.ended().first() {
            None => Ok(()),
            Some(name) => {
                let log = self.local.directory().join(format!("{name}.log"));
                let log = std::fs::read_to_string(log).unwrap_or_default();
                Err(Error::new(format!("{name} ended by itself:\n{log}")))
            }
        }
    }

    fn play(mut self, say: &Narrator) -> Result<Report, Error> {
        let dataset = self.import(say)?;
        let load = Load::start(&self.local.redis, CONNECTIONS);
        let start = Instant::now();
        self.phase(&load, say, "steady load");
        if self.settings.embedded {
            self.change_leader(say)?;
            self.phase(&load, say, "leader changed by hand-over");
        } else {
            self.kill_one_after_the_other(&load, say)?;
        }
        let elapsed = start.elapsed();
        let mut records = load.stop();
        say.line("load stopped; comparing what was acknowledged with what is there");
        let digests = self.settled_digests()?;
        let resolved = self.resolve(&mut records, &dataset)?;
        Ok(Report::new(
            (
                self.settings.protocol,
                self.local.plane(),
                self.cluster.auth,
            ),
            elapsed,
            self.phases,
            &records,
            dataset.len() as u64,
            resolved,
            digests,
        ))
    }

    fn kill_one_after_the_other(&mut self, load: &Load, say: &Narrator) -> Result<(), Error> {
        let stamps = self.leader()?;
        self.crash(say, &stamps)?;
        match self.settings.protocol {
            Protocol::Paxos => {
                self.phase(load, say, "leader killed");
                self.crash_and_restart(say, "acceptor-1")?;
                self.phase(load, say, "acceptor killed, re-joined");
                self.crash_and_restart(say, "replica-3")?;
                self.phase(load, say, "replica killed, caught up");
            }
            Protocol::NoPaxos => {
                self.phase(load, say, "sequencer killed");
                let leads = self.leading_replica()?;
                self.crash_and_restart(say, &leads)?;
                self.phase(load, say, "leading replica killed, re-joined");
                let leads = self.leading_replica()?;
                let mut replicas = self.cluster.with_role(Role::Replica);
                let follows = replicas.find(|node| node.name != leads);
                let follows = follows.map_or(String::new(), |node| node.name.clone());
                drop(replicas);
                self.crash_and_restart(say, &follows)?;
                self.phase(load, say, "following replica killed, re-joined");
            }
        }
        Ok(())
    }

    fn import(&self, say: &Narrator) -> Result<Vec<dataset::Record>, Error> {
        let mut records = dataset::collect();
        if self.settings.faults.is_some() || self.settings.plane == Plane::P4 {
            // Each lost packet holds up what comes after it, and a switch in software takes some
            // hundred a second, so a hundred thousand records would take minutes.
            records.truncate(FEW_RECORDS);
        }
        let path = self.local.directory().join("records.resp");
        dataset::write_commands(&records, &path)?;
        let start = Instant::now();
        redis_cli_pipe(self.local.redis[0], &path)?;
        let seconds = start.elapsed().as_secs_f64();
        say.line(&format!(
            "imported {} records with redis-cli --pipe in {seconds:.1} s ({:.0} records/s)",
            records.len(),
            records.len() as f64 / seconds
        ));
        Ok(records)
    }

    /// Lets the load run, with a line a second.
    fn phase(&mut self, load: &Load, say: &Narrator, name: &'static str) {
        let start = Instant::now();
        let mut before = load
            .progress
            .operations
            .load(std::sync::atomic::Ordering::Relaxed);
        let first = before;
        for _ in 0..self.settings.seconds {
            std::thread::sleep(Duration::from_secs(1));
            let now = load
                .progress
                .operations
                .load(std::sync::atomic::Ordering::Relaxed);
            say.line(&format!("  {:>8} operations/s   {name}", now - before));
            before = now;
        }
        self.phases.push(report::Phase {
            name,
            ops_per_s: (before - first) as f64 / start.elapsed().as_secs_f64(),
            longest_gap: load.progress.take_longest_gap(),
        });
    }

    /// The replica that leads, of a cluster with NOPaxos.
    fn leading_replica(&self) -> Result<String, Error> {
        let deadline = Instant::now() + REPLY_TIMEOUT;
        let group = self.cluster.groups[0].id;
        while Instant::now() < deadline {
            if let Some(name) = admin::leading_replica(&self.cluster, group, 0)? {
                return Ok(name);
            }
        }
        Err(Error::new("the controller doesn't say which replica leads"))
    }

    /// Returns who puts commands in order: the first leader or sequencer in the file, unless
    /// another one was ready sooner.
    fn leader(&self) -> Result<String, Error> {
        let deadline = Instant::now() + REPLY_TIMEOUT;
        let group = self.cluster.groups[0].id;
        while Instant::now() < deadline {
            if let Some(name) = admin::leader(&self.cluster, group)? {
                return Ok(name);
            }
        }
        Err(Error::new("the controller doesn't say who leads"))
    }

    fn crash(&mut self, say: &Narrator, name: &str) -> Result<(), Error> {
        if let Nodes::Separate(processes) = &mut self.nodes {
            self.local.crash(processes, name)?;
            let lost = match self.local.lab() {
                Some(_) if self.settings.plane == Plane::P4 => ", its switch has lost its power",
                Some(_) => ", what it had in the kernel is gone",
                None => "",
            };
            say.line(&format!("SIGKILL to {name}{lost}"));
        }
        Ok(())
    }

    fn crash_and_restart(&mut self, say: &Narrator, name: &str) -> Result<(), Error> {
        self.crash(say, name)?;
        std::thread::sleep(RESTART_AFTER);
        if let Nodes::Separate(processes) = &mut self.nodes {
            processes.start_node(self.local, name)?;
            say.line(&format!("{name} started again"));
        }
        Ok(())
    }

    fn change_leader(&self, say: &Narrator) -> Result<(), Error> {
        let epoch = wirepaxos::admin::change_leader(&self.cluster, None, None, false)?;
        say.line(&format!(
            "handed over to the backup leader in epoch {epoch}"
        ));
        Ok(())
    }

    /// Waits until all replicas stand at the same instance, then compares their contents.
    fn settled_digests(&self) -> Result<report::Digests, Error> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        loop {
            let digests = admin::digests(&self.cluster)?.found;
            let complete = digests.len() == self.local.redis.len();
            let same_place = digests.windows(2).all(|w| w[0].1 == w[1].1);
            if complete && same_place {
                return Ok(report::Digests {
                    equal: digests.windows(2).all(|w| w[0].2 == w[1].2),
                    replicas: digests,
                });
            }
            if Instant::now() > deadline {
                return Err(not_settled(&digests));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Reads everything back: what was acknowledged must be there, and what was uncertain is so no
    /// longer.
    fn resolve(
        &self,
        records: &mut [load::Record],
        dataset: &[dataset::Record],
    ) -> Result<load::Resolved, Error> {
        let mut connection = Connection::open(self.local.redis[2], REPLY_TIMEOUT)?;
        let mut resolved = load::Resolved::default();
        for record in records {
            resolved.add(record.resolve(&mut connection)?);
        }
        for chunk in dataset.chunks(1000) {
            for (key, _) in chunk {
                connection.push(&[b"GET", key.as_bytes()]);
            }
            connection.flush()?;
            for (_, value) in chunk {
                let found = connection.read()? == Reply::Bulk(Some(value.clone().into_bytes()));
                resolved.lost += u64::from(!found);
            }
        }
        Ok(resolved)
    }
}

fn not_settled(digests: &[(String, u64, String)]) -> Error {
    let places = digests
        .iter()
        .map(|(replica, next, _)| format!("{replica} at instance {next}"))
        .collect::<Vec<_>>();
    Error::new(format!(
        "after {} s not all replicas stand at the same instance ({}), so their contents can't be \
         compared; rerun with --keep and read their logs",
        SETTLE_TIMEOUT.as_secs(),
        places.join(", ")
    ))
}

fn redis_cli_pipe(server: Server, file: &PathBuf) -> Result<(), Error> {
    let address = server.address;
    let output = Command::new("redis-cli")
        .args([
            "-h",
            &address.ip().to_string(),
            "-p",
            &address.port().to_string(),
            "--pipe",
        ])
        .envs(server.password.map(|password| ("REDISCLI_AUTH", password)))
        .stdin(Stdio::from(std::fs::File::open(file)?))
        .output()
        .map_err(|e| {
            Error::new(format!(
                "redis-cli can't be run ({e}); ./dev setup installs it"
            ))
        })?;
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && text.contains("errors: 0") {
        Ok(())
    } else {
        let errors = String::from_utf8_lossy(&output.stderr);
        Err(Error::new(format!(
            "redis-cli --pipe failed:\n{text}{errors}"
        )))
    }
}
