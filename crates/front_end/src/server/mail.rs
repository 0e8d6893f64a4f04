// SPDX-License-Identifier: Apache-2.0
//! Takes what the replica beside the front end has sent: answers of the log, and to reads without
//! it.

use paxos::{PartitionId, Time};
use replica::Status;
use replica::protocol::Effect;

use crate::found_keys::{Asker, Found};
use crate::log::Plane;
use crate::log::lane::LaneSession;
use crate::log::names::Taken;
use crate::log::reads::ReadQueue;
use crate::mailbox::{Answer, Mail};
use crate::metrics::Metrics;
use crate::server::walker::Walk;
use crate::server::{Server, TOO_MANY_CLIENTS};
use crate::state::waiter::Waiter;

impl<P: Plane> Server<P> {
    pub(super) fn take_mail(&mut self, mail: &mut Mail) {
        self.mailbox.take(mail);
        if mail.leader_changed {
            self.log.leader_changed();
        }
        for (pid, sessions) in &mail.sessions {
            self.take_sessions(*pid, sessions);
        }
        self.hear(mail);
        let now = self.log.now();
        for answer in mail.answers() {
            self.shared.turn.begin();
            self.on_answer(now, &answer);
        }
        for (number, answer) in mail.reads.iter() {
            self.on_read(number, answer);
        }
        for (asker, found) in &mail.walked {
            self.on_walked(*asker, found);
        }
        for (pid, event) in &mail.news {
            self.on_news(*pid, event);
        }
        if mail.shut_down {
            self.begin_shutdown();
        }
        mail.clear();
    }

    fn on_answer(&mut self, now: Time, answer: &Answer<'_>) {
        let status = Status::from_u8(answer.status);
        let Answer { pid, client, .. } = *answer;
        let awaited = self.log.answered(now, answer);
        let key = (pid, client, answer.request);
        let opened_id = opened(answer);
        let taken = self
            .names
            .take(&mut self.log, key, status, opened_id, awaited);
        if let Taken::Told(waiters, status) = taken {
            return self.tell(&waiters, status, answer.bytes);
        }
        let report = (answer.request, status, opened_id);
        if awaited && self.take_clock_report(pid, client, report) {
            return;
        }
        let route = self.routes.find(pid, client);
        let Some(index) = route.filter(|_| awaited) else {
            if let Some(id) = opened(answer) {
                self.close_unless_ours(pid, id, client);
            }
            return;
        };
        let peer = self.peers.at(index);
        let connection = &mut peer.connection;
        let lane = connection.lane(pid).expect("routes end with it");
        match (lane.session, status) {
            (LaneSession::Opening(_), _) => {
                self.routes.remove(pid, client);
                match opened(answer) {
                    Some(id) => {
                        lane.session = LaneSession::Open(id);
                        self.routes.insert(pid, id, index);
                    }
                    None => {
                        Metrics::add(&self.shared.metrics.connections_refused);
                        lane.session = LaneSession::None;
                        self.give_up(index, TOO_MANY_CLIENTS);
                    }
                }
            }
            (_, Some(Status::UnknownSession)) => {
                Metrics::add(&self.shared.metrics.sessions_lost);
                self.lose_session(index, pid, client);
            }
            _ => {
                let request = (pid, answer.request);
                let wanted = connection.on_answer(request, status, answer.bytes, &self.shared);
                if let Some((number, pattern, awaited)) = wanted {
                    let waiter = connection.client.waiter();
                    self.walker.walk(Walk {
                        asker: Asker { waiter, number },
                        pattern,
                        awaited,
                    });
                }
                if status.is_some_and(|status| status.effect(true) == Effect::Refused) {
                    self.leave_session(index, pid, client);
                }
            }
        }
        // Answers often come together, so the connection is noted once; it is served before the
        // loop waits again.
        if self.again.last() != Some(&index) {
            self.again.push(index);
        }
    }

    /// Takes an answer to a report of the clock; returns false if the answer belongs to something
    /// else.
    fn take_clock_report(
        &mut self,
        pid: PartitionId,
        client: u64,
        answer: (u64, Option<Status>, Option<u64>),
    ) -> bool {
        let (Some(native), Some(reports)) = (&self.shared.native, &mut self.clock_reports) else {
            return false;
        };
        let is_report = reports.owns(pid, client);
        if is_report {
            reports.take(&mut self.log, native, pid, answer);
            reports.show(native, &self.shared.metrics);
        }
        is_report
    }

    /// Gives the answer to a command in a name's session to all connections that wait for it.
    /// [S-NAMED]
    fn tell(&mut self, waiters: &[Waiter], status: Option<Status>, bytes: &[u8]) {
        for waiter in waiters {
            if let Some(peer) = self.peers.of(*waiter) {
                peer.connection.on_named(status, bytes, &self.shared);
                self.again.push(waiter.index);
            }
        }
    }

    /// Takes the answer to a read without the log. Its connection may be gone, with another one in
    /// its place.
    fn on_read(&mut self, number: u64, answer: Option<&[u8]>) {
        let Some(index) = ReadQueue::index_of(number) else {
            return self.census.take(number, answer, &self.shared);
        };
        if let Some(peer) = self.peers.get_mut(index) {
            peer.connection.on_read(number, answer, &self.shared);
            if self.again.last() != Some(&index) {
                self.again.push(index);
            }
        }
    }

    /// Gives KEYS its answer. Its client may be gone, with another one in its place.
    fn on_walked(&mut self, asker: Asker, found: &Found) {
        if let Some(peer) = self.peers.of(asker.waiter) {
            peer.connection.walked(asker.number, found, &self.shared);
            self.again.push(asker.waiter.index);
        }
    }
}

/// Returns the session's id if this is the answer to an OPEN that succeeded.
fn opened(answer: &Answer<'_>) -> Option<u64> {
    let ok = answer.request == 0 && Status::from_u8(answer.status) == Some(Status::Ok);
    let id = <[u8; 8]>::try_from(answer.bytes).ok().filter(|_| ok)?;
    Some(u64::from_be_bytes(id))
}
