// SPDX-License-Identifier: Apache-2.0
//! Makes a new cluster from a backup, one machine at a time: lays the states for its replicas, and
//! the record with which its controller begins.

use std::fs::{self, File};
use std::io;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};

use control::GroupState;
use control::level::FIRST;
use paxos::Instance;
use replica::Install;
use replica::storage::private_directory;

use super::check::check_files;
use super::manifest::{GroupEntry, Manifest};
use super::roll_forward::Goal;
use super::scratch::Scratch;
use super::states::States;
use crate::Error;
use crate::cluster_file::{ClusterFile, Node, Role};
use crate::roles::replica::{Note, OpenApplication, lock_directory};
use crate::store::LostStore;
use crate::transfer::copy::{INTO, under_another_name};
use crate::transfer::incoming::{self, Head};

/// The nodes that begin with the backup.
pub struct Restored {
    /// Replicas that begin with a state.
    pub replicas: Vec<String>,
    /// The controller that begins with the record, if it is on this machine.
    pub controller: Option<String>,
    /// The groups, with where they begin.
    pub groups: Vec<GroupEntry>,
}

/// Lets the nodes of a new cluster that are on this machine begin with the backup at `from` at
/// their first start, or with what it has become by the moment of `goal`. `open` opens the
/// application of a group in an empty directory. After an error nothing is left.
pub fn restore(
    cluster: &ClusterFile,
    (from, manifest): (&Path, &Manifest),
    goal: Option<&Goal>,
    open: impl Fn(&str) -> Result<Box<OpenApplication>, Error>,
) -> Result<Restored, Error> {
    refuse_misfit(cluster, manifest)?;
    let here = nodes_here(cluster)?;
    refuse_used(cluster, &here)?;
    check_files(from, manifest)?;
    let mut made = Vec::new();
    let backup = (from, manifest);
    let laid = lay(cluster, backup, goal, &here, &open, &mut made);
    if laid.is_err() {
        for directory in made {
            let _ = incoming::remove(&directory);
        }
    }
    laid
}

/// Returns an error while a restore of this cluster on this machine hasn't ended. A node that
/// starts now would begin empty.
pub fn refuse_unfinished(cluster: &ClusterFile) -> Result<(), Error> {
    let scratch = scratch_of(cluster);
    match scratch.exists() {
        true => Err(Error::new(format!(
            "{} is there: `wirepaxos backup restore` is at work, or was killed. Wait until it has \
             ended, or else run it again: it says what must be removed before",
            scratch.display()
        ))),
        false => Ok(()),
    }
}

/// Returns the temporary directory, which is there for as long as a restore takes. Clusters that
/// share `data` have one each.
fn scratch_of(cluster: &ClusterFile) -> PathBuf {
    let name = format!("restoring-{:08x}", cluster.cluster);
    cluster.data.join(name)
}

/// Returns an error unless a cluster can be made from the backup.
fn refuse_misfit(cluster: &ClusterFile, manifest: &Manifest) -> Result<(), Error> {
    if cluster.cluster == manifest.cluster {
        return Err(Error::configuration(
            format!(
                "{:08x} is the number of the cluster that was backed up, whose packets would be \
                 taken for this one's",
                cluster.cluster
            ),
            "let `wirepaxos init` write the file of a new cluster",
        ));
    }
    let misfit = |problem: String| {
        let remedy = "correct the cluster file: application and number of partitions of each group \
                      must be those of the backup";
        Err(Error::configuration(problem, remedy))
    };
    for group in &cluster.groups {
        let Some(entry) = manifest.groups.iter().find(|entry| entry.id == group.id) else {
            return misfit(format!("the backup has no group {}", group.id));
        };
        let (own, partitions) = (group.application.name(), entry.positions.len());
        if own != entry.application || usize::from(group.partitions) != partitions {
            return misfit(format!(
                "group {} of the backup is {} with {partitions} partitions, and the cluster file \
                 says {own} with {}",
                group.id, entry.application, group.partitions
            ));
        }
    }
    let missing = |entry: &&GroupEntry| cluster.group(entry.id).is_none();
    match manifest.groups.iter().find(missing) {
        Some(entry) => misfit(format!("the cluster file has no group {}", entry.id)),
        None => Ok(()),
    }
}

/// Returns the nodes whose addresses this machine has.
fn nodes_here(cluster: &ClusterFile) -> Result<Vec<&Node>, Error> {
    let is_here = |node: &&Node| UdpSocket::bind((node.address.ip(), 0)).is_ok();
    let here: Vec<_> = cluster.nodes.iter().filter(is_here).collect();
    let begins = |node: &&Node| matches!(node.role, Role::Replica | Role::Controller);
    match here.iter().any(begins) {
        true => Ok(here),
        false => Err(Error::configuration(
            "this machine has the address of no replica and no controller",
            "run this on the machines that have",
        )),
    }
}

