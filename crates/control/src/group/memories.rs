// SPDX-License-Identifier: Apache-2.0
//! Compares memories of acceptors, or of replicas with NOPaxos, that were read from disk
//! ([`crate::memory`]), and lets them continue or has them emptied.

use super::GroupControl;
use crate::memory::MemoryRecord;
use crate::{ControlOutbox, GroupState, Message, Peer, Store};
use paxos::wire::value::Probe;
use paxos::{NodeId, Time};

impl GroupControl {
    /// Handles the memory that an acceptor or such a replica has shown. Before the memory may
    /// continue, it must say that it was at the last known start, since a copy that starts often
    /// enough shows a later one; then its start is stored, so that no later controller takes an
    /// older copy for it. [A-COMPARE]
    pub(super) fn note_memory(
        &mut self,
        node: NodeId,
        store: &mut impl Store,
        out: &mut impl ControlOutbox,
    ) {
        let Some(watched) = self.suspicion.get(self.voters(), node) else {
            return;
        };
        let (mute, Some(shown)) = (watched.mute, MemoryRecord::shown_by(watched)) else {
            return;
        };
        let key = (shown.node, shown.nonce);
        let kept = match record_mut(&mut self.memories, key) {
            Some(known) => known.take(&shown, mute),
            None => {
                self.memories.push(MemoryRecord::of_unknown(shown, mute));
                true
            }
        };
        self.suspicion.set_lost(node, !kept);
        if mute || !kept {
            let _ = self.store_memory(key, store);
        }
        self.order_restarted(node, out);
    }

    fn voters(&self) -> Probe {
        self.settings.voters().0
    }

    /// Handles the answer whether a memory was at the start that it was asked about.
    pub(super) fn take_earlier_start(
        &mut self,
        told: &EarlierStart,
        store: &mut impl Store,
        out: &mut impl ControlOutbox,
    ) {
        let watched = self.suspicion.get(self.voters(), told.node);
        let shown = watched.filter(|w| w.mute).and_then(MemoryRecord::shown_by);
        let is_it = |shown: &MemoryRecord| (shown.nonce, shown.start) == (told.nonce, told.start);
        if !shown.as_ref().is_some_and(is_it) {
            return;
        }
        let key = (told.node, told.nonce);
        let known = record_mut(&mut self.memories, key);
        let Some(known) = known.filter(|m| m.start == told.earlier) else {
            return;
        };
        let kept = known.follow(told.start, told.known);
        self.suspicion.set_lost(told.node, !kept);
        // If it can't be stored, this waits for the next PROBE_ACK. Asking again at once would
        // repeat without a pause as long as the store fails.
        if self.store_memory(key, store).is_ok() {
            self.order_restarted(told.node, out);
        }
    }

    /// Stores the starts of a memory, unless they are stored already.
    fn store_memory(&mut self, key: (NodeId, u64), store: &mut impl Store) -> Result<(), ()> {
        let starts = |m: &MemoryRecord| (m.start, m.forgot.is_some());
        let known = record(&self.memories, key).map(starts);
        if record(&self.state.memories, key).map(starts) == known {
            return Ok(());
        }
        self.store_memories(store)
    }

    /// Repeats the orders to restarted memories until they take effect.
    pub(super) fn order_all_restarted(&self, out: &mut impl ControlOutbox) {
        for acceptor in self.suspicion.iter().filter(|w| w.mute) {
            self.order_restarted(acceptor.node, out);
        }
    }

    fn order_restarted(&self, node: NodeId, out: &mut impl ControlOutbox) {
        let watched = self.suspicion.get(self.voters(), node);
        let Some(shown) = watched.filter(|w| w.mute).and_then(MemoryRecord::shown_by) else {
            return;
        };
        let key = (node, shown.nonce);
        let (Some(known), Some(stored)) = (
            record(&self.memories, key),
            record(&self.state.memories, key),
        ) else {
            return;
        };
        let (group, nonce, start) = (self.id(), shown.nonce, shown.start);
        let message = if stored.forgot.is_some() && self.may_be_emptied() {
            Message::DiscardMemory {
                group,
                nonce,
                start,
            }
        } else if known.forgot.is_some() {
            return;
        } else if stored.start == start {
            Message::ResumeAcceptor {
                group,
                nonce,
                start,
            }
        } else {
            Message::EarlierStartRequest {
                group,
                nonce,
                start,
                earlier: known.start,
            }
        };
        out.control(Peer::Node(node), message);
    }

