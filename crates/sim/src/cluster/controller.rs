// SPDX-License-Identifier: Apache-2.0
//! A node that runs the controller, on a store that outlives it.

use std::cell::RefCell;
use std::rc::Rc;

use control::memory::Positions;
use control::{
    ControlOutbox, Controller, EpochRecord, EpochState, GivenUp, GroupSettings, GroupState,
    MemoryRecord, Message, Peer, Protocol, Rebuild, Settings, Store, StoreError,
};
use paxos::acceptor::Start;
use paxos::{
    Acceptor, Configuration, Epoch, Flags, GroupId, Header, MsgType, NodeId, Outbox, Packet, Round,
    Time, To, Verdict,
};

use super::host::{Alarm, Host};
use super::layout::{Endpoint, NodeIndex, node_id};
use super::members::{is_acceptor, is_leader, is_replica};
use super::mutation;
use super::world::{CLUSTER, GROUP, MAX_VALUE, Outgoing, Sender, World};
use crate::observe::Observed;
use crate::plan::Name;
use crate::queue::MILLISECOND;
use leads::ShownLeads;
use membership::Membership;

mod leads;
mod membership;
mod rebuilding;
mod showing;

/// The contents of the controller's disk.
#[derive(Default)]
struct Stored {
    state: GroupState,
    full: bool,
    /// Epochs that were stored or moved on since the checkers last looked.
    news: Vec<EpochRecord>,
    given_up: Option<GivenUp>,
}

/// The store, shared by the process and its machine.
#[derive(Clone, Default)]
pub struct SimStore(Rc<RefCell<Stored>>);

impl Store for SimStore {
    fn load(&mut self, _: GroupId) -> Result<GroupState, StoreError> {
        Ok(self.0.borrow().state.clone())
    }

    fn swap(&mut self, _: GroupId, expected: u64, state: &GroupState) -> Result<(), StoreError> {
        let mut stored = self.0.borrow_mut();
        if stored.full {
            return Err(StoreError::Failed("No space left on device".into()));
        }
        if stored.state.version != expected {
            return Err(StoreError::Conflict);
        }
        // An older session's record loses its views, which is no news.
        let is_same = |e: &EpochRecord, f: &EpochRecord| (e.hash, e.state) == (f.hash, f.state);
        let is_news = |e: &&EpochRecord| !stored.state.epochs.iter().any(|f| is_same(e, f));
        let news: Vec<EpochRecord> = state.epochs.iter().filter(is_news).cloned().collect();
        stored.news.extend(news);
        if state.given_up != stored.state.given_up {
            stored.given_up = state.given_up.clone();
        }
        stored.state = state.clone();
        Ok(())
    }
}

/// The messages that a controller sends.
#[derive(Default)]
struct Output {
    packets: Outgoing,
    messages: Vec<(Peer, Message)>,
}

impl Outbox for Output {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        self.packets.send(to, header, value);
    }
}

impl ControlOutbox for Output {
    fn control(&mut self, to: Peer, message: Message) {
        self.messages.push((to, message));
    }
}

/// The controller.
pub struct ControllerHost {
    /// The machine.
    pub host: Host,
    role: Option<Controller<SimStore>>,
    /// The rebuilding of the store, and when it ends. It runs in the place of the controller.
    rebuild: Option<(Rebuild, Time)>,
    store: SimStore,
    backup: GroupState,
    /// The state that was lost, until the store was made anew or is as new.
    lost: Option<GroupState>,
    alarm: Alarm,
    out: Output,
    leads: ShownLeads,
    membership: Membership,
    /// For a mutation, how far votes reached when they were read ahead.
    ahead_ends: mutation::members::AheadEnds,
}

