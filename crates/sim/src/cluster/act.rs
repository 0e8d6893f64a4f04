// SPDX-License-Identifier: Apache-2.0
//! Carries out the actions of a plan.

use control::{Envelope, EpochRecord, EpochState, Message, View};
use paxos::{Configuration, Instance, Member};

use super::acceptor::AcceptorHost;
use super::client::Wish;
use super::layout;
use super::layout::NodeIndex;
use super::leader::LeaderHost;
use super::learner::LearnerHost;
use super::mutation::Mutation;
use super::protocol::Protocol;
use super::replica::ReplicaHost;
use super::world::{CLUSTER, GROUP};
use super::{Cluster, Kind};
use crate::check::Read;
use crate::linearizability::Op;
use crate::plan::{Action, Direction, Name};

/// Marks the commands that are sent after a read, to tell them from all others.
const BEHIND_READS: u64 = 1 << 40;
/// No run has this many instances.
const IMPOSSIBLE: Instance = 1 << 20;

impl<G: Protocol> Cluster<G> {
    pub(super) fn act(&mut self, action: &Action) {
        match *action {
            Action::Submit {
                client,
                pid,
                key,
                op,
                padding,
            } => {
                let wish = Wish::Single {
                    pid,
                    key,
                    op,
                    padding,
                };
                self.wish(client, wish);
            }
            Action::Span {
                client,
                ref keys,
                span,
            } => {
                let partitions = self.world.scenario.partitions;
                if keys.iter().all(|(pid, _)| *pid < partitions) {
                    let keys = keys.clone();
                    self.wish(client, Wish::Spanning { keys, span });
                }
            }
            Action::Walk { client, replica } => self.walk(client, Name::Replica(replica)),
            Action::Read {
                client,
                replica,
                pid,
                key,
            } => self.read(client, Name::Replica(replica), (pid, key)),
            Action::Crash(name) => self.crash(name, false),
            Action::PowerOff(name) => self.crash(name, true),
            Action::Wipe(name) => self.wipe(name),
            Action::Restart(name) => self.restart(name),
            Action::Pause(name) => self.pause(name, true),
            Action::Resume(name) => self.pause(name, false),
            Action::Isolate(name, direction) => self.isolate(name, direction),
            Action::Cut(from, to) => {
                if let (Some(from), Some(to)) = (self.index(from), self.index(to)) {
                    self.world.network.block(from.into(), to.into(), true);
                }
            }
            Action::Hold(what) => self.world.catch(what, false),
            Action::Copy(what) => self.world.catch(what, true),
            Action::Release => self.world.release(),
            Action::Heal => self.world.network.heal(),
            Action::Network(rates) => self.world.network.rates = rates,
            Action::DiskFull(name) => self.set_full(name, true),
            Action::DiskFree(name) => self.set_full(name, false),
            Action::KillIn(name, calls) => {
                if let Some(Kind::Replica(n)) = self.index(name).map(|at| self.kind(at)) {
                    self.replicas[n].kill_in(calls.into());
                }
            }
            Action::Poison(name, pid, key) => self.poison(name, pid, key),
            Action::Hour => self.hour(),
            Action::Stop => self.stop_all(),
            Action::Start => self.start_all(),
            Action::Rival => self.controller.rival(&mut self.world),
            Action::Failover => self.controller.order_failover(&mut self.world),
            Action::HandOver(name) => {
                let to = layout::node_id(name);
                self.controller.order_hand_over(&mut self.world, to);
            }
            Action::Members(ref add, ref leave) => {
                self.controller.order_members(&mut self.world, add, leave);
            }
            Action::Lead(name) => self.controller.lead_first(layout::node_id(name)),
            Action::CopyDisk(name) => self.copy_disk(name),
            Action::PutBack(name) => self.put_back(name),
            Action::Lie(name) => {
                if let Some(Kind::Acceptor(n)) = self.index(name).map(|at| self.kind(at)) {
                    self.acceptors[n].disk.lie();
                }
            }
            Action::Rot(name) => self.rot(name),
            Action::ForgetLog(name) => {
                if let Some(Kind::Acceptor(n)) = self.index(name).map(|at| self.kind(at)) {
                    self.acceptors[n].forget_log(&mut self.world);
                }
            }
            Action::Exaggerate(name) => self.exaggerate(name),
            Action::Refuse(name) => self.forge_refusal(name),
            Action::Forget(name) => self.forget(name),
            Action::Claim(name, trim, end) => self.claim(name, (trim, end)),
            Action::AcceptLoss => self.controller.accept_loss(&mut self.world),
            Action::OldCluster => self.old_cluster(),
            Action::BackUp => self.controller.back_up(),
            Action::Restore if self.may_lose_store() => self.controller.restore(),
            Action::Restore => self.spare_store(),
            Action::Rebuild => self.rebuild(),
        }
    }

