// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos-lab bench`: measurements.

mod catch_up;
mod chain;
mod e2e;
mod failover;
mod lines;
mod local_store;
mod loss;
mod memory;
mod peer;
mod retwis;
mod roles;
mod scale;
mod seconds;
mod shard_replica;
mod stub_followers;
mod unreplicated;

use clap::Subcommand;
use local_cluster::Error;

/// Commands of `wirepaxos-lab bench`.
#[derive(Subcommand)]
pub enum Command {
    /// Measure clients, leader, acceptors and replicas as processes, end to end
    E2e(e2e::Options),
    /// Measure a copy of a replica's state, and a replica that catches up, under load
    CatchUp(catch_up::Options),
    /// Measure clients and whole clusters when every link loses packets; needs root
    Loss(loss::Options),
    /// Measure clients and clusters of more and more replicas
    Scale(scale::Options),
    /// Measure what clients of NOPaxos see when a part fails or changes
    Failover(failover::Options),
    /// Find the largest throughput of transactions that end within a time
    Retwis(retwis::Options),
    /// Show what each role of NOPaxos keeps in memory for a slot and for a partition
    Memory(memory::Options),
    /// Measure one role at a time, in a loop
    Roles(roles::Options),
    /// Measure leader, acceptors and learners in the kernel, at links, driven by the kernel
    Chain(chain::Options),
    /// Run the server of `e2e --baseline unreplicated`
    #[command(hide = true)]
    UnreplicatedServer(unreplicated::Options),
    /// Run a process of `e2e --protocol vr` and the like
    #[command(hide = true)]
    Peer(peer::Options),
    /// Run a replica of `retwis`
    #[command(hide = true)]
    ShardReplica(shard_replica::Options),
    /// Run the process of `--followers stub`
    #[command(hide = true)]
    StubFollowers(stub_followers::Options),
    /// Run a process of `e2e --baseline local`
    #[command(hide = true)]
    LocalStore(local_store::Options),
}

/// Runs one measurement.
pub fn run(command: &Command) -> Result<(), Error> {
    match command {
        Command::E2e(options) => e2e::run(options),
        Command::CatchUp(options) => catch_up::run(options),
        Command::Loss(options) => loss::run(options),
        Command::Scale(options) => scale::run(options),
        Command::Failover(options) => failover::run(options),
        Command::Retwis(options) => retwis::run(options),
        Command::Memory(options) => memory::run(options),
        Command::Roles(options) => roles::run(options),
        Command::Chain(options) => chain::run(options),
        Command::UnreplicatedServer(options) => unreplicated::run(options),
        Command::Peer(options) => peer::run(options),
        Command::ShardReplica(options) => shard_replica::run(options),
        Command::StubFollowers(options) => stub_followers::run(options),
        Command::LocalStore(options) => local_store::run(options),
    }
}
