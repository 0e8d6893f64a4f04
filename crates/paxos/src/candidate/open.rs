// SPDX-License-Identifier: Apache-2.0
//! The instances that a candidate has asked about or proposed, and about which it hasn't heard
//! enough yet.

use crate::{Instance, Time};
use std::collections::BTreeMap;

/// The bounds of the instances that are open at once in each partition. Their number grows by one
/// with each answer and halves after late ones, so that a burst of large answers doesn't drown a
/// small socket buffer for long.
const OPEN_MIN: usize = 32;
const OPEN_MAX: usize = 512;
const OPEN_START: usize = 128;
/// How long an instance waits before it is sent again. The time doubles up to `RETRY <<
/// RETRY_DOUBLINGS`.
const RETRY: Time = 10_000_000;
const RETRY_DOUBLINGS: u32 = 4;
/// The interval at which late instances are looked for.
const LOOK: Time = RETRY / 2;

#[derive(Clone, Hash)]
struct Entry<T> {
    item: T,
    due: Time,
    tries: u32,
}

#[derive(Clone, Hash)]
pub(super) struct Opened<T> {
    entries: BTreeMap<Instance, Entry<T>>,
    limit: usize,
    /// The time at which late instances are looked for again. Looking at each answer would cost too
    /// much.
    look_at: Time,
}

impl<T> Opened<T> {
    pub fn new() -> Self {
        Opened {
            entries: BTreeMap::new(),
            limit: OPEN_START,
            look_at: 0,
        }
    }

    pub fn has_room(&self) -> bool {
        self.entries.len() < self.limit
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn open(&mut self, inst: Instance, item: T, now: Time) {
        let due = now + RETRY;
        self.entries.insert(
            inst,
            Entry {
                item,
                due,
                tries: 0,
            },
        );
    }

    pub fn get(&self, inst: Instance) -> Option<&T> {
        self.entries.get(&inst).map(|e| &e.item)
    }

    pub fn get_mut(&mut self, inst: Instance) -> Option<&mut T> {
        self.entries.get_mut(&inst).map(|e| &mut e.item)
    }

    pub fn close(&mut self, inst: Instance) -> Option<T> {
        let entry = self.entries.remove(&inst)?;
        self.limit = (self.limit + 1).min(OPEN_MAX);
        Some(entry.item)
    }

    pub fn forget_below(&mut self, trim: Instance) {
        self.entries = self.entries.split_off(&trim);
    }

    /// Calls `again` with each instance that is due to be sent again.
    pub fn due(&mut self, now: Time, mut again: impl FnMut(Instance, &T)) {
        if now < self.look_at {
            return;
        }
        self.look_at = now + LOOK;
        let mut late = false;
        for (&inst, entry) in &mut self.entries {
            if now >= entry.due {
                late = true;
                entry.tries = (entry.tries + 1).min(RETRY_DOUBLINGS);
                entry.due = now + (RETRY << entry.tries);
                again(inst, &entry.item);
            }
        }
        if late {
            self.limit = (self.limit / 2).max(OPEN_MIN);
        }
    }
}
