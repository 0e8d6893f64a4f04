// SPDX-License-Identifier: Apache-2.0
//! What a connection does in its turn: it reads, executes, proposes, writes and ends.

use std::collections::BinaryHeap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::log::Plane;
use crate::metrics::Metrics;
use crate::server::Server;
use crate::server::held_answers::HoldTime;
use crate::server::to_log::ToLog;
use crate::state::waiter::Waiter;
use crate::turns::LOOK_UP;

/// The most values that one connection may have in flight, so that a pipeline of small commands
/// needs few round trips. A single command beside it waits for them: for a fifth longer than with
/// half as many.
const MOST_VALUES: usize = 16;
/// The most rounds of reading and writing that a connection gets in one turn.
const ROUNDS: usize = 16;

impl<P: Plane> Server<P> {
    /// Lets a connection do what it can: read, execute, propose, write, end.
    pub(super) fn pump(&mut self, index: usize) {
        self.shared.turn.begin();
        for _ in 0..ROUNDS {
            let Some(peer) = self.peers.get_mut(index) else {
                return;
            };
            if peer.is_handshaking() && !self.shake_hands(index) {
                return;
            }
            let peer = self.peers.at(index);
            peer.connection.run(&self.shared);
            while !self.shared.turn.is_over() && self.tell_of_clients(index) {}
            self.propose(index);
            let keeps_answers = self.keeps_answers(index);
            let peer = self.peers.at(index);
            let wrote = !keeps_answers && peer.write();
            if peer.connection.answer_bytes() > peer.connection.output_limit(&self.shared) {
                Metrics::add(&self.shared.metrics.output_limit_reached);
                peer.abandon();
            }
            let read = peer.read(&mut self.read_buffer);
            if peer.connection.waits_in_vain() {
                peer.abandon();
            }
            if peer.is_finished() {
                return self.remove(index);
            }
            self.count_memory(index);
            if self.shared.turn.is_over() {
                break;
            }
            if !wrote && !read {
                return;
            }
        }
        self.again.push(index);
    }

    /// Sends the connection's commands that may be sent now, and opens the sessions that they need.
    ///
    /// The connections with commands in flight share half of the values that a partition may have
    /// open, and each gets at most [`MOST_VALUES`]. So a pipeline needs few round trips, and nobody
    /// waits behind many values of another connection.
    fn propose(&mut self, index: usize) {
        let peer = self.peers.at(index);
        let others = self.under_way - usize::from(peer.is_under_way);
        let values = (self.shared_values / (others + 1)).clamp(1, MOST_VALUES);
        let connection = &mut peer.connection;
        let mut sink = ToLog {
            log: &mut self.log,
            routes: &mut self.routes,
            names: &mut self.names,
            reads: &mut self.reads,
            index,
            client: connection.client.id,
            max_value: self.shared.max_value,
        };
        connection.propose(&self.shared, values, &mut sink);
        peer.is_under_way = connection.is_under_way();
        self.under_way = others + usize::from(peer.is_under_way);
    }

    /// Returns true if the connection's answers wait for further ones, to be sent together.
    fn keeps_answers(&mut self, index: usize) -> bool {
        let peer = self.peers.at(index);
        let of = &mut peer.confirmation;
        if self.stop_at.is_none() && self.herald.keeps(&peer.connection.client, of, &self.shared) {
            return true;
        }
        let (connection, client) = (&peer.connection, peer.connection.client.id);
        let has_room = connection.answer_bytes() <= connection.output_limit(&self.shared);
        if !connection.has_followers() || !has_room {
            peer.hold = HoldTime::default();
            return false;
        }
        let (whose, now) = (Waiter { index, client }, Instant::now());
        let bytes = connection.pending_output().len();
        self.held.keeps(&mut peer.hold, whose, now, bytes)
    }

    /// Writes the answers that have waited for others long enough.
    pub(super) fn write_held(&mut self, now: Instant) {
        while let Some(waiter) = self.held.take_due(now) {
            if self.peers.of(waiter).is_some() {
                self.pump(waiter.index);
            }
        }
    }

    pub(super) fn remove(&mut self, index: usize) {
        let Some(mut peer) = self.peers.remove(index) else {
            return;
        };
        self.under_way -= usize::from(peer.is_under_way);
        self.memory -= peer.memory;
        match self.herald.ends(peer.connection.client.waiter()) {
            true => {
                let now = Instant::now();
                self.shared.channels.borrow_mut().audience().lost(now);
            }
            false => {
                self.shared.metrics.connected.fetch_sub(1, Relaxed);
            }
        }
        self.drop_lanes(index, &mut peer.connection);
        self.handshakes.end(peer.connection.client.waiter());
        peer.close(self.poll.registry());
    }

    fn count_memory(&mut self, index: usize) {
        let Some(peer) = self.peers.get_mut(index) else {
            return;
        };
        let memory = peer.memory_now();
        self.memory = self.memory - peer.memory + memory;
        peer.memory = memory;
        if self.memory > self.shared.max_memory_bytes {
            self.evict();
        }
        let now = self.memory as u64;
        self.shared.metrics.memory_bytes.store(now, Relaxed);
    }

    /// Gives up those clients whose connections keep most memory, until there is room. Clients that
    /// haven't authenticated go first, clients that are to be kept go last.
    fn evict(&mut self) {
        self.shared.turn.spend(self.peers.places() * LOOK_UP);
        let peers = self.peers.iter();
        let connected = peers.filter(|(_, peer)| peer.is_there());
        let connected = connected.map(|(index, peer)| {
            let client = &peer.connection.client;
            (
                !client.is_authenticated(),
                !client.is_kept,
                peer.memory,
                index,
            )
        });
        let mut all: BinaryHeap<_> = connected.collect();
        while self.memory > self.shared.max_memory_bytes {
            let Some((.., index)) = all.pop() else { return };
            let Some(peer) = self.peers.get_mut(index) else {
                continue;
            };
            Metrics::add(&self.shared.metrics.evicted);
            peer.abandon();
            self.memory -= peer.memory;
            peer.memory = peer.memory_now();
            self.memory += peer.memory;
            self.again.push(index);
        }
    }
}
