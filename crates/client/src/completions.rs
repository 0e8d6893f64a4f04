// SPDX-License-Identifier: Apache-2.0
//! Answers that have arrived and wait for their caller, in memory that is reused.

use std::collections::VecDeque;

use paxos::PartitionId;
use replica::protocol::Status;

use crate::outcome::Outcome;

/// The answer to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion<'a> {
    /// The partition of the request.
    pub pid: PartitionId,
    /// The number that [`Client::submit`](crate::Client::submit) returned.
    pub request: u64,
    /// The status in the replicas' answer; [`outcome`](Self::outcome) interprets it.
    pub status: Status,
    /// The application's answer.
    pub bytes: &'a [u8],
    /// The request is of an ordered session.
    pub(crate) ordered: bool,
}

impl<'a> Completion<'a> {
    /// Returns the outcome of the request.
    pub fn outcome(&self) -> Outcome<&'a [u8]> {
        Outcome::of_answer(self.status, self.ordered, self.bytes)
    }
}

/// At least this many bytes of taken answers are left in place before the others are moved.
const COMPACT_FROM: usize = 64 << 10;

/// The queue of answers. The bytes of all answers are stored back to back, since an allocation for
/// each would cost more than everything else that is done for it.
#[derive(Default)]
pub(crate) struct Completions {
    queue: VecDeque<Entry>,
    bytes: Vec<u8>,
    /// How many of the bytes belong to answers that are still in the queue.
    live: usize,
}

struct Entry {
    pid: PartitionId,
    request: u64,
    status: Status,
    ordered: bool,
    start: usize,
    len: usize,
}

impl Completions {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn push(&mut self, completion: Completion<'_>) {
        self.make_room();
        self.live += completion.bytes.len();
        self.queue.push_back(Entry {
            pid: completion.pid,
            request: completion.request,
            status: completion.status,
            ordered: completion.ordered,
            start: self.bytes.len(),
            len: completion.bytes.len(),
        });
        self.bytes.extend_from_slice(completion.bytes);
    }

    /// Returns the oldest answer.
    pub fn pop(&mut self) -> Option<Completion<'_>> {
        let entry = self.queue.pop_front()?;
        Some(self.taken(entry))
    }

    /// Returns the answer to this request.
    pub fn take(&mut self, pid: PartitionId, request: u64) -> Option<Completion<'_>> {
        let is_it = |entry: &Entry| (entry.pid, entry.request) == (pid, request);
        let at = self.queue.iter().position(is_it)?;
        let entry = self.queue.remove(at)?;
        Some(self.taken(entry))
    }

    fn taken(&mut self, entry: Entry) -> Completion<'_> {
        self.live -= entry.len;
        Completion {
            pid: entry.pid,
            request: entry.request,
            status: entry.status,
            ordered: entry.ordered,
            bytes: &self.bytes[entry.start..entry.start + entry.len],
        }
    }

    /// Frees the bytes of taken answers once they are most of the buffer.
    fn make_room(&mut self) {
        if self.queue.is_empty() {
            self.bytes.clear();
        } else if self.bytes.len() > COMPACT_FROM + 2 * self.live {
            let mut kept = Vec::with_capacity(self.live);
            for entry in &mut self.queue {
                let start = kept.len();
                kept.extend_from_slice(&self.bytes[entry.start..entry.start + entry.len]);
                entry.start = start;
            }
            self.bytes = kept;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(request: u64, bytes: &[u8]) -> Completion<'_> {
        Completion {
            pid: 0,
            request,
            status: Status::Ok,
            bytes,
            ordered: false,
        }
    }

    #[test]
    fn answers_come_in_order_or_by_request() {
        let mut completions = Completions::default();
        for request in 1..=3 {
            completions.push(completion(request, &[request as u8; 10]));
        }
        assert_eq!(completions.take(0, 2), Some(completion(2, &[2; 10])));
        assert_eq!(completions.take(0, 2), None);
        assert_eq!(completions.take(1, 3), None);
        assert_eq!(completions.pop(), Some(completion(1, &[1; 10])));
        assert_eq!(completions.pop(), Some(completion(3, &[3; 10])));
        assert_eq!(completions.pop(), None);
    }

    #[test]
    fn one_that_is_never_taken_keeps_no_others_in_memory() {
        let mut completions = Completions::default();
        completions.push(completion(1, b"waits"));
        for request in 2..10_000 {
            completions.push(completion(request, &[request as u8; 1_000]));
            let taken = completions.take(0, request);
            assert_eq!(taken, Some(completion(request, &[request as u8; 1_000])));
        }
        assert!(completions.bytes.capacity() < 4 * COMPACT_FROM);
        assert_eq!(completions.pop(), Some(completion(1, b"waits")));
    }
}
