// SPDX-License-Identifier: Apache-2.0
//! What a run has measured.

use std::time::Duration;

use local_cluster::latency::Latencies;

use super::counters::Counters;
use crate::by_process::ByProcess;

/// The measurements of one load on one system.
pub struct Measured {
    /// Requests in flight.
    pub outstanding: u16,
    /// Clients that shared them.
    pub clients: u16,
    /// How long it took.
    pub elapsed: Duration,
    /// The latency of each command.
    pub latencies: Latencies,
    /// The longest time that a client was without any answer.
    pub longest_gap: Duration,
    /// The number of files that each store has written out of its memory.
    pub tables_written: Vec<usize>,
    /// The replicas' counters for this time.
    pub counters: Counters,
    /// Packets with a wrong tag that the leader has dropped meanwhile.
    pub(super) forged: u64,
    /// The process that leads.
    pub(super) leader: &'static str,
    /// The mean number of commands in a commit of the replicas; 0 if they don't report it.
    pub commands_in_a_commit: f64,
    /// CPU seconds.
    pub cpu_s: ByProcess,
    /// The CPU seconds of the stores' library, by replica.
    pub store_cpu_s: ByProcess,
    /// Resident memory in MiB.
    pub memory_before: ByProcess,
    /// Resident memory in MiB after the load.
    pub memory_after: ByProcess,
}

impl Measured {
    /// Returns the number of commands answered in a second.
    pub fn ops_per_s(&self) -> f64 {
        self.latencies.count() as f64 / self.elapsed.as_secs_f64()
    }

    /// Returns how many packets with a wrong tag the leader has dropped in a second.
    pub fn forged_per_s(&self) -> f64 {
        self.forged as f64 / self.elapsed.as_secs_f64()
    }

    /// Microseconds of CPU that the process that leads takes for a command.
    pub fn leader_cpu_us(&self) -> f64 {
        let seconds = self.cpu_s.get(self.leader).copied().unwrap_or(0.0);
        seconds * 1e6 / self.latencies.count().max(1) as f64
    }

    /// Returns CPU seconds for a million commands.
    pub fn cpu_s_per_million(&self) -> ByProcess {
        let millions = self.latencies.count() as f64 / 1e6;
        let each = |(name, s): (&String, &f64)| (name.clone(), s / millions);
        self.cpu_s.iter().map(each).collect()
    }
}
