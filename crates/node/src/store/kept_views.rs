// SPDX-License-Identifier: Apache-2.0
//! A node's copy of the newest view of each group, from which the controller's store is made anew
//! if it is lost.
//!
//! Acceptors and replicas keep it in a file, other nodes in memory. A thread writes the file, since
//! no packet may wait for a disk here; whoever makes a store anew counts on a quorum's promises and
//! not on any single copy. [E-REBUILD]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;

use control::View;
use paxos::GroupId;
use replica::storage::{private_directory, replace_file};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::cluster_file::{ClusterFile, Node, Role};
use crate::document::{Document, Unusable};

const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Body {
    cluster: u32,
    view: View,
}

/// The newest view of each group that this node was ever told.
pub(crate) struct KeptViews {
    newest: BTreeMap<GroupId, View>,
    writer: Option<Writer>,
}

/// The thread that writes views, with the way to it.
struct Writer {
    place: ViewDirectory,
    thread: Option<(mpsc::Sender<View>, JoinHandle<()>)>,
}

#[derive(Clone)]
struct ViewDirectory {
    directory: PathBuf,
    cluster: u32,
}

impl KeptViews {
    /// Reads the copies that an earlier process of this node has left. A damaged copy counts as
    /// none.
    pub fn open(cluster: &ClusterFile, node: &Node, groups: &[GroupId]) -> KeptViews {
        let place = ViewDirectory {
            directory: cluster.node_dir(node),
            cluster: cluster.cluster,
        };
        if !matches!(node.role, Role::Acceptor | Role::Replica) {
            return KeptViews {
                newest: BTreeMap::new(),
                writer: None,
            };
        }
        let read = |group: &GroupId| Some((*group, place.read(*group)?));
        KeptViews {
            newest: groups.iter().filter_map(read).collect(),
            writer: Some(Writer {
                place,
                thread: None,
            }),
        }
    }

    /// Returns the newest view of a group.
    pub fn get(&self, group: GroupId) -> Option<&View> {
        self.newest.get(&group)
    }

    /// Keeps a view if it is the newest. Only changes of epochs are written, not those of the
    /// version alone.
    pub fn keep(&mut self, view: &View) {
        let known = self.newest.get(&view.group);
        if known.is_some_and(|known| known.age() >= view.age()) {
            return;
        }
        let is_same = known.is_some_and(|known| {
            let version = view.version;
            *view
                == View {
                    version,
                    ..known.clone()
                }
        });
        self.newest.insert(view.group, view.clone());
        if let Some(writer) = self.writer.as_mut().filter(|_| !is_same) {
            writer.write(view.clone());
        }
    }
}

impl Writer {
    fn write(&mut self, view: View) {
        if self.thread.is_none() {
            let (sender, views) = mpsc::channel();
            let place = self.place.clone();
            let name = "views".to_owned();
            let spawned = std::thread::Builder::new()
                .name(name)
                .spawn(move || write_all(&place, &views));
            match spawned {
                Ok(thread) => self.thread = Some((sender, thread)),
                Err(why) => return warn!("can't start a thread that keeps views: {why}"),
            }
        }
        if let Some((views, _)) = &self.thread {
            let _ = views.send(view);
        }
    }
}

/// Waits until all views are written.
impl Drop for Writer {
    fn drop(&mut self) {
        if let Some((views, thread)) = self.thread.take() {
            drop(views);
            let _ = thread.join();
        }
    }
}

/// Writes the newest of the views that have come, until none can come any more.
fn write_all(place: &ViewDirectory, views: &mpsc::Receiver<View>) {
    while let Ok(view) = views.recv() {
        let mut newest = BTreeMap::from([(view.group, view)]);
        newest.extend(views.try_iter().map(|view| (view.group, view)));
        for view in newest.into_values() {
            let file = place.file(view.group);
            if let Err(why) = place.write(view) {
                warn!(
                    "can't write {}: {why}. Without it this node can't help to make a lost store \
                     of the controller anew",
                    file.display()
                );
            }
        }
    }
}

impl ViewDirectory {
    fn file(&self, group: GroupId) -> PathBuf {
        self.directory.join(format!("view-{group}.json"))
    }

    fn write(&self, view: View) -> io::Result<()> {
        let file = self.file(view.group);
        let cluster = self.cluster;
        let document = Document::new(FORMAT, Body { cluster, view })?;
        let bytes = serde_json::to_vec(&document)?;
        private_directory(&self.directory)?;
        replace_file(&file, &bytes)
    }

    fn read(&self, group: GroupId) -> Option<View> {
        let file = self.file(group);
        match read(&file, self.cluster, group) {
            Ok(view) => Some(view),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(why) => {
                warn!("{} is left out: {why}", file.display());
                None
            }
        }
    }
}

