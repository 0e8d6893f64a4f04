// SPDX-License-Identifier: Apache-2.0
//! RocksDB through the C interface of the unmodified system library (`rocksdb/c.h`).

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};

use crate::library::functions_of;
use crate::store::{Api, Engine, ErrorText, Missing, OpenGuard, Raw};

/// The library.
pub(crate) static ENGINE: Engine = Engine {
    name: "RocksDB",
    load,
    api: &API,
    open,
    link: Some(link),
};

/// The size of a memory table, of which two may be in memory at a time.
const WRITE_BUFFER_BYTES: usize = 64 << 20;
/// The cache is for data alone; index and filter of a file stay in memory as long as it is open. In
/// the cache, which has 64 parts, a filter of more than about 840,000 keys fits into no part: each
/// look-up would read it again, 1 MiB at a time.
const BLOCK_CACHE_BYTES: usize = 64 << 20;
/// This bounds indexes and filters, too: 1.25 bytes a key, some 2 MiB for each file at most.
const MAX_OPEN_FILES: i32 = 512;
/// A blind SET must know whether the key exists; the filter answers for most keys that don't.
const BLOOM_BITS_PER_KEY: f64 = 10.0;
/// The filter's share of the write buffer, for keys that are still in memory.
const MEMTABLE_BLOOM_RATIO: f64 = 0.02;
/// A level above all others, so RocksDB writes nothing to its own log `LOG`. On a full disk that
/// would be the first write to fail, and Debian's RocksDB, which is built with assertions, aborts
/// the process when it goes on with a file that it couldn't write. The texts of errors say what we
/// need to know.
const NO_INFO_LOG: i32 = 6;
/// The number of own logs that are kept: each start makes an empty one.
const INFO_LOGS: usize = 1;
/// `kPointInTimeRecovery`: after a power failure the log is replayed up to the first gap, also
/// across files, so the result is always a state that once existed.
const RECOVER_POINT_IN_TIME: i32 = 2;

fn open(dir: &CStr, missing: Missing, error: ErrorText) -> (Raw, OpenGuard) {
    // SAFETY: objects are created, used and destroyed in the order that the header asks for: the
    // table options own the filter and share the cache, the options copy the table options, and
    // the database copies the options. `dir` is a terminated string, `error` points to a null.
    unsafe {
        let cache = rocksdb_cache_create_lru(BLOCK_CACHE_BYTES);
        let table = rocksdb_block_based_options_create();
        rocksdb_block_based_options_set_block_cache(table, cache);
        rocksdb_block_based_options_set_cache_index_and_filter_blocks(table, 0);
        rocksdb_block_based_options_set_filter_policy(
            table,
            rocksdb_filterpolicy_create_bloom_full(BLOOM_BITS_PER_KEY),
        );
        let options = rocksdb_options_create();
        rocksdb_options_set_create_if_missing(options, u8::from(missing == Missing::Create));
        rocksdb_options_set_block_based_table_factory(options, table);
        rocksdb_options_set_write_buffer_size(options, WRITE_BUFFER_BYTES);
        rocksdb_options_set_memtable_prefix_bloom_size_ratio(options, MEMTABLE_BLOOM_RATIO);
        rocksdb_options_set_memtable_whole_key_filtering(options, 1);
        rocksdb_options_set_max_open_files(options, MAX_OPEN_FILES);
        rocksdb_options_set_info_log_level(options, NO_INFO_LOG);
        rocksdb_options_set_keep_log_file_num(options, INFO_LOGS);
        rocksdb_options_set_wal_recovery_mode(options, RECOVER_POINT_IN_TIME);
        let db = rocksdb_open(options, dir.as_ptr(), error);
        rocksdb_options_destroy(options);
        rocksdb_block_based_options_destroy(table);
        rocksdb_cache_destroy(cache);
        (db, Box::new(()))
    }
}

/// The length from which a log would be written into a table for a copy. It is never reached, since
/// that would stop writers; the log is copied instead.
const NEVER_FLUSH: u64 = u64::MAX;

fn link(db: Raw, to: &CStr, error: ErrorText) {
    // SAFETY: the caller keeps the database open, which several threads may use. The object is
    // destroyed once, and isn't null if there was no error. `to` is a terminated string, `error`
    // points to a null.
    unsafe {
        let checkpoint = rocksdb_checkpoint_object_create(db, error);
        if !checkpoint.is_null() {
            rocksdb_checkpoint_create(checkpoint, to.as_ptr(), NEVER_FLUSH, error);
            rocksdb_checkpoint_object_destroy(checkpoint);
        }
    }
}

