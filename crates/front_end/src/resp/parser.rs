// SPDX-License-Identifier: Apache-2.0
//! Parses requests, in RESP arrays of bulk strings or inline commands.

use crate::resp::request::{Argument, Limits, ProtocolError, Request};

/// The longest line: an inline command, or a header that never ends.
const MAX_LINE_LEN: usize = 64 << 10;
const MAX_ARGUMENTS: i64 = 1 << 20;
/// The longest argument that is read and skipped, as in Redis's `proto-max-bulk-len`. A longer one
/// ends the connection.
const MAX_BULK_LEN: i64 = 512 << 20;
/// The memory of up to this many arguments is used again.
const MAX_REUSED: usize = 16;
/// A client that hasn't authenticated yet may send at most this many arguments, and this many bytes
/// in each.
const MAX_ARGUMENTS_UNAUTHENTICATED: i64 = 10;
const MAX_BULK_LEN_UNAUTHENTICATED: i64 = 16 << 10;

/// Returns the first request in `input`, or `None` if it isn't complete.
pub fn parse(input: &[u8], limits: &Limits) -> Result<Option<Request>, ProtocolError> {
    Parser::default().parse(input, limits)
}

/// A parser that remembers how far it got with an incomplete request, so that one that arrives in
/// many pieces isn't read from its beginning each time.
#[derive(Default, Debug)]
pub struct Parser {
    at: usize,
    /// The bytes behind `at` that were already searched for the end of a line.
    line: usize,
    /// The number of arguments still to come; `None` before the header.
    missing: Option<usize>,
    /// The bytes of the current argument that are still to come.
    bulk_len: Option<usize>,
    arguments: Vec<Argument>,
    /// The bytes of all arguments but the first.
    size: u64,
    is_first: bool,
    /// True if the request is too large, so that none of it is kept.
    too_large: bool,
}

impl Parser {
    /// Continues with the request at the beginning of `input`, which is the last call's input,
    /// extended, without the bytes that were [skipped](Self::take_passed). After a call that
    /// returned a request, begins a new one.
    pub fn parse(
        &mut self,
        input: &[u8],
        limits: &Limits,
    ) -> Result<Option<Request>, ProtocolError> {
        let complete = match (self.missing, input.first()) {
            (None, None) => false,
            (Some(_), _) | (None, Some(b'*')) => self.parse_array(input, limits)?,
            (None, Some(_)) => self.parse_inline(input)?,
        };
        if !complete {
            return Ok(None);
        }
        let done = std::mem::take(self);
        Ok(Some(Request {
            arguments: done.arguments,
            len: done.at,
            too_large: done.too_large.then_some(done.size),
        }))
    }

    /// Returns how many bytes at the beginning of the input belong to a request that is too large,
    /// and may be dropped before the next call.
    pub fn take_passed(&mut self) -> usize {
        if self.too_large {
            std::mem::take(&mut self.at)
        } else {
            0
        }
    }

    /// Takes back the memory of a request that is done, for the next one.
    pub fn reuse(&mut self, mut arguments: Vec<Argument>) {
        if self.missing.is_none() && arguments.capacity() <= MAX_REUSED {
            arguments.clear();
            self.arguments = arguments;
        }
    }

    /// Returns the bytes of memory that an incomplete request takes besides its input.
    pub fn memory(&self) -> usize {
        self.arguments.capacity() * size_of::<Argument>()
    }

    fn parse_array(&mut self, input: &[u8], limits: &Limits) -> Result<bool, ProtocolError> {
        let mut missing = match self.missing {
            Some(missing) => missing,
            None => {
                let Some(count) = self.header(input, "too big mbulk count string")? else {
                    return Ok(false);
                };
                let count = count
                    .filter(|n| *n <= MAX_ARGUMENTS)
                    .ok_or("invalid multibulk length")?;
                if !limits.authenticated && count > MAX_ARGUMENTS_UNAUTHENTICATED {
                    return Err("unauthenticated multibulk length".into());
                }
                self.is_first = true;
                count.max(0) as usize
            }
        };
        while missing > 0 {
            self.missing = Some(missing);
            if !self.parse_bulk(input, limits)? {
                return Ok(false);
            }
            missing -= 1;
        }
        Ok(true)
    }

