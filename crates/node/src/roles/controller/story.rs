// SPDX-License-Identifier: Apache-2.0
//! What the controller's log says of a group: who is suspected and answers again, which epoch becomes active, who leads
//! it, and how long that took.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use control::status::GroupStatus;
use paxos::{Epoch, GroupId, NodeId};
use tracing::{info, warn};

use crate::cluster_file::{ClusterFile, Protocol};

/// How long a leader is waited for that has been programmed.
const PATIENCE: Duration = Duration::from_secs(1);

/// The groups as the log has last shown them.
pub(super) struct Story {
    names: BTreeMap<NodeId, String>,
    groups: BTreeMap<GroupId, Told>,
}

#[derive(Default)]
struct Told {
    /// An epoch of NOPaxos is called a session.
    is_ordered: bool,
    suspects: BTreeMap<NodeId, Instant>,
    active: Option<Epoch>,
    attempt: Option<Epoch>,
    /// The last epoch that was on its way.
    begun: Option<Epoch>,
    /// An epoch that is in force and hasn't been told yet, and since when.
    untold: Option<(Epoch, Instant)>,
    behind: BTreeSet<NodeId>,
}

impl Told {
    /// Returns the epoch in force if that is new. It is told once its leader has shown its round, which ends the measured
    /// time; one whose leader shows none is told after a second.
    fn news(&mut self, group: &GroupStatus, now: Instant) -> Option<Epoch> {
        let active = group.active.filter(|active| self.active != Some(*active))?;
        let since = match self.untold {
            Some((epoch, since)) if epoch == active => since,
            _ => now,
        };
        self.untold = Some((active, since));
        let change = group.last_failover.as_ref();
        let is_measured = change.is_some_and(|change| change.epoch == active);
        let was_before = self.begun != Some(active);
        let waited = now.saturating_duration_since(since) >= PATIENCE;
        if !(is_measured || was_before || waited) {
            return None;
        }
        self.active = Some(active);
        Some(active)
    }
}

/// A line of the log.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Info(String),
    Warning(String),
}

impl Story {
    /// Returns a story in which nothing has happened.
    pub fn new(cluster: &ClusterFile) -> Story {
        let names = cluster
            .nodes
            .iter()
            .map(|node| (node.id, node.name.clone()));
        let groups = cluster.groups.iter().map(|group| {
            let told = Told {
                is_ordered: group.protocol == Protocol::NoPaxos,
                ..Told::default()
            };
            (group.id, told)
        });
        Story {
            names: names.collect(),
            groups: groups.collect(),
        }
    }

    /// Logs what has changed since the last call.
    pub fn tell(&mut self, groups: &[GroupStatus]) {
        let now = Instant::now();
        for group in groups {
            for line in self.lines(group, now) {
                match line {
                    Line::Info(text) => info!("group {}: {text}", group.group),
                    Line::Warning(text) => warn!("group {}: {text}", group.group),
                }
            }
        }
    }

    fn lines(&mut self, group: &GroupStatus, now: Instant) -> Vec<Line> {
        let mut lines = Vec::new();
        let names = &self.names;
        let name = |id: &NodeId| match names.get(id) {
            Some(name) => name.clone(),
            None => format!("node {id}"),
        };
        let told = self.groups.entry(group.group).or_default();
        for node in &group.suspects {
            if !told.suspects.contains_key(node) {
                told.suspects.insert(*node, now);
                lines.push(Line::Warning(format!(
                    "{} is suspected: it doesn't answer",
                    name(node)
                )));
            }
        }
        told.suspects.retain(|node, since| {
            let is_suspected = group.suspects.contains(node);
            if !is_suspected {
                let silent = seconds(now.saturating_duration_since(*since));
                lines.push(Line::Info(format!(
                    "{} answers again, after {silent}",
                    name(node)
                )));
            }
            is_suspected
        });
        let epoch = if told.is_ordered { "session" } else { "epoch" };
        let attempt = group.attempt.as_ref();
        if let Some(attempt) = attempt.filter(|attempt| told.attempt != Some(attempt.epoch)) {
            lines.push(Line::Info(format!(
                "{epoch} {} begins: {}",
                attempt.epoch, attempt.reason
            )));
        }
        told.attempt = attempt.map(|attempt| attempt.epoch);
        told.begun = told.begun.max(attempt.map(|attempt| attempt.epoch));
        if let Some(active) = told.news(group, now) {
            lines.push(Line::Info(became_active(group, active, epoch, &name)));
        }
        for node in group
            .behind
            .iter()
            .filter(|node| told.behind.insert(**node))
        {
            lines.push(Line::Warning(format!(
                "{} is behind and fetches another replica's state",
                name(node)
            )));
        }
        told.behind.retain(|node| {
            let is_behind = group.behind.contains(node);
            if !is_behind {
                lines.push(Line::Info(format!("{} has caught up", name(node))));
            }
            is_behind
        });
        lines
    }
}

