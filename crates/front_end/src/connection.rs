// SPDX-License-Identifier: Apache-2.0
//! One client's connection, without its socket: an ordered session of the log.
//!
//! ```text
//! input ─parse─> command ─┬─ answered here ──────────────────────────────┐
//!                         └─ logged: waits ─> in flight ─> answered ─────┴─> slots ─> output
//! ```
//!
//! Answers leave in the order of the commands; a slot keeps the place of each that is still to
//! come. The commands in flight never exceed one value and one reply window: however they are
//! packed, lost, repeated or reordered on their way, the session executes them in order and once,
//! and has every answer on record until all of them are here.

use std::collections::VecDeque;
use std::time::Instant;

use apps::kv::{Refusal, Reply};
use paxos::wire::value::PACKED_ITEM_HEADER_LEN;
use replica::Status;
use replica::protocol::Effect;

use crate::client::Client;
use crate::commands::{self, Call, Outcome, Shape};
use crate::cursors::Cursors;
use crate::metrics::Metrics;
use crate::resp::{Limits, Parser, Writer};
use crate::settings::Shared;
use crate::{keys, transaction};

/// Answers that a session records, hence commands in flight at most.
pub const SESSION_WINDOW: u16 = 64;

/// No more is read from a client while this much of its work is unfinished.
const MAX_SLOTS: usize = 1024;
const MAX_BACKLOG_BYTES: usize = 1 << 20;
/// Input that was used is thrown away in portions of this size.
const COMPACT_BYTES: usize = 64 << 10;

/// The answer to a command whose outcome nobody can tell.
const UNKNOWN: &str = "UNKNOWN the session is lost: the command took effect, once, or not at all";

/// The connection's session in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Session {
    None,
    /// It was asked for under this nonce.
    Opening(u64),
    Open(u64),
}

enum Slot {
    Ready(Vec<u8>),
    Waiting {
        request: u64,
        shape: Shape,
        resp3: bool,
    },
}

/// A command that goes into the log.
pub(crate) struct Logged {
    pub request: u64,
    pub bytes: Vec<u8>,
}

pub(crate) struct Connection {
    pub client: Client,
    pub session: Session,
    pub last_used: Instant,
    input: Vec<u8>,
    /// Bytes of `input` that are done with.
    used: usize,
    parser: Parser,
    slots: VecDeque<Slot>,
    /// Bytes of the answers in `slots`.
    slot_bytes: usize,
    waiting: VecDeque<Logged>,
    waiting_bytes: usize,
    last_request: u64,
    in_flight: usize,
    output: Vec<u8>,
    sent: usize,
    /// The client sends no more; what has arrived is executed.
    end_of_input: bool,
    /// Nothing more is executed.
    ended: bool,
}

impl Connection {
    pub fn new(client: Client) -> Connection {
        Connection {
            client,
            session: Session::None,
            last_used: Instant::now(),
            input: Vec::new(),
            used: 0,
            parser: Parser::default(),
            slots: VecDeque::new(),
            slot_bytes: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            last_request: 0,
            in_flight: 0,
            output: Vec::new(),
            sent: 0,
            end_of_input: false,
            ended: false,
        }
    }

    // ---- Input

