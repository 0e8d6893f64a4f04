// SPDX-License-Identifier: Apache-2.0
//! In place of `laboratory.rs` where the feature `laboratory` is off, as in what `./dev demo` builds: says where the
//! commands are.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Subcommand;
use local_cluster::Error;

use crate::exit;

#[derive(Subcommand)]
pub enum Command {
    #[command(external_subcommand)]
    LeftOut(Vec<OsString>),
}

pub fn run(Command::LeftOut(words): &Command) -> ExitCode {
    let name = words[0].to_string_lossy();
    exit(Err(Error::new(format!(
        "this build has no command `{name}`: see --help, or build all commands with ./dev setup"
    ))))
}
