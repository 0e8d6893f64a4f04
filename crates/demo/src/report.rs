// SPDX-License-Identifier: Apache-2.0
//! The results of the demo.

use std::time::Duration;

use super::load::{Record, Resolved};
use local_cluster::latency::{Latencies, Percentiles};
use node::cluster_file::{Auth, Protocol};

/// A stretch of load between two faults.
pub struct Phase {
    /// The fault at the start of the stretch.
    pub name: &'static str,
    /// Commands answered a second.
    pub ops_per_s: f64,
    /// Longest time in which no command at all was answered.
    pub longest_gap: Duration,
}

/// The final state of the replicas: (name, next instance, digest).
pub struct Digests {
    /// The state of each replica.
    pub replicas: Vec<(String, u64, String)>,
    /// True if all are there, at the same instance, with the same contents.
    pub equal: bool,
}

/// The demo's result.
pub struct Report {
    /// How the cluster agreed.
    pub protocol: Protocol,
    /// The plane of the nodes.
    pub plane: String,
    /// The packets that were signed.
    pub auth: Auth,
    /// The stretches of load, in order.
    pub phases: Vec<Phase>,
    /// Commands answered a second, over all stretches.
    pub ops_per_s: f64,
    /// How long answers took.
    pub latency: Percentiles,
    /// Longest time in which no command at all was answered.
    pub longest_gap: Duration,
    /// Writes that were acknowledged, imported ones included.
    pub acknowledged: u64,
    /// Records imported before the load.
    pub imported: u64,
    /// The outcomes of the writes.
    pub resolved: Resolved,
    /// Answers that can't be.
    pub wrong: Vec<String>,
    /// Connections made anew.
    pub reconnects: u64,
    /// The final state of the replicas.
    pub digests: Digests,
}

impl Report {
    /// Puts the pieces together.
    pub(crate) fn new(
        (protocol, plane, auth): (Protocol, &str, Auth),
        elapsed: Duration,
        phases: Vec<Phase>,
        records: &[Record],
        imported: u64,
        resolved: Resolved,
        digests: Digests,
    ) -> Report {
        let mut latencies = Latencies::new();
        records.iter().for_each(|r| latencies.add(&r.latencies));
        Report {
            protocol,
            plane: plane.to_string(),
            auth,
            ops_per_s: latencies.count() as f64 / elapsed.as_secs_f64(),
            latency: latencies.percentiles_us(),
            longest_gap: phases
                .iter()
                .map(|p| p.longest_gap)
                .max()
                .unwrap_or_default(),
            acknowledged: imported + records.iter().map(|r| r.acknowledged).sum::<u64>(),
            imported,
            resolved,
            wrong: records
                .iter()
                .flat_map(|r| r.wrong.iter().cloned())
                .collect(),
            reconnects: records.iter().map(|r| r.reconnects).sum(),
            phases,
            digests,
        }
    }

    /// Returns why the demo counts as failed, if it does.
    pub fn failure(&self) -> Option<String> {
        if self.resolved.lost > 0 {
            Some(format!(
                "{} acknowledged writes are missing",
                self.resolved.lost
            ))
        } else if let Some(first) = self.wrong.first() {
            Some(format!(
                "{} wrong answers, the first: {first}",
                self.wrong.len()
            ))
        } else if !self.digests.equal {
            Some("the replicas' contents differ".to_string())
        } else {
            None
        }
    }
}
