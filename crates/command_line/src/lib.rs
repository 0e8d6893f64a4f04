// SPDX-License-Identifier: Apache-2.0
//! What the command lines of `wirepaxos` and `wirepaxos-lab` share.

#[macro_use]
extern crate local_cluster;

pub mod arguments;
pub mod examples;
pub mod manual;

use std::process::ExitCode;

use local_cluster::Error;

/// The version of the program, and the commit that it was built from.
pub const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("WIREPAXOS_SOURCE"),
    ")"
);

/// Prints the error of `program`, if there is one, and returns the exit code.
pub fn exit(program: &str, result: Result<(), Error>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{program}: {e}");
            ExitCode::FAILURE
        }
    }
}
