// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos upgrade`: shows which programs the nodes run, and moves the cluster to the next
//! format level or back. [E-LEVEL]

use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use control::MemberChange;
use control::level::{self, Level, Levels};
use node::ClusterFile;
use node::cluster_status::{self, ClusterStatus};
use serde_json::{Value, json};

use command_line::arguments::Cluster;
use local_cluster::Error;
use wirepaxos::admin;

/// The time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The controller asks all nodes again when an order comes, and must have their answers by then.
const ORDER_FOR: Duration = Duration::from_secs(5);

/// Commands of `wirepaxos upgrade`.
#[derive(Subcommand)]
pub enum Command {
    /// Show the nodes' programs, and what stands in the way of `upgrade finish`
    Check(Check),
    /// Let the cluster use what only the new programs know, once all nodes run them
    Finish(Move),
    /// Return to the format level before, while nothing is stored that the programs before can't
    /// read
    Back(Move),
}

/// Options of `wirepaxos upgrade check`.
#[derive(Args)]
pub struct Check {
    #[command(flatten)]
    cluster: Cluster,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Options of `wirepaxos upgrade finish` and `back`.
#[derive(Args)]
pub struct Move {
    #[command(flatten)]
    cluster: Cluster,
    /// Wait at most this many seconds until all nodes have the level on their disks
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    wait: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Carries out the command.
pub fn run(command: &Command) -> Result<(), Error> {
    match command {
        Command::Check(options) => check(options),
        Command::Finish(options) => finish(options),
        Command::Back(options) => back(options),
    }
}

fn check(options: &Check) -> Result<(), Error> {
    let cluster = options.cluster.load()?;
    let programs = Programs::ask(&cluster)?;
    match options.json {
        true => println!("{}", programs.to_json()),
        false => programs.lines().iter().for_each(|line| println!("{line}")),
    }
    match programs.in_the_way.len() {
        0 => Ok(()),
        _ => Err(Error::new("the upgrade can't be finished yet")),
    }
}

fn finish(options: &Move) -> Result<(), Error> {
    let cluster = options.cluster.load()?;
    let programs = Programs::ask(&cluster)?;
    if !programs.in_the_way.is_empty() {
        return Err(Error::new(format!(
            "nothing is changed: {}",
            programs.in_the_way.join("; ")
        )));
    }
    match programs.next() {
        Some(next) => set_level(options, &cluster, &programs, next),
        None => {
            say(options, programs.level, false, "the newest of its programs");
            Ok(())
        }
    }
}

fn back(options: &Move) -> Result<(), Error> {
    let cluster = options.cluster.load()?;
    let programs = Programs::ask(&cluster)?;
    if let Some(silent) = programs.nodes.iter().find(|node| node.found.is_none()) {
        return Err(Error::new(format!(
            "nothing is changed: {}",
            doesnt_answer(&silent.name)
        )));
    }
    if programs.level > level::FIRST {
        return set_level(options, &cluster, &programs, programs.level - 1);
    }
    let how = "the first: put the programs before back node by node";
    say(options, programs.level, false, how);
    Ok(())
}

/// Orders the level, and waits until all nodes have it.
fn set_level(
    options: &Move,
    cluster: &ClusterFile,
    programs: &Programs,
    level: Level,
) -> Result<(), Error> {
    let order = [MemberChange::SetLevel { level }];
    let (begun, mut known) = (Instant::now(), programs.changes);
    while let Err(why) = admin::change_members(cluster, known, &order) {
        if begun.elapsed() > ORDER_FOR || !matches!(why, wirepaxos::Error::Denied(_)) {
            return Err(why.into());
        }
        std::thread::sleep(LOOK_EVERY);
        // The controller may have added to the list meanwhile, as it removes who has left.
        let now = Programs::ask(cluster)?;
        if now.level == programs.level {
            known = now.changes;
        }
    }
    let until = Instant::now() + Duration::from_secs(options.wait);
    loop {
        let seen = Programs::ask(cluster)?;
        let lacking = seen.lacking(level);
        if lacking.is_empty() {
            say(options, level, true, "on every node's disk");
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(Error::new(format!(
                "level {level} is ordered, but not yet on the disk of {}: start what is down; see \
                 `wirepaxos upgrade check`",
                lacking.join(", ")
            )));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn say(options: &Move, level: Level, changed: bool, what: &str) {
    match options.json {
        true => println!("{}", json!({ "level": level, "changed": changed })),
        false => println!("the cluster is at format level {level}, {what}"),
    }
}

/// What a node says of its program.
struct Program {
    name: String,
    role: &'static str,
    /// Its version and commit, and its levels; `None` if the node is silent.
    found: Option<(String, Levels)>,
    /// The level that is on the node's disk.
    level: Level,
}

/// The programs of all nodes.
struct Programs {
    nodes: Vec<Program>,
    level: Level,
    /// The number of all changes by command.
    changes: usize,
    in_the_way: Vec<String>,
}

impl Programs {
    fn ask(cluster: &ClusterFile) -> Result<Programs, Error> {
        let status = ClusterStatus::take(cluster)?;
        let answers = status.answers();
        let controllers = cluster.controllers();
        let controllers = controllers.filter_map(|node| answers.get(&node.name).cloned());
        let acting = node::of_acting(controllers).unwrap_or_default();
        let changes: Vec<MemberChange> =
            serde_json::from_value(acting["members"]["changes"].clone()).unwrap_or_default();
        let nodes = cluster.nodes.iter().map(|node| {
            let answer = answers.get(&node.name);
            Program {
                name: node.name.clone(),
                role: node.role.name(),
                found: answer.map(|answer| (cluster_status::build(answer), levels(answer))),
                level: answer.map_or(level::FIRST, of_disk),
            }
        });
        let mut programs = Programs {
            nodes: nodes.collect(),
            level: level::of(&changes),
            changes: changes.len(),
            in_the_way: Vec::new(),
        };
        programs.in_the_way = programs.obstacles(&acting, status.differences());
        Ok(programs)
    }

    /// Returns why the level can't rise now, or why that would be unwise.
    fn obstacles(&self, acting: &Value, differences: &[String]) -> Vec<String> {
        let mut all = Vec::new();
        if acting.is_null() {
            all.push("no controller answers: start it".to_owned());
        } else if let Some(what) = acting["members"]["waits_for"].as_str() {
            all.push(format!("a change of the members is on its way: {what}"));
        }
        let newest = self.levels().map(|levels| levels.newest).max();
        for node in &self.nodes {
            let name = &node.name;
            match &node.found {
                None => all.push(doesnt_answer(name)),
                Some((build, levels)) if Some(levels.newest) < newest => all.push(format!(
                    "{name} runs {build}, which has level {levels}: install the newer program, and \
                     restart it"
                )),
                Some(_) if node.level != self.level => all.push(format!(
                    "{name} hasn't level {} on its disk yet: wait",
                    self.level
                )),
                Some(_) => {}
            }
        }
        all.extend(differences.iter().cloned());
        all
    }

    fn levels(&self) -> impl Iterator<Item = Levels> {
        let found = self.nodes.iter().filter_map(|node| node.found.as_ref());
        found.map(|(_, levels)| *levels)
    }

    /// Returns the level to which all programs can go.
    fn next(&self) -> Option<Level> {
        let next = self.level + 1;
        self.levels()
            .all(|levels| levels.have(next))
            .then_some(next)
    }

    /// Returns the nodes that haven't a level on their disks.
    fn lacking(&self, level: Level) -> Vec<&str> {
        let lacking = self.nodes.iter();
        let lacking = lacking.filter(|node| node.found.is_none() || node.level != level);
        lacking.map(|node| node.name.as_str()).collect()
    }

    fn lines(&self) -> Vec<String> {
        let row = |name: &str, role: &str, build: &str, levels: &str| {
            format!("{name:<14} {role:<11} {build:<16} {levels}")
        };
        let mut lines = vec![row("node", "role", "version", "levels")];
        lines.extend(self.nodes.iter().map(|node| match &node.found {
            Some((build, levels)) => row(&node.name, node.role, build, &levels.to_string()),
            None => row(&node.name, node.role, "?", "?"),
        }));
        let level = self.level;
        lines.push(match self.next() {
            Some(next) => format!(
                "the cluster is at format level {level}, and may go to {next}: `wirepaxos upgrade \
                 finish`; until then each node may return to the program before"
            ),
            None => format!("the cluster is at format level {level}"),
        });
        let in_the_way = self.in_the_way.iter();
        lines.extend(in_the_way.map(|why| format!("in the way: {why}")));
        lines
    }

    fn to_json(&self) -> Value {
        let nodes = self.nodes.iter().map(|node| {
            let found = node.found.as_ref();
            json!({
                "name": node.name,
                "role": node.role,
                "version": found.map(|(build, _)| build),
                "levels": found.map(|(_, levels)| levels),
                "level": node.level,
            })
        });
        json!({
            "level": self.level,
            "next": self.next(),
            "in_the_way": self.in_the_way,
            "nodes": nodes.collect::<Value>(),
        })
    }
}

fn doesnt_answer(name: &str) -> String {
    format!("{name} doesn't answer: start it")
}

/// Returns the levels of a node's program. One from before there were levels has the first.
fn levels(answer: &Value) -> Levels {
    serde_json::from_value(answer["levels"].clone()).unwrap_or_default()
}

fn of_disk(answer: &Value) -> Level {
    let level = answer["level"].as_u64();
    level.map_or(level::FIRST, |level| level as Level)
}
