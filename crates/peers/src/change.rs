// SPDX-License-Identifier: Apache-2.0
//! How a view begins: the new leader hears of f+1 logs at least, makes one of them, and all others
//! take it over.
//!
//! Nobody touches its log before it has all of the new one: until then it would tell the next
//! leader of its old one, and what was committed with its help must be in that.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use paxos::{Header, Instance, MsgType, NodeId, Outbox, Packet, Reason, Round, Time, Verdict};

use crate::log::Entry;
use crate::message::{Order, Report, Start, emit_count, parse_count};
use crate::peer::{AGAIN, PATIENCE, Peer, Status};

/// f+1 reports are enough, but more of them may allow a free view.
const CHOOSE_AFTER: Time = 2_000_000;
/// Entries that are asked for at a time.
const CHUNK: u64 = 128;

/// A view change under way.
#[derive(Default)]
pub(crate) struct Change {
    /// The time when the change began, or made progress last.
    started: Time,
    told: Time,
    /// The report of each member: the view of its log, the log's end, and the rest.
    reports: Vec<Option<(u32, Instance, Report)>>,
    /// Which logs are fetched, and for what.
    sources: Vec<Source>,
    plan: Option<Plan>,
    /// The view with whose log the view in force began.
    pub of: u32,
}

struct Source {
    member: usize,
    slots: Range<Instance>,
    got: BTreeMap<Instance, Entry>,
    asked: Range<Instance>,
}

/// The step that follows once all entries are here.
#[derive(Clone, Copy)]
enum Plan {
    /// The leader makes one log of many: its own stays up to `from`.
    Merge { from: Instance, of: u32 },
    /// The others take the leader's, behind their own up to `from`.
    Follow { from: Instance, start: Start },
}

impl Source {
    fn is_complete(&self) -> bool {
        self.got.len() as u64 == self.slots.end - self.slots.start
    }

    /// Returns what is asked for next.
    fn missing(&self) -> Range<Instance> {
        let from = self.slots.clone().find(|slot| !self.got.contains_key(slot));
        let from = from.unwrap_or(self.slots.end);
        from..self.slots.end.min(from + CHUNK)
    }
}

impl Peer {
    /// Leaves the present view. What the log has stays as it is.
    pub(crate) fn change_to(&mut self, view: u32, out: &mut impl Outbox) {
        debug_assert!(view > self.view);
        self.view = view;
        self.status = Status::Changing;
        self.batch.clear();
        self.early.clear();
        self.change = Change {
            started: self.now,
            reports: vec![None; self.members().len()],
            ..Change::default()
        };
        self.tell_change(out);
    }

    fn tell_change(&mut self, out: &mut impl Outbox) {
        self.change.told = self.now;
        let header = self.header(MsgType::ViewChangeReq);
        self.tell_others(&header, &[], out);
        self.report(out);
    }

    /// Tells the new leader of the log that is here.
    pub(crate) fn report(&mut self, out: &mut impl Outbox) {
        let report = Report {
            commit: self.commit,
            base: self.base,
            order: self.order,
        };
        if self.leader_of(self.view) == self.me {
            self.change.reports[self.me] = Some((self.normal_view, self.log.end(), report));
            return self.choose(out);
        }
        let header = Header {
            vrnd: Round(self.normal_view),
            inst: self.log.end(),
            ..self.header(MsgType::ViewChange)
        };
        self.tell(self.leader(), &header, &report.emit(), out);
    }

    pub(crate) fn on_report(
        &mut self,
        packet: &Packet<'_>,
        sender: usize,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        let h = &packet.header;
        let report = Report::parse(packet.value)?;
        if self.leader_of(self.view) != self.me {
            return Err(Reason::NotLeader);
        }
        if self.status == Status::Normal {
            self.tell_start(h.swid, out);
            return Ok(Verdict::Answered);
        }
        if self.change.plan.is_some() {
            // The new log is already being made of the reports that had come when it was chosen.
            return Err(Reason::Duplicate);
        }
        self.change.reports[sender] = Some((h.vrnd.0, h.inst, report));
        self.choose(out);
        Ok(Verdict::Changed)
    }

    // ---- The leader's side

    /// Decides, once, whose logs the view begins with.
    fn choose(&mut self, out: &mut impl Outbox) {
        let reports = self.change.reports.iter().flatten();
        let count = reports.clone().count();
        let is_late = self.now >= self.change.started + CHOOSE_AFTER;
        let is_enough = count == self.members().len() || count > self.f() && is_late;
        if self.change.plan.is_some() || !is_enough {
            return;
        }
        let of = reports.map(|(view, ..)| *view).max().unwrap_or(0);
        let is_of = self.normal_view == of;
        let from = match self.order {
            // In an ordered view all logs are parts of the same log.
            Order::Ordered if is_of => self.log.end(),
            _ => self.commit,
        };
        self.change.plan = Some(Plan::Merge { from, of });
        self.change.sources = self.sources(of, from);
        self.fetch(out);
    }

