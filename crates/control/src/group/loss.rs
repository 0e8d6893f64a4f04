// SPDX-License-Identifier: Apache-2.0
//! Finds which instances an epoch gives up when an operator has accepted a loss.

use super::GroupControl;
use super::plan::PROGRAM_PATIENCE;
use super::report::role_name;
use crate::state::LEAP;
use crate::{GivenUp, Protocol};
use paxos::wire::value::Probe;
use paxos::{Instance, NodeId, PartitionId, Time};

/// The instances that a new epoch gives up.
pub(super) enum Loss {
    None,
    /// Some instances, but the replicas' positions must be asked for first.
    Unknown,
    Known(GivenUp),
}

impl GroupControl {
    /// Returns the instances to give up when the acceptors' knowledge is lost: everything that no
    /// replica has executed. All acceptors must be there, each in the memory that the new epoch
    /// names, so that no old vote comes back later, and all replicas, since any of them may have
    /// executed most. [G-RANGE] [G-ALL]
    pub(super) fn what_is_lost(&self, now: Time) -> Result<Loss, String> {
        self.all_answer(self.settings.voters())?;
        self.all_answer((Probe::Replica, &self.settings.replicas))?;
        let pids = 0..self.settings.partitions;
        if self.stopping.is_none() {
            // If the most advanced replica is down, for example, no replica has to stop.
            for pid in pids {
                let shown = self.shown(Probe::Replica, pid).map(|p| p.inst).max();
                let shown = shown.ok_or_else(|| nobody_answers(pid))?;
                self.is_not_trimmed(now, pid, shown)?;
            }
            return Ok(Loss::Unknown);
        }
        let from = self.where_to_go_on(|positions| {
            let mut each = pids.clone().zip(positions);
            each.try_for_each(|(pid, inst)| self.is_not_trimmed(now, pid, *inst))
        })?;
        let to = pids.clone().map(|pid| self.beyond_all(pid));
        let to = to.collect::<Result<_, _>>()?;
        Ok(Loss::Known(GivenUp { from, to }))
    }

    fn all_answer(&self, (role, nodes): (Probe, &[NodeId])) -> Result<(), String> {
        let mut silent = nodes.iter().filter(|n| !self.suspicion.is_alive(role, **n));
        silent.next().map_or(Ok(()), |node| {
            Err(format!(
                "accepting data loss needs every {}, also an empty one; node {node} doesn't \
                 answer: start it, or replace it in the cluster file",
                role_name(role)
            ))
        })
    }

    /// Returns an instance so far ahead that no node has reached it. [G-ALL]
    pub(super) fn beyond_all(&self, pid: PartitionId) -> Result<Instance, String> {
        let reached = self.reached(pid);
        reached.checked_add(LEAP).ok_or_else(|| {
            format!(
                "a node shows instance {reached} of partition {pid}, which no log reaches: find it \
                 by `wirepaxos status` and start it with an empty memory"
            )
        })
    }

    /// Returns an error if acceptors have forgotten an instance that a replica at this position
    /// needs. [G-ALL]
    fn is_not_trimmed(
        &self,
        now: Time,
        pid: PartitionId,
        executed: Instance,
    ) -> Result<(), String> {
        // An acceptor's trim point isn't a replica's if an epoch was to leap there.
        let leaps = match self.settings.protocol {
            Protocol::Paxos => self.state.accepted.is_some(),
            Protocol::NoPaxos => self.state.given_up.is_some(),
        };
        let leapt = |trim| leaps && trim - executed >= LEAP / 2;
        // With NOPaxos f+1 members have on disk what their sequencer shows as trimmed.
        let who = match self.settings.protocol {
            Protocol::Paxos => Probe::Acceptor,
            Protocol::NoPaxos => Probe::Sequencer,
        };
        match self.shown(who, pid).map(|p| p.trim).max() {
            Some(trim) if trim > executed && !leapt(trim) && !self.is_stranded(now) => {
                Err(format!(
                    "partition {pid} is trimmed to {trim} but no live replica got past {executed}: \
                 start the replica that did"
                ))
            }
            _ => Ok(()),
        }
    }

    /// Returns the largest instance of a partition that any live node has shown, or at which an
    /// epoch began.
    fn reached(&self, pid: PartitionId) -> Instance {
        let roles = [
            Probe::Leader,
            Probe::Sequencer,
            Probe::Acceptor,
            Probe::Replica,
        ];
        let shown = roles.into_iter().flat_map(|role| self.shown(role, pid));
        let shown = shown.map(|p| p.inst.max(p.trim)).max();
        let handed = self.state.handed.as_ref();
        let handed = handed.and_then(|h| h.next.get(usize::from(pid)).copied());
        let losses = [&self.state.accepted, &self.state.given_up];
        let lost = losses.into_iter().flatten().map(|loss| loss.of(pid).end);
        shown.max(handed).max(lost.max()).unwrap_or(0)
    }

    /// Returns whether no replica can continue after the instances that were given up last: all
    /// replicas answer, and each one had executed some of those instances before it was told, or
    /// has lost what comes before. [G-AGAIN]
    pub(super) fn is_stranded(&self, now: Time) -> bool {
        let Some(given_up) = &self.state.given_up else {
            return false;
        };
        // Every replica that can leap has done so by then, and has shown it.
        let patience = self.timing.attempt_timeout * PROGRAM_PATIENCE;
        if now - self.in_force_since < patience {
            return false;
        }
        let mut replicas = self.settings.replicas.iter();
        let all_answer = replicas.all(|&node| self.suspicion.is_alive(Probe::Replica, node));
        let nobody_behind = |pid| {
            let to = given_up.of(pid).end;
            self.shown(Probe::Replica, pid).all(|p| p.inst < to)
        };
        all_answer && (0..self.settings.partitions).any(nobody_behind)
    }
}

/// Returns the reason why an epoch with an accepted loss can't continue. [G-WHOLE]
pub(super) fn torn() -> String {
    "an epoch for which a loss was accepted has told acceptors to forget in some partitions \
     and not in others: `wirepaxos failover --accept-data-loss` once more goes on behind it in \
     all of them"
        .into()
}

fn nobody_answers(pid: PartitionId) -> String {
    format!("no replica answers for partition {pid}: there is nothing to go on from")
}
