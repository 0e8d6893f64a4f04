//! What the demo found, as a table or as JSON.

use std::time::Duration;

use serde_json::json;

use super::load::{Record, Resolved};
use local_cluster::latency::{Latencies, Percentiles};

/// A stretch of load between two faults.
pub struct Phase {
    /// What happened at its start.
    pub name: &'static str,
    /// Commands answered a second.
    pub ops_per_s: f64,
    /// Longest time in which no command at all was answered.
    pub longest_gap: Duration,
}

/// Where the replicas ended: (name, next instance, digest).
pub struct Digests {
    /// One a replica.
    pub replicas: Vec<(String, u64, String)>,
    /// Whether all are there, at the same instance, with the same contents.
    pub equal: bool,
}

/// The demo's result.
pub struct Report {
    plane: String,
    phases: Vec<Phase>,
    ops_per_s: f64,
    latency: Percentiles,
    longest_gap: Duration,
    acknowledged: u64,
    imported: u64,
    resolved: Resolved,
    wrong: Vec<String>,
    reconnects: u64,
    digests: Digests,
}

impl Report {
    /// Puts the pieces together.
    pub fn new(
        plane: &str,
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
            plane: plane.to_string(),
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

    /// Why the demo counts as failed, if it does.
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

    /// Prints it.
    pub fn print(&self, as_json: bool) {
        if as_json {
            println!("{}", self.json());
        } else {
            self.table();
        }
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "plane": self.plane,
            "ops_per_s": self.ops_per_s.round(),
            "latency_us": self.latency.json(),
            "longest_gap_ms": millis(self.longest_gap),
            "acknowledged": self.acknowledged,
            "imported": self.imported,
            "lost": self.resolved.lost,
            "uncertain": self.resolved.uncertain,
            "uncertain_took_effect": self.resolved.took_effect,
            "wrong": self.wrong.len(),
            "reconnects": self.reconnects,
            "digests_equal": self.digests.equal,
            "phases": self.phases.iter().map(|p| json!({
                "name": p.name,
                "ops_per_s": p.ops_per_s.round(),
                "longest_gap_ms": millis(p.longest_gap),
            })).collect::<Vec<_>>(),
            "replicas": self.digests.replicas.iter().map(|(name, next, digest)| json!({
                "name": name, "next": next, "digest": digest,
            })).collect::<Vec<_>>(),
        })
    }

    fn table(&self) {
        println!("\n  phase                              operations/s   longest gap");
        for phase in &self.phases {
            println!(
                "  {:<34} {:>12.0} {:>10.1} ms",
                phase.name,
                phase.ops_per_s,
                millis(phase.longest_gap)
            );
        }
        println!(
            "\n  throughput          {:>12.0} operations/s",
            self.ops_per_s
        );
        println!("  latency p50         {:>12} µs", self.latency.p50);
        println!("  latency p99         {:>12} µs", self.latency.p99);
        println!("  latency p99.9       {:>12} µs", self.latency.p999);
        println!(
            "  longest gap         {:>12.1} ms",
            millis(self.longest_gap)
        );
        println!("  acknowledged writes {:>12}", self.acknowledged);
        println!("  values lost         {:>12}", self.resolved.lost);
        println!(
            "  uncertain writes    {:>12}, all resolved: {} took effect",
            self.resolved.uncertain, self.resolved.took_effect
        );
        println!("\n  replica      instance   SHA-256 of its contents");
        for (name, next, digest) in &self.digests.replicas {
            println!("  {name:<12} {next:>8}   {digest}");
        }
        let verdict = if self.digests.equal {
            "equal"
        } else {
            "DIFFERENT"
        };
        println!("  contents: {verdict}\n");
    }
}

fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10_000.0).round() / 10.0
}
