// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos copy`: copies a replica's state into files while it serves, and lets a replica begin
//! with such a copy.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand};
use local_cluster::Error;
use node::ClusterFile;
use node::cluster_file::Node;
use node::transfer::copy;
use serde_json::json;

use crate::named;
use command_line::arguments::Cluster;

/// Commands of `wirepaxos copy`.
#[derive(Subcommand)]
pub enum Command {
    /// Copy the state of a running replica into a new directory
    Make(Options),
    /// Let a replica that is new, or has lost its disk, begin with a copy at its next start
    Put(Options),
}

/// The options that both commands share.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    cluster: Cluster,
    /// Copy from, or to, this replica
    #[arg(long)]
    name: String,
    /// Use this directory for the copy
    directory: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Makes a copy, or puts one into a replica's directory.
pub fn run(command: &Command) -> Result<(), Error> {
    let (Command::Make(options) | Command::Put(options)) = command;
    let cluster = options.cluster.load()?;
    let node = named::node(&cluster, &options.cluster.file, &options.name)?;
    let directory = &options.directory;
    let kind = application(&cluster, node);
    let positions = match command {
        Command::Make(_) => copy::make(&cluster, node, directory, &Arc::default(), |mib| {
            if mib % 64 == 0 && !options.json {
                eprintln!("{mib} MiB");
            }
        }),
        Command::Put(_) => copy::put(&cluster, node, directory, &move |_, dir| {
            apps::open(kind, dir)
        }),
    };
    let positions = positions.map_err(|e| Error::new(e.to_string()))?;
    if options.json {
        println!("{}", json!({ "name": node.name, "positions": positions }));
        return Ok(());
    }
    let positions: Vec<_> = positions.iter().map(u64::to_string).collect();
    let (name, positions) = (&node.name, positions.join(", "));
    match command {
        Command::Make(_) => {
            println!(
                "{}: the state of {name} at instance {positions}",
                directory.display()
            );
        }
        Command::Put(_) => println!("{name} begins at instance {positions}: start it now"),
    }
    Ok(())
}

/// Returns the name of the application that a replica executes.
fn application(cluster: &ClusterFile, node: &Node) -> &'static str {
    let group = node.group.and_then(|id| cluster.group(id));
    group.map_or("none", |group| group.application.name())
}
