// SPDX-License-Identifier: Apache-2.0
//! A key-value store as a replicated application.
//!
//! ```text
//! dir/current        names the engine, the format and the directory in use
//! dir/db-1           the store: user keys, our records, the number of keys
//! dir/db-2           one that a restore is filling; a start removes it if that was interrupted
//! ```

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use replica::application::{Checkpoint, Reader, Record, RecordVisitor, Restore, Snapshot};
use replica::storage::{private_directory, replace_file};
use replica::{Application, Error, Link, MOVE_AWAY, Part};
use sha2::{Digest, Sha256};

use crate::contents::{Contents, StoredKeys};
use crate::kv::{Command, MAX_REPLY_LEN};
use crate::kv_span::Share;
use crate::store::{Cursor, Engine};
use crate::{kv_exec, kv_span, leveldb, pairs, redis, rocksdb};

pub(crate) const CURRENT: &str = "current";
/// The generation of a directory's first store.
const FIRST: u64 = 1;
/// The format of a store's contents; other formats are refused.
const FORMAT: &str = "4";
/// The bytes that a restore collects before it writes them.
const LOAD_BATCH_BYTES: usize = 1 << 20;
/// The most commands that may wait for one commit, which takes some microseconds for each.
const MOST_AHEAD: u64 = 512;

/// Executes the language of [`kv`](crate::kv) on RocksDB or LevelDB.
pub struct KvApplication {
    share: Share,
    max_answer: usize,
    engine: &'static Engine,
    dir: PathBuf,
    /// The number of the store's directory within `dir`.
    generation: u64,
    contents: Contents,
    /// The next store, once another replica's state has been read into it.
    filled: Arc<Mutex<Option<Contents>>>,
}

impl KvApplication {
    /// Opens an application that stores its keys in RocksDB.
    pub fn open_rocksdb(dir: &Path) -> Result<KvApplication, Error> {
        Self::open(&rocksdb::ENGINE, dir)
    }

    /// Opens an application that stores its keys in LevelDB.
    pub fn open_leveldb(dir: &Path) -> Result<KvApplication, Error> {
        Self::open(&leveldb::ENGINE, dir)
    }

    /// Returns the application as one of several partitions: it has the keys of `share`, and takes
    /// part in commands over several partitions.
    pub fn with(self, share: Share) -> KvApplication {
        KvApplication { share, ..self }
    }

    /// Returns the application with another limit of an answer's bytes. No effect of a command
    /// depends on it, except that a read isn't executed whose answer is too long.
    pub fn with_max_answer(self, max_answer: usize) -> KvApplication {
        KvApplication { max_answer, ..self }
    }

    fn open(engine: &'static Engine, dir: &Path) -> Result<KvApplication, Error> {
        private_directory(dir).map_err(|e| failed("create", dir, &e))?;
        refuse_redis(dir)?;
        let named = read_current(engine, dir)?;
        let generation = named.unwrap_or(FIRST);
        // The store's lock is taken before the cleaning, since another process may be using the
        // directory.
        let store = store_dir(dir, generation);
        let contents = match named {
            Some(_) => Contents::open(engine, &store)?,
            None => Contents::create(engine, &store)?,
        };
        if named.is_none() {
            write_current(engine, dir, generation)?;
        }
        remove_others(dir, generation)?;
        Ok(KvApplication {
            share: Share::ALL,
            max_answer: MAX_REPLY_LEN,
            engine,
            dir: dir.to_owned(),
            generation,
            contents,
            filled: Arc::default(),
        })
    }

    fn next_store(&self) -> PathBuf {
        store_dir(&self.dir, self.generation + 1)
    }
}

/// Fills a new store with a snapshot, which is on disk when this returns.
fn fill(engine: &'static Engine, new_dir: &Path, from: &mut dyn Read) -> Result<Contents, Error> {
    let mut contents = Contents::create(engine, new_dir)?;
    let mut waiting = 0;
    pairs::read(from, |key, value| {
        if !contents.load(key, value) {
            return Err(pairs::damaged("it holds a key that no store can"));
        }
        waiting += key.len() + value.len();
        if waiting >= LOAD_BATCH_BYTES {
            waiting = 0;
            contents.finish_load().map_err(io::Error::other)?;
        }
        Ok(())
    })
    .map_err(|e| failed("restore a snapshot into", new_dir, &e))?;
    contents.end_load()?;
    contents.written().sync()?;
    Ok(contents)
}

impl Application for KvApplication {
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error> {
        kv_exec::execute(&mut self.contents, command, self.max_answer, reply)
    }

