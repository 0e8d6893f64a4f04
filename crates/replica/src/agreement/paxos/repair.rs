// SPDX-License-Identifier: Apache-2.0
//! Repair of instances that aren't decided here: when they are asked for, and how far the log has
//! been begun.

use super::Paxos;
use paxos::recover::{Filler, Outcome};
use paxos::wire::value::Probe;
use paxos::{Flags, Header, MsgType, Outbox, Reason, Time, To};

impl Paxos {
    /// Takes the instances that others have shown to be begun, and starts to wait for them.
    pub(super) fn follow_gaps(&mut self, now: Time) {
        self.gaps.begun_below(self.extent.by_quorum());
        self.gaps.update_wait(now, self.next);
        self.holes.update_wait(now, self.ready);
    }

    pub(super) fn repair(&mut self, now: Time, out: &mut impl Outbox) {
        self.recover.forget_below(self.next);
        self.follow_gaps(now);
        if let Some(old) = self.gaps.old_below(now, self.next) {
            self.repair_below = old;
            self.repair_from = self.next;
        }
        if let Some(end) = self.holes.old_below(now, self.ready) {
            self.repair_below = self.repair_below.max(end);
            self.repair_from = self.next;
        }
        self.start_repairs(now);
        self.recover.tick(now, out);
    }

    /// Begins as many repairs as may be open at the same time. [X-REPAIR] [X-HOLE]
    pub(super) fn start_repairs(&mut self, now: Time) {
        if self.epochs.last().is_none() {
            return;
        }
        let end = self
            .repair_below
            .min(self.next.saturating_add(self.ring.len()));
        self.repair_from = self.repair_from.max(self.next).max(self.trimmed);
        while self.repair_from < end {
            let inst = self.repair_from;
            if !self.ring.holds(inst)
                && self.recover.recover(now, inst, Filler::Noop) == Err(Reason::Full)
            {
                break;
            }
            self.repair_from += 1;
        }
    }

    /// Takes the results of repairs, and returns whether there are any.
    pub(super) fn take_outcomes(&mut self) -> bool {
        while let Some(outcome) = self.recover.poll() {
            self.has_found = true;
            match outcome {
                Outcome::Decided { header, value } => self.on_repaired(&header, &value),
                Outcome::Trimmed { trim, .. } => self.trimmed = self.trimmed.max(trim),
            }
        }
        self.has_found
    }

    fn on_repaired(&mut self, header: &Header, value: &[u8]) {
        let in_ring = header.inst >= self.next && header.inst - self.next < self.ring.len();
        if in_ring && self.insert(&super::decided(header, value)) {
            self.repaired += 1;
        }
    }

    /// Asks the acceptors how far they are, after a change of epochs and when nothing comes any
    /// more, since the last votes of all may have been lost on the way here. It asks the leader,
    /// too: instances that it has stamped and that reached no acceptor fill its window until
    /// somebody repairs them, and nothing else shows that they were begun. [X-POLL]
    pub(super) fn poll_tail(&mut self, now: Time, out: &mut impl Outbox) {
        if self.epochs.last().is_none() {
            return;
        }
        if let Some(number) = self.poll.due(now, self.told) {
            self.extent.ask_anew();
            let header = Header {
                flags: Flags::RANGE,
                client: self.nonce,
                request: number,
                ..self.settings.header(MsgType::Query)
            };
            out.send(To::Acceptors, &header, &[]);
            let probe = Probe::Leader.emit();
            let header = Header {
                msgtype: MsgType::Probe,
                flags: Flags::NONE,
                value_len: probe.len() as u16,
                ..header
            };
            out.send(To::Leader, &header, &probe);
        }
    }
}
