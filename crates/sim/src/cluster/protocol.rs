// SPDX-License-Identifier: Apache-2.0
//! What a simulated cluster needs to know of the protocol by which it agrees, besides what replicas do.

use control::{EpochState, View};
use paxos::nopaxos::Session;
use replica::{Agreement, EpochView, NoPaxos, Paxos};

use super::Cluster;
use super::replica::ReplicaHost;
use super::world::World;
use crate::plan::Scenario;

/// A protocol.
pub trait Protocol: Agreement {
    /// What replicas are told of a view's epochs.
    fn epochs(view: &View) -> Vec<Self::EpochView>;

    /// How many instances a replica may be told of ahead of what it has executed.
    fn window(scenario: &Scenario) -> u64;

    /// Does what the controller's part is, where there is none.
    fn control(_: &mut Cluster<Self>) {}

    /// Whether the last epoch is active.
    fn in_force(cluster: &Cluster<Self>) -> bool;

    /// Goes on with what is stored of a partition's log, where replicas have logs on disk.
    fn recall(_: &mut ReplicaHost<Self>, _: &World, _pid: usize) -> Result<(), String> {
        Ok(())
    }

    /// Stores what has changed of it, before anything leaves.
    fn store(_: &mut ReplicaHost<Self>, _: &mut World, _pid: usize) {}

    /// Whether a replica's process may die.
    fn may_crash(_: &Cluster<Self>, _replica: usize) -> bool {
        true
    }
}

impl Protocol for Paxos {
    fn epochs(view: &View) -> Vec<EpochView> {
        let epoch = |record: &control::EpochRecord| EpochView {
            configuration: record.configuration(),
            active: record.state == EpochState::Active,
        };
        view.begun_epochs().map(epoch).collect()
    }

    fn window(scenario: &Scenario) -> u64 {
        scenario.window.into()
    }

    fn in_force(cluster: &Cluster<Paxos>) -> bool {
        cluster.controller.in_force()
    }
}

impl Protocol for NoPaxos {
    /// No view of the controller tells them yet.
    fn epochs(_: &View) -> Vec<Session> {
        Vec::new()
    }

    /// The log's slots.
    fn window(scenario: &Scenario) -> u64 {
        scenario.slots.into()
    }

    fn control(cluster: &mut Cluster<NoPaxos>) {
        cluster.control_sessions();
    }

    fn in_force(cluster: &Cluster<NoPaxos>) -> bool {
        cluster.sessions.in_force()
    }

    fn recall(host: &mut ReplicaHost<NoPaxos>, world: &World, pid: usize) -> Result<(), String> {
        host.recall(world, pid)
    }

    fn store(host: &mut ReplicaHost<NoPaxos>, world: &mut World, pid: usize) {
        host.store_log(world, pid);
    }

    fn may_crash(cluster: &Cluster<NoPaxos>, replica: usize) -> bool {
        cluster.world.scenario.durable || cluster.may_lose_memory(replica)
    }
}
