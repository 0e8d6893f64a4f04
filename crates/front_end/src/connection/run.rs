// SPDX-License-Identifier: Apache-2.0
//! Executes the commands that have arrived: what is answered here goes into its slot, and what is
//! logged into the orders.

use crate::answer::Shape;
use crate::answer::served::Served;
use crate::answer_times::AnswerTimes;
use crate::call::{Call, Outcome};
use crate::connection::Connection;
use crate::connection::blocked::{Blocked, PubSub};
use crate::connection::parse::with_arguments;
use crate::connection::slots::Pending;
use crate::dispatch;
use crate::log::lane::Logged;
use crate::metrics::Metrics;
use crate::partitions::Partitions;
use crate::pubsub::task::Task;
use crate::resp::{Limits, Request, Writer};
use crate::shared::{self, Shared};
use crate::state::named_command::Once;
use crate::state::transaction::Transaction;

const NUMBERED_FOR_ALL: &str =
    "ERR a command of all partitions has no number: send it without a name that begins with once:";
const NUMBERED_WAIT: &str =
    "ERR a command that waits has no number: send it without a name that begins with once:";

impl Connection {
    /// Executes the commands that have arrived, as long as there is room for their answers and
    /// until the turn is over.
    pub fn run(&mut self, shared: &Shared) {
        while !self.ended && !shared.turn.is_over() && self.run_next(shared) {}
        self.input.compact();
    }

    /// Continues the command in hand, or executes the next one. Returns false if there is none, or
    /// no room for its answer.
    fn run_next(&mut self, shared: &Shared) -> bool {
        match self.blocked {
            Blocked::Task(..) if self.has_room_for_answers() => {
                self.go_on_with_task(shared);
                true
            }
            _ => !self.is_busy() && self.run_one(shared),
        }
    }

    fn go_on_with_task(&mut self, shared: &Shared) {
        let Blocked::Task(task, is_shown) = &mut self.blocked else {
            return;
        };
        let mut kept = Vec::new();
        let out = self.slots.place(&mut kept);
        let start = out.len();
        let channels = &mut shared.channels.borrow_mut();
        let done = task.go_on(&mut self.client, channels, &shared.turn, out);
        if !*is_shown {
            out.truncate(start);
        }
        if done {
            self.blocked = Blocked::Nothing;
        }
        self.slots.push(kept);
    }

