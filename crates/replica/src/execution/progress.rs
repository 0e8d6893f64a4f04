// SPDX-License-Identifier: Apache-2.0
//! Where execution stands in the log.
//!
//! ```text
//!            durable      committed         stable             ready
//!               |             |                |                 |
//!  -------------+-------------+----------------+-----------------+------------> instances
//!   survives a    survives the  never changes,   may be executed,   isn't here
//!   power failure program       may be committed and taken back
//!                             <------------- next ------------->
//! ```
//!
//! `durable <= committed <= stable <= ready`, and the next instance to execute lies between
//! `committed` and `ready`. Each of them is the first instance behind what it bounds; `ready` is
//! the log's.

use paxos::{Instance, Time};
use std::ops::Range;

/// The positions of execution, and the time at which the log was last looked at.
pub(super) struct Progress {
    next: Instance,
    committed: Instance,
    stable: Instance,
    durable: Instance,
    /// The instance after the last executed session operation, which other replicas should learn
    /// of soon.
    operations: Instance,
    now: Time,
}

impl Progress {
    /// Returns the positions of a program whose records stand at `next`, all of it durable.
    pub fn new(next: Instance, now: Time) -> Progress {
        Progress {
            next,
            committed: next,
            stable: next,
            durable: next,
            operations: 0,
            now,
        }
    }

    /// Returns the next instance to execute.
    #[inline]
    pub fn next(&self) -> Instance {
        self.next
    }

    /// Returns the instance below which everything is committed.
    #[inline]
    pub fn committed(&self) -> Instance {
        self.committed
    }

    /// Returns the instance below which the log doesn't change any more. Nothing beyond it is
    /// committed.
    #[inline]
    pub fn stable(&self) -> Instance {
        self.stable
    }

    /// Returns the instance below which everything is in a durable checkpoint.
    #[inline]
    pub fn durable(&self) -> Instance {
        self.durable
    }

    /// Returns the time at which the log was last looked at.
    #[inline]
    pub fn now(&self) -> Time {
        self.now
    }

    /// Returns the instance after the last executed session operation.
    #[inline]
    pub fn operations(&self) -> Instance {
        self.operations
    }

    /// Returns the next instance to execute, leaving out instances that were executed before they
    /// were stable.
    #[inline]
    pub fn settled(&self) -> Instance {
        self.next.min(self.stable)
    }

    /// Returns whether something is executed that isn't stable.
    #[inline]
    pub fn is_ahead(&self) -> bool {
        self.next > self.stable
    }

    /// Returns the executed instances that aren't stable.
    #[inline]
    pub fn unstable(&self) -> Range<Instance> {
        self.stable..self.next
    }

    /// Returns the committed instances that aren't durable.
    #[inline]
    pub fn not_durable(&self) -> Range<Instance> {
        self.durable..self.committed
    }

    // ---- Steps

    #[inline]
    pub fn look_at_log(&mut self, now: Time) {
        self.now = now;
    }

    /// Notes that the log never changes below this instance, and returns whether this is news.
    #[inline]
    pub fn stable_below(&mut self, inst: Instance) -> bool {
        let is_news = inst > self.stable;
        self.stable = self.stable.max(inst);
        is_news
    }

    /// Notes that the next instance was executed.
    #[inline]
    pub fn executed_next(&mut self) {
        self.next += 1;
    }

    /// Notes that a session operation at this instance was executed.
    #[inline]
    pub fn executed_operation(&mut self, inst: Instance) {
        self.operations = inst + 1;
    }

    /// Goes on behind instances that hold nothing and that end at `end`.
    pub fn leap(&mut self, end: Instance) {
        self.next = end;
        self.stable_below(end);
    }

    /// Notes that everything executed is committed.
    pub fn committed_all(&mut self) {
        self.committed = self.next;
    }

    /// Notes that everything below this instance is in a durable checkpoint.
    pub fn durable_below(&mut self, inst: Instance) {
        self.durable = inst;
    }

    /// Goes on at the position of the program's records, which was committed.
    pub fn go_to(&mut self, committed: Instance) {
        self.next = committed;
        self.committed = committed;
        self.stable_below(committed);
    }

    /// Notes that operations behind the next instance are executed again.
    pub fn forget_operations(&mut self) {
        self.operations = self.operations.min(self.next);
    }
}
