// SPDX-License-Identifier: Apache-2.0
//! Who is a member of the cluster, and which members each node knows.
//!
//! As in a node, each machine keeps a list of all changes of the members on its disk, and a process
//! works with as many of them as there were when it started. It sends nothing to nodes that these
//! don't name. [E-CHANGES]

use control::MemberChange;
use paxos::{NodeId, PartitionId};

use super::layout::{Layout, NodeIndex, node_id};
use crate::plan::{Name, Scenario};

/// The changes that a machine has on its disk.
#[derive(Default)]
struct Kept {
    changes: Vec<MemberChange>,
    /// The changes that came with the cluster file, which a new disk has, too.
    given: usize,
    /// How many of them the process works with.
    uses: usize,
    /// For each node, whether the process knows it.
    known: Vec<bool>,
}

/// The members of a simulated cluster.
pub struct Members {
    names: Vec<Name>,
    /// The nodes of the first cluster file.
    first: Vec<NodeId>,
    kept: Vec<Kept>,
    /// All changes that were ever stored.
    all: Vec<MemberChange>,
    can_change: bool,
    /// For each partition, g of the epoch in which an acceptor reached the largest trim point.
    trimmed_with: Vec<u8>,
    /// A node was removed since the checkers last looked.
    has_news: bool,
}

/// A cluster as changes of its members leave it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Roster {
    /// The nodes that stay.
    pub staying: Vec<Name>,
    /// The nodes that leave, and aren't removed yet.
    pub leaving: Vec<Name>,
}

impl Roster {
    /// Returns the leaders, acceptors or replicas that stay.
    pub fn ids(&self, which: fn(Name) -> bool) -> Vec<NodeId> {
        ids(&self.staying, which)
    }

    /// Returns the replicas that leave.
    pub fn leaving_replicas(&self) -> Vec<NodeId> {
        ids(&self.leaving, is_replica)
    }
}

fn ids(names: &[Name], which: fn(Name) -> bool) -> Vec<NodeId> {
    let names = names.iter().filter(|name| which(**name));
    names.map(|name| node_id(*name)).collect()
}

/// Returns whether a node is a leader.
pub fn is_leader(name: Name) -> bool {
    matches!(name, Name::Leader(_))
}

/// Returns whether a node is an acceptor.
pub fn is_acceptor(name: Name) -> bool {
    matches!(name, Name::Acceptor(_))
}

/// Returns whether a node is a replica.
pub fn is_replica(name: Name) -> bool {
    matches!(name, Name::Replica(_))
}

impl Members {
    /// Returns the first members of a scenario, which all nodes know.
    pub fn new(layout: &Layout, scenario: &Scenario) -> Members {
        let is_first = |name: &&Name| match **name {
            Name::Leader(n) => n <= scenario.leaders,
            Name::Acceptor(n) => n <= scenario.acceptors,
            Name::Replica(n) => n <= scenario.replicas,
            _ => true,
        };
        let names = layout.names.iter();
        let mut members = Members {
            first: names.filter(is_first).map(|n| node_id(*n)).collect(),
            kept: layout.names.iter().map(|_| Kept::default()).collect(),
            names: layout.names.clone(),
            all: Vec::new(),
            can_change: scenario.has_spares(),
            trimmed_with: vec![u8::MAX; scenario.partitions.into()],
            has_news: false,
        };
        (0..members.names.len()).for_each(|at| members.begin(at as NodeIndex));
        members
    }

    /// Returns whether members may change in this run.
    pub fn can_change(&self) -> bool {
        self.can_change
    }

    /// Notes g of the epoch in which an acceptor has reached the largest trim point of a partition.
    pub fn trimmed(&mut self, pid: PartitionId, g: u8) {
        self.trimmed_with[usize::from(pid)] = g;
    }

    /// Returns how many replicas may lose their disks at the same time without a loss of what the
    /// acceptors have forgotten.
    pub fn least_g(&self) -> u8 {
        self.trimmed_with.iter().copied().min().unwrap_or(u8::MAX)
    }

    /// Returns whether a node's process knows another node.
    pub fn knows(&self, node: NodeIndex, other: NodeIndex) -> bool {
        !self.can_change || self.kept[usize::from(node)].known[usize::from(other)]
    }

    /// Returns whether a node may be started: it is a member, or leaves.
    pub fn is_in(&self, node: NodeIndex) -> bool {
        let name = self.names[usize::from(node)];
        !self.can_change || names(&self.first, &self.all, name)
    }

    /// Returns whether a node is a member and doesn't leave.
    pub fn stays(&self, node: NodeIndex) -> bool {
        let name = self.names[usize::from(node)];
        !self.can_change || self.is_in(node) && !has_left(&self.all, name)
    }

    /// Returns whether the list on a machine's disk still names its own node.
    pub fn names_itself(&self, node: NodeIndex) -> bool {
        let (name, kept) = (self.names[usize::from(node)], self.kept(node));
        names(&self.first, kept, name)
    }

    /// Returns whether a node was added by command.
    pub fn is_added(&self, name: Name) -> bool {
        self.can_change && !self.first.contains(&node_id(name))
    }

