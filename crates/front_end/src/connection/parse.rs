// SPDX-License-Identifier: Apache-2.0
//! What a client has sent, as requests.

use crate::resp::{Limits, Parser, ProtocolError, Request};

/// Used input is dropped in portions of this size.
const COMPACT_BYTES: usize = 64 << 10;
/// Commands of up to this many arguments need no allocated list of them.
const FEW: usize = 8;

/// The input that isn't executed yet.
#[derive(Default)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    /// The bytes of `bytes` that are used.
    used: usize,
    parser: Parser,
    /// True if the client sends no more; what has arrived is still executed.
    is_at_end: bool,
}

impl Input {
    /// Adds what the client has sent.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Notes that the client sends no more.
    pub fn end(&mut self) {
        self.is_at_end = true;
    }

    /// Returns true if the client sends no more.
    pub fn is_at_end(&self) -> bool {
        self.is_at_end
    }

    /// Returns how many bytes are kept.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the bytes that the input takes in memory.
    pub fn memory(&self) -> usize {
        self.bytes.len() + self.parser.memory()
    }

    /// Returns the bytes that aren't used yet, where a request's arguments are.
    pub fn unused(&self) -> &[u8] {
        &self.bytes[self.used..]
    }

    /// Returns the next request, or nothing if it isn't complete. It stays in the input until it is
    /// [used](Self::use_up).
    pub fn parse(&mut self, limits: &Limits) -> Result<Option<Request>, ProtocolError> {
        let request = self.parser.parse(&self.bytes[self.used..], limits)?;
        if request.is_none() {
            self.used += self.parser.take_passed();
        }
        Ok(request)
    }

    /// Uses the first bytes of what is unused.
    pub fn use_up(&mut self, len: usize) {
        self.used += len;
    }

    /// Gives a request's memory back, to be used again.
    pub fn reuse(&mut self, request: Request) {
        self.parser.reuse(request.arguments);
    }

    /// Frees memory of what is used.
    pub fn compact(&mut self) {
        if self.used == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(COMPACT_BYTES);
            self.used = 0;
        } else if self.used >= COMPACT_BYTES {
            self.bytes.drain(..self.used);
            self.used = 0;
        }
    }

    /// Forgets what has arrived.
    pub fn clear(&mut self) {
        *self = Input {
            is_at_end: self.is_at_end,
            ..Input::default()
        };
    }
}

/// Passes a request's arguments, as they are in `input`, to `then`.
pub(crate) fn with_arguments<R>(
    request: &Request,
    input: &[u8],
    then: impl FnOnce(&[&[u8]]) -> R,
) -> R {
    match request.arguments.as_slice() {
        arguments if arguments.len() <= FEW => {
            let mut few = [&[][..]; FEW];
            let places = few.iter_mut().zip(arguments);
            places.for_each(|(place, argument)| *place = argument.bytes(input));
            then(&few[..arguments.len()])
        }
        arguments => {
            let many: Vec<&[u8]> = arguments.iter().map(|a| a.bytes(input)).collect();
            then(&many)
        }
    }
}
