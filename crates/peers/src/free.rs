// SPDX-License-Identifier: Apache-2.0
//! Free views: each replica appends what arrives, and the leader compares logs by their digests.
//!
//! What f + ⌈f/2⌉ + 1 logs of one view agree on is in every later view's log: of any f+1 replicas
//! that tell theirs, so many have it that nothing else can have as many (`change.rs`). In Fast
//! Paxos the leader counts, and answers. In Speculative Paxos the client does, and the leader only
//! now and then, so that execution becomes final.

use std::collections::VecDeque;

use paxos::{Header, Instance, MsgType, Outbox, Packet, Reason, Time, Verdict};

use crate::log::Entry;
use crate::message::{Order, Sync};
use crate::peer::{AGAIN, HEARTBEAT, PATIENCE, Peer, Protocol, Status};

/// Slots after which a leader compares logs.
const SYNC_SLOTS: u64 = 256;
/// The time after which the leader synchronises.
pub(crate) const SYNC_AFTER: Time = 1_000_000;
/// A leader under which nothing is committed for this time gives the view up.
const GIVE_UP: Time = 10 * AGAIN;
/// Votes of a member that are ahead of the leader's log, at most.
const MAX_AHEAD: usize = 64;
/// Entries that are sent to a member that has lost the last ones.
const MAX_SENT: u64 = 64;

/// The leader's knowledge of the others' logs.
#[derive(Default)]
pub(crate) struct Votes {
    /// Votes that are ahead of the leader's own log, by member.
    ahead: Vec<VecDeque<(Instance, u64)>>,
    /// The slot up to which each member's log was seen to be equal.
    equal: Vec<Instance>,
    heard: Vec<Time>,
    /// The time when something was committed, or there was nothing to commit.
    progress: Time,
    committed_at: Time,
    since: Time,
    sent_again: Time,
    /// The slot up to which logs were compared, or are being compared.
    asked: Instance,
    /// Everything below this was reported to the others as committed.
    pub told: Instance,
}

impl Votes {
    pub fn new(members: usize, now: Time) -> Votes {
        Votes {
            ahead: vec![VecDeque::new(); members],
            equal: vec![0; members],
            heard: vec![now; members],
            progress: now,
            since: now,
            ..Votes::default()
        }
    }

    pub fn heard(&mut self, member: usize, now: Time) {
        self.heard[member] = now;
    }
}

impl Peer {
    pub(crate) fn append_free(
        &mut self,
        entry: Entry,
        _: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        self.log.push(entry);
        self.has_news = true;
        Ok(Verdict::Changed)
    }

    // ---- The leader's side

    /// Shows where the leader is, and what is committed.
    pub(crate) fn sync(&mut self, out: &mut impl Outbox) {
        let sync = Sync {
            commit: self.commit,
            digest: self.log.digest(self.commit).unwrap_or(0),
        };
        let header = Header {
            inst: self.log.end(),
            ..self.header(MsgType::SyncPrepare)
        };
        self.tell_others(&header, &sync.emit(), out);
        self.told = self.now;
        self.votes.told = self.commit;
        self.votes.asked = self.log.end();
    }

    /// Synchronises at the end of a batch of packets if there is enough to commit.
    pub(crate) fn sync_if_full(&mut self, waits: bool, out: &mut impl Outbox) {
        let is_free = self.order == Order::Free && self.protocol() == Protocol::SpecPaxos;
        let end = self.log.end();
        let is_full = end >= self.votes.asked + SYNC_SLOTS;
        if is_free && end > self.commit && (is_full || waits && end > self.votes.asked) {
            self.sync(out);
        }
    }

    /// Returns when the leader speaks next, if nothing happens.
    pub(crate) fn sync_deadline(&self) -> Time {
        let is_open = self.order == Order::Free && self.log.end() > self.commit;
        match is_open || self.commit > self.votes.told {
            true => self.told + SYNC_AFTER,
            false => self.told + HEARTBEAT,
        }
    }

    pub(crate) fn on_vote(
        &mut self,
        h: &Header,
        sender: usize,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        if self.order != Order::Free || !self.leads() {
            return Err(Reason::NotLeader);
        }
        self.votes.heard(sender, self.now);
        let ahead = &mut self.votes.ahead[sender];
        if ahead.len() == MAX_AHEAD {
            ahead.pop_front();
        }
        ahead.push_back((h.inst, h.client));
        match self.count_votes(out) {
            true => Ok(Verdict::Changed),
            false => Ok(Verdict::Answered),
        }
    }

