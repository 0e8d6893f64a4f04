// SPDX-License-Identifier: Apache-2.0
//! What a torture found.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sim::linearizability::Linearizable;

use super::history::{self, Answer, Event};
use super::nemesis::Outcome;
use super::{porcupine, verdict};
use local_cluster::Error;

/// Three of them: g = 1.
const REPLICAS: usize = 3;

/// What was found, item by item. A run is good if there are no failures.
pub struct Report {
    /// How long there were faults.
    pub minutes: f64,
    /// Of the plan.
    pub seed: u64,
    /// What repeats the run.
    pub command: String,
    /// What the faults did.
    pub outcome: Outcome,
    /// Operations answered.
    pub operations: u64,
    /// Operations whose answer never came.
    pub unknown: u64,
    /// What our checker says of the history.
    pub own: String,
    /// What porcupine says of it.
    pub porcupine: String,
    linearizable: Value,
    /// Acknowledged writes that are gone.
    pub lost: u64,
    /// Commands that took effect twice.
    pub executed_twice: u64,
    /// True if the replicas' contents are equal.
    pub digests_equal: bool,
    /// What the traces show; null if there are none.
    pub traces: Value,
    /// Longest time in which nobody was answered, in milliseconds.
    pub longest_gap_ms: u64,
    /// When it began, in milliseconds of the plan's time.
    pub longest_gap_at_ms: u64,
    /// The errors that were found.
    pub failures: Vec<String>,
    /// Where everything is, if anything is wrong.
    pub directory: PathBuf,
}

impl Report {
    /// Creates a report with what the nemesis saw.
    pub(crate) fn new(minutes: f64, seed: u64, command: String, mut outcome: Outcome) -> Report {
        Report {
            minutes,
            seed,
            command,
            failures: std::mem::take(&mut outcome.failures),
            outcome,
            operations: 0,
            unknown: 0,
            own: String::new(),
            porcupine: String::new(),
            linearizable: Value::Null,
            lost: 0,
            executed_twice: 0,
            digests_equal: false,
            traces: Value::Null,
            longest_gap_ms: 0,
            longest_gap_at_ms: 0,
            directory: PathBuf::new(),
        }
    }

    /// Notes the replicas' contents at one instance.
    pub(crate) fn digests(&mut self, digests: &[(String, u64, String)]) {
        let replicas = by_replica(digests);
        let same = replicas.windows(2).all(|two| two[0] == two[1]);
        self.digests_equal = at_one_place(digests) && same;
        if !self.digests_equal {
            self.failures.push(format!("replicas differ: {digests:?}"));
        }
    }

    /// Notes the contents at the end, and how long nobody was answered.
    pub(crate) fn contents(&mut self, history: &[Event], finals: &BTreeMap<String, Answer>) {
        let count = verdict::count(history, finals);
        self.lost = count.lost;
        self.executed_twice = count.executed_twice;
        if count.lost + count.executed_twice > 0 {
            self.failures.push(format!(
                "{} acknowledged writes lost, {} executed twice: {}",
                count.lost,
                count.executed_twice,
                count.examples.join(", ")
            ));
        }
        let mut ends: Vec<u64> = history
            .iter()
            .filter_map(|event| event.answer.as_ref().map(|(at, _)| *at))
            .collect();
        ends.sort_unstable();
        let gaps = ends.windows(2).map(|w| (w[1] - w[0], w[0]));
        let (gap, at) = gaps.max().unwrap_or_default();
        self.longest_gap_ms = gap / 1_000_000;
        self.longest_gap_at_ms = at / 1_000_000;
        self.operations = ends.len() as u64;
        self.unknown = history.len() as u64 - self.operations;
        if self.operations == 0 {
            self.failures.push("no operation was answered".to_string());
        }
    }

    /// Runs both checkers of linearizability.
    pub(crate) fn linearizability(&mut self, history: &[Event], file: &Path) -> io::Result<()> {
        let history = history::without_unseen(history);
        history::write(&history, file)?;
        let (own, key) = history::check(&history);
        let key = key.unwrap_or_default();
        self.own = match own {
            Linearizable::Yes => "yes".to_string(),
            Linearizable::No { .. } => format!("no: {key}"),
            Linearizable::Unknown { .. } => format!("unknown: {key}"),
        };
        let other = porcupine::check(file);
        self.porcupine = other.text();
        let refuted =
            matches!(own, Linearizable::No { .. }) || matches!(other, porcupine::Verdict::No(_));
        let proved = own == Linearizable::Yes || other == porcupine::Verdict::Yes;
        self.linearizable = match (refuted, proved) {
            (true, _) => json!(false),
            (_, true) => json!(true),
            _ => json!("unknown"),
        };
        if self.linearizable != json!(true) {
            self.failures.push(format!(
                "linearizable: {} by our checker, {} by porcupine",
                self.own, self.porcupine
            ));
        }
        Ok(())
    }

