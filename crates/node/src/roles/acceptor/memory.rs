// SPDX-License-Identifier: Apache-2.0
//! An acceptor's memory on disk: which files it is in, and what an orderly stop leaves.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use paxos::{Acceptor, Deployment};
use tracing::error;

use super::image;
use crate::Error;
use crate::cluster_file::{ClusterFile, Node, Storage};

/// Where a node's kind of storage keeps its votes. Refuses to start if a memory of the other kind
/// was left behind: it must not vote again later, since meanwhile another one votes under the same
/// node id.
pub fn memory_on_disk(cluster: &ClusterFile, node: &Node) -> Result<PathBuf, Error> {
    let directory = cluster.node_dir(node);
    image::create_directory(&directory)
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

/// What an orderly stop has left, by group.
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
    image::write(dump, image).map_err(|e| {
        Error::store(format!(
            "can't write {}: {e}; this acceptor will re-join as a new member",
            dump.display()
        ))
    })
}

/// Where a memory that has forgotten is kept, for anybody who wants to look at it.
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
         of its files was put back, or the disk lost writes. It is kept as {}, and this acceptor \
         joins again with an empty one",
        aside.display()
    );
}
