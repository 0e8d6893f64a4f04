// SPDX-License-Identifier: Apache-2.0
//! Functions by which the node handles commands that make the program die.

use super::Worker;
use crate::agreement::Agreement;
use crate::application::Application;
use crate::execution::Deadly;
use crate::protocol::CommandPlace;
use paxos::Time;

impl<A: Application, G: Agreement> Worker<A, G> {
    /// Promises that this replica never executes the command. The node has written the promise to
    /// disk, as well as whether an operator has ordered that the command takes no effect, and
    /// repeats it at each start until the command was passed. [X-DIED] [X-VOID]
    pub fn promise(&mut self, now: Time, place: CommandPlace, is_ordered: bool) {
        self.execution.promise(place, is_ordered);
        self.run(now);
    }

    /// Returns the command before which this replica waits, with what is known of it.
    pub fn deadly(&self) -> Option<Deadly> {
        self.execution.deadly(&self.agreement)
    }
}
