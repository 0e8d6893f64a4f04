// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos node`: one node of a cluster, until it is told to stop.

use std::path::PathBuf;

use clap::Args;
use node::cluster_file::Plane;
use node::{ClusterFile, Stop};

use local_cluster::Error;
use local_cluster::arguments::plane;
use wirepaxos::Program;

/// Options of `wirepaxos node`.
#[derive(Args)]
pub struct Options {
    /// The cluster file
    #[arg(short, long, default_value = "cluster.toml")]
    cluster: PathBuf,
    /// Name of the node in the cluster file
    #[arg(short, long)]
    name: String,
    /// Where it handles its packets, whatever the cluster file says: udp, xdp, or auto: xdp where
    /// that is possible
    #[arg(long, value_parser = plane)]
    plane: Option<Plane>,
    /// Print one JSON object when the node has ended in good order
    #[arg(long)]
    json: bool,
}

/// Runs the node. SIGTERM, SIGINT, SIGHUP and `wirepaxos stop` end it in good order: what it knows is
/// stored first. In the kernel a signal ends the process alone, and its role serves on.
pub fn run(options: &Options) -> Result<(), Error> {
    let mut cluster = ClusterFile::load(&options.cluster)?;
    if let Some(plane) = options.plane {
        cluster.set_plane(&options.name, plane)?;
    }
    let node = cluster.node(&options.name).ok_or_else(|| {
        let names: Vec<&str> = cluster.nodes.iter().map(|n| n.name.as_str()).collect();
        Error::new(format!(
            "{} has no node {:?}; it has {}",
            options.cluster.display(),
            options.name,
            names.join(", ")
        ))
    })?;
    let stop = Stop::new()?;
    stop.on_signals()?;
    wirepaxos::run(&cluster, &node.name, &Program::configured(), &stop)?;
    if options.json {
        println!(
            "{}",
            serde_json::json!({ "node": node.name, "stopped": true })
        );
    }
    Ok(())
}
