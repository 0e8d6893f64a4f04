// SPDX-License-Identifier: Apache-2.0
//! The client's side: decides which answers are final (docs/protocol/nopaxos.md).
//!
//! A leader answers before its followers have shown that they have the request. The answer counts
//! once f others have it in the same view. View and slot name the whole log below, since a slot of
//! a session names one message.

use std::collections::BTreeMap;

use super::session::{Session, Stage};
use crate::configuration::MAX_REPLICAS;
use crate::{Epoch, Header, Instance, MsgType, NodeId, PartitionId, Reason, Round};

/// The most answers that wait.
const MAX_WAITING: usize = 65_536;

/// Counts answers of one partition. `T` is the part of an answer that the owner keeps.
#[derive(Clone, Debug)]
pub struct Quorum<T> {
    pid: PartitionId,
    /// The known sessions, the newest last.
    sessions: Vec<Session>,
    /// The newest view in which a leader has answered.
    view: Round,
    /// For each member, its last word: a view, and the slot below which its log is filled in that
    /// view.
    filled: BTreeMap<NodeId, (Round, Instance)>,
    /// The slot below which f members have filled their logs in that view.
    reached: Instance,
    /// The answers of that view, by slot.
    waiting: BTreeMap<(Instance, u64), T>,
    answers: u64,
}

/// How many sessions are kept; answers of older ones no longer come.
const MAX_SESSIONS: usize = 4;

impl<T> Quorum<T> {
    /// Returns the counts of a client that knows no session yet.
    pub fn new(pid: PartitionId) -> Quorum<T> {
        Quorum {
            pid,
            sessions: Vec::new(),
            view: Round::NONE,
            filled: BTreeMap::new(),
            reached: 0,
            waiting: BTreeMap::new(),
            answers: 0,
        }
    }

    /// Learns a session. A session that was only issued is ignored, since it has no views and its
    /// number may be issued again; two sessions with one number are a `conflict`, since two
    /// controllers work with copies of one store, and the first one stays. [E-ONE]
    pub fn learn(&mut self, session: &Session) -> Result<(), Reason> {
        if session.stage == Stage::Issued {
            return Ok(());
        }
        match self.session(session.number) {
            Some(known) if known.is_same(session) => return Ok(()),
            Some(_) => return Err(Reason::Conflict),
            None => {}
        }
        self.sessions.push(session.clone());
        self.sessions.sort_by_key(|s| s.number);
        let surplus = self.sessions.len().saturating_sub(MAX_SESSIONS);
        self.sessions.drain(..surplus);
        self.reached = self.filled_by_f();
        Ok(())
    }

    /// Returns the newest session that is known; 0 if none.
    pub fn newest(&self) -> Epoch {
        self.sessions.last().map_or(0, |session| session.number)
    }

    /// Takes a REPLY. Returns its answer if the answer is final by itself, because its slot was
    /// stable; otherwise the answer waits for [`next`](Self::next). An unknown session is refused
    /// as `unknown_epoch`, and the client should ask for the control plane's view. [K-STABLE]
    pub fn reply(&mut self, h: &Header, answer: T) -> Result<Option<T>, Reason> {
        if h.rnd.is_none() {
            return Ok(Some(answer));
        }
        let session = self.session(h.rnd.epoch()).ok_or(Reason::UnknownEpoch)?;
        // f+1 members without the leader prove nothing, since they execute nothing above what is
        // stable. [K-LEADER]
        if session.leader(h.rnd, self.pid).node != h.swid {
            return Err(Reason::UnknownSender);
        }
        if h.rnd < self.view {
            return Err(Reason::Stale);
        }
        if h.rnd > self.view {
            self.view = h.rnd;
            self.waiting.clear();
            self.reached = self.filled_by_f();
        }
        if self.waiting.len() == MAX_WAITING {
            return Err(Reason::Full);
        }
        self.answers += 1;
        self.waiting.insert((h.inst, self.answers), answer);
        Ok(None)
    }

    /// Takes a follower's ACK. The newest ACK of each member counts. [K-NEWEST]
    pub fn ack(&mut self, h: &Header) -> Result<(), Reason> {
        debug_assert_eq!(h.msgtype, MsgType::Ack);
        let session = self.session(h.rnd.epoch()).ok_or(Reason::UnknownEpoch)?;
        let is_leader = session.leader(h.rnd, self.pid).node == h.swid;
        if is_leader || !session.members.iter().any(|m| m.node == h.swid) {
            return Err(Reason::UnknownSender);
        }
        // Members are memories. The sender of this ACK was told of another session with this
        // number. [K-SAME]
        if h.vrnd != session.shown() {
            return Err(Reason::Conflict);
        }
        let filled = self.filled.entry(h.swid).or_default();
        if (h.rnd, h.inst) <= *filled {
            return Err(Reason::Stale);
        }
        *filled = (h.rnd, h.inst);
        // The count changes even if the ACK is of another view: the member's word on the view
        // before no longer counts.
        self.reached = self.filled_by_f();
        Ok(())
    }

    /// Returns true if an answer that [`reply`](Self::reply) would keep is final at once: it is
    /// from the view's leader, and f others have shown its slot before it came. [K-QUORUM]
    /// [K-LEADER]
    pub fn is_final(&self, h: &Header) -> bool {
        let leads = |s: &Session| s.leader(h.rnd, self.pid).node == h.swid;
        h.rnd == self.view
            && h.inst < self.reached
            && self.session(h.rnd.epoch()).is_some_and(leads)
    }

    /// Returns the next final answer: f others than the leader have its slot filled in the leader's
    /// view. [K-QUORUM]
    #[allow(clippy::should_implement_trait)] // there may be more later
    pub fn next(&mut self) -> Option<T> {
        let (slot, _) = *self.waiting.keys().next()?;
        match slot < self.reached {
            true => self.waiting.pop_first().map(|(_, answer)| answer),
            false => None,
        }
    }

    /// Returns the f-th largest slot to which members have filled their logs in the view.
    fn filled_by_f(&self) -> Instance {
        let Some(session) = self.session(self.view.epoch()) else {
            return 0;
        };
        let of_view = self.filled.values().filter(|(view, _)| *view == self.view);
        let mut filled = [0; MAX_REPLICAS];
        let mut count = 0;
        for (place, (_, inst)) in filled.iter_mut().zip(of_view) {
            *place = *inst;
            count += 1;
        }
        filled[..count].sort_unstable_by(|a, b| b.cmp(a));
        match session.f {
            0 => Instance::MAX,
            f => filled[f as usize - 1],
        }
    }

    fn session(&self, number: Epoch) -> Option<&Session> {
        self.sessions.iter().find(|s| s.number == number)
    }
}
