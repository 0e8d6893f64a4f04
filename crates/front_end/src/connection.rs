// SPDX-License-Identifier: Apache-2.0
//! One client's connection, without its socket. It has an ordered session in the log of each
//! partition that it uses.
//!
//! ```text
//! input ─parse─> command ─┬─ answered here ────────────────────────────────────┐
//!                         └─ logged: waits ─> in flight in a lane ─> answered ─┴─> slots ─> output
//! ```
//!
//! Answers leave in the order of the commands; a slot keeps the place of each answer that is still
//! to come. The [`Order`](crate::settings::Order) tells which commands may be in flight at once.

mod answers;
mod blocked;
#[cfg(test)]
mod joined_tests;
mod order;
mod parse;
mod run;
mod slots;
#[cfg(test)]
mod turn_tests;
mod wait;

use std::time::{Duration, Instant};

use paxos::PartitionId;

use crate::answer::lost::UNKNOWN;
use crate::connection::blocked::Blocked;
use crate::connection::order::Orders;
use crate::connection::parse::Input;
use crate::connection::slots::Slots;
use crate::log::lane::Lane;
use crate::shared::Shared;
use crate::state::client::{Client, Details};
use crate::state::client_query::Ask;
use crate::state::named_command::Once;

pub(crate) use crate::connection::order::Sink;

/// The messages that wait for a client may take this many bytes.
const MAX_MESSAGES_BYTES: usize = 32 << 20;

/// No more is read from a client while this much of its work is unfinished.
const MAX_SLOTS: usize = 1024;
const MAX_BACKLOG_BYTES: usize = 1 << 20;

pub(crate) struct Connection {
    pub client: Client,
    input: Input,
    slots: Slots,
    orders: Orders,
    blocked: Blocked,
    /// True if no further command is executed.
    ended: bool,
}

impl Connection {
    pub fn new(client: Client) -> Connection {
        Connection {
            client,
            input: Input::default(),
            slots: Slots::default(),
            orders: Orders::default(),
            blocked: Blocked::default(),
            ended: false,
        }
    }

    // ---- Input

    /// Returns true if more input can be used now.
    pub fn wants_input(&self) -> bool {
        // A waiting client is read from as well, because only reading shows that it is gone.
        let waits = self.blocked.waiting().is_some() && self.input.len() < MAX_BACKLOG_BYTES;
        !self.input.is_at_end() && !self.ended && (!self.is_busy() || waits)
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        self.client.heard = Instant::now();
        self.orders.note_input();
        self.input.feed(bytes);
    }

    /// Notes that the client sends no more.
    pub fn end_input(&mut self) {
        self.input.end();
    }

    fn is_busy(&self) -> bool {
        self.blocked.is_blocked()
            || self.slots.len() >= MAX_SLOTS
            || self.orders.bytes() >= MAX_BACKLOG_BYTES
            || !self.has_room_for_answers()
    }

    fn has_room_for_answers(&self) -> bool {
        self.slots.bytes() < MAX_BACKLOG_BYTES
    }

    /// Lets the connection continue after the end of the pause.
    pub fn go_on(&mut self) {
        if let Blocked::Pause = self.blocked {
            self.blocked = Blocked::Nothing;
        }
    }

    // ---- All clients

    /// Takes the question about all clients, with its command's number.
    pub fn take_ask(&mut self) -> Option<(u64, Ask)> {
        if !matches!(self.blocked, Blocked::Ask(..)) {
            return None;
        }
        match std::mem::take(&mut self.blocked) {
            Blocked::Ask(number, ask) => Some((number, ask)),
            _ => None,
        }
    }

    /// Returns the line of CLIENT INFO.
    pub fn describe(&self) -> String {
        self.client.describe(&Details {
            is_blocked: self.blocked.is_shown(),
            ends: self.ended,
            input: self.input.len(),
            output: self.answer_bytes(),
            memory: self.memory(),
        })
    }

    /// Returns the bytes that the connection keeps in memory.
    pub fn memory(&self) -> usize {
        let input = self.input.memory() + self.blocked.memory() + self.client.memory();
        input + self.orders.bytes() + self.slots.memory()
    }

