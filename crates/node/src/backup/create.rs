// SPDX-License-Identifier: Apache-2.0
//! Makes a backup of a cluster that serves.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use control::level::FIRST;
use control::{Level, OUTSIDE};
use replica::storage::private_directory;
use serde_json::Value;

use super::catalog::Catalog;
use super::manifest::{CLUSTER_FILE, EPOCHS, GroupEntry, MANIFEST, Manifest, describe};
use crate::cluster_file::{ApplicationKind, ClusterFile, Group};
use crate::control_peers::ControlPeers;
use crate::transfer::client::Interrupt;
use crate::transfer::copy;
use crate::{Error, cluster_status, status, wall_clock_ms};

/// How long the controllers may take to tell the epochs.
const ASK: Duration = Duration::from_secs(3);

/// What a backup that is being made has come to.
pub enum Step<'a> {
    /// The state of a group comes from this replica, so many MiB up to now.
    Fetched {
        /// The name of the replica.
        from: &'a str,
        /// The MiB that have come.
        mib: u64,
    },
    /// No state came from a replica, and the next one is asked.
    Failed(&'a Error),
}

/// Makes a backup in a directory, which is created if it is missing, and returns the backup's name
/// with what it holds. A group's state comes from the first of its replicas that hands one out.
pub fn create(
    cluster: &ClusterFile,
    directory: &Path,
    interrupt: &Arc<Interrupt>,
    mut progress: impl FnMut(Step<'_>),
) -> Result<(String, Manifest), Error> {
    refuse_what_nobody_can_restore(cluster)?;
    private_directory(directory)
        .map_err(|e| Error::store(format!("{}: {e}", directory.display())))?;
    let catalog = Catalog::open(directory)?;
    let _lock = catalog.lock()?;
    let begun_ms = wall_clock_ms();
    let name = catalog.new_name(begun_ms);
    let to = catalog.path(&name);
    let mut manifest = Manifest {
        cluster: cluster.cluster,
        begun_s: begun_ms / 1_000,
        program: status::VERSION.to_owned(),
        level: FIRST,
        groups: Vec::new(),
        files: BTreeMap::new(),
    };
    let made = copy::under_another_name(&to, |to| {
        private_directory(to)?;
        write(to, CLUSTER_FILE, cluster.published.text().as_bytes())?;
        write(to, EPOCHS, epochs(cluster).to_string().as_bytes())?;
        for group in &cluster.groups {
            let entry = fetch(cluster, group, to, interrupt, &mut progress);
            manifest.groups.push(entry.map_err(io::Error::other)?);
        }
        // Levels rise, so no state is of a higher one.
        manifest.level = level(cluster)?;
        manifest.groups.sort_by_key(|group| group.id);
        for name in manifest.names() {
            let entry = describe(&to.join(&name))?;
            manifest.files.insert(name, entry);
        }
        write(to, MANIFEST, &manifest.emit()?)?;
        File::open(to)?.sync_all()
    });
    made.map_err(|e| Error::store(format!("no backup in {}: {e}", directory.display())))?;
    Ok((name, manifest))
}

/// Returns an error if a group executes a program of the user's own, which only that program could
/// restore.
fn refuse_what_nobody_can_restore(cluster: &ClusterFile) -> Result<(), Error> {
    let mut groups = cluster.groups.iter();
    match groups.find(|group| group.application == ApplicationKind::Own) {
        None => Ok(()),
        Some(group) => Err(Error::configuration(
            format!("group {} executes a program of your own", group.id),
            "copy its replicas' states by `wirepaxos copy make`: only the program could restore a \
             backup",
        )),
    }
}

/// Fetches the state of a group from one of its replicas.
fn fetch(
    cluster: &ClusterFile,
    group: &Group,
    to: &Path,
    interrupt: &Arc<Interrupt>,
    progress: &mut impl FnMut(Step<'_>),
) -> Result<GroupEntry, Error> {
    let mut entry = GroupEntry {
        id: group.id,
        application: group.application.name().to_owned(),
        protocol: group.protocol.name().to_owned(),
        replica: String::new(),
        positions: Vec::new(),
    };
    let to = to.join(entry.directory());
    let mut why = Vec::new();
    for node in cluster.replicas(group.id) {
        interrupt.check()?;
        let from = &node.name;
        let fetched = |mib| progress(Step::Fetched { from, mib });
        match copy::make(cluster, node, &to, interrupt, fetched) {
            Ok(positions) => {
                entry.replica.clone_from(from);
                entry.positions = positions;
                return Ok(entry);
            }
            Err(e) => {
                progress(Step::Failed(&e));
                why.push(e.to_string());
            }
        }
    }
    Err(Error::new(format!(
        "no replica of group {} hands out its state: {}",
        group.id,
        why.join("; ")
    )))
}

/// Returns what the controller that acts says of the epochs, or null if none answers.
fn epochs(cluster: &ClusterFile) -> Value {
    let peers = ControlPeers::new(cluster, OUTSIDE);
    let answers = status::ask(&peers, peers.controllers(), ASK).unwrap_or_default();
    let acting = status::of_acting(answers.into_values());
    acting.map_or(Value::Null, |mut document| document["groups"].take())
}

/// Returns the format level that the nodes have.
fn level(cluster: &ClusterFile) -> io::Result<Level> {
    let answers = cluster_status::ask(cluster, &cluster.nodes)?;
    let levels = answers.values().filter_map(|a| a["level"].as_u64());
    Ok(levels.max().map_or(FIRST, |level| level as Level))
}

fn write(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let mut options = File::options();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(directory.join(name))?;
    file.write_all(bytes)?;
    file.sync_all()
}
