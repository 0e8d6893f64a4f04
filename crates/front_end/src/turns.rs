// SPDX-License-Identifier: Apache-2.0
//! Limits the work that is done for one client before the next one's turn. A single thread serves
//! all clients, so all others wait while it works for one.
//!
//! The code that does the work counts it in steps. A step takes roughly a tenth of a microsecond.

use std::cell::Cell;

/// A turn has this many steps, which take half a millisecond.
const STEPS: usize = 5_000;
/// No turn may take more steps than this, or 50 ms, whatever a client asks for.
#[cfg(test)]
pub(crate) const MOST_STEPS: usize = 500_000;
/// The steps that it takes to find a name in a table, and to change the table there.
pub(crate) const LOOK_UP: usize = 10;
/// The number of arguments that are looked at in a step.
const ARGUMENTS: usize = 2;
/// The number of bytes that are copied in a step.
const BYTES: usize = 1 << 10;

/// The steps that were spent in the current turn, and in the longest one.
#[derive(Default)]
pub(crate) struct Turn {
    spent: Cell<usize>,
    longest: Cell<usize>,
}

impl Turn {
    /// Begins the next turn.
    pub fn begin(&self) {
        self.spent.set(0);
    }

    pub fn spend(&self, steps: usize) {
        let spent = self.spent.get() + steps;
        self.spent.set(spent);
        self.longest.set(self.longest.get().max(spent));
    }

    /// Counts the steps of looking at `many` arguments.
    pub fn arguments(&self, many: usize) {
        self.spend(1 + many / ARGUMENTS);
    }

    /// Counts the steps of copying `bytes` bytes.
    pub fn copy(&self, bytes: usize) {
        self.spend(1 + bytes / BYTES);
    }

    /// Returns how many steps are left.
    pub fn left(&self) -> usize {
        STEPS.saturating_sub(self.spent.get())
    }

    /// Returns true if the rest of the work must wait for the next turn.
    pub fn is_over(&self) -> bool {
        self.left() == 0
    }

    /// Returns the steps that were spent in this turn.
    #[cfg(test)]
    pub fn spent(&self) -> usize {
        self.spent.get()
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