functions_of! {
    env!("WIREPAXOS_ROCKSDB");
    fn rocksdb_checkpoint_object_create(db: Raw, error: ErrorText) -> Raw;
    fn rocksdb_checkpoint_create(
        checkpoint: Raw,
        dir: *const c_char,
        log_size_for_flush: u64,
        error: ErrorText,
    );
    fn rocksdb_checkpoint_object_destroy(checkpoint: Raw);
    fn rocksdb_open(options: Raw, dir: *const c_char, error: ErrorText) -> Raw;
    fn rocksdb_options_create() -> Raw;
    fn rocksdb_options_destroy(options: Raw);
    fn rocksdb_options_set_create_if_missing(options: Raw, on: u8);
    fn rocksdb_options_set_block_based_table_factory(options: Raw, table: Raw);
    fn rocksdb_options_set_write_buffer_size(options: Raw, bytes: usize);
    fn rocksdb_options_set_memtable_prefix_bloom_size_ratio(options: Raw, ratio: f64);
    fn rocksdb_options_set_memtable_whole_key_filtering(options: Raw, on: u8);
    fn rocksdb_options_set_max_open_files(options: Raw, files: i32);
    fn rocksdb_options_set_info_log_level(options: Raw, level: i32);
    fn rocksdb_options_set_keep_log_file_num(options: Raw, files: usize);
    fn rocksdb_options_set_wal_recovery_mode(options: Raw, mode: i32);
    fn rocksdb_block_based_options_create() -> Raw;
    fn rocksdb_block_based_options_destroy(table: Raw);
    fn rocksdb_block_based_options_set_block_cache(table: Raw, cache: Raw);
    fn rocksdb_block_based_options_set_cache_index_and_filter_blocks(table: Raw, on: u8);
    fn rocksdb_block_based_options_set_filter_policy(table: Raw, filter: Raw);
    fn rocksdb_filterpolicy_create_bloom_full(bits_per_key: f64) -> Raw;
    fn rocksdb_cache_create_lru(bytes: usize) -> Raw;
    fn rocksdb_cache_destroy(cache: Raw);
    fn rocksdb_close(db: Raw);
    fn rocksdb_write(db: Raw, options: Raw, batch: Raw, error: ErrorText);
    fn rocksdb_get(
        db: Raw,
        options: Raw,
        key: *const c_char,
        key_len: usize,
        value_len: *mut usize,
        error: ErrorText,
    ) -> *mut c_char;
    fn rocksdb_free(memory: Raw);
    fn rocksdb_readoptions_create() -> Raw;
    fn rocksdb_readoptions_destroy(options: Raw);
    fn rocksdb_readoptions_set_verify_checksums(options: Raw, on: u8);
    fn rocksdb_readoptions_set_fill_cache(options: Raw, on: u8);
    fn rocksdb_writeoptions_create() -> Raw;
    fn rocksdb_writeoptions_destroy(options: Raw);
    fn rocksdb_writebatch_create() -> Raw;
    fn rocksdb_writebatch_destroy(batch: Raw);
    fn rocksdb_writebatch_clear(batch: Raw);
    fn rocksdb_writebatch_put(
        batch: Raw,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
    );
    fn rocksdb_writebatch_delete(batch: Raw, key: *const c_char, key_len: usize);
    fn rocksdb_create_iterator(db: Raw, options: Raw) -> Raw;
    fn rocksdb_iter_destroy(iter: Raw);
    fn rocksdb_iter_valid(iter: Raw) -> u8;
    fn rocksdb_iter_seek(iter: Raw, key: *const c_char, key_len: usize);
    fn rocksdb_iter_next(iter: Raw);
    fn rocksdb_iter_key(iter: Raw, len: *mut usize) -> *const c_char;
    fn rocksdb_iter_value(iter: Raw, len: *mut usize) -> *const c_char;
    fn rocksdb_iter_get_error(iter: Raw, error: ErrorText);
}

static API: Api = Api {
    close: rocksdb_close,
    write: rocksdb_write,
    get: rocksdb_get,
    free: rocksdb_free,
    readoptions_create: rocksdb_readoptions_create,
    readoptions_destroy: rocksdb_readoptions_destroy,
    readoptions_set_verify_checksums: rocksdb_readoptions_set_verify_checksums,
    readoptions_set_fill_cache: rocksdb_readoptions_set_fill_cache,
    writeoptions_create: rocksdb_writeoptions_create,
    writeoptions_destroy: rocksdb_writeoptions_destroy,
    batch_create: rocksdb_writebatch_create,
    batch_destroy: rocksdb_writebatch_destroy,
    batch_clear: rocksdb_writebatch_clear,
    batch_put: rocksdb_writebatch_put,
    batch_delete: rocksdb_writebatch_delete,
    iter_create: rocksdb_create_iterator,
    iter_destroy: rocksdb_iter_destroy,
    iter_valid: rocksdb_iter_valid,
    iter_seek: rocksdb_iter_seek,
    iter_next: rocksdb_iter_next,
    iter_key: rocksdb_iter_key,
    iter_value: rocksdb_iter_value,
    iter_get_error: rocksdb_iter_get_error,
};
