// SPDX-License-Identifier: Apache-2.0
//! Runs the simulator from the command line; `sim --help` describes it.

fn main() -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    sim::cli::main(&args)
}
