// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos manual`: writes the man pages and the shells' completions, from the commands' own descriptions.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use local_cluster::Error;

use crate::CommandLine;

/// For each shell the subdirectory of its completions, and the file name by which it looks for those of `wirepaxos`.
const COMPLETIONS: [(Shell, &str, &str); 3] = [
    (Shell::Bash, "bash", "wirepaxos"),
    (Shell::Zsh, "zsh", "_wirepaxos"),
    (Shell::Fish, "fish", "wirepaxos.fish"),
];

/// Options of `wirepaxos manual`.
#[derive(Args)]
pub struct Options {
    /// Write to this directory, which is made, with man1, bash, zsh and fish below
    directory: PathBuf,
}

/// Writes the files, and replaces those that exist.
pub fn run(options: &Options) -> Result<(), Error> {
    write(&options.directory).map_err(|e| {
        Error::new(format!(
            "cannot write into {}: {e}; name a directory that may be written to",
            options.directory.display()
        ))
    })
}

fn write(directory: &Path) -> io::Result<()> {
    let pages = directory.join("man1");
    fs::create_dir_all(&pages)?;
    clap_mangen::generate_to(CommandLine::command(), &pages)?;
    for (shell, name, file) in COMPLETIONS {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut CommandLine::command(), "wirepaxos", &mut script);
        let directory = directory.join(name);
        fs::create_dir_all(&directory)?;
        fs::write(directory.join(file), script)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_that_is_shown_has_a_page_and_is_completed() {
        let directory =
            std::env::temp_dir().join(format!("wirepaxos-manual-{}", std::process::id()));
        write(&directory).unwrap();
        let bash = fs::read_to_string(directory.join("bash/wirepaxos")).unwrap();
        let line = CommandLine::command();
        let shown: Vec<_> = line
            .get_subcommands()
            .filter(|c| !c.is_hide_set())
            .map(|c| c.get_name().to_string())
            .collect();
        assert!(
            shown.iter().any(|name| name == "up") && !shown.iter().any(|name| name == "manual")
        );
        for name in shown {
            let page = directory.join(format!("man1/wirepaxos-{name}.1"));
            assert!(page.exists(), "{}", page.display());
            assert!(bash.contains(&format!("wirepaxos,{name})")), "bash: {name}");
        }
        fs::remove_dir_all(&directory).unwrap();
    }
}
