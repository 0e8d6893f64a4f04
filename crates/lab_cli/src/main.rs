// SPDX-License-Identifier: Apache-2.0
//! The program `wirepaxos-lab`, whose commands show, measure, break and check clusters, one module
//! each. The nodes of these clusters run the operator's program, `wirepaxos`.

#[macro_use]
extern crate local_cluster;

mod bench;
mod check_trace;
mod examples;
mod lab;
mod simulate;
mod torture;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use command_line::manual;
use demo::command as demo;
use local_cluster::Error;

/// The name by which messages and pages call this program.
const NAME: &str = "wirepaxos-lab";

#[derive(Parser)]
#[command(
    name = NAME,
    version = command_line::VERSION,
    about = "Show, measure, break and check clusters of WirePaxos",
    propagate_version = true
)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show a replicated database that survives a dead leader, acceptor and replica
    Demo(demo::Options),
    /// Run a whole network on this machine, with faults on its links
    #[command(subcommand)]
    Lab(lab::Command),
    /// Measure roles, clusters and what fails in them
    #[command(subcommand)]
    Bench(bench::Command),
    /// Break a cluster of real processes in every way, and check that nothing was lost
    Torture(torture::Options),
    /// Run the deterministic simulator
    Sim(simulate::Options),
    /// Hold what the nodes of a cluster recorded (`trace` in its file) against the protocol
    CheckTrace(check_trace::Options),
    /// Write the man pages and the completions for bash, zsh and fish
    #[command(hide = true)]
    Manual(manual::Options),
}

/// Runs the command that the arguments name.
fn main() -> ExitCode {
    let program = command_line::examples::add_to(CommandLine::command(), examples::EXAMPLES);
    let command = match CommandLine::from_arg_matches(&program.get_matches()) {
        Ok(line) => line.command,
        Err(e) => e.exit(),
    };
    // Programs that an operator runs in a lab aren't changed.
    if !matches!(command, Command::Lab(lab::Command::Exec(_))) {
        node::host::keep_private();
    }
    let result = match node::log::to_stderr() {
        Ok(()) => run(command),
        Err(e) => Err(Error::new(e.to_string())),
    };
    match result {
        Ok(code) => code,
        Err(e) => command_line::exit(NAME, Err(e)),
    }
}

fn run(command: Command) -> Result<ExitCode, Error> {
    match command {
        Command::Demo(options) => demo::run(&options)?,
        Command::Lab(command) => lab::run(&command)?,
        Command::Bench(command) => bench::run(&command)?,
        Command::Torture(options) => torture::run(&options)?,
        Command::Sim(options) => return Ok(simulate::run(&options)),
        Command::CheckTrace(options) => check_trace::run(&options)?,
        Command::Manual(options) => manual::run(&options, &CommandLine::command())?,
    }
    Ok(ExitCode::SUCCESS)
}
