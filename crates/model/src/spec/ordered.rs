// SPDX-License-Identifier: Apache-2.0
//! Groups that agree by NOPaxos: what replicas and sequencers may send, by what reached them
//! before.
//!
//! Written from `docs/protocol.md`, as the rest of the specification is. A replica's log is never
//! looked at: what it says of it must follow from the packets that it got.
//!
//! - who acknowledges up to a slot, or answers for it, has got everything below since its view
//!   began, from the sequencer, from another replica, or as a no-op ([N-ACK], [Y-APPLY], [H-OBEY],
//!   [H-NOOP]), and does so only in the view that it is in ([N-MUTE]);
//! - VIEW_CHANGE tells the last normal view, and at least what was acknowledged in it ([W-TELL]);
//! - a view begins once, by its leader, with the VIEW_CHANGEs that it needs and the log that comes
//!   of them ([W-ONCE], [W-QUORUM], [W-MERGE]);
//! - what was committed in a view is in the log with which a later one begins (INV-10);
//! - a session is active behind a view that f others have begun, and its sequencer begins there
//!   ([F-STARTED], [F-PROGRAM]).
//!
//! What is stable may come with another replica's state, which isn't recorded. So a slot that the
//! trace shows as stable needs no other reason.

mod node;
mod views;

use std::collections::BTreeMap;

use paxos::nopaxos::view;
use paxos::wire::nopaxos::{Noops, SyncPrepare};
use paxos::{
    Configuration, Epoch, Header, Member, MsgType, NodeId, Packet, PartitionId, Program, Round,
};

use self::node::Node;
use self::views::Views;
use super::epochs::{Epochs, State};

/// The specification's knowledge of a group with NOPaxos.
#[derive(Default)]
pub(super) struct Ordered {
    /// The leader of each session's first view, as an index of its members.
    turns: BTreeMap<Epoch, u16>,
    /// The memory of a replica's last process.
    memories: BTreeMap<NodeId, u64>,
    nodes: BTreeMap<(PartitionId, NodeId), Node>,
    views: BTreeMap<PartitionId, Views>,
}

