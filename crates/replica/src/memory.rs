// SPDX-License-Identifier: Apache-2.0
//! Replicated programs whose state is in memory.
//!
//! This counter is replicated:
//!
//! ```
//! use replica::{InMemory, StateMachine, storage::CheckpointFile};
//! use std::io::{self, Read, Write};
//!
//! #[derive(Default)]
//! struct Counter(u64);
//!
//! impl StateMachine for Counter {
//!     fn execute(&mut self, _command: &[u8], reply: &mut Vec<u8>) {
//!         self.0 += 1;
//!         reply.extend_from_slice(self.0.to_string().as_bytes());
//!     }
//!     fn save(&self, out: &mut dyn Write) -> io::Result<()> {
//!         out.write_all(&self.0.to_be_bytes())
//!     }
//!     fn load(from: &mut dyn Read) -> io::Result<Self> {
//!         let mut bytes = [0; 8];
//!         from.read_exact(&mut bytes)?;
//!         Ok(Counter(u64::from_be_bytes(bytes)))
//!     }
//! }
//!
//! # let dir = std::env::temp_dir().join(format!("counter-{}", std::process::id()));
//! # std::fs::create_dir_all(&dir).unwrap();
//! # let path = dir.join("counter");
//! let application = InMemory::open(CheckpointFile::new(path), Counter::default())?;
//! # std::fs::remove_dir_all(&dir).unwrap();
//! # drop(application);
//! # Ok::<(), replica::Error>(())
//! ```

use crate::application::{
    Application, Checkpoint, Error, MOVE_AWAY, Part, Record, RecordVisitor, Restore, Snapshot,
};
use crate::storage::Storage;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A deterministic program whose state is in memory.
pub trait StateMachine: Send + Sized + 'static {
    /// Executes one command and appends the answer to `reply`. The outcome depends on nothing but
    /// the commands executed so far: no clock, no randomness.
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>);

    /// Returns whether a command changes nothing, whatever the state.
    fn is_read(_command: &[u8]) -> bool {
        false
    }

    /// Returns whether commands over several partitions are executed. See
    /// [`Application::spans_partitions`] and the three steps there, which are those below.
    fn spans_partitions() -> bool {
        false
    }

    /// Appends to `prepared` the data that a command over several partitions needs from this
    /// partition.
    fn prepare(&self, _command: &[u8], _prepared: &mut Vec<u8>) {}

    /// Appends the answer of such a command, and fills in the effect in each partition.
    fn combine(_command: &[u8], _parts: &mut [Part], _reply: &mut Vec<u8>) {}

    /// Makes the change that an effect describes.
    fn apply(&mut self, _effect: &[u8]) {}

    /// Writes the state. Equal states must write equal bytes, since replicas are compared by them.
    fn save(&self, out: &mut dyn Write) -> io::Result<()>;

    /// Reads a state that [`save`](Self::save) wrote.
    fn load(from: &mut dyn Read) -> io::Result<Self>;
}

/// Makes an [`Application`] of a [`StateMachine`]. State and records are kept in memory and written
/// to one checkpoint from time to time; after a crash the checkpoint is loaded, and the commands
/// after it come again from the log.
pub struct InMemory<S, D> {
    state: S,
    records: StoredRecords,
    /// The storage, which the checkpoint under way shares.
    storage: Arc<Mutex<D>>,
    /// True if something was executed or committed since the last checkpoint.
    changed: bool,
    /// The bytes of the checkpoint that is being made, until it ends.
    begun: Weak<Vec<u8>>,
    /// The state at the first start; `None` once a checkpoint has begun.
    beginning: Option<Vec<u8>>,
    /// Another replica's state, once it has been read.
    taken: Arc<Mutex<Option<Taken<S>>>>,
}

/// A checkpoint of another replica, and its contents.
struct Taken<S> {
    checkpoint: Vec<u8>,
    state: S,
    records: StoredRecords,
}