/// Returns the settings of a scenario's controller, with the real f.
fn settings(world: &World) -> Settings {
    let scenario = &world.scenario;
    let ids = |names: Vec<Name>| -> Vec<NodeId> { names.into_iter().map(node_id).collect() };
    let members = world
        .members
        .used_by(world.layout.index(Name::Controller).unwrap_or(0));
    let (acceptors, replicas) = (members.ids(is_acceptor), members.ids(is_replica));
    let g = (replicas.len() as u8).saturating_sub(1) / 2;
    let (protocol, leaders, f) = match world.is_ordered() {
        false => (
            Protocol::Paxos,
            members.ids(is_leader),
            (acceptors.len() as u8).saturating_sub(1) / 2,
        ),
        true => (
            Protocol::NoPaxos,
            ids((1..=scenario.sequencers).map(Name::Sequencer).collect()),
            g,
        ),
    };
    let group = GroupSettings {
        id: GROUP,
        protocol,
        partitions: scenario.partitions.into(),
        max_value: MAX_VALUE,
        slots: scenario.slots.into(),
        window: scenario.window.into(),
        leaders,
        acceptors,
        f,
        replicas,
        g,
        learners: ids((1..=scenario.learners).map(Name::Learner).collect()),
        leaving: members.leaving_replicas(),
    };
    Settings {
        probe_interval: 10 * MILLISECOND,
        suspect_after: 4,
        on_sockets: match scenario.refuses() {
            true => group.leaders.clone(),
            false => Vec::new(),
        },
        knock_interval: 5 * MILLISECOND,
        view_interval: 100 * MILLISECOND,
        memory_interval: 200 * MILLISECOND,
        rejoin_delay: 20 * MILLISECOND,
        attempt_timeout: 100 * MILLISECOND,
        epoch_interval: 50 * MILLISECOND,
        ..Settings::new(CLUSTER, node_id(Name::Controller), vec![group])
    }
}

impl ControllerHost {
    /// Returns a machine without a process.
    pub fn new(host: Host) -> ControllerHost {
        ControllerHost {
            host,
            role: None,
            rebuild: None,
            store: SimStore::default(),
            backup: GroupState::default(),
            lost: None,
            alarm: Alarm::default(),
            out: Output::default(),
            leads: ShownLeads::default(),
            membership: Membership::default(),
            ahead_ends: mutation::members::AheadEnds::default(),
        }
    }

    /// Returns whether a process runs.
    pub fn is_up(&self) -> bool {
        self.role.is_some()
    }

    /// Returns the configurations whose acceptors' memories must not be lost: the last active one,
    /// and later ones that may have chosen something.
    pub fn needed(&self) -> Vec<Configuration> {
        match &self.lost {
            Some(lost) => lost.needed(),
            None => self.store.0.borrow().state.needed(),
        }
    }

    /// Returns the configuration of the last epoch, if that was only issued.
    pub fn issued(&self) -> Option<Configuration> {
        let stored = self.store.0.borrow();
        let last = stored.state.epochs.last();
        let issued = last.filter(|e| e.state == EpochState::Issued);
        issued.map(EpochRecord::configuration)
    }

    /// Returns the sessions whose members' memories must not be lost, also if the store was
    /// replaced.
    pub fn needed_sessions(&self) -> Vec<Configuration> {
        let mut needed = self.store.0.borrow().state.needed();
        needed.extend(self.lost.iter().flat_map(GroupState::needed));
        needed
    }

    /// Returns whether the store is an old copy or empty.
    pub fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Returns whether this memory counts as lost once it is read from a disk, since it didn't
    /// answer while the store was made anew.
    pub fn distrusts(&self, node: NodeId, nonce: u64) -> bool {
        let unseen = MemoryRecord::unseen(node, nonce);
        self.store.0.borrow().state.memories.contains(&unseen)
    }

    /// Returns the last epoch issued.
    pub fn last_epoch(&self) -> Epoch {
        let lost = self.lost.as_ref().map_or(0, GroupState::last_epoch);
        self.store.0.borrow().state.last_epoch().max(lost)
    }

    /// Returns whether an acceptor that starts from this copy has gone backwards, according to the
    /// store.
    pub fn would_notice(&self, copy: &Acceptor) -> bool {
        let positions = |pid| Positions {
            floor: copy.floor(pid).0,
            end: copy.end(pid),
            trim: copy.trim(pid),
        };
        let shown = MemoryRecord {
            node: copy.deployment().node,
            nonce: copy.nonce(),
            start: copy.start().next(u32::MAX).number(),
            shown: (0..copy.deployment().partitions).map(positions).collect(),
            forgot: None,
        };
        let stored = self.store.0.borrow();
        let mut known = stored.state.memories.iter();
        let known = known.find(|m| (m.node, m.nonce) == (shown.node, shown.nonce));
        known.is_some_and(|m| {
            let last = Start::from_number(m.start);
            !m.clone().take(&shown, true) || !last.is_some_and(|last| copy.was_at(last))
        })
    }