    /// Returns the changes that a machine has on its disk.
    pub fn kept(&self, node: NodeIndex) -> &[MemberChange] {
        &self.kept[usize::from(node)].changes
    }

    /// Returns with how many changes a node's process works.
    pub fn uses(&self, node: NodeIndex) -> usize {
        self.kept[usize::from(node)].uses
    }

    /// Returns the cluster with which a node's process works.
    pub fn used_by(&self, node: NodeIndex) -> Roster {
        let kept = &self.kept[usize::from(node)];
        self.after(&kept.changes[..kept.uses])
    }

    /// Returns the replicas that a node's process knows, if members may change.
    pub fn replicas_known_to(&self, node: NodeIndex) -> Vec<NodeId> {
        if !self.can_change {
            return Vec::new();
        }
        let known = self.used_by(node);
        let staying = known.ids(is_replica).into_iter();
        staying.chain(known.leaving_replicas()).collect()
    }

    /// Returns the cluster after these changes.
    pub fn after(&self, changes: &[MemberChange]) -> Roster {
        let all = self.names.iter().copied();
        let known = all.filter(|name| names(&self.first, changes, *name));
        let (leaving, staying) = known.partition(|name| has_left(changes, *name));
        Roster { staying, leaving }
    }

    /// Notes that a process starts, which works with everything on its machine's disk.
    pub fn begin(&mut self, node: NodeIndex) {
        let kept = &self.kept[usize::from(node)];
        self.use_first(node, kept.changes.len());
    }

    fn use_first(&mut self, node: NodeIndex, uses: usize) {
        let kept = &self.kept[usize::from(node)];
        let name = self.names[usize::from(node)];
        let (first, changes) = (&self.first, &kept.changes[..uses]);
        // Clients ask whoever is there for the leader.
        let all = matches!(name, Name::Client(_));
        let each = self.names.iter();
        let known = each.map(|n| all || *n == name || names(first, changes, *n));
        let known = known.collect();
        let kept = &mut self.kept[usize::from(node)];
        (kept.uses, kept.known) = (uses, known);
    }

    /// Notes that changes are stored.
    pub fn stored(&mut self, changes: &[MemberChange]) {
        if changes.len() <= self.all.len() {
            return;
        }
        let news = changes[self.all.len()..].to_vec();
        self.all = changes.to_vec();
        for change in news {
            match change {
                MemberChange::Add { node, .. } => self.give(node),
                MemberChange::Remove { .. } => self.has_news = true,
                _ => {}
            }
        }
    }

    /// Writes the cluster file of a new node's machine.
    fn give(&mut self, node: NodeId) {
        let at = self.names.iter().position(|name| node_id(*name) == node);
        if let Some(at) = at {
            self.kept[at].changes = self.all.clone();
            self.kept[at].given = self.all.len();
        }
    }

    /// Returns whether a node was removed since the last call.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// Forgets what was on a machine's disk, apart from its cluster file.
    pub fn wipe(&mut self, node: NodeIndex) {
        let kept = &mut self.kept[usize::from(node)];
        kept.changes.truncate(kept.given);
    }

    /// Keeps a longer list on a machine's disk, and returns false if it doesn't continue the own
    /// one.
    pub fn offer(&mut self, node: NodeIndex, changes: &[MemberChange]) -> bool {
        let kept = &mut self.kept[usize::from(node)];
        if !changes.starts_with(&kept.changes) {
            return kept.changes.starts_with(changes);
        }
        kept.changes = changes.to_vec();
        if self.is_unaffected(node) {
            self.use_first(node, changes.len());
        }
        true
    }

    /// Returns whether a process may go on with fewer changes than are on its disk: it needs no
    /// news of who leaves, and an acceptor none of other acceptors; but the controller counts.
    fn is_unaffected(&self, node: NodeIndex) -> bool {
        let name = self.names[usize::from(node)];
        let kept = &self.kept[usize::from(node)];
        let new = self.after(&kept.changes);
        if name == Name::Controller {
            return self.used_by(node).staying == new.staying;
        }
        let matters = |n: &&Name| !(is_acceptor(name) && is_acceptor(**n));
        let known = |n: &Name| {
            self.names
                .iter()
                .position(|m| m == n)
                .map(|at| kept.known[at])
        };
        let mut needed = new.staying.iter().chain(&new.leaving).filter(matters);
        needed.all(|n| known(n) == Some(true))
    }
}

/// Returns whether a cluster file names a node after these changes.
fn names(first: &[NodeId], changes: &[MemberChange], name: Name) -> bool {
    let id = node_id(name);
    let is_added = |c: &MemberChange| matches!(c, MemberChange::Add { node, .. } if *node == id);
    let is_gone = |c: &MemberChange| matches!(c, MemberChange::Remove { node, .. } if *node == id);
    let was = first.contains(&id) || changes.iter().any(is_added);
    was && !changes.iter().any(is_gone)
}

fn has_left(changes: &[MemberChange], name: Name) -> bool {
    let id = node_id(name);
    let leaves = |c: &MemberChange| matches!(c, MemberChange::Leave { node, .. } if *node == id);
    changes.iter().any(leaves)
}