    // ---- The log

    /// Sends the commands that may be sent now, and asks for the sessions that they need. Each lane
    /// may have `values` values in flight.
    pub fn propose(&mut self, shared: &Shared, values: usize, sink: &mut impl Sink) {
        let stale = self.client.reads_stale;
        self.orders.propose(shared, values, stale, sink);
    }

    /// Returns the partition and number of this connection's command in a name's session, if there
    /// is one.
    pub fn named(&self) -> Option<(PartitionId, Once)> {
        self.orders.named()
    }

    /// Returns true if any command is in flight.
    pub fn is_under_way(&self) -> bool {
        self.orders.is_under_way()
    }

    /// Returns true if the next command that waits arrived together with the one before it, whose
    /// answer can then wait for its own.
    pub fn has_followers(&self) -> bool {
        self.orders.has_followers()
    }

    /// Returns the lane of a partition, if there is one.
    pub fn lane(&mut self, pid: PartitionId) -> Option<&mut Lane> {
        self.orders.lane(pid)
    }

    /// Returns all lanes.
    pub fn lanes(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.orders.lanes()
    }

    /// Removes the lanes that have nothing to do and weren't used within the time `idle`; returns
    /// their sessions.
    pub fn take_unused(&mut self, idle: Duration) -> Vec<(PartitionId, u64)> {
        self.orders.take_unused(idle)
    }

    /// Forgets the session of a partition. None of the commands in flight in it took effect, so
    /// they all wait for another session.
    pub fn lose_session(&mut self, pid: PartitionId) {
        self.orders.lose_session(pid);
    }

    // ---- Output

    /// Puts a message in its place among the answers. It need not wait behind a single command that
    /// waits for something to appear, if the client speaks RESP3.
    pub fn push_message(&mut self, frame: Vec<u8>) {
        if self.ended {
            return;
        }
        let waits = self.blocked.waiting().is_some();
        match self.client.resp3 && waits && self.slots.len() == 1 {
            true => self.slots.push_first(&frame),
            false => self.slots.push(frame),
        }
    }

    /// Returns how many bytes of answers may wait for the client.
    pub fn output_limit(&self, shared: &Shared) -> usize {
        match self.client.subscriptions.is_empty() {
            true => shared.max_output_bytes,
            false => shared.max_output_bytes.min(MAX_MESSAGES_BYTES),
        }
    }

    /// Returns the bytes of answers that the client hasn't got yet.
    pub fn answer_bytes(&self) -> usize {
        self.slots.bytes()
    }

    pub fn pending_output(&self) -> &[u8] {
        self.slots.pending_output()
    }

    pub fn output_sent(&mut self, len: usize) {
        self.slots.output_sent(len);
    }

    pub fn discard_output(&mut self) {
        self.slots.discard_output();
    }

    // ---- The end

    /// Lets the connection execute no further command.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Returns true if all is executed, answered and sent, and no more will come.
    pub fn is_finished(&self) -> bool {
        let is_answered = self.slots.is_empty() && self.orders.is_idle();
        self.ended && is_answered && self.pending_output().is_empty()
    }

    /// Fails all commands, because a session is lost or couldn't be opened, and forgets all
    /// sessions. Commands in flight may have taken effect and get the answer UNKNOWN, the others
    /// this error.
    pub fn fail_all(&mut self, error: &str, shared: &Shared) {
        let in_flight = self.orders.in_flight();
        let error_of = |number| match in_flight.contains(&number) {
            true => UNKNOWN,
            false => error,
        };
        self.slots.fail_all(error_of, &shared.metrics);
        self.blocked = Blocked::Nothing;
        self.orders.clear();
    }

    /// Stops serving the client: commands that aren't in flight are dropped, and none is answered.
    pub fn abandon(&mut self) {
        self.ended = true;
        self.input.clear();
        self.blocked = Blocked::Nothing;
        self.orders.abandon();
        self.slots.abandon(&self.orders.in_flight());
    }
}
