// SPDX-License-Identifier: Apache-2.0
//! The states of a group's partitions on their way from a backup into a new cluster.

use std::io;
use std::path::Path;

use paxos::PartitionId;

use super::check::unusable;
use super::manifest::{GroupEntry, Manifest};
use super::roll_forward::Goal;
use super::scratch::{Holder, Scratch};
use crate::Error;
use crate::roles::replica::OpenApplication;
use crate::transfer::incoming::{Head, Incoming};
use crate::transfer::linked_copy::write_parts;

/// The states of a group's partitions. They are opened one after the other, or all together if they
/// are brought to another moment.
pub struct States<'a> {
    from: &'a Path,
    manifest: &'a Manifest,
    group: &'a GroupEntry,
    open: &'a OpenApplication,
    scratch: &'a Scratch,
    /// The partitions that were opened, in descending order.
    opened: Vec<Holder>,
}

impl<'a> States<'a> {
    /// Returns the states of a group in a backup at a place.
    pub fn new(
        (from, manifest, group): (&'a Path, &'a Manifest, &'a GroupEntry),
        open: &'a OpenApplication,
        scratch: &'a Scratch,
    ) -> States<'a> {
        States {
            from,
            manifest,
            group,
            open,
            scratch,
            opened: Vec::new(),
        }
    }

    /// Brings all partitions to a moment. Returns the group with where they stand then.
    pub fn bring_to(&mut self, goal: &Goal) -> Result<GroupEntry, Error> {
        let pids = self.group.pids();
        let opened = pids.map(|pid| self.open(pid).map_err(|why| self.unusable(pid, &why)));
        self.opened = opened.collect::<Result<_, _>>()?;
        let positions = goal.reach(self.group, &mut self.opened)?;
        self.opened.reverse();
        Ok(GroupEntry {
            positions,
            ..self.group.clone()
        })
    }

    /// Writes the states as those of the cluster with this number.
    pub fn lay(&mut self, cluster: u32, head: Head, into: &Path) -> io::Result<()> {
        let mut to = Incoming::begin(into, head)?;
        for pid in self.group.pids() {
            let state = self.opened.pop().map_or_else(|| self.open(pid), Ok);
            let moved = state
                .and_then(|state| state.move_to(cluster).map_err(|e| e.to_string()))
                .and_then(|()| self.scratch.holder(cluster, self.group, pid, self.open))
                .and_then(|mut state| state.snapshot().map_err(|e| e.to_string()));
            let unusable = |why: String| io::Error::other(self.unusable(pid, &why));
            let (_, snapshot) = moved.map_err(unusable)?;
            write_parts(snapshot, &mut to, pid)?;
            self.scratch.clear(self.group, pid)?;
        }
        to.sync()
    }

    fn open(&self, pid: PartitionId) -> Result<Holder, String> {
        let named = (self.manifest, self.group);
        self.scratch.open(self.from, named, pid, self.open)
    }

    fn unusable(&self, pid: PartitionId, why: &str) -> Error {
        unusable(self.from, self.group.id, pid, why)
    }
}
