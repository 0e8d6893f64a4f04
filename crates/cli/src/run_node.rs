// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos node`: one node of a cluster, until it is told to stop.

use clap::Args;
use node::Stop;
use node::cluster_file::Plane;
use serde_json::json;

use crate::arguments::{Cluster, plane_of_node};
use local_cluster::Error;
use wirepaxos::Program;

/// Options of `wirepaxos node`.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    cluster: Cluster,
    /// Name of the node in the cluster file
    #[arg(short, long)]
    name: String,
    /// Where it handles its packets, whatever the cluster file says: udp, xdp, dpdk, or auto: xdp where
    /// that is possible
    #[arg(long, value_parser = plane_of_node)]
    plane: Option<Plane>,
    /// Print one JSON object when the node has ended in good order
    #[arg(long)]
    json: bool,
}

/// Runs the node. SIGTERM, SIGINT, SIGHUP and `wirepaxos stop` end it in good order: what it knows is
/// stored first. In the kernel a signal ends the process alone, and its role serves on.
pub fn run(options: &Options) -> Result<(), Error> {
    let mut cluster = options.cluster.load()?;
    if let Some(plane) = options.plane {
        cluster.set_plane(&options.name, plane)?;
    }
    let stop = Stop::new()?;
    stop.on_signals()?;
    wirepaxos::run(&cluster, &options.name, &Program::configured(), &stop)?;
    if options.json {
        println!("{}", json!({ "node": options.name, "stopped": true }));
    }
    Ok(())
}
