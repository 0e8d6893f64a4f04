// SPDX-License-Identifier: Apache-2.0
//! Decided values that came before their turn.

use crate::agreement::Decided;
use paxos::{Flags, Instance};
use std::ops::Range;

struct WaitingValue {
    /// True if a value waits in this slot.
    full: bool,
    inst: Instance,
    flags: Flags,
    client: u64,
    request: u64,
    value: Vec<u8>,
}

/// A ring of values by instance. The caller inserts only values within one ring length of the next
/// instance, so two waiting values never share a slot.
pub(crate) struct Ring {
    slots: Vec<WaitingValue>,
    waiting: usize,
}

impl Ring {
    pub fn new(length: usize) -> Ring {
        let empty = || WaitingValue {
            full: false,
            inst: 0,
            flags: Flags::NONE,
            client: 0,
            request: 0,
            value: Vec::new(),
        };
        Ring {
            slots: std::iter::repeat_with(empty).take(length).collect(),
            waiting: 0,
        }
    }

    pub fn len(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Returns the number of waiting values.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    pub fn holds(&self, inst: Instance) -> bool {
        // Values usually come in order, so that none waits.
        if self.waiting == 0 {
            return false;
        }
        let slot = &self.slots[self.index(inst)];
        slot.full && slot.inst == inst
    }

    /// Keeps a copy of a value; returns false if it was there before.
    pub fn insert(&mut self, decided: &Decided<'_>) -> bool {
        if self.holds(decided.inst) {
            return false;
        }
        let index = self.index(decided.inst);
        let slot = &mut self.slots[index];
        debug_assert!(!slot.full, "a value within the window has its own slot");
        slot.full = true;
        slot.inst = decided.inst;
        slot.flags = decided.flags;
        slot.client = decided.client;
        slot.request = decided.request;
        slot.value.clear();
        slot.value.extend_from_slice(decided.value);
        self.waiting += 1;
        true
    }

    /// Returns the value of an instance, if it waits here.
    pub fn get(&self, inst: Instance) -> Option<Decided<'_>> {
        if !self.holds(inst) {
            return None;
        }
        let slot = &self.slots[self.index(inst)];
        Some(Decided {
            inst,
            flags: slot.flags,
            client: slot.client,
            request: slot.request,
            value: &slot.value,
        })
    }

    /// Forgets the values of these instances; their memory is used again.
    pub fn forget(&mut self, instances: &Range<Instance>) {
        if self.waiting == 0 {
            return;
        }
        if instances.end.saturating_sub(instances.start) >= self.len() {
            let slots = self.slots.iter_mut();
            for slot in slots.filter(|slot| slot.full && instances.contains(&slot.inst)) {
                slot.full = false;
                self.waiting -= 1;
            }
            return;
        }
        for inst in instances.clone() {
            if self.holds(inst) {
                let index = self.index(inst);
                self.slots[index].full = false;
                self.waiting -= 1;
            }
        }
    }

    fn index(&self, inst: Instance) -> usize {
        (inst % self.slots.len() as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(inst: Instance, value: &[u8]) -> Decided<'_> {
        Decided {
            inst,
            flags: Flags::NONE,
            client: 1,
            request: 1,
            value,
        }
    }

    /// The ring returns each value once, and only for its own instance. [X-ORDER]
    #[test]
    fn values_come_out_once_and_only_under_their_own_number() {
        let mut ring = Ring::new(4);
        assert!(ring.insert(&value(5, b"five")));
        assert!(!ring.insert(&value(5, b"again")));
        assert!(ring.get(1).is_none(), "1 shares the slot of 5");
        assert_eq!(ring.get(5).unwrap().value, b"five");
        ring.forget(&(5..6));
        assert!(ring.get(5).is_none());
        assert_eq!(ring.waiting(), 0);
    }

    #[test]
    fn a_jump_keeps_what_lies_ahead() {
        let mut ring = Ring::new(4);
        ring.insert(&value(1, b""));
        ring.insert(&value(3, b""));
        for passed in [0..2, 0..3] {
            ring.forget(&passed);
            assert_eq!(ring.waiting(), 1);
            assert!(!ring.holds(1) && ring.holds(3));
        }
        ring.forget(&(0..1 << 40));
        assert_eq!(ring.waiting(), 0);
    }
}