    /// Returns which logs are needed from `from` on: of an ordered view the longest, of a free one
    /// all.
    fn sources(&self, of: u32, from: Instance) -> Vec<Source> {
        let source = |(member, end)| Source {
            member,
            slots: from..end,
            got: BTreeMap::new(),
            asked: 0..0,
        };
        let ends = self.logs_of(of).filter(|(_, end)| *end > from);
        let others = ends.filter(|(member, _)| *member != self.me);
        match self.order_of(of) {
            Order::Free => others.map(source).collect(),
            Order::Ordered => {
                #[cfg(test)]
                if self.is_broken(crate::tests::Broken::TakesAnyLog) {
                    return others
                        .min_by_key(|(_, end)| *end)
                        .map(source)
                        .into_iter()
                        .collect();
                }
                others
                    .max_by_key(|(_, end)| *end)
                    .map(source)
                    .into_iter()
                    .collect()
            }
        }
    }

    /// Members whose logs are of this view, and the logs' ends.
    fn logs_of(&self, view: u32) -> impl Iterator<Item = (usize, Instance)> + '_ {
        let numbered = self.change.reports.iter().enumerate();
        numbered.filter_map(move |(member, report)| {
            let (of, end, _) = (*report)?;
            (of == view).then_some((member, end))
        })
    }

    fn order_of(&self, view: u32) -> Order {
        let reports = self.change.reports.iter().flatten();
        let mut of_view = reports.filter(|(of, ..)| *of == view);
        of_view
            .next()
            .map_or(self.order, |(.., report)| report.order)
    }

    /// Returns the entries that were fetched, behind those that stay of the replica's own log.
    fn merged(&self, from: Instance, of: u32) -> Vec<Entry> {
        let sources = &self.change.sources;
        if self.order_of(of) == Order::Ordered {
            let entries = sources.iter().flat_map(|source| source.got.values());
            return entries.cloned().collect();
        }
        let own = self.logs_of(of).any(|(member, _)| member == self.me);
        let own: BTreeMap<_, _> = match own {
            true => (from..self.log.end())
                .filter_map(|slot| Some((slot, self.log.get(slot)?)))
                .collect(),
            false => BTreeMap::new(),
        };
        let mut logs: Vec<BTreeMap<Instance, &Entry>> = vec![own];
        logs.extend(
            sources
                .iter()
                .map(|s| s.got.iter().map(|(i, e)| (*i, e)).collect()),
        );
        let reports = self.change.reports.iter().flatten();
        let base = reports
            .clone()
            .filter(|(view, ..)| *view == of)
            .map(|(.., report)| report.base)
            .max();
        let (heard, all) = (reports.count(), self.members().len());
        let needed = heard - (all - self.superquorum());
        #[cfg(test)]
        let needed = match self.is_broken(crate::tests::Broken::TakesAnyLog) {
            true => 1,
            false => needed,
        };
        merge(from, base.unwrap_or(0), needed.max(1), &logs)
    }

    fn finish_merge(&mut self, from: Instance, of: u32, out: &mut impl Outbox) {
        let entries = self.merged(from, of);
        let reports = self.change.reports.iter().flatten();
        let count = reports.clone().count();
        let commit = reports.map(|(.., report)| report.commit).max().unwrap_or(0);
        let order = match count >= self.superquorum() {
            true => self.protocol().order(),
            false => Order::Ordered,
        };
        self.change.of = of;
        self.install(from, entries);
        self.begin(order, commit);
        for member in self.others().collect::<Vec<_>>() {
            self.tell_start(member, out);
        }
        self.take_held(out);
    }

    pub(crate) fn tell_start(&self, to: NodeId, out: &mut impl Outbox) {
        let start = Start {
            commit: self.commit.min(self.base),
            first: self.log.first(),
            digest: self.log.digest(self.base).unwrap_or(0),
            order: self.order,
        };
        let header = Header {
            vrnd: Round(self.change.of),
            inst: self.base,
            ..self.header(MsgType::StartView)
        };
        self.tell(to, &header, &start.emit(), out);
    }

    /// Sends START_VIEW again to the members that haven't shown that they have the view's first
    /// log.
    pub(crate) fn tell_start_again(&self, out: &mut impl Outbox) {
        for (member, filled) in self.filled.iter().enumerate() {
            if member != self.me && *filled < self.base {
                self.tell_start(self.members()[member], out);
            }
        }
    }

    // ---- The others

    pub(crate) fn on_start(
        &mut self,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        let h = &packet.header;
        let start = Start::parse(packet.value)?;
        if self.status == Status::Normal {
            // The report was heard before, so its answer was lost.
            self.has_news = true;
            return Ok(Verdict::Answered);
        }
        if self.change.plan.is_some() {
            return Err(Reason::Duplicate);
        }
        let end = h.inst;
        let is_of = self.normal_view == h.vrnd.0 && self.order == Order::Ordered;
        let from = if self.log.digest(end) == Some(start.digest) {
            end
        } else if is_of {
            self.log.end().min(end)
        } else {
            self.commit
        };
        if from < start.first || from > end {
            self.status = Status::Lost;
            return Err(Reason::Trimmed);
        }
        #[cfg(test)]
        let from = match self.is_broken(crate::tests::Broken::KeepsOwnLog) {
            true => self.log.end().min(end),
            false => from,
        };
        self.change.of = h.vrnd.0;
        self.change.plan = Some(Plan::Follow { from, start });
        self.change.sources = vec![Source {
            member: self.leader_of(self.view),
            slots: from..end,
            got: BTreeMap::new(),
            asked: 0..0,
        }];
        self.fetch(out);
        Ok(Verdict::Changed)
    }

    fn finish_follow(&mut self, from: Instance, start: Start, out: &mut impl Outbox) {
        let sources = std::mem::take(&mut self.change.sources);
        let entries = sources
            .into_iter()
            .flat_map(|source| source.got.into_values());
        self.install(from, entries.collect());
        self.begin(start.order, start.commit);
        self.take_held(out);
    }

    // ---- Both

    /// Puts the new log in place of the old one, at once.
    fn install(&mut self, from: Instance, entries: Vec<Entry>) {
        let end = from + entries.len() as u64;
        let differs = (from..).zip(&entries).find(|(slot, entry)| {
            let old = self.log.get(*slot);
            old.map(Entry::name) != Some(entry.name())
        });
        let changed = differs.map_or(end, |(slot, _)| slot);
        if self.executed > changed {
            self.counters.rewound += self.executed - changed;
            let earlier = self.rewind.unwrap_or(changed);
            self.rewind = Some(earlier.min(changed));
        }
        assert!(
            end >= self.commit,
            "what is committed is in every later view's log"
        );
        self.log.truncate(from);
        for entry in entries {
            self.log.push(entry);
        }
    }

    fn begin(&mut self, order: Order, commit: Instance) {
        self.status = Status::Normal;
        self.normal_view = self.view;
        self.order = order;
        self.base = self.log.end();
        self.counters.view_changes += 1;
        self.change.plan = None;
        self.change.sources.clear();
        self.enter(self.now);
        self.commit_to(commit.min(self.base));
    }

    fn fetch(&mut self, out: &mut impl Outbox) {
        for at in 0..self.change.sources.len() {
            self.fetch_from(at, out);
        }
        self.finish_if_complete(out);
    }

    fn fetch_from(&mut self, at: usize, out: &mut impl Outbox) {
        let source = &mut self.change.sources[at];
        let missing = source.missing();
        source.asked = missing.clone();
        if !missing.is_empty() {
            let node = self.members()[self.change.sources[at].member];
            self.ask(node, missing.start, missing.end - missing.start, out);
        }
    }

    pub(crate) fn ask(&self, of: NodeId, from: Instance, count: u64, out: &mut impl Outbox) {
        let header = Header {
            inst: from,
            ..self.header(MsgType::GapRequest)
        };
        self.tell(of, &header, &emit_count(count), out);
    }

    /// Answers a question for entries. While a view changes, its leader may see the old log; in a
    /// view that has begun the leader shows its own.
    pub(crate) fn on_fetch(
        &mut self,
        packet: &Packet<'_>,
        sender: usize,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        let count = parse_count(packet.value)?.min(CHUNK);
        let may_see = match self.status {
            Status::Changing => self.leader_of(self.view) == sender,
            _ => self.leads(),
        };
        if !may_see {
            return Err(Reason::NotNormal);
        }
        let from = packet.header.inst;
        let node = packet.header.swid;
        self.send_entries(node, from..from.saturating_add(count), out);
        Ok(Verdict::Answered)
    }

    pub(crate) fn send_entries(&self, to: NodeId, slots: Range<Instance>, out: &mut impl Outbox) {
        for slot in slots {
            let Some(entry) = self.log.get(slot) else {
                return;
            };
            let header = Header {
                inst: slot,
                ..self.header(MsgType::GapReply)
            };
            self.tell(to, &entry.header(header), &entry.value, out);
        }
    }

    pub(crate) fn on_entry(
        &mut self,
        packet: &Packet<'_>,
        sender: usize,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        let slot = packet.header.inst;
        if self.status == Status::Normal {
            return self.on_missing_entry(packet, sender, out);
        }
        let sources = &mut self.change.sources;
        let at = sources
            .iter()
            .position(|s| s.member == sender && s.slots.contains(&slot));
        let at = at.ok_or(Reason::Unexpected)?;
        let source = &mut sources[at];
        if source.got.insert(slot, Entry::of(packet)).is_some() {
            return Err(Reason::Duplicate);
        }
        self.counters.fetched += 1;
        self.change.started = self.now;
        let (asked, missing) = (source.asked.clone(), source.missing());
        if missing.start >= asked.end {
            self.fetch_from(at, out);
        }
        self.finish_if_complete(out);
        Ok(Verdict::Changed)
    }

    /// Fills a gap with the current leader's entry, which is authoritative once the view has begun.
    fn on_missing_entry(
        &mut self,
        packet: &Packet<'_>,
        sender: usize,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        let (slot, end) = (packet.header.inst, self.log.end());
        if self.leader_of(self.view) != sender {
            return Err(Reason::NotLeader);
        }
        if slot < end || slot > end && self.order == Order::Free {
            return Err(Reason::Unexpected);
        }
        self.counters.fetched += 1;
        self.has_news = true;
        if slot > end {
            self.early.insert(slot, Entry::of(packet));
            return Ok(Verdict::Answered);
        }
        self.log.push(Entry::of(packet));
        self.push_early();
        // Only one question is outstanding at a time, and the next part follows the last.
        self.asked_at = 0;
        if let Some(first) = self.early.keys().next().copied() {
            self.fetch_missing(first, out);
        }
        Ok(Verdict::Changed)
    }

    fn finish_if_complete(&mut self, out: &mut impl Outbox) {
        if !self.change.sources.iter().all(Source::is_complete) {
            return;
        }
        match self.change.plan {
            Some(Plan::Merge { from, of }) => self.finish_merge(from, of, out),
            Some(Plan::Follow { from, start }) => self.finish_follow(from, start, out),
            None => {}
        }
    }

    // ---- Time

    pub(crate) fn tick_change(&mut self, out: &mut impl Outbox) {
        if self.now >= self.give_up_at() {
            return self.change_to(self.view + 1, out);
        }
        if self.leader_of(self.view) == self.me {
            self.choose(out);
        }
        if self.status == Status::Changing && self.now >= self.change.told + AGAIN {
            self.tell_change(out);
            for at in 0..self.change.sources.len() {
                self.fetch_from(at, out);
            }
        }
    }

    pub(crate) fn change_deadline(&self) -> Time {
        let again = self.change.told + AGAIN;
        let choice = self.change.started + CHOOSE_AFTER;
        let waits = self.change.plan.is_none() && choice > self.now;
        let next = if waits { again.min(choice) } else { again };
        next.min(self.give_up_at())
    }

    /// Returns when this replica gives up the view. Each replica waits a little longer than the one
    /// before it, so that not all begin other views at once.
    pub(crate) fn give_up_at(&self) -> Time {
        let patience = PATIENCE + PATIENCE / 4 * self.me as u64;
        match self.status {
            Status::Changing => self.change.started + patience,
            _ => self.heard + patience,
        }
    }
}

