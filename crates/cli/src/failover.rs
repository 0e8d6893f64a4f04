// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos failover`: change the leader by hand.

use std::path::PathBuf;

use clap::Args;
use node::ClusterFile;
use paxos::GroupId;
use serde_json::json;

use local_cluster::Error;
use wirepaxos::admin::change_leader;

/// Options of `wirepaxos failover`.
#[derive(Args)]
pub struct Options {
    /// The cluster file
    #[arg(short, long, default_value = "cluster.toml")]
    cluster: PathBuf,
    /// The group (default: the first one)
    #[arg(long)]
    group: Option<GroupId>,
    /// Name of the node that is to lead (default: the next one alive)
    #[arg(long)]
    to: Option<String>,
    /// OVERRIDE for a cluster in which more than f acceptors lost their memory: goes on from what
    /// the replicas have executed. What only the lost acceptors knew is LOST, acknowledged or not
    #[arg(long)]
    accept_data_loss: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Asks the controller and waits until the new epoch is active.
pub fn run(options: &Options) -> Result<(), Error> {
    let cluster = ClusterFile::load(&options.cluster)?;
    let to = match &options.to {
        Some(name) => {
            let node = cluster.node(name);
            Some(
                node.ok_or_else(|| Error::new(format!("the cluster file has no node {name:?}")))?
                    .id,
            )
        }
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
