// SPDX-License-Identifier: Apache-2.0
//! Makes a lost store anew. It runs at the controller's addresses, so no controller can run beside
//! it there.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use control::{GroupState, Message, OUTSIDE, Rebuild, Rebuilt, StoreError};
use paxos::{GroupId, NodeId, Packet, Time, Verdict};
use replica::storage::private_directory;
use serde_json::Value;

use super::event::Event;
use super::events::Events;
use super::settings;
use super::sockets::{ControlWays, Outgoing};
use crate::cluster_file::{ClusterFile, Node};
use crate::control_peers::ControlPeers;
use crate::control_socket::ControlSender;
use crate::host::Stop;
use crate::plane::{Ports, refuse_deafness};
use crate::roles::links::Links;
use crate::roles::rotation::Rotation;
use crate::roles::sockets::{self as behind_sockets, Role};
use crate::store::{LostRecord, LostStore};
use crate::{Error, random_nonce, status};

/// How long a controller that acts may take to say so.
const ASK: Duration = Duration::from_millis(500);

/// Options of [`rebuild`].
#[derive(Clone, Copy, Debug)]
pub struct RebuildOptions {
    /// The operator vouches that no old copy of an acceptor's files was put back.
    pub trusts_disks: bool,
    /// How long nodes that don't answer are waited for.
    pub patience: Duration,
}

/// A store that was made anew.
#[derive(Debug)]
pub struct RebuiltStore {
    /// The result for each group.
    pub groups: Vec<Rebuilt>,
    /// The place where the replaced file is kept, if there was one.
    pub kept: Option<PathBuf>,
}

/// Makes the controller's store anew from what the nodes know. Nothing is written if that can't be
/// done for each group whose state is lost. [E-REBUILD]
pub fn rebuild(
    cluster: &ClusterFile,
    node: &Node,
    options: RebuildOptions,
) -> Result<RebuiltStore, Error> {
    refuse_another_that_acts(cluster)?;
    refuse_deafness(cluster, node)?;
    let (directory, store) = Place::open(cluster, node)?;
    let seed = random_nonce()?;
    let (stop, ports) = (Stop::new()?, Ports::default());
    let outcome = Rc::new(RefCell::new(None));
    let left = |group| store.left_of(group);
    let role = |control: ControlSender| Asker {
        rebuild: Rebuild::new(&settings(cluster, node), left, options.trusts_disks, seed),
        ways: ControlWays::new(control),
        told: Vec::new(),
        names: cluster
            .nodes
            .iter()
            .map(|n| (n.id, n.name.clone()))
            .collect(),
        started: Instant::now(),
        patience: options.patience,
        stop: Arc::clone(&stop),
        outcome: Rc::clone(&outcome),
    };
    let mut rotation = Rotation::new(&stop, &ports);
    behind_sockets::run(cluster, node, &mut rotation, |_, control| {
        Ok(role(control.sender()))
    })?;
    let outcome = outcome.borrow_mut().take();
    let groups = outcome
        .unwrap_or_else(|| Err("it was stopped".into()))
        .map_err(|why| {
            Error::new(format!(
                "the store can't be made anew, and nothing was changed: {why}. If that can't be \
                 done, see \"The controller's store is lost\" in docs/operations/trouble.md"
            ))
        })?;
    let states = groups.iter();
    let states: Vec<_> = states
        .filter_map(|g| Some((g.group, g.state.clone()?)))
        .collect();
    if states.is_empty() {
        return Err(Error::new(
            "no node that answers shows a later epoch than the controller's store, so nothing was \
             changed: start the controller",
        ));
    }
    let rebuilt: Vec<_> = states.iter().map(|(group, _)| *group).collect();
    let kept = store.replace(states.into_iter());
    let kept = kept.map_err(|e| Error::store(e.to_string()))?;
    let mut events = Events::open(&directory, cluster.cluster);
    for group in rebuilt {
        let text = "the controller's store is made anew by `wirepaxos controller rebuild`";
        events.keep(Event::warning("store_rebuilt", text.to_owned()).group(group));
    }
    Ok(RebuiltStore { groups, kept })
}

/// The locked place of a controller's store.
enum Place {
    File(LostStore),
    Etcd(Box<LostRecord>),
}

