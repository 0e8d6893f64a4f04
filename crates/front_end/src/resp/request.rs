// SPDX-License-Identifier: Apache-2.0
//! A request as it is parsed, and its limits.

use std::ops::Range;

use replica::parts::MAX_COMMAND_LEN;

/// The limits of a request. A larger one is skipped, and its bytes aren't kept.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest argument that is taken.
    pub max_bulk_len: usize,
    /// The longest request that is taken.
    pub max_request_len: usize,
    /// True if the sender may send large requests at all.
    pub authenticated: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_bulk_len: MAX_COMMAND_LEN,
            max_request_len: 4 << 20,
            authenticated: true,
        }
    }
}

/// The reason why the connection can't continue: the text after "Protocol error: ".
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProtocolError(pub String);

impl From<&str> for ProtocolError {
    fn from(text: &str) -> Self {
        ProtocolError(text.to_owned())
    }
}

/// A complete request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The arguments; the first one names the command. An empty line has none.
    pub arguments: Vec<Argument>,
    /// The bytes of input that the request took.
    pub len: usize,
    /// Set if the request is larger than the limits: the bytes of its arguments without the first
    /// one. `arguments` is empty then.
    pub too_large: Option<u64>,
}

/// One argument of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Argument {
    /// The argument is in the input at this place.
    At(Range<usize>),
    /// The argument had quotes or escapes, and these are its bytes without them.
    Unquoted(Vec<u8>),
}

impl Argument {
    /// Returns the argument's bytes.
    pub fn bytes<'a>(&'a self, input: &'a [u8]) -> &'a [u8] {
        match self {
            Argument::At(range) => &input[range.clone()],
            Argument::Unquoted(bytes) => bytes,
        }
    }
}
