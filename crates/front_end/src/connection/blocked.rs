// SPDX-License-Identifier: Apache-2.0
//! What a connection waits for before it executes its next command.

use crate::pubsub::survey::Question;
use crate::pubsub::task::Task;
use crate::state::client_query::Ask;
use crate::waits::waiting::Waiting;

/// What a connection waits for before it executes its next command.
#[derive(Default)]
pub(crate) enum Blocked {
    /// The connection waits for nothing.
    #[default]
    Nothing,
    /// The WATCH of this number isn't answered yet. Commands behind it may need its versions.
    Watch(u64),
    /// A command waits for something to appear.
    Wait(Box<Waiting>),
    /// A command is executed in turns; the answer is shown if this is true.
    Task(Task, bool),
    /// A PUBSUB isn't answered yet.
    PubSub(PubSub),
    /// The front end is to answer a question about all clients, from the command of this number.
    Ask(u64, Ask),
    /// The next command waits for the end of a pause.
    Pause,
}

/// A PUBSUB that isn't answered yet.
pub(crate) struct PubSub {
    /// The command's number.
    number: u64,
    /// The question, until its count begins, and the bytes of memory that it takes.
    question: Option<Question>,
    bytes: usize,
}

impl PubSub {
    pub fn new(number: u64, question: Question) -> PubSub {
        PubSub {
            number,
            bytes: question.memory(),
            question: Some(question),
        }
    }

    /// Takes the question with its command's number, as its count begins.
    pub fn take_question(&mut self) -> Option<(u64, Question)> {
        self.question.take().map(|question| (self.number, question))
    }
}

impl Blocked {
    /// Returns true if the next command must wait.
    pub fn is_blocked(&self) -> bool {
        !matches!(self, Blocked::Nothing)
    }

    /// Returns true if CLIENT LIST shows the client as blocked.
    pub fn is_shown(&self) -> bool {
        matches!(self, Blocked::Wait(_) | Blocked::Pause)
    }

    /// Returns the command that waits for something to appear, if there is one.
    pub fn waiting(&self) -> Option<&Waiting> {
        match self {
            Blocked::Wait(waiting) => Some(waiting),
            _ => None,
        }
    }

    /// Returns the bytes of memory that the command in hand takes.
    pub fn memory(&self) -> usize {
        match self {
            Blocked::Wait(waiting) => waiting.memory(),
            Blocked::Task(task, _) => task.memory(),
            Blocked::PubSub(pubsub) => pubsub.bytes,
            Blocked::Nothing | Blocked::Watch(_) | Blocked::Ask(..) | Blocked::Pause => 0,
        }
    }

    /// Notes that the command of this number is answered. A command that waits, is executed in
    /// turns, or asks about all clients is ended by its owner.
    pub fn end(&mut self, number: u64) {
        let is_answered = match self {
            Blocked::Watch(of) => *of == number,
            Blocked::PubSub(pubsub) => pubsub.number == number,
            _ => false,
        };
        if is_answered {
            *self = Blocked::Nothing;
        }
    }
}
