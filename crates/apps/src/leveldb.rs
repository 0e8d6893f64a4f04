// SPDX-License-Identifier: Apache-2.0
//! LevelDB through the C interface of the unmodified system library (`leveldb/c.h`).

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};

use crate::library::functions_of;
use crate::store::{Api, Engine, ErrorText, Missing, OpenGuard, Raw};

/// The library.
pub(crate) static ENGINE: Engine = Engine {
    name: "LevelDB",
    load,
    api: &API,
    open,
    link: None,
};

/// The size of a memory table, of which two may be in memory at a time.
const WRITE_BUFFER_BYTES: usize = 32 << 20;
const BLOCK_CACHE_BYTES: usize = 64 << 20;
const MAX_OPEN_FILES: i32 = 512;
/// A blind SET must know whether the key exists; the filter answers for most keys that don't.
const BLOOM_BITS_PER_KEY: i32 = 10;

/// The cache and the filter, which must outlive the database, since LevelDB's options only point to
/// them.
struct CacheAndFilter {
    cache: Raw,
    filter: Raw,
}

// SAFETY: this is held for its destruction only; the library synchronises its own use.
unsafe impl Send for CacheAndFilter {}
// SAFETY: the same holds as for `Send`.
unsafe impl Sync for CacheAndFilter {}

impl Drop for CacheAndFilter {
    fn drop(&mut self) {
        // SAFETY: both were created in `open`, and the database that used them is closed.
        unsafe {
            leveldb_cache_destroy(self.cache);
            leveldb_filterpolicy_destroy(self.filter);
        }
    }
}

fn open(dir: &CStr, missing: Missing, error: ErrorText) -> (Raw, OpenGuard) {
    // SAFETY: the options are alive until the database has copied them; cache and filter live in
    // `CacheAndFilter`, beyond the database. `dir` is a terminated string, `error` points to a
    // null.
    unsafe {
        let kept = CacheAndFilter {
            cache: leveldb_cache_create_lru(BLOCK_CACHE_BYTES),
            filter: leveldb_filterpolicy_create_bloom(BLOOM_BITS_PER_KEY),
        };
        let options = leveldb_options_create();
        leveldb_options_set_create_if_missing(options, u8::from(missing == Missing::Create));
        leveldb_options_set_cache(options, kept.cache);
        leveldb_options_set_filter_policy(options, kept.filter);
        leveldb_options_set_write_buffer_size(options, WRITE_BUFFER_BYTES);
        leveldb_options_set_max_open_files(options, MAX_OPEN_FILES);
        // Without this LevelDB skips damaged records of its log and keeps later ones, which would
        // be a state that no replica ever had.
        leveldb_options_set_paranoid_checks(options, 1);
        let db = leveldb_open(options, dir.as_ptr(), error);
        leveldb_options_destroy(options);
        (db, Box::new(kept))
    }
}

functions_of! {
    env!("WIREPAXOS_LEVELDB");
    fn leveldb_open(options: Raw, dir: *const c_char, error: ErrorText) -> Raw;
    fn leveldb_options_create() -> Raw;
    fn leveldb_options_destroy(options: Raw);
    fn leveldb_options_set_create_if_missing(options: Raw, on: u8);
    fn leveldb_options_set_cache(options: Raw, cache: Raw);
    fn leveldb_options_set_filter_policy(options: Raw, filter: Raw);
    fn leveldb_options_set_write_buffer_size(options: Raw, bytes: usize);
    fn leveldb_options_set_max_open_files(options: Raw, files: i32);
    fn leveldb_options_set_paranoid_checks(options: Raw, on: u8);
    fn leveldb_cache_create_lru(bytes: usize) -> Raw;
    fn leveldb_cache_destroy(cache: Raw);
    fn leveldb_filterpolicy_create_bloom(bits_per_key: i32) -> Raw;
    fn leveldb_filterpolicy_destroy(filter: Raw);
    fn leveldb_close(db: Raw);
    fn leveldb_write(db: Raw, options: Raw, batch: Raw, error: ErrorText);
    fn leveldb_get(
        db: Raw,
        options: Raw,
        key: *const c_char,
        key_len: usize,
        value_len: *mut usize,
        error: ErrorText,
    ) -> *mut c_char;
    fn leveldb_free(memory: Raw);
    fn leveldb_readoptions_create() -> Raw;
    fn leveldb_readoptions_destroy(options: Raw);
    fn leveldb_readoptions_set_verify_checksums(options: Raw, on: u8);
    fn leveldb_readoptions_set_fill_cache(options: Raw, on: u8);
    fn leveldb_writeoptions_create() -> Raw;
    fn leveldb_writeoptions_destroy(options: Raw);
    fn leveldb_writebatch_create() -> Raw;
    fn leveldb_writebatch_destroy(batch: Raw);
    fn leveldb_writebatch_clear(batch: Raw);
    fn leveldb_writebatch_put(
        batch: Raw,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
    );
    fn leveldb_writebatch_delete(batch: Raw, key: *const c_char, key_len: usize);
    fn leveldb_create_iterator(db: Raw, options: Raw) -> Raw;
    fn leveldb_iter_destroy(iter: Raw);
    fn leveldb_iter_valid(iter: Raw) -> u8;
    fn leveldb_iter_seek(iter: Raw, key: *const c_char, key_len: usize);
    fn leveldb_iter_next(iter: Raw);
    fn leveldb_iter_key(iter: Raw, len: *mut usize) -> *const c_char;
    fn leveldb_iter_value(iter: Raw, len: *mut usize) -> *const c_char;
    fn leveldb_iter_get_error(iter: Raw, error: ErrorText);
}

static API: Api = Api {
    close: leveldb_close,
    write: leveldb_write,
    get: leveldb_get,
    free: leveldb_free,
    readoptions_create: leveldb_readoptions_create,
    readoptions_destroy: leveldb_readoptions_destroy,
    readoptions_set_verify_checksums: leveldb_readoptions_set_verify_checksums,
    readoptions_set_fill_cache: leveldb_readoptions_set_fill_cache,
    writeoptions_create: leveldb_writeoptions_create,
    writeoptions_destroy: leveldb_writeoptions_destroy,
    batch_create: leveldb_writebatch_create,
    batch_destroy: leveldb_writebatch_destroy,
    batch_clear: leveldb_writebatch_clear,
    batch_put: leveldb_writebatch_put,
    batch_delete: leveldb_writebatch_delete,
    iter_create: leveldb_create_iterator,
    iter_destroy: leveldb_iter_destroy,
    iter_valid: leveldb_iter_valid,
    iter_seek: leveldb_iter_seek,
    iter_next: leveldb_iter_next,
    iter_key: leveldb_iter_key,
    iter_value: leveldb_iter_value,
    iter_get_error: leveldb_iter_get_error,
};
