// SPDX-License-Identifier: Apache-2.0
//! The possible knowledge of a replica about a partition, by the packets that have reached it.

use std::collections::{BTreeMap, BTreeSet};

use paxos::wire::nopaxos::{Noops, SyncPrepare};
use paxos::{Epoch, Flags, Header, Instance, Member, MsgType, NodeId, Packet, Round};

use super::StoredSession;

/// A replica's part of one partition, as this module describes.
#[derive(Default)]
pub(super) struct Node {
    /// The last view for which the replica left the one before, and how far it said that its log
    /// was filled.
    left: (Round, Instance),
    /// Slots that it got from sequencers, by session.
    ordered: BTreeSet<(Epoch, Instance)>,
    /// Views of which it got a START_VIEW, with the log's end.
    told: BTreeMap<Round, Instance>,
    /// VIEW_CHANGEs, in the order in which they came.
    changes: BTreeMap<Round, Vec<LogSummary>>,
    /// The views in which it was normal.
    logs: BTreeMap<Round, Log>,
    /// The entries that came in each view, also before the view has begun here.
    come: BTreeMap<Round, Come>,
}

/// A VIEW_CHANGE.
struct LogSummary {
    member: Member,
    last_normal: Round,
    next: Instance,
    stable: Instance,
    noops: Vec<(Instance, Instance)>,
}

/// A view's log, as this replica has it.
#[derive(Default)]
struct Log {
    /// The end of the log when the view began here.
    began: Instance,
    /// Everything below this slot was seen to come.
    filled: Instance,
    /// The largest that it has acknowledged.
    shown: Instance,
}

/// The packets that reached the replica in a view.
#[derive(Default)]
struct Come {
    entries: BTreeSet<Instance>,
    noops: BTreeSet<Instance>,
    /// If the replica leads: its own no-ops, and up to where others have confirmed them.
    given_up: BTreeSet<Instance>,
    confirmed: BTreeMap<NodeId, Instance>,
    synced: BTreeMap<NodeId, Instance>,
}

impl Node {
    pub fn receive(&mut self, packet: &Packet<'_>) {
        let h = &packet.header;
        if h.msgtype == MsgType::Ordered {
            self.ordered.insert((h.rnd.epoch(), h.inst));
            return;
        }
        let come = self.come.entry(h.rnd).or_default();
        match h.msgtype {
            MsgType::GapReply if h.flags.has(Flags::NOOP) => drop(come.noops.insert(h.inst)),
            // An empty one says that there is nothing.
            MsgType::GapReply if h.client != 0 => drop(come.entries.insert(h.inst)),
            MsgType::GapCommit => {
                if let Ok(noops) = Noops::parse_commit(packet.value, h.inst, u16::MAX) {
                    come.noops.extend(noops.ranges().flatten());
                }
            }
            MsgType::SyncPrepare => {
                if let Ok(prepare) = SyncPrepare::parse(packet.value, h.inst, u16::MAX) {
                    come.noops.extend(prepare.noops.ranges().flatten());
                }
            }
            MsgType::GapCommitRep => raise(&mut come.confirmed, h.swid, h.request),
            MsgType::SyncRep | MsgType::StartViewRep => raise(&mut come.synced, h.swid, h.inst),
            MsgType::StartView => drop(self.told.insert(h.rnd, h.inst)),
            MsgType::ViewChange => self.note(packet),
            _ => {}
        }
    }

    fn note(&mut self, packet: &Packet<'_>) {
        let h = &packet.header;
        let Ok(noops) = Noops::parse(packet.value, h.inst, u16::MAX) else {
            return;
        };
        let member = Member {
            node: h.swid,
            nonce: h.client,
        };
        self.changes.entry(h.rnd).or_default().push(LogSummary {
            member,
            last_normal: h.vrnd,
            next: h.inst,
            stable: noops.stable,
            noops: noops.ranges().map(|r| (r.start, r.end)).collect(),
        });
    }

    // ---- Views

    /// Returns whether a START_VIEW of this end has come.
    pub fn was_told(&self, view: Round, end: Instance) -> bool {
        self.told.get(&view) == Some(&end)
    }

    /// Notes that the replica goes to a view, and how far it says that its log is filled.
    pub fn goes(&mut self, view: Round, filled: Instance) {
        if view > self.left.0 {
            self.left = (view, filled);
        }
    }

    /// Returns whether the replica may still say of a view that its log is filled so far. Whatever
    /// it has told for the next view, it may say later, too.
    pub fn may_speak(&self, view: Round, filled: Instance) -> bool {
        view >= self.left.0 || filled <= self.left.1
    }

    /// Notes that the replica is normal in this view.
    pub fn begin(&mut self, view: Round, end: Instance) {
        self.goes(view, end);
        self.logs.entry(view).or_insert(Log {
            began: end,
            filled: end,
            shown: end,
        });
    }

