// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos controller`: repairs and moves the controller's store.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use local_cluster::Error;
use node::cluster_file::Node;
use node::{ClusterFile, RebuildOptions, RebuiltStore, RecordMove};
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
    /// Move the record of epochs from the controllers' files into an etcd, or back
    Move(MoveOptions),
}

/// The steps of a move, in the command's help.
const STEPS: &str = "Stop all controllers first; the other nodes go on serving. The cluster file \
                     has [controller.etcd] during the move, in both directions. Run it on the \
                     machine of one controller.

To etcd, with 3 or 5 controllers name the files epochs.json of most of them: copy them to this \
                     machine. Then start the controllers with that cluster file.

To a file, remove [controller.etcd] from all cluster files afterwards, and start this controller \
                     first; others need empty data directories.

A move that was interrupted is finished by the same command.";

/// Options of `controller move`.
#[derive(Args)]
#[command(after_help = STEPS)]
pub struct MoveOptions {
    #[command(flatten)]
    cluster: Cluster,
    /// The controller on this machine, if there are several
    #[arg(long)]
    name: Option<String>,
    /// Where the record is to be
    #[arg(long, value_enum)]
    to: Place,
    /// The files that have the record now [default: this controller's]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Where a record of epochs can be.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Place {
    Etcd,
    File,
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
    match command {
        Command::Rebuild(options) => rebuild(options),
        Command::Move(options) => move_record(options),
    }
}

fn move_record(options: &MoveOptions) -> Result<(), Error> {
    let cluster = options.cluster.load()?;
    let controller = controller(&cluster, options.name.as_deref())?;
    let way = match options.to {
        Place::Etcd => RecordMove::ToEtcd(options.files.clone()),
        Place::File if options.files.is_empty() => RecordMove::ToFile,
        Place::File => {
            return Err(Error::new(
                "the record is moved into the controller's own file: name no other",
            ));
        }
    };
    let kept = node::move_record(&cluster, controller, &way)?;
    if let Some(kept) = kept {
        println!("the file that was there is kept as {}", kept.display());
    }
    match options.to {
        Place::Etcd => println!("the record is in etcd: start the controllers"),
        Place::File => println!(
            "the record is in the file of {}: remove [controller.etcd] from the cluster files, \
             and start it",
            controller.name
        ),
    }
    Ok(())
}

fn rebuild(options: &Options) -> Result<(), Error> {
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
                "there are {n} controllers: say by --name which one is meant, one on this machine. \
                 Without an etcd the others join it with empty data directories"
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