    /// Executes one request; returns false if none is complete.
    fn run_one(&mut self, shared: &Shared) -> bool {
        let limits = Limits {
            authenticated: self.client.is_authenticated(),
            ..Limits::default()
        };
        let request = match self.input.parse(&limits) {
            Ok(Some(request)) => request,
            Ok(None) => {
                self.ended |= self.input.is_at_end();
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
            self.input.use_up(request.len);
            self.refuse_large(len, shared);
            return true;
        }
        if request.arguments.is_empty() {
            self.input.use_up(request.len);
            return true;
        }
        self.execute(request, shared)
    }

    fn refuse_large(&mut self, len: u64, shared: &Shared) {
        self.client.silence.next();
        Metrics::add(&shared.metrics.commands);
        Metrics::add(&shared.metrics.errors);
        self.client.once = None;
        self.client
            .transaction
            .iter_mut()
            .for_each(Transaction::refuse);
        self.answer_error(shared::too_large(len, Partitions::default(), shared));
    }

    /// Executes a request; returns false if the end of a pause must come first.
    fn execute(&mut self, request: Request, shared: &Shared) -> bool {
        let mut kept = Vec::new();
        let out = self.slots.place(&mut kept);
        let start = out.len();
        let once = self.client.once;
        let client = &mut self.client;
        let outcome = with_arguments(&request, self.input.unused(), |args| {
            let call = &mut Call {
                args,
                client,
                shared,
                is_numbered: once.is_some(),
                out,
            };
            if dispatch::is_postponed(call) {
                return None;
            }
            Metrics::add(&shared.metrics.commands);
            call.client.once = None;
            call.client.silence.next();
            Some(dispatch::run(call))
        });
        let Some(outcome) = outcome else {
            self.blocked = Blocked::Pause;
            shared.pause.borrow_mut().postpone(self.client.index);
            self.input.reuse(request);
            return false;
        };
        self.input.use_up(request.len);
        shared.turn.copy(out.len() - start);
        if out.get(start) == Some(&b'-') {
            Metrics::add(&shared.metrics.errors);
        }
        let is_shown = self.client.silence.answers();
        // Confirmations of subscriptions aren't written yet; their task writes them.
        if !is_shown {
            out.truncate(start);
        }
        self.input.reuse(request);
        self.slots.push(kept);
        self.take_outcome(outcome, once, is_shown, shared);
        true
    }

    fn take_outcome(
        &mut self,
        outcome: Outcome,
        once: Option<Once>,
        is_shown: bool,
        shared: &Shared,
    ) {
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
                let once = once.filter(|_| !reads);
                let alone = shape.is_of_all() || once.is_some();
                let joins = matches!(shape, Shape::Served(Served::Brief)) && !alone;
                let watches = matches!(shape, Shape::Watch(_) | Shape::Served(Served::Watch(_)));
                let number = self.wait_for_answer(shape, is_shown);
                if watches {
                    self.blocked = Blocked::Watch(number);
                }
                let logged = Logged {
                    joins,
                    alone,
                    reads,
                    follows: self.orders.follows(),
                    once,
                    ..Logged::new(number, partitions, bytes)
                };
                self.orders.push(logged, shared);
            }
            Outcome::Waits(_) if once.is_some() => {
                self.answer_error(NUMBERED_WAIT.to_owned());
            }
            Outcome::Waits(waiting) => self.begin_wait(waiting, shared),
            Outcome::Surveys(question, bytes) => {
                let number = self.order(Shape::Served(Served::Survey), is_shown, bytes, shared);
                self.blocked = Blocked::PubSub(PubSub::new(number, question));
            }
            Outcome::Begun(task) => {
                let is_shown = is_shown || !matches!(task, Task::Reset);
                self.blocked = Blocked::Task(task, is_shown);
            }
            Outcome::Asks(ask) => {
                let number = self.wait_for_answer(Shape::Served(Served::Plain), is_shown);
                self.blocked = Blocked::Ask(number, ask);
            }
            Outcome::Close => self.ended = true,
        }
    }

    /// Puts a message of this front end to the others into the log. Its answer is dropped.
    pub fn say(&mut self, bytes: Vec<u8>, shared: &Shared) {
        self.orders.note_input();
        self.order(Shape::Served(Served::Plain), false, bytes, shared);
    }

    /// Puts a command into the log of the first partition, behind all commands before it; returns
    /// its number.
    fn order(&mut self, shape: Shape, is_shown: bool, bytes: Vec<u8>, shared: &Shared) -> u64 {
        let number = self.wait_for_answer(shape, is_shown);
        let logged = Logged {
            follows: self.orders.follows(),
            ..Logged::new(number, Partitions::one(0), bytes)
        };
        self.orders.push(logged, shared);
        number
    }

    /// Keeps the place of the next command's answer; returns the command's number.
    pub(super) fn wait_for_answer(&mut self, shape: Shape, is_shown: bool) -> u64 {
        let number = self.orders.next_number();
        self.slots.wait_for(Pending {
            number,
            since: AnswerTimes::begin(number, &shape),
            shape,
            resp3: self.client.resp3,
            is_shown,
        });
        number
    }

    fn answer_error(&mut self, text: String) {
        let mut out = Vec::new();
        Writer {
            out: &mut out,
            resp3: self.client.resp3,
        }
        .error(text);
        if self.client.silence.answers() {
            self.slots.push(out);
        }
    }
}
