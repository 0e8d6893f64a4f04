// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos members add`, `remove` and `replace`: orders the controller to change the members,
//! and waits until that is done.

mod new_nodes;
mod plan;

use std::path::Path;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use control::MemberChange;
use node::ClusterFile;
use node::cluster_file::{Node, Role, check_order};
use serde_json::json;

use self::new_nodes::new_nodes;
use self::plan::{Plan, refuse_the_last};
use super::{LOOK_EVERY, Overview};
use crate::named;
use command_line::arguments::Cluster;
use local_cluster::Error;
use wirepaxos::admin;

/// Commands of `wirepaxos members`.
#[derive(Subcommand)]
pub enum Command {
    /// Add leaders, acceptors or replicas while the cluster serves; the number of acceptors must be
    /// odd afterwards
    Add(Add),
    /// Have leaders, acceptors or replicas leave while the cluster serves
    Remove(Remove),
    /// Put a new node in the place of another one, which may be dead
    Replace(Replace),
}

/// Options of `wirepaxos members add`.
#[derive(Args)]
pub struct Add {
    /// Add nodes of these names on these machines; ports are chosen unless one is given, and then
    /// the next one is the control port
    #[arg(required = true, value_name = "NAME=IP[:PORT]")]
    nodes: Vec<String>,
    /// The role of the new nodes, if their names don't say it as acceptor-4 does
    #[arg(long, value_parser = role, value_name = "ROLE")]
    role: Option<Role>,
    /// Write this line, too, into the new nodes' records in the cluster file; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    lines: Vec<String>,
    #[command(flatten)]
    shared: Shared,
}

/// Options of `wirepaxos members remove`.
#[derive(Args)]
pub struct Remove {
    /// Remove these nodes
    #[arg(required = true, value_name = "NAME")]
    nodes: Vec<String>,
    /// Leave no acceptor or no replica that may fail
    #[arg(long)]
    no_redundancy: bool,
    #[command(flatten)]
    shared: Shared,
}

/// Options of `wirepaxos members replace`.
#[derive(Args)]
pub struct Replace {
    /// Remove this node
    #[arg(value_name = "OLD")]
    old: String,
    /// Add a node of this name and of the same role on this machine
    #[arg(value_name = "NEW=IP[:PORT]")]
    new: String,
    /// Write this line, too, into the new node's record in the cluster file; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    lines: Vec<String>,
    #[command(flatten)]
    shared: Shared,
}

/// The options that all of them share.
#[derive(Args)]
pub struct Shared {
    #[command(flatten)]
    cluster: Cluster,
    /// Only check the change, and print what would be done
    #[arg(long)]
    dry_run: bool,
    /// Wait at most this many seconds until the change is done; it goes on in any case
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    wait: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The nodes that a command names.
struct Named<'a> {
    added: &'a [String],
    removed: &'a [String],
    /// Further lines of the new nodes' records.
    lines: &'a [String],
    /// The new nodes' role, if it was given.
    role: Option<Role>,
}

fn role(name: &str) -> Result<Role, String> {
    Role::named(name).ok_or_else(|| "give leader, acceptor or replica".to_owned())
}

impl Command {
    fn parts(&self) -> (Named<'_>, &Shared) {
        let none: &[String] = &[];
        let (added, removed, lines, shared) = match self {
            Command::Add(o) => (&o.nodes[..], none, &o.lines[..], &o.shared),
            Command::Remove(o) => (none, &o.nodes[..], none, &o.shared),
            Command::Replace(o) => {
                let one = std::slice::from_ref;
                (one(&o.new), one(&o.old), &o.lines[..], &o.shared)
            }
        };
        let role = match self {
            Command::Add(o) => o.role,
            _ => None,
        };
        let named = Named {
            added,
            removed,
            lines,
            role,
        };
        (named, shared)
    }

    fn accepts_none_to_fail(&self) -> bool {
        matches!(self, Command::Remove(o) if o.no_redundancy)
    }
}

/// Gives the order, writes the cluster file, and waits.
pub fn run(command: &Command) -> Result<(), Error> {
    let (named, shared) = command.parts();
    let file = shared.cluster.load()?;
    let before = Overview::ask_patiently(&file, &shared.cluster.file)?;
    let cluster = file.with_changes(&before.changes)?;
    let leave = named.removed.iter();
    let leave = leave.map(|name| named::node(&cluster, &shared.cluster.file, name));
    let leave = leave.collect::<Result<Vec<&Node>, _>>()?;
    let replaced = leave.first().copied();
    let replaced = replaced.filter(|_| !named.added.is_empty());
    let new = new_nodes(&cluster, named.added, named.role, replaced)?;
    let order = cluster.order(&new, named.lines, &leave)?;
    let after = check_order(&cluster, &order)?;
    let groups = before.status().map_or(Vec::new(), |status| status.groups);
    if shared.dry_run {
        let plan = Plan::new(&cluster, &after, &groups, (&new, named.removed));
        plan.print(shared.json);
    }
    if !command.accepts_none_to_fail() {
        refuse_the_last(&cluster, &after, &groups)?;
    }
    if shared.dry_run {
        admin::check_members(&cluster, before.changes.len(), &order)?;
        return Ok(());
    }
    admin::change_members(&cluster, before.changes.len(), &order)?;
    let all = [&before.changes[..], &order].concat();
    let path = &shared.cluster.file;
    write_file(path, &all)?;
    if !shared.json {
        new.iter().for_each(|node| {
            println!(
                "start {} on {}, with a copy of {} and the key file: wirepaxos node -c {} -n {}",
                node.name,
                node.address.ip(),
                path.display(),
                path.display(),
                node.name
            );
        });
    }
    await_end(shared, &after)
}

/// Lays the changes over the cluster file of this machine, whose comments stay.
fn write_file(path: &Path, changes: &[MemberChange]) -> Result<(), Error> {
    node::cluster_file::rewrite(path, changes).map_err(|why| {
        let how = "copy the file of another node's machine once the change is done";
        Error::new(format!("the order is accepted, but {why}; {how}"))
    })
}

/// Prints what the change waits for, until it is done.
fn await_end(shared: &Shared, cluster: &ClusterFile) -> Result<(), Error> {
    let until = Instant::now() + Duration::from_secs(shared.wait);
    let path = &shared.cluster.file;
    let mut said = String::new();
    loop {
        // Controllers begin anew, too, and are silent for a moment.
        let seen = Overview::ask(cluster, path).ok();
        let missing = match &seen {
            Some(seen) => seen.missing(cluster),
            None => Some("no controller answers".to_owned()),
        };
        if let (None, Some(seen)) = (&missing, &seen) {
            write_file(path, &seen.changes)?;
            let groups = seen.groups(&cluster.with_changes(&seen.changes)?, None);
            match shared.json {
                true => println!("{}", json!({ "done": true, "groups": groups })),
                false => groups
                    .iter()
                    .flat_map(super::lines)
                    .for_each(|l| println!("{l}")),
            }
            return Ok(());
        }
        let missing = missing.unwrap_or_default();
        if Instant::now() >= until {
            let how = "it goes on by itself; watch it with `wirepaxos members --wait 60`";
            return Err(Error::new(format!("not yet: {missing}; {how}")));
        }
        if !shared.json && said != missing {
            println!("waits: {missing}");
            said = missing;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
