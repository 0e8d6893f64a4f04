// SPDX-License-Identifier: Apache-2.0
//! Makes the controller's state anew from what nodes show, when its store is lost or an old copy.
//!
//! A [`Rebuild`] takes the controller's place for a moment: it sends PROBEs, and asks every node
//! for the newest view. The module `judge` decides what follows from the answers. Nothing is
//! written before all groups have a sound state.

mod judge;

use crate::suspicion::Suspicion;
use crate::{
    Contradiction, ControlOutbox, GroupSettings, GroupState, Message, Peer, Settings, View, Views,
};
use paxos::wire::value::Probe;
use paxos::{Deployment, GroupId, MsgType, NodeId, Packet, Reason, Time, Verdict};

/// The collection of what the nodes of all groups show.
pub struct Rebuild {
    groups: Vec<Collected>,
    /// Memories that were read from disk while no controller ran count, as an operator vouches for
    /// the disks.
    trusts_disks: bool,
    view_interval: Time,
    views_at: Time,
}

/// The result for a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rebuilt {
    /// The group.
    pub group: GroupId,
    /// The state to store, or `None` if the store isn't older than what the nodes show.
    pub state: Option<GroupState>,
}

/// The facts that the nodes of a group have shown so far.
struct Collected {
    settings: GroupSettings,
    deployment: Deployment,
    suspicion: Suspicion,
    /// The state in the store that is to be replaced.
    found: GroupState,
    views: Views,
    contradiction: Option<Contradiction>,
    /// The nodes that have told their newest view, or that they have none.
    told: Vec<NodeId>,
}

impl Rebuild {
    /// Returns a collection that begins. `found` has what is left of each group's state, and is
    /// empty if there is nothing; `seed` must differ at every process start.
    pub fn new(
        settings: &Settings,
        found: impl Fn(GroupId) -> GroupState,
        trusts_disks: bool,
        seed: u64,
    ) -> Rebuild {
        let groups = settings.groups.iter();
        let collected =
            |group: &GroupSettings| Collected::new(settings, group, found(group.id), seed);
        Rebuild {
            groups: groups.map(collected).collect(),
            trusts_disks,
            view_interval: settings.view_interval,
            views_at: 0,
        }
    }

    /// Handles a packet of the data plane, of which only PROBE_ACK counts.
    pub fn packet(&mut self, packet: &Packet<'_>) -> Verdict {
        let id = packet.header.group;
        match self.groups.iter_mut().find(|g| g.settings.id == id) {
            Some(group) => match group.packet(packet) {
                Ok(_) => Verdict::Changed,
                Err(reason) => Verdict::Dropped(reason),
            },
            None => Verdict::Dropped(Reason::UnknownGroup),
        }
    }

    /// Handles a control message, of which only a node's newest view counts.
    pub fn message(&mut self, from: Peer, message: &Message) {
        let (Peer::Node(from), Message::Record { node, view }) = (from, message) else {
            return;
        };
        let mut groups = self.groups.iter_mut();
        let group = groups.find(|g| g.settings.id == view.group && *node == from);
        if let Some(group) = group {
            group.take_view(from, view);
        }
    }

    /// Sends the questions that are due.
    pub fn tick(&mut self, now: Time, out: &mut impl ControlOutbox) {
        let asks_views = now >= self.views_at;
        if asks_views {
            self.views_at = now + self.view_interval;
        }
        for group in &mut self.groups {
            group.suspicion.probe(now, out);
            if asks_views {
                group.ask_views(out);
            }
        }
    }

    /// Returns when the next [`tick`](Self::tick) is due.
    pub fn next_deadline(&self) -> Time {
        let probes = self.groups.iter().map(|g| g.suspicion.next_deadline());
        probes.min().unwrap_or(Time::MAX).min(self.views_at)
    }

    /// Returns whether every node of the settings has answered everything, so that waiting longer
    /// is of no use.
    pub fn is_complete(&self) -> bool {
        self.groups.iter().all(Collected::is_complete)
    }

    /// Returns the states to store, or the reason why the answers don't suffice. `name` names nodes
    /// in that text.
    pub fn outcome(&self, name: &dyn Fn(NodeId) -> String) -> Result<Vec<Rebuilt>, String> {
        let groups = self.groups.iter();
        let rebuilt = groups.map(|group| {
            let id = group.settings.id;
            let state = group.judge(self.trusts_disks, name);
            match state {
                Ok(state) => Ok(Rebuilt { group: id, state }),
                Err(why) => Err(format!("group {id}: {why}")),
            }
        });
        rebuilt.collect()
    }
}

impl Collected {
    fn new(settings: &Settings, group: &GroupSettings, found: GroupState, seed: u64) -> Collected {
        let deployment = group.deployment(settings);
        let suspicion = Suspicion::new(
            deployment,
            group.voters().0,
            settings.probe_interval,
            settings.suspect_after,
            (seed ^ u64::from(group.id) << 48).max(1),
        );
        let mut collected = Collected {
            settings: group.clone().sorted(),
            deployment,
            suspicion,
            views: Views::default(),
            contradiction: None,
            told: Vec::new(),
            found,
        };
        collected.watch_configured();
        let known = collected.found.view(group.id);
        if !known.epochs.is_empty() {
            collected.note_view(&known);
        }
        collected
    }

    fn packet(&mut self, packet: &Packet<'_>) -> Result<Probe, Reason> {
        self.deployment.check(packet)?;
        match packet.header.msgtype {
            MsgType::ProbeAck => self.suspicion.answer(packet),
            _ => Err(Reason::Unexpected),
        }
    }

    fn take_view(&mut self, from: NodeId, view: &View) {
        if !view.is_sound() {
            return;
        }
        if !self.told.contains(&from) {
            self.told.push(from);
        }
        // A node without a view says so by an empty one.
        if !view.epochs.is_empty() {
            self.note_view(view);
        }
    }

    /// Keeps a view if it is the newest, and watches the members that it names.
    fn note_view(&mut self, view: &View) {
        if let Err(why) = self.views.offer(view) {
            self.contradiction.get_or_insert(why);
        }
        let (stamper, (voter, _)) = (self.settings.stamper(), self.settings.voters());
        for record in &view.epochs {
            self.suspicion.watch(stamper, record.leader.0);
            for (node, _) in &record.acceptors {
                self.suspicion.watch(voter, *node);
            }
        }
    }

    fn watch_configured(&mut self) {
        let (stamper, voters) = (self.settings.stamper(), self.settings.voters());
        let leaders = self.settings.leaders.iter().map(|&n| (stamper, n));
        let voters = voters.1.iter().map(|&n| (voters.0, n));
        let replicas = self.settings.replicas.iter().map(|&n| (Probe::Replica, n));
        for (role, node) in leaders.chain(voters).chain(replicas) {
            self.suspicion.watch(role, node);
        }
    }

    fn ask_views(&self, out: &mut impl ControlOutbox) {
        let group = self.settings.id;
        let silent = self.suspicion.iter().map(|w| w.node);
        for node in silent.filter(|node| !self.told.contains(node)) {
            out.control(Peer::Node(node), Message::RecordRequest { group });
        }
    }

    fn is_complete(&self) -> bool {
        let has_answered = |partitions: &[Option<_>]| partitions.iter().all(Option::is_some);
        self.suspicion
            .iter()
            .all(|w| has_answered(&w.partitions) && self.told.contains(&w.node))
    }
}
