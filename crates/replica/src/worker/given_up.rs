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
use crate::application::Application;
use paxos::Instance;
use std::ops::Range;

impl<A: Application> Worker<A> {
    /// Tells which instances were given up, in an epoch that is active since. May be told again; an
    /// earlier range than one told before is ignored.
    pub fn give_up(&mut self, instances: Range<Instance>) {
        if instances.end <= self.given_up.end {
            return;
        }
        self.ring.forget(&instances);
        self.recover.forget_below(instances.end);
        self.trimmed = self.trimmed.max(instances.end);
        self.given_up = instances;
        self.leap();
        self.answer_siblings();
        self.learner.set_floor(self.settings.pid, self.next);
    }

    /// Goes on behind what was given up, if everything before it is executed.
    pub(super) fn leap(&mut self) {
        if !self.given_up.is_empty() && self.next == self.given_up.start {
            self.next = self.given_up.end;
        }
    }
}
