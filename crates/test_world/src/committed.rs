// SPDX-License-Identifier: Apache-2.0
//! Tells what NOPaxos has committed, from the packets alone, and checks that it stays: INV-10 to
//! INV-12, and the part of INV-15 that no slot of a session is stamped twice. It knows the sessions
//! and the packets that were sent; it knows a replica's log only if a test shows it.
//!
//! Packets are taken as bytes, so that the tests inside `paxos` can show theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use paxos::nopaxos::view;
use paxos::wire::nopaxos::{Noops, SyncPrepare};
use paxos::{Epoch, Flags, Header, Instance, MsgType, NodeId, Packet, Round};

use crate::rng::hash;

/// A broken invariant, and what has broken it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The invariant.
    pub id: &'static str,
    /// A description of what happened.
    pub what: String,
}

/// The contents of a slot in a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// No request.
    Noop,
    /// Some request: which one isn't known.
    Request,
    /// A request of this client and number. Its name is all that is known.
    Known(u64, u64),
    /// This very entry. A command over several partitions that was sent again has the same name,
    /// and another vector.
    Whole {
        /// The client and number.
        name: (u64, u64),
        /// The digest of flags and value.
        digest: u64,
    },
}

impl Content {
    /// Returns what a log shows of a slot that is filled: client and request, flags and value.
    pub fn whole(name: (u64, u64), flags: u16, value: &[u8]) -> Content {
        match Flags(flags).has(Flags::NOOP) {
            true => Content::Noop,
            false => Content::Whole {
                name,
                digest: hash(flags.into(), value),
            },
        }
    }

    fn name(self) -> Option<(u64, u64)> {
        match self {
            Content::Known(client, request) => Some((client, request)),
            Content::Whole { name, .. } => Some(name),
            Content::Noop | Content::Request => None,
        }
    }

    /// Returns whether both may be said of one slot.
    fn fits(self, other: Content) -> bool {
        match (self, other) {
            (Content::Whole { .. }, Content::Whole { .. }) => self == other,
            (Content::Noop, _) | (_, Content::Noop) => self == other,
            (Content::Request, _) | (_, Content::Request) => true,
            _ => self.name() == other.name(),
        }
    }

    /// Returns whether it says more.
    fn is_more_than(self, other: Content) -> bool {
        let says = |content| match content {
            Content::Request => 0,
            Content::Known(..) => 1,
            Content::Noop | Content::Whole { .. } => 2,
        };
        says(self) > says(other)
    }
}

/// A session as the store has it.
#[derive(Clone, Debug)]
struct Members {
    nodes: Vec<(NodeId, u64)>,
    f: usize,
    lead: usize,
}

#[derive(Clone, Debug)]
struct Start {
    end: Instance,
    stable: Instance,
    noops: Vec<Range<Instance>>,
    bytes: Vec<u8>,
}

/// The facts about one partition.
#[derive(Default, Debug)]
pub struct Committed {
    pid: u16,
    sessions: BTreeMap<Epoch, Members>,
    stamps: BTreeMap<(Round, Instance), Content>,
    starts: BTreeMap<Round, Start>,
    /// The part of a view's log that its leader has shown.
    logs: BTreeMap<Round, BTreeMap<Instance, Content>>,
    /// The slots that a view's leader has answered.
    answered: BTreeMap<Round, BTreeSet<Instance>>,
    acks: BTreeMap<Round, BTreeMap<NodeId, Instance>>,
    /// Up to where members have shown that their logs equal the leader's.
    synced: BTreeMap<Round, BTreeMap<NodeId, Instance>>,
    /// Committed in a view: everything below.
    committed: BTreeMap<Round, Instance>,
    stable: BTreeMap<Instance, Content>,
    violations: Vec<Violation>,
}

impl Committed {
    /// Creates the facts about partition `pid`.
    pub fn new(pid: u16) -> Committed {
        Committed {
            pid,
            ..Committed::default()
        }
    }