/// Checks that this program may replace the copies that a node has.
///
/// # Errors
/// If another version has written one.
pub(crate) fn check_kept_views(cluster: &ClusterFile, node: &Node) -> Result<(), String> {
    for group in &cluster.groups {
        let place = ViewDirectory {
            directory: cluster.node_dir(node),
            cluster: cluster.cluster,
        };
        let file = place.file(group.id);
        let Ok(bytes) = fs::read(&file) else {
            continue;
        };
        let read = Document::<Body>::read_unchecked(&bytes, &[FORMAT]);
        if let Err(why @ Unusable::OtherFormat { .. }) = read {
            return Err(format!("{}: {why}", file.display()));
        }
    }
    Ok(())
}

fn read(file: &Path, cluster: u32, group: GroupId) -> io::Result<View> {
    let body = Document::<Body>::read(&fs::read(file)?, &[FORMAT])?.body;
    if !body.view.is_sound() {
        return Err(io::Error::other("an epoch isn't as it was issued"));
    }
    if body.cluster != cluster || body.view.group != group {
        return Err(io::Error::other("it belongs to another cluster or group"));
    }
    Ok(body.view)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stored::cluster;
    use crate::test_dir::TestDir;
    use control::{EpochRecord, EpochState};
    use paxos::{Configuration, Member};

    fn view(version: u64, epoch: u32) -> View {
        let member = |node| Member { node, nonce: 7 };
        let configuration = Configuration {
            epoch,
            leader: member(11),
            acceptors: [21, 22, 23].map(member).to_vec(),
            f: 1,
            replicas: vec![31, 32, 33],
            g: 1,
        };
        View {
            version,
            epochs: vec![EpochRecord::new(&configuration, EpochState::Active)],
            ..View::nothing(0)
        }
    }

    fn open(cluster: &ClusterFile, name: &str) -> KeptViews {
        KeptViews::open(cluster, cluster.node(name).unwrap(), &[0])
    }

    #[test]
    fn acceptors_and_replicas_keep_the_newest_view_across_restarts() {
        let directory = TestDir::new();
        let cluster = cluster(directory.path(), "volatile");
        for (name, keeps) in [
            ("acceptor-1", true),
            ("replica-2", true),
            ("leader-1", false),
        ] {
            let mut kept = open(&cluster, name);
            assert_eq!(kept.get(0), None);
            for view in [view(1, 1), view(2, 2), view(9, 1), view(3, 2)] {
                kept.keep(&view);
            }
            assert_eq!(kept.get(0), Some(&view(3, 2)), "an older epoch is no news");
            drop(kept);
            let kept = open(&cluster, name);
            // The last change was the version's alone.
            assert_eq!(kept.get(0), keeps.then_some(&view(2, 2)), "{name}");
        }
    }

    #[test]
    fn a_damaged_or_foreign_copy_counts_as_none() {
        let directory = TestDir::new();
        let mut cluster = cluster(directory.path(), "volatile");
        open(&cluster, "acceptor-1").keep(&view(1, 1));
        let file = cluster
            .node_dir(cluster.node("acceptor-1").unwrap())
            .join("view-0.json");
        let whole = fs::read(&file).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << (at % 7);
            fs::write(&file, &damaged).unwrap();
            let kept = open(&cluster, "acceptor-1");
            assert!(
                kept.get(0).is_none_or(|kept| *kept == view(1, 1)),
                "byte {at}"
            );
            fs::write(&file, &whole[..at]).unwrap();
            assert_eq!(open(&cluster, "acceptor-1").get(0), None, "cut to {at}");
        }
        fs::write(&file, &whole).unwrap();
        assert!(open(&cluster, "acceptor-1").get(0).is_some());
        cluster.cluster += 1;
        assert_eq!(open(&cluster, "acceptor-1").get(0), None);
    }

    #[test]
    fn a_copy_of_another_version_is_refused_by_name() {
        let directory = TestDir::new();
        let cluster = cluster(directory.path(), "volatile");
        let node = cluster.node("acceptor-1").unwrap();
        assert_eq!(check_kept_views(&cluster, node), Ok(()));
        open(&cluster, "acceptor-1").keep(&view(1, 1));
        assert_eq!(check_kept_views(&cluster, node), Ok(()));
        let file = cluster.node_dir(node).join("view-0.json");
        fs::write(&file, r#"{"format":2,"epochs":"of a newer form"}"#).unwrap();
        let why = check_kept_views(&cluster, node).unwrap_err();
        assert!(why.contains("view-0.json: it has format 2"), "{why}");
    }
}
