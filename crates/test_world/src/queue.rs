// SPDX-License-Identifier: Apache-2.0
//! Virtual time: events in order of time, and of scheduling where times are equal.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use paxos::Time;

/// One microsecond of virtual time.
pub const MICROSECOND: Time = 1_000;
/// One millisecond of virtual time.
pub const MILLISECOND: Time = 1_000_000;
/// One second of virtual time.
pub const SECOND: Time = 1_000_000_000;

/// Events to come.
pub struct Queue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    now: Time,
    scheduled: u64,
}

struct Entry<E> {
    at: Time,
    order: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    #[inline]
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Queue {
            heap: BinaryHeap::new(),
            now: 0,
            scheduled: 0,
        }
    }
}

impl<E> Queue<E> {
    /// Returns the time of the event that was taken last.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Schedules an event at `at`, or now if that has passed.
    pub fn at(&mut self, at: Time, event: E) {
        self.scheduled += 1;
        self.heap.push(Reverse(Entry {
            at: at.max(self.now),
            order: self.scheduled,
            event,
        }));
    }

    /// Schedules an event `delay` from now.
    pub fn after(&mut self, delay: Time, event: E) {
        self.at(self.now.saturating_add(delay), event);
    }

    /// Takes the next event and advances the time to it, if it lies at or before `until`.
    pub fn next_until(&mut self, until: Time) -> Option<E> {
        if self.heap.peek()?.0.at > until {
            return None;
        }
        let Reverse(entry) = self.heap.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }

    /// Lets time pass where nothing happens.
    pub fn advance(&mut self, to: Time) {
        debug_assert!(self.heap.peek().is_none_or(|e| e.0.at >= to));
        self.now = self.now.max(to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_by_order_of_scheduling() {
        let mut queue = Queue::default();
        queue.at(20, 'c');
        queue.at(10, 'a');
        queue.at(20, 'd');
        queue.at(10, 'b');
        queue.at(99, 'z');
        let mut got = String::new();
        while let Some(event) = queue.next_until(50) {
            got.push(event);
        }
        assert_eq!(got, "abcd");
        assert_eq!(queue.now(), 20);
        queue.at(5, 'e');
        assert_eq!(queue.next_until(50), Some('e'), "the past is now");
        queue.advance(60);
        assert_eq!(queue.now(), 60);
    }
}
