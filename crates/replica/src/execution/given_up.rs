// SPDX-License-Identifier: Apache-2.0
//! Instances that an operator's override gave up when more than f acceptors had lost their memory.
//!
//! In each partition a range of instances holds nothing, whatever was decided there. The ranges
//! begin where the override found one replica, with all its partitions, and end far above
//! everything that an earlier epoch can have decided. Later epochs decide only behind the ranges,
//! so no instance is decided twice, and a position alone says whether a state is from before or
//! after the override.
//!
//! A replica that has executed everything before the ranges, and nothing in them, goes on behind
//! them; each of its partitions does so once it knows that its siblings stand at their ranges, too.
//! Any other replica needs a checkpoint from behind the ranges. [G-LEAP] [G-BEHIND]
//!
//! A command over several partitions may have places on both sides. If a partition has passed it,
//! its outcome is on record there, and the others apply that outcome before they go on; otherwise
//! the command is dead. [G-COMPLETE]

use super::Execution;
use crate::application::{Application, Error};
use crate::outcome::Outcome;
use crate::session::At;
use crate::sibling::SiblingMessage;
use paxos::{Instance, PartitionId};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The ranges that were given up, and what this worker knows of its siblings there.
#[derive(Default)]
pub(super) struct GivenUp {
    /// The range of each partition.
    ranges: Vec<Range<Instance>>,
    /// The siblings that can go on behind their ranges: the end of this partition's range that they
    /// mean, and the outcomes that they have for it.
    siblings: BTreeMap<PartitionId, (Instance, Vec<Arc<Outcome>>)>,
    /// True if the siblings were told that this partition can go on.
    told: bool,
}

impl GivenUp {
    /// Returns the range of a partition; it is empty if nothing was given up there.
    pub fn of(&self, pid: PartitionId) -> Range<Instance> {
        self.ranges.get(usize::from(pid)).cloned().unwrap_or(0..0)
    }

    /// Forgets what siblings have said, after which all partitions send their messages again.
    pub fn begin_anew(&mut self) {
        self.siblings.clear();
        self.told = false;
    }
}

impl<A: Application> Execution<A> {
    /// Takes the ranges that were given up, one for each partition. Returns this partition's range
    /// if it is new.
    pub(crate) fn give_up(&mut self, ranges: &[Range<Instance>]) -> Option<Range<Instance>> {
        let known = self.given_up.of(self.settings.pid).end;
        let told = ranges.get(usize::from(self.settings.pid));
        let own = told.filter(|own| own.end > known).cloned()?;
        // Only stable instances count for the position.
        self.rewind(self.progress.stable());
        self.given_up.ranges = ranges.to_vec();
        self.given_up.told = false;
        self.leap();
        self.answer_siblings();
        Some(own)
    }

    /// Notes that a sibling can go on behind its range.
    pub(super) fn sibling_goes_on(
        &mut self,
        from: PartitionId,
        end: Instance,
        outcomes: Vec<Arc<Outcome>>,
    ) {
        self.given_up.siblings.insert(from, (end, outcomes));
        self.leap();
    }

    /// Goes on behind the range that was given up, if everything before it is executed here and in
    /// all partitions.
    pub(super) fn leap(&mut self) {
        let own = self.given_up.of(self.settings.pid);
        let there = self.progress.next() == own.start || self.progress.next() >= own.end;
        if own.is_empty() || !there || self.stands_still() {
            return;
        }
        self.tell_that_it_goes_on();
        if self.progress.next() != own.start || !self.siblings_go_on(own.end) {
            return;
        }
        let completed = self.complete(&own);
        if let Err(error) = completed {
            self.failed.get_or_insert(error);
            return;
        }
        self.progress.leap(own.end);
        self.commits.hurry(self.progress.now());
    }

    fn tell_that_it_goes_on(&mut self) {
        if std::mem::replace(&mut self.given_up.told, true) {
            return;
        }
        for sibling in self.siblings() {
            let range = self.given_up.of(sibling);
            let before = self.given_up.of(self.settings.pid).start;
            let outcomes = self.spanning.outcomes().across(before, sibling, &range);
            let end = range.end;
            let message = SiblingMessage::GoesOn { end, outcomes };
            self.spanning.tell(sibling, message);
        }
    }

    fn siblings_go_on(&self, end: Instance) -> bool {
        let said = |pid: &PartitionId| self.given_up.siblings.get(pid).map(|(end, _)| *end);
        self.siblings().iter().all(|pid| said(pid) == Some(end))
    }

    /// Returns the other partitions in which something was given up.
    fn siblings(&self) -> Vec<PartitionId> {
        let pids = 0..self.settings.deployment.partitions;
        let own = self.settings.pid;
        pids.filter(|pid| *pid != own && !self.given_up.of(*pid).is_empty())
            .collect()
    }

    /// Applies this partition's part of the commands that siblings have passed, in the order of
    /// their places here. [G-COMPLETE]
    fn complete(&mut self, own: &Range<Instance>) -> Result<(), Error> {
        self.gather()?;
        let pid = self.settings.pid;
        let told = self.given_up.siblings.values();
        let outcomes: BTreeMap<Instance, Arc<Outcome>> = told
            .flat_map(|(_, outcomes)| outcomes)
            .filter_map(|outcome| Some((outcome.place_in(pid)?, outcome.clone())))
            .filter(|(place, _)| own.contains(place))
            .collect();
        for (inst, outcome) in outcomes {
            let lowest = outcome.is_lowest(pid);
            if let Some(executed) = outcome.executed().filter(|_| lowest) {
                let at = At {
                    inst,
                    index: 0,
                    now: self.progress.now(),
                };
                self.sessions.complete(at, executed, &mut self.replies);
            }
            let effect = outcome.effect_in(pid);
            if !effect.is_empty() {
                self.app.at_instance(inst);
                self.app.apply(effect)?;
            }
            self.spanning.keep(inst, outcome);
        }
        Ok(())
    }
}
