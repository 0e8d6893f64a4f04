// SPDX-License-Identifier: Apache-2.0
//! Decides whether this controller acts: always if it is alone with a file, otherwise while the
//! thread that keeps the shared store says so.

use std::time::{Duration, Instant};

use control::register::Ballot;
use control::status::GroupStatus;
use control::{Controller, GroupState, Store, StoreError};
use paxos::{GroupId, NodeId, Time};

use super::term::{Standing, StoreThread, TermStore};
use super::{etcd_thread, register_thread, settings};
use crate::cluster_file::{ClusterFile, Node};
use crate::host::is_due;
use crate::roles::unknown_members::check_members_are_known;
use crate::store::FileStore;
use crate::{Error, random_nonce};

/// The store of a controller that acts.
pub(super) enum AnyStore {
    /// In a file of its own.
    File(FileStore),
    /// Shared with the other controllers.
    Shared(TermStore),
}

impl Store for AnyStore {
    fn load(&mut self, group: GroupId) -> Result<GroupState, StoreError> {
        match self {
            AnyStore::File(store) => store.load(group),
            AnyStore::Shared(store) => store.load(group),
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
            AnyStore::Shared(store) => store.swap(group, expected, state),
        }
    }
}

/// How long a controller acts before another one may be better, so that a start is over.
const SETTLED: Duration = Duration::from_secs(3);
/// How often it is seen whether another one is.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

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
    /// With a shared store: the thread that keeps it, and the term in which this one acts.
    shared: Option<(StoreThread, Option<Ballot>)>,
    /// When it was last seen whether this process should act, and since when it acts.
    looked: Option<Instant>,
    since: Option<Instant>,
}