    /// Returns whether the last epoch is active.
    pub fn in_force(&self) -> bool {
        self.store.0.borrow().state.in_force().is_some()
    }

    /// Makes the store fail, or work again.
    pub fn set_full(&mut self, full: bool) {
        self.store.0.borrow_mut().full = full;
    }

    /// Copies the store.
    pub fn back_up(&mut self) {
        self.backup = self.store.0.borrow().state.clone();
    }

    /// Kills the process, and replaces the store by the copy.
    pub fn restore(&mut self) {
        self.replace(self.backup.clone());
    }

    /// Kills the process, and empties its store.
    pub fn forget(&mut self) {
        self.replace(GroupState::default());
    }

    fn replace(&mut self, state: GroupState) {
        self.crash();
        let before = std::mem::replace(&mut self.store.0.borrow_mut().state, state);
        let newest = self.lost.take().unwrap_or(before);
        let is_older = self.last_epoch() < newest.last_epoch();
        self.lost = is_older.then_some(newest);
    }

    /// Kills the process, and puts the newest store back, unless the present one has gone further.
    fn put_newest_back(&mut self) {
        self.crash();
        let state = &mut self.store.0.borrow_mut().state;
        let age = |state: &GroupState| state.view(GROUP).age();
        if let Some(lost) = self.lost.take().filter(|lost| age(lost) > age(state)) {
            *state = lost;
        }
    }

    /// Returns the newest epoch that was ever stored, with its state.
    pub fn newest(&self) -> Option<(Epoch, EpochState)> {
        let stored = self.store.0.borrow();
        let state = self.lost.as_ref().unwrap_or(&stored.state);
        state.epochs.last().map(|e| (e.epoch, e.state))
    }

    /// Starts a process.
    pub fn start(&mut self, world: &mut World) {
        if self.is_up() || self.rebuild.is_some() {
            return;
        }
        self.host.start(world);
        self.alarm.reset();
        self.membership = Membership::default();
        let seed = world.rng.next();
        let now = self.host.now(world);
        match Controller::new(settings(world), self.store.clone(), seed, now) {
            Ok(controller) => self.role = Some(controller),
            Err(error) => world.note(|_| format!("controller can't start: {error}")),
        }
        self.after(world);
    }

    /// Ends the process in good order.
    pub fn stop(&mut self) {
        if let Some(mut controller) = self.role.take() {
            controller.stop();
        }
    }

    /// Kills the process.
    pub fn crash(&mut self) {
        self.role = None;
        self.rebuild = None;
    }

    /// Handles an arriving packet.
    pub fn packet(
        &mut self,
        world: &mut World,
        from: Endpoint,
        packet: &Packet<'_>,
    ) -> Option<Verdict> {
        let now = self.host.now(world);
        if self.rebuild.is_some() {
            return self.rebuild_packet(world, packet);
        }
        let controller = self.role.as_mut()?;
        world.observe(self.host.at, Observed::Received(packet));
        let verdict = controller.packet(now, packet, &mut self.out);
        self.post(world, Some(from));
        self.after(world);
        Some(verdict)
    }

    /// Handles the word of a machine that no process has a node's port.
    pub fn refused(&mut self, world: &mut World, by: NodeIndex) {
        let now = self.host.now(world);
        let node = node_id(world.layout.names[usize::from(by)]);
        if let Some(controller) = self.role.as_mut() {
            world.note(|w| {
                format!(
                    "refused  {}: its port is closed",
                    w.layout.names[by as usize]
                )
            });
            controller.refused(now, node, &mut self.out);
            self.post(world, None);
            self.after(world);
        }
    }

    /// Handles an arriving control message.
    pub fn control(&mut self, world: &mut World, from: NodeIndex, message: &Message) {
        let now = self.host.now(world);
        if self.rebuild.is_some() {
            return self.rebuild_message(world, from, message);
        }
        let Some(controller) = self.role.as_mut() else {
            return;
        };
        let peer = match world.layout.names[from as usize] {
            Name::Client(n) => Peer::Client(n.into()),
            name => Peer::Node(node_id(name)),
        };
        if !mutation::gives_any_number(world, &mut self.store, message, peer, &mut self.out) {
            let mixed = mutation::mix_moments(world, message);
            controller.message(now, peer, mixed.as_ref().unwrap_or(message), &mut self.out);
        }
        self.post(world, None);
        self.after(world);
    }

