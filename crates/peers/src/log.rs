// SPDX-License-Identifier: Apache-2.0
//! The log of a replica: entries without gaps, and a digest of everything below each of them.

use std::collections::VecDeque;

use paxos::{Flags, Header, Instance, Packet, mix};

/// A request in the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub flags: Flags,
    pub client: u64,
    pub request: u64,
    pub value: Vec<u8>,
}

impl Entry {
    pub fn of(packet: &Packet<'_>) -> Entry {
        Entry {
            flags: packet.header.flags.of_value(),
            client: packet.header.client,
            request: packet.header.request,
            value: packet.value.to_vec(),
        }
    }

    /// Returns the name of an entry. Two entries of one name hold the same commands: a session
    /// gives a number to one command only, and a proposer to one pack.
    pub fn name(&self) -> (u64, u64) {
        (self.client, self.request)
    }

    /// Returns the entry's message, which starts with `header`.
    pub fn header(&self, header: Header) -> Header {
        Header {
            flags: self.flags,
            client: self.client,
            request: self.request,
            value_len: self.value.len() as u16,
            ..header
        }
    }
}

struct DigestedEntry {
    entry: Entry,
    /// The digest of all entries up to this one, included.
    digest: u64,
}

/// The log of a replica, with a digest of every prefix.
#[derive(Default)]
pub(crate) struct SlotLog {
    first: Instance,
    /// The digest of everything below `first`.
    below: u64,
    slots: VecDeque<DigestedEntry>,
}

impl SlotLog {
    /// Returns the first slot that is kept.
    pub fn first(&self) -> Instance {
        self.first
    }

    /// Returns the slot below which the log is filled.
    pub fn end(&self) -> Instance {
        self.first + self.slots.len() as u64
    }

    pub fn get(&self, slot: Instance) -> Option<&Entry> {
        let at = slot.checked_sub(self.first)?;
        self.slots.get(at as usize).map(|slot| &slot.entry)
    }

    /// Returns the digest of everything below `end`, if that is still known.
    pub fn digest(&self, end: Instance) -> Option<u64> {
        match end.checked_sub(self.first)? {
            0 => Some(self.below),
            above => self.slots.get(above as usize - 1).map(|slot| slot.digest),
        }
    }

    pub fn push(&mut self, entry: Entry) {
        let last = self.slots.back().map_or(self.below, |slot| slot.digest);
        let (client, request) = entry.name();
        let digest = mix(last.rotate_left(1) ^ mix(client) ^ request.rotate_left(32));
        self.slots.push_back(DigestedEntry { entry, digest });
    }

    /// Drops everything from `end` on.
    pub fn truncate(&mut self, end: Instance) {
        self.slots.truncate(end.saturating_sub(self.first) as usize);
    }

    /// Forgets everything below `first`.
    pub fn trim(&mut self, first: Instance) {
        while self.first < first {
            let Some(slot) = self.slots.pop_front() else {
                return;
            };
            self.first += 1;
            self.below = slot.digest;
        }
    }
}
