// SPDX-License-Identifier: Apache-2.0
//! Headers of messages, and whose messages count.

use super::super::session::Session;
use super::{Peer, Replica, Status, send};
use crate::{Header, Instance, Member, MsgType, Outbox, Reason, Round, To};

impl Replica {
    /// Returns the header of a message from this member about a view.
    pub(in crate::nopaxos) fn header(&self, msgtype: MsgType, view: Round) -> Header {
        let deployment = &self.settings.deployment;
        Header {
            group: deployment.group,
            cluster: deployment.cluster,
            pid: self.settings.pid,
            rnd: view,
            swid: deployment.node,
            client: self.settings.nonce,
            request: self.named_session(msgtype, view),
            ..Header::new(msgtype)
        }
    }

    /// Sends a message to all other members of the view's session.
    pub(in crate::nopaxos) fn broadcast(
        &self,
        header: Header,
        value: &[u8],
        out: &mut impl Outbox,
    ) {
        let session = self.sessions.get(header.rnd.epoch());
        for member in session.iter().flat_map(|s| &s.members) {
            if *member != self.member() {
                send(To::Node(member.node), header, value, out);
            }
        }
    }

    /// Sends a message to this node.
    pub(in crate::nopaxos) fn send_to_self(
        &self,
        header: Header,
        value: &[u8],
        out: &mut impl Outbox,
    ) {
        send(To::Node(self.settings.deployment.node), header, value, out);
    }

    /// Returns the leader of the view.
    pub(in crate::nopaxos) fn leader(&self) -> Option<Member> {
        let session = self.sessions.open(self.view)?;
        Some(session.leader(self.view, self.settings.pid))
    }

    /// Returns the session of the view.
    pub(in crate::nopaxos) fn session(&self) -> Option<&Session> {
        self.sessions.open(self.view)
    }

    /// Returns the sender's place in the session, for a message between members of the view in
    /// which this replica is normal. A replica that isn't normal, or not in this view, takes no
    /// part. [N-MUTE]
    pub(in crate::nopaxos) fn sent_by_member(&self, h: &Header) -> Result<usize, Reason> {
        let session = self.sessions.get(h.rnd.epoch());
        let session = session.ok_or(Reason::UnknownEpoch)?;
        let place = session.place(sender(h)).ok_or(Reason::UnknownSender)?;
        if h.rnd != self.view {
            return Err(Reason::WrongView);
        }
        if self.status != Status::Normal {
            return Err(Reason::NotNormal);
        }
        Ok(place)
    }

    /// Checks a message that only the view's leader sends.
    pub(in crate::nopaxos) fn sent_by_leader(&self, h: &Header) -> Result<(), Reason> {
        self.sent_by_member(h)?;
        match self.leader() == Some(sender(h)) {
            true => Ok(()),
            false => Err(Reason::UnknownSender),
        }
    }

    /// Returns the sender's place, for a message that only the view's leader takes, and only from
    /// others.
    pub(in crate::nopaxos) fn sent_by_follower(&self, h: &Header) -> Result<usize, Reason> {
        let place = self.sent_by_member(h)?;
        if !self.leads() {
            return Err(Reason::NotForRole);
        }
        match sender(h) == self.member() {
            true => Err(Reason::UnknownSender),
            false => Ok(place),
        }
    }

    /// Returns how many others a leader needs.
    pub(in crate::nopaxos) fn f(&self) -> usize {
        self.session().map_or(usize::MAX, |s| s.f as usize)
    }

    /// Returns the point that f others have reached: the f-th largest.
    pub(in crate::nopaxos) fn by_f(&self, of: impl Fn(&Peer) -> Instance) -> Instance {
        let mut reached: Vec<Instance> = self.duty.peers.iter().map(of).collect();
        reached.sort_unstable_by(|a, b| b.cmp(a));
        match self.f() {
            0 => self.log.next(),
            f => reached.get(f - 1).copied().unwrap_or(0),
        }
    }
}

/// Returns the memory that sent a message between replicas.
pub(in crate::nopaxos) fn sender(h: &Header) -> Member {
    Member {
        node: h.swid,
        nonce: h.client,
    }
}