    /// Acts as a second controller on a copy of the store, which asks for the promises of the last
    /// epoch. The checkers don't see the question, since it breaks the rules, but they see who
    /// answers.
    pub fn rival(&self, world: &mut World) {
        let epoch = self.last_epoch();
        if epoch == 0 {
            return;
        }
        let client = world.rng.nonce();
        for pid in world.pids() {
            let header = Header {
                cluster: CLUSTER,
                group: GROUP,
                pid,
                rnd: Round::base(epoch),
                flags: Flags::RANGE,
                swid: node_id(self.host.name),
                client,
                request: 1,
                ..Header::new(MsgType::Phase1a)
            };
            let at = self.host.endpoint(0);
            world.send(at, None, None, To::Acceptors, &header, &[]);
        }
    }

    /// Orders another leader, as an operator does.
    pub fn order_failover(&mut self, world: &mut World) {
        let active = self.store.0.borrow().state.in_force().map(|e| e.epoch);
        if let Some(epoch) = active {
            self.order(world, epoch, None, false);
        }
    }

    /// Orders that this leader leads, as an operator does.
    pub fn order_hand_over(&mut self, world: &mut World, to: NodeId) {
        let active = self.store.0.borrow().state.in_force().map(|e| e.epoch);
        if let Some(epoch) = active {
            self.order(world, epoch, Some(to), false);
        }
    }

    /// Orders another leader even if data is lost.
    pub fn accept_loss(&mut self, world: &mut World) {
        let epoch = self.store.0.borrow().state.last_epoch();
        self.order(world, epoch, None, true);
    }

    fn order(
        &mut self,
        world: &mut World,
        epoch: Epoch,
        to: Option<NodeId>,
        accept_data_loss: bool,
    ) {
        let order = Message::Failover {
            group: GROUP,
            epoch,
            to,
            forced: true,
            accept_data_loss,
        };
        self.control(world, self.host.at, &order);
    }

    /// Handles a deadline that may have passed.
    pub fn timer(&mut self, world: &mut World) {
        if !self.alarm.rings(world) {
            return;
        }
        let now = self.host.now(world);
        if self.rebuild.is_some() {
            return self.rebuild_timer(world);
        }
        let is_due = |controller: &&mut Controller<_>| controller.next_deadline() <= now;
        if let Some(controller) = self.role.as_mut().filter(is_due) {
            controller.tick(now, &mut self.out);
            self.post(world, None);
            self.step_members(world);
        }
        self.after(world);
    }

    /// Resets the alarm after time leapt.
    pub fn wake(&mut self, world: &mut World) {
        self.alarm.reset();
        self.after(world);
    }

    fn after(&mut self, world: &mut World) {
        if let Some(why) = self.role.as_ref().and_then(Controller::alarm) {
            world.note(|_| format!("stops    controller: {why}"));
            self.role = None;
        }
        if let Some(controller) = &self.role {
            let deadline = controller.next_deadline();
            let at = self.host.endpoint(0);
            self.alarm.arm(world, &self.host, at, Some(deadline));
        }
    }

    fn post(&mut self, world: &mut World, sender: Option<Endpoint>) {
        if let Some(given_up) = self.store.0.borrow_mut().given_up.take() {
            world.note(|_| format!("given up from {:?} to {:?}", given_up.from, given_up.to));
            world.executions.give_up(given_up.ranges());
        }
        let news = std::mem::take(&mut self.store.0.borrow_mut().news);
        news.iter()
            .for_each(|record| self.show_epoch(world, record));
        let leader = {
            let stored = self.store.0.borrow();
            let last = stored.state.epochs.last();
            last.and_then(|e| world.layout.of_id(e.leader.0))
        };
        let who = Sender::Proposer(self.host.process);
        world.post(
            self.host.endpoint(0),
            who,
            sender,
            leader,
            &self.out.packets,
        );
        self.out.packets.clear();
        for (to, message) in std::mem::take(&mut self.out.messages) {
            let to = match to {
                Peer::Node(id) => world.layout.of_id(id),
                Peer::Client(n) => world.layout.index(Name::Client(n as u8)),
            };
            if let Some(to) = to.filter(|to| *to != self.host.at) {
                let message = mutation::spoil_order(world, message);
                let early = mutation::ordered::programmed_early(world, to, &message);
                world.control(self.host.at, to, message);
                if let Some(early) = early {
                    world.control(self.host.at, to, early);
                }
            }
        }
    }
}
