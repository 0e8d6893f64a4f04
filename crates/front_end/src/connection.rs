// SPDX-License-Identifier: Apache-2.0
//! One client's connection, without its socket. It has an ordered session in the log of each partition that it uses.
//!
//! ```text
//! input ─parse─> command ─┬─ answered here ─────────────────────────────────────────┐
//!                         └─ logged: waits ─> in flight in a lane ─> answered ──────┴─> slots ─> output
//! ```
//!
//! Answers leave in the order of the commands; a slot keeps the place of each answer that is still to come. The [`Order`] tells
//! which commands may be in flight at once.

#[cfg(test)]
mod turn_tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use apps::kv::Reply;
use paxos::PartitionId;
use replica::Status;
use replica::protocol::Effect;

use crate::answer::served::{self, Served};
use crate::answer::{self, Shape};
use crate::call::{Call, Outcome};
use crate::dispatch;
use crate::found_keys::{Awaited, Found, Wanted};
use crate::log::lane::{Lane, Logged, Session};
use crate::log::reads::Reading;
use crate::metrics::Metrics;
use crate::partitions::Partitions;
use crate::pubsub::blanks::Filling;
use crate::pubsub::jobs::Job;
use crate::pubsub::survey::{Question, Survey};
use crate::pubsub::task::Task;
use crate::resp::{Limits, Parser, Writer};
use crate::settings::Order;
use crate::shared::{self, Shared};
use crate::state::ask::Ask;
use crate::state::client::{Client, Details};
use crate::state::once::Once;
use crate::state::transaction::Transaction;
use crate::state::watched::Watched;
use crate::turns::LOOK_UP;
use crate::waits::waiting::{Tried, Waiting};

/// The messages that wait for a client may take this many bytes.
const MAX_MESSAGES_BYTES: usize = 32 << 20;

/// No more is read from a client while this much of its work is unfinished.
const MAX_SLOTS: usize = 1024;
const MAX_BACKLOG_BYTES: usize = 1 << 20;
/// Commands of up to this many arguments need no allocated list of them.
const FEW: usize = 8;
/// Used input is dropped in portions of this size.
const COMPACT_BYTES: usize = 64 << 10;

/// The answer to a command whose outcome nobody knows.
const UNKNOWN: &str = "UNKNOWN the session is lost: the command took effect, once, or not at all";

/// The answer if the replicated application is no key-value store.
const NO_STORE: &str = "ERR the replicated application is no key-value store";

const NUMBERED_FOR_ALL: &str =
    "ERR a command of all partitions has no number: send it without a name that begins with once:";

const NUMBERED_WAIT: &str =
    "ERR a command that waits has no number: send it without a name that begins with once:";

/// A PUBSUB that isn't answered yet.
struct PubSub {
    /// The command's number.
    number: u64,
    /// The question, until its count begins, and the bytes of memory that it takes.
    question: Option<Question>,
    bytes: usize,
}

enum Slot {
    Ready(Vec<u8>),
    Waiting {
        /// The command's number.
        number: u64,
        shape: Shape,
        resp3: bool,
        /// True if the client gets the answer.
        is_shown: bool,
    },
}

/// The way from a connection to the log.
pub(crate) trait Sink {
    /// Asks for a session in a partition; returns the nonce with which it is asked for.
    fn open(&mut self, pid: PartitionId) -> u64;

    /// Sends a command in the session of its lowest partition.
    fn send(&mut self, session: u64, request: u64, logged: &Logged);

    /// Sends a part of a command in the session of a partition.
    fn send_part(&mut self, pid: PartitionId, session: u64, number: u64, part: &[u8]);

    /// Sends a command that takes effect once, however often and from wherever it is sent. [S-NAMED]
    fn send_once(&mut self, once: Once, logged: Logged);

    /// Returns true if reads without the log are possible now.
    fn can_read(&self) -> bool;

    /// Sends a command that is answered without the log; returns the number of the read.
    fn read(&mut self, pid: PartitionId, command: &[u8], stale: bool) -> u64;
}

pub(crate) struct Connection {
    pub client: Client,
    input: Vec<u8>,
    /// The bytes of `input` that are used.
    used: usize,
    parser: Parser,
    slots: VecDeque<Slot>,
    /// The bytes of the answers in `slots`.
    slot_bytes: usize,
    /// The lanes of the partitions that are in use, one each.
    lanes: Vec<Lane>,
    /// The reads without the log that aren't answered yet.
    reading: Reading,
    /// The commands that aren't sent yet, in the client's order.
    waiting: VecDeque<Logged>,
    /// The bytes of the commands that wait and that are in flight.
    logged_bytes: usize,
    /// The number of the last command.
    number: u64,
    /// The command beside which no other may be in flight: it asks one partition after the other, or is in a name's session.
    alone: Option<u64>,
    /// The command in a name's session, without its bytes, and how many bytes it has.
    named: Option<(Logged, usize)>,
    /// The WATCH that isn't answered yet. Commands behind it wait, as they may need its versions.
    watch: Option<u64>,
    /// The KEYS that waits for the keys to be collected, after all partitions have answered.
    walk: Option<Awaited>,
    /// The command that waits for something to appear. Commands behind it wait, too.
    waits: Option<Box<Waiting>>,
    /// The command that is executed in turns, and true if its answer is shown.
    task: Option<(Task, bool)>,
    /// The PUBSUB that isn't answered yet. Commands behind it wait.
    survey: Option<PubSub>,
    /// The bytes of the answers to EXEC in which counts are being filled in.
    filling_bytes: usize,
    /// A question about all clients that the front end is to answer, with its command's number.
    asks: Option<(u64, Ask)>,
    /// True if the next command waits for the end of a pause.
    is_postponed: bool,
    output: Vec<u8>,
    sent: usize,
    /// True until a command of the latest input waits for the log.
    is_new: bool,
    /// True if the client sends no more; what has arrived is still executed.
    end_of_input: bool,
    /// True if no further command is executed.
    ended: bool,
}

