// SPDX-License-Identifier: Apache-2.0
//! Decides when to make a checkpoint, and when to send TRIM.
//!
//! A replica reports TRIM(T) only when everything below T is in a checkpoint that survives a power
//! failure; acceptors forget what g+1 replicas have reported. [T-CHECKPOINT]

use paxos::{Instance, Time};
use std::ops::Range;

/// How often checkpoints are made, and reported by TRIM.
pub(crate) struct Rhythm {
    /// Instances between two checkpoints.
    pub every: u64,
    /// If the last checkpoint is younger than `pause`, the next one waits, as long as fewer than
    /// `most` instances have come since.
    pub pause: Time,
    pub most: u64,
    /// Time between two checkpoints, if anything new was committed.
    pub interval: Time,
    /// TRIM is sent again this often.
    pub trim_interval: Time,
}

pub(crate) struct Checkpoints {
    rhythm: Rhythm,
    /// A shift in instances that keeps the replicas from pausing for their checkpoints all at once.
    offset: u64,
    /// Everything below this instance is in the checkpoint under way.
    begun: Option<Instance>,
    /// Instances that came while the last checkpoint was written.
    came_meanwhile: u64,
    /// The time at which the last checkpoint was made.
    made: Time,
    /// The time at which TRIM is sent again.
    trim_due: Time,
}

impl Checkpoints {
    /// Begins at the start of a program, whose state is durable.
    pub fn new(rhythm: Rhythm, now: Time) -> Checkpoints {
        Checkpoints {
            rhythm,
            offset: 0,
            begun: None,
            came_meanwhile: 0,
            made: now,
            trim_due: now,
        }
    }

    /// Shifts this replica's checkpoints against the others': it is replica `index` of `replicas`.
    pub fn stagger(&mut self, index: usize, replicas: usize) {
        self.offset = self.rhythm.every * index as u64 / replicas.max(1) as u64;
    }

    /// Returns whether the next checkpoint is due, which would make the instances of `new` durable.
    pub fn is_due(&self, now: Time, new: &Range<Instance>) -> bool {
        self.waits(new) && (now >= self.due_at(new) || self.is_full(new))
    }

    /// Returns whether another checkpoint would cover anything new.
    fn waits(&self, new: &Range<Instance>) -> bool {
        self.begun.is_none() && !new.is_empty()
    }

    /// Returns when the next checkpoint is due if nothing more is committed.
    fn due_at(&self, new: &Range<Instance>) -> Time {
        self.made.saturating_add(match self.has_passed_mark(new) {
            true => self.rhythm.pause,
            false => self.rhythm.interval,
        })
    }

    fn has_passed_mark(&self, new: &Range<Instance>) -> bool {
        let mark = |inst: Instance| (inst + self.offset) / self.rhythm.every.max(1);
        mark(new.end) > mark(new.start)
    }

    /// Returns whether a checkpoint can't wait, however young the last one is.
    fn is_full(&self, new: &Range<Instance>) -> bool {
        self.has_passed_mark(new) && new.end - new.start >= self.most()
    }

    /// Returns how many instances may come after a checkpoint before the next one must begin. It
    /// leaves room for those that come while that one is written.
    fn most(&self) -> u64 {
        self.rhythm.most.saturating_sub(self.came_meanwhile)
    }

    /// Notes that a checkpoint of everything below `committed` is under way.
    pub fn begin(&mut self, committed: Instance) {
        self.begun = Some(committed);
    }

    pub fn is_under_way(&self) -> bool {
        self.begun.is_some()
    }

    /// Returns the next instance after those that the checkpoint under way covers.
    pub fn begun(&self) -> Option<Instance> {
        self.begun
    }

    /// Notes that the checkpoint under way has succeeded, when everything below `executed` was
    /// executed. It returns the instance below which everything is durable now.
    pub fn end(&mut self, now: Time, executed: Instance) -> Option<Instance> {
        let committed = self.begun.take()?;
        self.came_meanwhile = executed.saturating_sub(committed);
        self.made(now);
        Some(committed)
    }

