// SPDX-License-Identifier: Apache-2.0
//! Functions by which the node handles commands that make the program die.

use super::Worker;
use crate::agreement::Agreement;
use crate::application::Application;
use crate::execution::Deadly;
use crate::protocol::CommandPlace;
use paxos::Time;

impl<A: Application, G: Agreement> Worker<A, G> {
    /// Returns the command on which the program died, after an error. The node writes it to disk
    /// before it ends, and [promises](Worker::promise) at its next start never to execute it.
    /// [X-DIED]
    pub fn died(&self) -> Option<CommandPlace> {
        self.execution.died()
    }

    /// Promises that this replica never executes the command. The node has written the promise to
    /// disk, as well as whether an operator has ordered that the command takes no effect, and
    /// repeats it at each start until the command was passed. [X-DIED] [X-VOID]
    pub fn promise(&mut self, now: Time, place: CommandPlace, is_ordered: bool) {
        self.execution.promise(place, is_ordered);
        self.run(now);
    }

    /// Returns another command that this replica should promise never to execute, because other
    /// replicas died on it in the instance before which this replica waits. [X-DIED]
    pub fn asked_promise(&self) -> Option<CommandPlace> {
        self.execution.asked_promise()
    }

    /// Returns the place of the command before which this replica waits.
    pub fn waits_at(&self) -> Option<CommandPlace> {
        self.execution.waits_at()
    }

    /// Returns the command before which this replica waits, with what is known of it.
    pub fn deadly(&self) -> Option<Deadly> {
        self.execution.deadly(&self.agreement)
    }

    /// Returns the most recent commands that took no effect.
    pub fn voided(&self) -> impl Iterator<Item = CommandPlace> + '_ {
        self.execution.voided()
    }

    /// Returns a command that was executed here but takes no effect on other replicas, so that this
    /// replica's state differs from theirs.
    pub fn contradicted(&self) -> Option<CommandPlace> {
        self.execution.contradicted()
    }
}
