// SPDX-License-Identifier: Apache-2.0
//! How changes of values reach the store.

use replica::Error;
use replica::application::Record;

use super::keys::{PIECES, WHOLE, set_prefixed};
use super::{
    As, BatchedValue, COUNT_KEY, Change, Contents, Form, KEEP_INDEX, Now, PIECE, RECORD, SHORT,
    VERSION_KEY, WATCHED, load_watches, piece_key, piece_len, pieces, set_user_key,
};
use crate::known_keys::KnownKeys;
use crate::kv::MAX_STRING_LEN;
use crate::recent::RecentValues;

impl Contents {
    /// Sets a user key.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.watches.touched(key);
        if let Some(change) = self.late.get_mut(key) {
            self.count += u64::from(change.held().is_none());
            change.now = Now::Whole(value.to_vec());
            return Ok(());
        }
        let stored = match self.written.get(key) {
            Some(place) => place.held(&self.values).map_or(As::Absent, |_| As::Short),
            None => self.committed_as(key)?,
        };
        self.count += u64::from(stored == As::Absent);
        if stored.long() > 0 || value.len() > SHORT {
            self.change(key, stored, Now::Whole(value.to_vec()));
        } else {
            self.write_short(key, value);
        }
        Ok(())
    }

    /// Adds a short value to the batch and to the index.
    fn write_short(&mut self, key: &[u8], value: &[u8]) {
        let place = BatchedValue {
            start: self.values.len() as u32,
            len: value.len() as u32,
        };
        self.values.extend_from_slice(value);
        self.written.insert(key, place);
        self.store_short(key, value);
    }

    /// Adds a short value to the batch.
    fn store_short(&mut self, key: &[u8], value: &[u8]) {
        set_user_key(&mut self.prefixed, key);
        self.stored.clear();
        self.stored.extend_from_slice(value);
        self.stored.push(WHOLE);
        self.store.put(&self.prefixed, &self.stored);
        self.known.insert(key);
        self.recent.replace(key, value);
    }

    /// Removes a user key, and returns false if there is none.
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, Error> {
        if let Some(change) = self.late.get_mut(key) {
            let existed = change.held().is_some();
            change.now = Now::Gone;
            self.count -= u64::from(existed);
            if existed {
                self.watches.touched(key);
            }
            return Ok(existed);
        }
        let stored = match self.written.get(key) {
            Some(place) => place.held(&self.values).map_or(As::Absent, |_| As::Short),
            None => self.committed_as(key)?,
        };
        if stored == As::Absent {
            return Ok(false);
        }
        self.count -= 1;
        self.watches.touched(key);
        if stored.long() > 0 {
            self.change(key, stored, Now::Gone);
        } else {
            self.written.insert(key, BatchedValue::default());
            self.store_gone(key);
        }
        Ok(true)
    }

    /// Adds a deletion to the batch.
    fn store_gone(&mut self, key: &[u8]) {
        set_user_key(&mut self.prefixed, key);
        self.store.delete(&self.prefixed);
        self.known.remove(key);
        self.recent.remove(key);
    }

    /// Appends `tail` to the value of a user key, or makes it the value. Returns the new length; or
    /// `None`, with nothing changed, if that would be more than [`MAX_STRING_LEN`].
    pub fn append(&mut self, key: &[u8], tail: &[u8]) -> Result<Option<usize>, Error> {
        let len = self.look(key, |held| held.map(|held| held.len()))?;
        let new = len.unwrap_or(0) + tail.len();
        if new > MAX_STRING_LEN {
            return Ok(None);
        }
        self.count += u64::from(len.is_none());
        self.watches.touched(key);
        if let Some(change) = self.late.get_mut(key) {
            match &mut change.now {
                Now::Whole(value) | Now::Grown(value) => value.extend_from_slice(tail),
                now @ Now::Gone => *now = Now::Whole(tail.to_vec()),
            }
            return Ok(Some(new));
        }
        let (stored, now) = self.look(key, |held| match held {
            None => (As::Absent, Now::Whole(tail.to_vec())),
            Some(Form::Whole(value)) => (As::Short, Now::Whole([value, tail].concat())),
            Some(Form::Long { stored, .. }) => (As::Long(stored), Now::Grown(tail.to_vec())),
        })?;
        self.change(key, stored, now);
        Ok(Some(new))
    }

    pub(super) fn change(&mut self, key: &[u8], stored: As, now: Now) {
        self.late.insert(key.to_vec(), Change { stored, now });
    }

    /// Writes everything that waits, and `records`, in one batch with what is in it.
    pub fn commit(&mut self, records: &[Record]) -> Result<(), Error> {
        let is_unchanged = self.written.is_empty() && self.late.is_empty();
        if is_unchanged && !self.watches.has_changed() && records.is_empty() {
            return Ok(());
        }
        for (key, change) in std::mem::take(&mut self.late) {
            self.write_change(&key, change)?;
        }
        self.written.clear(KEEP_INDEX);
        self.values.clear();
        self.values.shrink_to(KEEP_INDEX);
        if self.count != self.committed_count {
            self.store.put(COUNT_KEY, &self.count.to_be_bytes());
            self.committed_count = self.count;
        }
        self.write_watches();
        for record in records {
            set_prefixed(&mut self.prefixed, RECORD, &record.key);
            match &record.value {
                Some(value) => self.store.put(&self.prefixed, value),
                None => self.store.delete(&self.prefixed),
            }
        }
        self.store.write()
    }

    fn write_watches(&mut self) {
        if !self.watches.has_changed() {
            return;
        }
        for (key, version) in self.watches.take_changes() {
            set_prefixed(&mut self.prefixed, WATCHED, &key);
            match version {
                Some(version) => self.store.put(&self.prefixed, &version.to_be_bytes()),
                None => self.store.delete(&self.prefixed),
            }
        }
        let last = self.watches.last();
        self.store.put(VERSION_KEY, &last.to_be_bytes());
    }

    /// Takes back everything since the last commit.
    pub fn discard(&mut self) -> Result<(), Error> {
        self.store.forget_batch();
        if self.watches.has_changed() {
            self.watches = load_watches(&self.store)?;
        }
        self.written.clear(KEEP_INDEX);
        self.values.clear();
        self.late.clear();
        self.count = self.committed_count;
        // Some of these keys and values may come from changes that are taken back.
        self.known = KnownKeys::default();
        self.recent = RecentValues::default();
        Ok(())
    }

    /// Adds a change to the batch: the key, pieces that are new or longer, and the removal of
    /// others.
    fn write_change(&mut self, key: &[u8], change: Change) -> Result<(), Error> {
        let had = change.stored.long();
        let has = match &change.now {
            Now::Grown(tail) => {
                let begun = had / PIECE * PIECE;
                let mut end = self.piece_begun(key, had)?;
                end.extend_from_slice(tail);
                self.write_pieces(key, begun, &end)
            }
            Now::Whole(value) if value.len() > SHORT => self.write_pieces(key, 0, value),
            Now::Whole(_) | Now::Gone => 0,
        };
        for number in pieces(has)..pieces(had) {
            self.store.delete(&piece_key(key, number));
        }
        match change.now {
            Now::Gone => self.store_gone(key),
            Now::Whole(value) if has == 0 => self.store_short(key, &value),
            Now::Whole(_) | Now::Grown(_) => {
                let mut head = (has as u64).to_be_bytes().to_vec();
                head.push(PIECES);
                set_user_key(&mut self.prefixed, key);
                self.store.put(&self.prefixed, &head);
                self.known.remove(key);
                self.recent.remove(key);
            }
        }
        Ok(())
    }

    /// Returns the last piece of a long value of `len` bytes if there is room in it, otherwise
    /// nothing.
    fn piece_begun(&self, key: &[u8], len: usize) -> Result<Vec<u8>, Error> {
        if len % PIECE == 0 {
            return Ok(Vec::new());
        }
        let last = pieces(len) - 1;
        let piece = self.store.get(&piece_key(key, last))?;
        let piece = piece.filter(|piece| piece.len() == piece_len(len, last));
        Ok(piece.ok_or_else(|| self.damaged(key))?.to_vec())
    }

    /// Adds pieces to the batch: `end` is a long value from byte `from` on. Returns the value's
    /// length.
    fn write_pieces(&mut self, key: &[u8], from: usize, end: &[u8]) -> usize {
        for (piece, number) in end.chunks(PIECE).zip((from / PIECE) as u32..) {
            self.store.put(&piece_key(key, number), piece);
        }
        from + end.len()
    }
}
