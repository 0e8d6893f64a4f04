// SPDX-License-Identifier: Apache-2.0
//! What happens to a group, for the controller's log and for `wirepaxos events`: who is suspected
//! and answers again, which epoch becomes active, who leads it, and how long that took.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use control::EpochState;
use control::status::GroupStatus;
use paxos::{Epoch, GroupId, NodeId};

use super::event::Event;
use crate::cluster_file::{ClusterFile, Protocol};
use crate::names::Names;

/// How long a leader is waited for that has been programmed.
const PATIENCE: Duration = Duration::from_secs(1);

/// The groups as they were last told.
pub(super) struct Story {
    names: Names,
    groups: BTreeMap<GroupId, GroupStory>,
}

#[derive(Default)]
struct GroupStory {
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

impl GroupStory {
    /// Returns the epoch in force if that is new. It is told once its leader has shown its round,
    /// which ends the measured time; one whose leader shows none is told after a second.
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

impl Story {
    /// Returns a story in which nothing has happened.
    pub fn new(cluster: &ClusterFile) -> Story {
        let groups = cluster.groups.iter().map(|group| {
            let told = GroupStory {
                is_ordered: group.protocol == Protocol::NoPaxos,
                ..GroupStory::default()
            };
            (group.id, told)
        });
        Story {
            names: Names::new(cluster),
            groups: groups.collect(),
        }
    }

    /// Returns what has changed since the last call.
    pub fn tell(&mut self, groups: &[GroupStatus]) -> Vec<Event> {
        let now = Instant::now();
        let news = groups.iter().flat_map(|group| {
            let news = self.news(group, now).into_iter();
            news.map(|event| event.group(group.group))
        });
        news.collect()
    }

    fn news(&mut self, group: &GroupStatus, now: Instant) -> Vec<Event> {
        let mut news = Vec::new();
        let names = &self.names;
        let told = self.groups.entry(group.group).or_default();
        told.suspicion(group, names, now, &mut news);
        told.attempts(group, names, &mut news);
        if let Some(active) = told.news(group, now) {
            news.push(became_active(group, active, told.epoch(), names));
        }
        told.catching_up(group, names, &mut news);
        news
    }
}

impl GroupStory {
    /// Returns the word for an epoch.
    fn epoch(&self) -> &'static str {
        if self.is_ordered { "session" } else { "epoch" }
    }

    /// Tells who is suspected, and who isn't any more.
    fn suspicion(
        &mut self,
        group: &GroupStatus,
        names: &Names,
        now: Instant,
        news: &mut Vec<Event>,
    ) {
        for node in &group.suspects {
            if !self.suspects.contains_key(node) {
                self.suspects.insert(*node, now);
                let name = names.of(*node);
                let text = format!("{name} is suspected: it doesn't answer");
                news.push(Event::warning("suspected", text).node(name));
            }
        }
        self.suspects.retain(|node, since| {
            let is_suspected = group.suspects.contains(node);
            if !is_suspected {
                let silent = now.saturating_duration_since(*since);
                let name = names.of(*node);
                let text = format!("{name} answers again, after {:.1} s", silent.as_secs_f64());
                let us = silent.as_micros() as u64;
                news.push(Event::new("back", text).node(name).took(us));
            }
            is_suspected
        });
    }

    /// Tells which epoch is on its way, and which one was given up.
    fn attempts(&mut self, group: &GroupStatus, names: &Names, news: &mut Vec<Event>) {
        let epoch = self.epoch();
        let attempt = group.attempt.as_ref();
        let now = attempt.map(|attempt| attempt.epoch);
        if let Some(before) = self.attempt.filter(|before| now != Some(*before)) {
            if !was_active(group, before) {
                let text = format!("{epoch} {before} is given up");
                news.push(Event::warning("epoch_given_up", text).epoch(before));
            }
        }
        if let Some(attempt) = attempt.filter(|attempt| self.attempt != Some(attempt.epoch)) {
            let reason = names.put_into(&attempt.reason);
            let text = format!("{epoch} {} begins: {reason}", attempt.epoch);
            let event = Event::new("epoch_issued", text).epoch(attempt.epoch);
            news.push(event.because(reason));
        }
        self.attempt = now;
        self.begun = self.begun.max(now);
    }

