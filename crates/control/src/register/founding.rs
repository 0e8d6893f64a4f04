// SPDX-License-Identifier: Apache-2.0
//! How controllers become members together, and how an empty one joins.
//!
//! A record is *founding* until each member has one of the same origin: nobody votes before that,
//! so no empty member can have forgotten a vote. [E-FOUND]

use super::{Ballot, Condition, Part, Record, Register, Said, Written};
use paxos::{GroupId, NodeId, Time};
use std::collections::BTreeMap;

/// The parts of a record that have come so far.
pub(super) struct Collected {
    from: NodeId,
    origin: u64,
    promised: Ballot,
    is_founding: bool,
    count: usize,
    groups: BTreeMap<GroupId, Written>,
}

impl Register {
    /// Takes the next step towards common members.
    pub(super) fn found(&mut self, now: Time) {
        if self.members.len() == 1 {
            return;
        }
        let others: Vec<_> = self
            .peers()
            .filter_map(|peer| Some((peer, self.condition_of(now, peer)?)))
            .map(|(peer, hello)| (peer, hello.nonce, hello.condition))
            .collect();
        let all_answer = others.len() + 1 == self.members.len();
        let all = |is: Condition| all_answer && others.iter().all(|(.., c)| *c == is);
        let new = Condition::Empty { lost: false };
        match self.condition() {
            // One of them begins, so that all have the same origin.
            condition if condition == new && all(new) && self.me == self.members[0] => {
                self.begin_together(now);
            }
            Condition::Alone if self.others_are_empty(now) && all_answer => {
                self.begin_together(now);
            }
            Condition::Founding { origin } => {
                // A member has seen that all had the record, even if one has lost it since.
                let member = Condition::Member { origin };
                let is_founded = others.iter().any(|(.., c)| *c == member);
                if is_founded || all(Condition::Founding { origin }) {
                    self.become_member(now);
                } else if self.nobody_votes(now, origin) {
                    self.hand_over_to_empty(&others);
                }
            }
            _ => {}
        }
    }

    /// Makes the first record of all members, with the states of this controller if it was alone.
    /// Nobody acts until all have it. [E-FOUND]
    fn begin_together(&mut self, now: Time) {
        self.end(now, "the other controllers join".to_owned());
        let promised = self.promised();
        let alone = self.record.take();
        self.record = Some(Record {
            members: self.members.clone(),
            origin: self.random.draw().max(1),
            is_founding: true,
            promised,
            groups: alone.map(|record| record.groups).unwrap_or_default(),
        });
        self.unsaved = true;
    }

    fn become_member(&mut self, now: Time) {
        if let Some(record) = &mut self.record {
            record.is_founding = false;
            self.unsaved = true;
        }
        self.wait(now);
    }

    fn hand_over_to_empty(&mut self, others: &[(NodeId, u64, Condition)]) {
        let Some(record) = &self.record else { return };
        let about = (record.origin, record.promised, true);
        let groups: Vec<_> = record.groups.clone().into_iter().collect();
        for (node, nonce, condition) in others {
            if matches!(condition, Condition::Empty { .. }) {
                self.send_record(*node, *nonce, about, &groups);
            }
        }
    }

    /// Sends a record in parts, which are repeated until the other one isn't empty any more.
    pub(super) fn send_record(
        &mut self,
        to: NodeId,
        nonce: u64,
        (origin, promised, is_founding): (u64, Ballot, bool),
        groups: &[(GroupId, Written)],
    ) {
        let part = |group| Part {
            nonce,
            origin,
            promised,
            is_founding,
            groups: groups.len(),
            group,
        };
        if groups.is_empty() {
            return self.say(to, Said::Join(part(None)));
        }
        for group in groups {
            self.say(to, Said::Join(part(Some(group.clone()))));
        }
    }

    /// Takes a part of a record while this controller is empty. [E-EMPTY]
    pub(super) fn join(&mut self, now: Time, from: NodeId, part: Part) {
        let sound = part.group.as_ref().is_none_or(|(_, w)| w.state.is_sound());
        if self.record.is_some() || part.nonce != self.nonce || !sound {
            return;
        }
        let about = (
            from,
            part.origin,
            part.promised,
            part.is_founding,
            part.groups,
        );
        let same = |c: &Collected| (c.from, c.origin, c.promised, c.is_founding, c.count) == about;
        if !self.collected.as_ref().is_some_and(same) {
            self.collected = Some(Collected {
                from,
                origin: part.origin,
                promised: part.promised,
                is_founding: part.is_founding,
                count: part.groups,
                groups: BTreeMap::new(),
            });
        }
        let Some(collected) = &mut self.collected else {
            return;
        };
        collected.groups.extend(part.group);
        if collected.groups.len() < collected.count {
            return;
        }
        // Our lost store may have voted.
        if part.is_founding && !self.nobody_votes(now, part.origin) {
            return;
        }
        let collected = self.collected.take();
        self.record = collected.map(|c| Record {
            members: self.members.clone(),
            origin: c.origin,
            is_founding: c.is_founding,
            promised: c.promised,
            groups: c.groups,
        });
        self.unsaved = true;
    }

    /// Returns whether all others have said, since this process began, that they don't vote yet.
    /// [E-FOUND]
    fn nobody_votes(&self, now: Time, origin: u64) -> bool {
        let is_before = |c| match c {
            Condition::Empty { .. } => true,
            Condition::Founding { origin: o } => o == origin,
            Condition::Alone | Condition::Member { .. } => false,
        };
        let heard = |peer| Some(self.condition_of(now, peer)?.condition);
        self.peers().all(|peer| heard(peer).is_some_and(is_before))
    }

    /// Returns whether every other controller that answers is empty, so that the one that was alone
    /// may act. Silent ones may not have been started yet. [E-FOUND]
    pub(super) fn others_are_empty(&self, now: Time) -> bool {
        let heard = |peer| Some(self.condition_of(now, peer)?.condition);
        let is_empty = |peer| heard(peer).is_none_or(|c| matches!(c, Condition::Empty { .. }));
        self.members.len() == 1 || self.peers().all(is_empty)
    }
}
