//! `wirepaxos`.

use std::process::ExitCode;

fn main() -> ExitCode {
    wirepaxos_cli::main()
}
