// SPDX-License-Identifier: Apache-2.0
//! How much is done for one client before it is the next one's turn. One thread serves all clients, so whatever is done at
//! once for one of them is what all others wait for.
//!
//! Work is counted in steps, by whoever does it. A step is a tenth of a microsecond, roughly.

use std::cell::Cell;

/// What a turn has: half a millisecond.
const STEPS: usize = 5_000;
/// No turn may take more, whatever is asked for: 50 ms.
#[cfg(test)]
pub(crate) const MOST_STEPS: usize = 500_000;
/// What it takes to find a name in a table, and to change that.
pub(crate) const LOOK_UP: usize = 10;
/// Arguments that are looked at in a step.
const ARGUMENTS: usize = 2;
/// Bytes that are copied in a step.
const BYTES: usize = 1 << 10;

/// A turn.
#[derive(Default)]
pub(crate) struct Turn {
    spent: Cell<usize>,
    longest: Cell<usize>,
}

impl Turn {
    /// It is somebody's turn now.
    pub fn begin(&self) {
        self.spent.set(0);
    }

    pub fn spend(&self, steps: usize) {
        let spent = self.spent.get() + steps;
        self.spent.set(spent);
        self.longest.set(self.longest.get().max(spent));
    }

    /// Spends what it takes to look at so many arguments.
    pub fn arguments(&self, many: usize) {
        self.spend(1 + many / ARGUMENTS);
    }

    /// Spends what it takes to copy so many bytes.
    pub fn copy(&self, bytes: usize) {
        self.spend(1 + bytes / BYTES);
    }

    /// Returns how many steps are left.
    pub fn left(&self) -> usize {
        STEPS.saturating_sub(self.spent.get())
    }

    /// Returns whether what is left to do is left for the next turn.
    pub fn is_over(&self) -> bool {
        self.left() == 0
    }

    /// Returns the steps of the longest turn so far.
    #[cfg(test)]
    pub fn longest(&self) -> usize {
        self.longest.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_ends_when_its_steps_are_spent() {
        let turn = Turn::default();
        turn.spend(STEPS - 1);
        assert!(!turn.is_over());
        turn.copy(3 * BYTES);
        assert!(turn.is_over() && turn.left() == 0);
        turn.begin();
        assert!(!turn.is_over() && turn.longest() == STEPS + 3);
    }
}
