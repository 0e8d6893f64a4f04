// SPDX-License-Identifier: Apache-2.0
//! The program `wirepaxos`.

use std::process::ExitCode;

fn main() -> ExitCode {
    wirepaxos_cli::main()
}