impl Seat {
    pub fn open(cluster: &ClusterFile, node: &Node) -> Result<Seat, Error> {
        let mut seat = Seat {
            cluster: cluster.clone(),
            node: node.clone(),
            controller: None,
            shared: None,
            looked: None,
            since: None,
        };
        if let Some(etcd) = &cluster.controller.etcd {
            seat.shared = Some((etcd_thread::start(cluster, node, etcd)?, None));
            return Ok(seat);
        }
        if cluster.controllers().count() > 1 {
            seat.shared = Some((register_thread::start(cluster, node)?, None));
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

    /// Begins or ceases to act, as the thread says. Taking over is what a restart does:
    /// everything is loaded. [E-ACTS]
    pub fn follow(&mut self, now: Time) -> Result<Option<Change>, Error> {
        let Some((thread, known)) = &mut self.shared else {
            return Ok(None);
        };
        thread.works();
        if thread.has_ended() {
            return Err(Error::new(
                "the thread that keeps the shared store has ended",
            ));
        }
        let name = thread.term_name();
        if name == *known {
            return Ok(None);
        }
        *known = name;
        let term = thread.term().filter(|term| Some(term.name) == name);
        let Some(term) = term else {
            *known = None;
            let ended = thread.standing().ended.unwrap_or_default();
            let acted = self.controller.take().is_some();
            return Ok(acted.then_some(Change::StandsBy(ended)));
        };
        let store = AnyStore::Shared(thread.store(term));
        self.controller = None;
        self.controller = Some(self.take(store, now)?);
        self.since = Some(Instant::now());
        Ok(Some(Change::Acts))
    }

    /// Returns whether it is time to [hand on](Self::hand_on) if that is better. Where backups are
    /// made it isn't, since their directory is this machine's.
    pub fn may_hand_on(&mut self) -> bool {
        let has_settled = self.since.is_some_and(|since| since.elapsed() >= SETTLED);
        let acts = self.controller.is_some() && self.shared.is_some();
        let may = acts && has_settled && self.cluster.backup.is_none();
        let is_due = may && is_due(self.looked, LOOK_INTERVAL);
        if is_due {
            self.looked = Some(Instant::now());
        }
        is_due
    }

    /// Lets a controller on another machine act while a leader runs on this one. A failure of this
    /// machine would stop both, and nobody could make another leader lead before another controller
    /// acts. [E-HANDON]
    pub fn hand_on(&self, groups: &[GroupStatus]) {
        let is_calm = |g: &GroupStatus| g.active.is_some() && g.attempt.is_none();
        let Some((thread, _)) = self.shared.as_ref().filter(|_| groups.iter().all(is_calm)) else {
            return;
        };
        let fellows = thread.standing().fellows;
        if let Some(to) = elsewhere(&self.cluster, &self.node, groups, &fellows) {
            thread.hand_on(to);
        }
    }

    /// Returns what is known of the shared store and the other controllers, if there are such.
    pub fn standing(&self) -> Option<Standing> {
        self.shared.as_ref().map(|(thread, _)| thread.standing())
    }
}

/// Returns the first of these controllers on whose machine no leader runs, if one runs on the
/// machine of `me`.
fn elsewhere(
    cluster: &ClusterFile,
    me: &Node,
    groups: &[GroupStatus],
    fellows: &[NodeId],
) -> Option<NodeId> {
    let leaders = groups.iter().filter_map(|group| group.leader);
    let leaders: Vec<&Node> = leaders.filter_map(|id| cluster.node_by_id(id)).collect();
    let is_beside = |node: &Node| {
        let machine = node.address.ip();
        leaders.iter().any(|leader| leader.address.ip() == machine)
    };
    let mut others = cluster.controllers().filter(|n| fellows.contains(&n.id));
    let other = others.find(|node| !is_beside(node))?;
    is_beside(me).then_some(other.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_file::{ApplicationKind, Draft, GroupDraft, Role};

    /// Three machines with a controller each; the first two have a leader, too.
    fn cluster() -> ClusterFile {
        let mut draft = Draft::new(7, "data", GroupDraft::new(0, ApplicationKind::Echo));
        for machine in 1..=3 {
            let host = std::net::Ipv4Addr::new(127, 0, 0, machine).into();
            let leaders = usize::from(machine < 3);
            let roles = [
                (Role::Leader, leaders),
                (Role::Acceptor, 1),
                (Role::Replica, 1),
            ];
            draft.add_nodes(&[(Role::Controller, 1)], host);
            draft.add_nodes(&roles, host);
        }
        draft.check().unwrap()
    }

    fn status_led_by(leader: NodeId) -> GroupStatus {
        GroupStatus {
            group: 0,
            active: Some(5),
            epochs: vec![],
            leader: Some(leader),
            members: vec![],
            behind: vec![],
            suspects: vec![],
            attempt: None,
            last_failover: None,
            refused_lanes: 0,
            warnings: vec![],
        }
    }

    /// [E-HANDON]
    #[test]
    fn a_controller_without_a_leader_beside_it_is_better() {
        let cluster = cluster();
        let controllers: Vec<&Node> = cluster.controllers().collect();
        let leaders: Vec<&Node> = cluster.with_role(Role::Leader).collect();
        let [first, second, third] = controllers[..] else {
            panic!("{controllers:?}");
        };
        let others = |me: &Node| -> Vec<NodeId> {
            let others = controllers.iter().filter(|node| node.id != me.id);
            others.map(|node| node.id).collect()
        };
        let better = |me: &Node, leader: &Node, fellows: &[NodeId]| {
            elsewhere(&cluster, me, &[status_led_by(leader.id)], fellows)
        };
        assert_eq!(better(first, leaders[0], &others(first)), Some(second.id));
        assert_eq!(better(first, leaders[0], &[third.id]), Some(third.id));
        assert_eq!(better(first, leaders[0], &[]), None, "nobody answers");
        assert_eq!(better(second, leaders[0], &others(second)), None);
        let both = [status_led_by(leaders[0].id), status_led_by(leaders[1].id)];
        let of_both = |me: &Node| elsewhere(&cluster, me, &both, &others(me));
        assert_eq!(of_both(first), Some(third.id));
        assert_eq!(elsewhere(&cluster, first, &both, &[second.id]), None);
        assert_eq!(elsewhere(&cluster, first, &[], &others(first)), None);
    }
}
