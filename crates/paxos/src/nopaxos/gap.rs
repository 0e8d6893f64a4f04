// SPDX-License-Identifier: Apache-2.0
//! Gaps: a request that the sequencer has stamped didn't come. Either another replica has it, or
//! all agree that the slot stays empty (docs/protocol/nopaxos-replicas.md).

use std::collections::BTreeMap;
use std::ops::Range;

use super::log::{Entry, OwnedEntry, contains};
use super::replica::{Replica, Status, entry_of, heard, no_value, send, sender};
use super::view;
use crate::wire::nopaxos::{GapRequest, Noops, max_noop_ranges};
use crate::{Header, Instance, MsgType, NodeId, Outbox, Packet, Reason, Time, To, Verdict};

/// The most slots that are looked for at the same time.
const MAX_LACKS: usize = 1024;
/// The most times that a waiting time doubles.
const MAX_DOUBLINGS: u32 = 4;

/// Slots that are known to be stamped, and aren't here.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Default)]
pub(super) struct Lacks(BTreeMap<Instance, Lack>);

#[derive(Clone, PartialEq, Eq, Debug, Hash, Default)]
struct Lack {
    /// The time at which the slot was first asked for.
    since: Time,
    ask_at: Time,
    tries: u32,
    /// The members that don't have the slot, as a bit mask.
    nos: u32,
    /// The entry that another replica had, until the slots before it are filled.
    found: Option<OwnedEntry>,
}

impl Lacks {
    /// Begins to look for a slot at `ask_at`, if there is room.
    fn add(&mut self, inst: Instance, ask_at: Time) {
        if self.0.len() < MAX_LACKS {
            self.0.entry(inst).or_insert(Lack {
                ask_at,
                ..Lack::default()
            });
        }
    }

    /// Returns the entry that was found for `next`, and forgets everything below.
    pub(super) fn take(&mut self, next: Instance) -> Option<OwnedEntry> {
        while let Some(first) = self.0.first_entry() {
            if *first.key() >= next {
                break;
            }
            first.remove();
        }
        let first = self.0.first_entry().filter(|first| *first.key() == next)?;
        first.get().found.as_ref()?;
        first.remove().found
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns how many slots are still looked for.
    pub(super) fn count(&self) -> usize {
        self.open().count()
    }

    fn open(&self) -> impl Iterator<Item = &Lack> {
        self.0.values().filter(|lack| lack.found.is_none())
    }

    /// Returns when the next slot is to be asked for.
    pub(super) fn ask_deadline(&self) -> Option<Time> {
        self.open().map(|lack| lack.ask_at).min()
    }

    /// Returns when the next slot is to be asked for, or when the leader gives one up.
    pub(super) fn deadline(&self, give_up_after: Time) -> Option<Time> {
        let due = |lack: &Lack| match lack.tries {
            0 => lack.ask_at,
            _ => lack.ask_at.min(lack.since + give_up_after),
        };
        self.open().map(due).min()
    }

    /// Takes up to [`GapRequest::MAX`] neighbouring slots for one question, and returns how often
    /// they were asked for before.
    fn due(&mut self, now: Time, ask_after: Time) -> Option<(Range<Instance>, u32)> {
        let mut due: Option<(Range<Instance>, u32)> = None;
        for (&inst, lack) in &mut self.0 {
            if lack.found.is_some() || lack.ask_at > now {
                continue;
            }
            let max = u64::from(GapRequest::MAX);
            match &mut due {
                None => due = Some((inst..inst + 1, lack.tries)),
                Some((range, tries))
                    if range.end == inst && *tries == lack.tries && inst - range.start < max =>
                {
                    range.end += 1;
                }
                Some(_) => break,
            }
            if lack.tries == 0 {
                lack.since = now;
            }
            lack.ask_at = now + (ask_after << lack.tries.min(MAX_DOUBLINGS)).max(1);
            lack.tries += 1;
        }
        due
    }
}

impl Replica {
    /// Looks for a slot whose packet didn't come, according to the receiver, while a later one did.
    pub fn dropped(&mut self, now: Time, slot: Instance) {
        if self.status == Status::Normal && (self.log.next()..self.log.end()).contains(&slot) {
            self.lacks.add(slot, now);
        }
    }

