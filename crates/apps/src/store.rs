// SPDX-License-Identifier: Apache-2.0
//! One safe wrapper for both libraries. Their C interfaces differ only in names, so each library
//! fills a table of functions ([`Api`]) and says how it opens a database ([`Engine`]).

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::library_time::LibraryTime;
use replica::{Error, MOVE_AWAY};

/// A database, batch, iterator or options object of the library.
pub(crate) type Raw = *mut c_void;
/// The place where the library puts the text of an error, which it allocates.
pub(crate) type ErrorText = *mut *mut c_char;

/// An object that must outlive an open database.
pub(crate) type OpenGuard = Box<dyn Send + Sync>;
/// A key and its value.
type Pair<'a> = (&'a [u8], &'a [u8]);

/// The library's functions.
pub(crate) struct Api {
    pub close: unsafe extern "C" fn(db: Raw),
    pub write: unsafe extern "C" fn(db: Raw, options: Raw, batch: Raw, error: ErrorText),
    pub get: unsafe extern "C" fn(
        db: Raw,
        options: Raw,
        key: *const c_char,
        key_len: usize,
        value_len: *mut usize,
        error: ErrorText,
    ) -> *mut c_char,
    pub free: unsafe extern "C" fn(memory: Raw),
    pub readoptions_create: unsafe extern "C" fn() -> Raw,
    pub readoptions_destroy: unsafe extern "C" fn(options: Raw),
    pub readoptions_set_verify_checksums: unsafe extern "C" fn(options: Raw, on: u8),
    pub readoptions_set_fill_cache: unsafe extern "C" fn(options: Raw, on: u8),
    pub writeoptions_create: unsafe extern "C" fn() -> Raw,
    pub writeoptions_destroy: unsafe extern "C" fn(options: Raw),
    pub batch_create: unsafe extern "C" fn() -> Raw,
    pub batch_destroy: unsafe extern "C" fn(batch: Raw),
    pub batch_clear: unsafe extern "C" fn(batch: Raw),
    pub batch_put: unsafe extern "C" fn(
        batch: Raw,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
    ),
    pub batch_delete: unsafe extern "C" fn(batch: Raw, key: *const c_char, key_len: usize),
    pub iter_create: unsafe extern "C" fn(db: Raw, options: Raw) -> Raw,
    pub iter_destroy: unsafe extern "C" fn(iter: Raw),
    pub iter_valid: unsafe extern "C" fn(iter: Raw) -> u8,
    pub iter_seek: unsafe extern "C" fn(iter: Raw, key: *const c_char, key_len: usize),
    pub iter_next: unsafe extern "C" fn(iter: Raw),
    pub iter_key: unsafe extern "C" fn(iter: Raw, len: *mut usize) -> *const c_char,
    pub iter_value: unsafe extern "C" fn(iter: Raw, len: *mut usize) -> *const c_char,
    pub iter_get_error: unsafe extern "C" fn(iter: Raw, error: ErrorText),
}

/// One of the libraries.
pub(crate) struct Engine {
    /// The library's name in messages.
    pub name: &'static str,
    /// Loads the library, which comes before any call of its functions.
    pub load: fn() -> Result<(), String>,
    /// The library's functions.
    pub api: &'static Api,
    /// Opens the database in a directory. The second result is dropped after closing.
    pub open: fn(dir: &CStr, missing: Missing, error: ErrorText) -> (Raw, OpenGuard),
    /// Copies an open database into a new directory, from any thread, with hard links to files that
    /// don't change any more. None if the library can't.
    pub link: Option<fn(db: Raw, to: &CStr, error: ErrorText)>,
}

/// The treatment of a database that doesn't exist.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The database is created. Where one had existed, this would mean to forget it.
    Create,
    /// The database's absence is an error.
    Refuse,
}

/// An open database.
pub(crate) struct Store {
    shared: Arc<Shared>,
    batch: Raw,
    /// The CPU time of three kinds of calls: looking a key up, adding to the batch, and writing the
    /// batch.
    time: [LibraryTime; 3],
}

