// SPDX-License-Identifier: Apache-2.0
//! How sessions end: they are lost, left, given up, unused, or belong to nobody.

use std::time::Instant;

use paxos::PartitionId;
use replica::LocalSession;

use crate::connection::Connection;
use crate::log::Plane;
use crate::log::lane::LaneSession;
use crate::pubsub::jobs::Job;
use crate::server::Server;
use crate::state::waiter::Waiter;

impl<P: Plane> Server<P> {
    /// Handles that a session has expired. If it is certain that nothing in flight took effect, the
    /// commands go into another session and nobody notices; otherwise the connection ends. [S-ANEW]
    pub(super) fn lose_session(&mut self, index: usize, pid: PartitionId, id: u64) {
        let connection = &mut self.peers.at(index).connection;
        let Some(lane) = connection.lane(pid) else {
            return;
        };
        if !lane.is_loss_certain() {
            return self.give_up(index, "ERR not executed: the session is lost");
        }
        self.take_out_of_session(index, pid, id);
    }

    /// Leaves a session in which a command was refused: it executes none of the commands behind
    /// that one, so they go into another session. [S-ORDERED] [S-SAYS]
    pub(super) fn leave_session(&mut self, index: usize, pid: PartitionId, id: u64) {
        self.take_out_of_session(index, pid, id);
        self.log.close_session(pid, id);
    }

    /// Takes the commands in flight out of a session in which they take no effect; they wait for
    /// another one.
    fn take_out_of_session(&mut self, index: usize, pid: PartitionId, id: u64) {
        let connection = &mut self.peers.at(index).connection;
        let numbers = connection.lane(pid).map(|lane| lane.numbers());
        for number in numbers.unwrap_or_default() {
            self.log.forget(pid, id, number);
        }
        self.routes.remove(pid, id);
        connection.lose_session(pid);
    }

    /// Ends a connection. Commands in flight may take effect, all others fail with this error.
    pub(super) fn give_up(&mut self, index: usize, error: &str) {
        let mut peer = self.peers.lift(index);
        self.drop_lanes(index, &mut peer.connection);
        peer.connection.fail_all(error, &self.shared);
        peer.connection.end();
        self.peers.put(index, peer);
    }

    /// Closes all sessions of a connection, and waits for no answers to it any more.
    pub(super) fn drop_lanes(&mut self, index: usize, connection: &mut Connection) {
        let client = connection.client.id;
        self.shared.waits.borrow_mut().leave(client);
        let subscriptions = std::mem::take(&mut connection.client.subscriptions);
        if !subscriptions.is_empty() {
            let leave = Job::Leave {
                client,
                subscriptions,
            };
            // This job is no message, so it always has room.
            let _ = self.shared.jobs.borrow_mut().push(leave);
        }
        if let Some(named) = connection.named() {
            let waiter = Waiter { index, client };
            self.names.leave(&mut self.log, waiter, named);
        }
        for lane in connection.lanes() {
            match lane.session {
                LaneSession::Open(id) => {
                    for number in lane.numbers() {
                        self.log.forget(lane.pid, id, number);
                    }
                    self.routes.remove(lane.pid, id);
                    self.log.close_session(lane.pid, id);
                }
                // The session is closed as soon as its id arrives.
                LaneSession::Opening(nonce) => {
                    self.routes.remove(lane.pid, nonce);
                }
                LaneSession::None => {}
            }
        }
    }

    /// Notes that the replica has taken another replica's state of a partition, in which these
    /// sessions are open.
    pub(super) fn take_sessions(&mut self, pid: PartitionId, sessions: &[LocalSession]) {
        for (_, peer) in self.peers.iter_mut() {
            peer.connection.lanes().for_each(|lane| lane.overtake(pid));
        }
        for session in sessions {
            self.close_unless_ours(pid, session.id, session.nonce);
        }
    }

    /// Closes a session that answers to this front end but belongs to none of its connections: an
    /// earlier process opened it, or a late copy of an OPEN. Commands in flight in it take effect
    /// before it is closed, once, or never; nobody waits to learn which. [S-CLOSE]
    pub(super) fn close_unless_ours(&mut self, pid: PartitionId, id: u64, nonce: u64) {
        let reports = self.clock_reports.as_ref();
        let ours = |number| {
            self.routes.find(pid, number).is_some()
                || reports.is_some_and(|reports| reports.owns(pid, number))
        };
        if !ours(id) && !ours(nonce) {
            self.log.close_session(pid, id);
        }
    }

    /// Closes the sessions that connections haven't used for long, before the replicas let them
    /// expire. The next command opens another one.
    pub(super) fn release_idle_sessions(&mut self) {
        if Instant::now() < self.next_idle_check {
            return;
        }
        self.next_idle_check = Instant::now() + self.session_idle / 4;
        self.names.release(&mut self.log, self.session_idle);
        for (_, peer) in self.peers.iter_mut() {
            for (pid, id) in peer.connection.take_unused(self.session_idle) {
                self.routes.remove(pid, id);
                self.log.close_session(pid, id);
            }
        }
    }
}
