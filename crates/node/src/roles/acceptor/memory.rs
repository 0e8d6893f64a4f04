// SPDX-License-Identifier: Apache-2.0
//! An acceptor's memory on disk: its files, and what an orderly stop leaves.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use paxos::{Acceptor, Deployment};
use replica::storage::{private_directory, replace_file, sync_directory_of};
use tracing::{error, warn};

use super::image;
use super::logged::{LoggedMemory, remembered_bytes};
use crate::cluster_file::{ClusterFile, Node, Storage};
use crate::listen;
use crate::roles::wal::{self, Directory, Owner, Sizes, Wal};
use crate::{Error, random_nonce};

/// Returns the path where a node's kind of storage keeps its votes. Returns an error if there is a
/// memory of the other kind: it must not vote again later, since meanwhile another memory votes
/// under the same node id.
pub fn memory_on_disk(cluster: &ClusterFile, node: &Node) -> Result<PathBuf, Error> {
    let directory = cluster.node_dir(node);
    private_directory(&directory)
        .map_err(|e| Error::store(format!("can't create {}: {e}", directory.display())))?;
    let (dump, log) = (directory.join("acceptor.state"), directory.join("log"));
    let (mine, other) = match node.storage {
        Storage::Volatile => (dump, log),
        Storage::Durable => (log, dump),
    };
    if other.exists() {
        let why = format!("`storage` is {:?} now", node.storage.name());
        return Err(image::unusable(&other, &why));
    }
    Ok(mine)
}

/// Returns the memory of each group that an orderly stop has left.
pub fn read_dump(
    cluster: &ClusterFile,
    node: &Node,
    dump: &Path,
) -> Result<Vec<Option<Acceptor>>, Error> {
    match fs::read(dump) {
        Ok(bytes) => {
            let decoded = image::decode(&bytes, cluster, node);
            decoded.map_err(|why| image::unusable(dump, &why))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            Ok(cluster.groups.iter().map(|_| None).collect())
        }
        Err(e) => Err(image::unusable(dump, &e.to_string())),
    }
}

pub fn remove_dump(dump: &Path) -> Result<(), Error> {
    match image::remove(dump) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::store(format!(
            "can't remove {}: {e}",
            dump.display()
        ))),
        _ => Ok(()),
    }
}

pub fn write_dump(dump: &Path, image: &[u8]) -> Result<(), Error> {
    replace_file(dump, image).map_err(|e| {
        Error::store(format!(
            "can't write {}: {e}; this acceptor will re-join as a new member",
            dump.display()
        ))
    })
}

/// Reads a log, and returns the memory in it.
pub fn read_log<'a>(
    cluster: &'a ClusterFile,
    node: &'a Node,
    log: &Path,
) -> Result<(wal::Read, LoggedMemory<'a>), Error> {
    let directory = Directory::create(log)
        .map_err(|e| Error::store(format!("can't create {}: {e}", log.display())))?;
    let owner = Owner {
        cluster: cluster.cluster,
        node: node.id,
    };
    let sizes = Sizes::of(remembered_bytes(cluster));
    let mut memory = LoggedMemory::new(cluster, node);
    let read = wal::Read::open(Arc::new(directory), owner, sizes, &mut memory)?;
    Ok((read, memory))
}

/// Keeps a copy of a log under another name. The copy takes no room until the log's segments are
/// freed.
pub fn keep_log_as(wal: &mut Wal, aside: &Path) -> Result<(), Error> {
    let from = wal.files().path().to_owned();
    private_directory(aside)
        .map_err(|e| Error::store(format!("can't create {}: {e}", aside.display())))?;
    wal.keep_as(|name, changes| {
        let (from, to) = (from.join(name), aside.join(name));
        if to.exists() {
            return Ok(());
        }
        match changes {
            true => fs::copy(from, to).map(|_| ()),
            false => fs::hard_link(from, to),
        }
    })?;
    fs::File::open(aside)
        .and_then(|directory| directory.sync_all())
        .map_err(|e| Error::store(format!("can't write {}: {e}", aside.display())))
}

/// Sets a durable acceptor's damaged log aside, on an operator's order, so that the acceptor joins
/// as a new member; returns where the log is kept. It is refused while the process runs, and if
/// nothing is damaged. [A-DISCARD]
pub fn forget_log(cluster: &ClusterFile, node: &Node) -> Result<PathBuf, Error> {
    // No process of that name can start while this socket is held.
    let _socket = listen::udp(node.control, "control")?;
    let log = cluster.node_dir(node).join("log");
    let there = |what: &str| Error::store(format!("{} {what}", log.display()));
    if !log.exists() {
        return Err(there("doesn't exist: there is nothing to forget"));
    }
    let why = match read_log(cluster, node, &log) {
        Ok(_) => {
            return Err(there(
                "isn't damaged, and the votes in it are needed: start the acceptor with it",
            ));
        }
        Err(why) => why,
    };
    let aside = put_aside_as(&log, random_nonce()?);
    fs::rename(&log, &aside)
        .and_then(|()| sync_directory_of(&aside))
        .map_err(|e| there(&format!("can't be put aside: {e}")))?;
    warn!(node = node.id, %why, "the log is forgotten, and kept as {}", aside.display());
    Ok(aside)
}

/// Returns the path where a memory that has gone backwards is kept for inspection.
pub fn put_aside_as(memory: &Path, nonce: u64) -> PathBuf {
    let mut name = memory.as_os_str().to_owned();
    name.push(format!(".forgotten-{nonce:016x}"));
    name.into()
}

pub fn say_what_was_put_aside(deployment: &Deployment, aside: &Path) {
    error!(
        node = deployment.node,
        group = deployment.group,
        "THIS MEMORY HAS FORGOTTEN VOTES that the controller had seen: an old copy \
         of its files was put back, or the disk lost writes. It is kept as {}, which may be \
         removed once `wirepaxos members` shows this acceptor's new memory: it joins again with an \
         empty one",
        aside.display()
    );
}