    /// Notes that the replica says how far its log is filled. In a batch that may come before its
    /// START_VIEW_REP, which says the same of the log with which the view began.
    pub fn speaks(&mut self, view: Round, filled: Instance) {
        let told = self.told.get(&view).copied();
        if let Some(end) = told.filter(|end| *end <= filled) {
            self.begin(view, end);
        }
    }

    /// The last view in which it was normal, and what it has acknowledged there.
    pub fn last_normal(&self) -> (Round, Instance) {
        let last = self.logs.last_key_value();
        last.map_or((Round::NONE, 0), |(view, log)| (*view, log.shown))
    }

    /// Returns whether some of the VIEW_CHANGEs that came first, with its own, are enough and make
    /// this log.
    pub fn may_begin(
        &self,
        h: &Header,
        noops: &Noops<'_>,
        own: Member,
        ways: &[Vec<StoredSession>],
    ) -> bool {
        let nothing = Vec::new();
        let told = self.changes.get(&h.rnd).unwrap_or(&nothing);
        (0..=told.len()).any(|n| {
            let some = &told[..n];
            let has = |m: &&Member| **m == own || some.iter().any(|t| t.member == **m);
            let enough =
                |s: &StoredSession| s.members.iter().filter(has).count() > usize::from(s.f);
            let is_quorum = ways.iter().any(|way| way.iter().all(enough));
            is_quorum && self.makes(some, h, noops)
        })
    }

    /// Returns what others told of the latest view must be in the log. What this replica has itself
    /// isn't in the trace.
    fn makes(&self, told: &[LogSummary], h: &Header, noops: &Noops<'_>) -> bool {
        let (own, filled) = self.last_normal();
        let latest = told.iter().map(|t| t.last_normal).max();
        let latest = latest.unwrap_or(Round::NONE).max(own);
        let mut counts = told.iter().filter(|t| t.last_normal == latest);
        let is_listed = |inst: Instance| noops.ranges().any(|range| range.contains(&inst));
        let is_in_it = |t: &LogSummary| {
            let listed = t.noops.iter().flat_map(|(start, end)| *start..*end);
            let mut above = listed.filter(|inst| *inst >= noops.stable);
            t.next <= h.inst && above.all(is_listed)
        };
        let stable = told.iter().map(|t| t.stable).max().unwrap_or(0);
        noops.stable >= stable && counts.all(is_in_it) && (own < latest || filled <= h.inst)
    }

    // ---- Slots

    /// Returns whether everything below `next` has come since the view began here; otherwise the
    /// first slot that hasn't.
    pub fn has_filled(
        &mut self,
        view: Round,
        next: Instance,
        stable: Instance,
    ) -> Result<(), Instance> {
        let Some(log) = self.logs.get_mut(&view) else {
            return Err(next);
        };
        let come = self.come.entry(view).or_default();
        let mut at = log.filled;
        while at < next {
            let is_here = at < stable
                || self.ordered.contains(&(view.epoch(), at))
                || come.entries.contains(&at)
                || come.noops.contains(&at)
                || come.given_up.contains(&at);
            if !is_here {
                return Err(at);
            }
            at += 1;
        }
        log.filled = at;
        log.shown = log.shown.max(next);
        Ok(())
    }

    /// Notes that the replica, as the leader, puts no-ops into these slots.
    pub fn put_noops(&mut self, view: Round, noops: &Noops<'_>) {
        let began = self.logs.get(&view).map_or(0, |log| log.began);
        let come = self.come.entry(view).or_default();
        let new = noops.ranges().flatten().filter(|inst| *inst >= began);
        come.given_up.extend(new);
    }

    /// Returns the first of its own no-ops, up to a slot, that f others haven't confirmed.
    pub fn unagreed(
        &self,
        view: Round,
        slot: Instance,
        f: usize,
        stable: Instance,
    ) -> Option<Instance> {
        let come = self.come.get(&view)?;
        let confirmed = nth_largest(&come.confirmed, f);
        let mut own = come
            .given_up
            .range(stable.max(confirmed)..=slot.max(stable.max(confirmed)));
        own.find(|inst| **inst <= slot).copied()
    }

    /// Returns whether f others have shown that they have everything below.
    pub fn was_synced_by(&self, f: usize, view: Round, inst: Instance) -> bool {
        let come = self.come.get(&view);
        f == 0 || come.is_some_and(|come| nth_largest(&come.synced, f) >= inst)
    }
}

/// Returns the n-th largest number, or 0 if there are fewer.
pub(super) fn nth_largest(of: &BTreeMap<NodeId, Instance>, n: usize) -> Instance {
    let mut all: Vec<Instance> = of.values().copied().collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    match n {
        0 => Instance::MAX,
        n => all.get(n - 1).copied().unwrap_or(0),
    }
}

pub(super) fn raise(map: &mut BTreeMap<NodeId, Instance>, node: NodeId, to: Instance) {
    let known = map.entry(node).or_default();
    *known = to.max(*known);
}