    /// Notes that what is committed has become durable.
    pub fn made(&mut self, now: Time) {
        self.made = now;
        self.trim_due = now;
    }

    /// Returns whether a TRIM is due now.
    pub fn trims(&mut self, now: Time) -> bool {
        if now < self.trim_due {
            return false;
        }
        self.trim_due = now.saturating_add(self.rhythm.trim_interval);
        true
    }

    /// Returns when time alone may change the answer of [`Checkpoints::is_due`], or of
    /// [`Checkpoints::trims`] if this replica `reports`.
    pub fn next_deadline(&self, new: &Range<Instance>, reports: bool) -> Option<Time> {
        let trim = reports.then_some(self.trim_due);
        let made = self.waits(new).then(|| self.due_at(new));
        trim.into_iter().chain(made).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RHYTHM: Rhythm = Rhythm {
        every: 100,
        pause: 0,
        most: 100,
        interval: 1_000,
        trim_interval: 50,
    };

    #[test]
    fn a_checkpoint_is_due_by_count_or_by_time_but_never_for_nothing() {
        let mut c = Checkpoints::new(RHYTHM, 0);
        assert!(!c.is_due(99_999, &(0..0)));
        assert!(!c.is_due(999, &(0..99)));
        assert!(c.is_due(0, &(0..100)), "by count");
        assert!(c.is_due(1_000, &(0..1)), "by time");
        c.made(0);
        assert!(!c.is_due(0, &(100..199)));
        c.stagger(1, 2);
        assert!(
            c.is_due(0, &(100..150)),
            "the second replica, half a turn earlier"
        );
    }

    /// Instances that come while a checkpoint is written have to find room, too.
    #[test]
    fn a_busy_partition_makes_fewer_as_long_as_there_is_room() {
        let rhythm = Rhythm {
            pause: 500,
            most: 350,
            ..RHYTHM
        };
        let mut c = Checkpoints::new(rhythm, 0);
        assert!(!c.is_due(499, &(0..349)));
        assert!(c.is_due(0, &(0..350)), "there is no more room");
        assert!(c.is_due(500, &(0..100)), "the last one is old");
        assert!(!c.is_due(500, &(0..99)));
        assert_eq!(
            c.next_deadline(&(0..100), false),
            Some(500),
            "no more has to come"
        );
        c.begin(350);
        assert_eq!(c.end(0, 450), Some(350));
        assert!(!c.is_due(499, &(350..599)));
        assert!(c.is_due(499, &(350..600)), "100 more will come meanwhile");
        c.begin(600);
        assert_eq!(c.end(0, 10_000), Some(600));
        assert!(!c.is_due(499, &(600..699)));
        assert!(c.is_due(499, &(600..700)), "a slow disk: at each mark");
    }

    /// No second checkpoint begins before the first one has ended. [T-CHECKPOINT]
    #[test]
    fn one_checkpoint_is_under_way_at_a_time() {
        let mut c = Checkpoints::new(RHYTHM, 0);
        c.begin(100);
        assert!(!c.is_due(2_000, &(0..300)));
        assert_eq!(
            c.next_deadline(&(0..300), false),
            None,
            "its end will be told"
        );
        assert_eq!(
            c.end(2_000, 300),
            Some(100),
            "what was committed when it began"
        );
        assert_eq!(c.end(2_000, 300), None, "none is under way any more");
        assert!(c.is_due(2_000, &(100..300)));
    }

    /// TRIM is sent as soon as a checkpoint is written, and repeated later. [T-CHECKPOINT]
    #[test]
    fn trim_is_sent_at_once_and_again() {
        let mut c = Checkpoints::new(RHYTHM, 0);
        assert!(c.trims(0), "acceptors learn that nothing is durable");
        c.made(10);
        assert!(c.trims(10));
        assert!(!c.trims(59));
        assert!(c.trims(60));
    }
}
