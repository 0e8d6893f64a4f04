// SPDX-License-Identifier: Apache-2.0
//! Why a node can't start or go on.

use std::fmt;

use crate::cluster_file::Errors;

/// What is wrong, with a text that says what to do where there is something to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The cluster file, or what is asked of it.
    Configuration(Errors),
    /// What is stored can't be read, written or relied on.
    Store(String),
    /// The host, the kernel, or another node.
    System(String),
}

impl Error {
    /// Of the host, with this text.
    pub fn new(text: impl Into<String>) -> Error {
        Error::System(text.into())
    }

    /// Of what is stored, with this text.
    pub(crate) fn store(text: impl Into<String>) -> Error {
        Error::Store(text.into())
    }

    /// Of what is asked of a cluster file.
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

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Error {
        Error::System(e.to_string())
    }
}

/// What the XDP plane's loader says is a whole text already.
impl From<String> for Error {
    fn from(text: String) -> Error {
        Error::System(text)
    }
}

/// A random number that is not 0: a boot nonce, say.
pub fn random_nonce() -> Result<u64, Error> {
    let number = getrandom::u64().map_err(|e| Error::new(format!("no random numbers: {e}")))?;
    Ok(number.max(1))
}
