// SPDX-License-Identifier: Apache-2.0
//! What is to be done for nobody's turn: messages find their clients, and clients that are gone leave their channels. It is
//! done one after the other, and each in turns, as a message may have thousands of patterns to be held against, and thousands
//! of clients to go to.

use std::collections::VecDeque;

use apps::redis::Message;

use crate::channels::Round;
use crate::names::Waiter;
use crate::subscriptions::Subscriptions;

/// Bytes of messages that wait to be handed out, at most.
const MAX_BYTES: usize = 64 << 20;
/// What a message costs besides what it holds, roughly.
const EACH: usize = 200;

/// One of them.
pub(crate) enum Job {
    /// A message goes to those who have subscribed to its channel.
    Deliver { message: Message, round: Round },
    /// PUBLISH waits to be told how many get its message.
    Count {
        publisher: Waiter,
        /// The command's number.
        number: u64,
        channel: Vec<u8>,
        is_sharded: bool,
        round: Round,
        receivers: usize,
    },
    /// A client is gone.
    Leave {
        client: u64,
        subscriptions: Subscriptions,
    },
}

/// Those that wait.
#[derive(Default)]
pub(crate) struct Jobs {
    all: VecDeque<Job>,
    /// Of messages.
    bytes: usize,
}

impl Jobs {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Adds one. False if messages are so many that those who have subscribed can't be told all of them: none is left then.
    #[must_use]
    pub fn push(&mut self, job: Job) -> bool {
        self.bytes += job.bytes();
        self.all.push_back(job);
        let has_room = self.bytes <= MAX_BYTES;
        if !has_room {
            self.all.retain(|job| job.bytes() == 0);
            self.bytes = 0;
        }
        has_room
    }

    /// Takes the first one.
    pub fn pop(&mut self) -> Option<Job> {
        let job = self.all.pop_front()?;
        self.bytes -= job.bytes();
        Some(job)
    }

    /// Puts back the one that was taken last: its turn is over.
    pub fn put_back(&mut self, job: Job) {
        self.bytes += job.bytes();
        self.all.push_front(job);
    }
}

impl Job {
    fn bytes(&self) -> usize {
        match self {
            Job::Deliver { message, .. } => EACH + message.channel.len() + message.text.len(),
            Job::Count { .. } | Job::Leave { .. } => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(len: usize) -> Job {
        Job::Deliver {
            message: Message {
                channel: Vec::new(),
                is_sharded: false,
                text: vec![0; len],
            },
            round: Round::default(),
        }
    }

    #[test]
    fn messages_that_are_too_many_are_let_go_and_nothing_else_is() {
        let mut jobs = Jobs::default();
        let leave = Job::Leave {
            client: 1,
            subscriptions: Subscriptions::default(),
        };
        assert!(jobs.push(message(MAX_BYTES / 2)) && jobs.push(leave));
        let first = jobs.pop().unwrap();
        jobs.put_back(first);
        assert!(!jobs.push(message(MAX_BYTES / 2)));
        assert!(matches!(jobs.pop(), Some(Job::Leave { .. })));
        assert!(jobs.is_empty() && jobs.push(message(MAX_BYTES / 2)));
    }
}