// SAFETY: the batch belongs to this value alone and neither library ties it to a thread.
unsafe impl Send for Store {}

/// The part of a store that its cursors and [`Written`] share: the database closes when the last of
/// them is gone.
pub(crate) struct Shared {
    engine: &'static Engine,
    db: Raw,
    dir: PathBuf,
    read: Raw,
    scan: Raw,
    write: Raw,
    /// The files are removed once the database is closed.
    is_replaced: AtomicBool,
    /// Objects that the database uses; as a field, this is dropped after the database is closed.
    _kept: OpenGuard,
}

// SAFETY: both libraries document a database as safe for concurrent use by several threads; the
// options are never changed once they are here.
unsafe impl Send for Shared {}
// SAFETY: the same holds as for `Send`.
unsafe impl Sync for Shared {}

impl Store {
    /// Opens the database in `dir`.
    pub fn open(engine: &'static Engine, dir: &Path, missing: Missing) -> Result<Store, Error> {
        let fail = |e: String| failed(engine, "open", dir, &e);
        (engine.load)().map_err(fail)?;
        let path = terminated(dir).map_err(fail)?;
        let mut error = ptr::null_mut();
        let (db, kept) = (engine.open)(&path, missing, &mut error);
        take_error(engine.api, error).map_err(fail)?;
        let api = engine.api;
        // SAFETY: creating options and batches has no preconditions; each is destroyed once, by
        // `Drop` of its owner.
        let (read, scan, write, batch) = unsafe {
            let read = (api.readoptions_create)();
            let scan = (api.readoptions_create)();
            (api.readoptions_set_verify_checksums)(read, 1);
            (api.readoptions_set_verify_checksums)(scan, 1);
            // A walk over everything would push the useful blocks out of the cache.
            (api.readoptions_set_fill_cache)(scan, 0);
            (
                read,
                scan,
                (api.writeoptions_create)(),
                (api.batch_create)(),
            )
        };
        let shared = Shared {
            engine,
            db,
            dir: dir.to_owned(),
            read,
            scan,
            write,
            is_replaced: AtomicBool::new(false),
            _kept: kept,
        };
        Ok(Store {
            shared: Arc::new(shared),
            batch,
            time: Default::default(),
        })
    }

    /// Gives up a store that another one has replaced. Its readers can go on: the libraries open
    /// files while they read, so the files are removed only when the last reader is gone.
    pub fn replaced(self) {
        self.shared.is_replaced.store(true, Ordering::Relaxed);
    }

    /// Returns the store's directory.
    pub fn dir(&self) -> &Path {
        &self.shared.dir
    }

    /// Returns the value of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>, Error> {
        let shared = &*self.shared;
        let (mut len, mut error) = (0, ptr::null_mut());
        // SAFETY: database and options are alive as long as `shared`; the key is valid for its
        // length; the result is null or `len` bytes that `Value` frees.
        let memory = self.time[0].during(|| unsafe {
            (shared.engine.api.get)(
                shared.db,
                shared.read,
                key.as_ptr().cast(),
                key.len(),
                &mut len,
                &mut error,
            )
        });
        self.check(error, "read from")?;
        Ok((!memory.is_null()).then_some(Value {
            free: shared.engine.api.free,
            memory,
            len,
        }))
    }

    /// Adds a put to the current batch.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        // SAFETY: the batch is alive; both slices are valid for their lengths and are copied.
        self.time[1].during(|| unsafe {
            (self.shared.engine.api.batch_put)(
                self.batch,
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
            );
        });
    }

    /// Adds a deletion to the current batch.
    pub fn delete(&mut self, key: &[u8]) {
        // SAFETY: the batch is alive; the key is valid for its length and is copied.
        unsafe {
            (self.shared.engine.api.batch_delete)(self.batch, key.as_ptr().cast(), key.len());
        }
    }

    /// Writes the current batch atomically and begins a new one. The batch survives a kill of the
    /// process from here on, and a power failure from the next [`Written::sync`] on.
    pub fn write(&mut self) -> Result<(), Error> {
        let shared = &*self.shared;
        let mut error = ptr::null_mut();
        // SAFETY: database, options and batch are alive, and the batch is used by this thread only.
        self.time[2].during(|| unsafe {
            (shared.engine.api.write)(shared.db, shared.write, self.batch, &mut error);
            (shared.engine.api.batch_clear)(self.batch);
        });
        self.check(error, "write to")
    }

    /// Drops the current batch and begins a new one.
    pub fn forget_batch(&mut self) {
        // SAFETY: the batch is alive, and used by this thread only.
        unsafe { (self.shared.engine.api.batch_clear)(self.batch) }
    }

    /// Returns the CPU time spent in the library since this was opened, without cursors.
    pub fn library_cpu(&self) -> Duration {
        self.time.iter().map(LibraryTime::total).sum()
    }

    /// Returns a handle for everything written up to now, which any thread can sync.
    pub fn written(&self) -> Written {
        Written(self.shared.clone())
    }

    /// Returns a cursor over the present contents, before the first key. It may be moved to another
    /// thread.
    pub fn cursor(&self) -> Cursor {
        let shared = self.shared.clone();
        // SAFETY: database and options outlive the iterator because the cursor holds `shared`.
        let iter = unsafe { (shared.engine.api.iter_create)(shared.db, shared.scan) };
        Cursor { shared, iter }
    }

    fn check(&self, error: *mut c_char, doing: &str) -> Result<(), Error> {
        self.shared.check(error, doing)
    }
}