    /// Whether more input is of use now.
    pub fn wants_input(&self) -> bool {
        !self.end_of_input && !self.ended && !self.is_busy()
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// No more will come.
    pub fn end_input(&mut self) {
        self.end_of_input = true;
    }

    fn is_busy(&self) -> bool {
        self.slots.len() >= MAX_SLOTS
            || self.waiting_bytes >= MAX_BACKLOG_BYTES
            || self.answer_bytes() >= MAX_BACKLOG_BYTES
    }

    /// Bytes of answers that the client hasn't got.
    pub fn answer_bytes(&self) -> usize {
        self.slot_bytes + self.pending_output().len()
    }

    /// Bytes that the connection keeps in memory.
    pub fn memory(&self) -> usize {
        let input = self.input.len() + self.parser.memory();
        input + self.waiting_bytes + self.slot_bytes + self.output.len()
    }

    /// Executes what has arrived, as far as there is room for its answers.
    pub fn run(&mut self, shared: &Shared, cursors: &mut Cursors) {
        while !self.ended && !self.is_busy() && self.run_one(shared, cursors) {}
        if self.used == self.input.len() {
            self.input.clear();
            self.input.shrink_to(COMPACT_BYTES);
            self.used = 0;
        } else if self.used >= COMPACT_BYTES {
            self.input.drain(..self.used);
            self.used = 0;
        }
    }

    /// Executes one request; false if none is complete.
    fn run_one(&mut self, shared: &Shared, cursors: &mut Cursors) -> bool {
        let input = &self.input[self.used..];
        let limits = Limits {
            authenticated: self.client.authenticated,
            ..Limits::default()
        };
        let request = match self.parser.parse(input, &limits) {
            Ok(Some(request)) => request,
            Ok(None) => {
                self.used += self.parser.take_passed();
                self.ended |= self.end_of_input;
                return false;
            }
            Err(error) => {
                Metrics::add(&shared.metrics.protocol_errors);
                self.answer_error(format!("ERR Protocol error: {}", error.0));
                self.ended = true;
                return false;
            }
        };
        self.used += request.len;
        if let Some(len) = request.too_large {
            Metrics::add(&shared.metrics.commands);
            Metrics::add(&shared.metrics.errors);
            self.answer_error(if self.client.in_transaction {
                transaction::REFUSED.to_owned()
            } else {
                keys::too_large(len, shared.max_value)
            });
            return true;
        }
        if request.arguments.is_empty() {
            return true;
        }
        let args: Vec<&[u8]> = request.arguments.iter().map(|a| a.bytes(input)).collect();
        self.last_used = Instant::now();
        self.client.last_command = commands::find(args[0]).map_or("NULL", |spec| spec.name);
        Metrics::add(&shared.metrics.commands);
        // With nothing before it the answer can go straight to the output.
        let mut kept = Vec::new();
        let direct = self.slots.is_empty();
        let out = if direct { &mut self.output } else { &mut kept };
        let start = out.len();
        let outcome = commands::run(&mut Call {
            args: &args,
            client: &mut self.client,
            shared,
            cursors,
            out,
        });
        if out.get(start) == Some(&b'-') {
            Metrics::add(&shared.metrics.errors);
        }
        if !direct && !kept.is_empty() {
            self.push_ready(kept);
        }
        match outcome {
            Outcome::Answered => {}
            Outcome::Logged(bytes, shape) => {
                Metrics::add(&shared.metrics.logged);
                self.last_request += 1;
                let request = self.last_request;
                let resp3 = self.client.resp3;
                self.slots.push_back(Slot::Waiting {
                    request,
                    shape,
                    resp3,
                });
                self.waiting_bytes += bytes.len();
                self.waiting.push_back(Logged { request, bytes });
            }
            Outcome::Close => self.ended = true,
        }
        true
    }

    // ---- The log

    /// Whether something is to go into the log, and may.
    pub fn has_next_value(&self) -> bool {
        self.in_flight == 0 && !self.waiting.is_empty()
    }

    /// The next command of the value that now goes in flight; `taken` are the bytes of those
    /// before it. The caller asks for the first one only if [`has_next_value`](Self::has_next_value)
    /// and submits all.
    pub fn next_logged(&mut self, taken: &mut usize, max_value: usize) -> Option<Logged> {
        let next = self.waiting.front()?;
        *taken += PACKED_ITEM_HEADER_LEN + next.bytes.len();
        let full = *taken > max_value || self.in_flight >= usize::from(SESSION_WINDOW);
        if self.in_flight > 0 && full {
            return None;
        }
        self.in_flight += 1;
        self.waiting_bytes -= next.bytes.len();
        self.waiting.pop_front()
    }

    /// Whether the session has nothing to do.
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.waiting.is_empty()
    }

    /// The session was closed.
    pub fn forget_session(&mut self) {
        debug_assert!(self.is_idle());
        self.session = Session::None;
        self.last_request = 0;
    }

    /// An answer to a command in flight.
    pub fn on_answer(
        &mut self,
        request: u64,
        status: Option<Status>,
        bytes: &[u8],
        shared: &Shared,
        cursors: &mut Cursors,
    ) {
        let is_it = |slot: &Slot| matches!(slot, Slot::Waiting { request: r, .. } if *r == request);
        let Some(index) = self.slots.iter().position(is_it) else {
            return;
        };
        let placeholder = Slot::Ready(Vec::new());
        let Slot::Waiting { shape, resp3, .. } =
            std::mem::replace(&mut self.slots[index], placeholder)
        else {
            unreachable!("just found");
        };
        self.in_flight -= 1;
        let mut kept = Vec::new();
        let out = if index == 0 {
            &mut self.output
        } else {
            &mut kept
        };
        let start = out.len();
        let mut writer = Writer { out, resp3 };
        match (status, Reply::parse(bytes)) {
            (Some(Status::Ok), Ok(reply)) => write_reply(&mut writer, &reply, &shape, cursors),
            (Some(Status::Ok), Err(_)) => {
                writer.error("ERR the replicated application is no key-value store");
            }
            (Some(status), _) => match status.effect(true) {
                Effect::Executed => {
                    writer.error("EXECUTED the command took effect, but its answer is lost");
                }
                Effect::Refused => writer.error(format!("ERR refused: {}", status.name())),
                Effect::Unknown => writer.error(UNKNOWN),
            },
            (None, _) => writer.error(UNKNOWN),
        }
        if out.get(start) == Some(&b'-') {
            Metrics::add(&shared.metrics.errors);
        }
        if index > 0 {
            self.slot_bytes += kept.len();
            self.slots[index] = Slot::Ready(kept);
        }
        self.release();
    }

