// SPDX-License-Identifier: Apache-2.0
//! The commands of `wirepaxos`, one module each. Those that show, measure and check clusters are in
//! `wirepaxos-lab`.

#[macro_use]
extern crate local_cluster;

mod accept_server;
mod backup;
mod controller;
mod copy;
mod events;
mod examples;
mod failover;
mod forget_log;
mod init;
mod keys;
mod kv;
mod lab_commands;
mod members;
mod named;
mod new_cluster;
mod readiness;
mod recover;
mod run_node;
mod silence;
mod skip;
mod status;
mod stop;
mod switch;
mod top;
mod up;
mod upgrade;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use command_line::manual;
use local_cluster::Error;

/// The name by which messages and pages call this program.
const NAME: &str = "wirepaxos";

/// Consensus as a network service.
#[derive(Parser)]
#[command(
    name = NAME,
    version = command_line::VERSION,
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
    /// Run one node of a cluster
    Node(run_node::Options),
    /// Show every node of a cluster
    Status(status::Options),
    /// Show a cluster on a terminal's screen: rates, times, who leads, lag, rings and disks
    Top(top::Options),
    /// Show what happened to a cluster, when, why and by whose order
    Events(events::Options),
    /// Show whose memories a group counts on, and what of the cluster file isn't in force yet
    Members(members::Options),
    /// Exchange the program node by node, and let the cluster use what is new in it
    #[command(subcommand)]
    Upgrade(upgrade::Command),
    /// Make or use a replica's state as files
    #[command(subcommand)]
    Copy(copy::Command),
    /// Back up a whole cluster, and make a new cluster from a backup
    #[command(subcommand)]
    Backup(backup::Command),
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
    /// Write the man pages and the completions for bash, zsh and fish
    #[command(hide = true)]
    Manual(manual::Options),
}

/// Runs the command that the arguments name.
pub fn main() -> ExitCode {
    if let Err(e) = lab_commands::refuse(std::env::args_os().nth(1).as_deref()) {
        return command_line::exit(NAME, Err(e));
    }
    let program = command_line::examples::add_to(CommandLine::command(), examples::EXAMPLES);
    let command = match CommandLine::from_arg_matches(&program.get_matches()) {
        Ok(line) => line.command,
        Err(e) => e.exit(),
    };
    node::host::keep_private();
    if let Err(e) = node::log::to_stderr() {
        return command_line::exit(NAME, Err(Error::new(e.to_string())));
    }
    let result = match command {
        Command::Up(options) => up::run(&options),
        Command::Init(options) => init::run(&options),
        Command::Node(options) => run_node::run(&options),
        Command::Status(options) => status::run(&options),
        Command::Top(options) => top::run(&options),
        Command::Events(options) => events::run(&options),
        Command::Members(options) => members::run(&options),
        Command::Upgrade(command) => upgrade::run(&command),
        Command::Copy(command) => copy::run(&command),
        Command::Backup(command) => backup::run(&command),
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
        Command::Manual(options) => manual::run(&options, &CommandLine::command()),
    };
    command_line::exit(NAME, result)
}
