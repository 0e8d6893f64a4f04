// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos-lab torture`: a cluster of real processes, clients, and a seeded plan of faults; then
//! the question whether anything was lost.

mod client;
mod crowd;
mod history;
mod nemesis;
mod plan;
mod porcupine;
mod report;
mod tamper;
mod testbed;
mod verdict;
mod wholeness;

pub use self::nemesis::Outcome;
pub use self::plan::{Plan, Planes};
pub use self::report::Report;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use self::client::Load;
use self::crowd::Crowd;
use self::history::{Answer, Event};
use self::nemesis::Nemesis;
use self::plan::{Damage, Fault, Wanted};
use self::testbed::Testbed;
use local_cluster::resp::await_service;
use local_cluster::{Error, Narrator, programs};
use model::verdict::first_violation;
use node::cluster_file::Protocol;

const CLIENTS: u32 = 9;
const START_TIMEOUT: Duration = Duration::from_secs(60);
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The settings of a torture.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long there are faults, 0.05 to 600.
    pub minutes: f64,
    /// Decides the cluster and all faults.
    pub seed: u64,
    /// How the cluster agrees.
    pub protocol: Protocol,
    /// The planes on which nodes handle their packets.
    pub planes: Planes,
    /// True if leaders, sequencers, acceptors and learners are in the switches.
    pub in_switch: bool,
    /// `rocksdb` or `leveldb`.
    pub app: String,
    /// True if acceptors store their votes on disk, or NOPaxos's replicas their logs; drawn if
    /// `None`.
    pub durable: Option<bool>,
    /// The number of partitions; drawn if `None`.
    pub partitions: Option<u16>,
    /// If set, the torture consists of this many kills, one after the other, instead of all other
    /// faults and whatever `minutes` is.
    pub kills: Option<u32>,
    /// The new directory for what a failing run leaves; a temporary one if `None`.
    pub out: Option<PathBuf>,
    /// The `wirepaxos` that the nodes run; this program if `None`.
    pub nodes: Option<PathBuf>,
    /// The command that repeats the run, for the report.
    pub command: String,
}

impl Settings {
    /// Returns the cluster and its faults.
    pub fn plan(&self) -> Result<Plan, Error> {
        Ok(plan::draw(&self.wanted()?))
    }

    fn wanted(&self) -> Result<Wanted, Error> {
        if !(0.05..=600.0).contains(&self.minutes) {
            return Err(Error::new("--minutes: take 0.05 to 600"));
        }
        if self.app == "echo" {
            return Err(Error::new(
                "--app: take rocksdb or leveldb, which keep something",
            ));
        }
        if self.in_switch && self.planes == Planes::Udp {
            return Err(Error::new("--in-switch is for --plane xdp and mixed"));
        }
        if !(1..=16).contains(&self.partitions.unwrap_or(1)) {
            return Err(Error::new("--partitions: take 1 to 16"));
        }
        let wanted = Wanted {
            seed: self.seed,
            minutes: self.minutes,
            protocol: self.protocol,
            planes: self.planes,
            in_switch: self.in_switch,
            app: self.app.clone(),
            durable: self.durable,
            partitions: self.partitions,
            kills: self.kills,
        };
        if self.durable == Some(true) && !wanted.may_be_durable() {
            return Err(Error::new("acceptors in the kernel are volatile"));
        }
        Ok(wanted)
    }
}

/// Runs the torture of this plan, and says on the way what happens.
pub fn run(settings: &Settings, plan: &Plan, say: &Narrator) -> Result<Report, Error> {
    let out = Out::create(settings)?;
    fs::write(out.0.join("plan.txt"), plan.to_string())?;
    let report = torture(settings, plan, &out, say)?;
    match report.failures.is_empty() {
        true => out.remove(),
        false => out.describe(&report)?,
    }
    Ok(report)
}

/// The directory that a failing run leaves.
struct Out(PathBuf);

impl Out {
    fn create(settings: &Settings) -> Result<Out, Error> {
        let name = format!("wirepaxos-torture-{}-{}", settings.seed, std::process::id());
        let path = settings
            .out
            .clone()
            .unwrap_or(std::env::temp_dir().join(name));
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
        fs::create_dir(&path).map_err(|e| Error::new(format!("{}: {e}", path.display())))?;
        Ok(Out(path))
    }

    fn history(&self) -> PathBuf {
        self.0.join("history.jsonl")
    }

    /// Returns what the checkers were given.
    fn checked(&self) -> PathBuf {
        self.0.join("checked.jsonl")
    }

    fn trace(&self) -> PathBuf {
        self.0.join("trace")
    }

    fn remove(&self) {
        let _ = fs::remove_dir_all(&self.0);
    }

