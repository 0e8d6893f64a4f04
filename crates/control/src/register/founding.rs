// SPDX-License-Identifier: Apache-2.0
//! How controllers become members together, and how an empty one joins.
//!
//! A record is *founding* until each member has one of the same origin: nobody votes before that,
//! so an empty member among them never stands for one that has voted and forgotten. [E-FOUND]

use super::{Ballot, Condition, Part, Record, Register, Said, Written};
use paxos::{GroupId, NodeId, Time};
use std::collections::BTreeMap;

/// The origin of members that began without any state.
const NEW: u64 = 0;

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
        let peers = self.peers();
        let others: Option<Vec<(NodeId, u64, Condition)>> = peers
            .map(|peer| {
                let hello = self.condition_of(now, peer)?;
                Some((peer, hello.nonce, hello.condition))
            })
            .collect();
        let Some(others) = others else { return };
        let all = |is: &dyn Fn(Condition) -> bool| others.iter().all(|(.., c)| is(*c));
        let is_new = |c| {
            matches!(
                c,
                Condition::Empty { lost: false } | Condition::Founding { origin: NEW }
            )
        };
        match self.condition() {
            Condition::Empty { lost: false } if all(&is_new) => {
                self.record = Some(Record {
                    members: self.members.clone(),
                    origin: NEW,
                    is_founding: true,
                    promised: Ballot::default(),
                    groups: BTreeMap::new(),
                });
                self.unsaved = true;
            }
            Condition::Alone if all(&|c| matches!(c, Condition::Empty { .. })) => {
                self.stop_being_alone(now)
            }
            Condition::Founding { origin } => {
                let follows = |c| match c {
                    Condition::Founding { origin: o } | Condition::Member { origin: o } => {
                        o == origin
                    }
                    _ => false,
                };
                if all(&follows) {
                    self.become_member(now);
                } else if origin != NEW && self.nobody_votes(now, origin) {
                    self.hand_over_to_empty(&others);
                }
            }
            _ => {}
        }
    }

    /// Gives up acting alone: from now on the state is that of all members, once all have it.
    /// [E-FOUND]
    fn stop_being_alone(&mut self, now: Time) {
        self.end(now, "the other controllers join".to_owned());
        let origin = self.random.draw().max(NEW + 1);
        if let Some(record) = &mut self.record {
            record.members.clone_from(&self.members);
            record.origin = origin;
            record.is_founding = true;
            self.unsaved = true;
        }
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
        // This one may be a member that has lost its store while the others went on.
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

    /// Returns whether nobody else has anything: the controller that was alone goes on until the
    /// others have its state. Those that don't answer may be off, as before there were others.
    /// [E-FOUND]
    pub(super) fn others_are_empty(&self, now: Time) -> bool {
        let heard = |peer| Some(self.condition_of(now, peer)?.condition);
        let is_empty = |peer| heard(peer).is_none_or(|c| matches!(c, Condition::Empty { .. }));
        self.members.len() == 1 || self.peers().all(is_empty)
    }
}