    fn walk(&mut self, client: u8, replica: Name) {
        let Some(Kind::Replica(n)) = self.index(replica).map(|at| self.kind(at)) else {
            return;
        };
        self.replicas[n].walk(&mut self.world);
        for pid in 0..self.world.scenario.partitions {
            let wish = Wish::Single {
                pid,
                key: 0,
                op: Op::Get,
                padding: 0,
            };
            self.wish(client, wish);
        }
    }

    fn poison(&mut self, name: Name, pid: u8, key: u8) {
        let replica = self.index(name).map(|at| self.kind(at));
        if let (Some(Kind::Replica(n)), true) = (replica, pid < self.world.scenario.partitions) {
            self.replicas[n].store(pid.into()).die_of(key.into());
        }
    }

    /// Begins a read. The client's next commands wait for its answer, as a front end makes them do.
    /// [B-ALONE]
    fn read(&mut self, client: u8, replica: Name, (pid, key): (u8, u8)) {
        let Some(Kind::Replica(n)) = self.index(replica).map(|at| self.kind(at)) else {
            return;
        };
        let several = self.world.mutated(Mutation::ReadsSeveral);
        let pids = (0..self.world.scenario.partitions).filter(|p| several || *p == pid);
        let keys = pids.map(|pid| (pid.into(), key.into())).collect();
        let number = self.world.reads.len();
        let behind = Op::Append(BEHIND_READS + number as u64);
        self.world.reads.push(Read {
            keys,
            call: self.world.queue.now(),
            answer: None,
            shown: Vec::new(),
            behind,
        });
        self.world.readers.push((client, pid, key));
        if self.world.mutated(Mutation::WritesBesideRead) {
            self.send_behind(number);
        }
        self.replicas[n].read_locally(&mut self.world, number);
    }

    /// Sends the commands that clients send after reads that are answered.
    pub(super) fn go_on_behind_reads(&mut self) {
        for number in std::mem::take(&mut self.world.answered_reads) {
            if !self.world.mutated(Mutation::WritesBesideRead) {
                self.send_behind(number);
            }
        }
    }

    fn send_behind(&mut self, number: usize) {
        let (client, pid, key) = self.world.readers[number];
        let op = self.world.reads[number].behind;
        let wish = Wish::Single {
            pid,
            key,
            op,
            padding: 0,
        };
        self.wish(client, wish);
    }

    fn wish(&mut self, client: u8, wish: Wish) {
        if let Some(client) = self.clients.get_mut(usize::from(client).wrapping_sub(1)) {
            client.wish(&mut self.world, wish);
        }
    }

    pub(super) fn index(&self, name: Name) -> Option<NodeIndex> {
        self.world.layout.index(name)
    }

