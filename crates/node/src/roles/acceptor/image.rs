// SPDX-License-Identifier: Apache-2.0
//! The memory of all acceptors of a node as one file, which volatile acceptors write at an orderly
//! stop.
//!
//! ```text
//! magic "WPAI", version u16, cluster u32, node u16,
//! count u16, count x { group u16, length u64, what Acceptor::save wrote },
//! CRC-32 of all before u32
//! ```

use std::fs;
use std::io;
use std::path::Path;

use paxos::{Acceptor, Deployment};
use replica::storage::sync_directory_of;

use crate::Error;
use crate::cluster_file::{ClusterFile, Node};
use crate::roles::wal::foreign;

const MAGIC: [u8; 4] = *b"WPAI";
const VERSION: u16 = 2;

/// Returns all acceptors as bytes.
pub fn encode(acceptors: &[Acceptor]) -> Vec<u8> {
    let saved = acceptors.iter().map(|acceptor| {
        let mut bytes = Vec::new();
        acceptor.save(&mut bytes);
        (*acceptor.deployment(), bytes)
    });
    of_saved(&saved.collect::<Vec<_>>())
}

/// Returns acceptors that were saved already, with their deployments, as bytes.
pub fn of_saved(acceptors: &[(Deployment, Vec<u8>)]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&VERSION.to_be_bytes());
    let place = acceptors.first().map(|(d, _)| (d.cluster, d.node));
    let (cluster, node) = place.unwrap_or_default();
    out.extend_from_slice(&cluster.to_be_bytes());
    out.extend_from_slice(&node.to_be_bytes());
    out.extend_from_slice(&(acceptors.len() as u16).to_be_bytes());
    for (deployment, saved) in acceptors {
        out.extend_from_slice(&deployment.group.to_be_bytes());
        out.extend_from_slice(&(saved.len() as u64).to_be_bytes());
        out.extend_from_slice(saved);
    }
    let crc = crc32fast::hash(&out);
    out.extend_from_slice(&crc.to_be_bytes());
    out
}

/// Returns the acceptors of an image, in the order of the cluster file's groups; `None` for a group
/// that the image doesn't have.
pub fn decode(
    bytes: &[u8],
    cluster: &ClusterFile,
    node: &Node,
) -> Result<Vec<Option<Acceptor>>, String> {
    let (body, crc) = bytes.split_last_chunk::<4>().ok_or("it is too short")?;
    if crc32fast::hash(body) != u32::from_be_bytes(*crc) {
        return Err("its checksum is wrong".to_owned());
    }
    let body = of_this_place(body, cluster, node)?;
    let mut acceptors: Vec<Option<Acceptor>> = cluster.groups.iter().map(|_| None).collect();
    let (count, mut rest) = body.split_first_chunk::<2>().ok_or("it is too short")?;
    for _ in 0..u16::from_be_bytes(*count) {
        let (head, tail) = rest.split_first_chunk::<10>().ok_or("it ends too early")?;
        let id = u16::from_be_bytes([head[0], head[1]]);
        let length = u64::from_be_bytes(head[2..].try_into().expect("eight bytes"));
        let length = usize::try_from(length).map_err(|_| "it ends too early")?;
        let (saved, tail) = tail.split_at_checked(length).ok_or("it ends too early")?;
        rest = tail;
        let place = cluster.groups.iter().position(|g| g.id == id);
        let place = place.ok_or_else(|| {
            format!("it holds votes of group {id}, which the cluster file doesn't have")
        })?;
        let group = &cluster.groups[place];
        let acceptor = Acceptor::load(cluster.deployment(node, group), group.slots, saved)
            .map_err(|why| format!("group {id}: {why}"))?;
        if acceptors[place].replace(acceptor).is_some() {
            return Err(format!("it holds group {id} twice"));
        }
    }
    if rest.is_empty() {
        Ok(acceptors)
    } else {
        Err("bytes are left over".to_owned())
    }
}

/// Returns the part of an image after its head, if it is this node's.
fn of_this_place<'a>(
    body: &'a [u8],
    cluster: &ClusterFile,
    node: &Node,
) -> Result<&'a [u8], String> {
    let (head, rest) = body.split_first_chunk::<12>().ok_or("it is too short")?;
    if head[..4] != MAGIC {
        return Err("it is something else".to_owned());
    }
    let version = u16::from_be_bytes([head[4], head[5]]);
    if version != VERSION {
        return Err(format!(
            "it has format {version}, and this program reads format {VERSION}"
        ));
    }
    let of = (
        u32::from_be_bytes(head[6..10].try_into().expect("four bytes")),
        u16::from_be_bytes([head[10], head[11]]),
    );
    match of == (cluster.cluster, node.id) {
        true => Ok(rest),
        false => Err(foreign(of, (cluster.cluster, node.id))),
    }
}

/// Removes a file, durably.
pub fn remove(path: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    sync_directory_of(path)
}

/// Returns an error about a file that can't be used, with the remedy.
pub fn unusable(path: &Path, why: &str) -> Error {
    Error::store(format!(
        "{} can't be used: {why}. Restore what it was written with, or remove it: then this \
         acceptor re-joins as a new member, which is safe while no more than f acceptors do so at \
         once",
        path.display()
    ))
}
