// SPDX-License-Identifier: Apache-2.0
//! Mailboxes, by which other threads reach a worker, and the workers of a replica reach one
//! another.

use std::sync::{Arc, mpsc};

use paxos::PartitionId;
use replica::SiblingMessage;

use super::waker::Wake;
use super::worker_thread::Job;

/// The sending side of a worker's jobs.
#[derive(Clone)]
pub struct Mailbox {
    jobs: mpsc::Sender<Job>,
    /// Wakes the worker.
    pub wake: Wake,
}

/// Returns both sides of an empty mailbox, which keeps jobs in order. `wake` wakes the thread that
/// serves the worker.
pub fn mailbox(wake: Wake) -> (Mailbox, mpsc::Receiver<Job>) {
    let (jobs, given) = mpsc::channel();
    (Mailbox { jobs, wake }, given)
}

impl Mailbox {
    /// Gives the worker a job, and returns false if the worker has ended.
    pub fn give(&self, job: Job) -> bool {
        let given = self.jobs.send(job).is_ok();
        self.wake.wake();
        given
    }
}

/// A worker's connection to the other workers. All of them end with the process, so a worker that
/// has ended needs no more messages.
pub struct Siblings {
    own: PartitionId,
    /// The mailbox of each partition.
    mailboxes: Arc<[Mailbox]>,
    /// The partitions that got messages since they were last woken.
    to_wake: Vec<PartitionId>,
}

impl Siblings {
    /// Returns the connection of the worker of partition `own`.
    pub fn of(own: PartitionId, mailboxes: Arc<[Mailbox]>) -> Siblings {
        Siblings {
            own,
            mailboxes,
            to_wake: Vec::new(),
        }
    }

    /// Sends one message, which is read after [`Siblings::wake`] at the latest.
    pub fn send(&mut self, to: PartitionId, message: SiblingMessage) {
        let from = self.own;
        let _ = self.mailboxes[usize::from(to)]
            .jobs
            .send(Job::Sibling { from, message });
        if !self.to_wake.contains(&to) {
            self.to_wake.push(to);
        }
    }

    /// Wakes all workers that have got messages.
    pub fn wake(&mut self) {
        for to in self.to_wake.drain(..) {
            self.mailboxes[usize::from(to)].wake.wake();
        }
    }
}
