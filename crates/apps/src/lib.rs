// SPDX-License-Identifier: Apache-2.0
//! Applications to replicate: echo, RocksDB, LevelDB, and Redis itself.

use std::path::Path;

pub use replica::{Application, Error};

mod contents;
pub mod echo;
mod generations;
pub mod glob;
mod keys;
mod known_keys;
pub mod kv;
mod kv_app;
mod kv_exec;
mod kv_span;
mod leveldb;
mod library;
mod library_time;
mod pairs;
pub mod place;
mod recent;
pub mod redis;
mod rocksdb;
mod store;
mod strings;
mod watches;

pub use echo::Echo;
pub use kv_app::KvApplication;
pub use kv_span::Share;
pub use redis::Redis;

/// The applications that [`open`] knows.
pub const NAMES: [&str; 4] = ["echo", "rocksdb", "leveldb", "redis"];

/// Opens an application by its name, with its state in `dir`, which is created if missing.
pub fn open(name: &str, dir: &Path) -> Result<Box<dyn Application>, Error> {
    open_share(name, dir, Share::ALL, kv::MAX_REPLY_LEN)
}

/// Opens an application for one partition of several. An answer has at most `max_answer` bytes.
pub fn open_share(
    name: &str,
    dir: &Path,
    share: Share,
    max_answer: usize,
) -> Result<Box<dyn Application>, Error> {
    let of_store = |store: KvApplication| Box::new(store.with(share).with_max_answer(max_answer));
    match name {
        "echo" => Ok(Box::new(Echo::open(dir)?)),
        "rocksdb" => Ok(of_store(KvApplication::open_rocksdb(dir)?)),
        "leveldb" => Ok(of_store(KvApplication::open_leveldb(dir)?)),
        "redis" => Ok(Box::new(Redis::open(dir)?)),
        _ => Err(Error(format!(
            "no application is called {name:?}: choose one of {}",
            NAMES.join(", ")
        ))),
    }
}
