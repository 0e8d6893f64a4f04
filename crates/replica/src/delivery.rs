// SPDX-License-Identifier: Apache-2.0
//! Decided values that came before their turn.

use paxos::{Flags, Instance};
use std::ops::Range;

/// A decided value.
#[derive(Clone, Copy)]
pub(crate) struct Decided<'a> {
    pub inst: Instance,
    pub flags: Flags,
    pub client: u64,
    pub request: u64,
    pub value: &'a [u8],
}

impl Decided<'_> {
    /// Whether it is a copy of a command over several partitions.
    pub fn is_copy(&self) -> bool {
        self.flags.has(Flags::MULTI) && !self.flags.has(Flags::NOOP)
    }
}

struct Slot {
    /// Whether a value waits here.
    full: bool,
    inst: Instance,
    flags: Flags,
    client: u64,
    request: u64,
    value: Vec<u8>,
}

/// A value that has come to its turn.
pub(crate) struct Taken {
    inst: Instance,
    flags: Flags,
    client: u64,
    request: u64,
    value: Vec<u8>,
}

impl Taken {
    pub fn decided(&self) -> Decided<'_> {
        Decided {
            inst: self.inst,
            flags: self.flags,
            client: self.client,
            request: self.request,
            value: &self.value,
        }
    }
}

/// A ring of values by instance. The caller keeps what it inserts within one ring length of the
/// next instance, so two waiting values never share a slot.
pub(crate) struct Ring {
    slots: Vec<Slot>,
    waiting: usize,
}

impl Ring {
    pub fn new(length: usize) -> Ring {
        let empty = || Slot {
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

    /// Values waiting.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    pub fn holds(&self, inst: Instance) -> bool {
        // As a rule values come in order, and none waits.
        if self.waiting == 0 {
            return false;
        }
        let slot = &self.slots[self.index(inst)];
        slot.full && slot.inst == inst
    }

    /// Keeps a copy. False if it was there before.
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

    /// Takes the value of `inst` out. [`Ring::put_back`] returns its memory.
    pub fn take(&mut self, inst: Instance) -> Option<Taken> {
        if self.waiting == 0 || !self.holds(inst) {
            return None;
        }
        let index = self.index(inst);
        let slot = &mut self.slots[index];
        slot.full = false;
        self.waiting -= 1;
        Some(Taken {
            inst,
            flags: slot.flags,
            client: slot.client,
            request: slot.request,
            value: std::mem::take(&mut slot.value),
        })
    }

    /// Puts a value back that has to wait.
    pub fn keep(&mut self, taken: Taken) {
        let index = self.index(taken.inst);
        let slot = &mut self.slots[index];
        slot.full = true;
        slot.value = taken.value;
        self.waiting += 1;
    }

    /// Returns the memory of a value to its slot.
    pub fn put_back(&mut self, taken: Taken) {
        let index = self.index(taken.inst);
        self.slots[index].value = taken.value;
    }

    /// Forgets the values of these instances.
    pub fn forget(&mut self, instances: &Range<Instance>) {
        for slot in &mut self.slots {
            if slot.full && instances.contains(&slot.inst) {
                slot.full = false;
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

    /// [X-ORDER]
    #[test]
    fn values_come_out_once_and_only_under_their_own_number() {
        let mut ring = Ring::new(4);
        assert!(ring.insert(&value(5, b"five")));
        assert!(!ring.insert(&value(5, b"again")));
        assert!(ring.take(1).is_none(), "1 shares the slot of 5");
        let taken = ring.take(5).unwrap();
        assert_eq!(taken.decided().value, b"five");
        ring.put_back(taken);
        assert!(ring.take(5).is_none());
        assert_eq!(ring.waiting(), 0);
    }

    #[test]
    fn a_jump_keeps_what_lies_ahead() {
        let mut ring = Ring::new(4);
        ring.insert(&value(1, b""));
        ring.insert(&value(3, b""));
        ring.forget(&(0..2));
        assert_eq!(ring.waiting(), 1);
        assert!(!ring.holds(1) && ring.holds(3));
    }
}
