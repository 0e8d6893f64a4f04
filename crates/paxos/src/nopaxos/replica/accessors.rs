// SPDX-License-Identifier: Apache-2.0
//! What execution and the node look at.

use super::super::counts::Counts;
use super::super::log::Entry;
use super::super::session::{Session, Sessions};
use super::{Ack, Replica, Status};
use crate::acceptor::Start;
use crate::{Deployment, Header, Instance, Member, MsgType, Round};

impl Replica {
    /// Returns the deployment that this replica serves.
    pub fn deployment(&self) -> &Deployment {
        &self.settings.deployment
    }

    /// Returns this replica's node and boot nonce.
    pub fn member(&self) -> Member {
        Member {
            node: self.settings.deployment.node,
            nonce: self.settings.nonce,
        }
    }

    /// Returns the current start of this memory, if it is stored.
    pub fn start(&self) -> Option<Start> {
        self.start
    }

    /// Returns true if this memory was read from disk and the controller hasn't let it go on yet.
    /// [N-RESTART]
    pub fn is_mute(&self) -> bool {
        self.mute
    }

    /// Returns the replica's activity.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Returns the view that the replica is in, or goes to.
    pub fn view(&self) -> Round {
        self.view
    }

    /// Returns the last view in which the replica was normal.
    pub fn last_normal(&self) -> Round {
        self.last_normal
    }

    /// Returns the sessions that the store has told.
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Returns the counts for `status`.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the leader of the view that the replica is in, or goes to.
    pub fn led_by(&self) -> Option<Member> {
        self.leader()
    }

    /// Returns how many gaps are open: slots that the replica lacks and knows to be stamped, and
    /// one more for a leader's no-ops that aren't agreed.
    pub fn open_gaps(&self) -> usize {
        self.lacks.count() + usize::from(self.leads() && self.duty.open_gap.is_some())
    }

    /// Returns true if the log has room for another slot. [N-FULL]
    pub fn has_room(&self) -> bool {
        self.log.next() < self.log.end()
    }

    /// Returns the slot below which everything is filled.
    pub fn next(&self) -> Instance {
        self.log.next()
    }

    /// Returns the oldest slot that the log keeps.
    pub fn floor(&self) -> Instance {
        self.log.floor()
    }

    /// Returns the entry of a slot that is filled and kept.
    pub fn entry(&self, inst: Instance) -> Option<Entry<'_>> {
        self.log.get(inst)
    }

    /// Returns the slot below which everything may be executed by an application that can take it
    /// back: for a leader up to the first gap that isn't agreed, for others as far as the log is
    /// stable. It falls when a leader is deposed; execution beyond stays until
    /// [`take_rewind`](Self::take_rewind) says otherwise. [N-ANSWER]
    pub fn ready(&self) -> Instance {
        if !self.leads() || self.in_conflict {
            return self.stable;
        }
        self.duty.open_gap.unwrap_or(self.log.next())
    }

    /// Returns the slot below which nothing changes any more.
    pub fn stable(&self) -> Instance {
        self.stable
    }

    /// Returns, once, the first slot that changed after it may have been executed. Execution must
    /// roll back to it. [N-REWIND]
    pub fn take_rewind(&mut self) -> Option<Instance> {
        self.rewind.take()
    }

    /// Returns the slot that another replica's checkpoint must reach, if this replica needs one: no
    /// log has the missing slots any more, or its own has no room for them.
    pub fn wants_checkpoint(&self) -> Option<Instance> {
        self.short_of.filter(|inst| *inst > self.stable)
    }

    /// Returns true if this log and the leader's differ though they can't. This is an alarm, which
    /// only a new session ends.
    pub fn in_conflict(&self) -> bool {
        self.in_conflict
    }

    /// Returns true if the replica takes part in its view. [N-MUTE] [N-RESTART]
    fn is_normal(&self) -> bool {
        self.status == Status::Normal && !self.mute
    }

    /// Returns true if the replica leads the view, and the view has begun.
    pub fn leads(&self) -> bool {
        self.is_normal() && self.leader() == Some(self.member())
    }

    /// Sets whether many clients at once wait for answers, and the point below which other replicas
    /// wait for stable slots. A leader acts on both from the next synchronisation on. [N-CROWD]
    pub fn set_crowded(&mut self, is_crowded: bool, others_wait_below: Instance) {
        self.duty.is_crowded = is_crowded;
        self.duty.others_wait_below = others_wait_below;
    }

    /// Returns the point below which a leader answers requests only once they are stable. Followers
    /// acknowledge these requests to no client. [N-CROWD]
    pub fn held_below(&self) -> Instance {
        self.duty.held_below
    }

    /// Returns the ACK that is due after a batch of packets, or `None` for a leader, which answers
    /// instead. [N-ACK]
    pub fn take_ack(&mut self) -> Option<Ack> {
        if self.mute {
            return None;
        }
        let next = self.log.next();
        let crowd = self.duty.crowd.as_ref();
        let end = crowd.map_or(next, |crowd| crowd.start.max(self.acked).min(next));
        let slots = self.acked..end;
        self.acked = slots.end;
        if slots.is_empty() || self.status != Status::Normal || self.leads() {
            return None;
        }
        let header = self.ack();
        Some(Ack { header, slots })
    }

    fn ack(&self) -> Header {
        Header {
            inst: self.log.next(),
            vrnd: self.session().map_or(Round::NONE, Session::shown),
            client: 0,
            ..self.header(MsgType::Ack, self.view)
        }
    }
}
