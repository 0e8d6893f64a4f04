// SPDX-License-Identifier: Apache-2.0
//! Ordered views: the leader appends, and the others follow it.

use paxos::wire::value::{PackedItem, append_packed};
use paxos::{Flags, Header, Instance, MsgType, Outbox, Packet, Reason, Round, Verdict};

use crate::log::Entry;
use crate::message::Order;
use crate::peer::{FETCH_AGAIN, Peer, Protocol, Status};

/// Entries that wait for their turn, at most.
const MAX_EARLY: usize = 8_192;

/// Requests that the leader gathers while a batch is under way: a pack like a client's.
pub(crate) struct Batch {
    nonce: u64,
    number: u64,
    items: Vec<u8>,
}

impl Batch {
    pub fn new(nonce: u64) -> Batch {
        Batch {
            nonce,
            number: 0,
            items: Vec::new(),
        }
    }

    pub fn clear(&mut self) {
        self.items.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    fn add(&mut self, entry: &Entry) {
        if entry.flags.has(Flags::PACKED) {
            self.items.extend_from_slice(&entry.value);
            return;
        }
        let item = PackedItem {
            client: entry.client,
            request: entry.request,
            bytes: &entry.value,
        };
        append_packed(&mut self.items, &item);
    }

    fn take(&mut self) -> Entry {
        self.number += 1;
        Entry {
            flags: Flags::PACKED,
            client: self.nonce,
            request: self.number,
            value: std::mem::take(&mut self.items),
        }
    }
}

impl Peer {
    /// Gives a request its slot if this replica leads, or puts it into the next batch.
    pub(crate) fn append_ordered(
        &mut self,
        entry: Entry,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        if self.protocol() != Protocol::VrBatch {
            self.prepare(entry, out);
            return Ok(Verdict::Changed);
        }
        let space = usize::from(self.settings.deployment.max_value);
        let mut alone = Batch::new(self.batch.nonce);
        alone.add(&entry);
        if alone.items.len() > space {
            // The request is too long for a batch, so it gets a slot of its own as it came.
            self.propose_batch(out);
            self.prepare(entry, out);
            return Ok(Verdict::Changed);
        }
        if self.batch.items.len() + alone.items.len() > space {
            self.propose_batch(out);
        }
        self.batch.items.extend_from_slice(&alone.items);
        Ok(Verdict::Changed)
    }

    /// Sends what was gathered, if no batch is under way.
    pub(crate) fn propose_if_idle(&mut self, out: &mut impl Outbox) {
        if self.leads() && self.order == Order::Ordered && self.commit == self.log.end() {
            self.propose_batch(out);
        }
    }

    fn propose_batch(&mut self, out: &mut impl Outbox) {
        if !self.batch.is_empty() {
            let entry = self.batch.take();
            self.prepare(entry, out);
        }
    }

    fn prepare(&mut self, entry: Entry, out: &mut impl Outbox) {
        let slot = self.log.end();
        let behind = u32::try_from(slot - self.commit).unwrap_or(u32::MAX);
        let header = Header {
            inst: slot,
            vrnd: Round(behind),
            ..self.header(MsgType::Phase2a)
        };
        self.tell_others(&entry.header(header), &entry.value, out);
        self.log.push(entry);
        self.told = self.now;
        self.commit_filled();
    }

    /// Commits what f+1 logs have in common with the leader's, which stays in every later view. In
    /// a free view that holds for what the view began with.
    pub(crate) fn commit_filled(&mut self) -> bool {
        #[cfg(test)]
        let needed = match self.is_broken(crate::tests::Broken::CommitsAlone) {
            true => 1,
            false => self.f() + 1,
        };
        #[cfg(not(test))]
        let needed = self.f() + 1;
        let filled = self.filled_by(needed);
        match self.order {
            Order::Ordered => self.commit_to(filled),
            Order::Free => self.commit_to(filled.min(self.base)),
        }
    }

    pub(crate) fn on_prepare(
        &mut self,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        let h = &packet.header;
        if self.order != Order::Ordered {
            return Err(Reason::WrongView);
        }
        let end = self.log.end();
        if h.inst < end {
            return Err(Reason::Duplicate);
        }
        let commit = h.inst - u64::from(h.vrnd.0).min(h.inst);
        if h.inst > end {
            if self.early.len() == MAX_EARLY {
                return Err(Reason::Window);
            }
            self.early.insert(h.inst, Entry::of(packet));
            self.fetch_missing(h.inst, out);
        } else {
            self.log.push(Entry::of(packet));
            self.push_early();
        }
        self.has_news = true;
        self.follow_commit(commit);
        Ok(Verdict::Changed)
    }

    pub(crate) fn push_early(&mut self) {
        while let Some(entry) = self.early.remove(&self.log.end()) {
            self.log.push(entry);
        }
    }

    /// Returns what the leader says is committed, as far as it is here.
    pub(crate) fn follow_commit(&mut self, commit: Instance) -> bool {
        self.commit_to(commit.min(self.log.end()))
    }

    /// Asks the leader for what lies below `known`, and again after a while.
    pub(crate) fn fetch_missing(&mut self, known: Instance, out: &mut impl Outbox) {
        let from = self.log.end();
        let first = self.early.keys().next().copied().unwrap_or(known);
        let missing = first.min(known).saturating_sub(from);
        if missing > 0 && self.now >= self.asked_at + FETCH_AGAIN {
            self.asked_at = self.now;
            self.ask(self.leader(), from, missing, out);
        }
    }

    /// Shows the leader how far the log is filled; a new leader counts that for the log with which
    /// its view began, too.
    pub(crate) fn show_filled(&mut self, out: &mut impl Outbox) {
        let upto = match self.order {
            Order::Ordered => self.log.end(),
            Order::Free => self.base,
        };
        let header = Header {
            inst: upto,
            ..self.header(MsgType::Ack)
        };
        self.tell(self.leader(), &header, &[], out);
    }

    pub(crate) fn on_prepare_ok(
        &mut self,
        h: &Header,
        sender: usize,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        if self.status != Status::Normal || !self.leads() {
            return Err(Reason::NotLeader);
        }
        if h.inst > self.log.end() {
            return Err(Reason::Unexpected);
        }
        self.votes.heard(sender, self.now);
        if h.inst <= self.filled[sender] {
            return Err(Reason::Stale);
        }
        self.filled[sender] = h.inst;
        if !self.commit_filled() {
            return Ok(Verdict::Answered);
        }
        self.propose_if_idle(out);
        Ok(Verdict::Changed)
    }
}