    /// Looks for everything below `end`, which is stamped, if it doesn't come soon.
    pub(super) fn stamped_below(&mut self, end: Instance, now: Time) {
        let end = end.min(self.log.end());
        let ask_at = now + self.settings.ask_after;
        for inst in (self.log.next()..end).take(MAX_LACKS) {
            self.lacks.add(inst, ask_at);
        }
    }

    // ---- Asking

    /// Asks for the slots that are due. A follower asks the leader first, and other members after
    /// further timeouts; the leader asks all. [H-ASK]
    pub(super) fn ask(&mut self, now: Time, out: &mut impl Outbox) {
        while let Some((slots, tries)) = self.lacks.due(now, self.settings.ask_after) {
            if tries == 0 {
                self.counts.gaps_asked += slots.end - slots.start;
            }
            if self.leads() {
                self.ask_for(None, slots, out);
            } else {
                self.ask_for(self.whom_to_ask(tries), slots, out);
            }
        }
    }

    /// Asks one node, or all, for up to [`GapRequest::MAX`] slots.
    pub(super) fn ask_for(
        &self,
        whom: Option<NodeId>,
        slots: Range<Instance>,
        out: &mut impl Outbox,
    ) {
        let count = (slots.end - slots.start).min(u64::from(GapRequest::MAX)) as u32;
        let header = Header {
            inst: slots.start,
            value_len: GapRequest::LEN as u16,
            ..self.header(MsgType::GapRequest, self.view)
        };
        let value = GapRequest { count }.emit();
        match whom {
            Some(node) => send(To::Node(node), header, &value, out),
            None => self.broadcast(header, &value, out),
        }
    }

    fn whom_to_ask(&self, tries: u32) -> Option<NodeId> {
        let session = self.session()?;
        let leader = session.place(self.leader()?)?;
        let members = session.members.len();
        let from_leader = (0..members).map(|n| session.members[(leader + n) % members]);
        let mut others = from_leader.filter(|m| *m != self.member());
        let turn = tries as usize % (members - 1).max(1);
        others.nth(turn).map(|m| m.node)
    }

    /// Answers with slots of this log: the view's, or, while the view is changing, the log that
    /// this replica's VIEW_CHANGE told. [W-UNTOUCHED]
    pub(super) fn gap_request(
        &self,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        let h = &packet.header;
        let asked = GapRequest::parse(packet.value)?;
        if self.sessions.get(h.rnd.epoch()).is_none() {
            return Err(Reason::UnknownEpoch);
        }
        if !self.sessions.takes_part(h.rnd, sender(h)) {
            return Err(Reason::UnknownSender);
        }
        if h.rnd != self.view {
            return Err(Reason::WrongView);
        }
        for inst in h.inst..h.inst.saturating_add(u64::from(asked.count)) {
            self.show(inst, out);
        }
        Ok(Verdict::Answered)
    }

    fn show(&self, inst: Instance, out: &mut impl Outbox) {
        let mut header = Header {
            inst,
            client: 0,
            ..self.header(MsgType::GapReply, self.view)
        };
        let Some(entry) = self.log.get(inst) else {
            send(To::Sender, header, &[], out);
            return;
        };
        header.vrnd = entry.stamp;
        header.flags = entry.flags;
        header.client = entry.client;
        header.request = entry.request;
        send(To::Sender, header, entry.value, out);
    }

    pub(super) fn gap_reply(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        let h = &packet.header;
        let entry = entry_of(packet)?;
        if h.rnd.is_none() || h.rnd != self.view {
            return Err(Reason::WrongView);
        }
        match (self.status, entry) {
            (Status::ViewChange, entry) => self.fetched(now, h, entry, out),
            (Status::Normal, None) => self.not_there(h),
            (Status::Normal, Some(entry)) => self.found(now, h, &entry, out),
            (Status::Stranger, _) => Err(Reason::NotNormal),
        }
    }