impl Connection {
    pub fn new(client: Client) -> Connection {
        Connection {
            client,
            input: Vec::new(),
            used: 0,
            parser: Parser::default(),
            slots: VecDeque::new(),
            slot_bytes: 0,
            lanes: Vec::new(),
            reading: Reading::default(),
            waiting: VecDeque::new(),
            logged_bytes: 0,
            number: 0,
            alone: None,
            named: None,
            watch: None,
            walk: None,
            waits: None,
            task: None,
            survey: None,
            filling_bytes: 0,
            asks: None,
            is_postponed: false,
            output: Vec::new(),
            sent: 0,
            is_new: false,
            end_of_input: false,
            ended: false,
        }
    }

    // ---- Input

    /// Returns true if more input can be used now.
    pub fn wants_input(&self) -> bool {
        // A waiting client is read from as well, because only reading shows that it is gone.
        let waits = self.waits.is_some() && self.input.len() < MAX_BACKLOG_BYTES;
        !self.end_of_input && !self.ended && (!self.is_busy() || waits)
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        self.client.heard = Instant::now();
        self.is_new = true;
        self.input.extend_from_slice(bytes);
    }

    /// Notes that the client sends no more.
    pub fn end_input(&mut self) {
        self.end_of_input = true;
    }

    fn is_busy(&self) -> bool {
        self.watch.is_some()
            || self.waits.is_some()
            || self.task.is_some()
            || self.survey.is_some()
            || self.asks.is_some()
            || self.is_postponed
            || self.slots.len() >= MAX_SLOTS
            || self.logged_bytes >= MAX_BACKLOG_BYTES
            || self.answer_bytes() >= MAX_BACKLOG_BYTES
    }

    /// Returns the bytes of answers that the client hasn't got yet.
    pub fn answer_bytes(&self) -> usize {
        self.slot_bytes + self.filling_bytes + self.pending_output().len()
    }

    /// Returns the bytes that the connection keeps in memory.
    pub fn memory(&self) -> usize {
        let waits = self.waits.as_ref().map_or(0, |waiting| waiting.memory());
        let task = self.task.as_ref().map_or(0, |(task, _)| task.memory());
        let survey = self.survey.as_ref().map_or(0, |survey| survey.bytes);
        let input = self.input.len() + self.parser.memory() + waits + task + survey;
        let input = input + self.client.memory();
        // Such an answer exists twice for a moment, because the counts are filled into a copy.
        let answers = self.slot_bytes + 2 * self.filling_bytes + self.output.len();
        input + self.logged_bytes + answers
    }

    /// Executes the commands that have arrived, as long as there is room for their answers and until the turn is over.
    pub fn run(&mut self, shared: &Shared) {
        while !self.ended && !shared.turn.is_over() && self.run_next(shared) {}
        if self.used == self.input.len() {
            self.input.clear();
            self.input.shrink_to(COMPACT_BYTES);
            self.used = 0;
        } else if self.used >= COMPACT_BYTES {
            self.input.drain(..self.used);
            self.used = 0;
        }
    }

    /// Continues the command in hand, or executes the next one. Returns false if there is none, or no room for its answer.
    fn run_next(&mut self, shared: &Shared) -> bool {
        match self.task.take() {
            Some(task) if self.answer_bytes() < MAX_BACKLOG_BYTES => {
                self.go_on_with(task, shared);
                true
            }
            None if !self.is_busy() => self.run_one(shared),
            task => {
                self.task = task;
                false
            }
        }
    }

    fn go_on_with(&mut self, (mut task, is_shown): (Task, bool), shared: &Shared) {
        let mut kept = Vec::new();
        let direct = self.slots.is_empty();
        let out = if direct { &mut self.output } else { &mut kept };
        let start = out.len();
        let done = task.go_on(&mut self.client, shared, out);
        if !is_shown {
            out.truncate(start);
        }
        if !kept.is_empty() {
            self.push_ready(kept);
        }
        self.task = (!done).then_some((task, is_shown));
    }

