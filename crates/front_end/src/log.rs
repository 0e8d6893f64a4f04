// SPDX-License-Identifier: Apache-2.0
//! The front end's way into the log: a proposer on the node's data plane.

use std::os::fd::RawFd;
use std::time::Instant;

use paxos::proposer::{Proposer, ProposerSettings, Refused};
use paxos::{Header, MsgType, Outbox, Packet, PartitionId, Time, To};
use replica::Status;
use replica::protocol::{ReplyAddress, SessionOp};

use crate::lane::Logged;
use crate::mailbox::Answer;

/// The data plane as the front end uses it; all calls come from its one thread.
pub trait Plane: Send + 'static {
    /// Sends a datagram to the current leader; may wait for [`flush`](Self::flush). What can't be
    /// sent is lost, as on any network.
    fn send(&mut self, datagram: &[u8]);

    /// Sends what waits.
    fn flush(&mut self);

    /// The next datagram that has arrived (REJECTs of the leader), copied into `buffer`; its
    /// length. Never waits.
    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize>;

    /// Becomes readable when something arrives.
    fn fd(&self) -> RawFd;

    /// Retries had no success: find out who leads, then call
    /// [`Mailbox::leader_changed`](crate::Mailbox::leader_changed). This is called at every retry
    /// until then.
    fn ask_for_leader(&mut self);
}

pub(crate) struct Log<P> {
    proposer: Proposer,
    outbox: PlaneOutbox<P>,
    started: Instant,
    home: ReplyAddress,
    command: Vec<u8>,
}

struct PlaneOutbox<P> {
    plane: P,
    datagram: Vec<u8>,
}

impl<P: Plane> Outbox for PlaneOutbox<P> {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        debug_assert_eq!(to, To::Leader);
        self.datagram.clear();
        header.append_datagram(value, &mut self.datagram);
        self.plane.send(&self.datagram);
    }
}

impl<P: Plane> Log<P> {
    pub fn new(settings: ProposerSettings, plane: P) -> Log<P> {
        Log {
            proposer: Proposer::new(settings),
            outbox: PlaneOutbox {
                plane,
                datagram: Vec::new(),
            },
            started: Instant::now(),
            home: ReplyAddress {
                home: settings.deployment.node,
                ..ReplyAddress::default()
            },
            command: Vec::new(),
        }
    }

    /// Since the front end started.
    pub fn now(&self) -> Time {
        self.started.elapsed().as_nanos() as Time
    }

    /// Queues a command of a session in the lowest of these partitions; it is sent, and sent again,
    /// until it is answered. The caller never submits one twice and checks the size.
    pub fn submit(&mut self, session: u64, request: u64, logged: &Logged) {
        let bytes = &logged.bytes;
        let submitted = if logged.partitions.len() == 1 {
            let pid = logged.partitions.lowest();
            self.proposer.submit(pid, session, request, bytes)
        } else {
            let pids: Vec<_> = logged.partitions.iter().collect();
            self.proposer.submit_multi(&pids, session, request, bytes)
        };
        debug_assert_eq!(submitted, Ok(()));
    }

    /// The same of a part of a command.
    pub fn submit_part(&mut self, pid: PartitionId, session: u64, number: u64, part: &[u8]) {
        let submitted = self.proposer.submit(pid, session, number, part);
        debug_assert_eq!(submitted, Ok(()));
    }

    /// Asks for an ordered session in a partition; the answer comes to (`nonce`, 0).
    pub fn open_session(&mut self, pid: PartitionId, nonce: u64, window: u16) {
        let open = SessionOp::Open {
            ordered: true,
            window,
            reply_to: self.home,
        };
        self.submit_operation(pid, nonce, &open);
    }

    /// The same of a session that every front end gets that asks under this nonce, and that every replica answers.
    /// [S-NAMED]
    pub fn open_named(&mut self, pid: PartitionId, nonce: u64, window: u16) {
        let open = SessionOp::Open {
            ordered: false,
            window,
            reply_to: ReplyAddress::default(),
        };
        self.submit_operation(pid, nonce, &open);
    }

    /// Closes a session that has nothing in flight; the answer comes to (`session`, 0).
    pub fn close_session(&mut self, pid: PartitionId, session: u64) {
        self.submit_operation(pid, session, &SessionOp::Close);
    }

    /// One that is under way already is enough.
    fn submit_operation(&mut self, pid: PartitionId, client: u64, operation: &SessionOp) {
        self.command.clear();
        operation.emit(&mut self.command);
        let submitted = self.proposer.submit(pid, client, 0, &self.command);
        debug_assert!(matches!(submitted, Ok(()) | Err(Refused::Outstanding)));
    }

    /// Notes an answer. Returns false if nobody waits for it: it is a repetition, or the answer to
    /// an earlier copy of a command that is sent again because it overtook its predecessor.
    /// What is dead at its places is sent again, too, for others.
    pub fn answered(&mut self, now: Time, answer: &Answer<'_>) -> bool {
        let &Answer {
            pid,
            client,
            request,
            ..
        } = answer;
        match Status::from_u8(answer.status) {
            Some(Status::OutOfOrder) => {
                let key = (pid, client, request);
                self.proposer.came_too_early(now, key);
                false
            }
            Some(Status::Dead) => {
                let key = (pid, client, request);
                self.proposer.vector_died(now, key, answer.bytes);
                false
            }
            _ => self.proposer.answered(now, pid, client, request),
        }
    }

    /// Sends a command no more. Returns false if it was answered before.
    pub fn forget(&mut self, pid: PartitionId, client: u64, request: u64) -> bool {
        self.proposer.reply(pid, client, request)
    }

    /// Commands without an answer.
    pub fn outstanding(&self) -> usize {
        self.proposer.outstanding()
    }

    /// Reads what the leader refused.
    pub fn receive(&mut self) {
        let now = self.now();
        let mut buffer = [0; 2048];
        while let Some(len) = self.outbox.plane.receive(&mut buffer) {
            // Answers come by the mailbox only. A REPLY here would end a command without its
            // answer.
            let packet = Packet::parse(&buffer[..len.min(buffer.len())]).ok();
            let rejected = |packet: &Packet<'_>| packet.header.msgtype == MsgType::Reject;
            if let Some(packet) = packet.filter(rejected) {
                // What it makes of a REJECT shows in `needs_leader` and in the deadlines.
                let _ = self.proposer.step(now, &packet, &mut |_, _, _| {});
            }
        }
        self.ask_if_needed();
    }

    /// Sends again what is due, and all that is queued.
    pub fn tick(&mut self) {
        let now = self.now();
        if self.proposer.next_deadline().is_some_and(|due| due <= now) {
            self.proposer.tick(now, &mut self.outbox);
            self.ask_if_needed();
        }
        self.proposer.flush(now, &mut self.outbox);
        self.outbox.plane.flush();
    }

    pub fn leader_changed(&mut self) {
        let now = self.now();
        self.proposer.leader_changed(now, &mut self.outbox);
    }

    fn ask_if_needed(&mut self) {
        if self.proposer.needs_leader() {
            self.outbox.plane.ask_for_leader();
        }
    }

    pub fn next_deadline(&self) -> Option<Time> {
        self.proposer.next_deadline()
    }

    pub fn plane_fd(&self) -> RawFd {
        self.outbox.plane.fd()
    }
}