    fn is_read(&self, command: &[u8]) -> bool {
        Command::parse(command).is_ok_and(|command| command.is_read())
    }

    fn pass(&mut self, command: &[u8]) -> Result<bool, Error> {
        Ok(Command::parse(command).is_ok_and(|command| command.only_reads()))
    }

    fn read_again(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<bool, Error> {
        let is_read = self.pass(command)?;
        if is_read {
            self.execute(command, reply)?;
        }
        Ok(is_read)
    }

    fn spans_partitions(&self) -> bool {
        true
    }

    fn prepare(&mut self, command: &[u8], prepared: &mut Vec<u8>) -> Result<(), Error> {
        kv_span::prepare(&mut self.contents, self.share, command, prepared)
    }

    fn combine(
        &self,
        command: &[u8],
        parts: &mut [Part],
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        kv_span::combine(self.share, command, parts, reply);
        Ok(())
    }

    fn apply(&mut self, effect: &[u8]) -> Result<(), Error> {
        // The command was answered already, when the partitions' answers were combined.
        kv_exec::execute(&mut self.contents, effect, MAX_REPLY_LEN, &mut Vec::new())
    }

    fn commit(&mut self, records: &[Record]) -> Result<(), Error> {
        self.contents.commit(records)
    }

    fn can_discard(&self) -> bool {
        true
    }

    fn most_ahead(&self) -> u64 {
        MOST_AHEAD
    }

    fn discard(&mut self) -> Result<(), Error> {
        self.contents.discard()
    }

    fn records(&mut self, visit: &mut RecordVisitor<'_>) -> Result<(), Error> {
        self.contents.records(visit)
    }

    fn checkpoint(&mut self) -> Result<Checkpoint, Error> {
        let written = self.contents.written();
        Ok(Box::new(move || written.sync()))
    }

    fn snapshot(&mut self) -> Result<Box<dyn Snapshot>, Error> {
        Ok(Box::new(StoreSnapshot(self.contents.committed())))
    }

    fn reader(&mut self) -> Result<Box<dyn Reader>, Error> {
        Ok(Box::new(StoreReader(self.contents.keys())))
    }

    fn link(&mut self) -> Option<Link> {
        let (engine, link) = (self.engine, self.contents.written().link()?);
        Some(Box::new(move |dir| {
            link(&store_dir(dir, FIRST))?;
            write_current(engine, dir, FIRST)
        }))
    }

    fn begin_restore(&mut self) -> Result<Restore, Error> {
        self.forget_restore();
        let (engine, new_dir, filled) = (self.engine, self.next_store(), self.filled.clone());
        Ok(Box::new(move |from| {
            // A restore that failed before in this process may have left it.
            remove_dir(&new_dir)?;
            match fill(engine, &new_dir, from) {
                Ok(contents) => {
                    *filled.lock().unwrap_or_else(PoisonError::into_inner) = Some(contents);
                    Ok(())
                }
                Err(e) => {
                    remove_dir(&new_dir)?;
                    Err(e)
                }
            }
        }))
    }

    fn end_restore(&mut self) -> Result<(), Error> {
        let filled = self
            .filled
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let contents = filled.ok_or_else(|| Error("no other replica's state was read".into()))?;
        let generation = self.generation + 1;
        write_current(self.engine, &self.dir, generation)?;
        std::mem::replace(&mut self.contents, contents).replaced();
        self.generation = generation;
        Ok(())
    }

    fn forget_restore(&mut self) {
        self.filled = Arc::default();
        // A directory that can't be removed now is removed at the next start.
        let _ = remove_dir(&self.next_store());
    }

    fn library_cpu(&self) -> Duration {
        self.contents.library_cpu()
    }

    fn digest(&mut self) -> Result<[u8; 32], Error> {
        let mut sha = Sha256::new();
        let contents = &self.contents;
        let mut failed = None;
        contents.walk(0, |_, key, value| {
            sha.update((key.len() as u64).to_be_bytes());
            sha.update(key);
            sha.update((value.len() as u64).to_be_bytes());
            // The digest is the same however the value is stored.
            let shown = contents.show(key, value, |part| sha.update(part));
            failed = shown.err();
            failed.is_none()
        })?;
        failed.map_or(Ok(()), Err)?;
        Ok(sha.finalize().into())
    }
}

/// A snapshot, which keeps the contents of one moment, and the store open, until it is dropped.
struct StoreSnapshot(Cursor);

impl Snapshot for StoreSnapshot {
    fn write_to(&mut self, out: &mut dyn io::Write) -> io::Result<()> {
        self.0.seek(&[]);
        let mut writer = pairs::Writer::begin(out)?;
        while let Some((key, value)) = self.0.entry().map_err(io::Error::other)? {
            writer.pair(key, value)?;
            self.0.advance();
        }
        writer.end()
    }
}

/// A reader, which keeps the keys of one moment, and the store open, until it is dropped.
struct StoreReader(StoredKeys);

impl Reader for StoreReader {
    fn read(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error> {
        kv_exec::read(&mut self.0, command, reply)
    }
}

fn store_dir(dir: &Path, generation: u64) -> PathBuf {
    dir.join(format!("db-{generation}"))
}

/// Returns the generation that a directory's name shows. There is one name for each generation.
fn parse_generation(name: &str) -> Option<u64> {
    let generation: u64 = name.strip_prefix("db-")?.parse().ok()?;
    (name == format!("db-{generation}")).then_some(generation)
}

/// Refuses a directory that a Redis server has used: if a store were begun there, nobody would
/// notice that all data is missing.
fn refuse_redis(dir: &Path) -> Result<(), Error> {
    match dir.join(redis::STATE).exists() {
        false => Ok(()),
        true => Err(Error(format!(
            "{} holds {:?}, which is of `application = \"redis\"`: correct `application` or `data` \
             in the cluster file; or {MOVE_AWAY}",
            dir.display(),
            redis::STATE
        ))),
    }
}

/// Returns the generation of the store in use, or none before the first start has ended.
fn read_current(engine: &Engine, dir: &Path) -> Result<Option<u64>, Error> {
    let path = dir.join(CURRENT);
    let text = match fs::read(&path) {
        Ok(text) => String::from_utf8_lossy(&text).into_owned(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return none_named(dir),
        Err(e) => return Err(failed("read", &path, &e)),
    };
    let refused = |why: &str| {
        let path = path.display();
        Err(Error(format!("{path} {why}: {text:?}; {MOVE_AWAY}")))
    };
    let words: Vec<_> = text.strip_suffix('\n').unwrap_or("").split(' ').collect();
    match words[..] {
        [of, FORMAT, store] if of == engine.name => {
            let named = parse_generation(store).filter(|g| store_dir(dir, *g).is_dir());
            named.map_or_else(|| refused("names no store that is there"), |g| Ok(Some(g)))
        }
        [_, FORMAT, _] => refused(&format!("names a store that isn't {}", engine.name)),
        [_, _, _] => refused("names a store of another version of this program"),
        [store] if parse_generation(store).is_some() => {
            refused("names a store of an earlier version of this program")
        }
        _ => refused("is damaged"),
    }
}

/// Returns `None` if only the first store, or none, exists. If there are others, nobody knows which
/// of them was whole, so this refuses.
fn none_named(dir: &Path) -> Result<Option<u64>, Error> {
    match generations(dir)?.into_iter().find(|g| *g != FIRST) {
        None => Ok(None),
        Some(other) => Err(Error(format!(
            "{} is missing, and {} is there; {MOVE_AWAY}",
            dir.join(CURRENT).display(),
            store_dir(dir, other).display()
        ))),
    }
}

/// Returns the generations of all stores in the directory.
fn generations(dir: &Path) -> Result<Vec<u64>, Error> {
    let entries = fs::read_dir(dir).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
    let entries = entries.map_err(|e| failed("read", dir, &e))?;
    let name = |entry: &fs::DirEntry| entry.file_name().to_str().and_then(parse_generation);
    Ok(entries.iter().filter_map(name).collect())
}

/// Names the store in use, durably and atomically. The store's own directory entry is synced first.
fn write_current(engine: &Engine, dir: &Path, generation: u64) -> Result<(), Error> {
    let path = dir.join(CURRENT);
    pairs::sync_dir(dir)
        .and_then(|()| pairs::sync_dir(&store_dir(dir, generation)))
        .and_then(|()| {
            let text = format!("{} {FORMAT} db-{generation}\n", engine.name);
            replace_file(&path, text.as_bytes())
        })
        .map_err(|e| failed("write", &path, &e))
}

/// Removes stores that interrupted restores have left, and stores that were replaced.
fn remove_others(dir: &Path, generation: u64) -> Result<(), Error> {
    let mut others = generations(dir)?.into_iter().filter(|g| *g != generation);
    others.try_for_each(|other| remove_dir(&store_dir(dir, other)))
}

fn remove_dir(dir: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("remove", dir, &e)),
        _ => Ok(()),
    }
}

fn failed(doing: &str, path: &Path, e: &io::Error) -> Error {
    Error(format!("cannot {doing} {}: {e}", path.display()))
}
