//! Why a node can't start or go on.

use std::fmt;

/// One text that says what is wrong and, where there is something to do, what.
#[derive(Debug)]
pub struct Error(String);

impl Error {
    /// With this text.
    pub fn new(text: impl Into<String>) -> Error {
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

/// What the XDP plane's loader says is complete already.
impl From<String> for Error {
    fn from(text: String) -> Error {
        Error(text)
    }
}

/// A random number that is not 0: a boot nonce, say.
pub fn random_nonce() -> Result<u64, Error> {
    let number = getrandom::u64().map_err(|e| Error::new(format!("no random numbers: {e}")))?;
    Ok(number.max(1))
}
