// SPDX-License-Identifier: Apache-2.0
//! Finds the group that an input belongs to. Groups share nothing but the store.

use crate::group::GroupControl;
use crate::status::Status;
use crate::{ControlOutbox, GroupState, MemberChange, Message, Peer, Settings, Store, StoreError};
use paxos::{GroupId, NodeId, Packet, Reason, Time, Verdict};

/// The controller of a cluster; the crate's documentation describes it.
pub struct Controller<S> {
    store: S,
    groups: Vec<GroupControl>,
}

impl<S: Store> Controller<S> {
    /// Returns a controller that continues from the state in `store`. `seed` must differ at every
    /// process start, since the nonces of its questions are derived from it.
    pub fn new(
        settings: Settings,
        mut store: S,
        seed: u64,
        now: Time,
    ) -> Result<Controller<S>, StoreError> {
        let mut groups = Vec::new();
        for group in &settings.groups {
            let state = store.load(group.id)?;
            let seed = seed ^ u64::from(group.id) << 48;
            groups.push(GroupControl::new(
                &settings,
                group.clone(),
                state,
                seed,
                now,
            ));
        }
        Ok(Controller { store, groups })
    }

    /// Handles a packet of the data plane: PROBE_ACK, PHASE1B, PHASE2B, REJECT.
    pub fn packet(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        out: &mut impl ControlOutbox,
    ) -> Verdict {
        match self.find(packet.header.group) {
            Some((group, store)) => group.packet(now, packet, store, out),
            None => Verdict::Dropped(Reason::UnknownGroup),
        }
    }

    /// Handles a control message.
    pub fn message(
        &mut self,
        now: Time,
        from: Peer,
        message: &Message,
        out: &mut impl ControlOutbox,
    ) {
        let id = match *message {
            Message::ViewRequest { group }
            | Message::LaneRequest { group, .. }
            | Message::IncarnationRequest { group, .. }
            | Message::EarlierStart { group, .. }
            | Message::ExecutionStopped { group, .. }
            | Message::ViewStarted { group, .. }
            | Message::SessionWanted { group, .. }
            | Message::Failover { group, .. } => group,
            _ => return,
        };
        if let Some((group, store)) = self.find(id) {
            group.message(now, from, message, store, out);
        }
    }

    /// Sends probes, repeats unanswered orders, and issues a new epoch if one is needed. Returns
    /// false if leaders were only asked whether their ports are open.
    pub fn tick(&mut self, now: Time, out: &mut impl ControlOutbox) -> bool {
        let is_due = self.groups.iter().any(|g| now >= g.next_deadline());
        let mut has_knocked = false;
        for group in &mut self.groups {
            has_knocked |= group.knock(now, out);
        }
        if has_knocked && !is_due {
            return false;
        }
        for group in &mut self.groups {
            group.tick(now, &mut self.store, out);
        }
        true
    }

    /// Takes the evidence by ICMP that no process has the port of a node. [E-EVIDENCE]
    pub fn refused(&mut self, now: Time, node: NodeId, out: &mut impl ControlOutbox) {
        for group in &mut self.groups {
            group.refused(now, node, &mut self.store, out);
        }
    }

    /// Prepares for an orderly end of the process: stores what acceptors have shown, as far as
    /// possible.
    pub fn stop(&mut self) {
        for group in &mut self.groups {
            group.stop(&mut self.store);
        }
    }

    /// Returns the reason why this controller must not continue, if there is one. Its process ends
    /// with this message, and nothing is sent any more.
    pub fn alarm(&self) -> Option<&str> {
        self.groups.iter().find_map(GroupControl::alarm)
    }

    /// Returns when the next [`tick`](Self::tick) is due.
    pub fn next_deadline(&self) -> Time {
        let due = |group: &GroupControl| group.next_deadline().min(group.knock_deadline());
        let deadlines = self.groups.iter().map(due);
        deadlines.min().unwrap_or(Time::MAX)
    }

    /// Returns the stored state of a group.
    pub fn state(&self, group: GroupId) -> Option<&GroupState> {
        self.groups
            .iter()
            .find(|g| g.id() == group)
            .map(GroupControl::state)
    }

    /// Returns all changes of the cluster's members by command, oldest first.
    pub fn members(&self) -> &[MemberChange] {
        let first = self.groups.iter().min_by_key(|g| g.id());
        first.map_or(&[], |g| &g.state().members)
    }

    /// Appends changes to the first `known` ones, and returns how many there are then. [E-CHANGES]
    ///
    /// # Errors
    /// If others came before, or if they can't be stored.
    pub fn change_members(
        &mut self,
        known: usize,
        changes: &[MemberChange],
    ) -> Result<usize, String> {
        let first = self.groups.iter_mut().min_by_key(|g| g.id());
        let first = first.ok_or("there is no group")?;
        first.change_members(known, changes, &mut self.store)
    }

    /// Returns the status for people and scripts.
    pub fn status(&self, now: Time) -> Status {
        Status {
            groups: self.groups.iter().map(|g| g.status(now)).collect(),
        }
    }

    /// Returns the store.
    pub fn into_store(self) -> S {
        self.store
    }

    fn find(&mut self, id: GroupId) -> Option<(&mut GroupControl, &mut S)> {
        let group = self.groups.iter_mut().find(|g| g.id() == id)?;
        Some((group, &mut self.store))
    }
}
