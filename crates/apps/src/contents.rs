// SPDX-License-Identifier: Apache-2.0
//! The contents of a store: user keys, the replica's records and the number of keys, in one
//! keyspace under different prefixes, and the writes that aren't committed yet.
//!
//! | key | value (big-endian) |
//! |---|---|
//! | `k`, [place] of the user key, user key | a short value, then 0; or its length u64, then 1 |
//! | `l`, user key's length u16, user key, number u32 | a piece of a long value |
//! | `r`, key | a record |
//! | `count` | number of user keys u64 |
//! | `w`, user key | the version of a key that is watched u64 |
//! | `version` | the last version that was given u64 |
//!
//! A long value has its length under `k`. All of its pieces but the last are [`PIECE`] bytes.
//!
//! User keys are in the order of their places, for SCAN. APPEND to a long value writes the appended
//! bytes, and the last piece again. Only APPEND makes long values: all other values arrive in one
//! datagram.
//!
//! A short value is put into the store's batch at once, and into an index beside it, where the
//! commands before the commit find it. Values that APPEND makes, and those that replace a long
//! value, wait for the commit: the batch gets only the result.

mod keys;
mod writes;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use replica::application::RecordVisitor;
use replica::{Error, MOVE_AWAY};

use crate::keys::Keys;
use crate::known_keys::KnownKeys;
use crate::place;
use crate::recent::RecentValues;
use crate::store::{Cursor, Engine, Missing, Store, Value, Written};
use crate::watches::Watches;
use keys::{
    Placed, is_piece_key, is_user_key, parse_count, parse_value, piece_key, piece_len, pieces,
    seek_place, set_user_key, split_user_key,
};

/// Values up to this length are stored beside their key.
const SHORT: usize = 2048;
/// The bytes in a piece of a longer value.
const PIECE: usize = 1024;

const USER: u8 = b'k';
const LONG: u8 = b'l';
const RECORD: u8 = b'r';
const WATCHED: u8 = b'w';
/// The key of the last version that was given to a watched key.
const VERSION_KEY: &[u8] = b"version";
/// The key of the number of user keys, so that DBSIZE needs no walk.
const COUNT_KEY: &[u8] = b"count";

/// The bytes of the index that stay allocated between commits.
const KEEP_INDEX: usize = 256 << 10;

/// The effect of the batch on a key: where its new value is among those in the batch.
#[derive(Clone, Copy)]
struct BatchedValue {
    start: u32,
    /// The value's length; [`GONE`] if there is no value.
    len: u32,
}

const GONE: u32 = u32::MAX;

impl Default for BatchedValue {
    fn default() -> Self {
        BatchedValue {
            start: 0,
            len: GONE,
        }
    }
}

impl BatchedValue {
    fn held(self, values: &[u8]) -> Option<Form<'_>> {
        let start = self.start as usize;
        (self.len != GONE).then(|| Form::Whole(&values[start..start + self.len as usize]))
    }
}

/// The effect of the next commit on a key that waits for it.
struct Change {
    stored: As,
    now: Now,
}

/// How a key is committed at present.
#[derive(Clone, Copy, PartialEq, Eq)]
enum As {
    Absent,
    Short,
    /// The value is stored in pieces of this many bytes together.
    Long(usize),
}

impl As {
    /// Returns the number of bytes in pieces.
    fn long(self) -> usize {
        match self {
            As::Long(len) => len,
            As::Absent | As::Short => 0,
        }
    }
}

enum Now {
    Gone,
    Whole(Vec<u8>),
    /// The committed long value, with these bytes appended.
    Grown(Vec<u8>),
}

impl Change {
    fn held(&self) -> Option<Form<'_>> {
        match &self.now {
            Now::Gone => None,
            Now::Whole(value) => Some(Form::Whole(value)),
            Now::Grown(tail) => Some(Form::Long {
                stored: self.stored.long(),
                tail,
            }),
        }
    }
}

/// A value as a whole, or the places of its parts.
#[derive(Clone, Copy)]
pub(crate) enum Form<'a> {
    /// The whole value.
    Whole(&'a [u8]),
    /// A long value.
    Long {
        /// The number of bytes in the store, in pieces.
        stored: usize,
        /// Bytes to be appended, which aren't committed yet.
        tail: &'a [u8],
    },
}

