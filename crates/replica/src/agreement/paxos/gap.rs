// SPDX-License-Identifier: Apache-2.0
//! Decides when to repair which instances.
//!
//! An instance is a *hole* if it isn't decided here and a later one is. Acceptors vote in the order
//! in which the leader sends, so the votes for a hole, or the proposal, were probably lost. A hole
//! is asked for soon, and once.
//!
//! An instance is *open* here if it isn't decided, but something shows that it was begun: a
//! decision or a vote further on, or the word of f+1 acceptors or of the leader. An instance that
//! has been open for a while is repaired. Its age is measured with one mark instead of a clock per
//! instance: everything below the mark was begun when the mark was set.

use paxos::{Instance, Time};

pub(crate) struct Gaps {
    patience: Time,
    /// 1 + the largest instance known to be begun.
    begun: Instance,
    /// The value of `begun` when the mark was set.
    mark: Instance,
    /// The time at which instances below the mark count as old; `None` while nothing is open.
    due: Option<Time>,
}

impl Gaps {
    pub fn new(patience: Time) -> Gaps {
        Gaps {
            patience,
            begun: 0,
            mark: 0,
            due: None,
        }
    }

    pub fn set_patience(&mut self, patience: Time) {
        self.patience = patience;
    }

    /// Notes that all instances below `end` may have been begun.
    #[inline]
    pub fn begun_below(&mut self, end: Instance) {
        self.begun = self.begun.max(end);
    }

    /// Returns 1 + the largest instance known to be begun.
    pub fn begun(&self) -> Instance {
        self.begun
    }

    /// Starts the wait when an instance is open, and stops it when none is.
    pub fn update_wait(&mut self, now: Time, next: Instance) {
        if next >= self.begun {
            self.due = None;
        } else if self.due.is_none() {
            self.set_mark(now);
        }
    }

    /// Follows time and `next`, the first instance that isn't executed. Returns the end of the
    /// instances that are old enough, once for each time that the patience runs out.
    pub fn old_below(&mut self, now: Time, next: Instance) -> Option<Instance> {
        self.update_wait(now, next);
        if self.due? > now {
            return None;
        }
        let old = self.mark;
        self.set_mark(now);
        (next < old).then_some(old)
    }

    pub fn next_deadline(&self) -> Option<Time> {
        self.due
    }

    fn set_mark(&mut self, now: Time) {
        self.mark = self.begun;
        self.due = Some(now.saturating_add(self.patience));
    }
}

/// Finds holes, and reports each one once.
pub(crate) struct Holes {
    patience: Time,
    /// 1 + the largest instance that is decided.
    decided: Instance,
    /// The value of `decided` when the wait began.
    mark: Instance,
    /// The end of the wait; `None` while every hole was reported.
    due: Option<Time>,
    /// All holes below this instance were reported.
    told: Instance,
}

impl Holes {
    pub fn new(patience: Time) -> Holes {
        Holes {
            patience,
            decided: 0,
            mark: 0,
            due: None,
            told: 0,
        }
    }

    #[inline]
    pub fn decided(&mut self, inst: Instance) {
        self.decided = self.decided.max(inst.saturating_add(1));
    }

    /// Starts the wait once there is a hole; `ready` is the first instance that isn't decided.
    pub fn update_wait(&mut self, now: Time, ready: Instance) {
        if ready >= self.decided || self.told >= self.decided {
            self.due = None;
        } else if self.due.is_none() {
            self.mark = self.decided;
            self.due = Some(now.saturating_add(self.patience));
        }
    }

    /// Returns the end of the holes that have been there for long enough, once.
    pub fn old_below(&mut self, now: Time, ready: Instance) -> Option<Instance> {
        self.update_wait(now, ready);
        if self.due? > now {
            return None;
        }
        self.due = None;
        self.told = self.mark;
        self.update_wait(now, ready);
        (ready < self.told).then_some(self.told)
    }

    pub fn next_deadline(&self) -> Option<Time> {
        self.due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hole is reported once, after a short wait. [X-HOLE]
    #[test]
    fn a_hole_is_told_of_once_and_soon() {
        let mut holes = Holes::new(5);
        holes.decided(0);
        assert_eq!(holes.old_below(0, 1), None);
        assert_eq!(holes.next_deadline(), None, "nothing is missing");
        holes.decided(3);
        assert_eq!(holes.old_below(1, 1), None);
        holes.decided(6);
        assert_eq!(holes.old_below(5, 1), None);
        assert_eq!(holes.old_below(6, 1), Some(4), "4 and 5 are younger");
        assert_eq!(holes.old_below(11, 4), Some(7));
        assert_eq!(holes.next_deadline(), None, "all were told of");
        assert_eq!(holes.old_below(100, 4), None);
        holes.decided(9);
        assert_eq!(holes.old_below(101, 10), None, "it has come");
    }

    /// Only an instance that stays missing for the whole time counts as old. [X-REPAIR]
    #[test]
    fn only_what_stays_open_gets_old() {
        let mut gaps = Gaps::new(10);
        assert_eq!(gaps.old_below(0, 0), None);
        gaps.begun_below(5);
        assert_eq!(gaps.old_below(1, 2), None, "the patience begins");
        gaps.begun_below(9);
        assert_eq!(gaps.old_below(10, 2), None, "and isn't over");
        assert_eq!(gaps.old_below(11, 2), Some(5), "5 to 8 are younger");
        assert_eq!(gaps.old_below(21, 5), Some(9));
        assert_eq!(gaps.old_below(31, 9), None, "all executed");
        assert_eq!(gaps.next_deadline(), None);
    }

    #[test]
    fn progress_is_not_repaired() {
        let mut gaps = Gaps::new(10);
        for now in 0..100 {
            gaps.begun_below(now + 5);
            assert_eq!(gaps.old_below(now, now), None);
        }
    }
}
