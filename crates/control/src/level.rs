// SPDX-License-Identifier: Apache-2.0
//! The format level of a cluster: one number for all formats that outlive a process or leave it.
//!
//! A cluster begins at level 1. The list of changes by command carries the level, so each node has
//! it on its disk. A program names the levels that it reads and writes, and does nothing that its
//! cluster's level doesn't have yet. [E-LEVEL]

use serde::{Deserialize, Serialize};
use std::fmt;

use crate::MemberChange;

/// A format level.
pub type Level = u32;

/// The level at which every cluster begins.
pub const FIRST: Level = 1;

/// The levels that a program reads and writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Levels {
    /// The first of them.
    pub oldest: Level,
    /// The last of them.
    pub newest: Level,
}

/// A program that names no levels has the first one only.
impl Default for Levels {
    fn default() -> Levels {
        Levels {
            oldest: FIRST,
            newest: FIRST,
        }
    }
}

impl Levels {
    /// Returns whether the program reads and writes this level.
    pub fn have(self, level: Level) -> bool {
        (self.oldest..=self.newest).contains(&level)
    }
}

impl fmt::Display for Levels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.oldest == self.newest {
            true => write!(f, "{}", self.newest),
            false => write!(f, "{} to {}", self.oldest, self.newest),
        }
    }
}

/// Returns the level of a cluster with these changes, oldest first.
pub fn of(changes: &[MemberChange]) -> Level {
    let levels = changes.iter().rev().find_map(|change| match change {
        MemberChange::SetLevel { level } => Some(*level),
        _ => None,
    });
    levels.unwrap_or(FIRST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_change_of_the_level_counts() {
        assert_eq!(of(&[]), FIRST);
        let up = MemberChange::SetLevel { level: 2 };
        let f = MemberChange::SetF { group: 0, f: 2 };
        assert_eq!(of(&[up.clone(), f.clone()]), 2);
        assert_eq!(of(&[up, f, MemberChange::SetLevel { level: 1 }]), 1);
    }

    #[test]
    fn a_program_has_the_levels_from_its_oldest_to_its_newest() {
        let levels = Levels {
            oldest: 2,
            newest: 3,
        };
        let had: Vec<Level> = (1..=4).filter(|level| levels.have(*level)).collect();
        assert_eq!((had, levels.to_string().as_str()), (vec![2, 3], "2 to 3"));
    }
}