impl Form<'_> {
    pub fn len(&self) -> usize {
        match self {
            Form::Whole(value) => value.len(),
            Form::Long { stored, tail } => stored + tail.len(),
        }
    }
}

/// A store and the writes of the next commit.
pub(crate) struct Contents {
    store: Store,
    /// Keys in the batch, with their place in `values`.
    written: Keys<BatchedValue>,
    values: Vec<u8>,
    /// Changes that wait for the commit. They come after the batch's changes of the same keys.
    late: BTreeMap<Vec<u8>, Change>,
    count: u64,
    committed_count: u64,
    watches: Watches,
    /// Committed keys of short values, which needn't be looked up in the store.
    known: KnownKeys,
    /// Committed short values, which needn't be looked up either; the batch's value of a key comes
    /// first.
    recent: RecentValues,
    /// A key with its prefix, kept so that its memory is reused.
    prefixed: Vec<u8>,
    /// A value in its stored form, kept for the same reason.
    stored: Vec<u8>,
}

impl Contents {
    /// Opens the store in `dir`, which must exist.
    pub fn open(engine: &'static Engine, dir: &Path) -> Result<Contents, Error> {
        Self::of(Store::open(engine, dir, Missing::Refuse)?, dir)
    }

    /// Creates an empty store in `dir`, or opens one that exists and was never used.
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
        let watches = load_watches(&store)?;
        Ok(Contents {
            store,
            watches,
            written: Keys::default(),
            values: Vec::new(),
            late: BTreeMap::new(),
            count,
            committed_count: count,
            known: KnownKeys::default(),
            recent: RecentValues::default(),
            prefixed: Vec::new(),
            stored: Vec::new(),
        })
    }

    /// Gives up a store that another one has replaced.
    pub fn replaced(self) {
        self.store.replaced();
    }

    /// Returns the number of user keys.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Makes a key watched, and returns its version.
    pub fn watch(&mut self, key: &[u8]) -> u64 {
        self.watches.watch(key)
    }

    /// Returns the versions that these keys would have if they were watched now.
    pub fn versions(&self, keys: &[&[u8]]) -> Vec<u64> {
        self.watches.would_be(keys)
    }

    /// Returns whether none of these keys has changed since it had this version.
    pub fn has_versions(&self, keys: &[(&[u8], u64)]) -> bool {
        keys.iter()
            .all(|(key, version)| self.watches.has(key, *version))
    }

    /// Looks a user key up, and returns what `show` makes of its value.
    pub fn look<R>(
        &mut self,
        key: &[u8],
        show: impl FnOnce(Option<Form<'_>>) -> R,
    ) -> Result<R, Error> {
        if let Some(held) = self.uncommitted(key) {
            return Ok(show(held));
        }
        if let Some(value) = self.recent.get(key) {
            return Ok(show(Some(Form::Whole(value))));
        }
        let stored = self.committed_value(key)?;
        let held = stored.as_deref().map(|value| self.parse(key, value));
        let held = held.transpose()?;
        if let Some(Form::Whole(value)) = held {
            self.recent.insert(key, value);
        }
        Ok(show(held))
    }

    /// Returns what the store has under a user key.
    fn committed_value(&mut self, key: &[u8]) -> Result<Option<Value>, Error> {
        set_user_key(&mut self.prefixed, key);
        self.store.get(&self.prefixed)
    }

    /// Returns the value that the next commit leaves of a key, or `None` if it doesn't touch the
    /// key.
    fn uncommitted(&self, key: &[u8]) -> Option<Option<Form<'_>>> {
        if let Some(change) = self.late.get(key) {
            return Some(change.held());
        }
        let place = self.written.get(key)?;
        Some(place.held(&self.values))
    }

    /// Shows the value of a user key part by part, and returns false if there is none.
    pub fn read(&mut self, key: &[u8], mut show: impl FnMut(&[u8])) -> Result<bool, Error> {
        let long = self.look(key, |held| match held {
            None => Some(None),
            Some(Form::Whole(value)) => {
                show(value);
                None
            }
            Some(Form::Long { stored, tail }) => Some(Some((stored, tail.to_vec()))),
        })?;
        match long {
            None => Ok(true),
            Some(None) => Ok(false),
            Some(Some((stored, tail))) => {
                let tail = &tail;
                self.show(key, Form::Long { stored, tail }, show)?;
                Ok(true)
            }
        }
    }

    /// Shows a value of `key` part by part.
    pub fn show(
        &self,
        key: &[u8],
        held: Form<'_>,
        mut show: impl FnMut(&[u8]),
    ) -> Result<(), Error> {
        let (stored, tail) = match held {
            Form::Whole(value) => (0, value),
            Form::Long { stored, tail } => (stored, tail),
        };
        if stored > 0 {
            let mut cursor = self.store.cursor();
            cursor.seek(&piece_key(key, 0));
            for number in 0..pieces(stored) {
                let (len, at) = (piece_len(stored, number), piece_key(key, number));
                match cursor.entry()? {
                    Some((found, piece)) if found == at && piece.len() == len => show(piece),
                    _ => return Err(self.damaged(key)),
                }
                cursor.advance();
            }
        }
        show(tail);
        Ok(())
    }

    fn damaged(&self, key: &[u8]) -> Error {
        let key = String::from_utf8_lossy(key);
        let dir = self.store.dir().display();
        Error(format!(
            "the value of {key:?} in {dir} is damaged; {MOVE_AWAY}"
        ))
    }

    fn parse<'a>(&self, key: &[u8], value: &'a [u8]) -> Result<Form<'a>, Error> {
        parse_value(value).ok_or_else(|| self.damaged(key))
    }

    pub fn exists(&mut self, key: &[u8]) -> Result<bool, Error> {
        match self.uncommitted(key) {
            Some(held) => Ok(held.is_some()),
            None => Ok(self.committed_as(key)? != As::Absent),
        }
    }

    /// Returns how a key is stored that the next commit doesn't touch yet.
    fn committed_as(&mut self, key: &[u8]) -> Result<As, Error> {
        if self.known.contains(key) {
            return Ok(As::Short);
        }
        let stored = self.committed_value(key)?;
        let held = stored.as_deref().map(|value| self.parse(key, value));
        let found = match held.transpose()? {
            None => As::Absent,
            Some(Form::Whole(_)) => As::Short,
            Some(Form::Long { stored, .. }) => As::Long(stored),
        };
        if found == As::Short {
            self.known.insert(key);
        }
        Ok(found)
    }

    /// Visits user keys, each with its place, in the order of places and from one of them on, while
    /// `visit` returns true.
    pub fn walk(
        &self,
        from: u64,
        mut visit: impl FnMut(u64, &[u8], Form<'_>) -> bool,
    ) -> Result<(), Error> {
        let mut stored = self.store.cursor();
        seek_place(&mut stored, from);
        let uncommitted = self.uncommitted_from(from);
        let mut waiting = uncommitted.iter().peekable();
        loop {
            let entry = self.user_entry(&stored)?;
            let (take_stored, take_waiting) = match (&entry, waiting.peek()) {
                (None, None) => return Ok(()),
                (Some(_), None) => (true, false),
                (None, Some(_)) => (false, true),
                (Some((at, _)), Some((key, _))) => (at <= *key, at >= *key),
            };
            // If the keys are equal, the uncommitted write hides the stored one.
            let go_on = if take_waiting {
                let ((place, key), held) = waiting.next().expect("just peeked");
                held.is_none_or(|held| visit(*place, key, held))
            } else {
                entry.is_none_or(|((place, key), held)| visit(place, key, held))
            };
            if !go_on {
                return Ok(());
            }
            if take_stored {
                stored.advance();
            }
        }
    }

    /// Returns what the next commit leaves of the keys that it touches, in order from a place on.
    fn uncommitted_from(&self, from: u64) -> BTreeMap<(u64, &[u8]), Option<Form<'_>>> {
        let written = self.written.iter();
        let written = written.map(|(key, place)| (key, place.held(&self.values)));
        let late = self.late.iter();
        let late = late.map(|(key, change)| (key.as_slice(), change.held()));
        let both = written.chain(late);
        both.map(|(key, held)| ((place::of(key), key), held))
            .filter(|((place, _), _)| *place >= from)
            .collect()
    }

    /// Returns the keys that are committed now.
    pub fn keys(&self) -> StoredKeys {
        StoredKeys(self.store.cursor())
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

    /// Returns key, place and value under the cursor, if it is still among the user keys.
    fn user_entry<'a>(&self, cursor: &'a Cursor) -> Result<Option<(Placed<'a>, Form<'a>)>, Error> {
        let entry = cursor
            .entry()?
            .map(|(key, value)| (split_user_key(key), value));
        match entry {
            Some((Some(placed), value)) => Ok(Some((placed, self.parse(placed.1, value)?))),
            _ => Ok(None),
        }
    }

    /// Returns the CPU time in the store's library since it was opened.
    pub fn library_cpu(&self) -> Duration {
        self.store.library_cpu()
    }

    pub fn written(&self) -> Written {
        self.store.written()
    }

    /// Returns a cursor over everything that is committed, from the first key on.
    pub fn committed(&self) -> Cursor {
        let mut cursor = self.store.cursor();
        cursor.seek(&[]);
        cursor
    }

    /// Adds a pair of another store to an empty one, in any order. The pair is written with the
    /// next [`finish_load`](Self::finish_load) at the latest. Returns false if there can't be such
    /// a key.
    pub fn load(&mut self, key: &[u8], value: &[u8]) -> bool {
        match key {
            [USER, ..] if is_user_key(key) && parse_value(value).is_some() => self.count += 1,
            [LONG, ..] if is_piece_key(key) => {}
            [RECORD, ..] => {}
            [WATCHED, ..] if value.len() == 8 => {}
            _ if key == VERSION_KEY && value.len() == 8 => {}
            // The keys are counted here; the other store's number isn't trusted.
            _ => return key == COUNT_KEY,
        }
        self.store.put(key, value);
        true
    }

    /// Writes what was loaded, and makes it the present contents.
    pub fn end_load(&mut self) -> Result<(), Error> {
        self.finish_load()?;
        self.watches = load_watches(&self.store)?;
        Ok(())
    }

    /// Writes the pairs that were loaded so far.
    pub fn finish_load(&mut self) -> Result<(), Error> {
        self.store.put(COUNT_KEY, &self.count.to_be_bytes());
        self.committed_count = self.count;
        self.store.write()
    }
}

