// SPDX-License-Identifier: Apache-2.0
//! Jobs that belong to no connection's turn, such as delivering messages and removing the
//! subscriptions of clients that are gone. They are done one after the other and in turns, as a
//! message may have thousands of patterns to match and thousands of clients to reach.

use std::collections::VecDeque;

use apps::redis::Message;

use crate::pubsub::blanks::Filling;
use crate::pubsub::channels::Round;
use crate::pubsub::survey::Survey;
use crate::state::subscriptions::Subscriptions;
use crate::state::waiter::Waiter;

/// The messages that wait for delivery may take this many bytes.
const MAX_BYTES: usize = 64 << 20;
/// The bytes that a message takes besides its text, roughly.
const EACH: usize = 200;

/// A job.
pub(crate) enum Job {
    /// Delivers a message to the subscribers of its channel.
    Deliver { message: Message, round: Round },
    /// Takes a front end's message to the others, from offset `at` on.
    Hear { text: Vec<u8>, at: usize },
    /// Counts for a PUBLISH or PUBSUB that waits for the answer.
    Count {
        asker: Waiter,
        /// The command's number.
        number: u64,
        survey: Box<Survey>,
    },
    /// Fills in the counts within the answer to an EXEC.
    Fill {
        asker: Waiter,
        /// The command's number.
        number: u64,
        filling: Box<Filling>,
    },
    /// Removes the subscriptions of a client that is gone.
    Leave {
        client: u64,
        subscriptions: Subscriptions,
    },
}

/// The jobs that wait.
#[derive(Default)]
pub(crate) struct Jobs {
    all: VecDeque<Job>,
    /// The bytes of the messages in `all`.
    bytes: usize,
    /// The number of jobs that were added to `all`, and the number of those that are done.
    added: u64,
    done: u64,
    /// The jobs for which no other job waits, each with the number of jobs that must be done before
    /// it begins.
    aside: VecDeque<(u64, Job)>,
}

impl Jobs {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty() && self.aside.is_empty()
    }

    /// Adds a job. Returns false if the messages take too much memory to deliver them all; then no
    /// message is left.
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

    /// Adds a job that is done beside the others, but begins only after all jobs that were added
    /// before it.
    pub fn push_aside(&mut self, job: Job) {
        self.aside.push_back((self.added, job));
    }

    /// Takes the first job of [`push_aside`](Self::push_aside), if it may begin.
    pub fn pop_aside(&mut self) -> Option<Job> {
        let (after, _) = self.aside.front()?;
        let may_begin = *after <= self.done;
        may_begin.then(|| self.aside.pop_front().map(|(_, job)| job))?
    }

    /// Puts back the job that [`pop_aside`](Self::pop_aside) took last.
    pub fn put_aside(&mut self, job: Job) {
        self.aside.push_front((self.done, job));
    }

    /// Takes the first job.
    pub fn pop(&mut self) -> Option<Job> {
        let job = self.all.pop_front()?;
        self.bytes -= job.bytes();
        self.done += 1;
        Some(job)
    }

    /// Puts back the job that was taken last, because its turn is over.
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
            Job::Count { .. } | Job::Fill { .. } | Job::Leave { .. } => 0,
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
        // A job that was put aside doesn't wait for dropped messages either.
        assert!(jobs.push(message(1)));
        jobs.push_aside(leave(4));
        assert!(!jobs.push(message(MAX_BYTES)));
        assert!(jobs.pop_aside().is_some() && jobs.is_empty());
    }
}