    pub(super) fn crash(&mut self, name: Name, power: bool) {
        let Some(at) = self.index(name) else { return };
        self.host_mut(at).off = power;
        match self.kind(at) {
            Kind::Controller => self.controller.crash(),
            Kind::Leader(n) => self.leaders[n].crash(),
            Kind::Acceptor(n) => {
                if power && self.acceptors[n].disk.truth().is_some() {
                    self.lose_lies(n);
                } else if self.may_crash(n) {
                    self.acceptors[n].crash(&mut self.world, power);
                } else {
                    self.world
                        .note(|_| format!("spared   {name}: more than f would have forgotten"));
                }
            }
            Kind::Replica(n) if G::may_crash(self, n) => {
                self.replicas[n].crash(power);
                if power {
                    self.replicas[n].lose_logs(&mut self.world.rng);
                }
            }
            Kind::Replica(_) => self
                .world
                .note(|_| format!("spared   {name}: more than f would have forgotten")),
            Kind::Sequencer(n) => self.sequencers[n].crash(),
            Kind::Learner(n) => self.learners[n].crash(),
            Kind::Client(n) => self.clients[n].crash(),
        }
    }

    fn wipe(&mut self, name: Name) {
        let Some(at) = self.index(name) else { return };
        let spared = match self.kind(at) {
            Kind::Acceptor(n) if self.may_forget(n) => {
                self.acceptors[n].wipe(&mut self.world);
                false
            }
            Kind::Replica(n) if self.may_lose_disk(n) => {
                self.replicas[n].wipe(&mut self.world);
                self.check_held();
                false
            }
            _ => true,
        };
        if spared {
            self.world
                .note(|_| format!("spared   {name}: too much would be lost"));
        }
    }

    fn forget(&mut self, name: Name) {
        match self.index(name).map(|at| self.kind(at)) {
            Some(Kind::Controller) if self.may_lose_store() => return self.controller.forget(),
            Some(Kind::Controller) => return self.spare_store(),
            Some(Kind::Acceptor(n)) => self.acceptors[n].wipe(&mut self.world),
            Some(Kind::Replica(n)) if self.world.is_ordered() => {
                self.replicas[n].forget_logs(&mut self.world);
            }
            Some(Kind::Replica(n)) => self.replicas[n].wipe(&mut self.world),
            _ => return,
        }
        self.world.has_forgotten = true;
    }

    /// Makes the store anew. No disk is an old copy if no copies were made.
    pub(super) fn rebuild(&mut self) {
        let trusts_disks = !self.acceptors.iter().any(AcceptorHost::has_backup);
        self.controller.rebuild(&mut self.world, trusts_disks);
    }

    /// Returns whether a node with a disk has a record of the newest epoch, in the state that it
    /// has in the store.
    fn may_lose_store(&self) -> bool {
        let newest = self.controller.newest();
        let acceptors = self.acceptors.iter().map(|a| &a.host);
        let hosts = acceptors.chain(self.replicas.iter().map(|r| &r.host));
        let kept = hosts.filter_map(|host| host.kept.get(GROUP)?.epochs.last());
        let mut kept = kept.map(|e| Some((e.epoch, e.state)));
        newest.is_none() || kept.any(|kept| kept == newest)
    }

    fn spare_store(&mut self) {
        self.world
            .note(|_| "spared   controller: nobody has a record of the newest epoch".into());
    }

    fn copy_disk(&mut self, name: Name) {
        if let Some(Kind::Acceptor(n)) = self.index(name).map(|at| self.kind(at)) {
            self.acceptors[n].back_up();
        }
    }

    /// Puts an old copy of an acceptor's disk back, unless it shows everything that the controller
    /// knows, since such a copy can't be told from the newest state.
    fn put_back(&mut self, name: Name) {
        let Some(Kind::Acceptor(n)) = self.index(name).map(|at| self.kind(at)) else {
            return;
        };
        let copy = self.acceptors[n].backup(&self.world);
        let copy = copy.filter(|_| !self.acceptors[n].lies());
        let noticed = copy.is_some_and(|copy| self.controller.would_notice(&copy));
        if noticed && self.may_forget(n) {
            self.acceptors[n].restore(&mut self.world);
        } else {
            self.world
                .note(|_| format!("spared   {name}: too much would be lost, or nobody would see"));
        }
    }