    /// Returns whether a memory that went backwards may be emptied: an operator who has nothing
    /// else may still need it. [A-DISCARD]
    fn may_be_emptied(&self) -> bool {
        self.needed_quorums().is_ok() || self.order.is_some_and(|o| o.accept_data_loss)
    }

    /// Stores positions from time to time while they advance; they are also stored with every other
    /// change.
    pub(super) fn store_positions(&mut self, now: Time, store: &mut impl Store) {
        if now < self.memories_at {
            return;
        }
        self.memories_at = now + self.timing.memory_interval;
        self.store_moved_positions(store);
    }

    /// Stores positions if any has advanced since they were stored.
    pub(super) fn store_moved_positions(&mut self, store: &mut impl Store) {
        if self.memories_to_keep(&self.state) != self.state.memories {
            let _ = self.store_memories(store);
        }
    }

    fn store_memories(&mut self, store: &mut impl Store) -> Result<(), ()> {
        self.change(store, |state| {
            state.version += 1;
            Ok(())
        })
    }

    /// Returns the memories to store: those that an epoch of the store names, and those that answer
    /// now.
    pub(super) fn memories_to_keep(&self, state: &GroupState) -> Vec<MemoryRecord> {
        let named = |m: &&MemoryRecord| {
            let mut epochs = state.epochs.iter();
            epochs.any(|e| e.acceptors.contains(&(m.node, m.nonce)))
        };
        let answers = |m: &&MemoryRecord| {
            let watched = self.suspicion.get(self.voters(), m.node);
            watched.is_some_and(|w| w.memory == Some(m.nonce))
        };
        let kept = self.memories.iter().filter(|m| named(m) || answers(m));
        kept.cloned().collect()
    }

    /// Returns warnings about memories that went backwards and are still there.
    pub(super) fn forgotten(&self) -> impl Iterator<Item = String> + '_ {
        let lost = self.suspicion.iter().filter(|w| w.lost);
        lost.filter_map(|w| {
            let mut known = self.memories.iter();
            let m = known.find(|m| m.node == w.node && Some(m.nonce) == w.memory)?;
            let (who, what, emptied) = match w.role {
                Probe::Replica => (
                    "REPLICA",
                    "PARTS OF ITS LOG",
                    "it puts its log aside and stops. Start it again: it joins with a new one",
                ),
                _ => (
                    "ACCEPTOR",
                    "VOTES",
                    "it is being emptied, and joins again with a new memory",
                ),
            };
            let next = match (w.mute, self.may_be_emptied()) {
                (false, _) => "stop it and start it again",
                (true, true) => emptied,
                (true, false) => {
                    "with it more than f are lost, so it is kept as it is: put its newest files \
                     back, or give up what is lost with `wirepaxos failover --accept-data-loss`"
                }
            };
            Some(format!(
                "{who} {} HAS FORGOTTEN {what}: {}. An old copy of its files was put back, or its \
                 disk lost writes. It counts as lost; {next}",
                m.node,
                m.forgot.as_ref()?
            ))
        })
    }
}

/// The answer to a [`Message::EarlierStartRequest`].
pub(super) struct EarlierStart {
    pub node: NodeId,
    pub nonce: u64,
    pub start: u64,
    pub earlier: u64,
    pub known: bool,
}

fn record(memories: &[MemoryRecord], key: (NodeId, u64)) -> Option<&MemoryRecord> {
    memories.iter().find(|m| (m.node, m.nonce) == key)
}

fn record_mut(memories: &mut [MemoryRecord], key: (NodeId, u64)) -> Option<&mut MemoryRecord> {
    memories.iter_mut().find(|m| (m.node, m.nonce) == key)
}