    /// The commands that went into the log and have no answer.
    pub fn in_flight_requests(&self) -> Vec<u64> {
        let submitted = self.slots.iter().filter_map(|slot| match slot {
            Slot::Waiting { request, .. } => Some(*request),
            Slot::Ready(_) => None,
        });
        submitted.take(self.in_flight).collect()
    }

    /// The session is gone, or could not be opened: what is in flight may have taken effect, and
    /// the rest fails with this error.
    pub fn fail_all(&mut self, error: &str, shared: &Shared) {
        let mut in_flight = self.in_flight;
        for slot in &mut self.slots {
            if let Slot::Waiting { resp3, .. } = *slot {
                let error = if in_flight > 0 { UNKNOWN } else { error };
                in_flight = in_flight.saturating_sub(1);
                let mut out = Vec::new();
                let mut writer = Writer {
                    out: &mut out,
                    resp3,
                };
                writer.error(error);
                Metrics::add(&shared.metrics.errors);
                self.slot_bytes += out.len();
                *slot = Slot::Ready(out);
            }
        }
        self.waiting.clear();
        self.waiting_bytes = 0;
        self.in_flight = 0;
        self.forget_session();
        self.release();
    }

    /// Executes nothing more.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Gives the client up: what isn't in flight is not executed, and nothing is answered.
    pub fn abandon(&mut self) {
        self.ended = true;
        self.input = Vec::new();
        self.used = 0;
        self.parser = Parser::default();
        self.waiting.clear();
        self.waiting_bytes = 0;
        self.slots
            .retain(|slot| matches!(slot, Slot::Waiting { .. }));
        self.slots.truncate(self.in_flight);
        self.slot_bytes = 0;
        self.discard_output();
    }

    // ---- Output

    fn answer_error(&mut self, text: String) {
        let mut out = Vec::new();
        Writer {
            out: &mut out,
            resp3: self.client.resp3,
        }
        .error(text);
        self.push_ready(out);
        self.release();
    }

    fn push_ready(&mut self, answer: Vec<u8>) {
        self.slot_bytes += answer.len();
        self.slots.push_back(Slot::Ready(answer));
    }

    /// Moves answers whose turn has come to the output.
    fn release(&mut self) {
        while let Some(Slot::Ready(bytes)) = self.slots.front() {
            self.output.extend_from_slice(bytes);
            self.slot_bytes -= bytes.len();
            self.slots.pop_front();
        }
    }

    pub fn pending_output(&self) -> &[u8] {
        &self.output[self.sent..]
    }

    pub fn output_sent(&mut self, len: usize) {
        self.sent += len;
        if self.sent == self.output.len() {
            self.discard_output();
        } else if self.sent >= COMPACT_BYTES.max(self.output.len() / 2) {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
    }

    pub fn discard_output(&mut self) {
        self.output.clear();
        self.output.shrink_to(COMPACT_BYTES);
        self.sent = 0;
    }

    /// Whether all is executed and answered, and nothing more will come.
    pub fn is_finished(&self) -> bool {
        self.ended && self.slots.is_empty() && self.is_idle() && self.pending_output().is_empty()
    }
}

fn write_reply(writer: &mut Writer<'_>, reply: &Reply<'_>, shape: &Shape, cursors: &mut Cursors) {
    match (shape, reply) {
        (Shape::Type, Reply::Int(n)) => writer.status(if *n == 0 { "none" } else { "string" }),
        (Shape::Keys, Reply::Array(parts)) if parts.len() == 2 => write_plain(writer, &parts[1]),
        (Shape::Scan(before), Reply::Array(parts)) if parts.len() == 2 => {
            let cursor = match parts[0] {
                Reply::Bulk(key) => cursors.number(*before, key),
                _ => 0,
            };
            writer.array(2);
            writer.bulk(cursor.to_string().as_bytes());
            write_plain(writer, &parts[1]);
        }
        _ => write_plain(writer, reply),
    }
}

fn write_plain(writer: &mut Writer<'_>, reply: &Reply<'_>) {
    match reply {
        Reply::Nil => writer.null(),
        Reply::Ok => writer.status("OK"),
        Reply::Int(n) => writer.integer(*n),
        Reply::Bulk(bytes) => writer.bulk(bytes),
        Reply::Array(items) => {
            writer.array(items.len());
            items.iter().for_each(|item| write_plain(writer, item));
        }
        Reply::Error(Refusal::StringTooLong) => {
            writer.error("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
        }
        Reply::Error(refusal) => writer.error(format!("ERR {refusal}")),
    }
}
