// SPDX-License-Identifier: Apache-2.0
//! Judges recorded traces by the specification, and names file and line of a violation.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::merge::{self, Recorded};
use crate::spec;

/// The first line that the protocol doesn't allow.
pub struct Violation {
    /// The trace that has it.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The rule that is violated.
    pub why: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.why)
    }
}

/// Returns the first line of one group's traces that isn't as the protocol allows.
pub fn violation(group: &Recorded) -> Option<Violation> {
    let found = spec::check(&group.trace).err()?;
    let (file, line) = group.place(found.event);
    Some(Violation {
        file: file.to_owned(),
        line,
        why: found.why,
    })
}

/// Returns the first violation in the traces of any group in this directory.
pub fn first_violation(directory: &Path) -> Result<Option<Violation>, String> {
    Ok(merge::read(directory)?.iter().find_map(violation))
}
