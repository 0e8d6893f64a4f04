// SPDX-License-Identifier: Apache-2.0
//! The way of connections' commands to the log, and the way of its answers back.

use std::collections::HashMap;

use paxos::{PartitionId, SplitMix};

use crate::connection::Sink;
use crate::log::lane::{Logged, SESSION_WINDOW};
use crate::log::names::Names;
use crate::log::reads::ReadQueue;
use crate::log::{Log, Plane};
use crate::state::named_command::{self, Once};
use crate::state::waiter::Waiter;

/// The sessions, open or asked for, and the connections to which they belong.
pub(super) struct Routes {
    /// The connection of each session, by partition and by the session's id or nonce; ids are
    /// unique within a partition only.
    connections: HashMap<(PartitionId, u64), usize>,
    nonces: SplitMix,
}

impl Routes {
    pub fn new(seed: u64) -> Routes {
        Routes {
            connections: HashMap::new(),
            nonces: SplitMix::new(seed),
        }
    }

    /// Draws the nonce for a session.
    pub fn draw_nonce(&mut self) -> u64 {
        named_command::unnamed(self.nonces.draw())
    }

    /// Draws the nonce for a session that a connection asks for.
    fn draw(&mut self, pid: PartitionId, connection: usize) -> u64 {
        let nonce = self.draw_nonce();
        self.connections.insert((pid, nonce), connection);
        nonce
    }

    /// Returns the connection to which a session, or the nonce with which it is asked for, belongs.
    pub fn find(&self, pid: PartitionId, id: u64) -> Option<usize> {
        self.connections.get(&(pid, id)).copied()
    }

    /// Notes that a session is a connection's.
    pub fn insert(&mut self, pid: PartitionId, id: u64, connection: usize) {
        self.connections.insert((pid, id), connection);
    }

    /// Forgets a session or nonce.
    pub fn remove(&mut self, pid: PartitionId, id: u64) {
        self.connections.remove(&(pid, id));
    }

    /// Returns true if no session is open or asked for.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }
}

/// A connection's way to the log.
pub(super) struct ToLog<'a, P> {
    pub log: &'a mut Log<P>,
    pub routes: &'a mut Routes,
    pub names: &'a mut Names,
    pub reads: &'a mut ReadQueue,
    /// The connection's index.
    pub index: usize,
    pub client: u64,
    pub max_value: usize,
}

impl<P: Plane> Sink for ToLog<'_, P> {
    fn open(&mut self, pid: PartitionId) -> u64 {
        let nonce = self.routes.draw(pid, self.index);
        self.log.open_session(pid, nonce, SESSION_WINDOW);
        nonce
    }

    fn send(&mut self, session: u64, request: u64, logged: &Logged) {
        self.log.submit(session, request, logged);
    }

    fn send_part(&mut self, pid: PartitionId, session: u64, number: u64, part: &[u8]) {
        self.log.submit_part(pid, session, number, part);
    }

    fn send_once(&mut self, once: Once, logged: Logged) {
        let waiter = Waiter {
            index: self.index,
            client: self.client,
        };
        self.names
            .push(self.log, waiter, once, logged, self.max_value);
    }

    fn can_read(&self) -> bool {
        self.reads.is_open
    }

    fn read(&mut self, pid: PartitionId, command: &[u8], stale: bool) -> u64 {
        self.reads.push(self.index, pid, command, stale)
    }
}
