// SPDX-License-Identifier: Apache-2.0
//! A node that runs a client: a proposer with one session in each partition.
//!
//! A command without an answer stays open in the history, since its session may have expired before
//! it was executed, or after.

mod session;

use control::{Message, View};
use paxos::nopaxos::Quorum;
use paxos::{MsgType, Packet, PartitionId, Proposer, ProposerSettings, Reason, Time, Verdict};
use replica::Status;
use replica::application::VOID;
use replica::parts::{self, Part, Sending};
use replica::protocol::{ReplyAddress, SessionOp};

use super::host::{Alarm, Host};
use super::layout::Endpoint;
use super::mutation::Mutation;
use super::replica::client_address;
use super::world::{GROUP, MAX_VALUE, Outgoing, Sender, World};
use crate::application::{Command, Span, Spanning, last_part};
use crate::check::OpInfo;
use crate::linearizability::{Op, Operation};
use crate::plan::Name;
use crate::queue::MILLISECOND;
use session::{ClientSession, Large};

/// The time after which the leader is asked for again.
const ASK_AGAIN: Time = 20 * MILLISECOND;

/// How often the leader is confirmed, without an answer to a command, before a client doubts its
/// sessions.
const CONFIRMATIONS_BEFORE_MOVE: u32 = 3;

/// A command that a client wants to be executed.
#[derive(Clone, Debug)]
pub enum Wish {
    /// A command in one partition.
    Single {
        /// The partition.
        pid: u8,
        /// The key.
        key: u8,
        /// The operation.
        op: Op,
        /// The number of extra bytes.
        padding: u16,
    },
    /// A command in several partitions.
    Spanning {
        /// The partitions in ascending order, with a key in each.
        keys: Vec<(u8, u8)>,
        /// The operation.
        span: Span,
    },
}

impl Wish {
    /// Returns whether the command may be longer than a value.
    fn is_large(&self) -> bool {
        matches!(self, Wish::Single { padding, .. } if *padding > MAX_VALUE / 2)
    }

    /// Returns the partition whose session the command belongs to.
    fn pid(&self) -> u8 {
        match self {
            Wish::Single { pid, .. } => *pid,
            Wish::Spanning { keys, .. } => keys[0].0,
        }
    }
}

/// A client.
pub struct ClientHost {
    /// The machine.
    pub host: Host,
    ordered: bool,
    role: Option<Proposer>,
    /// Session operations have a separate proposer, so that they don't wait for commands, of which
    /// only a limited number is in flight.
    operations: Option<Proposer>,
    sessions: Vec<ClientSession>,
    alarm: Alarm,
    asked_at: Time,
    /// How often the leader was confirmed since the last answer.
    vain_confirmations: u32,
    out: Outgoing,
    answers: Vec<(u64, u64, Vec<u8>)>,
    /// For each partition the REPLYs that wait until they are final, if the group uses NOPaxos.
    quorums: Vec<Quorum<Vec<u8>>>,
}

impl ClientHost {
    /// Returns a machine without a process.
    pub fn new(world: &World, host: Host) -> ClientHost {
        let Name::Client(number) = host.name else {
            unreachable!("a client's host");
        };
        ClientHost {
            host,
            ordered: number % 2 == 0,
            role: None,
            operations: None,
            sessions: world.pids().map(|_| ClientSession::default()).collect(),
            alarm: Alarm::default(),
            asked_at: 0,
            vain_confirmations: 0,
            out: Outgoing::default(),
            answers: Vec::new(),
            quorums: Vec::new(),
        }
    }

    /// Returns whether a process runs.
    pub fn is_up(&self) -> bool {
        self.role.is_some()
    }

    /// Returns the number of unanswered commands.
    pub fn outstanding(&self) -> usize {
        let open = |s: &ClientSession| s.outstanding.len() + s.waiting.len();
        self.sessions.iter().map(open).sum()
    }

    /// Starts a process without sessions.
    pub fn start(&mut self, world: &mut World) {
        if self.is_up() {
            return;
        }
        self.host.start(world);
        self.alarm.reset();
        self.asked_at = 0;
        let settings = ProposerSettings {
            deployment: self.host.deployment(world),
            retry_after: 5 * MILLISECOND,
            ask_after: 30 * MILLISECOND,
            nonce: world.rng.nonce(),
            max_open_values: match self.ordered {
                true => world.scenario.ordered_values.into(),
                false => 4,
            },
        };
        self.role = Some(Proposer::new(settings));
        if world.is_ordered() {
            self.quorums = world.pids().map(Quorum::new).collect();
        }
        self.operations = Some(Proposer::new(ProposerSettings {
            nonce: world.rng.nonce(),
            ..settings
        }));
        world.control(self.host.at, 0, Message::ViewRequest { group: GROUP });
        self.after(world);
    }

