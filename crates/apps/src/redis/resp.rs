// SPDX-License-Identifier: Apache-2.0
//! Reads what a Redis server answers, in both versions of the protocol: where an answer ends, and
//! what it holds.

use crate::kv::put_integer;

/// The deepest nesting of values: the deepest answer of a server is COMMAND's.
const MAX_DEPTH: u32 = 32;
/// The rough number of bytes around each argument of a request, and once around the whole.
const HEAD_LEN: usize = 8;

/// Bytes that no server sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

/// Looks for the end of an answer that arrives in pieces.
#[derive(Debug)]
pub struct End {
    /// The place at which the present value begins.
    at: usize,
    /// The first line of the present value doesn't end before this byte.
    seen: usize,
    /// The number of values still to come.
    missing: u64,
    /// The number of bytes that were searched for the ends of lines.
    #[cfg(test)]
    looked_at: usize,
}

impl Default for End {
    fn default() -> Self {
        End {
            at: 0,
            seen: 0,
            missing: 1,
            #[cfg(test)]
            looked_at: 0,
        }
    }
}

impl End {
    /// Returns the length of the answer at the beginning of `bytes`, or `None` if it isn't whole
    /// yet. `bytes` are those of the last call, with more behind them.
    pub fn find(&mut self, bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        while self.missing > 0 {
            let Some(line) = self.line(bytes) else {
                return Ok(None);
            };
            let next = self.at + line.len() + 2;
            let (kind, rest) = line.split_first().ok_or(Malformed)?;
            let (end, inner) = match kind {
                b'$' | b'=' | b'!' => match length(rest)? {
                    None => (next, 0),
                    Some(len) if bytes.len() < next + len + 2 => return Ok(None),
                    Some(len) => (next + len + 2, 0),
                },
                b'*' | b'~' | b'>' => (next, length(rest)?.unwrap_or(0) as u64),
                b'%' => (next, 2 * length(rest)?.unwrap_or(0) as u64),
                // An attribute describes the value that follows it.
                b'|' => (next, 2 * length(rest)?.unwrap_or(0) as u64 + 1),
                b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => (next, 0),
                _ => return Err(Malformed),
            };
            self.at = end;
            self.missing = self.missing - 1 + inner;
        }
        Ok(Some(self.at))
    }

    /// Forgets the values that have ended, and returns their length. The next call of
    /// [`find`](Self::find) must be given the bytes behind them.
    pub fn pass(&mut self) -> usize {
        let ended = std::mem::take(&mut self.at);
        self.seen = self.seen.saturating_sub(ended);
        ended
    }

    /// Returns the first line of the present value, if it is whole. The search continues where the
    /// last call stopped, as a line of many pieces would otherwise be searched from its beginning
    /// with each of them.
    fn line<'a>(&mut self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let from = self.seen.max(self.at);
        let rest = bytes.get(from..)?;
        let found = line_end(rest);
        #[cfg(test)]
        {
            self.looked_at += found.unwrap_or(rest.len());
        }
        // The last byte may be the first half of a line's end.
        self.seen = from + found.unwrap_or(rest.len().saturating_sub(1));
        found.map(|len| &bytes[self.at..from + len])
    }
}

fn line_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(2).position(|pair| pair == b"\r\n")
}

fn line_at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let rest = bytes.get(at..)?;
    line_end(rest).map(|len| &rest[..len])
}

/// Reads the length in a header; `None` stands for a nil value.
fn length(text: &[u8]) -> Result<Option<usize>, Malformed> {
    match std::str::from_utf8(text).ok().and_then(|t| t.parse().ok()) {
        Some(-1i64) => Ok(None),
        Some(len @ 0..=0x4000_0000) => Ok(Some(len as usize)),
        _ => Err(Malformed),
    }
}

