// SPDX-License-Identifier: Apache-2.0
//! Reads without a place in the log in NOPaxos: the leader of a view answers a read after it has executed everything
//! that its log held when the read came. [N-READ]

use super::Execution;
use crate::agreement::Answers;
use crate::application::Application;
use crate::reply::Place;
use paxos::{Instance, Reason, Round};
use std::collections::VecDeque;

/// The most reads that may wait for execution; the sender of a further one sends it again.
const MAX_READS: usize = 1_024;

/// The waiting reads, oldest first.
#[derive(Default)]
pub(super) struct Reads(VecDeque<Read>);

struct Read {
    view: Round,
    /// The end of the log when the read came.
    ready: Instance,
    client: u64,
    request: u64,
    command: Vec<u8>,
}

impl<A: Application> Execution<A> {
    /// Takes a command that only reads. `ready` is the present end of the log of this replica's view.
    pub fn read(
        &mut self,
        (view, ready): (Round, Instance),
        (client, request): (u64, u64),
        command: &[u8],
    ) -> Result<(), Reason> {
        if !self.app.is_read(command) {
            return Err(Reason::BadValue);
        }
        if self.reads.0.len() == MAX_READS {
            return Err(Reason::Busy);
        }
        self.reads.0.push_back(Read {
            view,
            ready,
            client,
            request,
            command: command.to_vec(),
        });
        Ok(())
    }

    /// Executes the reads for which enough is executed, and forgets reads of a view that this replica no longer leads.
    pub(super) fn execute_reads(&mut self, answers: Answers) {
        while let Some(read) = self.reads.0.pop_front() {
            let goes_on = answers == Answers::Here(read.view);
            if goes_on && (read.ready > self.next || self.stands_still()) {
                self.reads.0.push_front(read);
                return;
            }
            if goes_on {
                self.execute_read(&read);
            }
        }
    }

    fn execute_read(&mut self, read: &Read) {
        self.replies.place = Place::Read(read.view, self.next.saturating_sub(1));
        let app = &mut self.app;
        let result = self
            .sessions
            .read(read.client, read.request, &mut self.replies, |reply| {
                app.read(&read.command, reply)
            });
        let _ = self.final_error(result);
    }
}
