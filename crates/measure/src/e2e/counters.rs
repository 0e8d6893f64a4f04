// SPDX-License-Identifier: Apache-2.0
//! Counters of replicas, whatever protocol they run.

use std::collections::BTreeMap;

use serde_json::Value;

/// Counters of all replicas of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Log entries that replicas had to ask for, all of them together.
    pub gaps: u64,
    /// Slots that hold nothing, as the replica that has counted most of them saw it.
    pub noops: u64,
    /// Views, or epochs, that began, seen in the same way.
    pub view_changes: u64,
    /// How often, or for how many slots, a replica took back what it had executed; all of them
    /// together.
    pub rollbacks: u64,
    /// How often commands of a replica had to wait for a commit, and it for more of the log; all of
    /// them together.
    pub commit_holds: u64,
}

impl Counters {
    /// Returns what came since.
    pub fn since(&self, before: &Counters) -> Counters {
        Counters {
            gaps: self.gaps.saturating_sub(before.gaps),
            noops: self.noops.saturating_sub(before.noops),
            view_changes: self.view_changes.saturating_sub(before.view_changes),
            rollbacks: self.rollbacks.saturating_sub(before.rollbacks),
            commit_holds: self.commit_holds.saturating_sub(before.commit_holds),
        }
    }

    /// Returns what nodes of the product say in their status documents.
    pub fn in_documents(documents: &BTreeMap<String, Value>) -> Counters {
        let mut all = Counters::default();
        for document in documents.values() {
            let epoch = document["epoch"].as_u64().unwrap_or(0);
            all.view_changes = all.view_changes.max(epoch);
            for partition in partitions(document) {
                let number = |name: &str| partition[name].as_u64().unwrap_or(0);
                let ordered = |name: &str| partition["nopaxos"][name].as_u64();
                all.gaps += ordered("gaps_asked").unwrap_or_else(|| number("repaired"));
                all.noops = all.noops.max(number("noops"));
                let views = ordered("view_changes").unwrap_or(0);
                all.view_changes = all.view_changes.max(views);
                all.rollbacks += number("rollbacks");
                all.commit_holds += number("commit_holds");
            }
        }
        all
    }
}

/// Returns the partitions that a replica's document shows.
pub(super) fn partitions(document: &Value) -> impl Iterator<Item = &Value> {
    document["partitions"].as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn replicas_of_both_protocols_are_counted() {
        let paxos = |repaired, noops| {
            json!({ "epoch": 3, "partitions": [
                { "repaired": repaired, "noops": noops, "rollbacks": 0, "commit_holds": 0 },
            ]})
        };
        let documents = |each: [Value; 2]| -> BTreeMap<String, Value> {
            let names = ["replica-1", "replica-2"].map(str::to_owned);
            names.into_iter().zip(each).collect()
        };
        let of_paxos = Counters::in_documents(&documents([paxos(2, 7), paxos(1, 5)]));
        let expected = Counters {
            gaps: 3,
            noops: 7,
            view_changes: 3,
            ..Counters::default()
        };
        assert_eq!(of_paxos, expected);

        let ordered = |asked, views| {
            let own = json!({ "gaps_asked": asked, "view_changes": views });
            let partition = json!({
                "repaired": 90, "noops": 4, "rollbacks": 1, "commit_holds": 6, "nopaxos": own,
            });
            json!({ "epoch": 1, "partitions": [partition] })
        };
        let before = Counters::in_documents(&documents([ordered(2, 5), ordered(1, 4)]));
        let expected = Counters {
            gaps: 3,
            noops: 4,
            view_changes: 5,
            rollbacks: 2,
            commit_holds: 12,
        };
        assert_eq!(before, expected);
        let after = Counters::in_documents(&documents([ordered(2, 6), ordered(5, 4)]));
        let since = Counters {
            gaps: 4,
            view_changes: 1,
            ..Counters::default()
        };
        assert_eq!(after.since(&before), since);
        // A replica that was away for a moment doesn't make the difference negative.
        assert_eq!(before.since(&after).gaps, 0);
    }
}
