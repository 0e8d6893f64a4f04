// SPDX-License-Identifier: Apache-2.0
//! Tells from a group's status whether nodes may begin anew or end while its members change.

use paxos::{Instance, NodeId, Round};

use crate::status::{GroupStatus, MemberStatus};
use crate::{EpochRecord, EpochState};

/// Why a replica that leaves can't end yet. [T-MEMBERS]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StillNeeded {
    /// It hasn't come to the epoch in force, so acceptors may still forget by its reports.
    IsBehind(NodeId),
    /// Too few of those who stay have a checkpoint as new as its own, or as what acceptors have
    /// forgotten.
    HoldsAlone(NodeId),
}

/// Returns the epoch in force, which is the last one if it is active.
pub fn in_force(group: &GroupStatus) -> Option<&EpochRecord> {
    let last = group.epochs.last();
    last.filter(|epoch| epoch.state == EpochState::Active)
}

/// Returns whether a node of a group answers.
pub fn is_alive(group: &GroupStatus, node: NodeId) -> bool {
    group.members.iter().any(|m| m.node == node && m.alive)
}

/// Returns whether a member of the epoch in force doesn't show the memory on which that counts:
/// the node has just begun anew.
pub fn without_its_memory(group: &GroupStatus, node: NodeId) -> bool {
    let Some((_, counted)) = in_force(group).and_then(|epoch| {
        let mut acceptors = epoch.acceptors.iter();
        acceptors.find(|(id, _)| *id == node)
    }) else {
        return false;
    };
    let shows = group.members.iter().any(|m| {
        let votes = matches!(m.role.as_str(), "acceptor" | "replica");
        m.node == node && votes && m.alive && !m.mute && m.nonce == Some(*counted)
    });
    !shows
}

/// Returns whether a replica has executed almost as much as the others.
pub fn is_close(group: &GroupStatus, node: NodeId, lag: u64) -> bool {
    let replicas = || group.members.iter().filter(|m| m.role == "replica");
    let Some(own) = replicas().find(|m| m.node == node) else {
        return false;
    };
    let is_close = |pid: usize| {
        let at = replicas().filter_map(|m| Some(m.partitions.get(pid)?.inst));
        let most = at.max().unwrap_or(0);
        own.partitions
            .get(pid)
            .is_some_and(|p| p.inst + lag >= most)
    };
    own.alive && !group.behind.contains(&node) && (0..own.partitions.len()).all(is_close)
}

/// Returns the first of the `leaving` replicas that can't end yet: acceptors may have forgotten, or
/// may still forget by its reports, what no more than g of the `staying` ones have in their
/// checkpoints. [T-MEMBERS]
pub fn still_needed(
    group: &GroupStatus,
    leaving: &[NodeId],
    staying: &[NodeId],
    g: u8,
) -> Option<StillNeeded> {
    let epoch = in_force(group)?.epoch;
    leaving.iter().find_map(|&node| {
        let own = replica(group, node)?;
        let mut shown = own.partitions.iter();
        if own.alive && !shown.all(|at| Round(at.round).epoch() >= epoch) {
            return Some(StillNeeded::IsBehind(node));
        }
        let holders = |pid: usize| {
            let forgotten = forgotten(group, pid).max(own.partitions[pid].trim);
            let holds = |node: &&NodeId| {
                replica(group, **node).is_some_and(|m| {
                    let at = m.partitions.get(pid);
                    m.alive && at.is_some_and(|at| at.trim >= forgotten)
                })
            };
            staying.iter().filter(holds).count()
        };
        let few = (0..own.partitions.len()).any(|pid| holders(pid) <= usize::from(g));
        few.then_some(StillNeeded::HoldsAlone(node))
    })
}

fn replica(group: &GroupStatus, node: NodeId) -> Option<&MemberStatus> {
    let mut members = group.members.iter();
    members.find(|m| m.node == node && m.role == "replica")
}

fn forgotten(group: &GroupStatus, pid: usize) -> Instance {
    let acceptors = group.members.iter().filter(|m| m.role == "acceptor");
    let acceptors = acceptors.filter(|m| !m.disbelieved);
    let trims = acceptors.filter_map(|m| Some(m.partitions.get(pid)?.trim));
    trims.max().unwrap_or(0)
}
