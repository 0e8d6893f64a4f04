// SPDX-License-Identifier: Apache-2.0
//! Keeps the newest view of each group that a process was told, and checks it against earlier ones.
//!
//! Views may be lost, repeated, late, and come from a controller whose store was replaced by an
//! older copy. So the epochs, which are issued once, tell which of two views is newer, and the
//! versions only if the epochs are equal. One controller with one store never tells an epoch with
//! two configurations; a process that is told so must stop if it counts votes by them. [E-NEWER]
//! [E-ONE]

use crate::View;
use paxos::{Epoch, GroupId};
use std::collections::BTreeMap;
use std::fmt;

/// How many epochs' configurations are remembered, which is far more than any view has.
const MAX_REMEMBERED: usize = 1024;

/// The newest view of each group that this process was told.
#[derive(Clone, Debug, Default)]
pub struct Views(BTreeMap<GroupId, GroupViews>);

#[derive(Clone, Debug)]
struct GroupViews {
    newest: View,
    /// The hash of the configuration of each epoch that may have votes.
    configurations: BTreeMap<Epoch, u64>,
}

/// The error that one epoch was told with two configurations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contradiction {
    /// The group.
    pub group: GroupId,
    /// The epoch.
    pub epoch: Epoch,
    /// The hash of its configuration in an earlier view.
    pub before: u64,
    /// The hash in this view.
    pub now: u64,
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "group {}: epoch {} was told with two configurations ({:016x} before, {:016x} now): \
             there are two controllers, or the controller's store was replaced by an old copy. \
             Keep one controller, the one whose store has the newest epoch (`epochs` of `wirepaxos \
             status`), stop every other, and then start this node again",
            self.group, self.epoch, self.before, self.now
        )
    }
}

impl Views {
    /// Keeps a view and returns it if it is newer than the known one. A view that contradicts an
    /// earlier one changes nothing. [E-NEWER]
    pub fn offer(&mut self, view: &View) -> Result<Option<&View>, Contradiction> {
        let told = self.0.entry(view.group).or_insert_with(|| GroupViews {
            newest: View::nothing(view.group),
            configurations: BTreeMap::new(),
        });
        told.check(view)?;
        told.remember(view);
        if view.age() <= told.newest.age() {
            return Ok(None);
        }
        told.newest = view.clone();
        Ok(Some(&told.newest))
    }

    /// Returns the newest view of a group.
    pub fn get(&self, group: GroupId) -> Option<&View> {
        self.0.get(&group).map(|told| &told.newest)
    }
}

impl GroupViews {
    /// Returns an error if an epoch has another configuration than before. [E-ONE]
    fn check(&self, view: &View) -> Result<(), Contradiction> {
        for record in view.begun_epochs() {
            let before = self.configurations.get(&record.epoch);
            if let Some(&before) = before.filter(|before| **before != record.hash) {
                return Err(Contradiction {
                    group: view.group,
                    epoch: record.epoch,
                    before,
                    now: record.hash,
                });
            }
        }
        Ok(())
    }

    fn remember(&mut self, view: &View) {
        let hashes = view.begun_epochs().map(|e| (e.epoch, e.hash));
        self.configurations.extend(hashes);
        while self.configurations.len() > MAX_REMEMBERED {
            self.configurations.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EpochRecord, EpochState};
    use paxos::{Configuration, Member};

    fn record(epoch: Epoch, state: EpochState, nonce: u64) -> EpochRecord {
        let member = |node| Member { node, nonce };
        let configuration = Configuration {
            epoch,
            leader: member(1),
            acceptors: vec![member(3)],
            f: 0,
            replicas: vec![6],
            g: 0,
        };
        EpochRecord::new(&configuration, state)
    }

    fn view(version: u64, epochs: &[EpochRecord]) -> View {
        View {
            version,
            epochs: epochs.to_vec(),
            ..View::nothing(7)
        }
    }

    use EpochState::{Active, Issued, Writing};

    /// An older view never replaces a newer one. [E-NEWER]
    #[test]
    fn an_older_view_never_replaces_a_newer_one() {
        let mut views = Views::default();
        let newest = view(5, &[record(1, Active, 1), record(2, Writing, 1)]);
        assert_eq!(views.offer(&newest), Ok(Some(&newest)));
        for older in [
            view(5, &newest.epochs),
            view(4, &newest.epochs),
            // The epoch decides, since a store that was replaced by an old copy starts its versions
            // again.
            view(9, &[record(1, Active, 1)]),
            view(9, &[record(1, Active, 1), record(2, Issued, 1)]),
        ] {
            assert_eq!(views.offer(&older), Ok(None));
        }
        assert_eq!(views.get(7), Some(&newest));
        for newer in [
            view(6, &newest.epochs),
            view(2, &[record(1, Active, 1), record(2, Active, 1)]),
            view(3, &[record(2, Active, 1), record(3, Issued, 1)]),
        ] {
            assert_eq!(views.offer(&newer), Ok(Some(&newer)));
        }
        assert_eq!(views.get(8), None);
    }

    /// One epoch with two configurations is an error. [E-ONE]
    #[test]
    fn one_epoch_with_two_configurations_is_an_alarm() {
        let mut views = Views::default();
        let first = view(5, &[record(1, Active, 1), record(2, Writing, 1)]);
        views.offer(&first).unwrap();
        for other in [
            view(9, &[record(2, Active, 2)]),
            view(9, &[record(1, Active, 2), record(2, Active, 1)]),
            // A late view counts, too.
            view(1, &[record(1, Active, 2)]),
        ] {
            let alarm = views.offer(&other).unwrap_err();
            assert!([1, 2].contains(&alarm.epoch), "{alarm}");
            assert_eq!(views.get(7), Some(&first));
        }
    }

    /// An epoch that never wrote may be issued again. [E-ONE]
    #[test]
    fn an_epoch_that_never_wrote_may_be_issued_again() {
        let mut views = Views::default();
        let issued = view(5, &[record(1, Active, 1), record(2, Issued, 1)]);
        views.offer(&issued).unwrap();
        let other = view(3, &[record(1, Active, 1), record(2, Writing, 2)]);
        assert_eq!(views.offer(&other), Ok(Some(&other)));
    }
}
