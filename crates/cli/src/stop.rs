// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos stop`: stops a cluster in good order, so that a cold start finds everything again.
//!
//! Leaders stop first, so that nothing new is stamped. Replicas execute what is decided and make a
//! checkpoint, acceptors store their votes, and the controller stops last.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::Args;
use client::ControlClient;
use control::Message;
use node::ClusterFile;
use node::cluster_file::Role;
use serde_json::json;

use crate::named;
use command_line::arguments::Cluster;
use local_cluster::Error;
use wirepaxos::admin;

/// The roles in the order in which their nodes are stopped.
const ORDER: [Role; 6] = [
    Role::Leader,
    Role::Sequencer,
    Role::Replica,
    Role::Acceptor,
    Role::Learner,
    Role::Controller,
];
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
const RESEND_AFTER: Duration = Duration::from_millis(500);

/// Options of `wirepaxos stop`.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    cluster: Cluster,
    /// Stop only this node
    #[arg(long)]
    name: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Stops the cluster, or one node of it.
pub fn run(options: &Options) -> Result<(), Error> {
    let cluster = options.cluster.load()?;
    if let Some(name) = &options.name {
        named::node(&cluster, &options.cluster.file, name)?;
    }
    let Stopped { stopped, silent } = stop_nodes(&cluster, options.name.as_deref())?;
    if options.json {
        println!("{}", json!({ "stopped": stopped, "silent": silent }));
    } else {
        println!("stopped: {}", stopped.join(", "));
    }
    match silent.is_empty() {
        true => Ok(()),
        false => Err(not_stopped(&cluster, &silent)?),
    }
}

/// Returns the error of silent nodes, of which those that run still run.
fn not_stopped(cluster: &ClusterFile, silent: &[String]) -> Result<Error, Error> {
    let mut unheard = Vec::new();
    for name in silent {
        if !admin::is_down(cluster, cluster.named(name)?)? {
            unheard.push(name.as_str());
        }
    }
    let unheard = match unheard.is_empty() {
        true => "nothing listens there, so nothing is to be stopped".to_owned(),
        false => format!(
            "{} may be running: out of reach, or with another key file or cluster file",
            unheard.join(", ")
        ),
    };
    Ok(Error::new(format!(
        "no answer from {}: {unheard}",
        silent.join(", ")
    )))
}

/// The names of all nodes that were asked to end.
pub struct Stopped {
    /// These nodes said that they are ending.
    pub stopped: Vec<String>,
    /// These nodes don't run, or can't be reached.
    pub silent: Vec<String>,
}

/// Asks all nodes, or the one of that name, to end, one after the other.
pub fn stop_nodes(cluster: &ClusterFile, only: Option<&str>) -> Result<Stopped, Error> {
    let mut stopped = Vec::new();
    let mut silent = Vec::new();
    for role in ORDER {
        let nodes = cluster.nodes.iter().filter(|n| n.role == role);
        for node in nodes.filter(|n| only.is_none_or(|name| name == n.name)) {
            let list = match stop(cluster, node.control)? {
                true => &mut stopped,
                false => &mut silent,
            };
            list.push(node.name.clone());
        }
    }
    Ok(Stopped { stopped, silent })
}

/// Asks a node to end, and returns whether it said that it is ending.
fn stop(cluster: &ClusterFile, control: SocketAddr) -> Result<bool, Error> {
    let mut socket = ControlClient::new(cluster)?;
    socket.check_order(&Message::Stop)?;
    let start = Instant::now();
    let mut silent_for = 0;
    while start.elapsed() < STOP_TIMEOUT && silent_for < 4 {
        socket.send(control, &Message::Stop);
        match socket.receive(RESEND_AFTER) {
            Some((_, Message::Stopping { .. })) => return Ok(true),
            _ => silent_for += 1,
        }
    }
    Ok(false)
}
