// SPDX-License-Identifier: Apache-2.0
//! Tells who asks this program for a command of `wirepaxos-lab` where that is.

use std::ffi::OsStr;

use local_cluster::Error;

/// The commands of `wirepaxos-lab`.
const COMMANDS: [&str; 6] = ["bench", "check-trace", "demo", "lab", "sim", "torture"];

/// Returns an error if a command line begins with a command of `wirepaxos-lab`. `word` is the first
/// one after the program.
pub fn refuse(word: Option<&OsStr>) -> Result<(), Error> {
    let Some(name) = COMMANDS.iter().find(|name| word == Some(OsStr::new(name))) else {
        return Ok(());
    };
    Err(Error::new(format!(
        "`{name}` is a command of wirepaxos-lab: run `wirepaxos-lab {name}`. Debian's package \
         wirepaxos-lab has that program, and in the source tree ./dev setup builds it"
    )))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn who_asks_for_a_command_of_the_other_program_is_told_where_it_is() {
        for name in COMMANDS {
            let said = refuse(Some(OsStr::new(name))).unwrap_err().to_string();
            assert!(
                said.contains(&format!("run `wirepaxos-lab {name}`")),
                "{said}"
            );
        }
        let own = crate::CommandLine::command();
        for command in own.get_subcommands() {
            assert!(refuse(Some(OsStr::new(command.get_name()))).is_ok());
        }
        assert!(refuse(None).is_ok());
    }
}