    /// Lets the power fail on a disk that lied about syncs. As with an old copy, this isn't done if
    /// the controller couldn't notice it.
    fn lose_lies(&mut self, acceptor: usize) {
        let left = self.acceptors[acceptor].after_lies(&self.world);
        let shows_it = !self.acceptors[acceptor].lies();
        let noticed = left.is_none_or(|left| shows_it && self.controller.would_notice(&left));
        if noticed && self.may_forget(acceptor) {
            self.acceptors[acceptor].lose_lies(&mut self.world);
        } else {
            let name = self.acceptors[acceptor].host.name;
            self.world
                .note(|_| format!("spared   {name}: too much would be lost, or nobody would see"));
        }
    }

    /// Damages a memory so that it shows false values. If they can't be true, it counts as lost
    /// from then on.
    fn exaggerate(&mut self, name: Name) {
        if let Some(Kind::Acceptor(n)) = self.index(name).map(|at| self.kind(at)) {
            self.acceptors[n].exaggerate();
        }
    }

    fn claim(&mut self, name: Name, (trim, end): (Instance, Instance)) {
        match self.index(name).map(|at| self.kind(at)) {
            Some(Kind::Acceptor(n)) if end < IMPOSSIBLE || self.may_forget(n) => {
                self.acceptors[n].claim(trim, end);
            }
            Some(Kind::Replica(n)) if G::may_lie(self, n) => {
                self.replicas[n].claim(trim, end);
            }
            _ => {
                self.world
                    .note(|_| format!("spared   {name}: more than f would have forgotten"));
            }
        }
    }

    /// Damages a stored file. From then on the memory counts among those that may be lost.
    fn rot(&mut self, name: Name) {
        let Some(Kind::Acceptor(n)) = self.index(name).map(|at| self.kind(at)) else {
            return;
        };
        if self.world.scenario.durable && self.may_forget(n) {
            self.acceptors[n].rot(&mut self.world);
        } else {
            self.world
                .note(|_| format!("spared   {name}: more than f would have forgotten"));
        }
    }

    /// Sends the views of an earlier cluster with the same addresses: acceptor 1 alone, after four
    /// failovers.
    fn old_cluster(&mut self) {
        let member = |name, nonce| Member {
            node: layout::node_id(name),
            nonce,
        };
        let record = |epoch| {
            let configuration = Configuration {
                epoch,
                leader: member(Name::Leader(1), 1),
                acceptors: vec![member(Name::Acceptor(1), 1)],
                f: 0,
                replicas: vec![layout::node_id(Name::Replica(1))],
                g: 0,
            };
            EpochRecord::new(&configuration, EpochState::Active)
        };
        let view = View {
            version: 15,
            epochs: (1..=5).map(record).collect(),
            ..View::nothing(GROUP)
        };
        for to in 1..self.world.layout.names.len() {
            let envelope = Envelope {
                cluster: CLUSTER + 1,
                from: 0,
                to: layout::node_id(self.world.layout.names[to]),
                challenge: 0,
                message: Message::View(view.clone()),
            };
            self.world.deliver(0, to as NodeIndex, envelope);
        }
    }

    /// Returns whether a replica may lose its disk, since at most g may have failed at a time. One
    /// whose disk was replaced counts as failed until it is whole.
    fn may_lose_disk(&mut self, replica: usize) -> bool {
        self.make_whole();
        let others = self.replicas.iter().enumerate();
        let is_in = |r: &ReplicaHost<G>| self.world.members.is_in(r.host.at);
        let lost = others.filter(|(n, r)| *n != replica && r.is_lost() && is_in(r));
        lost.count() < self.g()
    }

    /// Notes which replicas have become whole again.
    pub(super) fn make_whole(&mut self) {
        if !self.replicas.iter().any(ReplicaHost::is_lost) {
            return;
        }
        let numbered = !self.world.mutated(Mutation::DisksNotNumbered);
        let epoch = self.controller.last_epoch();
        let counts = |a: &AcceptorHost, node, pid, disk| a.counts_disk(epoch, node, pid, disk);
        let members = &self.world.members;
        let acceptors = self.acceptors.iter();
        let acceptors: Vec<_> = acceptors.filter(|a| members.stays(a.host.at)).collect();
        let known =
            |node, pid, disk| !numbered || acceptors.iter().all(|a| counts(a, node, pid, disk));
        for replica in &mut self.replicas {
            replica.make_whole(&self.world, known);
        }
    }