    /// Takes an entry that another member has. Any member of the same view may show a request, but
    /// only the leader a no-op. [H-ASK]
    fn found(
        &mut self,
        now: Time,
        h: &Header,
        entry: &Entry<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        self.place_of(h.swid)?;
        let from_leader = self.leader().is_some_and(|leader| leader.node == h.swid);
        if from_leader && h.inst == self.stable && self.is_behind() {
            return self.caught_up(now, h.inst, entry, out);
        }
        if h.inst < self.log.next() {
            return Err(Reason::Stale);
        }
        if entry.is_noop() && (!from_leader || self.leads()) {
            return Err(Reason::Unexpected);
        }
        if entry.stamp != view::stamp(self.view) {
            return Err(Reason::OldSession);
        }
        if h.inst >= self.log.end() {
            return Err(Reason::LogFull);
        }
        if h.inst == self.log.next() {
            self.append(entry)?;
            self.count_filled(entry);
            return Ok(Verdict::Changed);
        }
        self.lacks.add(h.inst, now);
        let lack = self.lacks.0.get_mut(&h.inst).ok_or(Reason::Full)?;
        if lack.found.replace(OwnedEntry::of(entry)).is_none() {
            self.count_filled(entry);
        }
        Ok(Verdict::Changed)
    }

    fn count_filled(&mut self, entry: &Entry<'_>) {
        match entry.is_noop() {
            true => self.counts.gaps_given_up += 1,
            false => self.counts.gaps_found += 1,
        }
    }

    fn not_there(&mut self, h: &Header) -> Result<Verdict, Reason> {
        let place = self.place_of(h.swid)?;
        if self.leader().is_some_and(|leader| leader.node == h.swid)
            && h.inst < self.duty.told_stable
        {
            // The leader has trimmed the slot.
            self.short_of = Some(h.inst + 1);
            return Ok(Verdict::Answered);
        }
        let lack = self.lacks.0.get_mut(&h.inst).ok_or(Reason::Unexpected)?;
        lack.nos |= 1 << place;
        Ok(Verdict::Answered)
    }

    fn place_of(&self, node: NodeId) -> Result<usize, Reason> {
        let session = self.session().ok_or(Reason::UnknownEpoch)?;
        let place = session.members.iter().position(|m| m.node == node);
        place.ok_or(Reason::UnknownSender)
    }

    // ---- Agreeing on a no-op

    /// Gives up slots that no member has: the leader tells itself to put no-ops there. It gives up
    /// only slots that are known to be stamped, since a follower's question isn't enough. [H-NOOP]
    pub(super) fn give_up(&mut self, now: Time, out: &mut impl Outbox) {
        let next = self.log.next();
        let run = next..self.hopeless(now);
        if run.is_empty() {
            return;
        }
        let mut noops = self.noops_below(next);
        // A list must fit one datagram, and so must the list of a view that begins before all are
        // stable. [H-LIST]
        if noops.len() >= max_noop_ranges(self.settings.deployment.max_value) / 2 {
            return;
        }
        match noops.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => noops.push(run.clone()),
        }
        let (header, value) = self.gap_commit_of(run.end, noops);
        self.send_to_self(header, &value, out);
    }

    /// Returns the end of the slots from `next` on that no member has.
    fn hopeless(&self, now: Time) -> Instance {
        let others = self.duty.peers.len() as u32 - 1;
        let mut end = self.log.next();
        while let Some(lack) = self.lacks.0.get(&end) {
            let is_old = now >= lack.since + self.settings.give_up_after;
            let is_hopeless = lack.tries > 0 && (is_old || lack.nos.count_ones() >= others);
            if lack.found.is_some() || !is_hopeless || end >= self.log.end() {
                break;
            }
            end += 1;
        }
        end
    }

    fn gap_commit_of(&self, end: Instance, noops: Vec<Range<Instance>>) -> (Header, Vec<u8>) {
        let mut value = Vec::new();
        Noops::append(&mut value, self.stable, noops);
        // In one view the leader's log only grows, so the end names the list.
        let header = Header {
            inst: end,
            request: end,
            ..self.header(MsgType::GapCommit, self.view)
        };
        (header, value)
    }

    pub(super) fn gap_commit(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        let h = &packet.header;
        let max_value = self.settings.deployment.max_value;
        let noops = Noops::parse_commit(packet.value, h.inst, max_value)?;
        self.sent_by_leader(h)?;
        match self.leads() {
            true => self.put_noops(now, packet, &noops, out),
            false => self.obey(now, h, &noops, out),
        }
    }

