// SPDX-License-Identifier: Apache-2.0
//! The error of commands: one text that says what is wrong and what to do.

use std::fmt;

/// A message that is printed to standard error before the process ends with 1.
#[derive(Debug)]
pub struct Error(String);

impl Error {
    /// Creates an error with this text.
    pub fn new(text: impl Into<String>) -> Error {
        Error(text.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: std::error::Error> From<E> for Error {
    fn from(e: E) -> Error {
        Error(e.to_string())
    }
}