    /// Compares the votes that the leader's log has come to. Says whether more is committed.
    pub(crate) fn count_votes(&mut self, out: &mut impl Outbox) -> bool {
        let end = self.log.end();
        let mut differs = false;
        for (equal, ahead) in self.votes.equal.iter_mut().zip(&mut self.votes.ahead) {
            ahead.retain(|&(inst, digest)| {
                if inst > end {
                    return true;
                }
                match self.log.digest(inst) {
                    Some(own) if own == digest => *equal = inst.max(*equal),
                    Some(_) => differs = true,
                    None => {}
                }
                false
            });
        }
        let mut equal = self.votes.equal.clone();
        equal[self.me] = end;
        equal.sort_unstable_by(|a, b| b.cmp(a));
        #[cfg(test)]
        let needed = match self.is_broken(crate::tests::Broken::CountsMajority) {
            true => self.f() + 1,
            false => self.superquorum(),
        };
        #[cfg(not(test))]
        let needed = self.superquorum();
        let news = self.commit_to(equal[needed - 1]);
        if news {
            self.votes.committed_at = self.now;
        }
        if news || self.commit == end {
            self.votes.progress = self.now;
        }
        if differs {
            self.begin_anew(out);
        }
        news
    }

    /// Lets the leader leave its view for one that begins with one log.
    fn begin_anew(&mut self, out: &mut impl Outbox) {
        let members = self.members().len() as u32;
        self.change_to(self.view + members, out);
    }

    pub(crate) fn tick_votes(&mut self, out: &mut impl Outbox) {
        let now = self.now;
        match self.order {
            Order::Ordered => {
                let heard = self.votes.heard.iter().enumerate();
                let is_up = |(member, heard): &(usize, &Time)| {
                    *member == self.me || now < **heard + PATIENCE / 2
                };
                let up = heard.filter(is_up).count();
                let is_settled = now >= self.votes.since + PATIENCE;
                let is_free = self.protocol().order() == Order::Free;
                if is_free && is_settled && up >= self.superquorum() {
                    self.begin_anew(out);
                }
            }
            Order::Free => {
                let is_open = self.commit < self.log.end();
                if is_open && now >= self.votes.progress + GIVE_UP {
                    return self.begin_anew(out);
                }
                if self.again_deadline().is_some_and(|at| now >= at) {
                    self.send_again(out);
                }
                if !is_open {
                    self.votes.progress = now;
                }
            }
        }
    }

    /// Returns when something is done about what isn't committed.
    pub(crate) fn votes_deadline(&self) -> Option<Time> {
        match self.order {
            Order::Free if self.commit < self.log.end() => {
                let again = self.again_deadline();
                again.map(|again| again.min(self.votes.progress + GIVE_UP))
            }
            Order::Free => self.again_deadline(),
            Order::Ordered => None,
        }
    }

    /// Returns when entries are sent again: nothing is committed any more, or somebody who is up
    /// lacks what was committed last.
    fn again_deadline(&self) -> Option<Time> {
        let votes = &self.votes;
        let since = match self.commit < self.log.end() {
            true => votes.progress,
            false => {
                let lacks = |member: usize| {
                    let is_up = self.now < votes.heard[member] + PATIENCE / 2;
                    member != self.me && is_up && votes.equal[member] < self.commit
                };
                if !(0..votes.equal.len()).any(lacks) {
                    return None;
                }
                votes.committed_at
            }
        };
        Some(AGAIN + since.max(votes.sent_again))
    }

    /// Sends the last entries again to members whose logs equal the leader's as far as they go.
    fn send_again(&mut self, out: &mut impl Outbox) {
        self.votes.sent_again = self.now;
        for (member, equal) in self.votes.equal.clone().into_iter().enumerate() {
            if member != self.me {
                let to = self.members()[member];
                self.send_entries(to, equal..self.log.end().min(equal + MAX_SENT), out);
            }
        }
        self.sync(out);
    }

    // ---- The others

    pub(crate) fn on_sync(
        &mut self,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        let sync = Sync::parse(packet.value)?;
        if self.status != Status::Normal {
            return Err(Reason::NotNormal);
        }
        let end = packet.header.inst;
        let news = match self.order {
            Order::Ordered => {
                self.fetch_missing(end, out);
                self.has_news = true;
                self.follow_commit(sync.commit)
            }
            Order::Free => {
                self.vote(end.min(self.log.end()), out);
                let is_same = self.log.digest(sync.commit) == Some(sync.digest);
                #[cfg(test)]
                let is_same = is_same
                    || self.is_broken(crate::tests::Broken::BelievesCommit)
                        && sync.commit <= self.log.end();
                is_same && self.commit_to(sync.commit)
            }
        };
        match news {
            true => Ok(Verdict::Changed),
            false => Ok(Verdict::Answered),
        }
    }

    pub(crate) fn vote(&self, upto: Instance, out: &mut impl Outbox) {
        let Some(digest) = self.log.digest(upto) else {
            return;
        };
        let header = Header {
            inst: upto,
            client: digest,
            ..self.header(MsgType::SyncRep)
        };
        self.tell(self.leader(), &header, &[], out);
    }
}
