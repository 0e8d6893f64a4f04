// SPDX-License-Identifier: Apache-2.0
//! The command `manual`: writes the man pages and the shells' completions, from the commands' own
//! descriptions.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::{Shell, generate};
use local_cluster::Error;

/// Options of `manual`.
#[derive(Args)]
pub struct Options {
    /// Write to this directory, which is made, with man1, bash, zsh and fish below
    directory: PathBuf,
}

/// Writes the files of the program that has this command line, and replaces those that exist.
pub fn run(options: &Options, program: &Command) -> Result<(), Error> {
    write(&options.directory, program).map_err(|e| {
        Error::new(format!(
            "cannot write into {}: {e}; name a directory that may be written to",
            options.directory.display()
        ))
    })
}

fn write(directory: &Path, program: &Command) -> io::Result<()> {
    let pages = directory.join("man1");
    fs::create_dir_all(&pages)?;
    clap_mangen::generate_to(program.clone(), &pages)?;
    let name = program.get_name();
    // Each shell looks for a program's completions by another file name.
    for (shell, directory_of_shell, file) in [
        (Shell::Bash, "bash", name.to_string()),
        (Shell::Zsh, "zsh", format!("_{name}")),
        (Shell::Fish, "fish", format!("{name}.fish")),
    ] {
        let mut script = Vec::new();
        generate(shell, &mut program.clone(), name, &mut script);
        let directory = directory.join(directory_of_shell);
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
        let program = Command::new("prog").subcommands([
            Command::new("shown").about("Is shown"),
            Command::new("hidden").hide(true),
        ]);
        write(&directory, &program).unwrap();
        for (file, holds_shown) in [
            ("bash/prog", "prog,shown"),
            ("zsh/_prog", "shown:Is shown"),
            ("fish/prog.fish", "Is shown"),
            ("man1/prog.1", "prog\\-shown(1)"),
            ("man1/prog-shown.1", "Is shown"),
        ] {
            let text = fs::read_to_string(directory.join(file)).unwrap();
            assert!(text.contains(holds_shown), "{file}: {text}");
        }
        assert!(!directory.join("man1/prog-hidden.1").exists());
        fs::remove_dir_all(&directory).unwrap();
    }
}
