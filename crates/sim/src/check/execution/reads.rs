// SPDX-License-Identifier: Apache-2.0
//! Checks invariant 7 for reads without the log: the order of the log, with each read after the
//! commands that it shows, agrees with what all clients saw.

use paxos::{PartitionId, Time};

use super::{Done, Executions, Findings, Invariant, redo};
use crate::application::Look;
use crate::linearizability::Op;

/// A read as its client saw it.
#[derive(Clone, Debug)]
pub struct Read {
    /// The partitions and keys that are read.
    pub keys: Vec<(PartitionId, u64)>,
    /// The time when the read was submitted.
    pub call: Time,
    /// The time when all of it was answered.
    pub answer: Option<Time>,
    /// The result in each partition.
    pub shown: Vec<(PartitionId, Look)>,
    /// The command that the client sends after the read on the same connection, which the read must
    /// not show.
    pub behind: Op,
}

impl Executions {
    /// Checks all reads at the end; `when` returns when a command was submitted and answered.
    pub fn check_reads(
        &mut self,
        reads: &[Read],
        when: impl Fn(u64) -> (Time, Option<Time>),
        findings: &mut Findings,
    ) {
        // Commands that were given up had an effect for a while, and then none.
        if self.has_given_up() {
            return;
        }
        for (number, read) in reads.iter().enumerate() {
            let flaw = self
                .flaw_of_read(read, &when)
                .or_else(|| goes_back(read, reads));
            if let Some(flaw) = flaw.filter(|_| read.answer.is_some()) {
                findings.report(Invariant::Linearizable, || {
                    format!("read {number}, {read:?}, {flaw}")
                });
            }
        }
    }

    fn flaw_of_read(
        &mut self,
        read: &Read,
        when: &impl Fn(u64) -> (Time, Option<Time>),
    ) -> Option<String> {
        let mut since = read.call;
        for (pid, look) in &read.shown {
            let Some(seen) = self.history(*pid).get(..look.position as usize) else {
                return Some("shows more than was executed".into());
            };
            for done in seen {
                since = since.max(when(done.id).0);
                if self.commands[done.id as usize].info.op == read.behind {
                    return Some(format!("shows command {}, sent behind it", done.id));
                }
            }
        }
        if read.answer.is_some_and(|answer| answer < since) {
            return Some("shows what was sent after its answer".into());
        }
        for ((pid, look), (_, key)) in read.shown.iter().zip(&read.keys) {
            let unseen = &self.history(*pid)[look.position as usize..];
            let told = |done: &&Done| when(done.id).1.is_some_and(|told| told < since);
            if let Some(done) = unseen.iter().find(told) {
                return Some(format!(
                    "lacks command {} of partition {pid}, which was answered before",
                    done.id
                ));
            }
            let word = self.word_behind(*pid, look.position, *key);
            if word != look.word {
                return Some(format!("shows {:x} where {word:x} is", look.word));
            }
        }
        None
    }

    fn history(&self, pid: PartitionId) -> &[Done] {
        &self.logs[pid as usize].history
    }

    /// Returns a key's word after this many commands.
    fn word_behind(&mut self, pid: PartitionId, executed: u64, key: u64) -> u64 {
        let mut words = Default::default();
        for done in &self.logs[pid as usize].history[..executed as usize] {
            redo(&mut words, done, &self.commands);
        }
        words.get(&key).copied().unwrap_or(0)
    }
}

/// Returns why a read is wrong, if another one has shown more before this one was submitted.
fn goes_back(read: &Read, all: &[Read]) -> Option<String> {
    let before = |other: &&Read| other.answer.is_some_and(|answer| answer < read.call);
    let further = |other: &Read| {
        let of = |pid| other.shown.iter().find(move |(p, _)| *p == pid);
        let mut own = read.shown.iter();
        own.any(|(pid, look)| of(*pid).is_some_and(|(_, shown)| shown.position > look.position))
    };
    let other = all.iter().filter(before).find(|other| further(other))?;
    Some(format!("shows less than {other:?} before it"))
}