/// A command writes several records, and they are read in order only to be stored or sent; so a
/// hash map serves best.
type StoredRecords = HashMap<Vec<u8>, Vec<u8>>;

const MAGIC: &[u8; 8] = b"WPCKPT\0\x01";

impl<S: StateMachine, D: Storage> InMemory<S, D> {
    /// Loads the last checkpoint, or begins with `initial` at the first start.
    pub fn open(mut storage: D, initial: S) -> Result<Self, Error> {
        let stored = storage.load()?;
        let is_first = stored.is_none();
        let (state, records) = match stored {
            Some(checkpoint) => decode_stored(&checkpoint)?,
            None => (initial, HashMap::new()),
        };
        let mut opened = InMemory {
            state,
            records,
            storage: Arc::new(Mutex::new(storage)),
            changed: false,
            begun: Weak::new(),
            beginning: None,
            taken: Arc::default(),
        };
        if is_first {
            opened.beginning = Some(opened.encode()?);
        }
        Ok(opened)
    }

    /// Returns the program.
    pub fn state(&self) -> &S {
        &self.state
    }

    fn sorted_records(&self) -> Vec<(&Vec<u8>, &Vec<u8>)> {
        let mut records: Vec<_> = self.records.iter().collect();
        records.sort_unstable();
        records
    }

    fn encode(&self) -> io::Result<Vec<u8>> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&(self.records.len() as u64).to_be_bytes());
        for (key, value) in self.sorted_records() {
            for part in [key, value] {
                out.extend_from_slice(&(part.len() as u32).to_be_bytes());
                out.extend_from_slice(part);
            }
        }
        self.state.save(&mut out)?;
        let crc = crc32fast::hash(&out);
        out.extend_from_slice(&crc.to_be_bytes());
        Ok(out)
    }
}

/// Reads a checkpoint: magic, number of records u64, records of {u32, key, u32, value}, state,
/// CRC-32.
fn decode<S: StateMachine>(checkpoint: &[u8]) -> Result<(S, StoredRecords), Error> {
    let damaged = |what: &str| Error(format!("the checkpoint is damaged: {what}"));
    let (body, crc) = checkpoint
        .split_last_chunk::<4>()
        .ok_or_else(|| damaged("too short"))?;
    if crc32fast::hash(body) != u32::from_be_bytes(*crc) {
        return Err(damaged("wrong checksum"));
    }
    let mut rest = body
        .strip_prefix(MAGIC)
        .ok_or_else(|| damaged("not a checkpoint of this version"))?;
    let records = read_records(&mut rest).map_err(|e| damaged(&e.to_string()))?;
    let state = S::load(&mut rest)?;
    if !rest.is_empty() {
        return Err(damaged("bytes are left over"));
    }
    Ok((state, records))
}

fn decode_stored<S: StateMachine>(checkpoint: &[u8]) -> Result<(S, StoredRecords), Error> {
    decode(checkpoint).map_err(|e| Error(format!("{e}; {MOVE_AWAY}")))
}

fn read_records(from: &mut &[u8]) -> io::Result<StoredRecords> {
    let mut count = [0; 8];
    from.read_exact(&mut count)?;
    let mut records = HashMap::new();
    for _ in 0..u64::from_be_bytes(count) {
        let key = read_bytes(from)?;
        records.insert(key, read_bytes(from)?);
    }
    Ok(records)
}

fn read_bytes(from: &mut &[u8]) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_be_bytes(len) as usize;
    if len > from.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let (bytes, rest) = from.split_at(len);
    *from = rest;
    Ok(bytes.to_vec())
}

impl<S: StateMachine, D: Storage> Application for InMemory<S, D> {
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error> {
        self.changed = true;
        self.state.execute(command, reply);
        Ok(())
    }

    fn is_read(&self, command: &[u8]) -> bool {
        S::is_read(command)
    }

