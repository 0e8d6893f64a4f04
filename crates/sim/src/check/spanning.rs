// SPDX-License-Identifier: Apache-2.0
//! Checks invariant 5: a command over several partitions takes effect in all of them or in none,
//! with the words that it saw in all.

use std::collections::BTreeMap;

use paxos::PartitionId;

use crate::application::Spanning;

/// The harness's knowledge of one such command.
#[derive(Debug)]
pub struct Record {
    command: Spanning,
    /// The words that the command makes of those of all its keys, and its answer; known since its
    /// first execution.
    comes_to: Option<(Vec<u64>, u64)>,
    /// For each key the command's position in the history of that partition.
    executed: Vec<Option<u64>>,
    /// For each key what was stored, if partitions show only what they have stored.
    stored: Vec<Option<Stored>>,
    /// A partition has stored its part behind what was given up, by the outcome that a sibling has
    /// on record. What came before it when that outcome was found may be given up.
    is_completed: bool,
}

/// The words and the answer that a partition has stored.
#[derive(Clone, Copy, Debug)]
struct Stored {
    before: u64,
    after: u64,
    answer: u64,
}

/// All such commands, by number.
pub type Records = BTreeMap<u64, Record>;

impl Record {
    pub fn new(command: Spanning) -> Record {
        Record {
            executed: vec![None; command.keys.len()],
            stored: vec![None; command.keys.len()],
            comes_to: None,
            is_completed: false,
            command,
        }
    }

    fn index(&self, pid: PartitionId) -> Option<usize> {
        self.command.keys.iter().position(|(of, _)| *of == pid)
    }

    /// Returns the key of a partition, the word that the command leaves there, and its answer. All
    /// partitions are right before the command when it is first executed, so `word` is then asked
    /// for their words.
    pub fn part(
        &mut self,
        pid: PartitionId,
        word: impl Fn(PartitionId, u64) -> u64,
    ) -> Option<(u64, u64, u64)> {
        let at = self.index(pid)?;
        let (_, key) = self.command.keys[at];
        if let Some(stored) = self.stored[at] {
            return Some((key, stored.after, stored.answer));
        }
        let command = &self.command;
        let (after, answer) = self.comes_to.get_or_insert_with(|| {
            let words = command.keys.iter().map(|(pid, key)| word(*pid, *key));
            command.span.apply(&words.collect::<Vec<u64>>())
        });
        Some((key, after[at], *answer))
    }

    /// Notes what a partition has stored, if partitions show only that. The parts are compared once
    /// all are there, since one may show its part before another one shows what precedes its own;
    /// returns false if this part, or all of them, can't be right.
    pub fn stores(
        &mut self,
        pid: PartitionId,
        (key, after): (u64, u64),
        answer: u64,
        word: impl Fn(PartitionId, u64) -> u64,
    ) -> bool {
        let at = self.index(pid).filter(|at| self.command.keys[*at].1 == key);
        let Some(at) = at else {
            return false;
        };
        self.stored[at] = Some(Stored {
            before: word(pid, key),
            after,
            answer,
        });
        let Some(all) = self.stored.iter().copied().collect::<Option<Vec<Stored>>>() else {
            return true;
        };
        if self.is_completed {
            return all.iter().all(|part| part.answer == answer);
        }
        let before: Vec<u64> = all.iter().map(|part| part.before).collect();
        let (words, answer) = self.command.span.apply(&before);
        let fits = |(part, after): (&Stored, &u64)| (part.after, part.answer) == (*after, answer);
        all.iter().zip(&words).all(fits)
    }

    /// Notes that a partition that continues after what was given up takes its part now.
    pub fn completes(&mut self) {
        self.is_completed = true;
    }

    /// Notes again what a partition has stored, if that isn't given up.
    pub fn stored_again(&mut self, pid: PartitionId, (before, after): (u64, u64), answer: u64) {
        if let Some(at) = self.index(pid) {
            self.stored[at] = Some(Stored {
                before,
                after,
                answer,
            });
        }
    }

    /// Notes the command's position in a partition, and returns what was noted before.
    pub fn executed(&mut self, pid: PartitionId, position: u64) -> Option<u64> {
        let at = self.index(pid)?;
        self.executed[at].replace(position)
    }

    /// Returns the command's position in a partition, if the command is over that partition.
    pub fn position(&self, pid: PartitionId) -> Option<Option<u64>> {
        self.index(pid).map(|at| self.executed[at])
    }

    /// Notes that an operator has given up the command's effect in a partition.
    pub fn undone(&mut self, pid: PartitionId) {
        if let Some(at) = self.index(pid) {
            self.executed[at] = None;
            self.stored[at] = None;
        }
    }

    /// Forgets the result if no effect is left, since the command may have another result later.
    pub fn forget_if_undone(&mut self) {
        if self.executed.iter().all(Option::is_none) {
            self.comes_to = None;
        }
    }

    /// Returns how many partitions have executed the command, and how many it is over, if it has
    /// been executed in only some of them.
    pub fn half(&self) -> Option<(usize, usize)> {
        let done = self.executed.iter().flatten().count();
        let all = self.executed.len();
        (done > 0 && done < all).then_some((done, all))
    }
}
