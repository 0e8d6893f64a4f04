// SPDX-License-Identifier: Apache-2.0
//! A replica's state as files: fetched from a running replica, and put where another replica begins
//! with it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use paxos::Instance;
use replica::Install;
use replica::storage::{private_directory, sync_directory_of};

use super::client::{Interrupt, Peer};
use super::incoming::{Head, Incoming};
use super::linked_copy::LinkedCopy;
use super::wire::Trust;
use super::{Patience, Question, incoming};
use crate::Error;
use crate::cluster_file::{ClusterFile, Group, Node, Role};
use crate::roles::replica::{Note, OpenApplication, Partition, lock_directory};

/// The place of a state that is being fetched, in a node's directory, and the place where [`put`]
/// opens stores temporarily.
pub const INTO: &str = "incoming";
const SCRATCH: &str = "opened";

/// Fetches the state of a running replica into a new directory, and returns the position of each
/// partition. `progress` is told the number of MiB that have come; an `interrupt` ends it early.
pub fn make(
    cluster: &ClusterFile,
    node: &Node,
    to: &Path,
    interrupt: &Arc<Interrupt>,
    mut progress: impl FnMut(u64),
) -> Result<Vec<Instance>, Error> {
    let group = group_of(cluster, node)?;
    if to.exists() {
        let to = to.display();
        return Err(Error::new(format!(
            "{to} is there already: choose a new directory"
        )));
    }
    let needs = vec![Some(0); usize::from(group.partitions)];
    let question = Question::new(&cluster.deployment(node, group), needs);
    let trust = Trust::of_outside(cluster)?;
    let mut peer = Peer::new(node.control, Patience::default(), interrupt.clone(), trust);
    let failed =
        |why: &dyn std::fmt::Display| Error::new(format!("no copy of {}: {why}", node.name));
    let (state, positions) = peer.hold(&question).map_err(|e| failed(&e))?;
    let head = Head {
        from: node.control,
        state,
        positions: positions.clone(),
    };
    let fetched = under_another_name(to, |to| {
        let mut incoming = Incoming::begin(to, head)?;
        let mut mib = 0;
        for pid in 0..positions.len() as u16 {
            while !incoming.is_whole(pid) {
                let part = peer.part(state, pid, incoming.wants(pid));
                let (bytes, last) = part.map_err(|e| io::Error::other(e.to_string()))?;
                incoming.add(pid, &bytes, last)?;
                mib += 1;
                progress(mib);
            }
        }
        incoming.sync()
    });
    peer.release(state);
    fetched.map_err(|e| failed(&e))?;
    Ok(positions)
}

/// The suffix of a copy that isn't whole.
pub const UNFINISHED: &str = "unfinished";

/// Returns the name that a copy has until it is whole.
pub fn unfinished(copy: &Path) -> PathBuf {
    let mut name = copy.as_os_str().to_owned();
    name.push(".");
    name.push(UNFINISHED);
    name.into()
}

/// Makes a copy under a temporary name. It gets its own name once it is whole and on the disk; if
/// `make` fails, nothing is left of it.
pub fn under_another_name<T>(
    to: &Path,
    make: impl FnOnce(&Path) -> io::Result<T>,
) -> io::Result<T> {
    let unfinished = unfinished(to);
    incoming::remove(&unfinished)?;
    let made = make(&unfinished).and_then(|made| {
        fs::rename(&unfinished, to)?;
        Ok(made)
    });
    if made.is_err() {
        let _ = incoming::remove(&unfinished);
    }
    sync_directory_of(to)?;
    made
}

/// Removes the rest of a [`put`] that was killed from a node's directory. No replica would take it
/// for a state, but it takes room.
pub fn clear(directory: &Path) -> io::Result<()> {
    incoming::remove(&unfinished(&directory.join(INTO)))?;
    incoming::remove(&directory.join(SCRATCH))
}

/// Prepares a replica that is new or has lost its disk to begin with a copy at its next start.
/// `open` opens the application that the group executes.
pub fn put(
    cluster: &ClusterFile,
    node: &Node,
    from: &Path,
    open: &OpenApplication,
) -> Result<Vec<Instance>, Error> {
    let group = group_of(cluster, node)?;
    let directory = cluster.node_dir(node);
    let io = |e: io::Error| Error::store(format!("{}: {e}", directory.display()));
    if !cluster.data.is_dir() {
        private_directory(&cluster.data).map_err(io)?;
    }
    let _locked = lock_directory(&directory, node)?;
    private_directory(&directory).map_err(io)?;
    let in_use = (0..group.partitions).map(|pid| cluster.partition_dir(node, pid));
    for path in in_use.chain([INTO, "install"].map(|name| directory.join(name))) {
        if path.exists() {
            return Err(Error::new(format!(
                "{} is there: {} has a state. If that is of no use, stop the node and move its \
                 directory away",
                path.display(),
                node.name
            )));
        }
    }
    let (into, scratch) = (directory.join(INTO), directory.join(SCRATCH));
    clear(&directory).map_err(io)?;
    let refused = |e: io::Error| Error::new(format!("{}: {e}", from.display()));
    let laid = under_another_name(&into, |into| {
        let deployment = cluster.deployment(node, group);
        let Some(linked) = LinkedCopy::open(from, &deployment)? else {
            return lay(from, into, cluster, node, group);
        };
        let settings = |pid| Partition::of(cluster, node, group, pid).settings();
        let laid = linked.unpack(settings, open, &scratch, into, node.control);
        Ok(laid?.head.positions)
    });
    incoming::remove(&scratch).map_err(io)?;
    let positions = laid.map_err(refused)?;
    let mut note = Note::new(&directory, cluster.deployment(node, group));
    note.write(&Install::new(positions.clone())).map_err(io)?;
    Ok(positions)
}

/// Copies a copy made of parts to the place of a state that is being fetched, after reading it to
/// its end.
fn lay(
    from: &Path,
    into: &Path,
    cluster: &ClusterFile,
    node: &Node,
    group: &Group,
) -> io::Result<Vec<Instance>> {
    let copy = whole(from, cluster, node, group)?;
    private_directory(into)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = into.join(entry.file_name());
        fs::copy(entry.path(), &to)?;
        File::open(&to)?.sync_all()?;
    }
    File::open(into)?.sync_all()?;
    Ok(copy.head.positions)
}

/// Returns a copy after reading it to its end.
fn whole(from: &Path, cluster: &ClusterFile, node: &Node, group: &Group) -> io::Result<Incoming> {
    let refused = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let copy = Incoming::check(from)?;
    let copy = copy.ok_or_else(|| refused("this is no copy of a replica's state".into()))?;
    let deployment = cluster.deployment(node, group);
    for pid in 0..copy.head.positions.len() as u16 {
        if !copy.is_whole(pid) {
            return Err(refused(format!(
                "the copy of partition {pid} is damaged or not whole: take another copy"
            )));
        }
        let named = replica::is_state_of(&deployment, pid, &mut copy.read(pid)?);
        named.map_err(|e| refused(e.to_string()))?;
    }
    if copy.head.positions.len() != usize::from(group.partitions) {
        return Err(refused("it has another number of partitions".into()));
    }
    Ok(copy)
}

fn group_of<'a>(cluster: &'a ClusterFile, node: &Node) -> Result<&'a Group, Error> {
    let group = node.group.and_then(|id| cluster.group(id));
    let group = group.filter(|_| node.role == Role::Replica);
    group.ok_or_else(|| Error::new(format!("{} is no replica", node.name)))
}
