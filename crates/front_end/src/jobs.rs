// SPDX-License-Identifier: Apache-2.0
//! What is to be done for nobody's turn: messages find their clients, and clients that are gone leave their channels. It is
//! done one after the other, and each in turns, as a message may have thousands of patterns to be held against, and thousands
//! of clients to go to.

use std::collections::VecDeque;

use apps::redis::Message;

use crate::channels::Round;
use crate::names::Waiter;
use crate::subscriptions::Subscriptions;
use crate::survey::Survey;

/// Bytes of messages that wait to be handed out, at most.
const MAX_BYTES: usize = 64 << 20;
/// What a message costs besides what it holds, roughly.
const EACH: usize = 200;

/// One of them.
pub(crate) enum Job {
    /// A message goes to those who have subscribed to its channel.
    Deliver { message: Message, round: Round },
    /// A front end has said something to the others, which is taken from `at` on.
    Hear { text: Vec<u8>, at: usize },
    /// PUBLISH or PUBSUB waits to be told what is counted.
    Count {
        asker: Waiter,
        /// The command's number.
        number: u64,
        survey: Box<Survey>,
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
    /// How many were added to `all`, and how many of them are done.
    added: u64,
    done: u64,
    /// What others needn't wait for, each with how many are to be done before it.
    aside: VecDeque<(u64, Job)>,
}

impl Jobs {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty() && self.aside.is_empty()
    }

    /// Adds one. False if messages are so many that those who have subscribed can't be told all of them: none is left then.
    #[must_use]
    pub fn push(&mut self, job: Job) -> bool {
        self.bytes += job.bytes();
        self.added += 1;
        self.all.push_back(job);
        let has_room = self.bytes <= MAX_BYTES;
        if !has_room {
            self.all.retain(|job| job.bytes() == 0);
            self.bytes = 0;
            self.done = self.added - self.all.len() as u64;
        }
        has_room
    }

    /// Adds one that takes its turns beside the others, but begins when all that were added before are done.
    pub fn push_aside(&mut self, job: Job) {
        self.aside.push_back((self.added, job));
    }

    /// Takes the first one of those, if it may begin.
    pub fn pop_aside(&mut self) -> Option<Job> {
        let (after, _) = self.aside.front()?;
        let may_begin = *after <= self.done;
        may_begin.then(|| self.aside.pop_front().map(|(_, job)| job))?
    }

    /// Puts back the one of those that was taken last.
    pub fn put_aside(&mut self, job: Job) {
        self.aside.push_front((self.done, job));
    }

    /// Takes the first one.
    pub fn pop(&mut self) -> Option<Job> {
        let job = self.all.pop_front()?;
        self.bytes -= job.bytes();
        self.done += 1;
        Some(job)
    }

    /// Puts back the one that was taken last: its turn is over.
    pub fn put_back(&mut self, job: Job) {
        self.bytes += job.bytes();
        self.done -= 1;
        self.all.push_front(job);
    }
}

impl Job {
    fn bytes(&self) -> usize {
        match self {
            Job::Deliver { message, .. } => EACH + message.channel.len() + message.text.len(),
            Job::Hear { text, .. } => EACH + text.len(),
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

    #[test]
    fn what_is_put_aside_begins_after_all_before_it_and_lets_later_ones_pass() {
        let leave = |client| Job::Leave {
            client,
            subscriptions: Subscriptions::default(),
        };
        let mut jobs = Jobs::default();
        assert!(jobs.push(leave(1)));
        jobs.push_aside(leave(2));
        assert!(jobs.push(leave(3)));
        assert!(jobs.pop_aside().is_none());
        let first = jobs.pop().unwrap();
        jobs.put_back(first);
        assert!(jobs.pop_aside().is_none(), "it isn't done");
        assert!(jobs.pop().is_some());
        let aside = jobs.pop_aside().unwrap();
        jobs.put_aside(aside);
        assert!(matches!(jobs.pop(), Some(Job::Leave { client: 3, .. })));
        assert!(!jobs.is_empty());
        assert!(matches!(
            jobs.pop_aside(),
            Some(Job::Leave { client: 2, .. })
        ));
        // Nor does it wait for messages that were let go.
        assert!(jobs.push(message(1)));
        jobs.push_aside(leave(4));
        assert!(!jobs.push(message(MAX_BYTES)));
        assert!(jobs.pop_aside().is_some() && jobs.is_empty());
    }
}
