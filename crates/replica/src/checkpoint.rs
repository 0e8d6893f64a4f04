// SPDX-License-Identifier: Apache-2.0
//! When to make a checkpoint, and TRIM.
//!
//! A replica reports TRIM(T) only when everything below T is in a checkpoint that survives a power
//! failure; acceptors forget what g+1 replicas have reported. [T-CHECKPOINT]

use paxos::{Instance, Time};

pub(crate) struct Checkpoints {
    every: u64,
    interval: Time,
    trim_interval: Time,
    /// Keeps the replicas from stopping for their checkpoints all at once.
    offset: u64,
    /// Everything below is durable.
    durable: Instance,
    /// Everything below will be, once the checkpoint that is under way has ended.
    begun: Option<Instance>,
    /// When the last one was made.
    made: Time,
    /// When TRIM is to be sent again.
    trim_due: Time,
}

impl Checkpoints {
    /// `durable` is what the application holds at the start.
    pub fn new(
        every: u64,
        interval: Time,
        trim_interval: Time,
        durable: Instance,
        now: Time,
    ) -> Checkpoints {
        Checkpoints {
            every: every.max(1),
            interval,
            trim_interval,
            offset: 0,
            durable,
            begun: None,
            made: now,
            trim_due: now,
        }
    }

    /// Spreads the replicas' checkpoints: this is replica `index` of `replicas`.
    pub fn stagger(&mut self, index: usize, replicas: usize) {
        self.offset = self.every * index as u64 / replicas.max(1) as u64;
    }

    pub fn durable(&self) -> Instance {
        self.durable
    }

    pub fn is_due(&self, now: Time, committed: Instance) -> bool {
        let mark = |inst: Instance| (inst + self.offset) / self.every;
        self.begun.is_none()
            && committed > self.durable
            && (mark(committed) > mark(self.durable)
                || now >= self.made.saturating_add(self.interval))
    }

    /// Notes that a checkpoint of everything below `committed` is under way.
    pub fn begin(&mut self, committed: Instance) {
        self.begun = Some(committed);
    }

    pub fn is_under_way(&self) -> bool {
        self.begun.is_some()
    }

    /// What the one under way covers.
    pub fn begun(&self) -> Option<Instance> {
        self.begun
    }

    /// Notes that the one under way has ended well.
    pub fn end(&mut self, now: Time) {
        if let Some(committed) = self.begun.take() {
            self.made(now, committed);
        }
    }

    /// Notes that everything below `committed` is durable.
    pub fn made(&mut self, now: Time, committed: Instance) {
        self.durable = committed;
        self.made = now;
        self.trim_due = now;
    }

    /// The TRIM that is to be sent now, if any. It may say that nothing is durable yet, so that
    /// acceptors learn that what an earlier disk held is gone.
    pub fn trim(&mut self, now: Time) -> Option<Instance> {
        if now < self.trim_due {
            return None;
        }
        self.trim_due = now.saturating_add(self.trim_interval);
        Some(self.durable)
    }

    /// When to ask again, as time alone may change the answer of [`Checkpoints::is_due`], or of
    /// [`Checkpoints::trim`] if this replica `reports`.
    pub fn next_deadline(&self, committed: Instance, reports: bool) -> Option<Time> {
        let trim = reports.then_some(self.trim_due);
        let waits = self.begun.is_none() && committed > self.durable;
        let made = waits.then(|| self.made.saturating_add(self.interval));
        trim.into_iter().chain(made).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_due_by_count_or_by_time_but_never_for_nothing() {
        let mut c = Checkpoints::new(100, 1_000, 50, 0, 0);
        assert!(!c.is_due(99_999, 0));
        assert!(!c.is_due(999, 99));
        assert!(c.is_due(0, 100), "by count");
        assert!(c.is_due(1_000, 1), "by time");
        c.made(0, 100);
        assert!(!c.is_due(0, 199));
        c.stagger(1, 2);
        assert!(c.is_due(0, 150), "the second replica, half a turn earlier");
    }

    /// [T-CHECKPOINT]
    #[test]
    fn one_checkpoint_is_under_way_at_a_time() {
        let mut c = Checkpoints::new(100, 1_000, 50, 0, 0);
        c.begin(100);
        assert_eq!(c.durable(), 0);
        assert_eq!(c.trim(5), Some(0), "not before it has ended");
        assert!(!c.is_due(2_000, 300));
        assert_eq!(c.next_deadline(300, false), None, "its end will be told");
        c.end(2_000);
        assert_eq!(c.trim(2_000), Some(100), "what was committed when it began");
        assert!(c.is_due(2_000, 300));
    }

    /// [T-CHECKPOINT]
    #[test]
    fn trim_is_sent_at_once_and_again() {
        let mut c = Checkpoints::new(100, 1_000, 50, 0, 0);
        assert_eq!(c.trim(0), Some(0), "nothing is durable");
        c.made(10, 100);
        assert_eq!(c.trim(10), Some(100));
        assert_eq!(c.trim(59), None);
        assert_eq!(c.trim(60), Some(100));
    }
}
