// SPDX-License-Identifier: Apache-2.0
//! A partition's part of the status document.

use serde_json::{Value, json};

use super::super::node_protocol::NodeProtocol;
use super::super::promises;
use super::WorkerThread;

impl<G: NodeProtocol> WorkerThread<G> {
    /// Returns the status of the partition.
    pub(super) fn status(&mut self) -> Value {
        let statistics = self.worker.statistics();
        let (next, checkpointed) = (self.worker.next(), self.worker.checkpointed());
        let sends = self.plane.counters();
        let untrimmed = next.saturating_sub(checkpointed);
        let warning = (untrimmed * 10 >= self.window * 9)
            .then(|| format!("{untrimmed} instances since the last checkpoint fill the window"));
        let refused = self.outbox.links.warnings().into_iter().next();
        let warning = promises::warning(&self.worker).or(warning).or(refused);
        let counters = &self.outbox.links.counters;
        let counters = counters.with_dropped(&self.plane.dropped());
        let mut document = json!({
            "pid": self.pid,
            "next": next,
            "checkpoint": checkpointed,
            "incarnation": self.worker.execution().incarnation(),
            "waiting": self.worker.waiting(),
            "waits_for_siblings": self.worker.execution().waits_for_siblings(),
            "stopped": self.worker.execution().is_stopped(),
            "kept_outcomes": self.worker.execution().kept_outcomes(),
            "sessions": self.worker.sessions(),
            "commands": statistics.commands,
            "noops": statistics.noops,
            "repaired": statistics.repaired,
            "malformed": statistics.malformed,
            "checkpoints": statistics.checkpoints,
            "commits": statistics.commits,
            "rollbacks": statistics.rollbacks,
            "commit_holds": statistics.commit_holds,
            "store_cpu_s": self.worker.application().library_cpu().as_secs_f64(),
            "catching_up": self.worker.wanted().checkpoint_at_least,
            "packets_sent": sends.sent,
            "auth": self.keys.shown(),
            "sends_dropped": sends.dropped,
            "dropped": counters.dropped_to_json(),
            "warning": warning,
            "deadly": promises::deadly_to_json(&self.worker),
            "voided": promises::voided_to_json(&self.worker),
        });
        if let Some((protocol, shown)) = self.worker.agreement().shown_alone() {
            document[protocol] = shown;
        }
        if let Some(log) = &self.log {
            document["log"] = log.shown().to_json();
        }
        document
    }
}
