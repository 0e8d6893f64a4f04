// SPDX-License-Identifier: Apache-2.0
//! Finds the files that the Makefiles in `programs/` have built.

use std::path::{Path, PathBuf};

use crate::object::Result;

/// Returns the directory that the environment's `variable` names; or else the first one of this
/// name that holds `file`, beside the running program or above it, or in `target` of the source
/// tree. Nothing if there is none.
pub fn directory(variable: &str, name: &str, file: &str) -> Result<Option<PathBuf>> {
    if let Some(given) = std::env::var_os(variable) {
        return Ok(Some(given.into()));
    }
    let binary = std::env::current_exe().map_err(|error| error.to_string())?;
    let beside = binary.ancestors().skip(1).map(|dir| dir.join(name));
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let mut all = beside.chain([target.join(name)]);
    Ok(all.find(|dir| dir.join(file).is_file()))
}
