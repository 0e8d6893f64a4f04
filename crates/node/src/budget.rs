// SPDX-License-Identifier: Apache-2.0
//! Limits the work that anybody may cause, both at once and per second.

use std::time::Instant;

/// An allowance that refills over time.
pub struct Budget {
    most: f64,
    per_second: f64,
    left: f64,
    filled: Option<Instant>,
}

impl Budget {
    /// Returns a full budget.
    pub fn new(most: u32, per_second: u32) -> Budget {
        Budget {
            most: most.into(),
            per_second: per_second.into(),
            left: most.into(),
            filled: None,
        }
    }

    /// Takes one unit and returns true, if one is left.
    pub fn take(&mut self, now: Instant) -> bool {
        let since = self.filled.replace(now).unwrap_or(now);
        let passed = now.saturating_duration_since(since).as_secs_f64();
        self.left = (self.left + passed * self.per_second).min(self.most);
        let takes = self.left >= 1.0;
        if takes {
            self.left -= 1.0;
        }
        takes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn so_much_at_once_and_so_much_a_second() {
        let mut budget = Budget::new(5, 2);
        let begun = Instant::now();
        let taken = |budget: &mut Budget, after| {
            let now = begun + Duration::from_millis(after);
            (0..100).filter(|_| budget.take(now)).count()
        };
        assert_eq!(taken(&mut budget, 0), 5);
        assert_eq!(taken(&mut budget, 400), 0);
        assert_eq!(taken(&mut budget, 1_100), 2);
        assert_eq!(taken(&mut budget, 1_000), 0, "a clock never goes back here");
        assert_eq!(taken(&mut budget, 60_000), 5);
    }
}