    /// Notes a session of which there may be packets from now on: members as (node, nonce), f, and
    /// who leads first.
    pub fn session(&mut self, number: Epoch, nodes: &[(NodeId, u64)], f: usize, lead: usize) {
        let nodes = nodes.to_vec();
        self.sessions.insert(number, Members { nodes, f, lead });
    }

    /// Returns what was broken so far.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// Returns how far a view's log is committed.
    fn committed_in(&self, view: Round) -> Instance {
        self.committed.get(&view).copied().unwrap_or(0)
    }

    /// Returns how much was committed in any view.
    pub fn most_committed(&self) -> Instance {
        self.committed.values().copied().max().unwrap_or(0)
    }

    /// Notes that somebody sends a packet.
    pub fn sent(&mut self, datagram: &[u8]) {
        let Ok(packet) = Packet::parse(datagram) else {
            return;
        };
        let h = packet.header;
        if h.pid != self.pid || h.rnd.is_none() {
            return;
        }
        match h.msgtype {
            MsgType::Ordered => self.ordered(&packet),
            MsgType::Reply => self.reply(&h),
            MsgType::Ack => self.ack(&h),
            MsgType::StartView => self.start_view(&packet),
            MsgType::GapCommit => self.gap_commit(&packet),
            MsgType::SyncRep | MsgType::StartViewRep => self.sync_rep(&h),
            MsgType::SyncCommit => self.commit(h.rnd, h.inst),
            MsgType::SyncPrepare => {
                if let Ok(prepare) = SyncPrepare::parse(packet.value, h.inst, u16::MAX) {
                    self.commit(h.rnd, prepare.noops.stable);
                }
            }
            _ => {}
        }
    }

    fn violated(&mut self, id: &'static str, what: String) {
        self.violations.push(Violation { id, what });
    }

    fn ordered(&mut self, packet: &Packet<'_>) {
        let h = &packet.header;
        let message = Content::whole((h.client, h.request), h.flags.0, packet.value);
        let first = *self.stamps.entry((h.rnd, h.inst)).or_insert(message);
        if first != message {
            let what = format!(
                "slot {} of session {} is stamped twice",
                h.inst,
                h.rnd.epoch()
            );
            self.violated("INV-15", what);
        }
    }

    /// Notes that the leader's log has this request.
    fn reply(&mut self, h: &Header) {
        if self.leader(h.rnd) != Some(h.swid) {
            self.violated("INV-11", format!("{} answers in view {:?}", h.swid, h.rnd));
        }
        // A packed one names none of its commands.
        let content = match h.flags.has(Flags::PACKED) {
            true => Content::Request,
            false => Content::Known(h.client, h.request),
        };
        self.shows(h.rnd, h.inst, content);
        self.answered.entry(h.rnd).or_default().insert(h.inst);
        self.look(h.rnd);
    }

    fn ack(&mut self, h: &Header) {
        let acks = self.acks.entry(h.rnd).or_default();
        let filled = acks.entry(h.swid).or_default();
        *filled = (*filled).max(h.inst);
        self.look(h.rnd);
    }

    /// Notes a point that a follower has confirmed. It counts whether or not the leader says so,
    /// which may tell clients before it tells others. [N-CROWD]
    fn sync_rep(&mut self, h: &Header) {
        let Some(session) = self.sessions.get(&h.rnd.epoch()) else {
            return;
        };
        let is_member = session.nodes.contains(&(h.swid, h.client));
        if !is_member || self.leader(h.rnd) == Some(h.swid) {
            return;
        }
        let synced = self.synced.entry(h.rnd).or_default();
        let reached = synced.entry(h.swid).or_default();
        *reached = (*reached).max(h.inst);
        if session.f > 0 {
            let end = nth_largest(synced.values().copied(), session.f);
            self.commit(h.rnd, end);
        }
    }