/// Everything that was written to a store up to some moment.
pub(crate) struct Written(Arc<Shared>);

impl Written {
    /// Makes everything written survive a power failure. This syncs the files itself: a synced
    /// write of LevelDB syncs only the present log file, while the one before it, unsynced, may
    /// still be the only copy of the memory table that is being written out; and Debian's RocksDB,
    /// built with assertions, aborts when it must sync a log file to which a write has failed in
    /// another thread.
    pub fn sync(&self) -> Result<(), Error> {
        let Shared { engine, dir, .. } = &*self.0;
        sync_logs(dir).map_err(|e| failed(engine, "sync", dir, &e.to_string()))
    }
}

impl Written {
    /// Returns a function that copies the store into a new directory, with at least everything
    /// written, but not synced. `None` if the library can't copy by links.
    pub fn link(self) -> Option<impl FnOnce(&Path) -> Result<(), Error> + Send> {
        let link = self.0.engine.link?;
        Some(move |to: &Path| {
            let shared = &self.0;
            let path = terminated(to).map_err(|e| failed(shared.engine, "copy", to, &e))?;
            let mut error = ptr::null_mut();
            link(shared.db, &path, &mut error);
            shared.check(error, "copy")
        })
    }
}

fn terminated(path: &Path) -> Result<CString, String> {
    CString::new(path.as_os_str().as_bytes()).map_err(|e| e.to_string())
}

