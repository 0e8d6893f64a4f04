// SPDX-License-Identifier: Apache-2.0
//! Finds the programs that commands of `wirepaxos-lab` start: itself, and the operator's program,
//! whose nodes it tries.

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

/// Returns the path of `wirepaxos`, which is in the directory of this program.
pub fn wirepaxos() -> Result<PathBuf, Error> {
    beside(&own()?)
}

fn beside(own: &Path) -> Result<PathBuf, Error> {
    let program = own.with_file_name("wirepaxos");
    match program.is_file() {
        true => Ok(program),
        false => Err(Error::new(format!(
            "there is no {}, which nodes run: install it there, or build it by \
             `cargo build -p cli` (with --release if this program was)",
            program.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_of_nodes_is_beside_this_one_or_named_as_missing() {
        let directory =
            std::env::temp_dir().join(format!("wirepaxos-programs-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let own = directory.join("wirepaxos-lab");
        let nodes = directory.join("wirepaxos");
        let said = beside(&own).unwrap_err().to_string();
        assert!(said.contains(nodes.to_str().unwrap()), "{said}");
        std::fs::write(&nodes, "").unwrap();
        assert_eq!(beside(&own).unwrap(), nodes);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
