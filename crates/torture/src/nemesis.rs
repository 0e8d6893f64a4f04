// SPDX-License-Identifier: Apache-2.0
//! Carries out a plan, and undoes what is to be undone.
//!
//! Faults overlap as the plan has them. One waits, though: what would take an acceptor's memory or
//! a replica's disk comes only while no other one is lost, since beyond f and g a loss is
//! legitimate. With NOPaxos a volatile replica's log is in memory, so its disk counts as lost with
//! its process.

mod patience;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use lab::faults::Rates;
use lab::topology::Role;

use super::plan::{Damage, Fault, Plan, Step};
use super::tamper;
use super::testbed::Testbed;
use super::wholeness::{self, Documents};
use local_cluster::{Error, Narrator};

/// How long a fault that needs a whole cluster waits for it.
const WHOLE_TIMEOUT: Duration = Duration::from_secs(12);
/// A node with damaged or foreign files may take this long to refuse them. One that hasn't refused
/// another cluster's files by then is serving them.
const REFUSE_TIMEOUT: Duration = Duration::from_secs(12);
/// A disk's moment of being full may show a little later.
const FULL_AFTERMATH: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(50);
const HOLD_US: u32 = 3000;

/// The results of the faults, besides the clients' histories.
#[derive(Default)]
pub struct Outcome {
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Faults that weren't carried out, by kind: the node was down already, or the cluster never
    /// recovered in time.
    pub skipped: BTreeMap<&'static str, u64>,
    /// Nodes that refused damaged files, and with what words.
    pub refusals: Vec<String>,
    /// Nodes that lived on with damaged files.
    pub tolerated: u64,
    /// How often leaders of NOPaxos answered a crowd, as far as they have shown.
    pub crowds: u64,
    /// Nodes that stopped since their disk was full.
    pub stopped_on_full_disk: u64,
    /// Errors that no fault excuses.
    pub failures: Vec<String>,
}

enum Undo {
    Start(Vec<String>),
    Continue(Vec<String>),
    Connect(Vec<String>),
    LinkUp(String),
    Hasten(String),
    Mend(Vec<String>, Vec<String>),
    Calm,
    FreeDisk(String),
}

/// A node whose files were damaged, until the cluster is whole again.
struct Suspect {
    what: String,
    started: Instant,
    /// True if the node has another cluster's files, which it must refuse.
    foreign: bool,
    /// The nodes' status documents before the fault.
    before: Documents,
}

/// The plan's executor.
pub struct Nemesis<'a> {
    bed: &'a mut Testbed,
    say: &'a Narrator,
    start: Instant,
    undo: Vec<(Instant, Undo)>,
    down: BTreeSet<String>,
    paused: BTreeSet<String>,
    full: BTreeMap<String, Option<Instant>>,
    suspects: BTreeMap<String, Suspect>,
    /// True if a replica's disk or log was lost, and the others weren't seen since to hold all that
    /// is needed.
    disk_lost: bool,
    next_look: Instant,
    /// The results of the faults.
    pub outcome: Outcome,
}

/// Why a fault wasn't carried out.
type Skipped = String;

