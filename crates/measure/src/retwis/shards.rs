// SPDX-License-Identifier: Apache-2.0
//! Running shards: each a cluster of its own, whose replicas execute the store of
//! `examples/transactions`.

use std::process::Command;
use std::time::Duration;

use client::{Client, ClientOptions};
use local_cluster::processes::Processes;
use local_cluster::{Error, LocalCluster, Shape, programs};
use node::cluster_file::{ApplicationKind, Role};
use node::{ClusterFile, Stop};
use transactions::store::Clusters;

use super::Settings;
use crate::application;
use crate::e2e::Contender;
use crate::{peers, unreplicated};

/// Requests of a session that may be under way.
const WINDOW: u16 = 1024;
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// All shards, each with its processes.
pub(super) struct Running {
    contender: Contender,
    replicas: usize,
    // The processes must be killed before their directory is removed; fields are dropped in this
    // order.
    shards: Vec<(ClusterFile, Processes)>,
    _local: Vec<LocalCluster>,
}

impl Running {
    pub fn start(contender: Contender, settings: &Settings) -> Result<Running, Error> {
        let mut running = Running {
            contender,
            replicas: settings.replicas,
            shards: Vec::new(),
            _local: Vec::new(),
        };
        for _ in 0..settings.shards {
            let shape = shape(contender, settings, ApplicationKind::Own.name());
            let local = LocalCluster::create(&std::env::temp_dir(), &shape)?;
            let shard = match contender {
                Contender::Paxos | Contender::NoPaxos => start_nodes(&local)?,
                Contender::Unreplicated => unreplicated::start(&local, contender.name())?,
                Contender::Peers(protocol) => peers::start(&local, protocol)?,
            };
            running.shards.push(shard);
            running._local.push(local);
        }
        Ok(running)
    }

    /// Opens a client of all shards.
    pub fn open(&self) -> Result<Clusters, Error> {
        let open = |(cluster, _): &(ClusterFile, Processes)| {
            let options = ClientOptions {
                window: WINDOW,
                open_timeout: OPEN_TIMEOUT,
                ..ClientOptions::default()
            };
            Client::open_where(cluster, options, self.contender.counts(self.replicas))
        };
        let clients = self.shards.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Clusters::of(clients))
    }

    /// Returns the processes of all shards.
    pub fn processes(&self) -> Vec<&Processes> {
        self.shards.iter().map(|(_, processes)| processes).collect()
    }
}

/// Returns the shape of one cluster.
pub(super) fn shape(contender: Contender, settings: &Settings, application: &str) -> Shape {
    Shape {
        protocol: contender.of_cluster_file(),
        acceptors: settings.replicas,
        replicas: settings.replicas,
        ..Shape::of(application)
    }
}

/// Starts the nodes of a cluster: replicas run this program, the others `wirepaxos`.
fn start_nodes(local: &LocalCluster) -> Result<(ClusterFile, Processes), Error> {
    let cluster = ClusterFile::load(&local.file)?;
    let mut processes = Processes::new(programs::wirepaxos()?);
    for node in &cluster.nodes {
        if node.role != Role::Replica {
            processes.start_node(local, &node.name)?;
            continue;
        }
        let mut command = Command::new(programs::own()?);
        command.args(["bench", "shard-replica", "-c"]);
        command.arg(&local.file).args(["--name", &node.name]);
        processes.start(command, local.directory(), &node.name)?;
    }
    Ok((cluster, processes))
}

/// Serves as a replica of a shard, until killed.
pub fn serve(cluster: &ClusterFile, name: &str) -> Result<(), Error> {
    let stop = Stop::new()?;
    Ok(wirepaxos::run(cluster, name, &application::shard(), &stop)?)
}