/// Reads the watched keys from the store.
fn load_watches(store: &Store) -> Result<Watches, Error> {
    let number = |bytes: &[u8]| -> Result<u64, Error> {
        let number = parse_count(bytes);
        number.ok_or_else(|| {
            let dir = store.dir().display();
            Error(format!("a watched key in {dir} is damaged; {MOVE_AWAY}"))
        })
    };
    let last = store.get(VERSION_KEY)?;
    let last = last.as_deref().map_or(Ok(0), number)?;
    let mut cursor = store.cursor();
    cursor.seek(&[WATCHED]);
    let mut stored = Vec::new();
    while let Some(([WATCHED, key @ ..], version)) = cursor.entry()? {
        stored.push((key.to_vec(), number(version)?));
        cursor.advance();
    }
    Ok(Watches::load(last, stored.into_iter()))
}

/// The user keys of a store at one moment.
pub(crate) struct StoredKeys(Cursor);

impl StoredKeys {
    /// Visits the keys as [`Contents::walk`] does.
    pub fn walk(
        &mut self,
        from: u64,
        mut visit: impl FnMut(u64, &[u8]) -> bool,
    ) -> Result<(), Error> {
        seek_place(&mut self.0, from);
        while let Some((place, key)) = self.0.entry()?.and_then(|(key, _)| split_user_key(key)) {
            if !visit(place, key) {
                break;
            }
            self.0.advance();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::tests::HASHED;

    #[test]
    fn a_key_that_is_looked_up_and_then_written_is_hashed_once() {
        let name = format!("apps-{}-hashed", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&dir);
        let mut contents = Contents::create(&crate::leveldb::ENGINE, &dir).unwrap();
        let hashed = |of: &mut dyn FnMut()| {
            let before = HASHED.get();
            of();
            HASHED.get() - before
        };
        assert_eq!(hashed(&mut || contents.put(b"a", b"1").unwrap()), 1);
        assert_eq!(hashed(&mut || contents.put(b"b", b"1").unwrap()), 1);
        contents.commit(&[]).unwrap();
        contents.discard().unwrap();
        assert_eq!(hashed(&mut || assert!(contents.remove(b"a").unwrap())), 1);
        contents.commit(&[]).unwrap();
        assert!(!contents.exists(b"a").unwrap() && contents.exists(b"b").unwrap());
        drop(contents);
        let _ = std::fs::remove_dir_all(&dir);
    }
}
