// SPDX-License-Identifier: Apache-2.0
//! Receives answers, follows the leader, and opens, moves and gives up sessions.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use control::{Message, View};
use paxos::{PartitionId, Time};
use replica::parts::Sending;
use replica::protocol::{ReplyAddress, SessionOp, Status};

use super::{
    ASK_INTERVAL, CONFIRMATIONS_BEFORE_MOVE, CONTROL_WAIT, Client, Session, WAIT_STEP,
    WATCH_INTERVAL, control_nodes, random_nonce,
};
use crate::completions::Completion;
use crate::error::Error;
use crate::reads::Reads;

impl Client {
    /// Takes the packets that have arrived.
    pub(super) fn receive(&mut self) -> Result<(), Error> {
        // A batch that isn't full means that the socket is empty now.
        self.more = self.plane.receive(&mut self.inbox)? && self.inbox.is_full();
        let now = self.start.elapsed().as_nanos() as Time;
        let (sessions, completions) = (&mut self.sessions, &mut self.completions);
        let confirmations = &mut self.vain_confirmations;
        let (home, proposer) = (&mut self.home, &mut self.proposer);
        let ordered = self.options.ordered;
        let (mut lost, mut has_moved) = (None, false);
        let mut given_up = Vec::new();
        let (senders, counts) = (&self.senders, &mut self.counts);
        let reads = &mut self.reads;
        let packets = self.inbox.iter().flat_map(|arrival| {
            let datagrams = arrival.datagrams();
            datagrams.filter_map(move |datagram| senders.parse(datagram, &arrival.from).ok())
        });
        for packet in packets {
            if let Some(reads) = reads {
                reads.take(&packet, |pid, request, status, bytes| {
                    sessions[usize::from(pid)].reading -= 1;
                    *confirmations = 0;
                    completions.push(Completion {
                        pid,
                        request,
                        status,
                        bytes,
                        ordered,
                    });
                });
            }
            let is_final = packet.header.rnd.is_none();
            if !is_final && counts.as_mut().is_some_and(|counts| !counts(&packet)) {
                continue;
            }
            self.counted.take(&packet, |packet| {
                let (pid, replica) = (packet.header.pid, packet.header.swid);
                // Packets that the proposer drops, such as duplicates, don't matter here.
                let _ = proposer.step(now, packet, &mut |_, number, answer| {
                    let Some((status, bytes)) = answer.split_first() else {
                        return;
                    };
                    let Some(status) = Status::from_u8(*status) else {
                        return;
                    };
                    let session = &mut sessions[usize::from(pid)];
                    *confirmations = 0;
                    if number == 0 && session.id != 0 {
                        // In an answer to a MOVE only the status matters: is the session known?
                        lost = (status == Status::UnknownSession).then_some(pid).or(lost);
                        return;
                    }
                    has_moved |= home.answered(now, pid, replica);
                    let id = session.id;
                    let give_up = |part| given_up.push((pid, id, part));
                    let Some(request) = session.answered_request(number, status, give_up) else {
                        return;
                    };
                    session.complete(request);
                    completions.push(Completion {
                        pid,
                        request,
                        status,
                        bytes,
                        ordered,
                    });
                });
            });
        }
        for (pid, id, part) in given_up {
            self.proposer.reply(pid, id, part);
        }
        if has_moved {
            self.move_sessions(|_| true);
        }
        if let Some(pid) = lost {
            self.lose_session(pid);
        }
        Ok(())
    }

    /// Waits for an answer or the next retry. Returns whether there is something to receive.
    pub(super) fn wait(&mut self, timeout: Duration) -> Result<bool, Error> {
        let now = self.now();
        let reads = self.reads.as_ref().and_then(Reads::next_deadline);
        let deadlines = [self.proposer.next_deadline(), reads];
        let until_tick = deadlines
            .into_iter()
            .flatten()
            .min()
            .map_or(WAIT_STEP, |at| Duration::from_nanos(at.saturating_sub(now)));
        // The controller sends new views to those who have lately asked. [E-ASKED]
        let told = now < self.asked_for_view + 2 * WATCH_INTERVAL;
        let told = told.then(|| self.control.as_fd());
        let fds = std::iter::once(self.plane.as_fd()).chain(told);
        let ready = self.spinner.wait_for(fds, Some(timeout.min(until_tick)))?;
        if ready.has(1) {
            if let Some((_, Message::View(view))) = self.control.receive(CONTROL_WAIT) {
                self.take_view(&view, now);
            }
        }
        Ok(ready.has(0))
    }

    pub(super) fn tick(&mut self) {
        let now = self.now();
        if self.proposer.next_deadline().is_some_and(|at| at <= now) {
            self.proposer.tick(now, &mut self.outbox);
            self.plane.send(&mut self.outbox.batch);
            if now >= self.asked_for_view + WATCH_INTERVAL {
                self.request_view(now);
            }
        }
        // Replicas that don't know a session are silent, and MOVE shows whether it is gone.
        let silent = self.reads.as_mut().map(|reads| reads.tick(now));
        for pid in silent.unwrap_or_default() {
            let id = self.sessions[usize::from(pid)].id;
            self.move_sessions(|session| session.id == id);
        }
        self.send_reads(now);
        self.plane.send(&mut self.outbox.batch);
        let asks = self.proposer.needs_leader() || self.counted.needs_view();
        if asks && now >= self.asked_for_leader + ASK_INTERVAL {
            // The answers are taken while the client waits for those to commands.
            self.asked_for_leader = now;
            self.request_view(now);
        }
    }

