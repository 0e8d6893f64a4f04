// SPDX-License-Identifier: Apache-2.0
//! How long changes of epochs take, and which stage of them takes how long. They are watched from
//! turn to turn, so that the control plane doesn't have to measure anything.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use control::status::GroupStatus;
use paxos::{Epoch, GroupId};
use serde_json::{Value, json};

use crate::histogram::Histogram;

/// The stage after an epoch is active, until its leader shows its round.
const PROGRAMMING: &str = "programming the leader";

/// The durations of each group since this process started.
#[derive(Default)]
pub(super) struct Durations(BTreeMap<GroupId, OfGroup>);

#[derive(Default)]
struct OfGroup {
    all: Histogram,
    stages: BTreeMap<String, Histogram>,
    /// The stage that was seen at the last look, and since when.
    now: Option<(Epoch, String, Instant)>,
    /// The last epoch whose duration was noted.
    noted: Option<Epoch>,
}

impl Durations {
    /// Notes what has changed since the last look.
    pub fn note(&mut self, groups: &[GroupStatus], now: Instant) {
        for group in groups {
            self.0.entry(group.group).or_default().note(group, now);
        }
    }

    /// Returns a group's durations for `status`.
    pub fn to_json(&self, group: GroupId) -> Value {
        self.0.get(&group).map_or(Value::Null, |group| {
            let stages = group.stages.iter();
            let stages = stages.map(|(stage, all)| (stage.clone(), all.to_json()));
            json!({ "durations": group.all.to_json(), "stages": stages.collect::<Value>() })
        })
    }
}

impl OfGroup {
    fn note(&mut self, group: &GroupStatus, now: Instant) {
        let change = group.last_failover.as_ref();
        let is_over = |epoch| change.is_some_and(|change| change.epoch == epoch);
        let stage = match (&group.attempt, &self.now) {
            (Some(attempt), _) => Some((attempt.epoch, attempt.stage.as_str())),
            (None, Some((epoch, ..))) if group.active == Some(*epoch) && !is_over(*epoch) => {
                Some((*epoch, PROGRAMMING))
            }
            (None, _) => None,
        };
        let before = self.now.as_ref();
        if before.map(|(epoch, stage, _)| (*epoch, stage.as_str())) != stage {
            let next = stage.map(|(epoch, stage)| (epoch, stage.to_owned(), now));
            if let Some((_, stage, since)) = std::mem::replace(&mut self.now, next) {
                let took = now.saturating_duration_since(since);
                self.stages.entry(stage).or_default().note(took);
            }
        }
        if let Some(change) = change.filter(|change| self.noted != Some(change.epoch)) {
            self.noted = Some(change.epoch);
            self.all.note(Duration::from_micros(change.duration_us));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::status::{AttemptStatus, FailoverStatus};

    #[test]
    fn each_change_counts_once_and_each_of_its_stages() {
        let mut durations = Durations::default();
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut status = super::super::story::tests::status();
        let reason = "leader 11 doesn't answer".to_owned();
        durations.note(&[status.clone()], at(0));
        let stages = [
            "collecting promises",
            "collecting promises",
            "reading votes",
        ];
        status.active = None;
        for (ms, stage) in (1..).zip(stages) {
            status.attempt = Some(AttemptStatus {
                epoch: 5,
                reason: reason.clone(),
                stage: stage.to_owned(),
                for_ms: ms,
            });
            durations.note(&[status.clone()], at(ms));
        }
        status.attempt = None;
        status.active = Some(5);
        durations.note(&[status.clone()], at(7));
        status.last_failover = Some(FailoverStatus {
            epoch: 5,
            reason,
            duration_us: 8_000,
        });
        for ms in 8..10 {
            durations.note(&[status.clone()], at(ms));
        }
        let shown = durations.to_json(0);
        assert_eq!(shown["durations"]["count"], 1);
        let ms = |stage: &str| {
            let stage = &shown["stages"][stage];
            assert_eq!(stage["count"], 1, "{shown}");
            (stage["sum_s"].as_f64().unwrap() * 1_000.0).round()
        };
        assert_eq!(ms("collecting promises"), 2.0);
        assert_eq!(ms("reading votes"), 4.0);
        assert_eq!(ms(PROGRAMMING), 1.0);
        assert_eq!(durations.to_json(1), Value::Null);
    }
}