impl<'a> Nemesis<'a> {
    /// Creates the executor at the start of the plan's time.
    pub fn new(bed: &'a mut Testbed, say: &'a Narrator) -> Nemesis<'a> {
        Nemesis {
            bed,
            say,
            start: Instant::now(),
            undo: Vec::new(),
            down: BTreeSet::new(),
            paused: BTreeSet::new(),
            full: BTreeMap::new(),
            suspects: BTreeMap::new(),
            disk_lost: false,
            next_look: Instant::now(),
            outcome: Outcome::default(),
        }
    }

    /// Carries out the plan, as far as its time allows, or all of it; then undoes what is left.
    pub fn play(&mut self, plan: &Plan) -> Result<(), Error> {
        let end = self.start + Duration::from_millis(plan.end_ms);
        // A fault that had to wait delays those after it.
        let mut late = Duration::ZERO;
        for step in &plan.steps {
            let at = self.start + Duration::from_millis(step.at_ms) + late;
            self.run_until(if plan.all { at } else { at.min(end) })?;
            if Instant::now() >= end && !plan.all {
                break;
            }
            let begun = Instant::now();
            self.step(step)?;
            late += begun.elapsed();
        }
        self.run_until(end)?;
        self.heal()
    }

    fn step(&mut self, step: &Step) -> Result<(), Error> {
        self.say.line(&format!("{:<18} {}", step.kind, step.fault));
        match self.fault(&step.fault)? {
            Ok(()) => *self.outcome.faults.entry(step.kind).or_default() += 1,
            Err(why) => {
                self.say.line(&format!("  left out: {why}"));
                *self.outcome.skipped.entry(step.kind).or_default() += 1;
            }
        }
        Ok(())
    }

    fn fault(&mut self, fault: &Fault) -> Result<Result<(), Skipped>, Error> {
        match fault {
            Fault::Kill {
                nodes,
                machine,
                for_ms,
            } => self.kill(nodes, *machine, *for_ms),
            Fault::Stop {
                nodes,
                hang_up,
                for_ms,
            } => self.stop(nodes, *hang_up, *for_ms),
            Fault::Pause { nodes, for_ms } => Ok(self.pause(nodes, *for_ms)),
            Fault::Isolate { links, for_ms } => {
                self.bed.set_cut_off(links, true)?;
                self.undo_after(*for_ms, Undo::Connect(links.clone()));
                Ok(Ok(()))
            }
            Fault::LinkDown { link, for_ms } => {
                self.bed.set_link(link, false)?;
                self.undo_after(*for_ms, Undo::LinkUp(link.clone()));
                Ok(Ok(()))
            }
            Fault::Cut {
                from,
                to,
                both_ways,
                for_ms,
            } => {
                self.bed.set_reachable(from, to, false)?;
                self.undo_after(*for_ms, Undo::Mend(from.clone(), to.clone()));
                if *both_ways {
                    self.bed.set_reachable(to, from, false)?;
                    self.undo_after(*for_ms, Undo::Mend(to.clone(), from.clone()));
                }
                Ok(Ok(()))
            }
            Fault::Weather {
                loss,
                duplicate,
                reorder,
                corrupt,
                for_ms,
            } => {
                let share = |thousandths: u32| f64::from(thousandths) / 1000.0;
                self.bed.set_weather(Rates {
                    loss: share(*loss),
                    duplicate: share(*duplicate),
                    reorder: share(*reorder),
                    corrupt: share(*corrupt),
                    hold_us: HOLD_US,
                    delay_us: 0,
                    seed: self.start.elapsed().subsec_nanos(),
                })?;
                self.undo.retain(|(_, undo)| !matches!(undo, Undo::Calm));
                self.undo_after(*for_ms, Undo::Calm);
                Ok(Ok(()))
            }
            Fault::Slow {
                link,
                delay_ms,
                for_ms,
            } => {
                self.bed.set_slow(link, *delay_ms)?;
                self.undo_after(*for_ms, Undo::Hasten(link.clone()));
                Ok(Ok(()))
            }
            Fault::Failover => Ok(self.fail_over()),
            Fault::Wipe { node, for_ms } => self.wipe(node, *for_ms),
            Fault::FullDisk { node, for_ms } => self.fill(node, *for_ms),
            Fault::Damage { node, damage, salt } => self.damage(node, *damage, *salt),
        }
    }

    // ---- Faults

    fn kill(
        &mut self,
        nodes: &[String],
        machine: bool,
        for_ms: u64,
    ) -> Result<Result<(), Skipped>, Error> {
        let up = self.those_up(nodes);
        if up.is_empty() {
            return Ok(Err("down already".to_string()));
        }
        let forgets = |node: &&String| {
            let in_kernel = self.bed.shape.plane_of(node) != "udp";
            self.bed.is_volatile_acceptor(node) && (machine || !in_kernel)
        };
        if up.iter().any(|node| forgets(&node)) {
            if let Err(why) = self.await_acceptors()? {
                return Ok(Err(why));
            }
        }
        if let Err(why) = self.await_logs_of(&up)? {
            return Ok(Err(why));
        }
        for node in &up {
            self.bed.kill(node, machine)?;
        }
        self.take_down(&up, for_ms);
        Ok(Ok(()))
    }

    fn stop(
        &mut self,
        nodes: &[String],
        hang_up: bool,
        for_ms: u64,
    ) -> Result<Result<(), Skipped>, Error> {
        let up = self.those_up(nodes);
        if up.is_empty() {
            return Ok(Err("down already".to_string()));
        }
        // A node that had to be killed after all has lost its memory.
        if up.iter().any(|node| self.bed.is_volatile_acceptor(node)) {
            if let Err(why) = self.await_acceptors()? {
                return Ok(Err(why));
            }
        }
        if let Err(why) = self.await_logs_of(&up)? {
            return Ok(Err(why));
        }
        self.stop_in_order(&up, hang_up);
        self.take_down(&up, for_ms);
        Ok(Ok(()))
    }

    /// Stops nodes in order. A node without room on its disk can't store what it knows, and says
    /// so.
    fn stop_in_order(&mut self, nodes: &[String], hang_up: bool) {
        for ended in self.bed.stop(nodes, hang_up) {
            if !self.full.contains_key(&ended.node) {
                let failure = format!("{}, told to end: {}", ended.node, ended.why);
                self.fail(failure);
            }
        }
    }

    fn pause(&mut self, nodes: &[String], for_ms: u64) -> Result<(), Skipped> {
        let up = self.those_up(nodes);
        if up.is_empty() {
            return Err("down already".to_string());
        }
        for node in &up {
            self.bed.pause(node, true);
            self.paused.insert(node.clone());
        }
        self.undo_after(for_ms, Undo::Continue(up));
        Ok(())
    }

    fn fail_over(&mut self) -> Result<(), Skipped> {
        // The order is given in a thread, because it may take long.
        let cluster = self.bed.cluster.clone();
        let order = move || wirepaxos::admin::change_leader(&cluster, None, None, false);
        std::thread::spawn(move || drop(order()));
        Ok(())
    }

    fn wipe(&mut self, node: &str, for_ms: u64) -> Result<Result<(), Skipped>, Error> {
        if let Err(why) = self.await_disk_of(node)? {
            return Ok(Err(why));
        }
        self.bed.kill(node, true)?;
        tamper::empty(&self.bed.disk(node)?)?;
        self.take_down(&[node.to_string()], for_ms);
        Ok(Ok(()))
    }

    fn fill(&mut self, node: &str, for_ms: u64) -> Result<Result<(), Skipped>, Error> {
        if self.those_up(&[node.to_string()]).is_empty() || self.full.contains_key(node) {
            return Ok(Err("down already, or its disk is full".to_string()));
        }
        // The node may end for lack of room.
        if let Err(why) = self.await_logs_of(&[node.to_string()])? {
            return Ok(Err(why));
        }
        if let Err(why) = self.bed.set_full(node, true) {
            return Ok(Err(why.to_string()));
        }
        self.full.insert(node.to_string(), None);
        self.undo_after(for_ms, Undo::FreeDisk(node.to_string()));
        Ok(Ok(()))
    }

    /// Damages the files of a node. The node's reaction shows in the time that follows.
    fn damage(
        &mut self,
        node: &str,
        damage: Damage,
        salt: u64,
    ) -> Result<Result<(), Skipped>, Error> {
        if let Err(why) = self.await_disk_of(node)? {
            return Ok(Err(why));
        }
        let one = [node.to_string()];
        let disk = self.bed.disk(node)?;
        let (kept, old) = (self.bed.aside(node), self.bed.aside(&format!("old-{node}")));
        if self.bed.is_volatile_acceptor(node) || salt % 2 == 0 {
            self.stop_in_order(&one, false);
        }
        if damage == Damage::OldCopy {
            self.bed.kill(node, false)?;
            tamper::copy(&disk, &old)?;
            self.bed.start(node)?;
            self.run_for(Duration::from_millis(2000 + salt % 4000))?;
            if !self.bed.runs(node) {
                return Ok(Err("it ended before its copy was old".to_string()));
            }
            // The node must have done something since, or the copy isn't old.
            if let Err(why) = self.await_disk_of(node)? {
                return Ok(Err(why));
            }
        }
        let before = self.bed.documents();
        self.bed.kill(node, true)?;
        tamper::copy(&disk, &kept)?;
        let what = match damage {
            Damage::OldCopy => {
                tamper::copy(&old, &disk)?;
                Some("an old copy".to_string())
            }
            Damage::Foreign => {
                let foreign = self.bed.aside(&format!("foreign-{node}"));
                match foreign.exists() {
                    true => {
                        tamper::copy(&foreign, &disk)?;
                        Some("another cluster's directory".to_string())
                    }
                    false => None,
                }
            }
            _ => tamper::damage(&disk, damage, salt)?,
        };
        let Some(what) = what else {
            self.bed.start(node)?;
            return Ok(Err("it has no files".to_string()));
        };
        self.say.line(&format!("  {node}: {what}"));
        let suspect = Suspect {
            what,
            started: Instant::now(),
            foreign: damage == Damage::Foreign,
            before,
        };
        self.suspects.insert(node.to_string(), suspect);
        self.bed.start(node)?;
        Ok(Ok(()))
    }

    // ---- Undoing

    fn undo_after(&mut self, ms: u64, undo: Undo) {
        self.undo
            .push((Instant::now() + Duration::from_millis(ms), undo));
    }

    fn take_down(&mut self, nodes: &[String], for_ms: u64) {
        self.down.extend(nodes.iter().cloned());
        self.undo_after(for_ms, Undo::Start(nodes.to_vec()));
    }

    fn undo(&mut self, undo: Undo) -> Result<(), Error> {
        match undo {
            Undo::Start(nodes) => {
                for node in nodes {
                    self.down.remove(&node);
                    self.bed.start(&node)?;
                }
            }
            Undo::Continue(nodes) => {
                for node in nodes {
                    self.paused.remove(&node);
                    self.bed.pause(&node, false);
                }
            }
            Undo::Connect(links) => self.bed.set_cut_off(&links, false)?,
            Undo::LinkUp(link) => self.bed.set_link(&link, true)?,
            Undo::Hasten(link) => self.bed.set_slow(&link, 0)?,
            Undo::Mend(from, to) => self.bed.set_reachable(&from, &to, true)?,
            Undo::Calm => self.bed.set_weather(Rates::default())?,
            Undo::FreeDisk(node) => {
                self.bed.set_full(&node, false)?;
                self.watch()?;
                if !self.down.contains(&node) {
                    self.bed.start(&node)?;
                }
                self.full.insert(node, Some(Instant::now()));
            }
        }
        Ok(())
    }

    /// Undoes everything, and waits until the cluster is whole. A node that goes on with damaged
    /// files and prevents that gets an empty disk.
    fn heal(&mut self) -> Result<(), Error> {
        self.say.line("no more faults; waiting until all is well");
        for (_, undo) in std::mem::take(&mut self.undo) {
            self.undo(undo)?;
        }
        if let Err(why) = self.await_whole(4 * WHOLE_TIMEOUT)? {
            self.fail(format!("after the last fault: {why}"));
        }
        Ok(())
    }

    // ---- Watching

    fn run_for(&mut self, time: Duration) -> Result<(), Error> {
        self.run_until(Instant::now() + time)
    }

    fn run_until(&mut self, until: Instant) -> Result<(), Error> {
        loop {
            self.undo_what_is_due()?;
            self.watch()?;
            self.look_at_disks();
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK_EVERY));
        }
    }

    fn undo_what_is_due(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        let (due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.undo)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.undo = later;
        due.into_iter().try_for_each(|(_, undo)| self.undo(undo))
    }

    /// Notes which nodes ended by themselves, and whether they had a reason.
    fn watch(&mut self) -> Result<(), Error> {
        self.full
            .retain(|_, freed| freed.is_none_or(|at| at.elapsed() < FULL_AFTERMATH));
        for ended in self.bed.ended() {
            let node = ended.node;
            if let Some(freed) = self.full.get(&node) {
                self.outcome.stopped_on_full_disk += 1;
                self.say
                    .line(&format!("  {node} has no room: {}", ended.why));
                if freed.is_some() {
                    self.bed.start(&node)?;
                }
            } else if let Some(suspect) = self.suspects.remove(&node) {
                let refusal = format!("{node} ({}): {}", suspect.what, ended.why);
                self.say.line(&format!("  refused: {refusal}"));
                self.outcome.refusals.push(refusal);
                self.repair(&node)?;
            } else {
                self.fail(format!("{node} ended by itself: {}", ended.why));
                self.disk_lost |= self.bed.has_volatile_log(&node);
                self.run_again(&node)?;
            }
        }
        let overdue = |s: &Suspect| s.foreign && s.started.elapsed() > REFUSE_TIMEOUT;
        let overdue = self.suspects.iter().find(|(_, s)| overdue(s));
        if let Some((node, suspect)) = overdue {
            let (node, what) = (node.clone(), suspect.what.clone());
            self.fail(format!("{node} serves {what}"));
            self.suspects.remove(&node);
            self.bed.kill(&node, true)?;
            self.repair(&node)?;
        }
        Ok(())
    }

    /// Notes that a lost disk no longer counts once the other replicas hold all that is needed:
    /// then the loss of another one is within g.
    fn look_at_disks(&mut self) {
        if self.disk_lost && !self.a_log_may_go() && Instant::now() >= self.next_look {
            self.disk_lost = self.bed.replicas_are_whole().is_err();
            self.next_look = Instant::now() + Duration::from_secs(1);
        }
    }

    /// Starts a node again, but not at once: a node that ends again and again would do nothing
    /// else.
    fn run_again(&mut self, node: &str) -> Result<(), Error> {
        self.take_down(&[node.to_string()], 1000);
        Ok(())
    }

    /// Gives a node back its disk: that of a replica or an acceptor is empty, because the others
    /// have all that is needed. A controller gets its own store back.
    fn repair(&mut self, node: &str) -> Result<(), Error> {
        let disk = self.bed.disk(node)?;
        match node {
            "controller" => tamper::copy(&self.bed.aside(node), &disk)?,
            _ => tamper::empty(&disk)?,
        }
        self.bed.start(node)
    }

    fn fail(&mut self, what: String) {
        self.say.line(&format!("  FAILURE: {what}"));
        self.outcome.failures.push(what);
    }
}

impl Testbed {
    /// Returns an error unless the voters are whole: the acceptors, or with NOPaxos the replicas.
    fn acceptors_are_whole(&self) -> Result<(), String> {
        match self.is_ordered() {
            true => self.replicas_are_whole(),
            false => wholeness::of_acceptors(&self.documents(), &self.of_role(Role::Acceptor)),
        }
    }

    fn replicas_are_whole(&self) -> Result<(), String> {
        let (acceptors, replicas) = (self.of_role(Role::Acceptor), self.of_role(Role::Replica));
        match self.is_ordered() {
            true => wholeness::of_members(&self.documents(), &replicas),
            false => wholeness::of_replicas(&self.documents(), &acceptors, &replicas),
        }
    }
}
