// SPDX-License-Identifier: Apache-2.0
//! Judges by the reports of a front end how far the group's time differs from the nodes' time.

/// If the group's time differs from the nodes' time by more than this, the difference is shown.
const OFF_MS: u64 = 2_000;
/// A difference is shown once so many reports in a row have found one. After a restart of all
/// replicas the group's time stands where it stood until most of them have reported, so the first
/// ones find it behind for a moment.
const LASTING: u32 = 5;

/// What a report has found.
pub(super) struct Finding {
    /// The time that was reported.
    pub reported_ms: u64,
    /// The group's time, as far as this replica has executed the log.
    pub group_ms: u64,
    /// The latest time that any front end has stated, as far as this replica has executed the log.
    pub newest_ms: u64,
    /// The time that most nodes have now.
    pub now_ms: u64,
}

/// The difference that a partition's reports have found.
#[derive(Default)]
pub(super) struct ClockDifference {
    /// The nodes' time minus the group's, as it was found last; 0 if the two are about equal.
    off_ms: i64,
    /// How many reports in a row have found a difference.
    in_a_row: u32,
}

impl ClockDifference {
    /// Takes what an answered report has found. Another replica may have answered it while this one
    /// still catches up; what this one has of the group's time is old then, and says nothing.
    pub fn note(&mut self, found: &Finding) {
        if found.newest_ms < found.reported_ms {
            return;
        }
        self.off_ms = found.off_ms();
        self.in_a_row = match self.off_ms {
            0 => 0,
            _ => self.in_a_row.saturating_add(1),
        };
    }

    /// Returns the nodes' time minus the group's, or 0 if they are about equal or differ only since
    /// a moment ago.
    pub fn shown_ms(&self) -> i64 {
        match self.in_a_row >= LASTING {
            true => self.off_ms,
            false => 0,
        }
    }
}

impl Finding {
    /// Returns the difference after the report was executed. The group is behind if its time is
    /// still less than the reported one, and ahead if it exceeds the nodes' time now; so the
    /// report's travel time makes no difference.
    fn off_ms(&self) -> i64 {
        let behind = self.reported_ms.saturating_sub(self.group_ms);
        let ahead = self.group_ms.saturating_sub(self.now_ms);
        match (self.group_ms, behind, ahead) {
            (0, ..) => 0,
            (_, behind, _) if behind > OFF_MS => behind as i64,
            (_, _, ahead) if ahead > OFF_MS => -(ahead as i64),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: u64 = 1_795_467_197_000;

    /// Returns what a report at noon finds that this replica has executed.
    fn found(group_ms: u64, now_ms: u64) -> Finding {
        Finding {
            reported_ms: NOON,
            group_ms,
            newest_ms: NOON,
            now_ms,
        }
    }

    /// No clock was touched: the replica was down, and others answer its reports while it executes
    /// what it has missed.
    #[test]
    fn a_replica_that_catches_up_says_nothing_of_the_time() {
        let mut difference = ClockDifference::default();
        for missed_ms in (1..=100).rev().map(|seconds| seconds * 1_000) {
            difference.note(&Finding {
                newest_ms: NOON - missed_ms,
                ..found(NOON - missed_ms, NOON)
            });
            assert_eq!(difference.shown_ms(), 0, "{missed_ms}");
        }
        difference.note(&found(NOON, NOON + 5));
        assert_eq!(difference.shown_ms(), 0);
    }

    /// All replicas were down for an hour, and the first one has reported alone since.
    #[test]
    fn the_others_are_waited_for_after_a_restart_of_all() {
        let mut difference = ClockDifference::default();
        for _ in 1..LASTING {
            difference.note(&found(NOON - 3_600_000, NOON));
            assert_eq!(difference.shown_ms(), 0);
        }
        difference.note(&found(NOON, NOON));
        difference.note(&found(NOON - 3_600_000, NOON));
        assert_eq!(difference.shown_ms(), 0, "one report isn't many in a row");
    }

    #[test]
    fn a_difference_that_lasts_is_shown_until_it_is_over() {
        for off_ms in [2_001, 3_600_000, -2_001, -3_600_000] {
            let mut difference = ClockDifference::default();
            for _ in 0..LASTING {
                difference.note(&found(NOON.saturating_add_signed(-off_ms), NOON));
            }
            assert_eq!(difference.shown_ms(), off_ms);
            difference.note(&found(NOON, NOON + 100));
            assert_eq!(difference.shown_ms(), 0);
        }
        let mut none = ClockDifference::default();
        for group_ms in [0, NOON - 2_000, NOON, NOON + 2_000] {
            (0..LASTING).for_each(|_| none.note(&found(group_ms, NOON)));
            assert_eq!(none.shown_ms(), 0, "{group_ms}");
        }
    }
}