    fn start_view(&mut self, packet: &Packet<'_>) {
        let h = &packet.header;
        let Ok(noops) = Noops::parse(packet.value, h.inst, u16::MAX) else {
            return;
        };
        let start = Start {
            end: h.inst,
            stable: noops.stable,
            noops: noops.ranges().collect(),
            bytes: packet.value.to_vec(),
        };
        if let Some(first) = self.starts.get(&h.rnd) {
            if (first.end, &first.bytes) != (start.end, &start.bytes) {
                self.violated("INV-11", format!("view {:?} starts with two logs", h.rnd));
            }
            return;
        }
        for inst in start.stable..start.end {
            self.shows(h.rnd, inst, start.content(inst));
        }
        self.starts.insert(h.rnd, start);
        let earlier: Vec<_> = self
            .committed
            .range(..h.rnd)
            .map(|(v, n)| (*v, *n))
            .collect();
        for (view, end) in earlier {
            self.compare(view, end, h.rnd);
        }
    }

    fn gap_commit(&mut self, packet: &Packet<'_>) {
        let h = &packet.header;
        let Ok(noops) = Noops::parse_commit(packet.value, h.inst, u16::MAX) else {
            return;
        };
        for inst in noops.ranges().flatten() {
            self.shows(h.rnd, inst, Content::Noop);
        }
    }

    /// Notes that the leader of a view has this in its log. In one view that never changes.
    fn shows(&mut self, view: Round, inst: Instance, content: Content) {
        let log = self.logs.entry(view).or_default();
        let known = log.entry(inst).or_insert(content);
        if !known.fits(content) {
            let what = format!("slot {inst} in view {view:?}: {known:?}, then {content:?}");
            self.violated("INV-11", what);
        } else if content.is_more_than(*known) {
            *known = content;
        }
        let end = self.committed_in(view);
        if inst < end {
            self.compare_all(view, end);
        }
        let earlier = self.committed.range(..view);
        let earlier: Vec<Round> = earlier
            .filter(|(_, end)| inst < **end)
            .map(|(v, _)| *v)
            .collect();
        for committed_in in earlier {
            self.compare_logs(committed_in, inst + 1, view, "is committed, and changes");
        }
    }

    /// Commits what clients may have seen: the leader's answer, and f acknowledgements of others in
    /// the same view.
    fn look(&mut self, view: Round) {
        let Some(session) = self.sessions.get(&view.epoch()) else {
            return;
        };
        let leader = self.leader(view);
        let is_member = |node: &NodeId| session.nodes.iter().any(|(n, _)| n == node);
        let acks = self.acks.get(&view).into_iter().flatten();
        let others = acks.filter(|(node, _)| Some(**node) != leader && is_member(node));
        let filled = nth_largest(others.map(|(_, inst)| *inst), session.f);
        let answered = self.answered.get(&view);
        let last = answered.and_then(|slots| slots.range(..filled).next_back());
        if let Some(last) = last.copied() {
            self.commit(view, last + 1);
        }
    }

    /// Notes that everything below a slot is committed in this view.
    fn commit(&mut self, view: Round, end: Instance) {
        let before = self.committed.entry(view).or_default();
        if end > *before {
            *before = end;
            self.compare_all(view, end);
        }
    }

    fn compare_all(&mut self, view: Round, end: Instance) {
        let later: Vec<Round> = self.starts.keys().copied().filter(|w| *w > view).collect();
        for other in later {
            self.compare(view, end, other);
        }
        let others: Vec<_> = self.committed.iter().map(|(v, n)| (*v, *n)).collect();
        for (other, other_end) in others {
            self.compare_logs(
                view,
                end.min(other_end),
                other,
                "is committed with two contents",
            );
        }
    }

    /// Checks that the log of a later view contains what was committed in `view`.
    fn compare(&mut self, view: Round, end: Instance, later: Round) {
        let start = self.starts[&later].clone();
        if start.end < end {
            let what = format!(
                "{end} slots of {view:?} are committed, {later:?} starts with {}",
                start.end
            );
            self.violated("INV-10", what);
        }
        self.compare_logs(view, end, later, "is committed, and changes");
    }