    /// Executes one request; returns false if none is complete.
    fn run_one(&mut self, shared: &Shared) -> bool {
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
        shared.turn.arguments(request.arguments.len());
        shared.turn.copy(request.len);
        if let Some(len) = request.too_large {
            self.used += request.len;
            self.client.silence.next();
            Metrics::add(&shared.metrics.commands);
            Metrics::add(&shared.metrics.errors);
            self.client.once = None;
            self.client
                .transaction
                .iter_mut()
                .for_each(Transaction::refuse);
            self.answer_error(shared::too_large(len, Partitions::default(), shared));
            return true;
        }
        if request.arguments.is_empty() {
            self.used += request.len;
            return true;
        }
        let mut few;
        let many: Vec<&[u8]>;
        let args = match request.arguments.as_slice() {
            arguments if arguments.len() <= FEW => {
                few = [&[][..]; FEW];
                let places = few.iter_mut().zip(arguments);
                places.for_each(|(place, argument)| *place = argument.bytes(input));
                &few[..arguments.len()]
            }
            arguments => {
                many = arguments.iter().map(|a| a.bytes(input)).collect();
                &many[..]
            }
        };
        // If no answer is due before this one, it goes straight to the output.
        let mut kept = Vec::new();
        let direct = self.slots.is_empty();
        let out = if direct { &mut self.output } else { &mut kept };
        let start = out.len();
        let once = self.client.once;
        let call = &mut Call {
            args,
            client: &mut self.client,
            shared,
            is_numbered: once.is_some(),
            out,
        };
        if dispatch::is_postponed(call) {
            self.is_postponed = true;
            shared.pause.borrow_mut().postpone(self.client.index);
            self.parser.reuse(request.arguments);
            return false;
        }
        self.used += request.len;
        Metrics::add(&shared.metrics.commands);
        call.client.once = None;
        call.client.silence.next();
        let outcome = dispatch::run(call);
        shared.turn.copy(out.len() - start);
        if out.get(start) == Some(&b'-') {
            Metrics::add(&shared.metrics.errors);
        }
        let is_shown = self.client.silence.answers();
        // Confirmations of subscriptions aren't written yet; their task writes them.
        if !is_shown {
            out.truncate(start);
        }
        self.parser.reuse(request.arguments);
        if !direct && !kept.is_empty() {
            self.push_ready(kept);
        }
        match outcome {
            // The number that a transaction was given is kept for its EXEC.
            Outcome::Answered if self.client.transaction.is_some() => {
                self.client.once = self.client.once.or(once);
            }
            Outcome::Answered => {}
            Outcome::Logged { shape, reads, .. }
                if once.is_some() && !reads && shape.is_of_all() =>
            {
                self.answer_error(NUMBERED_FOR_ALL.to_owned());
            }
            Outcome::Logged {
                partitions,
                reads,
                bytes,
                shape,
            } => {
                if !reads {
                    Metrics::add(&shared.metrics.logged);
                }
                self.number += 1;
                let number = self.number;
                let resp3 = self.client.resp3;
                let once = once.filter(|_| !reads);
                let alone = shape.is_of_all() || once.is_some();
                if matches!(shape, Shape::Watch(_) | Shape::Served(Served::Watch(_))) {
                    self.watch = Some(number);
                }
                self.slots.push_back(Slot::Waiting {
                    number,
                    shape,
                    resp3,
                    is_shown,
                });
                self.logged_bytes += bytes.len();
                self.waiting.push_back(Logged {
                    number,
                    partitions,
                    alone,
                    reads,
                    follows: !std::mem::take(&mut self.is_new),
                    once,
                    bytes,
                });
            }
            Outcome::Waits(_) if once.is_some() => {
                self.answer_error(NUMBERED_WAIT.to_owned());
            }
            Outcome::Waits(waiting) => self.begin_wait(waiting, shared),
            Outcome::Surveys(question, bytes) => {
                self.order(Shape::Served(Served::Survey), is_shown, bytes);
                self.survey = Some(PubSub {
                    number: self.number,
                    bytes: question.memory(),
                    question: Some(question),
                });
            }
            Outcome::Begun(task) => {
                let is_shown = is_shown || !matches!(task, Task::Reset);
                self.task = Some((task, is_shown));
            }
            Outcome::Asks(ask) => {
                self.number += 1;
                self.slots.push_back(Slot::Waiting {
                    number: self.number,
                    shape: Shape::Served(Served::Plain),
                    resp3: self.client.resp3,
                    is_shown,
                });
                self.asks = Some((self.number, ask));
            }
            Outcome::Close => self.ended = true,
        }
        true
    }

    // ---- Waiting

    /// Begins the wait of a command for something to appear. If it needs the last ids of streams, it asks for those first.
    fn begin_wait(&mut self, mut waiting: Box<Waiting>, shared: &Shared) {
        self.number += 1;
        waiting.number = self.number;
        self.slots.push_back(Slot::Waiting {
            number: self.number,
            shape: Shape::Served(Served::Tried),
            resp3: self.client.resp3,
            is_shown: self.client.silence.answers(),
        });
        let is_unknown = waiting.is_unknown();
        self.waits = Some(waiting);
        match is_unknown {
            true => {
                self.try_wait(&[], shared);
            }
            false => self.stand_in_line(shared),
        }
    }

    fn stand_in_line(&mut self, shared: &Shared) {
        let Some(waiting) = &mut self.waits else {
            return;
        };
        waiting.tries = false;
        let (number, waiter) = (waiting.number, self.client.waiter());
        let begun = shared.waits.borrow_mut().begin(
            waiter,
            waiting.question(),
            &waiting.keys,
            waiting.deadline,
        );
        if let Err(why) = begun {
            self.waits = None;
            self.answer(number, shared, |writer| writer.error(why));
        }
    }