impl Ordered {
    /// Returns whether the group agrees by NOPaxos.
    pub fn is_such(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Notes that an epoch of the store is a session.
    pub fn session(&mut self, epoch: Epoch, lead: u16) -> Result<(), String> {
        match *self.turns.entry(epoch).or_insert(lead) == lead {
            true => Ok(()),
            false => Err(format!("session {epoch} was another one before")),
        }
    }

    /// Notes that a replica's process begins, so that what the one before had in memory is gone.
    pub fn start(&mut self, node: NodeId, nonce: u64) {
        if self.memories.insert(node, nonce) != Some(nonce) {
            self.nodes.retain(|(_, n), _| *n != node);
        }
    }

    /// Checks that a session is active only if f others have begun a view of it in each partition.
    /// [F-ACTIVE]
    pub fn active(&self, epoch: Epoch, epochs: &Epochs, partitions: u16) -> Result<(), String> {
        let Some(session) = self.configuration(epoch, epochs) else {
            return Ok(());
        };
        let unbegun = |pid: &PartitionId| {
            let views = self.views.get(pid);
            !views.is_some_and(|views| views.began(epoch, session.f.into()))
        };
        match (0..partitions).find(unbegun) {
            None => Ok(()),
            Some(pid) => Err(format!(
                "session {epoch} is active, and f others have begun none of its views in {pid}"
            )),
        }
    }

    /// Checks that a sequencer begins where f others have begun a view of its session. That the
    /// session is active may be recorded later. [F-PROGRAM]
    pub fn programmed(&self, program: &Program) -> Result<(), String> {
        let (epoch, f) = (program.epoch, program.f.into());
        for (pid, next) in (0..).zip(&program.next) {
            let views = self.views.get(&pid);
            if !views.is_some_and(|views| views.begins_at(epoch, *next, f)) {
                return Err(format!(
                    "a sequencer is to begin at {next} of partition {pid}, where f others have \
                     begun no view of session {epoch}"
                ));
            }
        }
        Ok(())
    }

    // ---- Packets

    /// Notes that a packet has reached a replica.
    pub fn receive(&mut self, node: NodeId, packet: &Packet<'_>) {
        let known = self.nodes.entry((packet.header.pid, node)).or_default();
        known.receive(packet);
    }

    /// Returns whether a replica may send this.
    pub fn send(
        &mut self,
        node: NodeId,
        packet: &Packet<'_>,
        epochs: &Epochs,
    ) -> Result<(), String> {
        let h = &packet.header;
        if h.rnd.is_none() || !is_of_views(h.msgtype) {
            return Ok(());
        }
        let session = self.session_of(h.rnd, epochs)?;
        self.is_in_it(node, h, &session)?;
        match h.msgtype {
            MsgType::ViewChange => self.tells(node, packet),
            MsgType::StartView => self.begins(node, packet, epochs, &session),
            MsgType::StartViewRep => self.has_begun(node, h, &session),
            MsgType::Ack | MsgType::SyncRep | MsgType::GapCommitRep => {
                self.has_filled(node, h, &session)
            }
            MsgType::Reply => self.answers(node, h, &session),
            MsgType::GapCommit => self.gives_up(node, packet),
            MsgType::SyncPrepare => self.prepares(node, packet),
            MsgType::SyncCommit => self.makes_stable(node, h, &session),
            _ => Ok(()),
        }
    }

    fn node(&mut self, pid: PartitionId, node: NodeId) -> &mut Node {
        self.nodes.entry((pid, node)).or_default()
    }

    fn views(&mut self, pid: PartitionId) -> &mut Views {
        self.views.entry(pid).or_default()
    }

    /// Members with a say in views, and for what a leader says the leader. [W-WHO] [N-MUTE]
    fn is_in_it(
        &mut self,
        node: NodeId,
        h: &Header,
        session: &StoredSession,
    ) -> Result<(), String> {
        let nonce = self.memories.get(&node).copied();
        let is_told = h.msgtype == MsgType::ViewChange;
        let is_member = |m: &Member| m.node == node && Some(m.nonce) == nonce;
        if !is_told && !session.members.iter().any(is_member) {
            return Err(format!("node {node} is no member of the view of {h:?}"));
        }
        let leads = session.leader(h.rnd, h.pid).node == node;
        let by_leader = matches!(
            h.msgtype,
            MsgType::StartView
                | MsgType::Reply
                | MsgType::GapCommit
                | MsgType::SyncPrepare
                | MsgType::SyncCommit
        );
        if !is_told && by_leader != leads {
            let what = if leads { "leads" } else { "doesn't lead" };
            return Err(format!("node {node} {what} the view, and sends {h:?}"));
        }
        let filled = match h.msgtype {
            MsgType::Reply => h.inst + 1,
            _ => h.inst,
        };
        if !is_told && !self.node(h.pid, node).may_speak(h.rnd, filled) {
            return Err(format!("node {node} has left that view, and sends {h:?}"));
        }
        Ok(())
    }

    /// Checks that a VIEW_CHANGE tells the replica's last normal view and at least the log that it
    /// had there. [W-TELL] [W-UNTOUCHED]
    fn tells(&mut self, node: NodeId, packet: &Packet<'_>) -> Result<(), String> {
        let h = &packet.header;
        let known = self.node(h.pid, node);
        known.goes(h.rnd, h.inst);
        let (normal, filled) = known.last_normal();
        if (h.vrnd, h.inst >= filled) != (normal, true) {
            return Err(format!(
                "node {node} tells a log of {} slots of view {}, and had {filled} in {normal}",
                h.inst, h.vrnd
            ));
        }
        Ok(())
    }

    /// Checks that a START_VIEW follows from what a quorum has told, and that each view starts only
    /// once. [W-ONCE] [W-QUORUM] [W-MERGE]
    fn begins(
        &mut self,
        node: NodeId,
        packet: &Packet<'_>,
        epochs: &Epochs,
        session: &StoredSession,
    ) -> Result<(), String> {
        let h = &packet.header;
        let Ok(noops) = Noops::parse(packet.value, h.inst, u16::MAX) else {
            return Err(format!(
                "node {node} begins a view with a list that can't be"
            ));
        };
        if !self.views(h.pid).begin(h, packet.value, &noops)? {
            return Ok(());
        }
        let nonce = self.memories.get(&node).copied().unwrap_or_default();
        let own = Member { node, nonce };
        let ways = self.ways_to_begin(h.rnd, epochs, session);
        let known = self.node(h.pid, node);
        let why = format!(
            "node {node} begins view {} with too few VIEW_CHANGEs, or with another log than they \
             tell",
            h.rnd
        );
        if !known.may_begin(h, &noops, own, &ways) {
            return Err(why);
        }
        known.begin(h.rnd, h.inst);
        Ok(())
    }

    /// Returns the possible lists of sessions of which f+1 members each must tell their logs. Any
    /// of these lists will do, since a replica may not have heard yet what the store has.
    /// [W-QUORUM]
    fn ways_to_begin(
        &self,
        view: Round,
        epochs: &Epochs,
        own: &StoredSession,
    ) -> Vec<Vec<StoredSession>> {
        let epoch = view.epoch();
        let mut ways = Vec::new();
        let is_later = view::number(view) > 0;
        if epochs.state(epoch) == Some(State::Active) && is_later {
            ways.push(vec![own.clone()]);
        }
        let needed = epochs.needed_by(epoch);
        let mut all: Vec<StoredSession> =
            needed.iter().filter_map(|c| self.as_session(c)).collect();
        // Nothing was stamped before, so only the session's own members need to be asked.
        let is_first = all
            .iter()
            .all(|s| epochs.state(s.epoch) != Some(State::Active));
        if is_later || is_first {
            all.push(own.clone());
        }
        if is_first {
            ways.push(vec![own.clone()]);
        }
        ways.push(all);
        ways
    }

    fn has_begun(
        &mut self,
        node: NodeId,
        h: &Header,
        session: &StoredSession,
    ) -> Result<(), String> {
        let known = self.node(h.pid, node);
        if !known.was_told(h.rnd, h.inst) {
            return Err(format!(
                "node {node} follows a START_VIEW that it didn't get: {h:?}"
            ));
        }
        known.begin(h.rnd, h.inst);
        self.views(h.pid).follows(h.rnd, node);
        self.has_synced(node, h, session)
    }

    /// Notes that a replica's log equals the leader's below a slot. The leader itself doesn't count
    /// as a follower.
    fn has_synced(
        &mut self,
        node: NodeId,
        h: &Header,
        session: &StoredSession,
    ) -> Result<(), String> {
        match session.leader(h.rnd, h.pid).node == node {
            true => Ok(()),
            false => self
                .views(h.pid)
                .sync(h.rnd, node, h.inst, session.f.into()),
        }
    }

    /// Checks that a replica has everything that its ACK, SYNC_REP or GAP_COMMIT_REP confirms.
    /// [N-ACK] [Y-APPLY] [H-OBEY]
    fn has_filled(
        &mut self,
        node: NodeId,
        h: &Header,
        session: &StoredSession,
    ) -> Result<(), String> {
        let stable = self.views(h.pid).stable();
        let known = self.node(h.pid, node);
        known.speaks(h.rnd, h.inst);
        known
            .has_filled(h.rnd, h.inst, stable)
            .map_err(|slot| format!("node {node} has nothing in slot {slot}, and sends {h:?}"))?;
        match h.msgtype {
            MsgType::Ack => {
                let f = session.f.into();
                self.views(h.pid).acknowledge(h.rnd, node, h.inst, f)
            }
            MsgType::SyncRep => self.has_synced(node, h, session),
            _ => Ok(()),
        }
    }

    /// Checks that a replica that answers has everything up to the slot, and that f others have its
    /// no-ops. [N-ANSWER] [H-NOOP]
    fn answers(&mut self, node: NodeId, h: &Header, session: &StoredSession) -> Result<(), String> {
        let stable = self.views(h.pid).stable();
        let known = self.node(h.pid, node);
        known
            .has_filled(h.rnd, h.inst + 1, stable)
            .map_err(|slot| format!("node {node} has nothing in slot {slot}, and answers {h:?}"))?;
        if let Some(slot) = known.unagreed(h.rnd, h.inst, session.f.into(), stable) {
            return Err(format!(
                "node {node} answers {h:?}, and f others don't have its no-op in slot {slot}"
            ));
        }
        self.views(h.pid).answer(h.rnd, h.inst, session.f.into())
    }

    fn gives_up(&mut self, node: NodeId, packet: &Packet<'_>) -> Result<(), String> {
        let h = &packet.header;
        let Ok(noops) = Noops::parse_commit(packet.value, h.inst, u16::MAX) else {
            return Err(format!("node {node} sends a list that can't be: {h:?}"));
        };
        self.node(h.pid, node).put_noops(h.rnd, &noops);
        self.views(h.pid).give_up(h.rnd, &noops)
    }

    /// Checks that a leader has everything below the point that its SYNC_PREPARE names. [Y-POINT]
    fn prepares(&mut self, node: NodeId, packet: &Packet<'_>) -> Result<(), String> {
        let h = &packet.header;
        if SyncPrepare::parse(packet.value, h.inst, u16::MAX).is_err() {
            return Err(format!("node {node} sends a list that can't be: {h:?}"));
        }
        let stable = self.views(h.pid).stable();
        let known = self.node(h.pid, node);
        known
            .has_filled(h.rnd, h.inst, stable)
            .map_err(|slot| format!("node {node} has nothing in slot {slot}, and sends {h:?}"))
    }

    /// Checks that f others have confirmed a point before SYNC_COMMIT makes it stable. [Y-POINT]
    /// [W-STABLE]
    fn makes_stable(
        &mut self,
        node: NodeId,
        h: &Header,
        session: &StoredSession,
    ) -> Result<(), String> {
        let f = usize::from(session.f);
        if !self.node(h.pid, node).was_synced_by(f, h.rnd, h.inst) {
            return Err(format!(
                "node {node} makes stable what f others don't have: {h:?}"
            ));
        }
        self.views(h.pid).commit(h.rnd, h.inst)
    }

    // ---- Sessions

    fn session_of(&self, view: Round, epochs: &Epochs) -> Result<StoredSession, String> {
        let found = self.configuration(view.epoch(), epochs);
        found.ok_or_else(|| format!("view {view} is of no session"))
    }

    fn configuration(&self, epoch: Epoch, epochs: &Epochs) -> Option<StoredSession> {
        self.as_session(epochs.get(epoch)?)
    }

    fn as_session(&self, configuration: &Configuration) -> Option<StoredSession> {
        Some(StoredSession {
            epoch: configuration.epoch,
            members: configuration.acceptors.clone(),
            f: configuration.f,
            lead: *self.turns.get(&configuration.epoch)?,
        })
    }
}

/// A session, as the store has it.
#[derive(Clone, Debug)]
struct StoredSession {
    epoch: Epoch,
    members: Vec<Member>,
    f: u8,
    lead: u16,
}

impl StoredSession {
    fn leader(&self, view: Round, pid: PartitionId) -> Member {
        let turn = usize::from(self.lead) + usize::from(pid) + view::number(view) as usize;
        self.members[turn % self.members.len()]
    }
}

/// Returns whether such a message is sent in a view, and says something of a log.
fn is_of_views(msgtype: MsgType) -> bool {
    matches!(
        msgtype,
        MsgType::Reply
            | MsgType::Ack
            | MsgType::GapCommit
            | MsgType::GapCommitRep
            | MsgType::SyncPrepare
            | MsgType::SyncRep
            | MsgType::SyncCommit
            | MsgType::ViewChange
            | MsgType::StartView
            | MsgType::StartViewRep
    )
}
