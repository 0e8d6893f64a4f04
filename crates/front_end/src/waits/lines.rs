// SPDX-License-Identifier: Apache-2.0
//! The queues ("lines") of waiting commands that take something from keys, one line for each key. A
//! waiting command, here called a question, stands in the line of each of its keys, and it is tried
//! when it is first in all of them. So of two questions with a common key the older one is tried
//! first, and never both at once.

use std::collections::{BTreeSet, HashMap};

/// A place in a line: the position of the client that has waited longest, and the question's id.
type LinePosition = (u64, u64);

/// The position of a question that is being tried. It is lower than all others, so no other
/// question can get before it.
const HELD: u64 = 0;

#[derive(Default)]
pub(crate) struct Lines {
    of_keys: HashMap<Vec<u8>, BTreeSet<LinePosition>>,
    standing: HashMap<u64, Standing>,
    /// The questions that are first in all of their lines and aren't being tried yet.
    ready: BTreeSet<LinePosition>,
    /// The number of places looked up since the last call of [`take_steps`](Self::take_steps).
    steps: usize,
}

struct Standing {
    position: u64,
    keys: usize,
    /// The number of keys in whose lines the question is first.
    firsts: usize,
}

impl Lines {
    /// Puts a question into the lines of its keys, each of which is named once. Positions begin at
    /// 1.
    pub fn enter(&mut self, id: u64, position: u64, keys: &[Vec<u8>]) {
        self.standing.insert(
            id,
            Standing {
                position,
                keys: keys.len(),
                firsts: 0,
            },
        );
        for key in keys {
            self.steps += 1;
            let line = self.of_keys.entry(key.clone()).or_default();
            let before = line.first().copied();
            line.insert((position, id));
            if before.is_none_or(|first| (position, id) < first) {
                self.count(before, false);
                self.count(Some((position, id)), true);
            }
        }
    }

    /// Takes a question out of its lines.
    pub fn leave(&mut self, id: u64, keys: &[Vec<u8>]) {
        let Some(gone) = self.standing.remove(&id) else {
            return;
        };
        self.ready.remove(&(gone.position, id));
        for key in keys {
            self.steps += 1;
            let Some(line) = self.of_keys.get_mut(key) else {
                continue;
            };
            let was_first = line.first() == Some(&(gone.position, id));
            line.remove(&(gone.position, id));
            let next = line.first().copied();
            if line.is_empty() {
                self.of_keys.remove(key);
            }
            if was_first {
                self.count(next, true);
            }
        }
    }

    /// Counts that the question at `place` is first in one line more, if `is_first`, or in one line
    /// less.
    fn count(&mut self, place: Option<LinePosition>, is_first: bool) {
        let Some((position, id)) = place else { return };
        let Some(standing) = self.standing.get_mut(&id) else {
            return;
        };
        match is_first {
            true => standing.firsts += 1,
            false => standing.firsts -= 1,
        }
        let is_ready = standing.firsts == standing.keys && position != HELD;
        match is_ready {
            true => self.ready.insert((position, id)),
            false => self.ready.remove(&(position, id)),
        };
    }

    /// Takes the oldest question that is first in all of its lines. It keeps its places until it
    /// [leaves](Self::leave) them.
    pub fn take_ready(&mut self) -> Option<u64> {
        self.ready.pop_first().map(|(_, id)| id)
    }

    /// Moves a question that is being tried to the front of its lines, so that no other one gets
    /// before it.
    pub fn hold(&mut self, id: u64, keys: &[Vec<u8>]) {
        self.leave(id, keys);
        self.enter(id, HELD, keys);
    }

    pub fn is_in(&self, id: u64) -> bool {
        self.standing.contains_key(&id)
    }

    /// Returns the number of places looked up since the last call, which the turn must pay for.
    pub fn take_steps(&mut self) -> usize {
        std::mem::take(&mut self.steps)
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.of_keys.is_empty() && self.standing.is_empty() && self.ready.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(names: &str) -> Vec<Vec<u8>> {
        names.bytes().map(|name| vec![name]).collect()
    }

    #[test]
    fn a_question_has_its_turn_when_it_is_first_in_all_lines() {
        let mut lines = Lines::default();
        lines.enter(1, 7, &keys("ab"));
        lines.enter(2, 8, &keys("bc"));
        lines.enter(3, 9, &keys("c"));
        lines.enter(4, 9, &keys("d"));
        assert_eq!(lines.take_ready(), Some(1));
        lines.hold(1, &keys("ab"));
        assert_eq!(lines.take_ready(), Some(4));
        assert_eq!(lines.take_ready(), None, "2 waits for 1, and 3 for 2");
        // Nothing gets before a question that is being tried.
        lines.enter(5, 1, &keys("a"));
        assert_eq!(lines.take_ready(), None);
        lines.leave(1, &keys("ab"));
        assert_eq!((lines.take_ready(), lines.take_ready()), (Some(5), Some(2)));
        for (id, names) in [(2, "bc"), (4, "d"), (5, "a")] {
            lines.leave(id, &keys(names));
        }
        assert_eq!(lines.take_ready(), Some(3));
        lines.leave(3, &keys("c"));
        assert!(lines.is_empty() && !lines.is_in(3));
    }

    #[test]
    fn who_came_earlier_gets_before_who_is_ready() {
        let mut lines = Lines::default();
        lines.enter(1, 5, &keys("ab"));
        lines.enter(2, 4, &keys("bc"));
        assert_eq!((lines.take_ready(), lines.take_ready()), (Some(2), None));
        lines.leave(2, &keys("bc"));
        assert_eq!(lines.take_ready(), Some(1));
    }
}
