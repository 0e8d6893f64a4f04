//! What goes wrong, as a text that says what to do.

use std::fmt;

/// What went wrong.
#[derive(Debug)]
pub struct Error(String);

impl Error {
    /// With this text.
    pub(crate) fn new(text: impl Into<String>) -> Error {
        Error(text.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Error {
        Error(e.to_string())
    }
}

impl From<client::Error> for Error {
    fn from(e: client::Error) -> Error {
        Error(e.to_string())
    }
}

impl From<node::Error> for Error {
    fn from(e: node::Error) -> Error {
        Error(e.to_string())
    }
}

impl From<client::NoAnswer> for Error {
    fn from(e: client::NoAnswer) -> Error {
        Error(e.to_string())
    }
}
