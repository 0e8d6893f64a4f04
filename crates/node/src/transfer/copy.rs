// SPDX-License-Identifier: Apache-2.0
//! A replica's state as files: fetched from one that runs, and put where another one begins with it.
//!
//! The files are those of a state on its way ([`super::incoming`]), and beginning with them is an install that
//! needs no other replica. So a copy of several partitions is one that a replica could have been in, its
//! parts have checksums, and it holds session table and position. [X-HOLD] [X-INSTALL]

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

use paxos::Instance;
use replica::Install;
use replica::storage::private_directory;

use super::client::Peer;
use super::incoming::{Head, Incoming};
use super::{Patience, Question};
use crate::Error;
use crate::cluster_file::{ClusterFile, Group, Node, Role};
use crate::roles::replica::Note;

/// Fetches the state of a replica that runs, into a directory that isn't there yet. Returns where each of its
/// partitions stands. `progress` is told the number of MiB that have come.
pub fn make(
    cluster: &ClusterFile,
    node: &Node,
    to: &Path,
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
    let mut peer = Peer::new(node.control, Patience::default(), Arc::default());
    let failed =
        |why: &dyn std::fmt::Display| Error::new(format!("no copy of {}: {why}", node.name));
    let (state, positions) = peer.hold(&question).map_err(|e| failed(&e))?;
    let head = Head {
        from: node.control,
        state,
        positions: positions.clone(),
    };
    let fetch = || -> io::Result<()> {
        // Under another name until it is whole.
        let unfinished = to.with_extension("unfinished");
        let mut incoming = Incoming::begin(&unfinished, head)?;
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
        incoming.sync()?;
        fs::rename(&unfinished, to)?;
        sync_parent(to)
    };
    let fetched = fetch();
    peer.release(state);
    fetched.map_err(|e| failed(&e))?;
    Ok(positions)
}

/// Has a replica that is new, or has lost its disk, begin with a copy when it is started next.
pub fn put(cluster: &ClusterFile, node: &Node, from: &Path) -> Result<Vec<Instance>, Error> {
    let group = group_of(cluster, node)?;
    let directory = cluster.node_dir(node);
    let io = |e: io::Error| Error::store(format!("{}: {e}", directory.display()));
    private_directory(&directory).map_err(io)?;
    let in_use = (0..group.partitions).map(|pid| cluster.partition_dir(node, pid));
    for path in in_use.chain(["incoming", "install"].map(|name| directory.join(name))) {
        if path.exists() {
            return Err(Error::new(format!(
                "{} is there: {} has a state. If that is of no use, stop the node and move its directory away",
                path.display(),
                node.name
            )));
        }
    }
    let copy = whole(from, cluster, node, group)?;
    let positions = copy.head.positions.clone();
    let into = directory.join("incoming");
    let put = || -> io::Result<()> {
        private_directory(&into)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let to = into.join(entry.file_name());
            fs::copy(entry.path(), &to)?;
            File::open(&to)?.sync_all()?;
        }
        File::open(&into)?.sync_all()?;
        let mut note = Note::new(&directory, cluster.deployment(node, group));
        note.write(&Install::new(positions.clone()))
    };
    put().map_err(io)?;
    Ok(positions)
}

/// A copy, once it has been read to its end.
fn whole(
    from: &Path,
    cluster: &ClusterFile,
    node: &Node,
    group: &Group,
) -> Result<Incoming, Error> {
    let refused = |why: &str| Error::new(format!("{}: {why}", from.display()));
    let copy = Incoming::check(from).map_err(|e| refused(&e.to_string()))?;
    let copy = copy.ok_or_else(|| refused("this is no copy of a replica's state"))?;
    let deployment = cluster.deployment(node, group);
    for pid in 0..copy.head.positions.len() as u16 {
        if !copy.is_whole(pid) {
            return Err(refused(&format!(
                "the copy of partition {pid} is damaged or not whole: take another copy"
            )));
        }
        let mut state = copy.read(pid).map_err(|e| refused(&e.to_string()))?;
        replica::is_state_of(&deployment, pid, &mut state).map_err(|e| refused(&e.to_string()))?;
    }
    if copy.head.positions.len() != usize::from(group.partitions) {
        return Err(refused("it has another number of partitions"));
    }
    Ok(copy)
}

fn group_of<'a>(cluster: &'a ClusterFile, node: &Node) -> Result<&'a Group, Error> {
    let group = node.group.and_then(|id| cluster.group(id));
    let group = group.filter(|_| node.role == Role::Replica);
    group.ok_or_else(|| Error::new(format!("{} is no replica", node.name)))
}

fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}
