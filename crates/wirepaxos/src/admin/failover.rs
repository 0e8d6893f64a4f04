// SPDX-License-Identifier: Apache-2.0
//! Changes the leader.

use std::time::Duration;

use client::{ControlClient, known_group};
use control::{Message, View};
use node::ClusterFile;
use paxos::{Epoch, GroupId, NodeId};

use super::status;
use crate::Error;

const VIEW_TIMEOUT: Duration = Duration::from_secs(3);
const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);

/// Changes the leader of a group (the first one if `None`) to a node by its id (the next one alive
/// if `None`), and returns the epoch that is active afterwards. `accept_data_loss` overrides the
/// protection of a cluster in which more than f acceptors lost their memory: values that only those
/// acceptors knew are lost.
///
/// # Errors
/// [`Error::TimedOut`] if the controller doesn't answer; [`Error::Denied`], with the reason, if the
/// change isn't possible now, or if controllers answer and none of them acts.
pub fn change_leader(
    cluster: &ClusterFile,
    group: Option<GroupId>,
    to: Option<NodeId>,
    accept_data_loss: bool,
) -> Result<Epoch, Error> {
    let group = known_group(cluster, group.unwrap_or(cluster.groups[0].id))?.id;
    let controllers: Vec<_> = cluster.controllers().map(|n| n.control).collect();
    let mut socket = ControlClient::new(cluster)?;
    let view = socket
        .ask(
            &controllers,
            &Message::ViewRequest { group },
            VIEW_TIMEOUT,
            |_, message| match message {
                Message::View(view) if view.group == group => Some(view),
                _ => None,
            },
        )
        .map_err(|silence| nobody_acts(cluster).unwrap_or(silence.into()))?;
    let order = Message::Failover {
        group,
        epoch: newest_epoch(&view),
        to,
        forced: true,
        accept_data_loss,
    };
    socket.check_order(&order)?;
    let result = socket.ask(
        &controllers,
        &order,
        CHANGE_TIMEOUT,
        |_, message| match message {
            Message::FailoverReply { group: of, result } if of == group => Some(result),
            _ => None,
        },
    )?;
    result.map_err(Error::Denied)
}

/// Returns an error that says why none of several controllers acts, if one of them answers.
fn nobody_acts(cluster: &ClusterFile) -> Option<Error> {
    let document = status::ask_controllers(cluster).ok().flatten()?;
    if document["acts"] != false {
        return None;
    }
    let warnings = document["warnings"].as_array()?.iter();
    let why: Vec<&str> = warnings.filter_map(|w| w.as_str()).collect();
    let why = match why.is_empty() {
        true => "one of them takes over within two seconds; try again".to_owned(),
        false => why.join("; "),
    };
    Some(Error::Denied(format!("no controller acts now: {why}")))
}

fn newest_epoch(view: &View) -> Epoch {
    view.epochs.last().map_or(0, |e| e.epoch)
}