    /// Tries the waiting command once more, with the changed keys `first` before its others. Returns false if no
    /// command waits any more.
    pub fn try_wait(&mut self, first: &[Vec<u8>], shared: &Shared) -> bool {
        let (Some(waiting), Some(native)) = (&mut self.waits, &shared.native) else {
            return false;
        };
        shared.turn.spend(LOOK_UP * waiting.keys.len());
        let bytes = waiting.encode(native.stamp(), first);
        shared.turn.copy(bytes.len());
        let reads = waiting.is_read && !waiting.is_unknown() && shared.without_log;
        waiting.tries = true;
        if !reads {
            Metrics::add(&shared.metrics.logged);
        }
        self.logged_bytes += bytes.len();
        self.waiting.push_back(Logged {
            number: waiting.number,
            partitions: waiting.partitions,
            alone: false,
            reads,
            follows: false,
            once: None,
            bytes,
        });
        true
    }

    /// Takes the answer to a try of the waiting command: the command is answered, or continues to wait.
    fn on_tried(&mut self, answer: Result<&[u8], Option<Status>>, shared: &Shared) {
        let Some(waiting) = &mut self.waits else {
            return;
        };
        let (number, client) = (waiting.number, self.client.id);
        waiting.tries = false;
        match answer.map(|bytes| waiting.tried(bytes)) {
            Ok(Tried::Ready) => self.stand_in_line(shared),
            Ok(Tried::Nothing(nothing)) => {
                shared.waits.borrow_mut().found_nothing(client, nothing);
            }
            Ok(Tried::Something(bytes)) => {
                let bytes = bytes.to_vec();
                self.end_wait(number, shared, |writer| writer.out.extend(bytes));
            }
            Err(status) => self.end_wait(number, shared, |writer| write_lost(writer, status)),
        }
    }

