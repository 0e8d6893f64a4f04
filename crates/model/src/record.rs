// SPDX-License-Identifier: Apache-2.0
//! Records runs of the simulator.

use std::cell::RefCell;
use std::rc::Rc;

use paxos::NodeId;
use paxos::trace::{Event, Role, Settings};
use sim::cluster::mutation::Mutation;
use sim::cluster::{CLUSTER, GROUP, MAX_VALUE};
use sim::draw::{self, Limits};
use sim::observe::{Observed, Observer};
use sim::plan::{Action, Plan};
use sim::run::{Options, run_observed};

use crate::trace::Trace;

#[derive(Clone, Default)]
struct Recorder(Rc<RefCell<Vec<Event>>>);

impl Observer for Recorder {
    fn observe(&mut self, node: NodeId, event: Observed<'_>) {
        if node != 0 {
            self.0.borrow_mut().push(recorded(node, event));
        }
    }
}

fn recorded(node: NodeId, event: Observed<'_>) -> Event {
    match event {
        Observed::AcceptorStarted { nonce, start } => Event::Start {
            node,
            role: Role::Acceptor,
            nonce,
            start: start.number(),
        },
        Observed::LeaderStarted { nonce } => Event::Start {
            node,
            role: Role::Leader,
            nonce,
            start: 0,
        },
        Observed::SequencerStarted { nonce } => Event::Start {
            node,
            role: Role::Sequencer,
            nonce,
            start: 0,
        },
        Observed::ReplicaStarted { nonce } => Event::Start {
            node,
            role: Role::Replica,
            nonce,
            start: 0,
        },
        Observed::Session(epoch, lead) => Event::Session(epoch, lead),
        Observed::Issued(configuration) => Event::Epoch(configuration.clone()),
        Observed::Writing(epoch) => Event::Writing(epoch),
        Observed::Active(epoch) => Event::Active(epoch),
        Observed::Enabled(enable) => Event::Enable(node, enable.clone()),
        Observed::Resumed(start) => Event::Resume(node, start.number()),
        Observed::Programmed(program) => Event::Program(node, program.clone()),
        Observed::Retired(epoch) => Event::Retire(node, epoch),
        Observed::Received(packet) => Event::Recv(node, packet.header.datagram(packet.value)),
        Observed::Sent { header, value } => Event::Send(node, header.datagram(value)),
    }
}

/// Runs a seed and records it.
pub fn seed(seed: u64) -> Trace {
    plan(&draw::plan(seed, &Limits::default()))
}

/// Runs a seed of a group that agrees by NOPaxos, and records it. It has no accepted losses, which
/// the specification doesn't know there.
pub fn ordered(seed: u64) -> Trace {
    let limits = Limits {
        ordered: true,
        ..Limits::default()
    };
    let mut drawn = draw::plan(seed, &limits);
    let is_loss = |action: &Action| matches!(action, Action::Forget(_) | Action::AcceptLoss);
    drawn.actions.retain(|(_, action)| !is_loss(action));
    plan(&drawn)
}

/// Runs a plan and records it.
pub fn plan(plan: &Plan) -> Trace {
    with(plan, &Options::default())
}

/// Runs a plan with a deliberate mistake and records it.
pub fn mistaken(plan: &Plan, mutation: Mutation) -> Trace {
    let options = Options {
        mutation: Some(mutation),
        ..Options::default()
    };
    with(plan, &options)
}

fn with(plan: &Plan, options: &Options) -> Trace {
    let recorder = Recorder::default();
    let outcome = run_observed(plan, options, Box::new(recorder.clone()));
    debug_assert!(outcome.violations.is_empty(), "{:?}", outcome.violations);
    let scenario = &plan.scenario;
    Trace {
        settings: Settings {
            cluster: CLUSTER,
            group: GROUP,
            partitions: scenario.partitions.into(),
            max_value: MAX_VALUE,
            slots: scenario.slots.into(),
        },
        events: recorder.0.take(),
    }
}
