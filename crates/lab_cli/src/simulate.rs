// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos-lab sim`: runs the simulator, which has a command line of its own.

use std::process::ExitCode;

use clap::Args;

/// Options of `wirepaxos-lab sim`.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct Options {
    /// Pass these options to the simulator; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Passes the arguments to the simulator.
pub fn run(options: &Options) -> ExitCode {
    sim::cli::main(&options.arguments)
}