/// Syncs the log files and the directory. That is enough, since each write is handed to the kernel
/// before it returns.
fn sync_logs(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        match File::open(&path) {
            Ok(file) => file.sync_data()?,
            // The missing file's contents have reached a table, which the library syncs.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    File::open(dir)?.sync_all()
}

impl Shared {
    /// Turns the library's error, if there is one, into an error that names the action and the
    /// directory.
    pub fn check(&self, error: *mut c_char, doing: &str) -> Result<(), Error> {
        take_error(self.engine.api, error).map_err(|e| failed(self.engine, doing, &self.dir, &e))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: the batch was created in `open`, is destroyed here only, and not used again.
        unsafe { (self.shared.engine.api.batch_destroy)(self.batch) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let api = self.engine.api;
        // SAFETY: the last owner is going, so no cursor is left; each object was created in
        // `Store::open` and is destroyed here only. What the options refer to (`_kept`) is dropped
        // afterwards.
        unsafe {
            (api.close)(self.db);
            (api.readoptions_destroy)(self.read);
            (api.readoptions_destroy)(self.scan);
            (api.writeoptions_destroy)(self.write);
        }
        if *self.is_replaced.get_mut() {
            // A directory that can't be removed now is removed at the next start.
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// A value in the library's memory.
pub(crate) struct Value {
    free: unsafe extern "C" fn(Raw),
    memory: *mut c_char,
    len: usize,
}

impl std::ops::Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `memory` is not null and holds `len` bytes until `drop`.
        unsafe { std::slice::from_raw_parts(self.memory.cast(), self.len) }
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        // SAFETY: the library allocated it, and nobody else frees it.
        unsafe { (self.free)(self.memory.cast()) }
    }
}

/// Walks the contents of one moment in key order.
pub(crate) struct Cursor {
    shared: Arc<Shared>,
    iter: Raw,
}

// SAFETY: an iterator needs external synchronisation only, which `&mut self` gives; neither library
// ties it to a thread.
unsafe impl Send for Cursor {}

impl Cursor {
    /// Goes to the first key that isn't before `key`.
    pub fn seek(&mut self, key: &[u8]) {
        // SAFETY: the iterator is alive; the key is valid for its length.
        unsafe { (self.shared.engine.api.iter_seek)(self.iter, key.as_ptr().cast(), key.len()) }
    }

    /// Goes on to the next key. The cursor must not be at the end.
    pub fn advance(&mut self) {
        assert!(self.is_valid(), "advanced beyond the end");
        // SAFETY: the iterator is alive and valid.
        unsafe { (self.shared.engine.api.iter_next)(self.iter) }
    }

    /// Returns the present key and value, or `None` at the end. LevelDB skips records that it can't
    /// read, so a caller that stops before the end must also check for an error.
    pub fn entry(&self) -> Result<Option<Pair<'_>>, Error> {
        let api = self.shared.engine.api;
        let mut error = ptr::null_mut();
        // SAFETY: the iterator is alive.
        unsafe { (api.iter_get_error)(self.iter, &mut error) };
        self.shared.check(error, "read from")?;
        if !self.is_valid() {
            return Ok(None);
        }
        let (mut key_len, mut value_len) = (0, 0);
        // SAFETY: the iterator is valid; both slices live until it moves, which needs `&mut self`.
        unsafe {
            let key = (api.iter_key)(self.iter, &mut key_len);
            let value = (api.iter_value)(self.iter, &mut value_len);
            Ok(Some((
                std::slice::from_raw_parts(key.cast(), key_len),
                std::slice::from_raw_parts(value.cast(), value_len),
            )))
        }
    }

    fn is_valid(&self) -> bool {
        // SAFETY: the iterator is alive.
        unsafe { (self.shared.engine.api.iter_valid)(self.iter) != 0 }
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        // SAFETY: the iterator was created in `Store::cursor`, and is destroyed here only, before
        // `shared` is released.
        unsafe { (self.shared.engine.api.iter_destroy)(self.iter) }
    }
}

/// Returns an error that names the action and the directory, with a remedy if the library found
/// damage.
fn failed(engine: &Engine, doing: &str, dir: &Path, e: &str) -> Error {
    let name = engine.name;
    let dir = dir.display();
    let remedy = if is_damage(e) {
        format!("; the store is damaged: {MOVE_AWAY}")
    } else {
        String::new()
    };
    Error(format!(
        "cannot {doing} the {name} store in {dir}: {e}{remedy}"
    ))
}

/// Returns whether an error means damage, by how the texts of both libraries begin, or by a missing
/// or empty file (LevelDB can't map an empty one). Locks, full disks and the like are reported as
/// they are.
fn is_damage(e: &str) -> bool {
    let kinds = [
        "Corruption",
        "Invalid argument",
        "NotFound",
        "Not implemented",
    ];
    kinds.iter().any(|kind| e.starts_with(kind))
        || e.contains("No such file")
        || e.ends_with("Invalid argument")
}

/// Copies and frees the library's error text.
fn take_error(api: &Api, error: *mut c_char) -> Result<(), String> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the pointer is not null, so it leads to a terminated string that the library
    // allocated for us.
    unsafe {
        let text = CStr::from_ptr(error).to_string_lossy().into_owned();
        (api.free)(error.cast());
        Err(text)
    }
}