    /// Kills the process, with its sessions and its outstanding commands.
    pub fn crash(&mut self) {
        self.role = None;
        self.operations = None;
        for session in &mut self.sessions {
            *session = ClientSession::default();
        }
    }

    /// Takes a command that the surrounding program wants executed.
    pub fn wish(&mut self, world: &mut World, wish: Wish) {
        if !self.is_up() {
            return;
        }
        let pid = usize::from(wish.pid());
        let Some(session) = self.sessions.get_mut(pid) else {
            return;
        };
        session.waiting.push_back(wish);
        self.submit(world, pid);
        self.send(world);
    }

    /// Opens a session if one is needed, and submits the commands for which there is room.
    fn submit(&mut self, world: &mut World, pid: usize) {
        let Some(proposer) = &mut self.role else {
            return;
        };
        let session = &mut self.sessions[pid];
        let Some(id) = session.id else {
            if session.opening.is_none() && !session.waiting.is_empty() {
                let nonce = world.rng.nonce();
                session.opening = Some(nonce);
                let open = SessionOp::Open {
                    ordered: self.ordered,
                    window: world.scenario.session_window,
                    reply_to: ReplyAddress {
                        address: Some(client_address(self.host.at)),
                        ..ReplyAddress::default()
                    },
                };
                let submitted = proposer.submit(pid as u16, nonce, 0, &open.to_bytes());
                submitted.expect("a new nonce, and a small command");
            }
            return;
        };
        let window = u64::from(world.scenario.session_window);
        loop {
            let oldest = session.outstanding.keys().next().copied();
            let request = session.next_request;
            if oldest.is_some_and(|oldest| request >= oldest + window) {
                break;
            }
            let Some(next) = session.waiting.front() else {
                break;
            };
            // Long commands are sent one at a time. In an ordered session a long command, or one
            // over several partitions, is in flight alone. [S-ORDERED]
            let (is_large, has_large) = (next.is_large(), session.large.is_some());
            let is_spanning = matches!(next, Wish::Spanning { .. });
            let is_alone = is_large || is_spanning && world.scenario.ordered_values > 1;
            let may_go = !self.ordered || oldest.is_none() || !is_alone && !session.has_alone;
            if is_large && has_large || !may_go {
                break;
            }
            session.has_alone = is_alone;
            let Some(wish) = session.waiting.pop_front() else {
                break;
            };
            session.next_request += 1;
            let ordered = self.ordered.then_some((session.number, request));
            let (number, submitted) = match wish {
                Wish::Single {
                    key, op, padding, ..
                } => {
                    let info = OpInfo {
                        pid: pid as u16,
                        key: key.into(),
                        op,
                        ordered,
                    };
                    let (number, bytes) = single(world, info, padding);
                    if bytes.len() > usize::from(MAX_VALUE) {
                        let last = parts::number(request, Part::Last);
                        world.requests.insert((pid as u16, id, last), number);
                        world.in_parts.insert(number, last_part(id, last));
                        session.large = Some(Large {
                            sending: Sending::new(request, bytes.len(), MAX_VALUE.into()),
                            command: bytes,
                        });
                        (number, Ok(()))
                    } else {
                        (number, proposer.submit(pid as u16, id, request, &bytes))
                    }
                }
                Wish::Spanning { keys, span } => {
                    let keys: Vec<_> = keys
                        .iter()
                        .map(|(p, k)| ((*p).into(), (*k).into()))
                        .collect();
                    let pids: Vec<_> = keys.iter().map(|(pid, _)| *pid).collect();
                    let (number, bytes) = spanning(world, keys, span, ordered);
                    (number, proposer.submit_multi(&pids, id, request, &bytes))
                }
            };
            submitted.expect("a new request, and a small command");
            session.outstanding.insert(request, number);
            world.requests.insert((pid as u16, id, request), number);
        }
        session.send_parts(world, pid, proposer);
    }

    /// Handles an arriving packet.
    pub fn packet(&mut self, world: &mut World, packet: &Packet<'_>) -> Option<Verdict> {
        let h = &packet.header;
        let counts = matches!(h.msgtype, MsgType::Reply | MsgType::Ack) && !h.rnd.is_none();
        if !counts || !world.is_ordered() {
            return self.final_packet(world, packet);
        }
        let deployment = self.host.deployment(world);
        if let Err(reason) = deployment.check(packet) {
            return Some(Verdict::Dropped(reason));
        }
        self.role.as_ref()?;
        let quorum = &mut self.quorums[usize::from(h.pid)];
        let counted = match h.msgtype {
            MsgType::Ack => quorum.ack(h),
            _ => quorum.reply(h, h.datagram(packet.value)).map(|_| ()),
        };
        while let Some(datagram) = self.quorums[usize::from(h.pid)].next() {
            if let Ok(answer) = Packet::parse(&datagram) {
                self.final_packet(world, &answer);
            }
        }
        if counted == Err(Reason::UnknownEpoch) {
            self.ask_for_view(world);
        }
        Some(counted.map_or_else(Verdict::Dropped, |()| Verdict::Changed))
    }

