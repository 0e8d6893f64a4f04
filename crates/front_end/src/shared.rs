// SPDX-License-Identifier: Apache-2.0
//! The state that all commands of the front end share.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use paxos::wire::value::Vector;
use replica::parts::MAX_COMMAND_LEN;

use crate::executor::Way;
use crate::metrics::Metrics;
use crate::native::Native;
use crate::partitions::Partitions;
use crate::pubsub::channels::Channels;
use crate::pubsub::jobs::Jobs;
use crate::settings::{Describe, Neighbour, Neighbours, Order};
use crate::state::pause::Pause;
use crate::turns::Turn;
use crate::users::Users;
use crate::waits::Waits;

/// The state that all commands of the front end share.
pub(crate) struct Shared {
    pub partitions: u16,
    pub order: Order,
    /// True if reads may be answered without the log.
    pub without_log: bool,
    /// The Redis servers, if Redis itself is replicated.
    pub native: Option<Native>,
    /// Who executes each of the servers' commands, by its number in their catalogue.
    pub ways: Vec<Way>,
    pub users: RefCell<Users>,
    pub max_value: usize,
    pub max_clients: usize,
    pub max_output_bytes: usize,
    pub max_memory_bytes: usize,
    pub max_answer_bytes: usize,
    pub this: Neighbour,
    pub others: Neighbours,
    pub describe: Describe,
    pub metrics: Arc<Metrics>,
    /// The number of keys of each partition at this replica's last answer; `u64::MAX` before the
    /// first one.
    pub keys: Vec<AtomicU64>,
    pub started: Instant,
    /// The clients that wait for keys to change.
    pub waits: RefCell<Waits>,
    /// The clients' subscriptions.
    pub channels: RefCell<Channels>,
    /// The jobs that belong to no connection's turn.
    pub jobs: RefCell<Jobs>,
    pub turn: Turn,
    /// The pause, which postpones commands.
    pub pause: RefCell<Pause>,
}

/// Returns the bytes that a command of these partitions may have; over several partitions it must
/// fit one value. [S-PARTS]
pub(crate) fn max_len(partitions: Partitions, shared: &Shared) -> usize {
    match partitions.len() {
        0 | 1 => MAX_COMMAND_LEN,
        several => shared.max_value.saturating_sub(Vector::len_of(several)),
    }
}

/// Returns the error for a command that is too long.
pub(crate) fn too_large(len: u64, partitions: Partitions, shared: &Shared) -> String {
    let max = max_len(partitions, shared);
    match partitions.len() {
        0 | 1 => format!("ERR value too large: {len} bytes, a command may have {max}"),
        several => format!(
            "ERR value too large: {len} bytes, a command over {several} partitions may have {max} \
             (raise max_value, or use keys of one hash slot)"
        ),
    }
}
