// SPDX-License-Identifier: Apache-2.0
//! The commands of `wirepaxos`, one module each.

#[macro_use]
extern crate local_cluster;

mod accept_server;
mod arguments;
#[cfg(feature = "laboratory")]
mod bench;
#[cfg(feature = "laboratory")]
mod check_trace;
mod controller;
mod copy;
mod demo;
mod events;
mod examples;
mod failover;
mod forget_log;
mod init;
mod keys;
mod kv;
mod lab;
#[cfg_attr(not(feature = "laboratory"), path = "laboratory_left_out.rs")]
mod laboratory;
mod manual;
mod members;
mod new_cluster;
mod readiness;
mod recover;
mod run_node;
mod silence;
#[cfg(feature = "laboratory")]
mod simulate;
mod skip;
mod status;
mod stop;
mod switch;
#[cfg(feature = "laboratory")]
mod torture;
mod up;
mod utc;

#[cfg(not(feature = "laboratory"))]
use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use local_cluster::Error;

/// Consensus as a network service.
#[derive(Parser)]
#[command(
    name = "wirepaxos",
    version,
    about = "Consensus as a network service",
    propagate_version = true
)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a whole cluster on this machine, durable in a directory, until Ctrl-C
    Up(up::Options),
    /// Write the files of a cluster of several machines
    Init(init::Options),
    /// Show a replicated database that survives a dead leader, acceptor and replica
    Demo(demo::Options),
    /// Run one node of a cluster
    Node(run_node::Options),
    /// Show every node of a cluster
    Status(status::Options),
    /// Show what happened to a cluster, when, why and by whose order
    Events(events::Options),
    /// Show whose memories a group counts on, and what of the cluster file isn't in force yet
    Members(members::Options),
    /// Make or use a replica's state as files
    #[command(subcommand)]
    Copy(copy::Command),
    /// Change the leader by hand
    Failover(failover::Options),
    /// Repair the controller's store
    #[command(subcommand)]
    Controller(controller::Command),
    /// Give up the damaged log of a durable acceptor or replica, which then joins as a new member
    ForgetLog(forget_log::Options),
    /// Find out what an instance decided, or close it with a no-op
    Recover(recover::Options),
    /// Pass a command of which replicas' programs die, while one of the replicas is gone
    Skip(skip::Options),
    /// Let a replica execute with a Redis server that isn't its group's
    AcceptServer(accept_server::Options),
    /// Make and replace the cluster's secret, and keys of clients
    #[command(subcommand)]
    Keys(keys::Command),
    /// Send one Redis command to the replicated store
    Kv(kv::Options),
    /// Stop a cluster, or one node, in good order
    Stop(stop::Options),
    /// Make a machine with several interfaces a switch that calls roles
    #[command(subcommand)]
    Switch(switch::Command),
    /// Run a whole network on this machine, with faults on its links
    #[command(subcommand)]
    Lab(lab::Command),
    /// Write the man pages and the completions for bash, zsh and fish
    #[command(hide = true)]
    Manual(manual::Options),
    #[cfg(feature = "laboratory")]
    #[command(flatten)]
    Laboratory(laboratory::Command),
    #[cfg(not(feature = "laboratory"))]
    #[command(external_subcommand)]
    Laboratory(Vec<OsString>),
}

/// Runs the command that the arguments name.
pub fn main() -> ExitCode {
    let matches = examples::add_to(CommandLine::command()).get_matches();
    let command = match CommandLine::from_arg_matches(&matches) {
        Ok(line) => line.command,
        Err(e) => e.exit(),
    };
    // Programs that an operator runs in a lab aren't changed.
    if !matches!(command, Command::Lab(lab::Command::Exec(_))) {
        node::host::keep_private();
    }
    if let Err(e) = node::log::to_stderr() {
        eprintln!("wirepaxos: {e}");
        return ExitCode::FAILURE;
    }
    let result = match command {
        Command::Up(options) => up::run(&options),
        Command::Init(options) => init::run(&options),
        Command::Demo(options) => demo::run(&options),
        Command::Node(options) => run_node::run(&options),
        Command::Status(options) => status::run(&options),
        Command::Events(options) => events::run(&options),
        Command::Members(options) => members::run(&options),
        Command::Copy(command) => copy::run(&command),
        Command::Failover(options) => failover::run(&options),
        Command::Controller(command) => controller::run(&command),
        Command::ForgetLog(options) => forget_log::run(&options),
        Command::Recover(options) => recover::run(&options),
        Command::Skip(options) => skip::run(&options),
        Command::AcceptServer(options) => accept_server::run(&options),
        Command::Keys(command) => keys::run(&command),
        Command::Kv(options) => return kv::run(&options),
        Command::Stop(options) => stop::run(&options),
        Command::Switch(command) => switch::run(&command),
        Command::Lab(command) => lab::run(&command),
        Command::Manual(options) => manual::run(&options),
        Command::Laboratory(command) => return laboratory::run(&command),
    };
    exit(result)
}

/// Prints an error, if there is one, and returns the exit code.
fn exit(result: Result<(), Error>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("wirepaxos: {e}");
            ExitCode::FAILURE
        }
    }
}
