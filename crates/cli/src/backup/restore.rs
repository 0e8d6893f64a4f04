// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos backup restore`: makes a new cluster from a backup.

use std::path::PathBuf;

use clap::Args;
use local_cluster::Error;
use node::archive::Moment;
use node::backup::{Catalog, restore};
use node::{ClusterFile, utc};
use serde_json::json;

use super::{open, positions, to_json};

const HELP: &str = "\
The new cluster has a number, keys and addresses of its own, and may have more or fewer nodes: \
`wirepaxos init` writes its file. Run this with that file on each machine that has a replica or \
the first controller, before any node is started: it lays what the nodes of that machine begin \
with. A replica whose machine was left out takes the state of another one when it starts. If the \
first controller's was left out, the restored replicas stop with an ALARM: stop all nodes, empty \
their directories, and restore again. Sessions of the old cluster end: clients open new ones.";

/// Options of `backup restore`.
#[derive(Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// Look into this directory
    directory: PathBuf,
    /// Take this backup instead of the newest
    name: Option<String>,
    /// Make the cluster of this cluster file
    #[arg(long, value_name = "FILE")]
    into: PathBuf,
    /// Bring back this moment, if all that was decided since the backup is archived: a time in
    /// UTC, like 2026-11-28T19:00:05Z, or how many instances were executed (of one of several
    /// partitions: GROUP/PARTITION/INSTANCE). `backup list` shows which there are
    #[arg(long, value_name = "TIME|INSTANCE")]
    to: Option<Moment>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Lays what the nodes of this machine begin with.
pub fn run(options: &Options) -> Result<(), Error> {
    let cluster = ClusterFile::load(&options.into)?;
    let catalog = Catalog::open(&options.directory)?;
    let wanted = options.name.as_deref();
    let (name, mut manifest, goal) = match options.to {
        Some(moment) => {
            let (name, manifest, goal) = catalog.find_for(wanted, moment)?;
            (name, manifest, Some(goal))
        }
        None => {
            let (name, manifest) = catalog.find(wanted)?;
            (name, manifest, None)
        }
    };
    let path = catalog.path(&name);
    let restored = restore(&cluster, (&path, &manifest), goal.as_ref(), open)?;
    manifest.groups.clone_from(&restored.groups);
    let to = goal.map(|goal| utc::shown(goal.until.time_ms));
    if options.json {
        let said = json!({
            "name": name,
            "to": to,
            "groups": to_json(&name, &manifest)["groups"],
            "replicas": restored.replicas,
            "controller": restored.controller,
        });
        println!("{said}");
        return Ok(());
    }
    let nodes: Vec<_> = restored
        .replicas
        .iter()
        .chain(&restored.controller)
        .collect();
    for node in nodes {
        println!("{node} begins with {name}");
    }
    if let Some(to) = to {
        println!("and with what was archived until {to} UTC");
    }
    positions(&manifest).for_each(|line| println!("{line}"));
    println!(
        "Start all nodes once this was done on each machine with a replica or the first controller"
    );
    Ok(())
}