    fn end_wait(&mut self, number: u64, shared: &Shared, write: impl FnOnce(&mut Writer<'_>)) {
        self.waits = None;
        shared.waits.borrow_mut().served(self.client.id);
        self.answer(number, shared, write);
    }

    /// Ends the wait with `answer`, because nothing has appeared.
    pub fn wait_is_over(&mut self, answer: &[u8], shared: &Shared) {
        if let Some(waiting) = self.waits.take() {
            self.answer(waiting.number, shared, |writer| writer.out.extend(answer));
        }
    }

    /// Returns true if a command waits for a client that is gone and isn't being tried, so that the wait can end.
    pub fn waits_in_vain(&self) -> bool {
        let is_gone = self.end_of_input || self.ended;
        is_gone && self.waits.as_ref().is_some_and(|waiting| !waiting.tries)
    }

    // ---- All clients

    /// Takes the question about all clients, with its command's number.
    pub fn take_ask(&mut self) -> Option<(u64, Ask)> {
        self.asks.take()
    }

    /// Answers the question about all clients.
    pub fn on_told(&mut self, number: u64, shared: &Shared, write: impl FnOnce(&mut Writer<'_>)) {
        self.answer(number, shared, write);
    }

    /// Returns the line of CLIENT INFO.
    pub fn describe(&self) -> String {
        self.client.describe(&Details {
            is_blocked: self.waits.is_some() || self.is_postponed,
            ends: self.ended,
            input: self.input.len(),
            output: self.answer_bytes(),
            memory: self.memory(),
        })
    }

    /// Lets the connection continue after the end of the pause.
    pub fn go_on(&mut self) {
        self.is_postponed = false;
    }

    // ---- Messages

    /// Puts a command into the log of the first partition, behind all commands before it.
    fn order(&mut self, shape: Shape, is_shown: bool, bytes: Vec<u8>) {
        self.number += 1;
        self.slots.push_back(Slot::Waiting {
            number: self.number,
            shape,
            resp3: self.client.resp3,
            is_shown,
        });
        self.logged_bytes += bytes.len();
        self.waiting.push_back(Logged {
            number: self.number,
            partitions: Partitions::one(0),
            alone: false,
            reads: false,
            follows: !std::mem::take(&mut self.is_new),
            once: None,
            bytes,
        });
    }

    /// Puts a message of this front end to the others into the log. Its answer is dropped.
    pub fn say(&mut self, bytes: Vec<u8>) {
        self.is_new = true;
        self.order(Shape::Served(Served::Plain), false, bytes);
    }

    /// Puts a message in its place among the answers. It need not wait behind a single command that waits for something to
    /// appear, if the client speaks RESP3.
    pub fn push_message(&mut self, frame: Vec<u8>) {
        if self.ended {
            return;
        }
        let waits_alone = self.client.resp3 && self.waits.is_some() && self.slots.len() == 1;
        match self.slots.is_empty() || waits_alone {
            true => self.output.extend_from_slice(&frame),
            false => self.push_ready(frame),
        }
    }

    /// Returns how many bytes of answers may wait for the client.
    pub fn output_limit(&self, shared: &Shared) -> usize {
        match self.client.subscriptions.is_empty() {
            true => shared.max_output_bytes,
            false => shared.max_output_bytes.min(MAX_MESSAGES_BYTES),
        }
    }

    // ---- The log

    /// Sends the commands that may be sent now, and asks for the sessions that they need. Each lane may have `values`
    /// values in flight.
    pub fn propose(&mut self, shared: &Shared, values: usize, sink: &mut impl Sink) {
        self.propose_waiting(shared, values, sink);
        let mut part = Vec::new();
        for lane in &mut self.lanes {
            let Session::Open(session) = lane.session else {
                continue;
            };
            while let Some(number) = lane.next_part(&mut part) {
                sink.send_part(lane.pid, session, number, &part);
            }
        }
    }

    fn propose_waiting(&mut self, shared: &Shared, values: usize, sink: &mut impl Sink) {
        // The partitions in which commands are in flight already. `sent` are those of the commands sent just now, which may
        // share a value, and `blocked` those of commands that can't be sent yet, so that later ones there wait, too.
        let mut busy = self.reach();
        // The partitions in which a command over several of them is in flight.
        let mut spanning = self.spanning();
        // The partitions in which a read without the log is unanswered; writes there wait. [B-ALONE]
        let mut reading = self.reading.reach();
        let (mut sent, mut blocked) = (Partitions::default(), Partitions::default());
        let mut at = 0;
        while let Some(next) = self.waiting.get(at) {
            // A command that goes alone waits for all commands before it, and all behind it wait for it.
            let goes = match self.alone {
                Some(number) => next.number == number,
                None => {
                    let is_first = at == 0 && busy.is_empty() && sent.is_empty();
                    !next.alone || is_first && reading.is_empty()
                }
            };
            if !goes {
                return;
            }
            if next.alone {
                self.alone = Some(next.number);
            }
            if next.once.is_some() {
                return self.send_once(at, shared, sink);
            }
            let wanted = next.partitions;
            let is_single = wanted.len() == 1;
            // A read goes without the log if only other reads are unanswered before it there. [B-ALONE]
            let without_log = match shared.order {
                Order::Connection => {
                    busy.is_empty() && sent.is_empty() && (reading.is_empty() || reading == wanted)
                }
                Order::Key => !wanted.meets(busy) && !wanted.meets(sent) && !wanted.meets(blocked),
            };
            if without_log && next.reads && shared.without_log && sink.can_read() {
                let logged = self.waiting.remove(at).expect("just seen");
                let stale = self.client.reads_stale;
                let number = sink.read(wanted.lowest(), &logged.bytes, stale);
                self.reading.push(number, logged);
                reading.add(wanted);
                continue;
            }
            // A session keeps the order of its commands in flight, so a command of one partition may follow others there.
            // [S-ORDERED]
            let joins = values > 1
                && is_single
                && match shared.order {
                    Order::Connection => busy == wanted,
                    Order::Key => !wanted.meets(spanning),
                };
            let in_order = match shared.order {
                Order::Connection => {
                    (busy.is_empty() || joins)
                        && reading.is_empty()
                        && (sent.is_empty() || is_single && sent == wanted)
                }
                Order::Key => {
                    (joins || !wanted.meets(busy))
                        && !wanted.meets(reading)
                        && !wanted.meets(blocked)
                        && (is_single || !wanted.meets(sent))
                }
            };
            let len = next.bytes.len();
            let lane = lane_of(&mut self.lanes, wanted.lowest());
            let session = match lane.session {
                Session::None => {
                    lane.session = Session::Opening(sink.open(lane.pid));
                    None
                }
                Session::Opening(_) => None,
                Session::Open(id) => Some(id),
            };
            match session.filter(|_| in_order && lane.has_room(len, shared.max_value, values)) {
                Some(session) => {
                    let logged = self.waiting.remove(at).expect("just seen");
                    if logged.reads {
                        Metrics::add(&shared.metrics.logged);
                    }
                    sent.add(wanted);
                    if !is_single {
                        busy.add(wanted);
                        spanning.add(wanted);
                    }
                    lane.send(logged, shared.max_value, |request, logged| {
                        sink.send(session, request, logged)
                    });
                }
                None if shared.order == Order::Connection => return,
                None => {
                    blocked.add(wanted);
                    at += 1;
                    if blocked == Partitions::first(shared.partitions) {
                        return;
                    }
                }
            }
        }
    }

    /// Sends a command in a name's session. No other command is in flight meanwhile. [S-NAMED]
    fn send_once(&mut self, at: usize, shared: &Shared, sink: &mut impl Sink) {
        let logged = self.waiting.remove(at).expect("just seen");
        let Some(once) = logged.once else { return };
        Metrics::add(&shared.metrics.logged);
        let kept = Logged {
            bytes: Vec::new(),
            ..logged
        };
        self.named = Some((kept, logged.bytes.len()));
        sink.send_once(once, logged);
    }

    /// Returns the partition and number of this connection's command in a name's session, if there is one.
    pub fn named(&self) -> Option<(PartitionId, Once)> {
        let (logged, _) = self.named.as_ref()?;
        logged.once.map(|once| (logged.partitions.lowest(), once))
    }

    /// Takes the answer to the command in a name's session; with no status its outcome is unknown.
    pub fn on_named(&mut self, status: Option<Status>, bytes: &[u8], shared: &Shared) {
        if let Some((logged, len)) = self.named.take() {
            self.logged_bytes -= len;
            let pid = logged.partitions.lowest();
            // The command isn't KEYS, which asks all partitions, so there is nothing to look for.
            let _ = self.take_answer((pid, logged), status, bytes, shared);
        }
    }

    /// Returns all partitions in which the commands in flight take effect.
    fn reach(&self) -> Partitions {
        let mut all = Partitions::default();
        self.lanes.iter().for_each(|lane| all.add(lane.reach()));
        all
    }

    /// Returns all partitions in which commands over several partitions that are in flight take effect.
    fn spanning(&self) -> Partitions {
        let mut all = Partitions::default();
        let in_flight = self.lanes.iter().flat_map(Lane::in_flight);
        in_flight
            .filter(|logged| logged.partitions.len() > 1)
            .for_each(|logged| all.add(logged.partitions));
        all
    }

    /// Returns true if any command is in flight.
    pub fn is_under_way(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.is_idle())
    }

    /// Returns the lane of a partition, if there is one.
    pub fn lane(&mut self, pid: PartitionId) -> Option<&mut Lane> {
        self.lanes.iter_mut().find(|lane| lane.pid == pid)
    }

    /// Returns all lanes.
    pub fn lanes(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.lanes.iter_mut()
    }

    fn is_idle(&self) -> bool {
        let waits = !self.waiting.is_empty() || !self.reading.is_empty() || self.named.is_some();
        !waits && self.lanes.iter().all(Lane::is_idle)
    }

    /// Removes the lanes that have nothing to do and weren't used within the time `idle`; returns their sessions.
    pub fn take_unused(&mut self, idle: Duration) -> Vec<(PartitionId, u64)> {
        let mut sessions = Vec::new();
        if self.waiting.is_empty() {
            self.lanes.retain(|lane| match lane.session {
                Session::Open(id) if lane.is_idle() && lane.last_used.elapsed() >= idle => {
                    sessions.push((lane.pid, id));
                    false
                }
                _ => true,
            });
        }
        sessions
    }

    /// Forgets the session of a partition. None of the commands in flight in it took effect, so they all wait for another
    /// session.
    pub fn lose_session(&mut self, pid: PartitionId) {
        if let Some(lane) = self.lane(pid) {
            let lost = lane.forget_session();
            lost.into_iter()
                .rev()
                .for_each(|logged| self.waiting.push_front(logged));
        }
    }

    /// Takes the answer to a command in flight, or to a part of one. If KEYS must now collect its keys, returns its number, its
    /// pattern, and a token that dies once the client no longer waits.
    pub fn on_answer(
        &mut self,
        (pid, number): (PartitionId, u64),
        status: Option<Status>,
        bytes: &[u8],
        shared: &Shared,
    ) -> Option<Wanted> {
        let lane = self.lane(pid)?;
        let logged = lane.answered(number, status)?;
        self.logged_bytes -= logged.bytes.len();
        self.take_answer((pid, logged), status, bytes, shared)
    }

    fn take_answer(
        &mut self,
        (pid, logged): (PartitionId, Logged),
        status: Option<Status>,
        bytes: &[u8],
        shared: &Shared,
    ) -> Option<Wanted> {
        let number = logged.number;
        let index = self.slot_of(number)?;
        let Slot::Waiting { shape, .. } = &mut self.slots[index] else {
            unreachable!("it waits");
        };
        if let Shape::Served(_) = shape {
            self.on_served((pid, logged), status, bytes, shared);
            return None;
        }
        let reply = Reply::parse(bytes);
        let gathers = match (status, &reply) {
            (Some(Status::Ok), Ok(reply)) => shape.gather(reply),
            _ => false,
        };
        if gathers && pid + 1 < shared.partitions {
            self.ask_next_partition(pid + 1, logged);
            return None;
        }
        let shape = shape.clone();
        if let (Some(Status::Ok), Shape::Watch(keys), Ok(Reply::Array(versions))) =
            (status, &shape, &reply)
        {
            self.note_versions(keys, versions);
        }
        if let (true, Shape::Keys(pattern)) = (gathers, &shape) {
            let awaited = self.walk.insert(Awaited::default()).token();
            return Some((number, pattern.clone(), awaited));
        }
        self.answer(number, shared, |writer| match (status, reply) {
            (Some(Status::Ok), Ok(reply)) => {
                answer::show(writer, &reply, &shape, (pid, shared.partitions));
            }
            (Some(Status::Ok), Err(_)) => {
                writer.error(NO_STORE);
            }
            (status, _) => write_lost(writer, status),
        });
        None
    }

    /// Takes the answer to a command where Redis itself is replicated.
    fn on_served(
        &mut self,
        (pid, logged): (PartitionId, Logged),
        status: Option<Status>,
        bytes: &[u8],
        shared: &Shared,
    ) {
        let (number, is_ok) = (logged.number, status == Some(Status::Ok));
        let index = self.slot_of(number);
        let Some(Slot::Waiting {
            shape: Shape::Served(served),
            ..
        }) = index.map(|index| &mut self.slots[index])
        else {
            return;
        };
        if is_ok && served.gather(bytes) && pid + 1 < shared.partitions {
            return self.ask_next_partition(pid + 1, logged);
        }
        let filling = match &mut *served {
            Served::Exec(blanks) if is_ok => {
                Filling::of(bytes, std::mem::take(blanks), shared.max_answer_bytes)
            }
            _ => None,
        };
        if let Some(filling) = filling {
            return self.begin_filling(number, filling, shared);
        }
        let served = served.clone();
        if served == Served::Tried {
            let answer = if is_ok { Ok(bytes) } else { Err(status) };
            return self.on_tried(answer, shared);
        }
        if let (true, Served::Watch(keys)) = (is_ok, &served) {
            shared.turn.spend(LOOK_UP * keys.len());
            served::versions(keys, bytes)
                .into_iter()
                .for_each(|of| self.client.watched.note(of));
        }
        let served = match served {
            Served::Published(question) if is_ok && !bytes.starts_with(b"-") => {
                return self.count_receivers(number, question, shared);
            }
            Served::Survey if is_ok && !bytes.starts_with(b"-") => {
                return self.begin_survey(shared);
            }
            other => other,
        };
        self.answer(number, shared, |writer| match (&served, is_ok) {
            (_, true) => served.show(writer.out, bytes, (pid, shared.partitions)),
            (_, false) => write_lost(writer, status),
        });
    }

    /// Begins to count the clients that get a message; PUBLISH is answered then.
    fn count_receivers(&self, number: u64, question: Question, shared: &Shared) {
        let count = Job::Count {
            asker: self.client.waiter(),
            number,
            survey: Box::new(Survey::of(question, shared.max_answer_bytes)),
        };
        // Only messages can be refused for lack of room, and this job isn't one.
        let _ = shared.jobs.borrow_mut().push(count);
    }

    /// Begins to fill in the counts within an answer to EXEC. Like PUBLISH's, they are made once the messages are delivered.
    fn begin_filling(&mut self, number: u64, filling: Filling, shared: &Shared) {
        shared.turn.copy(filling.len());
        self.filling_bytes += filling.len();
        let fill = Job::Fill {
            asker: self.client.waiter(),
            number,
            filling: Box::new(filling),
        };
        // Only messages can be refused for lack of room, and this job isn't one.
        let _ = shared.jobs.borrow_mut().push(fill);
    }

    /// Answers EXEC with all counts filled in.
    pub fn on_filled(&mut self, number: u64, filling: &Filling, shared: &Shared) {
        self.filling_bytes -= filling.len();
        self.answer(number, shared, |writer| filling.show(writer, &shared.turn));
    }

    /// Begins the count that PUBSUB asks for. It may take long if there are very many names, so no message waits for it.
    fn begin_survey(&mut self, shared: &Shared) {
        let asker = self.client.waiter();
        let Some(asks) = &mut self.survey else {
            return;
        };
        if let Some(question) = asks.question.take() {
            shared.jobs.borrow_mut().push_aside(Job::Count {
                asker,
                number: asks.number,
                survey: Box::new(Survey::of(question, shared.max_answer_bytes)),
            });
        }
    }

    /// Answers a command with the finished count.
    pub fn on_counted(&mut self, number: u64, survey: &Survey, shared: &Shared) {
        self.answer(number, shared, |writer| survey.show(writer, &shared.turn));
    }

    /// Watches these keys from now on; a key that was watched already keeps its earlier version.
    fn note_versions(&mut self, keys: &[Vec<u8>], versions: &[Reply<'_>]) {
        for (key, version) in keys.iter().zip(versions) {
            if let Reply::Int(version) = version {
                self.client.watched.note(Watched {
                    key: key.clone(),
                    version: *version as u64,
                    existed: true,
                });
            }
        }
    }

    /// Takes the answer to a read without the log. A read that got none goes through the log.
    pub fn on_read(&mut self, number: u64, answer: Option<&[u8]>, shared: &Shared) {
        let Some(bytes) = answer else {
            for logged in self.reading.given_up(number).into_iter().rev() {
                Metrics::add(&shared.metrics.reads_given_up);
                Metrics::add(&shared.metrics.logged);
                self.waiting.push_front(logged);
            }
            return;
        };
        let Some(logged) = self.reading.answered(number) else {
            return;
        };
        Metrics::add(&shared.metrics.reads);
        self.logged_bytes -= logged.bytes.len();
        let slot = self.slot_of(logged.number).map(|at| &self.slots[at]);
        let Some(Slot::Waiting { shape, .. }) = slot else {
            return;
        };
        let shape = shape.clone();
        let place = (logged.partitions.lowest(), shared.partitions);
        if shape == Shape::Served(Served::Tried) {
            return self.on_tried(Ok(bytes), shared);
        }
        if let Shape::Served(served) = shape {
            self.answer(logged.number, shared, |writer| {
                served.show(writer.out, bytes, place);
            });
            return;
        }
        self.answer(logged.number, shared, |writer| match Reply::parse(bytes) {
            Ok(reply) => answer::show(writer, &reply, &shape, place),
            Err(_) => writer.error(NO_STORE),
        });
    }

    /// Answers KEYS with the keys found.
    pub fn walked(&mut self, number: u64, found: &Found, shared: &Shared) {
        self.answer(number, shared, |writer| match found {
            Ok(keys) => keys.write(writer),
            Err(why) => writer.error(format!("ERR {why}")),
        });
    }

    /// Returns the index of the slot that waits for a command's answer.
    fn slot_of(&self, number: u64) -> Option<usize> {
        let is_it = |slot: &Slot| matches!(slot, Slot::Waiting { number: of, .. } if *of == number);
        self.slots.iter().position(is_it)
    }

    /// Writes a command's answer into its slot, unless nobody waits for it.
    fn answer(&mut self, number: u64, shared: &Shared, write: impl FnOnce(&mut Writer<'_>)) {
        let Some(index) = self.slot_of(number) else {
            return;
        };
        let Slot::Waiting {
            resp3, is_shown, ..
        } = self.slots[index]
        else {
            unreachable!("it waits");
        };
        if self.alone == Some(number) {
            self.alone = None;
            self.walk = None;
        }
        if self.watch == Some(number) {
            self.watch = None;
        }
        if self
            .survey
            .as_ref()
            .is_some_and(|asks| asks.number == number)
        {
            self.survey = None;
        }
        let mut kept = Vec::new();
        let out = if index == 0 {
            &mut self.output
        } else {
            &mut kept
        };
        let start = out.len();
        write(&mut Writer { out, resp3 });
        if out.get(start) == Some(&b'-') {
            Metrics::add(&shared.metrics.errors);
        }
        if !is_shown {
            out.truncate(start);
        }
        self.slot_bytes += kept.len();
        self.slots[index] = Slot::Ready(kept);
        self.release();
    }

    /// Puts the same question to another partition, before all commands that wait.
    fn ask_next_partition(&mut self, pid: PartitionId, logged: Logged) {
        self.logged_bytes += logged.bytes.len();
        self.waiting.push_front(Logged {
            partitions: Partitions::one(pid),
            ..logged
        });
    }

    /// Fails all commands, because a session is lost or couldn't be opened, and forgets all sessions. Commands in flight may
    /// have taken effect and get the answer UNKNOWN, the others this error.
    pub fn fail_all(&mut self, error: &str, shared: &Shared) {
        let in_flight = self.in_flight();
        for slot in &mut self.slots {
            if let Slot::Waiting {
                number,
                resp3,
                is_shown,
                ..
            } = *slot
            {
                let mut out = Vec::new();
                let mut writer = Writer {
                    out: &mut out,
                    resp3,
                };
                writer.error(match in_flight.contains(&number) {
                    true => UNKNOWN,
                    false => error,
                });
                Metrics::add(&shared.metrics.errors);
                if !is_shown {
                    out.clear();
                }
                self.slot_bytes += out.len();
                *slot = Slot::Ready(out);
            }
        }
        self.waiting.clear();
        self.alone = None;
        self.named = None;
        self.watch = None;
        self.walk = None;
        self.waits = None;
        self.task = None;
        self.survey = None;
        self.asks = None;
        self.lanes.clear();
        self.reading.clear();
        self.logged_bytes = 0;
        self.release();
    }

    /// Returns the numbers of the commands in flight.
    fn in_flight(&self) -> Vec<u64> {
        let of_lanes = self.lanes.iter().flat_map(Lane::in_flight);
        let named = self.named.iter().map(|(logged, _)| logged);
        of_lanes.chain(named).map(|l| l.number).collect()
    }

    /// Lets the connection execute no further command.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Stops serving the client: commands that aren't in flight are dropped, and none is answered.
    pub fn abandon(&mut self) {
        self.ended = true;
        self.input = Vec::new();
        self.used = 0;
        self.parser = Parser::default();
        self.alone = None;
        self.watch = None;
        self.walk = None;
        self.waits = None;
        self.task = None;
        self.survey = None;
        self.asks = None;
        self.is_postponed = false;
        let waiting = self.waiting.drain(..).map(|logged| logged.bytes.len());
        self.logged_bytes -= waiting.sum::<usize>();
        self.logged_bytes -= self.reading.clear();
        let in_flight = self.in_flight();
        self.slots.retain(
            |slot| matches!(slot, Slot::Waiting { number, .. } if in_flight.contains(number)),
        );
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
        if self.client.silence.answers() {
            self.push_ready(out);
            self.release();
        }
    }

    fn push_ready(&mut self, answer: Vec<u8>) {
        self.slot_bytes += answer.len();
        // Messages may be very many, and each answer searches the slots; so ready answers share one slot.
        match self.slots.back_mut() {
            Some(Slot::Ready(last)) => last.extend_from_slice(&answer),
            _ => self.slots.push_back(Slot::Ready(answer)),
        }
    }

    /// Moves the answers at the front to the output.
    fn release(&mut self) {
        while let Some(Slot::Ready(bytes)) = self.slots.front() {
            self.output.extend_from_slice(bytes);
            self.slot_bytes -= bytes.len();
            self.slots.pop_front();
        }
    }

    /// Returns true if the next command that waits arrived together with the one before it, whose answer can then wait for its
    /// own.
    pub fn has_followers(&self) -> bool {
        self.waiting.front().is_some_and(|next| next.follows)
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

    /// Returns true if all is executed, answered and sent, and no more will come.
    pub fn is_finished(&self) -> bool {
        self.ended && self.slots.is_empty() && self.is_idle() && self.pending_output().is_empty()
    }
}

/// Writes the error that tells a client the fate of a command without an answer.
fn write_lost(writer: &mut Writer<'_>, status: Option<Status>) {
    match status.map(|status| (status, status.effect(true))) {
        Some((_, Effect::Executed)) => {
            writer.error("EXECUTED the command took effect, but its answer is lost");
        }
        Some((status, Effect::Refused)) => writer.error(format!("ERR refused: {}", status.name())),
        Some((_, Effect::Unknown)) | None => writer.error(UNKNOWN),
    }
}

/// Returns the lane of a partition, which is made at its first use.
fn lane_of(lanes: &mut Vec<Lane>, pid: PartitionId) -> &mut Lane {
    let at = lanes.iter().position(|lane| lane.pid == pid);
    let at = at.unwrap_or_else(|| {
        lanes.push(Lane::new(pid));
        lanes.len() - 1
    });
    &mut lanes[at]
}
