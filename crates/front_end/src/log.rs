// SPDX-License-Identifier: Apache-2.0
//! The front end's way into the log: a proposer on the node's data plane.

pub(crate) mod lane;
pub(crate) mod names;
pub(crate) mod reads;

use std::os::fd::RawFd;
use std::time::Instant;

use paxos::proposer::{Proposer, ProposerSettings, Refused};
use paxos::{Header, MsgType, Outbox, Packet, PartitionId, Time, To};
use replica::Status;
use replica::protocol::{ReplyAddress, SessionOp};

use crate::log::lane::Logged;
use crate::mailbox::Answer;

/// The data plane as the front end uses it; all calls come from the front end's thread.
pub trait Plane: Send + 'static {
    /// Sends a datagram to the current leader, at the latest at the next [`flush`](Self::flush).
    /// Datagrams that can't be sent are lost, as on any network.
    fn send(&mut self, datagram: &[u8]);

    /// Sends the datagrams that wait.
    fn flush(&mut self);

    /// Copies the next datagram that has arrived, a REJECT of the leader, into `buffer` and returns
    /// its length. Never waits.
    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize>;

    /// Returns a descriptor that becomes readable when a datagram arrives.
    fn fd(&self) -> RawFd;

    /// Finds out who leads, because retries had no success; then
    /// [`Mailbox::leader_changed`](crate::Mailbox::leader_changed) is to be called. The front end
    /// asks at every retry until then.
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

    /// Returns the time since the front end started.
    pub fn now(&self) -> Time {
        self.started.elapsed().as_nanos() as Time
    }

    /// Queues a command of a session in the lowest of its partitions; it is sent, and sent again,
    /// until it is answered. The caller submits each command once and checks its size.
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

    /// Queues a part of a command, as [`submit`](Self::submit) queues a whole one.
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

    /// Asks for a name's session. Every front end that asks with this nonce gets the same session,
    /// and every replica answers there. [S-NAMED]
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

    /// Submits an operation on a session, unless the same session has one in flight, which is
    /// enough.
    fn submit_operation(&mut self, pid: PartitionId, client: u64, operation: &SessionOp) {
        self.command.clear();
        operation.emit(&mut self.command);
        let submitted = self.proposer.submit(pid, client, 0, &self.command);
        debug_assert!(matches!(submitted, Ok(()) | Err(Refused::Outstanding)));
    }

    /// Notes an answer; returns false if nobody waits for it. That may be a repeated answer, or one
    /// after which the command is sent again: its copy came too early, or took no effect in all of
    /// its partitions.
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

    /// Stops sending a command. Returns false if it was answered before.
    pub fn forget(&mut self, pid: PartitionId, client: u64, request: u64) -> bool {
        self.proposer.reply(pid, client, request)
    }

    /// Returns the number of commands without an answer.
    pub fn outstanding(&self) -> usize {
        self.proposer.outstanding()
    }

    /// Reads the leader's REJECTs from the data plane.
    pub fn receive(&mut self) {
        let now = self.now();
        let mut buffer = [0; 2048];
        while let Some(len) = self.outbox.plane.receive(&mut buffer) {
            // Answers come by the mailbox only: a REPLY taken from here would end a command without
            // its answer.
            let packet = Packet::parse(&buffer[..len.min(buffer.len())]).ok();
            let rejected = |packet: &Packet<'_>| packet.header.msgtype == MsgType::Reject;
            if let Some(packet) = packet.filter(rejected) {
                // The effect of a REJECT shows in `needs_leader` and in the deadlines.
                let _ = self.proposer.step(now, &packet, &mut |_, _, _| {});
            }
        }
        self.ask_if_needed();
    }

    /// Sends again what is due, and sends all that is queued.
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
