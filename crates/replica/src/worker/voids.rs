// SPDX-License-Identifier: Apache-2.0
//! Commands of which programs die, as the node sees them.

use super::Worker;
use crate::agreement::Agreement;
use crate::application::Application;
use crate::execution::Deadly;
use crate::protocol::CommandPlace;
use paxos::Time;

impl<A: Application, G: Agreement> Worker<A, G> {
    /// Of which command the program has died, after an error. The node notes it on disk before it ends, and
    /// [promises](Worker::promise) it at its next start. [X-DIED]
    pub fn died(&self) -> Option<CommandPlace> {
        self.execution.died()
    }

    /// This command is never executed here: that is on disk, as is whether an operator has ordered that it takes no effect.
    /// To be told at each start until it was passed. [X-DIED] [X-VOID]
    pub fn promise(&mut self, now: Time, place: CommandPlace, is_ordered: bool) {
        self.execution.promise(place, is_ordered);
        self.run(now);
    }

    /// A command that this replica is to promise never to execute, as others have died of it in the instance in front of
    /// which it waits. [X-DIED]
    pub fn asked_promise(&self) -> Option<CommandPlace> {
        self.execution.asked_promise()
    }

    /// Where the command lies in front of which this replica waits.
    pub fn waits_at(&self) -> Option<CommandPlace> {
        self.execution.waits_at()
    }

    /// The same, with what is known of it.
    pub fn deadly(&self) -> Option<Deadly> {
        self.execution.deadly(&self.agreement)
    }

    /// The last commands that took no effect.
    pub fn voided(&self) -> impl Iterator<Item = CommandPlace> + '_ {
        self.execution.voided()
    }

    /// A command that was executed here and takes no effect elsewhere: this replica's state is another one.
    pub fn contradicted(&self) -> Option<CommandPlace> {
        self.execution.contradicted()
    }
}
