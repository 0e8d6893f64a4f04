// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos controller`: repairs the controller's store.

use std::time::Duration;

use clap::{Args, Subcommand};
use local_cluster::Error;
use node::cluster_file::Node;
use node::{ClusterFile, RebuildOptions, RebuiltStore};
use serde_json::json;

use command_line::arguments::Cluster;

/// The explanation of the risk, in the command's help.
const RISK: &str = "Run it on the controller's machine while no controller runs. All other nodes \
                    should run: each tells the newest record of epochs that it has. f+1 acceptors \
                    of the newest epoch must show that they have promised no later one; otherwise \
                    nothing is written, and the message names who is missing. A group with NOPaxos \
                    can't be made anew: put the newest copy of epochs.json back.

WITH --trust-disks acceptors count that were started while no controller ran. If an old copy of an \
                    acceptor's files was put back meanwhile, ACKNOWLEDGED COMMANDS MAY BE LOST.";

/// Commands of `wirepaxos controller`.
#[derive(Subcommand)]
pub enum Command {
    /// Make the controller's lost, damaged or old store anew from what the nodes know
    Rebuild(Options),
}

/// Options of `controller rebuild`.
#[derive(Args)]
#[command(after_help = RISK)]
pub struct Options {
    #[command(flatten)]
    cluster: Cluster,
    /// The controller whose store is made anew, if there are several
    #[arg(long)]
    name: Option<String>,
    /// Vouch that no old copy of an acceptor's files was put back
    #[arg(long)]
    trust_disks: bool,
    /// Wait at most this many seconds for nodes that don't answer
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    wait: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(command: &Command) -> Result<(), Error> {
    let Command::Rebuild(options) = command;
    let cluster = options.cluster.load()?;
    let controller = controller(&cluster, options.name.as_deref())?;
    let rebuilt = node::rebuild_store(
        &cluster,
        controller,
        RebuildOptions {
            trusts_disks: options.trust_disks,
            patience: Duration::from_secs(options.wait),
        },
    )?;
    let name = &controller.name;
    match options.json {
        true => print_json(&rebuilt),
        false => print_lines(&rebuilt, &options.cluster.file.display().to_string(), name),
    }
    Ok(())
}

/// Returns the controller of that name, or the only one.
fn controller<'a>(cluster: &'a ClusterFile, name: Option<&str>) -> Result<&'a Node, Error> {
    let mut controllers = cluster.controllers();
    let Some(name) = name else {
        return match cluster.controllers().count() {
            1 => Ok(cluster.controller_node()),
            n => Err(Error::new(format!(
                "there are {n} controllers: say by --name which one's store is made anew; the \
                others join it with empty data \
                 directories"
            ))),
        };
    };
    let found = controllers.find(|node| node.name == name);
    found.ok_or_else(|| {
        Error::new(format!(
            "there is no controller {name:?} in the cluster file"
        ))
    })
}

fn print_json(rebuilt: &RebuiltStore) {
    let groups = rebuilt.groups.iter().map(|group| {
        let left_out = group.state.as_ref().and_then(|state| state.left_out);
        json!({
            "group": group.group,
            "rebuilt": group.state.is_some(),
            "newest_shown": left_out.map(|left| left.first - 1),
            "next_epoch": left_out.map(|left| left.last + 1),
        })
    });
    let groups: Vec<_> = groups.collect();
    println!("{}", json!({ "groups": groups, "kept": rebuilt.kept }));
}

fn print_lines(rebuilt: &RebuiltStore, file: &str, controller: &str) {
    for group in &rebuilt.groups {
        let id = group.group;
        match group.state.as_ref().and_then(|state| state.left_out) {
            Some(left) => println!(
                "group {id}: the nodes know of epochs up to {}; the next one is {}",
                left.first - 1,
                left.last + 1
            ),
            None => {
                println!("group {id}: the store isn't older than what the nodes show, and stays")
            }
        }
    }
    if let Some(kept) = &rebuilt.kept {
        println!("the store that was there is kept as {}", kept.display());
    }
    println!("start the controller: wirepaxos node -c {file} --name {controller}");
}