    /// Puts no-ops from `next` on, by the leader's own order. The leader neither answers nor
    /// executes beyond the first of them until f others have them. [H-NOOP]
    fn put_noops(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        noops: &Noops<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        let h = &packet.header;
        let run = self.log.next()..h.inst;
        if run.is_empty() {
            return Err(Reason::Stale);
        }
        if h.inst > self.log.end() {
            return Err(Reason::LogFull);
        }
        let listed: Vec<_> = noops.ranges().collect();
        if !run.clone().all(|inst| contains(&listed, inst)) {
            return Err(Reason::Unexpected);
        }
        let stamp = view::stamp(self.view);
        while self.log.next() < run.end {
            self.append(&Entry::noop(stamp))?;
            self.counts.gaps_given_up += 1;
        }
        self.duty.open_gap = self.log.noop_from(self.duty.agreed);
        self.duty.gap_at = now;
        let header = Header {
            request: h.inst,
            inst: h.inst,
            ..self.header(MsgType::GapCommit, self.view)
        };
        self.broadcast(header, packet.value, out);
        self.count_agreed();
        Ok(Verdict::Changed)
    }

    /// Puts the leader's no-ops into a follower's log, even over requests that it has acknowledged.
    /// It answers only once everything below the last slot named is filled, because otherwise its
    /// VIEW_CHANGE wouldn't show what it answered for. [H-OBEY]
    fn obey(
        &mut self,
        now: Time,
        h: &Header,
        noops: &Noops<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        self.duty.heard = now;
        let is_news = self.hear_stable(noops.stable, now);
        if noops.stable > self.stable {
            // The list doesn't reach down to the slots that this replica needs to know.
            return Ok(heard(is_news));
        }
        let changed = self.apply(noops)? || is_news;
        if self.log.next() < h.inst {
            self.stamped_below(h.inst, now);
        } else {
            let answer = Header {
                inst: self.log.next(),
                request: h.request,
                ..self.header(MsgType::GapCommitRep, self.view)
            };
            send(To::Sender, answer, &[], out);
        }
        Ok(heard(changed))
    }

    /// Puts the leader's no-ops into this log, as far as the log reaches. Returns true if that
    /// changed anything.
    pub(super) fn apply(&mut self, noops: &Noops<'_>) -> Result<bool, Reason> {
        let noop = Entry::noop(view::stamp(self.view));
        let mut changed = false;
        for range in noops.ranges() {
            for inst in range.start.max(self.stable)..range.end {
                if inst > self.log.next() {
                    return Ok(changed);
                }
                let is_new = match inst < self.log.next() {
                    true => self.put(inst, &noop),
                    false if self.append(&noop).is_ok() => true,
                    false => return Ok(changed),
                };
                self.counts.gaps_given_up += u64::from(is_new);
                changed |= is_new;
            }
        }
        Ok(changed)
    }

    pub(super) fn gap_commit_rep(&mut self, packet: &Packet<'_>) -> Result<Verdict, Reason> {
        no_value(packet)?;
        let h = &packet.header;
        let place = self.sent_by_follower(h)?;
        if h.inst < h.request || h.request > self.log.next() {
            return Err(Reason::Unexpected);
        }
        let confirmed = &mut self.duty.peers[place].confirmed;
        if h.request <= *confirmed {
            return Err(Reason::Duplicate);
        }
        *confirmed = h.request;
        self.count_agreed();
        Ok(Verdict::Changed)
    }

    /// Counts the no-ops that f others have as agreed.
    fn count_agreed(&mut self) {
        self.duty.agreed = self.duty.agreed.max(self.by_f(|peer| peer.confirmed));
        self.duty.open_gap = self.log.noop_from(self.duty.agreed);
    }

    /// Sends the open no-ops to the followers again.
    pub(super) fn repeat_gap_commit(&mut self, now: Time, out: &mut impl Outbox) {
        if self.gap_deadline().is_none_or(|due| now < due) {
            return;
        }
        let noops = self.noops_below(self.log.next());
        if let Some(last) = noops.last() {
            let (header, value) = self.gap_commit_of(last.end, noops);
            self.broadcast(header, &value, out);
        }
        self.duty.gap_at = now;
    }

    pub(super) fn gap_deadline(&self) -> Option<Time> {
        let due = self.duty.gap_at + 2 * self.settings.ask_after;
        self.duty.open_gap.map(|_| due)
    }
}
