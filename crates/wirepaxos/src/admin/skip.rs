// SPDX-License-Identifier: Apache-2.0
//! An operator's order that a command on which programs die takes no effect.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use client::ControlClient;
use control::Message;
use node::ClusterFile;
use paxos::{GroupId, Instance, PartitionId};
use serde_json::Value;

use super::status::ask_all;
use crate::Error;

/// How long the order's effect is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
const ASK_INTERVAL: Duration = Duration::from_millis(300);

/// The result of the order.
#[derive(Debug)]
pub struct Skipped {
    /// A description of the command, by the application.
    pub command: String,
    /// The names of the replicas that got the order.
    pub told: Vec<String>,
    /// The names of the replicas that were silent when the order was given.
    pub silent: Vec<String>,
}

/// Orders that the command before which replicas wait takes no effect, in this instance of the
/// group's partition, and waits until the replicas have passed it. A silent replica may have
/// executed the command and answered its client; the order counts nevertheless, so that replica's
/// state differs from then on.
///
/// # Errors
/// [`Error::Denied`] if no replica waits there, or if one has passed the instance, whose state the
/// others then fetch. [`Error::TimedOut`] if the order isn't carried out in time.
pub fn skip(
    cluster: &ClusterFile,
    group: GroupId,
    pid: PartitionId,
    instance: Instance,
) -> Result<Skipped, Error> {
    let answers = ask_all(cluster)?;
    let mut skipped = Skipped {
        command: String::new(),
        told: Vec::new(),
        silent: Vec::new(),
    };
    let mut tell = Vec::new();
    for replica in cluster.replicas(group) {
        let partition = answers.get(&replica.name).map(|a| partition(a, pid));
        let Some(partition) = partition.filter(|p| p.is_object()) else {
            skipped.silent.push(replica.name.clone());
            continue;
        };
        let next = partition["next"].as_u64().unwrap_or(0);
        if next > instance {
            return Err(Error::Denied(format!(
                "{} has passed instance {instance}: the other replicas fetch its state, and \
                 nothing is to be skipped",
                replica.name
            )));
        }
        if let Some(command) = waits_at(partition, instance) {
            skipped.command = command.to_owned();
            skipped.told.push(replica.name.clone());
            tell.push(replica.control);
        }
    }
    if tell.is_empty() {
        return Err(Error::Denied(format!(
            "no replica of group {group} waits in front of instance {instance} of partition {pid}: \
             `wirepaxos status --json` shows as `deadly` where one does"
        )));
    }
    let mut socket = ControlClient::new(cluster)?;
    let order = Message::Skip {
        group,
        pid,
        instance,
    };
    socket.check_order(&order)?;
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        tell_all(&mut socket, &tell, &order);
        let answers = ask_all(cluster)?;
        let passed = |name: &String| has_passed(&answers, name, pid, instance);
        if skipped.told.iter().all(passed) {
            return Ok(skipped);
        }
    }
    Err(Error::TimedOut(format!(
        "the replicas still wait in front of instance {instance}, which they were told to skip"
    )))
}

/// Sends an order to these replicas, and gives them time to answer.
fn tell_all(socket: &mut ControlClient, replicas: &[SocketAddr], order: &Message) {
    replicas.iter().for_each(|&to| socket.send(to, order));
    // An answer may be a challenge, which `receive` answers.
    let until = Instant::now() + ASK_INTERVAL;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        let _ = socket.receive(left);
    }
}

fn has_passed(
    answers: &BTreeMap<String, Value>,
    name: &str,
    pid: PartitionId,
    instance: Instance,
) -> bool {
    let next = answers
        .get(name)
        .map(|a| partition(a, pid)["next"].as_u64());
    next.flatten().is_some_and(|next| next > instance)
}

fn partition(answer: &Value, pid: PartitionId) -> &Value {
    let partitions = answer["partitions"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let own = partitions
        .iter()
        .find(|p| p["pid"].as_u64() == Some(pid.into()));
    own.unwrap_or(&Value::Null)
}

fn waits_at(partition: &Value, instance: Instance) -> Option<&str> {
    let deadly = &partition["deadly"];
    let is_there = deadly["instance"].as_u64() == Some(instance);
    deadly["command"].as_str().filter(|_| is_there)
}
