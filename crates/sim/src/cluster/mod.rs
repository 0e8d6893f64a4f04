// SPDX-License-Identifier: Apache-2.0
//! A whole cluster in one process and one thread: real roles on simulated machines.

mod acceptor;
mod act;
mod client;
mod clock;
mod controller;
mod end;
mod held;
mod host;
mod inconsistent_stamps;
mod layout;
mod leader;
mod learner;
mod member_changes;
mod members;
mod messages;
mod mistakes;
pub mod mutation;
mod protocol;
mod replica;
mod sequencer;
mod sessions;
mod trace;
mod transfers;
mod world;

pub use world::{CLUSTER, GROUP, MAX_VALUE};

use control::{Envelope, Message};
use paxos::{Instance, Packet, Time};

use crate::check::Violation;
use crate::observe::Observer;
use crate::plan::{Action, Name, Plan};
use crate::queue::MILLISECOND;
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
use world::{Event, World};

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
        let leaders = 1..=scenario.leaders + scenario.spares.leaders;
        let leaders = leaders.map(|n| LeaderHost::new(Host::new(w, Name::Leader(n))));
        let leaders = leaders.collect();
        let acceptors = 1..=scenario.acceptors + scenario.spares.acceptors;
        let acceptors = acceptors.map(|n| AcceptorHost::new(Host::new(w, Name::Acceptor(n))));
        let acceptors = acceptors.collect();
        let mut replicas = Vec::new();
        for n in 1..=scenario.replicas + scenario.spares.replicas {
            let host = Host::new(w, Name::Replica(n));
            replicas.push(ReplicaHost::new(w, host));
        }
        let learners = 1..=scenario.learners;
        let learners = learners.map(|n| LearnerHost::new(Host::new(w, Name::Learner(n))));
        let learners = learners.collect();
        let sequencers = 1..=scenario.sequencers;
        let sequencers = sequencers.map(|n| SequencerHost::new(Host::new(w, Name::Sequencer(n))));
        let sequencers = sequencers.collect();
        let mut clients = Vec::new();
        for n in 1..=scenario.clients {
            let host = Host::new(w, Name::Client(n));
            clients.push(ClientHost::new(w, host));
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
            if self.world.trimmed != self.held || self.world.members.take_news() {
                self.check_held();
            }
            if !self.is_sound() {
                return;
            }
        }
        self.world.queue.advance(end);
    }

    fn control(&mut self, to: NodeIndex, from: NodeIndex, envelope: Envelope) {
        if self.host(to).paused || !self.world.members.knows(to, from) {
            return;
        }
        let Some(message) = self.world.open(from, to, envelope) else {
            return;
        };
        if let Message::Members(message) = &message {
            return self.members_message(to, from, message);
        }
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
            Event::Control { to, from, envelope } => self.control(to, from, *envelope),
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
}
