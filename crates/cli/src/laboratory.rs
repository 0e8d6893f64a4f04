// SPDX-License-Identifier: Apache-2.0
//! The commands that measure, break and check. The feature `laboratory`, which is on by default, builds them.

use std::process::ExitCode;

use clap::Subcommand;

use crate::{bench, check_trace, exit, simulate, torture};

#[derive(Subcommand)]
pub enum Command {
    /// Measure roles, clusters and what fails in them
    #[command(subcommand)]
    Bench(bench::Command),
    /// Break a cluster of real processes in every way, and check that nothing was lost
    Torture(torture::Options),
    /// Run the deterministic simulator
    Sim(simulate::Options),
    /// Hold what the nodes of a cluster recorded (`trace` in its file) against the protocol
    CheckTrace(check_trace::Options),
}

pub fn run(command: &Command) -> ExitCode {
    match command {
        Command::Bench(command) => exit(bench::run(command)),
        Command::Torture(options) => exit(torture::run(options)),
        Command::Sim(options) => simulate::run(options),
        Command::CheckTrace(options) => exit(check_trace::run(options)),
    }
}
