// SPDX-License-Identifier: Apache-2.0
//! The logs with which views began, and the slots that were committed in them.

use std::collections::{BTreeMap, BTreeSet};

use paxos::wire::nopaxos::Noops;
use paxos::{Epoch, Header, Instance, NodeId, Round};

use super::node::{nth_largest, raise};

/// A partition's.
#[derive(Default)]
pub(super) struct Views(BTreeMap<Round, View>);

#[derive(Default)]
struct View {
    /// The contents of its START_VIEW, once that was sent.
    start: Option<Start>,
    followers: BTreeSet<NodeId>,
    /// The slots that its leader has answered, so that each has a request.
    answered: BTreeSet<Instance>,
    acks: BTreeMap<NodeId, Instance>,
    /// The slots below which followers have shown that their logs equal the leader's.
    synced: BTreeMap<NodeId, Instance>,
    /// Everything below this slot is committed.
    committed: Instance,
    /// Everything below this slot is stable.
    stable: Instance,
}

struct Start {
    end: Instance,
    bytes: Vec<u8>,
    noops: BTreeSet<Instance>,
}

impl Views {
    /// Notes that a START_VIEW is sent. Returns true if it is the first one of its view.
    pub fn begin(&mut self, h: &Header, bytes: &[u8], noops: &Noops<'_>) -> Result<bool, String> {
        let view = self.0.entry(h.rnd).or_default();
        if let Some(start) = &view.start {
            return match (start.end, &start.bytes[..]) == (h.inst, bytes) {
                true => Ok(false),
                false => Err(format!("view {} begins with two logs", h.rnd)),
            };
        }
        view.stable = noops.stable;
        view.start = Some(Start {
            end: h.inst,
            bytes: bytes.to_vec(),
            noops: noops.ranges().flatten().collect(),
        });
        self.is_kept()?;
        Ok(true)
    }

    /// Notes that a member has begun the view.
    pub fn follows(&mut self, view: Round, node: NodeId) {
        self.0.entry(view).or_default().followers.insert(node);
    }

    /// Returns whether f others than the leader have begun a view of the session.
    pub fn began(&self, session: Epoch, f: usize) -> bool {
        self.of(session).any(|view| view.followers.len() >= f)
    }

    /// Returns whether f others than the leader have begun a view of the session there.
    pub fn begins_at(&self, session: Epoch, end: Instance, f: usize) -> bool {
        self.of(session).any(|view| {
            let there = view.start.as_ref().is_some_and(|start| start.end == end);
            there && view.followers.len() >= f
        })
    }

    fn of(&self, session: Epoch) -> impl Iterator<Item = &View> {
        let views = self.0.iter();
        views
            .filter(move |(round, _)| round.epoch() == session)
            .map(|(_, view)| view)
    }

    /// Returns the slot below which everything was seen to be stable.
    pub fn stable(&self) -> Instance {
        self.0.values().map(|view| view.stable).max().unwrap_or(0)
    }

    /// Notes that a member says that its log is filled below a slot.
    pub fn acknowledge(
        &mut self,
        round: Round,
        node: NodeId,
        next: Instance,
        f: usize,
    ) -> Result<(), String> {
        raise(&mut self.0.entry(round).or_default().acks, node, next);
        self.count(round, f)
    }

    /// Notes that the leader has answered for a slot.
    pub fn answer(&mut self, round: Round, slot: Instance, f: usize) -> Result<(), String> {
        let view = self.0.entry(round).or_default();
        view.answered.insert(slot);
        self.count(round, f)
    }

    /// Commits the slots that the leader has answered and f others have acknowledged. [K-QUORUM]
    fn count(&mut self, round: Round, f: usize) -> Result<(), String> {
        let view = self.0.entry(round).or_default();
        let filled = nth_largest(&view.acks, f);
        let last = view.answered.range(..filled).next_back().copied();
        match last.filter(|last| *last >= view.committed) {
            Some(last) => self.commits(round, last + 1),
            None => Ok(()),
        }
    }

    /// Notes that a follower shows that its log equals the leader's below a slot. What f of them
    /// have shown is stable, whether or not the leader says so: it may act on it before it tells
    /// others. [N-CROWD]
    pub fn sync(
        &mut self,
        round: Round,
        node: NodeId,
        end: Instance,
        f: usize,
    ) -> Result<(), String> {
        let view = self.0.entry(round).or_default();
        raise(&mut view.synced, node, end);
        match nth_largest(&view.synced, f) {
            Instance::MAX => Ok(()),
            stable => self.commit(round, stable),
        }
    }

    /// Notes that everything below a slot is stable.
    pub fn commit(&mut self, round: Round, end: Instance) -> Result<(), String> {
        let view = self.0.entry(round).or_default();
        view.stable = view.stable.max(end);
        self.commits(round, end)
    }

    fn commits(&mut self, round: Round, end: Instance) -> Result<(), String> {
        let view = self.0.entry(round).or_default();
        view.committed = view.committed.max(end);
        self.is_kept()
    }

    /// Returns an error if a leader puts no-ops where an earlier view has committed requests.
    pub fn give_up(&mut self, round: Round, noops: &Noops<'_>) -> Result<(), String> {
        for inst in noops.ranges().flatten() {
            let earlier = self.0.range(..=round);
            let mut answered = earlier.filter(|(r, view)| {
                let is_committed = inst < view.committed || **r == round;
                is_committed && view.answered.contains(&inst)
            });
            if let Some((earlier, _)) = answered.next() {
                return Err(format!(
                    "view {round} has a no-op in slot {inst}, which was answered in {earlier}"
                ));
            }
        }
        Ok(())
    }

    /// Checks that the slots committed in a view are in the logs with which all later views begin.
    fn is_kept(&self) -> Result<(), String> {
        let committed = self.0.iter().filter(|(_, view)| view.committed > 0);
        for (round, view) in committed {
            let later = self.0.range(Round(round.0 + 1)..);
            let starts = later.filter_map(|(r, later)| Some((r, later.start.as_ref()?)));
            for (later, start) in starts {
                let lost = start
                    .noops
                    .iter()
                    .find(|inst| **inst < view.committed && view.answered.contains(*inst));
                if start.end < view.committed || lost.is_some() {
                    return Err(format!(
                        "{} slots are committed in view {round}, and {later} begins with {}; of \
                         them a no-op: {lost:?}",
                        view.committed, start.end
                    ));
                }
            }
        }
        Ok(())
    }
}
