// SPDX-License-Identifier: Apache-2.0
//! Reads that are answered without the log: those of each connection that have no answer yet, and
//! the queues in which the reads of all connections are handed to the workers.

use std::collections::VecDeque;

use paxos::PartitionId;
use replica::AskedReads;

use crate::log::lane::Logged;
use crate::mailbox::Mailbox;
use crate::partitions::Partitions;

/// A connection's reads that aren't answered yet, with their numbers, in the client's order.
#[derive(Default)]
pub(crate) struct Reading(VecDeque<(u64, Logged)>);

impl Reading {
    /// Returns the partitions that are read.
    pub fn reach(&self) -> Partitions {
        let mut all = Partitions::default();
        self.0.iter().for_each(|(_, l)| all.add(l.partitions));
        all
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a read that is asked for under this number.
    pub fn push(&mut self, number: u64, logged: Logged) {
        self.0.push_back((number, logged));
    }

    /// Removes and returns the read that is answered.
    pub fn answered(&mut self, number: u64) -> Option<Logged> {
        let at = self.0.iter().position(|(n, _)| *n == number)?;
        self.0.remove(at).map(|(_, logged)| logged)
    }

    /// Removes and returns a read that got no answer, and those behind it in its partition, so that
    /// all of them go through the log. The later ones were sent later and must not show an older
    /// state.
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

    /// Forgets all reads; returns how many bytes they had.
    pub fn clear(&mut self) -> usize {
        let all = std::mem::take(&mut self.0).into_iter();
        all.map(|(_, logged)| logged.bytes.len()).sum()
    }
}

/// The lowest bits of a read's number, which give the index of its connection.
const INDEX_BITS: u32 = 20;

/// The index that stands for the front end itself, which asks for the number of keys.
const OWN_INDEX: usize = (1 << INDEX_BITS) - 1;

/// The reads of all connections, until they are handed over.
pub(crate) struct ReadQueue {
    last: u64,
    /// The reads of each partition: first those that must not be stale, then those that may be.
    waiting: Vec<[AskedReads; 2]>,
    /// True if reads can be asked for.
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

    /// Asks for the number of a partition's keys, as this replica has them; returns the number of
    /// the read.
    pub fn push_own(&mut self, pid: PartitionId, command: &[u8]) -> u64 {
        self.push(OWN_INDEX, pid, command, true)
    }

    /// Returns the index of the connection that has a read, or nothing if the read is the front
    /// end's own.
    pub fn index_of(number: u64) -> Option<usize> {
        let index = (number & ((1 << INDEX_BITS) - 1)) as usize;
        (index != OWN_INDEX).then_some(index)
    }

    /// Notes whether the replica's workers take reads now.
    pub fn look(&mut self, mailbox: &Mailbox) {
        self.is_open = mailbox.ask_reads().is_some();
    }

    /// Hands all reads over to the workers.
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
        let partitions = Partitions::one(pid);
        Logged {
            reads: true,
            ..Logged::new(number, partitions, vec![0; 3])
        }
    }

    /// Reads behind a given-up one in the same partition go through the log, too. [B-ALONE]
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