    /// Tells which replicas fetch another one's state, and which have it.
    fn catching_up(&mut self, group: &GroupStatus, names: &Names, news: &mut Vec<Event>) {
        let behind = group.behind.iter();
        for node in behind.filter(|node| self.behind.insert(**node)) {
            let name = names.of(*node);
            let text = format!("{name} is behind and fetches another replica's state");
            news.push(Event::warning("behind", text).node(name));
        }
        self.behind.retain(|node| {
            let is_behind = group.behind.contains(node);
            if !is_behind {
                let name = names.of(*node);
                let text = format!("{name} has caught up");
                news.push(Event::new("caught_up", text).node(name));
            }
            is_behind
        });
    }
}

/// Returns whether an epoch is active, or was before a later one superseded it.
fn was_active(group: &GroupStatus, epoch: Epoch) -> bool {
    let last = group.last_failover.as_ref();
    let mut epochs = group.epochs.iter();
    group.active == Some(epoch)
        || last.is_some_and(|last| last.epoch == epoch)
        || epochs.any(|e| e.epoch == epoch && e.state == EpochState::Active)
}

/// Returns the news of the epoch in force. An epoch of an earlier process of the controller took
/// nobody knows how long.
fn became_active(group: &GroupStatus, active: Epoch, epoch: &str, names: &Names) -> Event {
    let leader = group.leader.map(|id| names.of(id));
    let leads = leader.as_deref().unwrap_or("nobody");
    let change = group.last_failover.as_ref();
    let event = match change.filter(|change| change.epoch == active) {
        Some(change) => {
            let reason = names.put_into(&change.reason);
            let ms = change.duration_us as f64 / 1_000.0;
            let text =
                format!("{epoch} {active} is active after {ms:.1} ms, {leads} leads: {reason}");
            let event = Event::new("epoch_active", text).because(reason);
            event.took(change.duration_us)
        }
        None => Event::new(
            "epoch_active",
            format!("{epoch} {active} is active, {leads} leads"),
        ),
    };
    event.epoch(active).node(leader)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use control::status::{AttemptStatus, FailoverStatus};

    fn cluster() -> ClusterFile {
        let text = include_str!("../../../../../testdata/cluster.toml");
        crate::cluster_file::parse(text, "cluster.toml").unwrap()
    }

    /// What is told of a group: whether it needs a look, and the text.
    fn lines(story: &mut Story, group: &GroupStatus, now: Instant) -> Vec<(bool, String)> {
        let news = story.news(group, now).into_iter();
        news.map(|event| (event.is_warning, event.text)).collect()
    }

    fn info(text: &str) -> (bool, String) {
        (false, text.to_owned())
    }

    fn warning(text: &str) -> (bool, String) {
        (true, text.to_owned())
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
        let first = lines(&mut story, &now, begun);
        assert_eq!(first, [info("epoch 4 is active, leader-1 leads")]);
        assert_eq!(lines(&mut story, &now, begun), []);

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
            lines(&mut story, &now, begun),
            [
                warning("leader-1 is suspected: it doesn't answer"),
                info("epoch 5 begins: leader-1 doesn't answer"),
            ]
        );
        assert_eq!(lines(&mut story, &now, begun), []);

        now.attempt = None;
        now.active = Some(5);
        now.leader = Some(12);
        assert_eq!(
            lines(&mut story, &now, begun),
            [],
            "its leader hasn't shown its round"
        );
        now.last_failover = Some(FailoverStatus {
            epoch: 5,
            reason: "leader 11 doesn't answer".to_owned(),
            duration_us: 7_250,
        });
        assert_eq!(
            lines(&mut story, &now, begun),
            [info(
                "epoch 5 is active after 7.2 ms, leader-2 leads: leader-1 doesn't answer"
            )]
        );
        assert_eq!(lines(&mut story, &now, begun), []);
        now.suspects.clear();
        assert_eq!(
            lines(&mut story, &now, begun + Duration::from_millis(2_500)),
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
        lines(&mut story, &now, begun);
        now.attempt = None;
        now.active = Some(4);
        assert_eq!(lines(&mut story, &now, begun), []);
        let told = info("epoch 4 is active, leader-1 leads");
        assert_eq!(lines(&mut story, &now, begun + PATIENCE), [told]);
    }

    #[test]
    fn a_replica_that_is_behind_is_told_until_it_has_caught_up() {
        let mut story = Story::new(&cluster());
        let begun = Instant::now();
        let mut now = status();
        lines(&mut story, &now, begun);
        let replica = cluster().node("replica-1").unwrap().id;
        now.behind = vec![replica];
        let behind = "replica-1 is behind and fetches another replica's state";
        assert_eq!(lines(&mut story, &now, begun), [warning(behind)]);
        assert_eq!(lines(&mut story, &now, begun), []);
        now.behind.clear();
        let again = info("replica-1 has caught up");
        assert_eq!(lines(&mut story, &now, begun), [again]);
    }

    #[test]
    fn an_epoch_that_does_not_come_is_told_as_given_up() {
        let mut story = Story::new(&cluster());
        let begun = Instant::now();
        let mut now = status();
        story.news(&now, begun);
        let attempt = |epoch| AttemptStatus {
            epoch,
            reason: "ordered by the operator".to_owned(),
            stage: "reading".to_owned(),
            for_ms: 1,
        };
        now.active = None;
        now.attempt = Some(attempt(5));
        story.news(&now, begun);
        now.attempt = Some(attempt(6));
        assert_eq!(
            lines(&mut story, &now, begun),
            [
                warning("epoch 5 is given up"),
                info("epoch 6 begins: ordered by the operator")
            ]
        );
        now.attempt = None;
        now.active = Some(6);
        assert_eq!(lines(&mut story, &now, begun), []);
    }

    /// A second order may come before the first one's epoch has shown that its leader leads.
    #[test]
    fn an_epoch_that_is_superseded_at_once_is_not_told_as_given_up() {
        let mut story = Story::new(&cluster());
        let begun = Instant::now();
        let mut now = status();
        story.news(&now, begun);
        let attempt = |epoch| AttemptStatus {
            epoch,
            reason: "ordered by the operator".to_owned(),
            stage: "reading".to_owned(),
            for_ms: 1,
        };
        now.active = None;
        now.attempt = Some(attempt(5));
        story.news(&now, begun);
        now.attempt = Some(attempt(6));
        now.epochs.push(control::EpochRecord {
            epoch: 5,
            state: EpochState::Active,
            leader: (11, 1),
            acceptors: Vec::new(),
            f: 1,
            replicas: Vec::new(),
            g: 1,
            lead: None,
            by: Vec::new(),
            anew: None,
            hash: 0,
        });
        let begins = info("epoch 6 begins: ordered by the operator");
        assert_eq!(lines(&mut story, &now, begun), [begins]);
    }
}
