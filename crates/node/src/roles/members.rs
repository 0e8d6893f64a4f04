// SPDX-License-Identifier: Apache-2.0
//! A node's part in changes of the members by command: it keeps the list of all changes, and
//! begins anew with it when the controller says so. [E-CHANGES]

use std::io;
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;

use control::{MemberChange, MembersMessage, Message};

use crate::Error;
use crate::cluster_file::{ClusterFile, Node, is_unaffected};
use crate::level::levels;
use crate::store::KeptMembers;

/// Returns the cluster of a file with the changes laid over it that the nodes of this process have
/// kept.
///
/// # Errors
/// If the file disagrees with a change, if one of the nodes has left, or if this program is too old
/// or too new for what they have kept.
pub fn with_kept_members(cluster: ClusterFile, names: &[&str]) -> Result<ClusterFile, Error> {
    let nodes = names.iter().filter_map(|name| cluster.node(name));
    let kept = nodes.map(|node| KeptMembers::of(&cluster, node).read());
    let kept: Vec<_> = kept.collect::<Result<_, _>>().map_err(Error::store)?;
    let longest = kept.into_iter().max_by_key(Vec::len).unwrap_or_default();
    if longest.is_empty() {
        return Ok(cluster);
    }
    let changed = cluster
        .with_changes(&longest)
        .map_err(Error::Configuration)?;
    let mut had = names.iter().filter(|name| cluster.node(name).is_some());
    match had.find(|name| changed.node(name).is_none()) {
        None => Ok(changed),
        Some(name) => Err(Error::configuration(
            format!("{name} has left this cluster by `wirepaxos members`"),
            "start it no more; its directory isn't needed any longer",
        )),
    }
}

/// The changes that a node knows of.
pub(super) struct Members {
    node: Node,
    place: KeptMembers,
    /// The cluster with which the node works.
    used: ClusterFile,
    uses: usize,
    /// The cluster with all changes on the node's disk.
    newest: ClusterFile,
    writer: Option<Writer>,
    trouble: Option<String>,
}

/// The thread that writes a longer list, since no packet may wait for a disk here.
struct Writer {
    cluster: ClusterFile,
    written: Receiver<io::Result<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Members {
    pub fn open(cluster: &ClusterFile, node: &Node) -> Members {
        Members {
            node: node.clone(),
            place: KeptMembers::of(cluster, node),
            used: cluster.clone(),
            uses: cluster.changes().len(),
            newest: cluster.clone(),
            writer: None,
            trouble: None,
        }
    }

    /// Returns the cluster with all changes that the node has kept.
    pub fn newest(&self) -> &ClusterFile {
        &self.newest
    }

    /// Returns whether the node is no member any more.
    pub fn has_left(&self) -> bool {
        self.newest.node(&self.node.name).is_none()
    }

    /// Returns the answer to a controller that has told so many changes.
    pub fn kept(&self, told: usize) -> Message {
        let kept = self.newest.changes();
        let lost = if kept.len() > told { kept } else { &[] };
        Message::Members(MembersMessage::Kept {
            node: self.node.id,
            kept: kept.len() as u32,
            uses: self.uses as u32,
            levels: levels(),
            trouble: self.trouble.clone(),
            lost: lost.to_vec(),
        })
    }

    /// Keeps a longer list. It counts once it is on the disk, which a later call finds; returns
    /// true then.
    pub fn offer(&mut self, changes: &[MemberChange]) -> bool {
        let has_news = self.finish_writing();
        if self.writer.is_some() {
            return has_news;
        }
        let known = self.newest.changes();
        let (shorter, longer) = match known.len() > changes.len() {
            true => (changes, known),
            false => (known, changes),
        };
        if !longer.starts_with(shorter) {
            let why = "its changes of the members aren't the controller's: one of them has the \
                       data of another time. Remove the wrong one's `members.json`, and start it";
            self.trouble = Some(why.to_owned());
        } else if changes.len() > known.len() {
            match self.used.with_changes(changes) {
                Ok(cluster) => self.write(cluster),
                Err(why) => self.trouble = Some(why.to_string()),
            }
        }
        has_news
    }

    /// Returns whether the node should begin anew, since it has kept so many changes and works
    /// with fewer.
    pub fn must_begin_anew(&self, kept: u32) -> bool {
        let (uses, kept) = (self.uses, kept as usize);
        uses < kept && kept <= self.newest.changes().len()
    }

    pub fn refuse(&mut self, why: &str) {
        self.trouble = Some(why.to_owned());
    }

    fn write(&mut self, cluster: ClusterFile) {
        let (place, changes) = (self.place.clone(), cluster.changes().to_vec());
        let (told, written) = mpsc::channel();
        let write = move || {
            let _ = told.send(place.write(&changes));
        };
        let thread = std::thread::Builder::new().name("members".to_owned());
        match thread.spawn(write) {
            Ok(thread) => {
                self.writer = Some(Writer {
                    cluster,
                    written,
                    thread: Some(thread),
                });
            }
            Err(why) => self.trouble = Some(format!("it can't start a thread: {why}")),
        }
    }

    fn finish_writing(&mut self) -> bool {
        let Some(Ok(written)) = self.writer.as_ref().map(|w| w.written.try_recv()) else {
            return false;
        };
        let Some(writer) = self.writer.take() else {
            return false;
        };
        if let Err(why) = written {
            self.trouble = Some(format!("it can't write {}: {why}", self.place));
            return false;
        }
        self.trouble = None;
        self.newest = writer.cluster.clone();
        // What a command line has set instead of the file isn't compared.
        let used = self.used.with_changes(self.used.changes());
        if used.is_ok_and(|used| is_unaffected(&self.node, &used, &self.newest)) {
            self.uses = self.newest.changes().len();
        }
        true
    }
}

/// Waits until the list is written.
impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
