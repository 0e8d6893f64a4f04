// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos members add`, `remove` and `replace`: orders the controller to change the acceptors,
//! and waits until that is done.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use control::MemberChange;
use node::ClusterFile;
use node::cluster_file::{Draft, NodeDraft, Role, check_order};
use serde_json::json;

use super::{LOOK_EVERY, Overview};
use command_line::arguments::Cluster;
use local_cluster::Error;
use wirepaxos::admin;

/// Commands of `wirepaxos members`.
#[derive(Subcommand)]
pub enum Command {
    /// Add acceptors while the cluster serves; there must be an odd number of them afterwards
    Add(Add),
    /// Have acceptors leave while the cluster serves
    Remove(Remove),
    /// Put a new acceptor in the place of another one, which may be dead
    Replace(Replace),
}

/// Options of `wirepaxos members add`.
#[derive(Args)]
pub struct Add {
    /// Add acceptors of these names on these machines; ports are chosen unless one is given, and
    /// then the next one is the control port
    #[arg(required = true, value_name = "NAME=IP[:PORT]")]
    nodes: Vec<String>,
    /// Write this line, too, into the new nodes' records in the cluster file; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    lines: Vec<String>,
    #[command(flatten)]
    shared: Shared,
}

/// Options of `wirepaxos members remove`.
#[derive(Args)]
pub struct Remove {
    /// Remove these acceptors
    #[arg(required = true, value_name = "NAME")]
    nodes: Vec<String>,
    #[command(flatten)]
    shared: Shared,
}

/// Options of `wirepaxos members replace`.
#[derive(Args)]
pub struct Replace {
    /// Remove this acceptor
    #[arg(value_name = "OLD")]
    old: String,
    /// Add an acceptor of this name on this machine
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

/// Gives the order, writes the cluster file, and waits.
pub fn run(command: &Command) -> Result<(), Error> {
    let (added, removed, lines, shared) = match command {
        Command::Add(o) => (&o.nodes[..], &[][..], &o.lines[..], &o.shared),
        Command::Remove(o) => (&[][..], &o.nodes[..], &[][..], &o.shared),
        Command::Replace(o) => (
            std::slice::from_ref(&o.new),
            std::slice::from_ref(&o.old),
            &o.lines[..],
            &o.shared,
        ),
    };
    let file = shared.cluster.load()?;
    let before = Overview::ask(&file, &shared.cluster.file)?;
    let cluster = file.with_changes(&before.changes)?;
    let new = new_nodes(&cluster, added)?;
    let leave = removed.iter().map(|name| cluster.named(name));
    let leave = leave.collect::<Result<Vec<_>, _>>()?;
    let order = cluster.order(&new, lines, &leave)?;
    let after = check_order(&cluster, &order)?;
    if shared.dry_run {
        print_plan(shared, &cluster, &after, &new, removed);
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

/// Returns the records of new acceptors, with numbers that no node of the cluster has ever had.
fn new_nodes(cluster: &ClusterFile, added: &[String]) -> Result<Vec<NodeDraft>, Error> {
    let mut draft = Draft::from(cluster);
    let now = cluster.nodes.iter().map(|node| node.id);
    let ever = cluster.changes().iter().filter_map(MemberChange::node);
    let ever = ever.map(|(_, node)| node);
    let last = now.chain(ever).max().unwrap_or(0);
    let like = cluster.acceptors().first().map(|node| node.storage);
    let mut nodes = Vec::new();
    for (number, text) in (1..).zip(added) {
        let (name, host, port) = parse_node(text)?;
        let node = draft.add_node(Role::Acceptor, host);
        node.name = name.to_owned();
        node.id = last.saturating_add(number);
        node.storage = like;
        if let Some(port) = port {
            node.address = SocketAddr::new(host, port);
            node.control = SocketAddr::new(host, port.saturating_add(1));
        }
        nodes.push(node.clone());
    }
    Ok(nodes)
}

fn parse_node(text: &str) -> Result<(&str, IpAddr, Option<u16>), Error> {
    let read = text.split_once('=').and_then(|(name, at)| {
        let alone = at.parse().map(|host| (host, None));
        let with_port = |_| at.parse().map(|at: SocketAddr| (at.ip(), Some(at.port())));
        let (host, port) = alone.or_else(with_port).ok()?;
        Some((name, host, port))
    });
    read.ok_or_else(|| {
        let example = "give a name and an address, such as acceptor-4=10.0.0.14";
        Error::new(format!("{text:?} isn't NAME=IP or NAME=IP:PORT; {example}"))
    })
}

/// Lays the changes over the cluster file of this machine, whose comments stay.
fn write_file(path: &Path, changes: &[MemberChange]) -> Result<(), Error> {
    node::cluster_file::rewrite(path, changes).map_err(|why| {
        let how = "copy the file of another node's machine once the change is done";
        Error::new(format!("the order is accepted, but {why}; {how}"))
    })
}

fn print_plan(
    shared: &Shared,
    before: &ClusterFile,
    after: &ClusterFile,
    new: &[NodeDraft],
    leave: &[String],
) {
    let begin_anew = before.nodes.iter();
    let begin_anew = begin_anew.filter(|n| !node::cluster_file::is_unaffected(n, before, after));
    let begin_anew: Vec<&str> = begin_anew.map(|n| n.name.as_str()).collect();
    let start: Vec<&str> = new.iter().map(|n| n.name.as_str()).collect();
    let staying = after.acceptors().into_iter().filter(|n| !n.leaving);
    let acceptors: Vec<&str> = staying.map(|n| n.name.as_str()).collect();
    if shared.json {
        println!(
            "{}",
            json!({
                "start": start, "begin_anew": begin_anew, "leave": leave, "acceptors": acceptors
            })
        );
        return;
    }
    println!("acceptors afterwards: {}", acceptors.join(", "));
    println!("all nodes keep the change in their directories");
    println!(
        "one after the other, these begin anew in their processes, who leads and the controller \
         last: {}",
        begin_anew.join(", ")
    );
    if !start.is_empty() {
        println!("you start: {}", start.join(", "));
    }
    if !leave.is_empty() {
        println!(
            "these end by themselves, once no epoch counts on them: {}",
            leave.join(", ")
        );
    }
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
