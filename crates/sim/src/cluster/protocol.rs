// SPDX-License-Identifier: Apache-2.0
//! The parts of a simulated cluster that depend on its agreement protocol, besides the replicas.

use control::{EpochState, View};
use paxos::nopaxos::Session;
use replica::{Agreement, EpochView, NoPaxos, Paxos};

use super::Cluster;
use super::replica::ReplicaHost;
use super::world::World;
use crate::plan::Scenario;

/// An agreement protocol.
pub trait Protocol: Agreement {
    /// Returns the epochs of a view in the form that replicas are told.
    fn epochs(view: &View) -> Vec<Self::EpochView>;

    /// Returns how many instances ahead of its execution a replica may be told of.
    fn window(scenario: &Scenario) -> u64;

    /// Does the controller's work, if the group has no controller.
    fn control(_: &mut Cluster<Self>) {}

    /// Returns whether the last epoch is active.
    fn in_force(cluster: &Cluster<Self>) -> bool;

    /// Continues from the stored log of a partition, if replicas have logs on disk.
    fn recall(_: &mut ReplicaHost<Self>, _: &World, _pid: usize) -> Result<(), String> {
        Ok(())
    }

    /// Stores the changes of a partition's log, before anything leaves.
    fn store(_: &mut ReplicaHost<Self>, _: &mut World, _pid: usize) {}

    /// Returns whether a replica's process may die.
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
    /// Returns nothing, since sessions aren't told by views here.
    fn epochs(_: &View) -> Vec<Session> {
        Vec::new()
    }

    /// Returns the number of the log's slots.
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