    fn spans_partitions(&self) -> bool {
        S::spans_partitions()
    }

    fn prepare(&mut self, command: &[u8], prepared: &mut Vec<u8>) -> Result<(), Error> {
        self.state.prepare(command, prepared);
        Ok(())
    }

    fn combine(
        &self,
        command: &[u8],
        parts: &mut [Part],
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        S::combine(command, parts, reply);
        Ok(())
    }

    fn apply(&mut self, effect: &[u8]) -> Result<(), Error> {
        self.changed = true;
        self.state.apply(effect);
        Ok(())
    }

    fn commit(&mut self, records: &[Record]) -> Result<(), Error> {
        self.changed = true;
        for Record { key, value } in records {
            match value {
                None => {
                    self.records.remove(key);
                }
                Some(new) => match self.records.get_mut(key) {
                    Some(old) => old.clone_from(new),
                    None => {
                        self.records.insert(key.clone(), new.clone());
                    }
                },
            }
        }
        Ok(())
    }

    fn can_discard(&self) -> bool {
        true
    }

    /// Goes back to the last checkpoint, or to the one under way, since a program can't be asked to
    /// remember its state at the last commit.
    fn discard(&mut self) -> Result<(), Error> {
        let begun = self.begun.upgrade();
        let stored = match &begun {
            Some(_) => None,
            None => lock(&self.storage).load()?,
        };
        let begun = begun.as_deref().or(stored.as_ref());
        let checkpoint = begun.or(self.beginning.as_ref());
        let checkpoint = checkpoint.ok_or_else(|| Error("the checkpoint is gone".into()))?;
        (self.state, self.records) = decode_stored(checkpoint)?;
        self.changed = false;
        Ok(())
    }

    fn records(&mut self, visit: &mut RecordVisitor<'_>) -> Result<(), Error> {
        for (key, value) in self.sorted_records() {
            visit(key, value);
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<Checkpoint, Error> {
        if !self.changed {
            return Ok(Box::new(|| Ok(())));
        }
        let checkpoint = Arc::new(self.encode()?);
        self.begun = Arc::downgrade(&checkpoint);
        self.beginning = None;
        self.changed = false;
        let storage = self.storage.clone();
        // The thread frees these bytes once they lie in the storage; until then `discard` may need
        // them.
        Ok(Box::new(move || replace(&storage, &checkpoint)))
    }

    fn snapshot(&mut self) -> Result<Box<dyn Snapshot>, Error> {
        Ok(Box::new(Copied(self.encode()?)))
    }

    fn begin_restore(&mut self) -> Result<Restore, Error> {
        self.taken = Arc::default();
        let taken = self.taken.clone();
        Ok(Box::new(move |from| {
            let mut checkpoint = Vec::new();
            from.read_to_end(&mut checkpoint)?;
            let (state, records) = decode(&checkpoint)?;
            *lock(&taken) = Some(Taken {
                checkpoint,
                state,
                records,
            });
            Ok(())
        }))
    }

    fn end_restore(&mut self) -> Result<(), Error> {
        let taken = lock(&self.taken).take();
        let taken = taken.ok_or_else(|| Error("no other replica's state was read".into()))?;
        replace(&self.storage, &taken.checkpoint)?;
        self.state = taken.state;
        self.records = taken.records;
        self.changed = false;
        self.beginning = None;
        Ok(())
    }

    fn forget_restore(&mut self) {
        self.taken = Arc::default();
    }

    fn digest(&mut self) -> Result<[u8; 32], Error> {
        let mut hash = Sha256::new();
        self.state.save(&mut hash)?;
        Ok(hash.finalize().into())
    }
}

fn replace(storage: &Mutex<impl Storage>, checkpoint: &[u8]) -> Result<(), Error> {
    Ok(lock(storage).replace(checkpoint)?)
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Copied(Vec<u8>);

impl Snapshot for Copied {
    fn write_to(&mut self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.0)
    }
}
