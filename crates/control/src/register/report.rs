// SPDX-License-Identifier: Apache-2.0
//! Warnings about the controllers, for operators.

use super::{Condition, Register};
use crate::group::plan::listed;
use paxos::{NodeId, Time};
use std::collections::BTreeSet;

const REBUILD: &str = "see \"have lost their stores\" in docs/operations/trouble.md";

impl Register {
    /// Returns the controller that acts, as far as this one knows.
    pub fn acting(&self, now: Time) -> Option<NodeId> {
        if self.acts_in().is_some() {
            return Some(self.me);
        }
        let acting = self
            .peers()
            .filter_map(|peer| Some((self.condition_of(now, peer)?.acting?, peer)));
        acting.max().map(|(_, node)| node)
    }

    /// Returns the origin of the record of the controller that acts, if it isn't alone.
    fn origin_of_acting(&self, now: Time) -> Option<u64> {
        let node = self.acting(now)?;
        match node == self.me {
            true => origin_of(self.condition()),
            false => origin_of(self.condition_of(now, node)?.condition),
        }
    }

    /// Returns who doesn't answer, in words; nothing if all do.
    pub(super) fn silent(&self, now: Time) -> String {
        let silent = self
            .peers()
            .filter(|p| self.condition_of(now, *p).is_none());
        let silent: Vec<NodeId> = silent.collect();
        match silent.is_empty() {
            true => String::new(),
            false => format!("no answer from controllers [{}]", listed(&silent)),
        }
    }

    /// Returns what an operator should look at.
    pub fn warnings(&self, now: Time) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some((node, members)) = &self.stranger {
            warnings.push(format!(
                "controller {node} has a cluster file with the controllers [{}]: give all nodes \
                the same file",
                listed(members)
            ));
        }
        for peer in self.peers() {
            if self.condition_of(now, peer).is_none() {
                warnings.push(format!(
                    "controller {peer} doesn't answer: start it, or let UDP packets pass between \
                    the `peer` addresses"
                ));
            }
        }
        warnings.extend(self.trouble(now));
        warnings
    }

    /// Returns the condition of each controller that is known, ascending.
    fn conditions(&self, now: Time) -> Vec<(NodeId, Condition)> {
        let peers = self.peers();
        let peers = peers.filter_map(|p| Some((p, self.condition_of(now, p)?.condition)));
        let mut all: Vec<_> = peers.chain([(self.me, self.condition())]).collect();
        all.sort_unstable_by_key(|(node, _)| *node);
        all
    }

    /// Returns whose stores don't belong together, if there are such.
    fn foreign_stores(&self, now: Time, all: &[(NodeId, Condition)]) -> Option<String> {
        let members = with(all, |c| matches!(c, Condition::Member { .. }));
        let alone = with(all, |c| c == Condition::Alone);
        let origins: BTreeSet<u64> = all.iter().filter_map(|(_, c)| origin_of(*c)).collect();
        if origins.len() > 1 {
            let right = self.origin_of_acting(now);
            let wrong = with(all, |c| origin_of(c).is_some() && origin_of(c) != right);
            let listed = listed(&wrong);
            return Some(match right {
                Some(_) => format!(
                    "the stores of controllers [{listed}] don't belong together with those of the \
                    others: each is an old copy, or was left when the others' was made anew. Stop \
                    these, and empty their data directories"
                ),
                None => format!(
                    "the stores of controllers [{listed}] don't belong together: keep those of \
                    the newest beginning (`epochs` in `epochs.json`), stop the others, and empty \
                    their data directories"
                ),
            });
        }
        if !alone.is_empty() && !members.is_empty() && self.origin_of_acting(now).is_some() {
            return Some(format!(
                "controllers [{}] have stores of their own, of a time when they were alone: stop \
                them, and empty their data directories",
                listed(&alone)
            ));
        }
        if alone.len() > 1 || !alone.is_empty() && !members.is_empty() {
            return Some(format!(
                "controllers [{}] have stores of their own and don't act: keep the one with the \
                newest epoch in `epochs.json`, stop the others, and empty their data directories",
                listed(&[alone, members].concat())
            ));
        }
        None
    }

    /// Returns why no controller can act, if the stores are the reason.
    fn trouble(&self, now: Time) -> Option<String> {
        let all = self.conditions(now);
        if let Some(why) = self.foreign_stores(now, &all) {
            return Some(why);
        }
        let empty = with(&all, |c| matches!(c, Condition::Empty { .. }));
        let lost = with(&all, |c| c == Condition::Empty { lost: true });
        let members = with(&all, |c| matches!(c, Condition::Member { .. }));
        let alone = with(&all, |c| c == Condition::Alone);
        let n = self.members.len();
        if !alone.is_empty() {
            return Some(format!(
                "controller {} acts alone: start the other {} with empty data directories",
                alone[0],
                n - 1
            ));
        }
        if empty.len() > n / 2 && (!members.is_empty() || !lost.is_empty()) {
            return Some(format!(
                "controllers [{}] have lost their stores, so no majority remembers what was \
                issued: {REBUILD}",
                listed(&empty)
            ));
        }
        (!empty.is_empty()).then(|| {
            format!(
                "controllers [{}] are empty: start all {n} controllers, so that they join",
                listed(&empty)
            )
        })
    }
}

/// Returns those controllers whose condition is so.
fn with(all: &[(NodeId, Condition)], is: impl Fn(Condition) -> bool) -> Vec<NodeId> {
    let those = all.iter().filter(|(_, condition)| is(*condition));
    those.map(|(node, _)| *node).collect()
}

fn origin_of(condition: Condition) -> Option<u64> {
    match condition {
        Condition::Founding { origin } | Condition::Member { origin } => Some(origin),
        Condition::Empty { .. } | Condition::Alone => None,
    }
}
