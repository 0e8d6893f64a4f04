// SPDX-License-Identifier: Apache-2.0
//! What is wrong with a file that holds a secret.

use std::fmt;
use std::path::Path;

/// What is wrong, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    problem: String,
    remedy: String,
}

impl Error {
    /// With this text.
    pub fn new(problem: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error {
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }

    /// About a file.
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