/// An answer, parsed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value<'a> {
    /// A nil value.
    Nil,
    /// A number.
    Int(i64),
    /// A string, a status, or a number that isn't whole.
    Text(&'a [u8]),
    /// An error's line.
    Error(&'a [u8]),
    /// An array, a set, or a map's keys and values in turn.
    List(Vec<Value<'a>>),
}

impl<'a> Value<'a> {
    /// Parses an answer that is whole and has nothing behind it.
    pub fn parse(bytes: &'a [u8]) -> Result<Value<'a>, Malformed> {
        let mut rest = bytes;
        let value = Self::take(&mut rest, 0)?;
        rest.is_empty().then_some(value).ok_or(Malformed)
    }

    fn take(rest: &mut &'a [u8], depth: u32) -> Result<Value<'a>, Malformed> {
        if depth > MAX_DEPTH {
            return Err(Malformed);
        }
        let line = line_at(rest, 0).ok_or(Malformed)?;
        *rest = &rest[line.len() + 2..];
        let (kind, text) = line.split_first().ok_or(Malformed)?;
        match kind {
            b'+' | b',' | b'(' | b'#' => Ok(Value::Text(text)),
            b'-' => Ok(Value::Error(text)),
            b'_' => Ok(Value::Nil),
            b':' => {
                let number = std::str::from_utf8(text).ok().and_then(|t| t.parse().ok());
                number.map(Value::Int).ok_or(Malformed)
            }
            b'$' | b'=' | b'!' => {
                let Some(len) = length(text)? else {
                    return Ok(Value::Nil);
                };
                let bytes = rest.get(..len).ok_or(Malformed)?;
                *rest = rest.get(len + 2..).ok_or(Malformed)?;
                Ok(Value::Text(bytes))
            }
            b'*' | b'~' | b'>' | b'%' => {
                let Some(len) = length(text)? else {
                    return Ok(Value::Nil);
                };
                let len = if *kind == b'%' { 2 * len } else { len };
                (0..len)
                    .map(|_| Self::take(rest, depth + 1))
                    .collect::<Result<_, _>>()
                    .map(Value::List)
            }
            b'|' => {
                let described = 2 * length(text)?.unwrap_or(0);
                for _ in 0..described {
                    Self::take(rest, depth + 1)?;
                }
                Self::take(rest, depth + 1)
            }
            _ => Err(Malformed),
        }
    }

    /// Returns the text, or none for a value of another kind.
    pub fn text(&self) -> Option<&'a [u8]> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the number, or none for a value of another kind.
    pub fn int(&self) -> Option<i64> {
        match self {
            Value::Int(number) => Some(*number),
            _ => None,
        }
    }

    /// Returns the items, which are empty for a value of another kind.
    pub fn items(&self) -> &[Value<'a>] {
        match self {
            Value::List(items) => items,
            _ => &[],
        }
    }
}

/// Appends a request.
pub(super) fn put_request(out: &mut Vec<u8>, args: &[&[u8]]) {
    let len = |arg: &&[u8]| arg.len() + HEAD_LEN;
    out.reserve(HEAD_LEN + args.iter().map(len).sum::<usize>());
    put_number(out, b'*', args.len());
    for arg in args {
        put_number(out, b'$', arg.len());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
}

pub(super) fn put_number(out: &mut Vec<u8>, kind: u8, number: usize) {
    out.push(kind);
    put_integer(out, number as i64);
    out.extend_from_slice(b"\r\n");
}

/// Appends an error.
pub(super) fn put_error(out: &mut Vec<u8>, text: &str) {
    out.push(b'-');
    out.extend(text.bytes().map(|b| match b {
        b'\r' | b'\n' => b' ',
        other => other,
    }));
    out.extend_from_slice(b"\r\n");
}

/// Appends the error that a client gets in the place of an answer of more than `most` bytes. All
/// replicas compute the same answer and have the same limit, so they agree on this.
pub(super) fn put_too_large(out: &mut Vec<u8>, most: usize) {
    let text = format!(
        "LIMIT the answer has more than {} MiB, which max_answer_mib in the cluster file sets: ask \
         for less at once, or raise it (a command that writes was executed)",
        most >> 20
    );
    put_error(out, &text);
}

/// Replaces the answer that begins at `start` by an error if it has more than `most` bytes.
pub(super) fn bound(out: &mut Vec<u8>, start: usize, most: usize) {
    if out.len() - start > most {
        out.truncate(start);
        put_too_large(out, most);
    }
}

/// Appends an array of numbers.
pub(super) fn put_numbers(out: &mut Vec<u8>, numbers: &[u64]) {
    put_number(out, b'*', numbers.len());
    for number in numbers {
        out.extend_from_slice(format!(":{number}\r\n").as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWERS: [&[u8]; 10] = [
        b"+OK\r\n",
        b"-ERR no\r\n",
        b":-7\r\n",
        b"$-1\r\n",
        b"$4\r\na\r\nb\r\n",
        b"*-1\r\n",
        b"*2\r\n*1\r\n:1\r\n$0\r\n\r\n",
        b"%1\r\n+a\r\n~2\r\n,1.5\r\n#t\r\n",
        b"|1\r\n+ttl\r\n:3\r\n=5\r\ntxt:a\r\n",
        b"_\r\n",
    ];

    #[test]
    fn an_answer_ends_where_it_does_however_it_arrives() {
        for answer in ANSWERS {
            let with_more = [answer, b"+OK\r\n"].concat();
            for cut in 0..answer.len() {
                let mut end = End::default();
                assert_eq!(end.find(&answer[..cut]), Ok(None), "{answer:?} {cut}");
                assert_eq!(end.find(&with_more), Ok(Some(answer.len())));
            }
            assert!(Value::parse(answer).is_ok(), "{answer:?}");
            assert_eq!(Value::parse(&with_more), Err(Malformed));
        }
    }

    #[test]
    fn a_long_line_that_arrives_in_pieces_is_looked_at_once() {
        const LINE: usize = 8 << 20;
        const PIECE: usize = 64 << 10;
        let line = [b"*2\r\n-", &[b'x'; LINE][..], b"\r\n+OK\r\n"].concat();
        let (mut end, mut pieces) = (End::default(), 0);
        for arrived in (0..line.len()).step_by(PIECE) {
            assert_eq!(end.find(&line[..arrived]), Ok(None));
            pieces += 1;
        }
        assert_eq!(end.find(&line), Ok(Some(line.len())));
        let looked_at = end.looked_at;
        assert!(looked_at <= line.len() + 2 * pieces, "{looked_at} bytes");
    }

    #[test]
    fn the_end_is_found_also_where_the_values_before_it_are_thrown_away() {
        for answer in ANSWERS {
            let with_more = [answer, b"+OK\r\n"].concat();
            let (mut end, mut thrown_away) = (End::default(), 0);
            for arrived in 0..answer.len() {
                assert_eq!(end.find(&with_more[thrown_away..arrived]), Ok(None));
                thrown_away += end.pass();
            }
            let left = answer.len() - thrown_away;
            assert_eq!(
                end.find(&with_more[thrown_away..]),
                Ok(Some(left)),
                "{answer:?}"
            );
        }
    }

    #[test]
    fn values_are_understood() {
        let list = Value::List(vec![Value::List(vec![Value::Int(1)]), Value::Text(b"")]);
        assert_eq!(Value::parse(ANSWERS[6]), Ok(list));
        assert_eq!(Value::parse(b"*-1\r\n"), Ok(Value::Nil));
        assert_eq!(Value::parse(ANSWERS[8]), Ok(Value::Text(b"txt:a")));
    }

    #[test]
    fn what_is_no_answer_is_refused_and_nothing_panics() {
        for wrong in [
            &b"?\r\n"[..],
            b"\r\n",
            b"$x\r\n",
            b"*-2\r\n",
            b"$9999999999\r\n",
        ] {
            assert_eq!(End::default().find(wrong), Err(Malformed), "{wrong:?}");
            assert_eq!(Value::parse(wrong), Err(Malformed));
        }
        let deep = b"*1\r\n".repeat(100_000);
        assert_eq!(Value::parse(&deep), Err(Malformed));
    }
}