    /// Asks the controller who leads, and the replicas in case the controller is down.
    fn ask_for_leader(&mut self, now: Time) {
        self.request_view(now);
        while let Some((_, message)) = self.control.receive(CONTROL_WAIT) {
            if let Message::View(view) = message {
                self.take_view(&view, now);
            }
        }
    }

    fn request_view(&mut self, now: Time) {
        self.asked_for_view = now;
        let group = self.group;
        for node in control_nodes(&self.cluster, group) {
            self.control
                .send(node.control, &Message::ViewRequest { group });
        }
    }

    fn take_view(&mut self, view: &View, now: Time) {
        if view.group != self.group || view.age() < self.view_age {
            return;
        }
        let is_news = view.age() > self.view_age;
        self.view_age = view.age();
        self.counted.learn(view);
        let Some(active) = view.active() else { return };
        let Some(leader) = self.cluster.node_by_id(active.leader.0) else {
            return;
        };
        let moved = self.outbox.leader != Some(leader.address);
        self.outbox.leader = Some(leader.address);
        if moved || self.proposer.needs_leader() {
            match moved || is_news {
                true => self.proposer.leader_changed(now, &mut self.outbox),
                false => self.proposer.leader_confirmed(now, &mut self.outbox),
            }
            self.plane.send(&mut self.outbox.batch);
            self.vain_confirmations += 1;
            // Replicas that don't know a session because it expired don't know where to answer,
            // either.
            if self.vain_confirmations % CONFIRMATIONS_BEFORE_MOVE == 0 {
                self.move_sessions(|session| session.outstanding > 0);
            }
        }
    }

    /// Tells the replicas again at which address, and by which replica, these sessions are
    /// answered.
    pub(super) fn move_sessions(&mut self, which: impl Fn(&Session) -> bool) {
        let Ok(reply_to) = self.reply_to() else {
            return;
        };
        let operation = SessionOp::Move { reply_to };
        for (pid, session) in self.sessions.iter().enumerate() {
            if session.id != 0 && which(session) {
                let command = operation.to_bytes();
                // One such request in progress is enough.
                let _ = self
                    .proposer
                    .submit(pid as PartitionId, session.id, 0, &command);
            }
        }
    }

    fn reply_to(&self) -> Result<ReplyAddress, Error> {
        Ok(ReplyAddress {
            home: self.home.id(),
            address: Some(self.plane.local_addr()?),
            key: self.key,
        })
    }

    /// Ends a session that the replicas no longer know, and completes its outstanding requests.
    fn lose_session(&mut self, pid: PartitionId) {
        let session = &mut self.sessions[usize::from(pid)];
        session.reading = 0;
        let reads = self.reads.as_mut().map(|reads| reads.give_up(pid));
        for request in reads.unwrap_or_default() {
            self.completions.push(Completion {
                pid,
                request,
                status: Status::UnknownSession,
                bytes: &[],
                ordered: self.options.ordered,
            });
        }
        let large = session.large.take().map(|large| large.sending);
        let parts = large.iter().flat_map(Sending::open);
        for number in parts {
            self.proposer.reply(pid, session.id, number);
        }
        for request in session.oldest()..=session.last_request {
            let in_parts = large.as_ref().is_some_and(|l| l.request() == request);
            if in_parts || self.proposer.reply(pid, session.id, request) {
                session.complete(request);
                self.completions.push(Completion {
                    pid,
                    request,
                    status: Status::UnknownSession,
                    bytes: &[],
                    ordered: self.options.ordered,
                });
            }
        }
    }

    pub(super) fn await_leader(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + self.options.open_timeout;
        while self.outbox.leader.is_none() {
            if Instant::now() > deadline {
                return Err(Error::TimedOut(format!(
                    "no leader within {} s: is a controller running? (wirepaxos status)",
                    self.options.open_timeout.as_secs()
                )));
            }
            let now = self.now();
            self.ask_for_leader(now);
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Opens a session through the log; the reply brings its id.
    pub(super) fn open_session(&mut self, pid: PartitionId) -> Result<(), Error> {
        let operation = SessionOp::Open {
            ordered: self.options.ordered,
            window: self.options.window,
            reply_to: self.reply_to()?,
        };
        let nonce = random_nonce()?;
        self.proposer
            .submit(pid, nonce, 0, &operation.to_bytes())
            .map_err(|refused| Error::Denied(format!("can't open a session: {refused:?}")))?;
        let timeout = self.options.open_timeout;
        let Some(opened) = self.poll(timeout)? else {
            return Err(Error::TimedOut(format!(
                "no session within {} s: are the acceptors and replicas up? (wirepaxos status)",
                timeout.as_secs()
            )));
        };
        match (
            opened.status,
            opened.bytes.try_into().map(u64::from_be_bytes),
        ) {
            (Status::Ok, Ok(id)) => {
                self.sessions[usize::from(pid)].id = id;
                Ok(())
            }
            (status, _) => Err(Error::Denied(format!("no session: {}", status.name()))),
        }
    }
}
