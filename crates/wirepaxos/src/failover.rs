//! `wirepaxos failover`: change the leader by hand.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use client::ControlClient;
use control::{Message, View};
use node::ClusterFile;
use paxos::{Epoch, GroupId, NodeId};
use serde_json::json;

use crate::error::Error;

const VIEW_TIMEOUT: Duration = Duration::from_secs(3);
const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);

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

/// The operator's order, as a function.
pub fn change_leader(
    cluster: &ClusterFile,
    group: Option<GroupId>,
    to: Option<NodeId>,
    accept_data_loss: bool,
) -> Result<Epoch, Error> {
    let group = group.unwrap_or(cluster.groups[0].id);
    let controllers = [cluster.controller_node().control];
    let mut socket = ControlClient::new(cluster)?;
    let view = socket.ask(
        &controllers,
        &Message::ViewRequest { group },
        VIEW_TIMEOUT,
        |_, message| match message {
            Message::View(view) if view.group == group => Some(view),
            _ => None,
        },
    )?;
    let order = Message::Failover {
        group,
        epoch: newest_epoch(&view),
        to,
        forced: true,
        accept_data_loss,
    };
    let result = socket.ask(
        &controllers,
        &order,
        CHANGE_TIMEOUT,
        |_, message| match message {
            Message::FailoverReply { group: of, result } if of == group => Some(result),
            _ => None,
        },
    )?;
    result.map_err(Error::new)
}

fn newest_epoch(view: &View) -> Epoch {
    view.epochs.last().map_or(0, |e| e.epoch)
}
