// SPDX-License-Identifier: Apache-2.0
//! How other threads reach a worker, and the workers of a replica one another.

use std::sync::{Arc, mpsc};

use paxos::PartitionId;
use replica::SiblingMessage;

use super::waker::Wake;
use super::worker_thread::Job;

/// The giving side.
#[derive(Clone)]
pub struct Mailbox {
    jobs: mpsc::Sender<Job>,
    /// Wakes the worker.
    pub wake: Wake,
}

/// An empty one, and what is asked of the worker, in order. `wake` wakes the thread that serves it.
pub fn mailbox(wake: Wake) -> (Mailbox, mpsc::Receiver<Job>) {
    let (jobs, given) = mpsc::channel();
    (Mailbox { jobs, wake }, given)
}

impl Mailbox {
    /// Hands over a job; false if the worker has ended.
    pub fn give(&self, job: Job) -> bool {
        let given = self.jobs.send(job).is_ok();
        self.wake.wake();
        given
    }
}

/// One worker's way to the others. All of them end with the process, so whom a message no longer reaches
/// needs it no longer.
pub struct Siblings {
    own: PartitionId,
    /// By partition.
    mailboxes: Arc<[Mailbox]>,
    /// To whom something was sent since they were woken last.
    to_wake: Vec<PartitionId>,
}

impl Siblings {
    /// From the worker of partition `own`.
    pub fn of(own: PartitionId, mailboxes: Arc<[Mailbox]>) -> Siblings {
        Siblings {
            own,
            mailboxes,
            to_wake: Vec::new(),
        }
    }

    /// Sends one message, which is read at the latest after [`Siblings::wake`].
    pub fn send(&mut self, to: PartitionId, message: SiblingMessage) {
        let from = self.own;
        let _ = self.mailboxes[usize::from(to)]
            .jobs
            .send(Job::Sibling { from, message });
        if !self.to_wake.contains(&to) {
            self.to_wake.push(to);
        }
    }

    /// Wakes all that have got something.
    pub fn wake(&mut self) {
        for to in self.to_wake.drain(..) {
            self.mailboxes[usize::from(to)].wake.wake();
        }
    }
}