    /// Learns the sessions of a view.
    fn learn_sessions(&mut self, world: &World, view: &View) {
        for (pid, quorum) in self.quorums.iter_mut().enumerate() {
            for mut session in view.sessions(pid as PartitionId).into_iter().flatten() {
                if world.mutated(Mutation::LeaderSuffices) {
                    session.f = 0;
                }
                // Of two sessions with one number the first one stays.
                let _ = quorum.learn(&session);
            }
        }
    }

    /// Handles a packet that needs no acknowledgement.
    fn final_packet(&mut self, world: &mut World, packet: &Packet<'_>) -> Option<Verdict> {
        let now = self.host.now(world);
        let proposer = self.role.as_mut()?;
        let mut answers = std::mem::take(&mut self.answers);
        let verdict = proposer.step(now, packet, &mut |client, request, value| {
            answers.push((client, request, value.to_vec()));
        });
        if let Some(operations) = &mut self.operations {
            let _ = operations.step(now, packet, &mut |client, request, value| {
                answers.push((client, request, value.to_vec()));
            });
        }
        let pid = usize::from(packet.header.pid);
        for (client, request, value) in answers.drain(..) {
            self.answered(world, pid, client, request, &value);
        }
        self.answers = answers;
        self.send(world);
        Some(verdict)
    }

    fn answered(&mut self, world: &mut World, pid: usize, client: u64, request: u64, value: &[u8]) {
        self.vain_confirmations = 0;
        let session = &mut self.sessions[pid];
        let status = Status::from_u8(value[0]);
        if session.id == Some(client) && request == 0 {
            // In the answer to a MOVE only the status matters: is the session known?
            if status == Some(Status::UnknownSession) {
                self.session_lost(world, pid);
            }
        } else if session.opening == Some(client) && request == 0 {
            session.opening = None;
            if let (Some(Status::Ok), Ok(id)) = (status, value[1..].try_into()) {
                session.id = Some(u64::from_be_bytes(id));
                session.number = world.rng.next();
                session.next_request = 1;
            }
        } else if session.id == Some(client) {
            let proposer = &mut self.role;
            let give_up = |part| {
                if let Some(proposer) = proposer {
                    proposer.reply(pid as u16, client, part);
                }
            };
            let Some(request) = session.answered_request(request, status, give_up) else {
                return self.submit(world, pid);
            };
            let Some(id) = session.outstanding.remove(&request) else {
                return;
            };
            let at = self.host.endpoint(0);
            if status == Some(Status::Ok) && value[1..] == *VOID {
                world.note(|w| format!("void     {}: command {id}", w.name(at)));
                world.executions.told_void(id, &mut world.findings);
            }
            match (status, value[1..].try_into()) {
                (Some(Status::Ok), Ok(answer)) => {
                    let answer = u64::from_be_bytes(answer);
                    let findings = &mut world.findings;
                    match world.scenario.sequencers {
                        0 => world.executions.acknowledged(id, answer, findings),
                        _ => world.executions.acknowledged_early(id, answer, findings),
                    }
                    let now = world.queue.now();
                    world.promises.is_final(id, now, &mut world.findings);
                    world.history[id as usize].answer = Some((now, answer));
                }
                (Some(Status::UnknownSession), _) => self.session_lost(world, pid),
                _ => {}
            }
        }
        self.submit(world, pid);
    }

    /// Handles an expired session: it is unknown which of the outstanding commands took effect.
    fn session_lost(&mut self, world: &mut World, pid: usize) {
        let Some(proposer) = &mut self.role else {
            return;
        };
        let session = &mut self.sessions[pid];
        if let Some(id) = session.id.take() {
            for request in std::mem::take(&mut session.outstanding).into_keys() {
                proposer.reply(pid as u16, id, request);
            }
            let large = session.large.take();
            for number in large.iter().flat_map(|large| large.sending.open()) {
                proposer.reply(pid as u16, id, number);
            }
            if let Some(operations) = &mut self.operations {
                operations.reply(pid as u16, id, 0);
            }
        }
        self.submit(world, pid);
    }

    /// Handles an arriving control message.
    pub fn control(&mut self, world: &mut World, message: &Message) {
        let Message::View(view) = message else {
            return;
        };
        if !self.is_up() {
            return;
        }
        // A client only looks for the leader, so it ignores a view that contradicts another.
        let newer = self.host.take_view(world, view).unwrap_or(false);
        if newer {
            self.learn_sessions(world, view);
        }
        if newer && view.active().is_some() {
            self.leader_told(world);
        }
    }