/// Makes one log of several that are of one free view, from `from` on. Below `base` they are equal.
/// Beyond, what `needed` of them have, with all below it, may be committed, and nothing else can
/// be. The rest follows in any order.
fn merge(
    from: Instance,
    base: Instance,
    needed: usize,
    logs: &[BTreeMap<Instance, &Entry>],
) -> Vec<Entry> {
    let mut agree: Vec<usize> = (0..logs.len()).collect();
    let mut merged: Vec<Entry> = Vec::new();
    for slot in from.. {
        let mut by_name: BTreeMap<(u64, u64), Vec<usize>> = BTreeMap::new();
        for &log in &agree {
            if let Some(entry) = logs[log].get(&slot) {
                by_name.entry(entry.name()).or_default().push(log);
            }
        }
        let needed = if slot < base { 1 } else { needed };
        let Some(most) = by_name.into_values().max_by_key(Vec::len) else {
            break;
        };
        if most.len() < needed {
            break;
        }
        merged.push(logs[most[0]][&slot].clone());
        agree = most;
    }
    let mut names: BTreeSet<_> = merged.iter().map(Entry::name).collect();
    for log in logs {
        for entry in log.values() {
            if names.insert(entry.name()) {
                merged.push((*entry).clone());
            }
        }
    }
    merged
}