    /// Notes the result of `check-trace`.
    pub(crate) fn trace(&mut self, checked: Result<Option<String>, Error>) {
        match checked {
            Ok(None) => self.traces = json!("as the protocol allows"),
            Ok(Some(why)) => {
                self.failures.push(format!("trace: {why}"));
                self.traces = json!(why);
            }
            Err(e) => self.failures.push(format!("trace: {e}")),
        }
    }

    /// Returns the report as one JSON object.
    pub fn json(&self) -> Value {
        json!({
            "minutes": self.minutes,
            "seed": self.seed,
            "command": self.command,
            "operations": self.operations,
            "unknown": self.unknown,
            "linearizable": self.linearizable,
            "checkers": { "own": self.own, "porcupine": self.porcupine },
            "lost": self.lost,
            "executed_twice": self.executed_twice,
            "digests_equal": self.digests_equal,
            "traces": self.traces,
            "longest_gap_ms": self.longest_gap_ms,
            "longest_gap_at_ms": self.longest_gap_at_ms,
            "crowds": self.outcome.crowds,
            "faults": self.outcome.faults,
            "left_out": self.outcome.skipped,
            "refused": self.outcome.refusals.len(),
            "refusals": self.outcome.refusals,
            "tolerated": self.outcome.tolerated,
            "stopped_on_full_disk": self.outcome.stopped_on_full_disk,
            "failures": self.failures,
            "directory": (!self.failures.is_empty()).then_some(&self.directory),
        })
    }
}

/// Returns whether all replicas are there, each partition at the same instance.
pub fn at_one_place(digests: &[(String, u64, String)]) -> bool {
    let replicas = by_replica(digests);
    let places = |at: usize| replicas[at].iter().map(|(place, _)| place);
    replicas.len() == REPLICAS && (1..REPLICAS).all(|at| places(at).eq(places(0)))
}

/// Returns what each replica says, partitions one after the other.
fn by_replica(digests: &[(String, u64, String)]) -> Vec<Vec<(u64, &str)>> {
    let replicas = digests.chunk_by(|a, b| a.0 == b.0);
    let said = replicas.map(|of| {
        of.iter()
            .map(|(_, place, digest)| (*place, digest.as_str()))
    });
    said.map(Iterator::collect).collect()
}

#[cfg(test)]
mod tests {
    use super::super::history::Op;
    use super::super::history::tests::event;
    use super::*;

    fn report() -> Report {
        Report::new(1.0, 7, "again".to_string(), Outcome::default())
    }

    fn digests(contents: [&str; 3], places: [u64; 3]) -> Vec<(String, u64, String)> {
        let both = contents.into_iter().zip(places).enumerate();
        let of = |(n, (digest, next)): (usize, (&str, u64))| {
            let first = (format!("r{n}"), 7, "first partition".to_string());
            [first, (format!("r{n}"), next, digest.to_string())]
        };
        both.flat_map(of).collect()
    }

    #[test]
    fn replicas_that_differ_are_a_failure() {
        for (found, good) in [
            (digests(["a", "a", "a"], [1, 1, 1]), true),
            (digests(["a", "b", "a"], [1, 1, 1]), false),
            (digests(["a", "a", "a"], [1, 2, 1]), false),
            (digests(["a", "a", "a"], [1, 1, 1])[..4].to_vec(), false),
            (digests(["a", "a", "a"], [1, 1, 1])[..5].to_vec(), false),
        ] {
            let mut report = report();
            report.digests(&found);
            assert_eq!(
                (report.digests_equal, report.failures.is_empty()),
                (good, good)
            );
        }
    }

    #[test]
    fn histories_that_cannot_be_are_a_failure() {
        let good = [
            event("k", Op::Incr, 1, Some((2_000_000, Answer::Number(1)))),
            event("k", Op::Incr, 3_000_000, None),
            event(
                "k",
                Op::Get,
                4_000_000,
                Some((5_000_000, Answer::Text("1".into()))),
            ),
        ];
        let directory =
            std::env::temp_dir().join(format!("wirepaxos-report-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("history.jsonl");
        let judge = |history: &[Event], found: &str| {
            let mut report = report();
            let finals = BTreeMap::from([("k".to_string(), Answer::Text(found.to_string()))]);
            report.contents(history, &finals);
            report.linearizability(history, &file).unwrap();
            report
        };
        let report = judge(&good, "1");
        assert!(report.failures.is_empty(), "{:?}", report.failures);
        assert_eq!(
            (report.operations, report.unknown, report.longest_gap_ms),
            (2, 1, 3)
        );
        assert_eq!(report.longest_gap_at_ms, 2);
        let mut bad = good.clone();
        bad[2].answer = Some((5_000_000, Answer::Nil));
        let report = judge(&bad, "0");
        assert_eq!(report.json()["linearizable"], false);
        assert_eq!((report.lost, report.failures.len()), (1, 2));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
