// SPDX-License-Identifier: Apache-2.0
//! What is wrong with a cluster file.

use std::fmt;

/// One error in a cluster file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The line, from 1; 0 stands for the whole file.
    pub line: usize,
    /// The problem.
    pub problem: String,
    /// The remedy.
    pub remedy: String,
}

/// All errors in a cluster file. Its `{:?}` is its text, too.
#[derive(Clone, PartialEq, Eq)]
pub struct Errors {
    /// The name of the file; empty for a text that has no file.
    pub file: String,
    /// The errors, in the order of the file.
    pub errors: Vec<Error>,
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.errors.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            match (self.file.as_str(), error.line) {
                ("", 0) => {}
                ("", line) => write!(f, "line {line}: ")?,
                (file, 0) => write!(f, "{file}: ")?,
                (file, line) => write!(f, "{file}:{line}: ")?,
            }
            write!(f, "{}; {}", error.problem, error.remedy)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Errors {}
