// SPDX-License-Identifier: Apache-2.0
//! Replaces `laboratory.rs` if the feature `laboratory` is off, as in the build of `./dev demo`: says how to get the
//! missing commands.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::CommandFactory;
use local_cluster::Error;

use crate::{CommandLine, exit};

/// The commands that this build leaves out.
const LEFT_OUT: [&str; 4] = ["bench", "torture", "sim", "check-trace"];

/// Reports that a command isn't in this build, or in none. `words` are its name and its arguments.
pub fn run(words: &[OsString]) -> ExitCode {
    match is_left_out(&words[0]) {
        true => exit(Err(not_built(words))),
        false => unknown(words).exit(),
    }
}

fn is_left_out(name: &OsString) -> bool {
    LEFT_OUT.iter().any(|left_out| name == left_out)
}

/// Returns the error of a command that no build has, which names a similar one.
fn unknown(words: &[OsString]) -> clap::Error {
    // The command line itself takes any word, so that those that are left out are noticed.
    let known = CommandLine::command();
    let line = clap::Command::new("wirepaxos").subcommands(known.get_subcommands().cloned());
    let name = OsString::from("wirepaxos");
    let parsed = line.try_get_matches_from(std::iter::once(&name).chain(words));
    parsed.expect_err("it isn't among the commands")
}

fn not_built(words: &[OsString]) -> Error {
    let name = words[0].to_string_lossy();
    Error::new(format!(
        "this build has no command `{name}`: see --help, or build all commands with ./dev setup"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn parsed(words: &[&str]) -> crate::Command {
        let line = crate::CommandLine::try_parse_from(words);
        line.unwrap_or_else(|e| panic!("{words:?}: {e}")).command
    }

    #[test]
    fn who_wants_a_command_that_is_left_out_is_told_where_it_is() {
        let crate::Command::Laboratory(words) = parsed(&["wirepaxos", "bench", "e2e"]) else {
            panic!("there is no `bench`");
        };
        let said = not_built(&words).to_string();
        assert!(
            said.contains("no command `bench`") && said.contains("./dev setup"),
            "{said}"
        );
        assert!(is_left_out(&words[0]));
        assert!(matches!(
            parsed(&["wirepaxos", "demo"]),
            crate::Command::Demo(_)
        ));
    }

    #[test]
    fn a_command_that_is_not_even_left_out_is_answered_with_a_similar_one() {
        let crate::Command::Laboratory(words) = parsed(&["wirepaxos", "statsu"]) else {
            panic!("there is a `statsu`");
        };
        assert!(!is_left_out(&words[0]));
        let said = unknown(&words).to_string();
        assert!(
            said.contains("'statsu'") && said.contains("'status'"),
            "{said}"
        );
    }
}