/// Returns a line about the epoch in force. An epoch of an earlier process of the controller took nobody knows how long.
fn became_active(
    group: &GroupStatus,
    active: Epoch,
    epoch: &str,
    name: &dyn Fn(&NodeId) -> String,
) -> String {
    let leader = group
        .leader
        .as_ref()
        .map_or_else(|| "nobody".to_owned(), name);
    let change = group.last_failover.as_ref();
    match change.filter(|change| change.epoch == active) {
        Some(change) => format!(
            "{epoch} {active} is active after {:.1} ms, {leader} leads: {}",
            change.duration_us as f64 / 1_000.0,
            change.reason
        ),
        None => format!("{epoch} {active} is active, {leader} leads"),
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use control::status::{AttemptStatus, FailoverStatus};

    fn cluster() -> ClusterFile {
        let text = include_str!("../../../../../testdata/cluster.toml");
        crate::cluster_file::parse(text, "cluster.toml").unwrap()
    }

    pub fn status() -> GroupStatus {
        GroupStatus {
            group: 0,
            active: Some(4),
            epochs: Vec::new(),
            leader: Some(11),
            members: Vec::new(),
            behind: Vec::new(),
            suspects: Vec::new(),
            attempt: None,
            last_failover: None,
            refused_lanes: 0,
            warnings: Vec::new(),
        }
    }

    #[test]
    fn a_dead_leader_and_its_successor_are_told_once() {
        let mut story = Story::new(&cluster());
        let begun = Instant::now();
        let mut now = status();
        let info = |text: &str| Line::Info(text.to_owned());
        let warning = |text: &str| Line::Warning(text.to_owned());
        let first = story.lines(&now, begun);
        assert_eq!(first, [info("epoch 4 is active, leader-1 leads")]);
        assert_eq!(story.lines(&now, begun), []);

        now.suspects = vec![11];
        now.active = None;
        now.leader = None;
        now.attempt = Some(AttemptStatus {
            epoch: 5,
            reason: "leader 11 doesn't answer".to_owned(),
            stage: "reading".to_owned(),
            for_ms: 1,
        });
        assert_eq!(
            story.lines(&now, begun),
            [
                warning("leader-1 is suspected: it doesn't answer"),
                info("epoch 5 begins: leader 11 doesn't answer"),
            ]
        );
        assert_eq!(story.lines(&now, begun), []);

        now.attempt = None;
        now.active = Some(5);
        now.leader = Some(12);
        assert_eq!(
            story.lines(&now, begun),
            [],
            "its leader hasn't shown its round"
        );
        now.last_failover = Some(FailoverStatus {
            epoch: 5,
            reason: "leader 11 doesn't answer".to_owned(),
            duration_us: 7_250,
        });
        assert_eq!(
            story.lines(&now, begun),
            [info(
                "epoch 5 is active after 7.2 ms, leader-2 leads: leader 11 doesn't answer"
            )]
        );
        assert_eq!(story.lines(&now, begun), []);
        now.suspects.clear();
        assert_eq!(
            story.lines(&now, begun + Duration::from_millis(2_500)),
            [info("leader-1 answers again, after 2.5 s")]
        );
    }

    #[test]
    fn an_epoch_whose_leader_shows_nothing_is_told_in_the_end() {
        let mut story = Story::new(&cluster());
        let begun = Instant::now();
        let mut now = status();
        now.active = None;
        now.attempt = Some(AttemptStatus {
            epoch: 4,
            reason: "first start".to_owned(),
            stage: "reading".to_owned(),
            for_ms: 1,
        });
        story.lines(&now, begun);
        now.attempt = None;
        now.active = Some(4);
        assert_eq!(story.lines(&now, begun), []);
        let told = Line::Info("epoch 4 is active, leader-1 leads".to_owned());
        assert_eq!(story.lines(&now, begun + PATIENCE), [told]);
    }

    #[test]
    fn a_replica_that_is_behind_is_told_until_it_has_caught_up() {
        let mut story = Story::new(&cluster());
        let begun = Instant::now();
        let mut now = status();
        story.lines(&now, begun);
        let replica = cluster().node("replica-1").unwrap().id;
        now.behind = vec![replica];
        let behind = "replica-1 is behind and fetches another replica's state";
        assert_eq!(story.lines(&now, begun), [Line::Warning(behind.to_owned())]);
        assert_eq!(story.lines(&now, begun), []);
        now.behind.clear();
        let again = Line::Info("replica-1 has caught up".to_owned());
        assert_eq!(story.lines(&now, begun), [again]);
    }
}