/// Returns an error if one of these nodes has stored anything.
fn refuse_used(cluster: &ClusterFile, nodes: &[&Node]) -> Result<(), Error> {
    for node in nodes {
        let group = node.group.and_then(|id| cluster.group(id));
        let pids = 0..group.map_or(0, |group| group.partitions);
        let of_partitions = pids.map(|pid| cluster.partition_dir(node, pid));
        let mut all = of_partitions.chain([cluster.node_dir(node)]);
        if let Some(path) = all.find(|path| path.exists()) {
            return Err(Error::new(format!(
                "{} is there, and a new cluster begins with empty directories: if it is the rest \
                 of a restore that was killed, remove it",
                path.display()
            )));
        }
    }
    Ok(())
}

fn lay(
    cluster: &ClusterFile,
    (from, manifest): (&Path, &Manifest),
    goal: Option<&Goal>,
    here: &[&Node],
    open: &impl Fn(&str) -> Result<Box<OpenApplication>, Error>,
    made: &mut Vec<PathBuf>,
) -> Result<Restored, Error> {
    let failed = |e: io::Error| Error::store(format!("{}: {e}", cluster.data.display()));
    private_directory(&cluster.data).map_err(failed)?;
    let scratch = Scratch::new(&scratch_of(cluster)).map_err(failed)?;
    // The others of several controllers begin empty, and get the record from the first.
    let first = cluster.controller_node();
    let controller = here.iter().find(|node| node.name == first.name);
    let (mut replicas, mut groups) = (Vec::new(), Vec::new());
    for group in &manifest.groups {
        let of_group = |n: &&&Node| n.role == Role::Replica && n.group == Some(group.id);
        let nodes: Vec<_> = here.iter().filter(of_group).collect();
        if nodes.is_empty() && (controller.is_none() || goal.is_none()) {
            groups.push(group.clone());
            continue;
        }
        let open = open(&group.application)?;
        let mut states = States::new((from, manifest, group), &*open, &scratch);
        let group = match goal {
            Some(goal) => states.bring_to(goal)?,
            None => group.clone(),
        };
        if let Some((first, others)) = nodes.split_first() {
            made.push(cluster.node_dir(first));
            let head = head(first, &group);
            let lay_first = |into: &Path| states.lay(cluster.cluster, head, into);
            begin(cluster, first, &group.positions, lay_first)?;
            replicas.push(first.name.clone());
            for node in others {
                made.push(cluster.node_dir(node));
                let like = cluster.node_dir(first).join(INTO);
                begin(cluster, node, &group.positions, |into| copy_to(&like, into))?;
                replicas.push(node.name.clone());
            }
        }
        groups.push(group);
    }
    if let Some(node) = controller {
        made.push(cluster.node_dir(node));
        record(cluster, node, manifest, &groups)?;
    }
    Ok(Restored {
        replicas,
        controller: controller.map(|node| node.name.clone()),
        groups,
    })
}

/// Lets a replica begin with a state that stands at these positions and that `lay` writes.
fn begin(
    cluster: &ClusterFile,
    node: &Node,
    positions: &[Instance],
    lay: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(), Error> {
    let directory = cluster.node_dir(node);
    let io = |e: io::Error| Error::store(format!("{}: {e}", directory.display()));
    let _locked = lock_directory(&directory, node)?;
    private_directory(&directory).map_err(io)?;
    under_another_name(&directory.join(INTO), lay).map_err(io)?;
    let group = node.group.and_then(|id| cluster.group(id));
    let group = group.ok_or_else(|| Error::new(format!("{} serves no group", node.name)))?;
    let mut note = Note::new(&directory, cluster.deployment(node, group));
    note.write(&Install::new(positions.to_vec())).map_err(io)
}

fn head(node: &Node, group: &GroupEntry) -> Head {
    Head {
        from: node.control,
        state: 0,
        positions: group.positions.clone(),
    }
}

/// Copies a state to another replica of this machine.
fn copy_to(from: &Path, into: &Path) -> io::Result<()> {
    private_directory(into)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = into.join(entry.file_name());
        fs::copy(entry.path(), &to)?;
        File::open(&to)?.sync_all()?;
    }
    File::open(into)?.sync_all()
}

/// Writes the record with which the controller begins.
fn record(
    cluster: &ClusterFile,
    node: &Node,
    manifest: &Manifest,
    groups: &[GroupEntry],
) -> Result<(), Error> {
    let directory = cluster.node_dir(node);
    private_directory(&directory)
        .map_err(|e| Error::store(format!("{}: {e}", directory.display())))?;
    let states = groups.iter().enumerate().map(|(at, group)| {
        // The first group's state has the level.
        let level = if at == 0 { manifest.level } else { FIRST };
        let state = GroupState::begun_from_backup(group.positions.clone(), level);
        (group.id, state)
    });
    let store = LostStore::open(&directory.join("epochs.json"), cluster.cluster);
    let written = store.and_then(|store| store.replace(states));
    written.map_err(|e| Error::store(e.to_string()))?;
    Ok(())
}