impl Place {
    /// Returns the controller's directory, and the place of its store.
    fn open(cluster: &ClusterFile, node: &Node) -> Result<(PathBuf, Place), Error> {
        let directory = controllers_directory(cluster, node)?;
        let place = match &cluster.controller.etcd {
            Some(etcd) => LostRecord::open(cluster, node, etcd)
                .and_then(LostRecord::unless_moved)
                .map(|record| Place::Etcd(Box::new(record))),
            None => {
                LostStore::open(&directory.join("epochs.json"), cluster.cluster).map(Place::File)
            }
        };
        Ok((directory, place.map_err(|e| Error::store(e.to_string()))?))
    }

    fn left_of(&self, group: GroupId) -> GroupState {
        match self {
            Place::File(store) => store.left_of(group),
            Place::Etcd(record) => record.left_of(group),
        }
    }

    fn replace(
        self,
        states: impl Iterator<Item = (GroupId, GroupState)>,
    ) -> Result<Option<PathBuf>, StoreError> {
        match self {
            Place::File(store) => store.replace(states),
            Place::Etcd(record) => record.replace(states),
        }
    }
}

/// Returns the directory of a controller, which is made if it isn't there.
pub(super) fn controllers_directory(cluster: &ClusterFile, node: &Node) -> Result<PathBuf, Error> {
    let directory = cluster.node_dir(node);
    private_directory(&directory)
        .map_err(|e| Error::store(format!("can't create {}: {e}", directory.display())))?;
    Ok(directory)
}

/// Returns an error if a controller acts, as its record is newer than what the nodes know.
pub(super) fn refuse_another_that_acts(cluster: &ClusterFile) -> Result<(), Error> {
    let peers = ControlPeers::new(cluster, OUTSIDE);
    let answers = status::ask(&peers, peers.controllers(), ASK)?;
    let acting = cluster.controllers().find(|node| {
        let document = answers.get(&node.control);
        document.is_some_and(|document| document["acts"] == true)
    });
    match acting {
        None => Ok(()),
        Some(acting) => Err(Error::new(format!(
            "{} acts, so nothing needs to be made anew: a controller without its store joins \
            again by itself, with an empty data directory. If it warns that its own store is old, \
            stop all controllers first",
            acting.name
        ))),
    }
}

type Outcome = Result<Vec<Rebuilt>, String>;

/// Asks all nodes until their answers suffice, or the patience is over.
struct Asker {
    rebuild: Rebuild,
    ways: ControlWays,
    told: Vec<(SocketAddr, Message)>,
    names: Vec<(NodeId, String)>,
    started: Instant,
    patience: Duration,
    stop: Arc<Stop>,
    outcome: Rc<RefCell<Option<Outcome>>>,
}

impl Asker {
    fn now(&self) -> Time {
        self.started.elapsed().as_nanos() as Time
    }

    fn conclude(&mut self) {
        let is_over = self.started.elapsed() >= self.patience;
        if self.outcome.borrow().is_some() || !is_over && !self.rebuild.is_complete() {
            return;
        }
        let name = |node| {
            let named = self.names.iter().find(|(id, _)| *id == node);
            named.map_or_else(
                || format!("node {node}, which the cluster file doesn't name,"),
                |(_, name)| name.clone(),
            )
        };
        *self.outcome.borrow_mut() = Some(self.rebuild.outcome(&name));
        self.stop.request();
    }
}

impl Role for Asker {
    fn step(
        &mut self,
        _group: usize,
        packet: &Packet<'_>,
        _datagram: &[u8],
        _links: &mut Links,
    ) -> Result<Verdict, Error> {
        Ok(self.rebuild.packet(packet))
    }

    fn commit(&mut self, _links: &mut Links) -> Result<(), Error> {
        self.ways.send(&mut self.told);
        Ok(())
    }

    fn due_in(&self) -> Option<Duration> {
        let due = self.rebuild.next_deadline().saturating_sub(self.now());
        let over = self.patience.saturating_sub(self.started.elapsed());
        Some(Duration::from_nanos(due).min(over))
    }

    fn tick(&mut self, links: &mut Links) {
        let now = self.now();
        let (ways, told) = (&self.ways, &mut self.told);
        let mut out = Outgoing { links, ways, told };
        self.rebuild.tick(now, &mut out);
        self.conclude();
    }

    fn message(
        &mut self,
        message: &Message,
        from: SocketAddr,
        _links: &mut Links,
    ) -> Result<(), Error> {
        let peer = self.ways.peer(from);
        self.rebuild.message(peer, message);
        Ok(())
    }

    fn status(&self, warnings: &mut Vec<String>) -> Vec<Value> {
        warnings.push("the controller's store is being made anew".into());
        Vec::new()
    }
}
