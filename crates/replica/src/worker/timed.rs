// SPDX-License-Identifier: Apache-2.0
//! What a worker does by time: commits, repairs, polls, expiry, checkpoints, TRIM.

use super::{EXPIRE_AT_ONCE, EXPIRE_INTERVAL, Worker, decided};
use crate::application::{Application, Error};
use crate::reply::Output;
use paxos::recover::{Filler, Outcome};
use paxos::wire::value::Probe;
use paxos::{Epoch, Flags, Header, MsgType, Reason, Time, To};

impl<A: Application> Worker<A> {
    /// When [`Worker::tick`] is next due.
    pub fn next_deadline(&self) -> Option<Time> {
        let deadlines = [
            self.commit_deadline(),
            self.gaps.next_deadline(),
            self.recover.next_deadline(),
            self.checkpoints
                .next_deadline(self.committed, self.reports_as().is_some())
                .filter(|_| !self.installing),
            // There is nobody to ask before the first view.
            self.poll
                .next_deadline()
                .filter(|_| self.epochs.last().is_some()),
            (self.sessions.len() > 0).then_some(self.expire_due),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Does what is due by time: commits, repairs, polls, expiry, checkpoints, TRIM.
    pub fn tick(&mut self, now: Time, out: &mut impl Output) -> Result<(), Error> {
        self.flush(now, out)?;
        self.commit_if_due(now)?;
        self.repair(now, out);
        self.poll_tail(now, out);
        self.propose_expiry(now, out);
        self.begin_checkpoint_if_due(now)?;
        self.send_trim(now, out);
        Ok(())
    }

    fn repair(&mut self, now: Time, out: &mut impl Output) {
        self.recover.forget_below(self.next);
        self.follow_gaps(now);
        if let Some(old) = self.gaps.old_below(now, self.next) {
            self.repair_below = old;
            self.repair_from = self.next;
        }
        self.start_repairs(now);
        self.recover.tick(now, out);
    }

    /// Begins as many repairs as may be open at once. [X-REPAIR]
    fn start_repairs(&mut self, now: Time) {
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

    /// Takes what repairs have found.
    pub(super) fn take_outcomes(&mut self, now: Time, out: &mut impl Output) {
        let mut any = false;
        while let Some(outcome) = self.recover.poll() {
            any = true;
            match outcome {
                Outcome::Decided { header, value } => self.on_repaired(now, &header, &value),
                Outcome::Trimmed { trim, .. } => self.trimmed = self.trimmed.max(trim),
            }
        }
        if any {
            self.start_repairs(now);
            self.recover.tick(now, out);
        }
    }

    fn on_repaired(&mut self, now: Time, header: &Header, value: &[u8]) {
        let in_ring = header.inst >= self.next && header.inst - self.next < self.ring.len();
        if in_ring && self.failed.is_none() && self.learned(now, &decided(header, value)) {
            self.statistics.repaired += 1;
        }
    }

    /// Asks the acceptors how far they are, after a change of epochs and when nothing comes any
    /// more: the last votes of all may have been lost on the way here. The leader is asked, too:
    /// instances that it has stamped and that reached no acceptor fill its window until somebody
    /// repairs them, and nothing else shows that they were begun. [X-POLL]
    fn poll_tail(&mut self, now: Time, out: &mut impl Output) {
        if self.epochs.last().is_none() {
            return;
        }
        if let Some(number) = self.poll.due(now, self.told) {
            self.shown.ask_anew();
            let header = Header {
                flags: Flags::RANGE,
                client: self.nonce,
                request: number,
                ..self.header(MsgType::Query)
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

    /// Proposes the expiry of idle sessions. It takes effect at its place in the log, and only if
    /// the session did nothing before that. [S-EXPIRE]
    fn propose_expiry(&mut self, now: Time, out: &mut impl Output) {
        if now < self.expire_due {
            return;
        }
        self.expire_due = now.saturating_add(EXPIRE_INTERVAL.min(self.settings.session_timeout));
        for idle in self.sessions.idle(now, self.expire_after, EXPIRE_AT_ONCE) {
            let op = idle.op.to_bytes();
            let header = Header {
                client: idle.session,
                value_len: op.len() as u16,
                ..self.header(MsgType::Request)
            };
            out.send(To::Leader, &header, &op);
        }
    }

    /// The disk's number and the newest epoch known, under which TRIM is sent; `None` = not yet, or an
    /// install is under way, and others couldn't have this state before its end. [X-INSTALL]
    fn reports_as(&self) -> Option<(u64, Epoch)> {
        if self.installing {
            return None;
        }
        Some((self.incarnation?, self.epochs.last()?.epoch))
    }

    /// [T-CHECKPOINT]
    pub(super) fn send_trim(&mut self, now: Time, out: &mut impl Output) {
        let Some((incarnation, epoch)) = self.reports_as() else {
            return;
        };
        if let Some(inst) = self.checkpoints.trim(now) {
            let header = Header {
                inst,
                client: incarnation,
                request: epoch.into(),
                ..self.header(MsgType::Trim)
            };
            out.send(To::Acceptors, &header, &[]);
            out.send(To::Leader, &header, &[]);
        }
    }
}
