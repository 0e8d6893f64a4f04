// SPDX-License-Identifier: Apache-2.0
//! Decides whether this controller acts: always if it is alone, otherwise while the register says
//! so.

use control::register::Ballot;
use control::{Controller, GroupState, Store, StoreError};
use paxos::{GroupId, Time};

use super::register_thread::{RegisterThread, Standing, TermStore};
use super::settings;
use crate::cluster_file::{ClusterFile, Node};
use crate::roles::unknown_members::check_members_are_known;
use crate::store::FileStore;
use crate::{Error, random_nonce};

/// The store of a controller that acts.
pub(super) enum AnyStore {
    /// In a file of its own.
    File(FileStore),
    /// Together with the other controllers.
    Register(TermStore),
}

impl Store for AnyStore {
    fn load(&mut self, group: GroupId) -> Result<GroupState, StoreError> {
        match self {
            AnyStore::File(store) => store.load(group),
            AnyStore::Register(store) => store.load(group),
        }
    }

    fn swap(
        &mut self,
        group: GroupId,
        expected: u64,
        state: &GroupState,
    ) -> Result<(), StoreError> {
        match self {
            AnyStore::File(store) => store.swap(group, expected, state),
            AnyStore::Register(store) => store.swap(group, expected, state),
        }
    }
}

/// A change of who acts.
pub(super) enum Change {
    /// This controller acts from now on.
    Acts,
    /// It stands by, for this reason.
    StandsBy(String),
}

/// The controller, as long as this process acts.
pub(super) struct Seat {
    cluster: ClusterFile,
    node: Node,
    controller: Option<Controller<AnyStore>>,
    /// With several controllers: their register, and the time in which this one acts.
    several: Option<(RegisterThread, Option<Ballot>)>,
}

impl Seat {
    pub fn open(cluster: &ClusterFile, node: &Node) -> Result<Seat, Error> {
        let mut seat = Seat {
            cluster: cluster.clone(),
            node: node.clone(),
            controller: None,
            several: None,
        };
        if cluster.controllers().count() > 1 {
            seat.several = Some((RegisterThread::start(cluster, node)?, None));
            return Ok(seat);
        }
        let path = cluster.node_dir(node).join("epochs.json");
        let store =
            FileStore::open(&path, cluster.cluster).map_err(|e| Error::store(e.to_string()))?;
        seat.controller = Some(seat.take(AnyStore::File(store), 0)?);
        Ok(seat)
    }

    /// Returns a controller that continues from a store.
    fn take(&self, store: AnyStore, now: Time) -> Result<Controller<AnyStore>, Error> {
        let settings = settings(&self.cluster, &self.node);
        let controller = Controller::new(settings, store, random_nonce()?, now)
            .map_err(|e| Error::store(e.to_string()))?;
        for group in &self.cluster.groups {
            let epochs = controller
                .state(group.id)
                .map_or(&[][..], |state| &state.epochs);
            check_members_are_known(&self.cluster, group, epochs)?;
        }
        Ok(controller)
    }

    /// Returns the controller if this process acts.
    pub fn acting(&self) -> Option<&Controller<AnyStore>> {
        self.controller.as_ref()
    }

    pub fn acting_mut(&mut self) -> Option<&mut Controller<AnyStore>> {
        self.controller.as_mut()
    }

    /// Begins or ceases to act, as the register says. Taking over is what a restart does:
    /// everything is loaded. [E-ACTS]
    pub fn follow(&mut self, now: Time) -> Result<Option<Change>, Error> {
        let Some((register, known)) = &mut self.several else {
            return Ok(None);
        };
        register.works();
        if register.has_ended() {
            return Err(Error::new(
                "the thread that speaks with the other controllers has ended",
            ));
        }
        let name = register.term_name();
        if name == *known {
            return Ok(None);
        }
        *known = name;
        let term = register.term().filter(|term| Some(term.name) == name);
        let Some(term) = term else {
            *known = None;
            let ended = register.standing().ended.unwrap_or_default();
            let acted = self.controller.take().is_some();
            return Ok(acted.then_some(Change::StandsBy(ended)));
        };
        let store = AnyStore::Register(register.store(term));
        self.controller = None;
        self.controller = Some(self.take(store, now)?);
        Ok(Some(Change::Acts))
    }

    /// Returns what is known of the other controllers, if there are several.
    pub fn standing(&self) -> Option<Standing> {
        self.several
            .as_ref()
            .map(|(register, _)| register.standing())
    }
}