    fn describe(&self, report: &Report) -> Result<(), Error> {
        Ok(fs::write(
            self.0.join("report.json"),
            report.json().to_string(),
        )?)
    }
}

fn torture(settings: &Settings, plan: &Plan, out: &Out, say: &Narrator) -> Result<Report, Error> {
    let program = match &settings.nodes {
        Some(program) => program.clone(),
        None => programs::wirepaxos()?,
    };
    let trace = plan.trace.then(|| out.trace());
    let mut bed = Testbed::new(&plan.shape, program, trace)?;
    say.line(&format!("lab {}: {}", bed.name(), first_line(plan)));
    let saw = observe(settings, plan, out, say, &mut bed);
    bed.save_logs(&out.0)?;
    drop(bed);
    let saw = saw?;
    say.line("checking");
    let mut report = Report::new(
        settings.minutes,
        settings.seed,
        settings.command.clone(),
        saw.outcome,
    );
    report.directory = out.0.clone();
    report.digests(&saw.digests);
    report.contents(&saw.history, &saw.finals);
    report.linearizability(&saw.history, &out.checked())?;
    if plan.trace {
        let violation = first_violation(&out.trace());
        report.trace(
            violation
                .map(|found| found.map(|v| v.to_string()))
                .map_err(Error::new),
        );
    }
    Ok(report)
}

fn first_line(plan: &Plan) -> String {
    plan.to_string()
        .lines()
        .next()
        .unwrap_or_default()
        .to_string()
}

/// Everything that a run shows to its judges.
struct Saw {
    outcome: Outcome,
    history: Vec<Event>,
    finals: BTreeMap<String, Answer>,
    digests: Vec<(String, u64, String)>,
}

fn observe(
    settings: &Settings,
    plan: &Plan,
    out: &Out,
    say: &Narrator,
    bed: &mut Testbed,
) -> Result<Saw, Error> {
    if plan.steps.iter().any(|step| is_foreign(&step.fault)) {
        bed.make_foreign()?;
        say.line("another cluster's directories are ready");
    }
    for node in bed.nodes() {
        bed.start(&node)?;
    }
    let servers = bed.servers()?;
    await_service(&servers, START_TIMEOUT)?;
    say.line("the cluster serves");
    let load = Load::start(&servers, CLIENTS, plan.rate, settings.seed);
    let shared = load.shared.clone();
    let crowd = Crowd::start(
        &bed.cluster,
        plan.crowd,
        CLIENTS + 1,
        settings.seed,
        &shared,
    );
    let mut nemesis = Nemesis::new(bed, say);
    let played = nemesis.play(plan);
    let mut outcome = std::mem::take(&mut nemesis.outcome);
    if let Err(why) = await_service(&servers, SETTLE_TIMEOUT) {
        outcome
            .failures
            .push(format!("after the last fault: {why}"));
    }
    let mut history = load.stop();
    let (of_crowd, crowds) = crowd.stop();
    history.extend(of_crowd);
    outcome.crowds = crowds;
    let answered = shared.answered.load(Ordering::Relaxed);
    say.line(&format!("{answered} operations; reading all keys"));
    let mut read = shared.read_all(servers[0], &history);
    for &server in &servers[1..] {
        // A node with damaged files may be slow.
        if read.is_err() {
            read = shared.read_all(server, &history);
        }
    }
    let mut finals = BTreeMap::new();
    match read {
        Ok(events) => {
            for event in events {
                let answer = event.answer.as_ref().map(|(_, answer)| answer.clone());
                finals.extend(answer.map(|answer| (event.key.clone(), answer)));
                history.push(event);
            }
        }
        Err(e) => {
            let failure = format!("after the last fault: the keys can't be read: {e}");
            outcome.failures.push(failure);
        }
    }
    history::write(&history, &out.history())?;
    played?;
    let digests = settled_digests(bed)?;
    let nodes = bed.nodes();
    for ended in bed.stop(&nodes, false) {
        let failure = format!("{}, told to end: {}", ended.node, ended.why);
        outcome.failures.push(failure);
    }
    Ok(Saw {
        outcome,
        history,
        finals,
        digests,
    })
}

fn is_foreign(fault: &Fault) -> bool {
    matches!(fault, Fault::Damage { damage, .. } if *damage == Damage::Foreign)
}

/// Returns the replicas' digests as soon as they stand at one instance, or as they are after a
/// while.
fn settled_digests(bed: &Testbed) -> Result<Vec<(String, u64, String)>, Error> {
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    loop {
        let digests = bed.digests()?;
        let settled = report::at_one_place(&digests);
        if settled || Instant::now() > deadline {
            return Ok(digests);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
