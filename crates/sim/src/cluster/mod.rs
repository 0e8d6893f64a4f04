// SPDX-License-Identifier: Apache-2.0
//! A whole cluster in one process and one thread: real roles on simulated machines.

mod acceptor;
mod act;
mod client;
mod clock;
mod controller;
mod end;
mod host;
mod inconsistent_stamps;
mod layout;
mod leader;
mod learner;
mod messages;
mod mistakes;
pub mod mutation;
mod protocol;
mod replica;
mod sequencer;
mod sessions;
mod trace;
mod world;

pub use world::{CLUSTER, GROUP, MAX_VALUE};

use control::LEAP;
use paxos::{Instance, Packet, Time};

use crate::check::{Invariant, Violation};
use crate::observe::Observer;
use crate::plan::{Action, Name, Plan};
use crate::queue::{MICROSECOND, MILLISECOND};
use acceptor::AcceptorHost;
use client::ClientHost;
use controller::ControllerHost;
use host::Host;
use layout::{Endpoint, NodeIndex};
use leader::LeaderHost;
use learner::LearnerHost;
use mutation::Mutation;
use protocol::Protocol;
use replica::ReplicaHost;
use sequencer::SequencerHost;
use trace::describe;
use world::{Event, Transfer, World};

/// A cluster and its world.
pub struct Cluster<G> {
    world: World,
    controller: ControllerHost,
    leaders: Vec<LeaderHost>,
    acceptors: Vec<AcceptorHost>,
    replicas: Vec<ReplicaHost<G>>,
    learners: Vec<LearnerHost>,
    sequencers: Vec<SequencerHost>,
    clients: Vec<ClientHost>,
    actions: Vec<(Time, Action)>,
    /// For each partition the trim point that [`Cluster::check_held`] has last checked.
    held: Vec<Instance>,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The number of events handled: packets, control messages, timers, syncs.
    pub steps: u64,
    /// The length of the run in the cluster's time.
    pub virtual_time: Time,
    /// The violations that were found.
    pub violations: Vec<Violation>,
    /// It is unknown whether what clients saw is linearizable, since the search was given up.
    pub undecided: bool,
    /// The number of instances decided.
    pub decided: u64,
    /// The number of commands acknowledged to clients.
    pub commands: u64,
    /// The longest time that a command waited for its answer.
    pub longest_wait: Time,
    /// The number of epochs in the store at the end.
    pub epochs: u32,
    /// With NOPaxos, the number of views that began, in all partitions.
    pub views: u64,
    /// With NOPaxos, the number of crowds that came and went. [N-CROWD]
    pub crowds: u64,
    /// The number of times that a replica stopped with an alarm.
    pub alarms: u64,
    /// One line for each event, if wanted.
    pub trace: Vec<String>,
}

enum Kind {
    Controller,
    Leader(usize),
    Acceptor(usize),
    Replica(usize),
    Learner(usize),
    Sequencer(usize),
    Client(usize),
}

impl<G: Protocol> Cluster<G> {
    /// Starts all nodes of a plan's scenario.
    pub fn new(plan: &Plan, mutation: Option<Mutation>, trace: bool) -> Cluster<G> {
        Cluster::observed(plan, mutation, trace, None)
    }

