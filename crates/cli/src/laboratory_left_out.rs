// SPDX-License-Identifier: Apache-2.0
//! Replaces `laboratory.rs` if the feature `laboratory` is off, as in the build of `./dev demo`: says how to get the
//! missing commands.

use std::ffi::OsString;
use std::process::ExitCode;

use local_cluster::Error;

use crate::exit;

/// Reports that a command isn't in this build. `words` are its name and its arguments.
pub fn run(words: &[OsString]) -> ExitCode {
    exit(Err(not_built(words)))
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
        assert!(matches!(
            parsed(&["wirepaxos", "demo"]),
            crate::Command::Demo(_)
        ));
    }
}
