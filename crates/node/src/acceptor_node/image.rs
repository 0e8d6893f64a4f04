//! The memory of all acceptors of a node as one file: for an orderly stop of a volatile one, and
//! as the snapshots of a durable one's log.
//!
//! ```text
//! count u16, count x { group u16, length u64, what Acceptor::save wrote }, CRC-32 of all before u32
//! ```

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use paxos::{Acceptor, GroupId};

use crate::Error;
use crate::cluster_file::{ClusterFile, Node};

/// All acceptors as bytes.
pub fn encode(acceptors: &[Acceptor]) -> Vec<u8> {
    let saved = acceptors.iter().map(|acceptor| {
        let mut bytes = Vec::new();
        acceptor.save(&mut bytes);
        (acceptor.deployment().group, bytes)
    });
    of_saved(&saved.collect::<Vec<_>>())
}

/// The same of acceptors that were saved, with their groups.
pub fn of_saved(acceptors: &[(GroupId, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&(acceptors.len() as u16).to_be_bytes());
    for (group, saved) in acceptors {
        out.extend_from_slice(&group.to_be_bytes());
        out.extend_from_slice(&(saved.len() as u64).to_be_bytes());
        out.extend_from_slice(saved);
    }
    let crc = crc32fast::hash(&out);
    out.extend_from_slice(&crc.to_be_bytes());
    out
}

/// The acceptors of an image, in the order of the cluster file's groups; `None` for a group that
/// the image doesn't have.
pub fn decode(
    bytes: &[u8],
    cluster: &ClusterFile,
    node: &Node,
) -> Result<Vec<Option<Acceptor>>, String> {
    let (body, crc) = bytes.split_last_chunk::<4>().ok_or("it is too short")?;
    if crc32fast::hash(body) != u32::from_be_bytes(*crc) {
        return Err("its checksum is wrong".to_owned());
    }
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

/// Replaces a file: after a crash the old one is there, or the new one, whole.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = File::create(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    sync_directory_of(path)
}

/// Removes a file for good.
pub fn remove(path: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    sync_directory_of(path)
}

/// Makes what was created, renamed or removed in a file's directory survive a crash.
pub fn sync_directory_of(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// An error about a file that can't be used, with the way out.
pub fn unusable(path: &Path, why: &str) -> Error {
    Error::new(format!(
        "{} can't be used: {why}. Restore what it was written with, or remove it: then this acceptor \
         re-joins as a new member, which is safe while no more than f acceptors do so at once",
        path.display()
    ))
}
