// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos failover`: change the leader by hand.

use clap::Args;
use paxos::GroupId;
use serde_json::json;

use crate::named;
use command_line::arguments::Cluster;
use local_cluster::Error;
use wirepaxos::admin::change_leader;

/// Options of `wirepaxos failover`.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    cluster: Cluster,
    /// Change the leader of this group; by default of the first one
    #[arg(long)]
    group: Option<GroupId>,
    /// Make this node the leader; by default the next one alive
    #[arg(long)]
    to: Option<String>,
    /// OVERRIDE: go on from what the replicas have executed, although more than f acceptors (with
    /// NOPaxos replicas) lost their memory. What only the lost memories knew is LOST, acknowledged
    /// or not
    #[arg(long)]
    accept_data_loss: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Asks the controller for a change, and waits until the new epoch is active.
pub fn run(options: &Options) -> Result<(), Error> {
    let cluster = options.cluster.load()?;
    let to = match &options.to {
        Some(name) => Some(named::node(&cluster, &options.cluster.file, name)?.id),
        None => None,
    };
    let epoch = change_leader(&cluster, options.group, to, options.accept_data_loss)?;
    if options.json {
        println!("{}", json!({ "epoch": epoch }));
    } else {
        println!("epoch {epoch} is active");
    }
    Ok(())
}
