// SPDX-License-Identifier: Apache-2.0
//! A member as an acceptor: it promises ballots, and stores what the owner of the latest one
//! writes.

use super::{Ballot, LOYALTY, Register, Said, Written};
use crate::GroupState;
use paxos::{GroupId, NodeId, Time};

impl Register {
    pub(super) fn prepare(&mut self, now: Time, from: NodeId, ballot: Ballot) {
        let Some(promised) = self.votes_for(from, ballot) else {
            return;
        };
        if ballot < promised || self.is_loyal_to_another(now, from) {
            return self.say(from, Said::Refused { ballot, promised });
        }
        self.promise_it(ballot);
        self.outbid(now, ballot);
        let groups = self.record.as_ref().map(|r| r.marks()).unwrap_or_default();
        self.say(from, Said::Promise { ballot, groups });
    }

    pub(super) fn accept(
        &mut self,
        now: Time,
        from: NodeId,
        ballot: Ballot,
        group: GroupId,
        state: GroupState,
    ) {
        let Some(promised) = self.votes_for(from, ballot).filter(|_| state.is_sound()) else {
            return;
        };
        if ballot < promised {
            return self.say(from, Said::Refused { ballot, promised });
        }
        let version = state.version;
        let Some(record) = &mut self.record else {
            return;
        };
        match record.groups.get(&group) {
            // An older write of the same ballot comes late, and its successor is stored already.
            // [E-BALLOT]
            Some(known) if known.mark() > (ballot, version) => return,
            // No ballot writes one version twice, so somebody breaks the rules.
            Some(known) if known.mark() == (ballot, version) && known.state != state => return,
            Some(known) if known.mark() == (ballot, version) => {}
            _ => {
                record.groups.insert(group, Written { ballot, state });
                self.unsaved = true;
            }
        }
        self.promise_it(ballot);
        self.outbid(now, ballot);
        let accepted = Said::Accepted {
            ballot,
            group,
            version,
        };
        self.say(from, accepted);
    }

    /// Tells the state that was accepted last, to the one that has the latest promise.
    pub(super) fn fetch(&mut self, from: NodeId, ballot: Ballot, group: GroupId) {
        if self.votes_for(from, ballot) != Some(ballot) {
            return;
        }
        let written = self.record.as_ref().and_then(|r| r.groups.get(&group));
        if let Some(written) = written.cloned() {
            let fetched = Said::Fetched {
                ballot,
                group,
                written,
            };
            self.say(from, fetched);
        }
    }

    /// Raises the promise.
    pub(super) fn promise_it(&mut self, ballot: Ballot) {
        if let Some(record) = self.record.as_mut().filter(|r| r.promised < ballot) {
            record.promised = ballot;
            self.unsaved = true;
        }
    }

    /// Returns what is promised, if this controller votes together with the owner of a ballot.
    /// [E-EMPTY]
    fn votes_for(&self, from: NodeId, ballot: Ballot) -> Option<Ballot> {
        let together = ballot.by == from && self.voters().contains(&from);
        let record = self.voting().filter(|_| together)?;
        Some(record.promised)
    }

    /// Returns whether another controller acts that this one hears. [E-ACTS]
    fn is_loyal_to_another(&self, now: Time, from: NodeId) -> bool {
        let acts_here = from != self.me && self.alive && self.is_heard(now, LOYALTY);
        acts_here || self.follows_another(now, from)
    }

    /// Returns whether this controller hears one that acts, other than `from`.
    pub(super) fn follows_another(&self, now: Time, from: NodeId) -> bool {
        let mut others = self.peers.iter().filter(|(node, _)| **node != from);
        others.any(|(_, heard)| {
            let acting = heard.hello.acting.filter(|_| heard.both_ways);
            now < heard.at + LOYALTY && acting.is_some_and(|ballot| self.is_not_older(ballot))
        })
    }
}
