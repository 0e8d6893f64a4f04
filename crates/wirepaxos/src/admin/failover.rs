//! A change of the leader.

use std::time::Duration;

use client::ControlClient;
use control::{Message, View};
use node::ClusterFile;
use paxos::{Epoch, GroupId, NodeId};

use crate::error::Error;

const VIEW_TIMEOUT: Duration = Duration::from_secs(3);
const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);

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