    fn may_crash(&self, acceptor: usize) -> bool {
        self.world.scenario.durable || self.may_forget(acceptor)
    }

    /// Returns whether an acceptor may lose its memory, since the protocol survives the loss of
    /// only f.
    fn may_forget(&self, acceptor: usize) -> bool {
        // Where members change, the new ones may be lost before anybody notices that.
        let changes = self.world.members.can_change();
        let issued = self.controller.issued().filter(|_| changes);
        let mut needed = self.controller.needed().into_iter().chain(issued);
        needed.all(|configuration| {
            let left = self.acceptors.iter().enumerate();
            let left = left.filter(|(n, a)| *n != acceptor && !a.lies());
            let left = left.filter(|(_, a)| {
                let node = layout::node_id(a.host.name);
                let counts = |nonce| a.is_up() || !self.controller.distrusts(node, nonce);
                let memory = a.memory_nonce().filter(|nonce| counts(*nonce));
                let member = |m: &&paxos::Member| m.node == node && Some(m.nonce) == memory;
                configuration.acceptors.iter().any(|m| member(&m))
            });
            left.count() >= configuration.quorum()
        })
    }

    pub(super) fn restart(&mut self, name: Name) {
        let Some(at) = self.index(name) else { return };
        let kind = self.kind(at);
        let w = &mut self.world;
        match kind {
            Kind::Controller => self.controller.start(w),
            Kind::Leader(n) => self.leaders[n].start(w),
            Kind::Acceptor(n) => self.acceptors[n].start(w),
            Kind::Replica(n) => self.replicas[n].start(w),
            Kind::Learner(n) => self.learners[n].start(w),
            Kind::Sequencer(n) => self.sequencers[n].start(w),
            Kind::Client(n) => self.clients[n].start(w),
        }
    }

    fn pause(&mut self, name: Name, paused: bool) {
        if let Some(at) = self.index(name) {
            self.host_mut(at).paused = paused;
        }
    }

    fn isolate(&mut self, name: Name, direction: Direction) {
        let Some(at) = self.index(name) else { return };
        for other in 0..self.world.layout.names.len() {
            if direction != Direction::In {
                self.world.network.block(at.into(), other, true);
            }
            if direction != Direction::Out {
                self.world.network.block(other, at.into(), true);
            }
        }
    }

    pub(super) fn set_full(&mut self, name: Name, full: bool) {
        let Some(at) = self.index(name) else { return };
        match self.kind(at) {
            Kind::Controller => self.controller.set_full(full),
            Kind::Acceptor(n) => {
                let disk = &mut self.acceptors[n].disk;
                disk.set_capacity(if full { disk.used() + 64 } else { usize::MAX });
            }
            Kind::Replica(n) => self.replicas[n].set_full(full),
            Kind::Leader(_) | Kind::Learner(_) | Kind::Sequencer(_) | Kind::Client(_) => {}
        }
    }

    fn hour(&mut self) {
        self.world.sleep_an_hour();
        let w = &mut self.world;
        self.controller.wake(w);
        self.replicas.iter_mut().for_each(|r| r.wake(w));
        self.clients.iter_mut().for_each(|c| c.wake(w));
    }

    fn stop_all(&mut self) {
        self.controller.stop();
        self.leaders.iter_mut().for_each(LeaderHost::crash);
        self.learners.iter_mut().for_each(LearnerHost::crash);
        (0..self.acceptors.len()).for_each(|n| self.stop_acceptor(n));
        let w = &mut self.world;
        self.replicas.iter_mut().for_each(|r| r.stop(w));
    }

    pub(super) fn stop_acceptor(&mut self, acceptor: usize) {
        if !self.may_crash(acceptor) {
            // Without room for its dump this memory would be one too many to lose.
            self.acceptors[acceptor].disk.set_capacity(usize::MAX);
        }
        self.acceptors[acceptor].stop(&mut self.world);
    }
}
