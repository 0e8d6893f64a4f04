// SPDX-License-Identifier: Apache-2.0
//! Errors of files that contain a secret.

use std::fmt;
use std::path::Path;

/// An error and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub(crate) problem: String,
    remedy: String,
}

impl Error {
    /// Returns an error with this text.
    pub fn new(problem: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error {
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }

    /// Returns an error about a file.
    pub fn of(path: &Path, problem: impl fmt::Display, remedy: impl Into<String>) -> Error {
        Error::new(format!("{}: {problem}", path.display()), remedy)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.problem, self.remedy)
    }
}

impl std::error::Error for Error {}
