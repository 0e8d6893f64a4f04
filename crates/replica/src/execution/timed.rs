// SPDX-License-Identifier: Apache-2.0
//! What execution does by time besides commits: expiry, TRIM.

use super::Execution;
use crate::application::Application;
use crate::settings::Turn;
use paxos::{Epoch, Header, MsgType, Outbox, Time, To};

/// Sessions proposed for expiry at a time.
const EXPIRE_AT_ONCE: usize = 64;
/// The table is searched for idle sessions at most this often.
const EXPIRE_INTERVAL: Time = 1_000_000_000;

impl<A: Application> Execution<A> {
    /// When something is next due here; `epoch` is the newest one known.
    pub fn next_deadline(&self, epoch: Option<Epoch>) -> Option<Time> {
        let deadlines = [
            self.commit_deadline(),
            self.read_deadline(),
            self.void_deadline(),
            self.checkpoint_deadline(epoch).filter(|_| !self.installing),
            (self.sessions.len() > 0).then_some(self.expire_due),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// While something is executed that isn't stable no checkpoint begins, however long it is overdue: it does with the
    /// batch in which the rest becomes stable.
    fn checkpoint_deadline(&self, epoch: Option<Epoch>) -> Option<Time> {
        let committed = match self.next > self.stable {
            true => self.checkpoints.durable(),
            false => self.committed,
        };
        let reports = self.reports_as(epoch).is_some();
        self.checkpoints.next_deadline(committed, reports)
    }

    /// Spreads in time what all replicas do, and what would stop all at once.
    pub fn take_turn(&mut self, turn: Turn) {
        self.expire_after = self.settings.session_timeout / 4 * (4 + turn.index as u64);
        self.checkpoints.stagger(turn.index, turn.of);
    }

    /// Proposes the expiry of idle sessions. It takes effect at its place in the log, and only if
    /// the session did nothing before that. [S-EXPIRE]
    pub fn propose_expiry(&mut self, now: Time, out: &mut impl Outbox) {
        if now < self.expire_due {
            return;
        }
        self.expire_due = now.saturating_add(EXPIRE_INTERVAL.min(self.settings.session_timeout));
        for idle in self.sessions.idle(now, self.expire_after, EXPIRE_AT_ONCE) {
            let op = idle.op.to_bytes();
            let header = Header {
                client: idle.session,
                value_len: op.len() as u16,
                ..self.settings.header(MsgType::Request)
            };
            out.send(To::Leader, &header, &op);
        }
    }

    /// The disk's number and the newest epoch known, under which TRIM is sent; `None` = not yet, or an
    /// install is under way, and others couldn't have this state before its end. [X-INSTALL]
    fn reports_as(&self, epoch: Option<Epoch>) -> Option<(u64, Epoch)> {
        if self.installing {
            return None;
        }
        Some((self.incarnation?, epoch?))
    }

    /// [T-CHECKPOINT]
    pub fn send_trim(&mut self, now: Time, epoch: Option<Epoch>, to: &[To], out: &mut impl Outbox) {
        let Some((incarnation, epoch)) = self.reports_as(epoch) else {
            return;
        };
        if let Some(inst) = self.checkpoints.trim(now) {
            let header = Header {
                inst,
                client: incarnation,
                request: epoch.into(),
                ..self.settings.header(MsgType::Trim)
            };
            for to in to {
                out.send(*to, &header, &[]);
            }
        }
    }
}