    /// Starts all nodes like [`new`](Self::new), with an observer of the events at each node.
    pub fn observed(
        plan: &Plan,
        mutation: Option<Mutation>,
        trace: bool,
        observer: Option<Box<dyn Observer>>,
    ) -> Cluster<G> {
        let scenario = &plan.scenario;
        let mut world = World::new(scenario, mutation, trace);
        world.observer = observer;
        if plan.is_calm() {
            world.promises.expect_calm();
        }
        let w = &mut world;
        let controller = ControllerHost::new(Host::new(w, Name::Controller));
        let leaders =
            (1..=scenario.leaders).map(|n| LeaderHost::new(Host::new(w, Name::Leader(n))));
        let leaders = leaders.collect();
        let acceptors =
            (1..=scenario.acceptors).map(|n| AcceptorHost::new(Host::new(w, Name::Acceptor(n))));
        let acceptors = acceptors.collect();
        let mut replicas = Vec::new();
        for n in 1..=scenario.replicas {
            let host = Host::new(w, Name::Replica(n));
            replicas.push(ReplicaHost::new(w, host));
        }
        let learners = (1..=scenario.learners)
            .map(|n| LearnerHost::new(Host::new(&mut world, Name::Learner(n))));
        let learners = learners.collect();
        let sequencers = (1..=scenario.sequencers)
            .map(|n| SequencerHost::new(Host::new(&mut world, Name::Sequencer(n))));
        let sequencers = sequencers.collect();
        let mut clients = Vec::new();
        for n in 1..=scenario.clients {
            let host = Host::new(&mut world, Name::Client(n));
            clients.push(ClientHost::new(&world, host));
        }
        for (number, (at, _)) in plan.actions.iter().enumerate() {
            world.queue.at(*at, Event::Action(number as u32));
        }
        let mut cluster = Cluster {
            world,
            controller,
            leaders,
            acceptors,
            replicas,
            learners,
            sequencers,
            clients,
            actions: plan.actions.clone(),
            held: vec![0; scenario.partitions.into()],
        };
        cluster.start_all();
        if scenario.sequencers > 0 {
            cluster.world.queue.at(0, Event::Look);
        }
        for client in &mut cluster.clients {
            client.start(&mut cluster.world);
        }
        cluster
    }

    fn start_all(&mut self) {
        let w = &mut self.world;
        self.controller.start(w);
        self.leaders.iter_mut().for_each(|l| l.start(w));
        self.acceptors.iter_mut().for_each(|a| a.start(w));
        self.replicas.iter_mut().for_each(|r| r.start(w));
        self.learners.iter_mut().for_each(|l| l.start(w));
        self.sequencers.iter_mut().for_each(|s| s.start(w));
    }

    fn kind(&self, node: NodeIndex) -> Kind {
        let mut at = usize::from(node);
        if at == 0 {
            return Kind::Controller;
        }
        at -= 1;
        if at < self.leaders.len() {
            return Kind::Leader(at);
        }
        at -= self.leaders.len();
        if at < self.acceptors.len() {
            return Kind::Acceptor(at);
        }
        at -= self.acceptors.len();
        if at < self.replicas.len() {
            return Kind::Replica(at);
        }
        at -= self.replicas.len();
        if at < self.learners.len() {
            return Kind::Learner(at);
        }
        at -= self.learners.len();
        if at < self.sequencers.len() {
            return Kind::Sequencer(at);
        }
        Kind::Client(at - self.sequencers.len())
    }

    // ---- Running

    /// Carries out the plan, ends all faults, and waits until everything is done.
    pub fn run(mut self) -> Outcome {
        let end = self.actions.last().map_or(0, |(at, _)| *at);
        self.run_until(end);
        if self.is_sound() {
            self.end_faults();
            self.settle();
            self.world.beginnings.end(&mut self.world.findings);
        }
        if self.is_sound() {
            self.check_history();
        }
        let answered = self.world.history.iter();
        let waits = answered.filter_map(|op| Some(op.answer?.0 - op.call));
        let longest_wait = waits.max().unwrap_or(0);
        let (views, crowds) = self.world.ordered.views_and_crowds();
        let last = |c: &ControllerHost| c.needed().last().map_or(0, |c| c.epoch);
        Outcome {
            steps: self.world.steps,
            virtual_time: self.world.now(),
            decided: self.world.votes.decided(),
            commands: self.world.executions.acknowledged_count(),
            longest_wait,
            epochs: last(&self.controller),
            views,
            crowds,
            alarms: self.world.alarms,
            undecided: self.world.findings.undecided,
            violations: self.world.findings.violations,
            trace: self.world.trace.unwrap_or_default(),
        }
    }

    fn is_sound(&self) -> bool {
        self.world.findings.violations.is_empty()
    }

