// SPDX-License-Identifier: Apache-2.0
//! Reads votes before a planned epoch is issued, while the leader in force serves, so that the
//! candidate has only the newest ones to read. [C-SKIP]

use super::plan::Need;
use super::{GroupControl, nonce};
use crate::message::MemberRecord;
use crate::{ControlOutbox, EpochRecord, Protocol, Store};
use paxos::{
    Candidate, Configuration, Continuing, Instance, Member, Packet, ReadAhead, Reason, Time,
    Verdict,
};

/// How long a planned epoch waits for that at most. It waits no longer than the time between two
/// PROBEs for f+1 members to answer at all.
const PATIENCE: Time = 1_000_000_000;

pub(super) struct Ahead {
    reader: ReadAhead,
    since: Time,
}

impl Ahead {
    pub fn next_deadline(&self) -> Time {
        self.reader.next_deadline()
    }
}

impl GroupControl {
    /// Returns whether a planned epoch should wait, since votes are being read ahead. One that
    /// replaces a leader in trouble never waits.
    pub(super) fn reads_ahead(
        &mut self,
        now: Time,
        need: &Need,
        next: &Configuration,
        out: &mut impl ControlOutbox,
    ) -> bool {
        let Some(last) = self.state.in_force().cloned() else {
            return false;
        };
        let is_paxos = self.settings.protocol == Protocol::Paxos;
        if !(need.is_planned && is_paxos) || self.leader_trouble(&last).is_some() {
            return false;
        }
        self.begin_ahead(now, &last, next);
        let Some(ahead) = &mut self.ahead else {
            return false;
        };
        if now >= ahead.reader.next_deadline() {
            ahead.reader.tick(now, out);
        }
        let patience = match ahead.reader.has_heard() {
            true => PATIENCE,
            false => self.timing.probe_interval,
        };
        !ahead.reader.is_close() && now - ahead.since < patience
    }

    /// Begins to read from the members that continue, unless it has begun with these.
    fn begin_ahead(&mut self, now: Time, last: &EpochRecord, next: &Configuration) {
        let continues = |record: &&MemberRecord| next.acceptors.contains(&member(record));
        let continuing = last.acceptors.iter().filter(continues);
        let members: Vec<Continuing> = continuing.map(|r| self.continuing(r, last)).collect();
        let known = self.ahead.as_ref();
        if known.is_some_and(|ahead| ahead.reader.members() == members) {
            return;
        }
        let since = known.map_or(now, |ahead| ahead.since);
        let quorum = usize::from(last.f.max(next.f)) + 1;
        let nonce = nonce(&mut self.random);
        let reader = ReadAhead::new(self.deployment, members, quorum, nonce);
        self.ahead = reader.map(|reader| Ahead { reader, since });
    }

    fn continuing(&self, record: &MemberRecord, last: &EpochRecord) -> Continuing {
        let mut oldest_first = self.state.epochs.iter();
        let names_it = oldest_first.find(|epoch| epoch.acceptors.contains(record));
        Continuing {
            member: member(record),
            since: names_it.unwrap_or(last).epoch,
        }
    }

    /// Returns a candidate for an epoch that was just issued, which skips what was read ahead.
    pub(super) fn candidate(
        &mut self,
        configuration: Configuration,
        earlier: Vec<Configuration>,
        start: Option<&[Instance]>,
    ) -> Result<Candidate, &'static str> {
        let nonce = nonce(&mut self.random);
        let ahead = self.ahead.take();
        if let Some(start) = start {
            return Candidate::accepting_data_loss(self.deployment, configuration, start, nonce);
        }
        let mut candidate = Candidate::new(self.deployment, configuration, earlier, nonce)?;
        if let Some(ahead) = ahead {
            candidate.take_ahead(&ahead.reader);
        }
        Ok(candidate)
    }

    /// Takes an answer to what was asked ahead, and issues the epoch once all but the newest votes
    /// are read.
    pub(super) fn read_ahead(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        store: &mut impl Store,
        out: &mut impl ControlOutbox,
    ) -> Verdict {
        if self.ahead.is_none() || self.attempt.is_some() {
            return Verdict::Dropped(Reason::Unexpected);
        }
        if let Err(reason) = self.believe(packet) {
            return Verdict::Dropped(reason);
        }
        let Some(ahead) = &mut self.ahead else {
            return Verdict::Dropped(Reason::Unexpected);
        };
        let verdict = ahead.reader.step(now, packet, out);
        if ahead.reader.is_close() {
            self.plan(now, store, out);
        }
        verdict
    }
}

fn member(&(node, nonce): &MemberRecord) -> Member {
    Member { node, nonce }
}