    fn compare_logs(&mut self, view: Round, end: Instance, other: Round, how: &str) {
        let (Some(log), Some(other_log)) = (self.logs.get(&view), self.logs.get(&other)) else {
            return;
        };
        let differs = |(inst, content): &(&Instance, &Content)| {
            other_log
                .get(inst)
                .is_some_and(|other| !other.fits(**content))
        };
        let found = log.range(..end).find(differs);
        if let Some((inst, content)) = found {
            let what = format!(
                "slot {inst} of {view:?} {how} in {other:?}: {content:?}, {:?}",
                other_log[inst]
            );
            self.violated("INV-10", what);
        }
    }

    /// Returns who leads a view.
    fn leader(&self, view: Round) -> Option<NodeId> {
        let session = self.sessions.get(&view.epoch())?;
        let turn = session.lead + usize::from(self.pid) + view::number(view) as usize;
        Some(session.nodes[turn % session.nodes.len()].0)
    }

    /// Checks a replica's log, in which `log` knows everything from `floor` to `next`. Its stable
    /// part must equal that of all others, and everything must be there that was committed before
    /// the view in which the replica is normal (a number, as in a header's `rnd`). If the replica
    /// leads that view, its log is what will be committed.
    pub fn shown(
        &mut self,
        who: NodeId,
        normal_in: Option<u32>,
        (floor, stable, next): (Instance, Instance, Instance),
        log: impl Fn(Instance) -> Content,
    ) {
        for inst in floor..stable.min(next) {
            let first = *self.stable.entry(inst).or_insert(log(inst));
            if first != log(inst) {
                let what = format!("{who}: stable slot {inst}: {first:?} and {:?}", log(inst));
                self.violated("INV-12", what);
            }
        }
        let Some(view) = normal_in.map(Round) else {
            return;
        };
        if self.leader(view) == Some(who) {
            self.shown_by_leader(view, floor..next, &log);
        }
        let earlier: Vec<_> = self
            .committed
            .range(..view)
            .map(|(v, n)| (*v, *n))
            .collect();
        for (earlier, end) in earlier {
            if next < end {
                let what = format!(
                    "{who} is normal in {view:?} without slot {next}, committed in {earlier:?}"
                );
                self.violated("INV-10", what);
            }
            let known = self
                .logs
                .get(&earlier)
                .into_iter()
                .flat_map(|log| log.range(floor..end.max(floor)));
            let differs = |(inst, content): &(&Instance, &Content)| {
                **inst < next && !log(**inst).fits(**content)
            };
            let wrong = known
                .clone()
                .find(differs)
                .map(|(inst, content)| (*inst, *content));
            if let Some((inst, content)) = wrong {
                let what = format!(
                    "{who} in {view:?}: slot {inst} was {content:?} in {earlier:?}, is {:?}",
                    log(inst)
                );
                self.violated("INV-10", what);
            }
        }
    }

    fn shown_by_leader(
        &mut self,
        view: Round,
        slots: Range<Instance>,
        log: &impl Fn(Instance) -> Content,
    ) {
        for inst in slots {
            let known = self.logs.get(&view).and_then(|log| log.get(&inst));
            if known != Some(&log(inst)) {
                self.shows(view, inst, log(inst));
            }
        }
    }
}

/// Returns the n-th largest number, or 0 if there are fewer; without numbers there is no bound.
fn nth_largest(all: impl Iterator<Item = Instance>, n: usize) -> Instance {
    let mut all: Vec<Instance> = all.collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    match n {
        0 => Instance::MAX,
        n => all.get(n - 1).copied().unwrap_or(0),
    }
}

impl Start {
    fn content(&self, inst: Instance) -> Content {
        match self.noops.iter().any(|range| range.contains(&inst)) {
            true => Content::Noop,
            false => Content::Request,
        }
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // ranges are what these lists are of
mod tests;
