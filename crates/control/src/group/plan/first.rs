// SPDX-License-Identifier: Apache-2.0
//! The first epoch of a cluster, which begins at instance 0 or behind the backup from which the
//! cluster is made.
//!
//! A backup stands at an instance of another cluster's log. The first epoch gives up what lies
//! between there and an instance far beyond, as an accepted loss does: so the partitions of a
//! restored replica complete what one of them has passed and another hasn't, and a replica that
//! wasn't restored, or from another backup, takes the state of one that was. [G-LEAP] [G-BEHIND]

use super::super::GroupControl;
use super::super::report::role_name;
use crate::message::MemberRecord;
use crate::state::{GivenUp, LEAP};
use crate::suspicion::Watched;
use paxos::wire::value::Probe;
use paxos::{Instance, NodeId, Round};

impl GroupControl {
    /// Returns the voters of the first epoch, or an error if one hasn't answered. [E-FIRST]
    pub(super) fn first_voters(&self) -> Result<Vec<MemberRecord>, String> {
        let (role, nodes) = self.settings.voters();
        let answered = |&node: &NodeId| {
            let nonce = self.suspicion.memory(role, node);
            nonce.map(|nonce| (node, nonce)).ok_or(node)
        };
        let voters: Result<_, NodeId> = nodes.iter().map(answered).collect();
        voters.map_err(|node| {
            format!(
                "the first start waits for all {}s; node {node} hasn't answered: start it",
                role_name(role)
            )
        })
    }

    /// Returns an error until the replicas have answered or are suspected. A replica that has met
    /// an epoch shows that this is no first start. [E-FIRST]
    pub(super) fn replicas_remember_nothing(&self) -> Result<(), String> {
        let silent = |w: &&Watched| {
            w.role == Probe::Replica
                && !self.suspicion.is_suspect(w)
                && w.partitions.iter().any(Option::is_none)
        };
        if let Some(w) = self.suspicion.iter().find(silent) {
            return Err(format!("waiting for replica {} to answer", w.node));
        }
        self.no_backup_is_unknown()
    }

    /// Returns an error if a replica begins with a backup that this controller doesn't know. Its
    /// first epoch would begin below, and serve without what the backup holds.
    fn no_backup_is_unknown(&self) -> Result<(), String> {
        let begins_ahead = |w: &&Watched| {
            let mut stands = w.partitions.iter().flatten();
            w.role == Probe::Replica && w.round() == Round::NONE && stands.any(|p| p.inst > 0)
        };
        match self.suspicion.iter().find(begins_ahead) {
            Some(w) if self.backup().is_none() => Err(format!(
                "replica {} begins with a backup of which this controller knows nothing: stop the \
                 controller, empty its data directory, and run `wirepaxos backup restore` on its \
                 machine, too",
                w.node
            )),
            _ => Ok(()),
        }
    }

    /// Returns where the partitions of the backup stand from which the cluster is made, until an
    /// epoch is active.
    pub(super) fn backup(&self) -> Option<&[Instance]> {
        let never_active = self.state.last_active().is_none();
        self.state.restored.as_deref().filter(|_| never_active)
    }

    /// Returns the instances between the backup and the first epoch. If one epoch fails, the next
    /// one begins beyond it, since that one may have decided its marker.
    pub(super) fn gap_behind_backup(&self) -> Result<Option<GivenUp>, String> {
        let Some(from) = self.backup() else {
            return Ok(None);
        };
        let pids = 0..self.settings.partitions;
        if from.len() != pids.len() {
            return Err("the backup has another number of partitions".into());
        }
        let (role, voters) = self.settings.voters();
        if let Some(node) = voters.iter().find(|n| !self.suspicion.is_alive(role, **n)) {
            return Err(format!(
                "a cluster that is made from a backup waits for all {}s; node {node} doesn't \
                 answer: start it",
                role_name(role)
            ));
        }
        let beyond = |(pid, at): (_, &Instance)| match at.checked_add(LEAP) {
            Some(beyond) => Ok(self.beyond_all(pid)?.max(beyond)),
            None => Err(format!(
                "the backup stands at instance {at}, which no log reaches"
            )),
        };
        let to = pids.zip(from).map(beyond).collect::<Result<_, String>>()?;
        let from = from.to_vec();
        Ok(Some(GivenUp { from, to }))
    }
}
