// SPDX-License-Identifier: Apache-2.0
//! What an operator's override gave up when more than f acceptors had lost their memory.
//!
//! A range of instances holds nothing, whatever was decided there: its first one is where the
//! override found the replica that had executed furthest, and it ends far above everything that an
//! earlier epoch can have decided. Later epochs decide only behind it, so no instance is ever
//! decided twice, and a position alone says whether a state is from before or after.
//!
//! Who has executed everything before the range goes on behind it. Who hasn't, or has executed
//! something in it, needs another replica's checkpoint from behind it. [G-LEAP] [G-BEHIND]

use super::Worker;
use crate::agreement::Agreement;
use crate::application::Application;
use paxos::Instance;
use std::ops::Range;

impl<A: Application, G: Agreement> Worker<A, G> {
    /// Tells which instances were given up, in an epoch that is active since. May be told again; an
    /// earlier range than one told before is ignored.
    pub fn give_up(&mut self, instances: Range<Instance>) {
        if self.execution.give_up(instances.clone()) {
            self.agreement.give_up(instances);
            self.tell_position();
        }
    }
}
