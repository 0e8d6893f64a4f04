// SPDX-License-Identifier: Apache-2.0
//! Finds the programs that demo, measurements and torture start: they are in one directory.

use std::path::{Path, PathBuf};

use crate::error::Error;

/// Returns the path of this program.
pub fn own() -> Result<PathBuf, Error> {
    // After a rebuild the link says "(deleted)"; then the path without that is still the better one
    // to start.
    let program = std::env::current_exe()?;
    match program.to_str().and_then(|p| p.strip_suffix(" (deleted)")) {
        Some(path) => Ok(path.into()),
        None => Ok(program),
    }
}

/// Returns the path of `wirepaxos`, which nodes run.
pub fn wirepaxos() -> Result<PathBuf, Error> {
    beside(&own()?, "wirepaxos", "cli")
}

/// Returns the path of `wirepaxos-lab`, which looks after labs.
pub fn wirepaxos_lab() -> Result<PathBuf, Error> {
    beside(&own()?, "wirepaxos-lab", "lab_cli")
}

/// Returns the path of the program `name`, which is in the directory of this program. The crate
/// `package` has its source.
fn beside(own: &Path, name: &str, package: &str) -> Result<PathBuf, Error> {
    let program = own.with_file_name(name);
    match program.is_file() {
        true => Ok(program),
        false => Err(Error::new(format!(
            "there is no {}, which this needs: install it there, or build it by \
             `cargo build -p {package}` (with --release if this program was)",
            program.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_beside_this_one_or_named_as_missing() {
        let directory =
            std::env::temp_dir().join(format!("wirepaxos-programs-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let own = directory.join("wirepaxos-lab");
        let nodes = directory.join("wirepaxos");
        let said = beside(&own, "wirepaxos", "cli").unwrap_err().to_string();
        assert!(said.contains(nodes.to_str().unwrap()), "{said}");
        std::fs::write(&nodes, "").unwrap();
        assert_eq!(beside(&own, "wirepaxos", "cli").unwrap(), nodes);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
