// SPDX-License-Identifier: Apache-2.0
//! Reads without the log: those of a connection that are under way, and those that leave for the workers together.

use std::collections::VecDeque;

use paxos::PartitionId;
use replica::AskedReads;

use crate::lane::Logged;
use crate::mailbox::Mailbox;
use crate::partitions::Partitions;

/// A connection's reads that are under way, in the order of the client.
#[derive(Default)]
pub(crate) struct Reading(VecDeque<(u64, Logged)>);

impl Reading {
    /// Where they read.
    pub fn reach(&self) -> Partitions {
        let mut all = Partitions::default();
        self.0.iter().for_each(|(_, l)| all.add(l.partitions));
        all
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One leaves under this number.
    pub fn push(&mut self, number: u64, logged: Logged) {
        self.0.push_back((number, logged));
    }

    /// The one that is answered.
    pub fn answered(&mut self, number: u64) -> Option<Logged> {
        let at = self.0.iter().position(|(n, _)| *n == number)?;
        self.0.remove(at).map(|(_, logged)| logged)
    }

    /// Nothing comes of one. It goes through the log, and so do those behind it in its partition: they were sent
    /// later, and must not show an older state.
    pub fn given_up(&mut self, number: u64) -> Vec<Logged> {
        let Some(at) = self.0.iter().position(|(n, _)| *n == number) else {
            return Vec::new();
        };
        let partitions = self.0[at].1.partitions;
        let behind = self.0.split_off(at).into_iter();
        let (gone, stay): (Vec<_>, Vec<_>) = behind.partition(|(_, l)| l.partitions == partitions);
        self.0.extend(stay);
        let gone = gone.into_iter().map(|(_, logged)| logged);
        gone.map(|logged| Logged {
            reads: false,
            ..logged
        })
        .collect()
    }

    /// Forgets all; returns how many bytes they had.
    pub fn clear(&mut self) -> usize {
        let all = std::mem::take(&mut self.0).into_iter();
        all.map(|(_, logged)| logged.bytes.len()).sum()
    }
}

/// Bits of a read's number that say which connection it is of.
const INDEX_BITS: u32 = 20;

/// Stands for the front end itself, which asks how many keys there are.
const OWN_INDEX: usize = (1 << INDEX_BITS) - 1;

/// Reads of all connections, until they leave.
pub(crate) struct ReadQueue {
    last: u64,
    /// By partition; those that aren't stale, and those that are.
    waiting: Vec<[AskedReads; 2]>,
    /// Whether there is somebody to ask.
    pub is_open: bool,
}

impl ReadQueue {
    pub fn new(partitions: u16) -> ReadQueue {
        ReadQueue {
            last: 0,
            waiting: vec![[false, true].map(AskedReads::new); partitions.into()],
            is_open: false,
        }
    }

    /// Takes a connection's command; returns the number of the read.
    pub fn push(&mut self, index: usize, pid: PartitionId, command: &[u8], stale: bool) -> u64 {
        self.last += 1;
        let number = self.last << INDEX_BITS | index as u64;
        self.waiting[usize::from(pid)][usize::from(stale)].push(number, command);
        number
    }

    /// Asks for the number of a partition's keys, as this replica has them; returns the number of the read.
    pub fn push_own(&mut self, pid: PartitionId, command: &[u8]) -> u64 {
        self.push(OWN_INDEX, pid, command, true)
    }

    /// Whose a number is; none if it is the front end's own.
    pub fn index_of(number: u64) -> Option<usize> {
        let index = (number & ((1 << INDEX_BITS) - 1)) as usize;
        (index != OWN_INDEX).then_some(index)
    }

    /// Whether there is somebody to ask now.
    pub fn look(&mut self, mailbox: &Mailbox) {
        self.is_open = mailbox.ask_reads().is_some();
    }

    /// Hands them over.
    pub fn send(&mut self, mailbox: &Mailbox) {
        let Some(ask) = mailbox.ask_reads() else {
            return;
        };
        for (pid, reads) in self.waiting.iter_mut().enumerate() {
            for of in reads.iter_mut().filter(|of| !of.is_empty()) {
                let none = AskedReads::new(of.stale);
                ask(pid as PartitionId, std::mem::replace(of, none));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(number: u64, pid: PartitionId) -> Logged {
        Logged {
            number,
            partitions: Partitions::one(pid),
            alone: false,
            reads: true,
            follows: false,
            once: None,
            bytes: vec![0; 3],
        }
    }

    /// [B-ALONE]
    #[test]
    fn what_was_sent_behind_a_read_that_is_given_up_goes_with_it() {
        let mut reading = Reading::default();
        for (number, pid) in [(10, 0), (11, 1), (12, 0), (13, 1), (14, 0)] {
            reading.push(number, logged(number, pid));
        }
        assert!(reading.answered(10).is_some());
        assert!(reading.given_up(10).is_empty(), "it was answered");
        let gone = reading.given_up(12);
        assert!(
            gone.iter()
                .map(|l| (l.number, l.reads))
                .eq([(12, false), (14, false)])
        );
        assert!(reading.answered(14).is_none(), "an answer that comes late");
        assert_eq!(reading.reach(), Partitions::one(1));
        assert_eq!(reading.clear(), 6);
        assert!(reading.is_empty());
    }

    #[test]
    fn a_number_names_its_connection() {
        let mut queue = ReadQueue::new(1);
        let numbers = [0, 7, 20_000].map(|index| queue.push(index, 0, &[], false));
        assert_eq!(numbers.map(ReadQueue::index_of), [0, 7, 20_000].map(Some));
        assert!(numbers[0] < numbers[1] && numbers[1] < numbers[2]);
        let own = queue.push_own(0, &[]);
        assert_eq!(ReadQueue::index_of(own), None);
    }
}
