// SPDX-License-Identifier: Apache-2.0
//! Work of execution that is due by time, besides commits: expiry of sessions, TRIM.

use super::Execution;
use crate::application::Application;
use crate::settings::Turn;
use paxos::{Epoch, Header, MsgType, Outbox, Time, To};

/// The most sessions proposed for expiry at a time.
const EXPIRE_AT_ONCE: usize = 64;
/// The shortest time between two searches for idle sessions.
const EXPIRE_INTERVAL: Time = 1_000_000_000;

impl<A: Application> Execution<A> {
    /// Returns when something is next due here; `epoch` is the newest epoch known.
    pub(crate) fn next_deadline(&self, epoch: Option<Epoch>) -> Option<Time> {
        let deadlines = [
            self.commit_deadline(),
            self.read_deadline(),
            self.void_deadline(),
            self.checkpoint_deadline(epoch)
                .filter(|_| !self.copies.are_installing()),
            self.sessions.expiry_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Shifts this replica's expiry and checkpoints in time, so that not all replicas do them, and
    /// pause for them, at once.
    pub(crate) fn take_turn(&mut self, turn: Turn) {
        let timeout = self.settings.session_timeout / 4 * (4 + turn.index as u64);
        self.sessions.expire_after(timeout);
        self.commits.take_turn(turn);
    }

    /// Proposes the expiry of idle sessions. An expiry takes effect at its place in the log, and
    /// only if the session did nothing before that place. [S-EXPIRE]
    pub(crate) fn propose_expiry(&mut self, now: Time, out: &mut impl Outbox) {
        let again = now.saturating_add(EXPIRE_INTERVAL.min(self.settings.session_timeout));
        if !self.sessions.looks_for_idle(now, again) {
            return;
        }
        for idle in self.sessions.idle(now, EXPIRE_AT_ONCE) {
            let op = idle.op.to_bytes();
            let header = Header {
                client: idle.session,
                value_len: op.len() as u16,
                ..self.settings.header(MsgType::Request)
            };
            out.send(To::Leader, &header, &op);
        }
    }

    /// Returns the disk's number and the newest epoch, which TRIM carries. It returns `None` while
    /// one of them is missing, and during an install, since others couldn't have this state before
    /// its end. [X-INSTALL]
    pub(super) fn reports_as(&self, epoch: Option<Epoch>) -> Option<(u64, Epoch)> {
        if self.copies.are_installing() {
            return None;
        }
        Some((self.epochs.incarnation()?, epoch?))
    }

    /// Sends TRIM, when it is due, with the position of the last durable checkpoint, unless the
    /// last epoch counts on other replicas. [T-CHECKPOINT] [T-MEMBERS]
    pub(crate) fn send_trim(&mut self, now: Time, epoch: Option<Epoch>, out: &mut impl Outbox) {
        let Some((incarnation, epoch)) = self.reports_as(epoch) else {
            return;
        };
        if self.commits.trims(now) {
            let header = Header {
                // It may be 0, so that acceptors learn that an earlier disk's contents are gone.
                inst: self.progress.durable(),
                client: incarnation,
                request: epoch.into(),
                ..self.settings.header(MsgType::Trim)
            };
            for to in self.abilities.rules.trim_to {
                out.send(*to, &header, &[]);
            }
        }
    }
}