    /// Tells the client who leads or stamps: another node, or the same one if it had to ask.
    fn leader_told(&mut self, world: &mut World) {
        let now = self.host.now(world);
        let (Some(proposer), Some(operations)) = (&mut self.role, &mut self.operations) else {
            return;
        };
        self.vain_confirmations += u32::from(proposer.needs_leader());
        proposer.leader_changed(now, &mut self.out);
        operations.leader_changed(now, &mut self.out);
        if self.vain_confirmations >= CONFIRMATIONS_BEFORE_MOVE {
            self.vain_confirmations = 0;
            self.doubt_sessions();
        }
        self.send(world);
    }

    /// Sends MOVEs, since replicas that don't know a session don't know where to send an answer,
    /// either.
    fn doubt_sessions(&mut self) {
        let Some(operations) = &mut self.operations else {
            return;
        };
        let reply_to = ReplyAddress {
            address: Some(client_address(self.host.at)),
            ..ReplyAddress::default()
        };
        let command = SessionOp::Move { reply_to }.to_bytes();
        for (pid, session) in self.sessions.iter().enumerate() {
            if let Some(id) = session.id.filter(|_| !session.outstanding.is_empty()) {
                // One such request in progress is enough.
                let _ = operations.submit(pid as u16, id, 0, &command);
            }
        }
    }

    /// Handles a deadline that may have passed.
    pub fn timer(&mut self, world: &mut World) {
        if !self.alarm.rings(world) {
            return;
        }
        let now = self.host.now(world);
        for proposer in [&mut self.role, &mut self.operations].into_iter().flatten() {
            if proposer.next_deadline().is_some_and(|due| due <= now) {
                proposer.tick(now, &mut self.out);
            }
        }
        self.send(world);
    }

    /// Resets the alarm after time leapt.
    pub fn wake(&mut self, world: &mut World) {
        self.alarm.reset();
        self.after(world);
    }

    fn send(&mut self, world: &mut World) {
        let now = self.host.now(world);
        if let (Some(proposer), Some(operations)) = (&mut self.role, &mut self.operations) {
            proposer.flush(now, &mut self.out);
            operations.flush(now, &mut self.out);
            let at: Endpoint = self.host.endpoint(0);
            world.post(at, Sender::Client, None, self.host.leader, &self.out);
            self.out.clear();
        }
        self.after(world);
    }

    /// Asks for the newest view, unless it did so a moment ago.
    fn ask_for_view(&mut self, world: &mut World) {
        let now = self.host.now(world);
        if now < self.asked_at + ASK_AGAIN {
            return;
        }
        self.asked_at = now;
        // The controller may be down, so any node that knows the view will do.
        let replicas = world.replicas();
        let whom = match world.rng.below(3) {
            0 => *world.rng.pick(&replicas),
            _ => 0,
        };
        let question = Message::ViewRequest { group: GROUP };
        world.control(self.host.at, whom, question);
    }

    fn after(&mut self, world: &mut World) {
        let Some(proposer) = &self.role else {
            return;
        };
        let deadlines = [&self.role, &self.operations].into_iter().flatten();
        let mut deadline = deadlines.filter_map(Proposer::next_deadline).min();
        if proposer.needs_leader() || self.host.leader.is_none() {
            self.ask_for_view(world);
            let again = self.asked_at + ASK_AGAIN;
            deadline = Some(deadline.map_or(again, |d| d.min(again)));
        }
        let at = self.host.endpoint(0);
        self.alarm.arm(world, &self.host, at, deadline);
    }
}

/// Notes a command in the history, and returns its number and its bytes.
fn single(world: &mut World, info: OpInfo, padding: u16) -> (u64, Vec<u8>) {
    let command = Command {
        id: world.executions.submitted(info),
        key: info.key,
        op: info.op,
    };
    world.history.push(Operation {
        key: info.key << 8 | u64::from(info.pid),
        op: info.op,
        call: world.queue.now(),
        answer: None,
    });
    (command.id, command.emit(padding.into()))
}

/// Notes a command over several partitions. It is in the history only for its times, since it has
/// several keys.
fn spanning(
    world: &mut World,
    keys: Vec<(PartitionId, u64)>,
    span: Span,
    ordered: Option<(u64, u64)>,
) -> (u64, Vec<u8>) {
    let info = OpInfo {
        pid: keys[0].0,
        key: keys[0].1,
        op: Op::Get,
        ordered,
    };
    let mut bytes = Vec::new();
    let id = world.executions.submitted_spanning(info, |id| {
        let command = Spanning { id, keys, span };
        bytes = command.emit();
        command
    });
    world.history.push(Operation {
        key: info.key << 8 | u64::from(info.pid),
        op: info.op,
        call: world.queue.now(),
        answer: None,
    });
    (id, bytes)
}
