//! What a store holds: user keys, the replica's records and the number of keys in one keyspace
//! under different prefixes, and the writes that are not committed yet.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;

use replica::application::{Record, RecordVisitor};
use replica::{Error, MOVE_AWAY};

use crate::known::KnownKeys;
use crate::store::{Cursor, Engine, Missing, Pair, Store, Written};

const USER: u8 = b'k';
const RECORD: u8 = b'r';
/// The number of user keys, so that DBSIZE needs no walk.
const COUNT_KEY: &[u8] = b"count";

/// A store and the writes that wait for the next commit.
pub(crate) struct Contents {
    store: Store,
    /// Uncommitted: user key to new value, or deletion.
    overlay: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    count: u64,
    committed_count: u64,
    /// Committed keys that need no look into the store.
    known: KnownKeys,
    /// A key with its prefix; kept for its memory.
    prefixed: Vec<u8>,
}

impl Contents {
    /// Opens the store in `dir`, which is there.
    pub fn open(engine: &'static Engine, dir: &Path) -> Result<Contents, Error> {
        Self::of(Store::open(engine, dir, Missing::Refuse)?, dir)
    }

    /// Makes an empty one in `dir`, unless one that was never used is there.
    pub fn create(engine: &'static Engine, dir: &Path) -> Result<Contents, Error> {
        Self::of(Store::open(engine, dir, Missing::Create)?, dir)
    }

    fn of(store: Store, dir: &Path) -> Result<Contents, Error> {
        let count = match store.get(COUNT_KEY)? {
            None => 0,
            Some(bytes) => parse_count(&bytes).ok_or_else(|| {
                Error(format!(
                    "the number of keys in {} is damaged; {MOVE_AWAY}",
                    dir.display()
                ))
            })?,
        };
        Ok(Contents {
            store,
            overlay: BTreeMap::new(),
            count,
            committed_count: count,
            known: KnownKeys::default(),
            prefixed: Vec::new(),
        })
    }

    /// The number of user keys.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Shows the value of a user key.
    pub fn read<R>(
        &mut self,
        key: &[u8],
        show: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, Error> {
        if let Some(value) = self.overlay.get(key) {
            return Ok(show(value.as_deref()));
        }
        set_prefixed(&mut self.prefixed, USER, key);
        let value = self.store.get(&self.prefixed)?;
        Ok(show(value.as_deref()))
    }

    pub fn exists(&mut self, key: &[u8]) -> Result<bool, Error> {
        if let Some(value) = self.overlay.get(key) {
            return Ok(value.is_some());
        }
        if self.known.contains(key) {
            return Ok(true);
        }
        let existed = self.read(key, |value| value.is_some())?;
        if existed {
            self.known.insert(key.to_vec());
        }
        Ok(existed)
    }

    /// Sets a user key; the caller knows whether it existed.
    pub fn put(&mut self, key: &[u8], value: Vec<u8>, existed: bool) {
        self.count += u64::from(!existed);
        match self.overlay.get_mut(key) {
            Some(slot) => *slot = Some(value),
            None => {
                self.overlay.insert(key.to_vec(), Some(value));
            }
        }
    }

    /// Removes a user key that exists.
    pub fn remove(&mut self, key: &[u8]) {
        self.count -= 1;
        self.overlay.insert(key.to_vec(), None);
    }

    /// Shows user keys and values in order, from the first one after `after` on, while `visit`
    /// returns true.
    pub fn walk(
        &self,
        after: Option<&[u8]>,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error> {
        let mut stored = self.store.cursor();
        let mut seek_key = vec![USER];
        seek_key.extend_from_slice(after.unwrap_or_default());
        stored.seek(&seek_key);
        if after.is_some() && stored.entry()?.is_some_and(|(key, _)| key == seek_key) {
            stored.advance();
        }
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut waiting = self
            .overlay
            .range::<[u8], _>((from, Bound::Unbounded))
            .peekable();
        loop {
            let entry = user_entry(&stored)?;
            let (take_stored, take_waiting) = match (entry, waiting.peek()) {
                (None, None) => return Ok(()),
                (Some(_), None) => (true, false),
                (None, Some(_)) => (false, true),
                (Some((stored_key, _)), Some((key, _))) => {
                    (stored_key <= key.as_slice(), stored_key >= key.as_slice())
                }
            };
            // At equal keys the uncommitted write hides what is stored.
            let go_on = if take_waiting {
                let (key, value) = waiting.next().expect("just peeked");
                value.as_ref().is_none_or(|value| visit(key, value))
            } else {
                entry.is_none_or(|(key, value)| visit(key, value))
            };
            if !go_on {
                return Ok(());
            }
            if take_stored {
                stored.advance();
            }
        }
    }

    /// Writes everything that waits, and `records`, as one batch.
    pub fn commit(&mut self, records: &[Record]) -> Result<(), Error> {
        if self.overlay.is_empty() && records.is_empty() {
            return Ok(());
        }
        for (key, value) in std::mem::take(&mut self.overlay) {
            set_prefixed(&mut self.prefixed, USER, &key);
            match value {
                Some(value) => {
                    self.store.put(&self.prefixed, &value);
                    self.known.insert(key);
                }
                None => {
                    self.store.delete(&self.prefixed);
                    self.known.remove(&key);
                }
            }
        }
        if self.count != self.committed_count {
            self.store.put(COUNT_KEY, &self.count.to_be_bytes());
            self.committed_count = self.count;
        }
        for record in records {
            set_prefixed(&mut self.prefixed, RECORD, &record.key);
            match &record.value {
                Some(value) => self.store.put(&self.prefixed, value),
                None => self.store.delete(&self.prefixed),
            }
        }
        self.store.write()
    }

    pub fn records(&self, visit: &mut RecordVisitor<'_>) -> Result<(), Error> {
        let mut cursor = self.store.cursor();
        cursor.seek(&[RECORD]);
        while let Some(([RECORD, key @ ..], value)) = cursor.entry()? {
            visit(key, value);
            cursor.advance();
        }
        Ok(())
    }

    pub fn written(&self) -> Written {
        self.store.written()
    }

    /// A cursor over everything that is committed, from the first key on.
    pub fn committed(&self) -> Cursor {
        let mut cursor = self.store.cursor();
        cursor.seek(&[]);
        cursor
    }

    /// Adds a pair of another store's to an empty one, in whichever order; written with the next
    /// [`finish_load`](Self::finish_load) at the latest. False if such a key can't be.
    pub fn load(&mut self, key: &[u8], value: &[u8]) -> bool {
        match key {
            [USER, ..] => self.count += 1,
            [RECORD, ..] => {}
            // Counted here instead of believed.
            _ => return key == COUNT_KEY,
        }
        self.store.put(key, value);
        true
    }

    /// Writes what was loaded so far.
    pub fn finish_load(&mut self) -> Result<(), Error> {
        self.store.put(COUNT_KEY, &self.count.to_be_bytes());
        self.committed_count = self.count;
        self.store.write()
    }
}

/// Key (without prefix) and value under the cursor, if it is still among the user keys.
fn user_entry(cursor: &Cursor) -> Result<Option<Pair<'_>>, Error> {
    Ok(match cursor.entry()? {
        Some(([USER, key @ ..], value)) => Some((key, value)),
        _ => None,
    })
}

fn set_prefixed(into: &mut Vec<u8>, prefix: u8, key: &[u8]) {
    into.clear();
    into.push(prefix);
    into.extend_from_slice(key);
}

fn parse_count(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}
