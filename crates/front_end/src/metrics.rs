// SPDX-License-Identifier: Apache-2.0
//! Counters of the front end's work, for INFO and for the status and metrics of the node beside it.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU64};

use crate::answer_times::AnswerTimes;

/// Counters; all but `connected`, those of bytes, `commands_per_second`, `tls_trouble` and
/// `replicas_that_differ` only grow.
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
    /// Commands within the last second.
    pub commands_per_second: AtomicU64,
    /// Commands that went into the log.
    pub logged: AtomicU64,
    /// Commands that were answered without the log.
    pub reads: AtomicU64,
    /// Reads that went through the log after all, because they got no answer without it.
    pub reads_given_up: AtomicU64,
    /// Commands that were refused because the Redis servers have too much memory.
    pub refused_for_memory: AtomicU64,
    pub servers: ServersMemory,
    pub answer_times: AnswerTimes,
    /// Answers that were errors.
    pub errors: AtomicU64,
    pub protocol_errors: AtomicU64,
    /// Sessions that expired while commands were in flight.
    pub sessions_lost: AtomicU64,
    /// Clients whose TLS handshake succeeded.
    pub tls_handshakes: AtomicU64,
    /// Clients whose TLS handshake was refused by one of the two sides.
    pub tls_refused: AtomicU64,
    /// Clients that broke the handshake off, took too long, or had to make room for others.
    pub tls_unfinished: AtomicU64,
    /// Clients that didn't speak TLS although they must.
    pub tls_missing: AtomicU64,
    /// 1 while the certificate's files can't be used any more.
    pub tls_trouble: AtomicU64,
    /// If Redis itself is replicated, by how much the time that most nodes have is ahead of the
    /// group's time; 0 if they are about equal.
    pub clock_off_ms: AtomicI64,
    /// The number of replicas, in all partitions, whose Redis server has other contents than this
    /// one.
    pub replicas_that_differ: AtomicU64,
}

/// The memory of the Redis servers, in bytes.
#[derive(Default, Debug)]
pub struct ServersMemory {
    /// The memory that they have.
    pub used: AtomicU64,
    /// The memory that they may have; 0 without a limit.
    pub max: AtomicU64,
}

impl Metrics {
    /// Returns all counters by name, for the node's status.
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        let Metrics {
            connections,
            connections_refused,
            connected,
            output_limit_reached,
            evicted,
            memory_bytes,
            commands,
            commands_per_second,
            logged,
            reads,
            reads_given_up,
            refused_for_memory,
            servers,
            answer_times: _,
            errors,
            protocol_errors,
            sessions_lost,
            tls_handshakes,
            tls_refused,
            tls_unfinished,
            tls_missing,
            tls_trouble,
            clock_off_ms: _,
            replicas_that_differ,
        } = self;
        [
            ("connections", connections),
            ("connections_refused", connections_refused),
            ("connected", connected),
            ("output_limit_reached", output_limit_reached),
            ("evicted", evicted),
            ("memory_bytes", memory_bytes),
            ("commands", commands),
            ("commands_per_second", commands_per_second),
            ("logged", logged),
            ("reads", reads),
            ("reads_given_up", reads_given_up),
            ("refused_for_memory", refused_for_memory),
            ("servers_bytes", &servers.used),
            ("servers_max_bytes", &servers.max),
            ("errors", errors),
            ("protocol_errors", protocol_errors),
            ("sessions_lost", sessions_lost),
            ("tls_handshakes", tls_handshakes),
            ("tls_refused", tls_refused),
            ("tls_unfinished", tls_unfinished),
            ("tls_missing", tls_missing),
            ("tls_trouble", tls_trouble),
            ("replicas_that_differ", replicas_that_differ),
        ]
        .map(|(name, counter)| (name, Metrics::get(counter)))
        .to_vec()
    }

    /// Returns the warnings for an operator about the servers' memory and the group's time.
    pub fn warnings(&self) -> Vec<String> {
        let (used, max) = (
            Metrics::get(&self.servers.used),
            Metrics::get(&self.servers.max),
        );
        let is_full = max > 0 && used > max;
        let warning = format!(
            "the Redis servers have {} MiB, and max_memory_mib allows {}: commands that need more \
             memory are refused until keys are deleted or it is raised",
            used >> 20,
            max >> 20
        );
        let full = is_full.then_some(warning).into_iter();
        full.chain(self.warning_of_time()).collect()
    }

    fn warning_of_time(&self) -> Option<String> {
        let off = self.clock_off_ms.load(Relaxed);
        let (way, why) = match off > 0 {
            true => (
                "behind",
                "most replicas are silent, and it follows once they run",
            ),
            false => (
                "ahead of",
                "clocks that were ahead were set back, and it goes on at half speed",
            ),
        };
        let warning = format!(
            "the time of the group's Redis servers is {} s {way} what most nodes have: {why}, or \
             the front ends reach different nodes",
            off.unsigned_abs() / 1_000
        );
        (off != 0).then_some(warning)
    }

    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }

    pub(crate) fn get(counter: &AtomicU64) -> u64 {
        counter.load(Relaxed)
    }
}
