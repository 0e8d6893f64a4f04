// SPDX-License-Identifier: Apache-2.0
//! Numbers by process: its CPU, its memory.

use std::collections::BTreeMap;

use local_cluster::processes::{Processes, cpu_seconds, memory_mib, own_cpu_seconds};

/// A number for each process, by its name.
pub type ByProcess = BTreeMap<String, f64>;

/// Returns the CPU seconds of each process so far.
pub(crate) fn cpu_by_process(processes: &Processes) -> ByProcess {
    by_process(processes, cpu_seconds, Some(own_cpu_seconds()))
}

/// Returns the MiB of memory of each process.
pub(crate) fn memory_by_process(processes: &Processes) -> ByProcess {
    by_process(processes, memory_mib, memory_mib(std::process::id()))
}

/// Measures each process, and this one as the client.
pub(crate) fn by_process(
    processes: &Processes,
    measure: fn(u32) -> Option<f64>,
    client: Option<f64>,
) -> ByProcess {
    let nodes = processes.pids().into_iter();
    let nodes = nodes.filter_map(|(name, pid)| Some((name, measure(pid)?)));
    let client = client.map(|measured| ("client".to_string(), measured));
    nodes.chain(client).collect()
}

/// Returns what was added between two measurements.
pub(crate) fn difference(before: &ByProcess, after: &ByProcess) -> ByProcess {
    after
        .iter()
        .map(|(name, s)| (name.clone(), s - before.get(name).unwrap_or(&0.0)))
        .collect()
}
