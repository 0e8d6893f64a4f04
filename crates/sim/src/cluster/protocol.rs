// SPDX-License-Identifier: Apache-2.0
//! The parts of a simulated cluster that depend on its agreement protocol, besides the replicas.

use control::{EpochState, Message, View};
use paxos::PartitionId;
use paxos::nopaxos::Session;
use replica::{Agreement, EpochView, NoPaxos, Paxos};

use super::Cluster;
use super::mutation;
use super::replica::ReplicaHost;
use super::world::World;
use crate::plan::Scenario;

/// An agreement protocol.
pub trait Protocol: Agreement {
    /// Returns the epochs of a view in the form that replicas are told in a partition.
    fn epochs(world: &World, view: &View, pid: PartitionId) -> Vec<Self::EpochView>;

    /// Returns how many instances ahead of its execution a replica may be told of.
    fn window(scenario: &Scenario) -> u64;

    /// Shows the checkers the replicas' logs, if replicas have logs.
    fn show_logs(_: &mut Cluster<Self>) {}

    /// Returns the message by which a replica asks for another epoch than the active one.
    fn new_epoch(host: &ReplicaHost<Self>, view: &View) -> Option<Message>;

    /// Returns the report about a partition that a replica repeats until the controller has taken
    /// it.
    fn report(_: &ReplicaHost<Self>, _: &World, _pid: usize) -> Option<Message> {
        None
    }

    /// Handles the controller's messages about a memory that was read from a disk.
    fn restarted(_: &mut ReplicaHost<Self>, _: &mut World, _: &Message) {}

    /// Continues from the stored log of a partition, if replicas have logs on disk.
    fn recall(_: &mut ReplicaHost<Self>, _: &World, _pid: usize) -> Result<(), String> {
        Ok(())
    }

    /// Stores the changes of a partition's log, before anything leaves.
    fn store(_: &mut ReplicaHost<Self>, _: &mut World, _pid: usize) {}

    /// Returns whether a replica's memory may be damaged, so that its PROBE_ACKs are false.
    fn may_lie(_: &Cluster<Self>, _replica: usize) -> bool {
        false
    }

    /// Returns whether a replica's process may die.
    fn may_crash(_: &Cluster<Self>, _replica: usize) -> bool {
        true
    }
}

impl Protocol for Paxos {
    fn epochs(_: &World, view: &View, _: PartitionId) -> Vec<EpochView> {
        let epoch = |record: &control::EpochRecord| EpochView {
            configuration: record.configuration(),
            active: record.state == EpochState::Active,
        };
        view.begun_epochs().map(epoch).collect()
    }

    fn window(scenario: &Scenario) -> u64 {
        scenario.window.into()
    }

    fn new_epoch(_: &ReplicaHost<Paxos>, view: &View) -> Option<Message> {
        let active = view.active()?;
        Some(Message::Failover {
            group: view.group,
            epoch: active.epoch,
            to: Some(active.leader.0),
            forced: true,
            accept_data_loss: false,
        })
    }
}

impl Protocol for NoPaxos {
    fn epochs(world: &World, view: &View, pid: PartitionId) -> Vec<Session> {
        let mut sessions = view.sessions(pid).unwrap_or_default();
        mutation::ordered::told_without_earlier(world, &mut sessions);
        sessions
    }

    /// Returns the number of the log's slots.
    fn window(scenario: &Scenario) -> u64 {
        scenario.slots.into()
    }

    fn show_logs(cluster: &mut Cluster<NoPaxos>) {
        cluster.show_logs();
    }

    fn new_epoch(host: &ReplicaHost<NoPaxos>, view: &View) -> Option<Message> {
        let (active, member) = (view.active()?, host.member());
        Some(Message::SessionWanted {
            group: view.group,
            node: member.node,
            nonce: member.nonce,
            epoch: active.epoch,
        })
    }

    fn report(host: &ReplicaHost<NoPaxos>, world: &World, pid: usize) -> Option<Message> {
        host.report(world, pid)
    }

    fn restarted(host: &mut ReplicaHost<NoPaxos>, world: &mut World, message: &Message) {
        host.restarted(world, message);
    }

    fn recall(host: &mut ReplicaHost<NoPaxos>, world: &World, pid: usize) -> Result<(), String> {
        host.recall(world, pid)
    }

    fn store(host: &mut ReplicaHost<NoPaxos>, world: &mut World, pid: usize) {
        host.store_log(world, pid);
    }

    fn may_lie(cluster: &Cluster<NoPaxos>, replica: usize) -> bool {
        cluster.may_lose_memory(replica)
    }

    fn may_crash(cluster: &Cluster<NoPaxos>, replica: usize) -> bool {
        cluster.world.scenario.durable || cluster.may_lose_memory(replica)
    }
}