    fn parse_bulk(&mut self, input: &[u8], limits: &Limits) -> Result<bool, ProtocolError> {
        let mut len = match self.bulk_len {
            Some(len) => len,
            None => {
                match input.get(self.at) {
                    None => return Ok(false),
                    Some(b'$') => {}
                    Some(&other) => return Err(expected_dollar(other)),
                }
                let Some(len) = self.header(input, "too big bulk count string")? else {
                    return Ok(false);
                };
                let len = len
                    .filter(|n| (0..=MAX_BULK_LEN).contains(n))
                    .ok_or("invalid bulk length")?;
                if !limits.authenticated && len > MAX_BULK_LEN_UNAUTHENTICATED {
                    return Err("unauthenticated bulk length".into());
                }
                let len = len as usize;
                if !std::mem::take(&mut self.is_first) {
                    self.size += len as u64;
                }
                let request_len = self.at + len + 2;
                if len > limits.max_bulk_len || request_len > limits.max_request_len {
                    self.too_large = true;
                    self.arguments = Vec::new();
                }
                len
            }
        };
        if self.too_large {
            let passed = len.min(input.len() - self.at);
            self.at += passed;
            len -= passed;
        }
        self.bulk_len = Some(len);
        let end = self.at + len;
        match input.get(end..end + 2) {
            None => return Ok(false),
            Some(b"\r\n") => {}
            Some(_) => return Err("expected CRLF after a bulk string".into()),
        }
        self.bulk_len = None;
        if !self.too_large {
            self.arguments.push(Argument::At(self.at..end));
        }
        self.at = end + 2;
        Ok(true)
    }

    /// Reads `*3\r
    /// ` or `$3\r
    /// `. Returns nothing if the line isn't complete, and no number within if it has none.
    fn header(
        &mut self,
        input: &[u8],
        too_long: &str,
    ) -> Result<Option<Option<i64>>, ProtocolError> {
        let rest = &input[self.at..];
        let searched = &rest[self.line..rest.len().min(MAX_LINE_LEN + 1)];
        let found = searched.windows(2).position(|w| w == b"\r\n");
        let Some(len) = found.map(|len| self.line + len) else {
            if rest.len() > MAX_LINE_LEN {
                return Err(too_long.into());
            }
            // The last byte may be the first half of a line's end, so it is searched again with the
            // next bytes.
            self.line = rest.len().saturating_sub(1);
            return Ok(None);
        };
        self.line = 0;
        self.at += len + 2;
        Ok(Some(apps::kv::parse_integer(&rest[1..len])))
    }

    fn parse_inline(&mut self, input: &[u8]) -> Result<bool, ProtocolError> {
        let searched = &input[..input.len().min(MAX_LINE_LEN)];
        let Some(len) = searched[self.at..].iter().position(|b| *b == b'\n') else {
            if input.len() > MAX_LINE_LEN {
                return Err("too big inline request".into());
            }
            self.at = input.len();
            return Ok(false);
        };
        let line = &input[..self.at + len];
        self.at += len + 1;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.arguments = split_line(line).ok_or("unbalanced quotes in request")?;
        Ok(true)
    }
}

fn expected_dollar(found: u8) -> ProtocolError {
    let shown = match found {
        b'\r' | b'\n' => ' ',
        other => char::from(other),
    };
    ProtocolError(format!("expected '$', got '{shown}'"))
}

/// Splits an inline command at spaces, with `"…"` (and its escapes) and `'…'` as in a shell.
fn split_line(line: &[u8]) -> Option<Vec<Argument>> {
    let mut arguments = Vec::new();
    let mut at = 0;
    loop {
        while line.get(at).is_some_and(|b| is_space(*b)) {
            at += 1;
        }
        if at == line.len() {
            return Some(arguments);
        }
        let mut bytes = Vec::new();
        while let Some(&byte) = line.get(at) {
            match byte {
                _ if is_space(byte) => break,
                b'"' | b'\'' => {
                    at = unquote(line, at, &mut bytes)?;
                    // A closing quote must end the argument.
                    if line.get(at).is_some_and(|b| !is_space(*b)) {
                        return None;
                    }
                }
                _ => {
                    bytes.push(byte);
                    at += 1;
                }
            }
        }
        arguments.push(Argument::Unquoted(bytes));
    }
}

/// Appends the quoted text that begins at `at`, without quotes and escapes; returns where it ends.
fn unquote(line: &[u8], mut at: usize, bytes: &mut Vec<u8>) -> Option<usize> {
    let quote = line[at];
    at += 1;
    loop {
        match &line[at..] {
            [] => return None,
            [b, ..] if *b == quote => return Some(at + 1),
            [b'\\', b'x', high, low, ..] if quote == b'"' && is_hex(*high) && is_hex(*low) => {
                let digits = [*high, *low];
                let text = std::str::from_utf8(&digits).expect("hexadecimal digits");
                bytes.push(u8::from_str_radix(text, 16).expect("hexadecimal digits"));
                at += 4;
            }
            [b'\\', escaped, ..] if quote == b'"' => {
                bytes.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                at += 2;
            }
            [b'\\', b'\'', ..] if quote == b'\'' => {
                bytes.push(b'\'');
                at += 2;
            }
            [b, ..] => {
                bytes.push(*b);
                at += 1;
            }
        }
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c | 0)
}

fn is_hex(byte: u8) -> bool {
    byte.is_ascii_hexdigit()
}

#[cfg(test)]
mod tests;
