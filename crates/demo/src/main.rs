// SPDX-License-Identifier: Apache-2.0
//! The command `demo` as a program of its own, for ./dev demo.

use std::process::ExitCode;

use clap::Parser;
use local_cluster::Error;

const NAME: &str = "wirepaxos-demo";

/// Show a replicated database that survives a dead leader, acceptor and replica
#[derive(Parser)]
#[command(name = NAME, version = command_line::VERSION)]
struct CommandLine {
    #[command(flatten)]
    options: demo::command::Options,
}

fn main() -> ExitCode {
    let line = CommandLine::parse();
    node::host::keep_private();
    let logging = node::log::to_stderr().map_err(|e| Error::new(e.to_string()));
    command_line::exit(
        NAME,
        logging.and_then(|()| demo::command::run(&line.options)),
    )
}
