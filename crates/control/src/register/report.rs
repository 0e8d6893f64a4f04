// SPDX-License-Identifier: Apache-2.0
//! What operators are told about the controllers.

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
        let heard = self.peers.iter().filter(|(_, h)| now < h.at + super::HEARD);
        let acting = heard.filter_map(|(node, h)| Some((h.hello.acting?, *node)));
        acting.max().map(|(_, node)| node)
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

    /// Returns why no controller can act, if the stores are the reason.
    fn trouble(&self, now: Time) -> Option<String> {
        let all = || {
            let peers = self.peers();
            let peers = peers.filter_map(|p| Some((p, self.condition_of(now, p)?.condition)));
            peers.chain([(self.me, self.condition())])
        };
        let with = |is: &dyn Fn(Condition) -> bool| -> Vec<NodeId> {
            let mut nodes: Vec<_> = all().filter(|(_, c)| is(*c)).map(|(n, _)| n).collect();
            nodes.sort_unstable();
            nodes
        };
        let empty = with(&|c| matches!(c, Condition::Empty { .. }));
        let lost = with(&|c| c == Condition::Empty { lost: true });
        let members = with(&|c| matches!(c, Condition::Member { .. }));
        let alone = with(&|c| c == Condition::Alone);
        let n = self.members.len();
        let origins: BTreeSet<u64> = all().filter_map(|(_, c)| origin_of(c)).collect();
        if origins.len() > 1 {
            return Some(format!(
                "controllers [{}] have stores that don't belong together: one is an old copy, or \
                was left when the \
                 others' was made anew. Empty that one's data directory while it is stopped",
                listed(&with(&|c| origin_of(c).is_some()))
            ));
        }
        if alone.len() > 1 || !alone.is_empty() && !members.is_empty() {
            return Some(format!(
                "controllers [{}] have stores of their own and don't act: keep the newest one, \
                and empty the data \
                 directories of the others while they are stopped",
                listed(&[alone, members].concat())
            ));
        }
        if !alone.is_empty() {
            return Some(format!(
                "controller {} acts alone until all {n} controllers answer, and the others are \
                empty",
                alone[0]
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
                "controllers [{}] have no store yet: they join once all {n} controllers answer",
                listed(&empty)
            )
        })
    }
}

fn origin_of(condition: Condition) -> Option<u64> {
    match condition {
        Condition::Founding { origin } | Condition::Member { origin } => Some(origin),
        Condition::Empty { .. } | Condition::Alone => None,
    }
}
