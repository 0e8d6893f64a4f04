//! What the front end has done; read by the node while it runs.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters; all but `connected` and `memory_bytes` only grow.
#[derive(Default, Debug)]
#[allow(missing_docs)] // the names say it
pub struct Metrics {
    pub connections: AtomicU64,
    pub connections_refused: AtomicU64,
    /// Connections open now.
    pub connected: AtomicU64,
    /// Connections that were ended for letting answers pile up.
    pub output_limit_reached: AtomicU64,
    /// Connections that were ended because all together kept too much memory.
    pub evicted: AtomicU64,
    /// Bytes that all connections keep in memory now.
    pub memory_bytes: AtomicU64,
    pub commands: AtomicU64,
    /// Commands that went into the log.
    pub logged: AtomicU64,
    /// Answers that were errors.
    pub errors: AtomicU64,
    pub protocol_errors: AtomicU64,
    /// Sessions that expired while commands were in flight.
    pub sessions_lost: AtomicU64,
}

impl Metrics {
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }

    pub(crate) fn get(counter: &AtomicU64) -> u64 {
        counter.load(Relaxed)
    }
}