    fn run_until(&mut self, end: Time) {
        while let Some(event) = self.world.queue.next_until(end) {
            self.world.steps += 1;
            self.world.findings.now = self.world.queue.now();
            self.handle(event);
            self.go_on_behind_reads();
            self.note_epochs();
            self.begin_transfers();
            if self.world.steps % 64 == 0 {
                self.make_whole();
            }
            if self.world.trimmed != self.held {
                self.check_held();
            }
            if !self.is_sound() {
                return;
            }
        }
        self.world.queue.advance(end);
    }

    fn note_epochs(&mut self) {
        for epoch in std::mem::take(&mut self.world.issued) {
            for replica in &self.replicas {
                replica.note_epoch(&mut self.world, epoch);
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let w = &mut self.world;
        match event {
            Event::Packet {
                to,
                from,
                buffer,
                damaged,
            } => {
                let bytes = w.lend(buffer);
                self.packet(to, from, &bytes, damaged);
                self.world.give_back(buffer, bytes);
            }
            Event::Refused(by) => self.refused(by),
            Event::Control { to, from, envelope } => {
                if self.host(to).paused {
                    return;
                }
                let Some(message) = self.world.open(from, to, *envelope) else {
                    return;
                };
                let (kind, w) = (self.kind(to), &mut self.world);
                match kind {
                    Kind::Controller => self.controller.control(w, from, &message),
                    Kind::Leader(n) => self.leaders[n].control(w, from, &message),
                    Kind::Acceptor(n) => self.acceptors[n].control(w, from, &message),
                    Kind::Replica(n) => self.replicas[n].control(w, from, &message),
                    Kind::Learner(n) => self.learners[n].control(w, &message),
                    Kind::Sequencer(n) => self.sequencers[n].control(w, from, &message),
                    Kind::Client(n) => self.clients[n].control(w, &message),
                }
            }
            Event::Timer { at } => self.timer(at),
            Event::Flush { at, process } => {
                if !self.reaches(at, process, Event::Flush { at, process }) {
                    return;
                }
                let kind = self.kind(at.node);
                let w = &mut self.world;
                match kind {
                    Kind::Acceptor(n) => self.acceptors[n].flush(w),
                    Kind::Replica(n) => self.replicas[n].flush(w, at.pid),
                    _ => {}
                }
            }
            Event::Mail { at, process } => {
                if !self.reaches(at, process, Event::Mail { at, process }) {
                    return;
                }
                if let Kind::Replica(n) = self.kind(at.node) {
                    self.replicas[n].take_mail(&mut self.world, at.pid);
                }
            }
            Event::Checkpoint { at, process } => {
                if !self.reaches(at, process, Event::Checkpoint { at, process }) {
                    return;
                }
                if let Kind::Replica(n) = self.kind(at.node) {
                    self.replicas[n].checkpoint(&mut self.world, at.pid);
                }
            }
            Event::Open(transfer) => self.open_copy(transfer),
            Event::Transfer(transfer) => self.transfer(*transfer),
            Event::Install { at, process } => {
                let endpoint = Endpoint { node: at, pid: 0 };
                if !self.reaches(endpoint, process, Event::Install { at, process }) {
                    return;
                }
                if let Kind::Replica(n) = self.kind(at) {
                    self.replicas[n].install(&mut self.world);
                }
            }
            Event::Again { at, process } => {
                if let (Kind::Replica(n), true) = (self.kind(at), self.host(at).process == process)
                {
                    self.replicas[n].start(&mut self.world);
                }
            }
            Event::Log(transfer) => self.log_comes(*transfer),
            Event::Look => G::show_logs(self),
            Event::Action(number) => {
                let action = self.actions[number as usize].1.clone();
                w.note(|_| format!("action   {action}"));
                self.act(&action);
            }
        }
    }

    fn g(&self) -> usize {
        (self.replicas.len() - 1) / 2
    }

    /// Checks invariant 6 at the disks: what is trimmed is on g+1 of them, not counting those that
    /// broke.
    fn check_held(&mut self) {
        for (pid, &trim) in self.world.trimmed.iter().enumerate() {
            let holds = |r: &&ReplicaHost<G>| r.holds(pid) >= trim;
            let holders = self.replicas.iter().filter(holds).count();
            let lost = self.replicas.iter().filter(|r| r.is_lost() && !holds(r));
            // When an operator accepts a data loss, instances leap, whatever the disks hold.
            let furthest = self.replicas.iter().map(|r| r.holds(pid)).max();
            let leapt = trim.saturating_sub(furthest.unwrap_or(0)) >= LEAP / 2
                || trim <= self.world.executions.given_up_end(pid as u16);
            if holders + lost.count() <= self.g() && !leapt {
                self.world.findings.report(Invariant::Trim, || {
                    format!(
                        "partition {pid} is trimmed to {trim}, and {holders} replicas hold that"
                    )
                });
            }
        }
        self.held.clone_from(&self.world.trimmed);
    }

    /// Returns whether the process that an event is for still runs and isn't paused.
    fn reaches(&mut self, at: Endpoint, process: u32, event: Event) -> bool {
        self.host(at.node).process == process && !self.paused(at, event)
    }

    /// Delays an event of a paused process until the process continues.
    fn paused(&mut self, at: Endpoint, event: Event) -> bool {
        let paused = self.host(at.node).paused;
        if paused {
            self.world.queue.after(MILLISECOND, event);
        }
        paused
    }

    fn packet(&mut self, to: Endpoint, from: Endpoint, bytes: &[u8], damaged: bool) {
        if self.host(to.node).paused {
            return;
        }
        let Ok(packet) = Packet::parse(bytes) else {
            debug_assert!(damaged, "a node sent what can't be read");
            return;
        };
        let kind = self.kind(to.node);
        let rewritten = self.rewrite(&kind, from, &packet);
        let packet = match &rewritten {
            Some((header, value)) => Packet {
                header: *header,
                tag: None,
                value,
            },
            None => packet,
        };
        if self.world.trace.is_some() {
            let text = describe(&packet);
            let damage = if damaged { "damaged " } else { "" };
            self.world.note(|w| {
                format!(
                    "packet   {} -> {}: {damage}{text}",
                    w.name(from),
                    w.name(to)
                )
            });
        }
        if matches!(kind, Kind::Replica(_)) && self.answers_at_once(to, from, &packet) {
            return;
        }
        if matches!(kind, Kind::Leader(n) if !self.leaders[n].is_up())
            || matches!(kind, Kind::Sequencer(n) if !self.sequencers[n].is_up())
        {
            return self.refuse(to, &packet);
        }
        let w = &mut self.world;
        let verdict = match kind {
            Kind::Controller => {
                let verdict = self.controller.packet(w, from, &packet);
                self.answer_again(to, from, &packet);
                verdict
            }
            Kind::Leader(n) => self.leaders[n].packet(w, from, &packet, damaged),
            Kind::Acceptor(n) => self.acceptors[n].packet(w, from, &packet, bytes, damaged),
            Kind::Replica(n) => {
                let verdict = self.replicas[n].packet(w, to, from, &packet, damaged);
                self.answer_again(to, from, &packet);
                self.tell_again(to, from, &packet);
                verdict
            }
            Kind::Learner(n) => self.learners[n].packet(w, from, &packet, damaged),
            Kind::Sequencer(n) => self.sequencers[n].packet(w, from, &packet, damaged),
            Kind::Client(n) => self.clients[n].packet(w, &packet),
        };
        if self.world.trace.is_some() {
            self.world.add_to_last_line(verdict);
        }
    }

    fn timer(&mut self, at: Endpoint) {
        if self.paused(at, Event::Timer { at }) {
            return;
        }
        let kind = self.kind(at.node);
        let w = &mut self.world;
        match kind {
            Kind::Controller => self.controller.timer(w),
            Kind::Replica(n) => self.replicas[n].timer(w, at.pid),
            Kind::Client(n) => self.clients[n].timer(w),
            Kind::Leader(_) | Kind::Acceptor(_) | Kind::Learner(_) | Kind::Sequencer(_) => {}
        }
    }

    fn host(&self, node: NodeIndex) -> &Host {
        match self.kind(node) {
            Kind::Controller => &self.controller.host,
            Kind::Leader(n) => &self.leaders[n].host,
            Kind::Acceptor(n) => &self.acceptors[n].host,
            Kind::Replica(n) => &self.replicas[n].host,
            Kind::Learner(n) => &self.learners[n].host,
            Kind::Sequencer(n) => &self.sequencers[n].host,
            Kind::Client(n) => &self.clients[n].host,
        }
    }

    fn host_mut(&mut self, node: NodeIndex) -> &mut Host {
        match self.kind(node) {
            Kind::Controller => &mut self.controller.host,
            Kind::Leader(n) => &mut self.leaders[n].host,
            Kind::Acceptor(n) => &mut self.acceptors[n].host,
            Kind::Replica(n) => &mut self.replicas[n].host,
            Kind::Learner(n) => &mut self.learners[n].host,
            Kind::Sequencer(n) => &mut self.sequencers[n].host,
            Kind::Client(n) => &mut self.clients[n].host,
        }
    }

    // ---- Transfers of checkpoints

    fn begin_transfers(&mut self) {
        while let Some(to) = self.world.fetches.pop() {
            let Kind::Replica(fetcher) = self.kind(to.0) else {
                continue;
            };
            let others: Vec<usize> = (0..self.replicas.len())
                .filter(|&n| n != fetcher && self.can_talk(to.0, self.replicas[n].host.at))
                .filter(|&n| self.replicas[n].is_up() && !self.replicas[n].host.paused)
                .filter(|&n| !self.replicas[n].is_installing())
                .collect();
            if others.is_empty() {
                continue;
            }
            let from = *self.world.rng.pick(&others);
            self.replicas[fetcher].fetching(true);
            self.replicas[from].hold(to.0);
            let from = (
                self.replicas[from].host.at,
                self.replicas[from].host.process,
            );
            self.open_copy(Box::new(Transfer {
                to,
                from,
                copies: Vec::new(),
            }));
        }
    }

    /// Opens a source's copies one after the other; the source continues in between.
    fn open_copy(&mut self, mut transfer: Box<Transfer>) {
        let ((to, _), (from, process)) = (transfer.to, transfer.from);
        let (Kind::Replica(fetcher), Kind::Replica(n)) = (self.kind(to), self.kind(from)) else {
            return;
        };
        let w = &mut self.world;
        let source = &mut self.replicas[n];
        let copy = match source.host.process == process {
            true => source.snapshot(w, to, transfer.copies.len()),
            false => None,
        };
        let Some(copy) = copy else {
            return self.replicas[fetcher].fetching(false);
        };
        transfer.copies.push(copy);
        let all = transfer.copies.len() == w.pids().count();
        if all {
            source.release();
        }
        let (delay, event) = match all {
            true => {
                let delay = w.rng.between(200 * MICROSECOND, 20 * MILLISECOND);
                (delay, Event::Transfer(transfer))
            }
            false => (w.rng.below(2 * MILLISECOND), Event::Open(transfer)),
        };
        w.queue.after(delay, event);
    }

    fn transfer(&mut self, transfer: Transfer) {
        let (to, process) = transfer.to;
        if self.host(to).process != process {
            return;
        }
        if let Kind::Replica(n) = self.kind(to) {
            let w = &mut self.world;
            let whole = !w.rng.chance(100_000);
            self.replicas[n].take(w, transfer, whole);
        }
    }

    /// Brings the values that the source has executed after its copies.
    fn log_comes(&mut self, transfer: Transfer) {
        let ((to, asked), (from, answers)) = (transfer.to, transfer.from);
        let (Kind::Replica(fetcher), Kind::Replica(source)) = (self.kind(to), self.kind(from))
        else {
            return;
        };
        let lasts = self.host(to).process == asked && self.host(from).process == answers;
        let logs = self.replicas[source].take_logs(to);
        if lasts && self.can_talk(to, from) {
            self.replicas[fetcher].replay(&mut self.world, &logs);
        }
    }

    /// Returns whether two nodes can talk over a connection, which needs both directions.
    fn can_talk(&self, a: NodeIndex, b: NodeIndex) -> bool {
        let network = &self.world.network;
        !network.is_blocked(a.into(), b.into()) && !network.is_blocked(b.into(), a.into())
    }
}
