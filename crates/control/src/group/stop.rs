// SPDX-License-Identifier: Apache-2.0
//! Finds where replicas stand when a loss is accepted: with execution stopped, all partitions of
//! one replica at one moment.
//!
//! Positions of different moments, or of different replicas, make up no replica's state: a command
//! over several partitions may lie before one of them and after another one. So an epoch is issued
//! only to stop execution until it, or a later one, is active. As it stays unfinished, another
//! epoch follows in any case, even if this process ends, so no replica stays stopped for good.
//! [G-STOP]

use super::GroupControl;
use crate::suspicion::Watched;
use crate::{ControlOutbox, Message, Peer, Store};
use paxos::acceptor::Start;
use paxos::wire::value::Probe;
use paxos::{Configuration, Epoch, Instance, NodeId, Time};
use std::collections::BTreeMap;

/// The state while replicas are being stopped.
pub(super) struct Stopping {
    pub since: Time,
    epoch: Epoch,
    /// For each replica the process that answered, and the positions of its partitions.
    stopped: BTreeMap<NodeId, (Process, Vec<Instance>)>,
}

/// The boot nonce of a process and the start of its memory, since a stored memory keeps its nonce
/// when its process restarts. The start is 0 if the memory isn't stored.
type Process = (u64, u64);

impl GroupControl {
    /// Takes the number of an epoch that only stops execution.
    pub(super) fn begin_to_stop(
        &mut self,
        now: Time,
        configuration: &Configuration,
        store: &mut impl Store,
        out: &mut impl ControlOutbox,
    ) {
        let Some(epoch) = self.take_epoch(now, configuration, None, store, out) else {
            return;
        };
        self.stopping = Some(Stopping {
            since: now,
            epoch,
            stopped: BTreeMap::new(),
        });
        self.stop_replicas(out);
    }

    /// Repeats the order to replicas that haven't answered it.
    pub(super) fn stop_replicas(&self, out: &mut impl ControlOutbox) {
        let Some(stopping) = &self.stopping else {
            return;
        };
        let replicas = self.suspicion.iter().filter(|w| w.role == Probe::Replica);
        for replica in replicas.filter(|w| stopping.of(w).is_none()) {
            let message = Message::StopExecution {
                group: self.id(),
                epoch: stopping.epoch,
            };
            out.control(Peer::Node(replica.node), message);
        }
    }

    /// Notes the positions at which a replica has stopped.
    pub(super) fn take_stopped(
        &mut self,
        node: NodeId,
        process: Process,
        epoch: Epoch,
        next: &[Instance],
    ) {
        let known = self.suspicion.get(Probe::Replica, node).is_some();
        let whole = next.len() == usize::from(self.settings.partitions);
        let counts = |s: &&mut Stopping| known && whole && s.epoch == epoch;
        if let Some(stopping) = self.stopping.as_mut().filter(counts) {
            stopping.stopped.insert(node, (process, next.to_vec()));
        }
    }

    /// Returns the positions of the replica from which the next epoch continues: the one that has
    /// executed most. All must have stopped. `fits` returns an error for positions that can't be
    /// used. [G-ONE]
    pub(super) fn where_to_go_on(
        &self,
        fits: impl Fn(&[Instance]) -> Result<(), String>,
    ) -> Result<Vec<Instance>, String> {
        let mut best: Result<Vec<Instance>, String> =
            Err("no replica answers: there is nothing to go on from".into());
        // Former members are watched, too, but their state can't be fetched. One that leaves may be
        // dead.
        let is_configured = |w: &&Watched| {
            let leaves = self.is_replica(w.node) && !self.suspicion.is_suspect(w);
            leaves || self.settings.replicas.contains(&w.node)
        };
        let replicas = self.suspicion.iter().filter(|w| w.role == Probe::Replica);
        for replica in replicas.filter(is_configured) {
            let stopping = self.stopping.as_ref();
            let Some(positions) = stopping.and_then(|s| s.of(replica)) else {
                return Err(format!(
                    "replica {} hasn't stopped execution: it is starting, or installs another \
                     one's state, or is too busy. If that doesn't end, start it with an empty data \
                     directory: what it alone has executed is lost",
                    replica.node
                ));
            };
            let suits = self.is_of_one_line(replica.node, positions);
            match suits.and_then(|()| fits(positions)) {
                Ok(()) if best.as_ref().is_ok_and(|best| sum(best) >= sum(positions)) => {}
                Ok(()) => {
                    best = Ok(positions.clone());
                }
                Err(why) if best.is_err() => best = Err(why),
                _ => {}
            }
        }
        best
    }

    /// Returns an error unless a replica stands with all its partitions before the end of what was
    /// given up last, or with all of them at its beginning or after its end. Otherwise it would
    /// need another replica's state, and can't be continued from.
    fn is_of_one_line(&self, node: NodeId, positions: &[Instance]) -> Result<(), String> {
        let Some(given_up) = &self.state.given_up else {
            return Ok(());
        };
        let all = || given_up.ranges().into_iter().zip(positions);
        let before = all().all(|(range, next)| *next < range.end);
        let behind = all().all(|(range, next)| *next >= range.end || *next == range.start);
        match before || behind {
            true => Ok(()),
            false => Err(format!(
                "replica {node} needs another one's state: only a part of its partitions stands \
                 behind what was given up"
            )),
        }
    }
}

impl Stopping {
    /// Returns where a replica stands, if the process that answers now has stopped.
    fn of(&self, replica: &Watched) -> Option<&Vec<Instance>> {
        let (process, positions) = self.stopped.get(&replica.node)?;
        let start = replica.start.map_or(0, Start::number);
        let answers = replica.memory.map(|nonce| (nonce, start));
        (answers == Some(*process)).then_some(positions)
    }
}

/// Returns the sum of the positions. A replica that has executed more in all partitions has a
/// larger sum.
fn sum(positions: &[Instance]) -> u128 {
    positions.iter().map(|next| u128::from(*next)).sum()
}
