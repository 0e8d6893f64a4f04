// SPDX-License-Identifier: Apache-2.0
//! The reasons why a node can't start or continue.

use std::fmt;

use crate::cluster_file::Errors;

/// An error, whose text also says the remedy if there is one. Its `{:?}` is that text, too.
#[non_exhaustive]
pub enum Error {
    /// The cluster file is wrong, or it doesn't fit what was asked.
    Configuration(Errors),
    /// Stored data can't be read, written or relied on.
    Store(String),
    /// The host, the kernel or another node has failed.
    System(String),
}

impl Error {
    /// Returns an error of the host with this text.
    pub fn new(text: impl Into<String>) -> Error {
        Error::System(text.into())
    }

    /// Returns an error of stored data with this text.
    pub(crate) fn store(text: impl Into<String>) -> Error {
        Error::Store(text.into())
    }

    /// Returns an error about a request that doesn't fit the cluster file.
    pub(crate) fn configuration(problem: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error::Configuration(Errors::one("", problem, remedy))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Configuration(errors) => errors.fmt(f),
            Error::Store(text) | Error::System(text) => f.write_str(text),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Error {
        Error::System(e.to_string())
    }
}

/// Errors of the XDP plane's loader already are whole texts.
impl From<String> for Error {
    fn from(text: String) -> Error {
        Error::System(text)
    }
}

/// Returns a random number other than 0, for example for a boot nonce.
pub fn random_nonce() -> Result<u64, Error> {
    let number = getrandom::u64().map_err(|e| Error::new(format!("no random numbers: {e}")))?;
    Ok(number.max(1))
}
