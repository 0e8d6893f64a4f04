// SPDX-License-Identifier: Apache-2.0
//! The client's side: which answers are final (docs/protocol/nopaxos.md).
//!
//! A leader answers before its followers have shown that they have the request. The answer counts once f others
//! have, in the same view: view and slot name the whole log below, since a slot of a session names one message.

use std::collections::BTreeMap;

use super::session::{Session, Stage};
use crate::configuration::MAX_REPLICAS;
use crate::{Epoch, Header, Instance, MsgType, NodeId, PartitionId, Reason, Round};

/// Answers that wait, at most.
const MAX_WAITING: usize = 65_536;

/// Counts answers of one partition. `T` is whatever its owner keeps of an answer.
#[derive(Clone, Debug)]
pub struct Quorum<T> {
    pid: PartitionId,
    /// The newest last.
    sessions: Vec<Session>,
    /// The newest view in which a leader has answered.
    view: Round,
    /// What members have said last: a view, and up to where their logs are filled in it.
    filled: BTreeMap<NodeId, (Round, Instance)>,
    /// Up to where f of them have filled theirs in that view.
    reached: Instance,
    /// Answers of that view by slot.
    waiting: BTreeMap<(Instance, u64), T>,
    answers: u64,
}

/// Sessions kept; answers of older ones come no more.
const MAX_SESSIONS: usize = 4;

impl<T> Quorum<T> {
    /// Of a client that knows no session yet.
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

    /// Tells a session. One that was only issued has no views, and its number may be issued again, with other members.
    /// `conflict`: there are two of this number, so two controllers work with copies of one store. The first one that
    /// was told stays. [E-ONE]
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

    /// The newest session that it knows; 0 if none.
    pub fn newest(&self) -> Epoch {
        self.sessions.last().map_or(0, |session| session.number)
    }

    /// A REPLY. Returns the answer if it is final by itself: its slot was stable. Otherwise it waits for
    /// [`next`](Self::next). One of an unknown session is `unknown_epoch`: the client asks for the view of the
    /// control plane. [K-STABLE]
    pub fn reply(&mut self, h: &Header, answer: T) -> Result<Option<T>, Reason> {
        if h.rnd.is_none() {
            return Ok(Some(answer));
        }
        let session = self.session(h.rnd.epoch()).ok_or(Reason::UnknownEpoch)?;
        // f+1 members without the leader prove nothing: they execute nothing above what is stable. [K-LEADER]
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

    /// An ACK of a follower: the newest of each member counts. [K-NEWEST]
    pub fn ack(&mut self, h: &Header) -> Result<(), Reason> {
        debug_assert_eq!(h.msgtype, MsgType::Ack);
        let session = self.session(h.rnd.epoch()).ok_or(Reason::UnknownEpoch)?;
        let is_leader = session.leader(h.rnd, self.pid).node == h.swid;
        if is_leader || !session.members.iter().any(|m| m.node == h.swid) {
            return Err(Reason::UnknownSender);
        }
        // Members are memories: its sender has another session of this number in mind. [K-SAME]
        if h.vrnd != session.shown() {
            return Err(Reason::Conflict);
        }
        let filled = self.filled.entry(h.swid).or_default();
        if (h.rnd, h.inst) <= *filled {
            return Err(Reason::Stale);
        }
        *filled = (h.rnd, h.inst);
        // Also if it is of another view: what this member has said of the one before counts no longer.
        self.reached = self.filled_by_f();
        Ok(())
    }

    /// Whether an answer is final that [`reply`](Self::reply) would keep: of the view's leader, and f others have shown
    /// its slot before it came. [K-QUORUM] [K-LEADER]
    pub fn is_final(&self, h: &Header) -> bool {
        let leads = |s: &Session| s.leader(h.rnd, self.pid).node == h.swid;
        h.rnd == self.view
            && h.inst < self.reached
            && self.session(h.rnd.epoch()).is_some_and(leads)
    }

    /// The next answer that is final: f others than the leader have its slot filled, in the leader's view.
    /// [K-QUORUM]
    #[allow(clippy::should_implement_trait)] // there may be more later
    pub fn next(&mut self) -> Option<T> {
        let (slot, _) = *self.waiting.keys().next()?;
        match slot < self.reached {
            true => self.waiting.pop_first().map(|(_, answer)| answer),
            false => None,
        }
    }

    /// The f-th largest of what members of the view have filled.
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
