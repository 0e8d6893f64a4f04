// SPDX-License-Identifier: Apache-2.0
//! Parses requests as clients send them, in RESP arrays of bulk strings or inline commands, and writes answers.
//!
//! This is our own parser, because the crates that parse RESP serve clients: they take every type in every place, know no
//! inline commands, have no limits, and their errors aren't Redis's. The server's half is small.

use std::ops::Range;

use apps::kv::put_integer;
use replica::parts::MAX_COMMAND_LEN;

/// The longest line: an inline command, or a header that never ends.
const MAX_LINE_LEN: usize = 64 << 10;
const MAX_ARGUMENTS: i64 = 1 << 20;
/// The longest argument that is read and skipped, as in Redis's `proto-max-bulk-len`. A longer one ends the connection.
const MAX_BULK_LEN: i64 = 512 << 20;
/// The memory of up to this many arguments is used again.
const MAX_REUSED: usize = 16;
/// A client that hasn't authenticated yet may send at most this many arguments, and this many bytes in each.
const MAX_ARGUMENTS_UNAUTHENTICATED: i64 = 10;
const MAX_BULK_LEN_UNAUTHENTICATED: i64 = 16 << 10;

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
    /// Set if the request is larger than the limits: the bytes of its arguments without the first one. `arguments` is empty
    /// then.
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

/// Returns the first request in `input`, or `None` if it isn't complete.
pub fn parse(input: &[u8], limits: &Limits) -> Result<Option<Request>, ProtocolError> {
    Parser::default().parse(input, limits)
}

/// A parser that remembers how far it got with an incomplete request, so that one that arrives in many pieces isn't read from
/// its beginning each time.
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
    /// Continues with the request at the beginning of `input`, which is the last call's input, extended, without the bytes that
    /// were [skipped](Self::take_passed). After a call that returned a request, begins a new one.
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

    /// Returns how many bytes at the beginning of the input belong to a request that is too large, and may be dropped before
    /// the next call.
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
            // The last byte may be the first half of a line's end, so it is searched again with the next bytes.
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

/// Writes answers in the protocol version that the client chose.
pub struct Writer<'a> {
    /// The output.
    pub out: &'a mut Vec<u8>,
    /// True for RESP3, false for RESP2.
    pub resp3: bool,
}

impl Writer<'_> {
    /// Writes `+text`.
    pub fn status(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// Writes `-text`, which begins with a code such as ERR. Line ends within it become spaces.
    pub fn error(&mut self, text: impl AsRef<[u8]>) {
        self.out.push(b'-');
        let as_one_line = |b: &u8| if matches!(b, b'\r' | b'\n') { b' ' } else { *b };
        self.out.extend(text.as_ref().iter().map(as_one_line));
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes `:n`.
    pub fn integer(&mut self, n: i64) {
        self.number(b':', n);
    }

    /// Writes a string.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.number(b'$', bytes.len() as i64);
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes text for people.
    pub fn verbatim(&mut self, text: &str) {
        if !self.resp3 {
            return self.bulk(text.as_bytes());
        }
        self.number(b'=', text.len() as i64 + 4);
        self.out.extend_from_slice(b"txt:");
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes the null value.
    pub fn null(&mut self) {
        let text: &[u8] = if self.resp3 { b"_\r\n" } else { b"$-1\r\n" };
        self.out.extend_from_slice(text);
    }

    /// Writes the null array.
    pub fn null_array(&mut self) {
        let text: &[u8] = if self.resp3 { b"_\r\n" } else { b"*-1\r\n" };
        self.out.extend_from_slice(text);
    }

    /// Writes the head of an array; its items follow.
    pub fn array(&mut self, len: usize) {
        self.number(b'*', len as i64);
    }

    /// Writes the head of a set; its items follow.
    pub fn set(&mut self, len: usize) {
        self.number(if self.resp3 { b'~' } else { b'*' }, len as i64);
    }

    /// Writes the beginning of a message that answers no command: these words, after which two more items follow.
    pub fn push(&mut self, words: &[&[u8]]) {
        let kind = if self.resp3 { b'>' } else { b'*' };
        self.number(kind, words.len() as i64 + 2);
        words.iter().for_each(|word| self.bulk(word));
    }

    /// Writes the head of a map; its keys and values follow in turn.
    pub fn map(&mut self, len: usize) {
        if self.resp3 {
            self.number(b'%', len as i64);
        } else {
            self.number(b'*', 2 * len as i64);
        }
    }

    fn number(&mut self, kind: u8, n: i64) {
        self.out.push(kind);
        put_integer(self.out, n);
        self.out.extend_from_slice(b"\r\n");
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.out.push(kind);
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Words = (Vec<Vec<u8>>, usize);

    fn words(input: &[u8]) -> Result<Option<Words>, String> {
        match parse(input, &Limits::default()) {
            Ok(None) => Ok(None),
            Ok(Some(request)) => {
                let words = request.arguments.iter().map(|a| a.bytes(input).to_vec());
                Ok(Some((words.collect(), request.len)))
            }
            Err(e) => Err(e.0),
        }
    }

    #[track_caller]
    fn expect(input: &[u8], expected: &[&[u8]]) {
        let expected = expected.iter().map(|w| w.to_vec()).collect();
        assert_eq!(words(input), Ok(Some((expected, input.len()))));
        // The input may come in two pieces, cut anywhere.
        for cut in 1..input.len() {
            let mut parser = Parser::default();
            let limits = Limits::default();
            assert_eq!(parser.parse(&input[..cut], &limits), Ok(None), "{cut}");
            let request = parser.parse(input, &limits).unwrap().unwrap();
            assert_eq!(request, parse(input, &limits).unwrap().unwrap());
        }
    }

    #[test]
    fn arrays_of_bulk_strings() {
        expect(b"*1\r\n$4\r\nPING\r\n", &[b"PING"]);
        expect(b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n", &[b"GET", b""]);
        expect(
            b"*2\r\n$4\r\nECHO\r\n$4\r\n\r\n\r\n\r\n",
            &[b"ECHO", b"\r\n\r\n"],
        );
        expect(b"*0\r\n", &[]);
        expect(b"*-1\r\n", &[]);
    }

    #[test]
    fn inline_commands() {
        expect(b"PING\r\n", &[b"PING"]);
        expect(b"PING\n", &[b"PING"]);
        expect(b"\r\n", &[]);
        expect(b"  set  k\tv \r\n", &[b"set", b"k", b"v"]);
        expect(
            b"set \"a b\\x41\\n\\\"\" 'c \\' d'\r\n",
            &[b"set", b"a bA\n\"", b"c ' d"],
        );
        expect(b"echo \"\"\r\n", &[b"echo", b""]);
    }

    #[test]
    fn numbers_are_written_in_full() {
        for n in [0, 1, -1, 9, 10, 99, 100, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            let mut writer = Writer {
                out: &mut out,
                resp3: false,
            };
            writer.integer(n);
            assert_eq!(String::from_utf8(out).unwrap(), format!(":{n}\r\n"));
        }
    }

    #[test]
    fn what_follows_is_left_alone() {
        let input = b"PING\r\n*1\r\n$4\r\nPING\r\n";
        assert_eq!(words(input).unwrap().unwrap().1, 6);
        assert_eq!(words(&input[6..]).unwrap().unwrap().1, 14);
    }

    #[test]
    fn errors_are_named_as_in_redis() {
        let long_line = vec![b'x'; MAX_LINE_LEN + 1];
        let long_count = [b"*", &[b'1'; MAX_LINE_LEN][..], b"1"].concat();
        for (input, expected) in [
            (&b"*x\r\n"[..], "invalid multibulk length"),
            (b"*1048577\r\n", "invalid multibulk length"),
            (b"*99999999999999999999\r\n", "invalid multibulk length"),
            (b"*1\r\n:1\r\n", "expected '$', got ':'"),
            (b"*1\r\n\r\n", "expected '$', got ' '"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
            (b"*1\r\n$x\r\n", "invalid bulk length"),
            (b"*1\r\n$536870913\r\n", "invalid bulk length"),
            (b"*1\r\n$1\r\nabc", "expected CRLF after a bulk string"),
            (b"a \"b\r\n", "unbalanced quotes in request"),
            (b"a \"b\"c\r\n", "unbalanced quotes in request"),
            (&long_line, "too big inline request"),
            (&long_count, "too big mbulk count string"),
        ] {
            assert_eq!(words(input), Err(expected.to_owned()));
        }
    }

    #[test]
    fn a_header_that_comes_a_byte_at_a_time_is_looked_at_once() {
        let mut parser = Parser::default();
        let header = [b"*", &[b'0'; 5_000][..], b"1\r"].concat();
        for len in 1..=header.len() {
            assert_eq!(parser.parse(&header[..len], &Limits::default()), Ok(None));
            assert_eq!(parser.line, len - 1);
        }
        let whole = [&header[..], b"\n"].concat();
        let error = parser.parse(&whole, &Limits::default()).unwrap_err();
        assert_eq!(error.0, "invalid multibulk length");
    }

    #[test]
    fn strangers_may_not_send_much() {
        let limits = Limits {
            authenticated: false,
            ..Limits::default()
        };
        let error = |input: &[u8]| parse(input, &limits).unwrap_err().0;
        assert_eq!(error(b"*11\r\n"), "unauthenticated multibulk length");
        assert_eq!(error(b"*1\r\n$16385\r\n"), "unauthenticated bulk length");
    }

    /// Feeds `input` in pieces and drops the bytes that may be dropped; returns the requests, and the most bytes that were ever
    /// kept.
    fn in_pieces(input: &[u8], piece: usize) -> (Vec<Request>, usize) {
        let (mut parser, mut kept) = (Parser::default(), Vec::new());
        let (mut requests, mut most) = (Vec::new(), 0);
        for piece in input.chunks(piece) {
            kept.extend_from_slice(piece);
            most = most.max(kept.len() + parser.memory());
            while let Some(request) = parser.parse(&kept, &Limits::default()).unwrap() {
                kept.drain(..request.len);
                requests.push(request);
            }
            kept.drain(..parser.take_passed());
        }
        assert_eq!(kept, b"");
        (requests, most)
    }

    #[test]
    fn what_is_too_large_is_passed_over_and_not_kept() {
        let bulk = |len: usize| {
            let head = format!("${len}\r\n").into_bytes();
            [head, vec![b'x'; len], b"\r\n".to_vec()].concat()
        };
        let limits = Limits::default();
        let ping = b"*1\r\n$4\r\nPING\r\n".to_vec();
        let long = 20 << 20;
        let set = [b"*3\r\n".to_vec(), bulk(3), bulk(1), bulk(long)].concat();
        let name = [b"*2\r\n".to_vec(), bulk(limits.max_bulk_len + 1), bulk(7)].concat();
        let many = [b"*9\r\n".to_vec(), bulk(1 << 20).repeat(9)].concat();
        let empty = [b"*1000000\r\n".to_vec(), bulk(0).repeat(1_000_000)].concat();
        for (large, size) in [
            (set, 1 + long as u64),
            (name, 7),
            (many, 8 << 20),
            (empty, 0),
        ] {
            let whole = parse(&large, &limits).unwrap().unwrap();
            assert_eq!((whole.too_large, whole.len), (Some(size), large.len()));
            assert_eq!(whole.arguments, []);
            let input = [ping.clone(), large, ping.clone()].concat();
            for piece in [4_099, 64 << 10] {
                let (requests, most) = in_pieces(&input, piece);
                let too_large: Vec<_> = requests.iter().map(|r| r.too_large).collect();
                assert_eq!(too_large, [None, Some(size), None]);
                // Up to the limit the request might still be accepted, so its arguments' ranges are kept until then.
                assert!(most < 8 * limits.max_request_len, "{most} bytes were kept");
            }
        }
        let broken = [b"*1\r\n".to_vec(), bulk(2 << 20)].concat();
        let broken = [&broken[..broken.len() - 2], b"xx"].concat();
        let expected = "expected CRLF after a bulk string".to_owned();
        assert_eq!(words(&broken), Err(expected));
    }

    #[test]
    fn random_bytes_never_panic_and_pieces_make_no_difference() {
        let mut rng = test_world::Rng::new(7);
        let mut next = |below: usize| rng.below(below as u64) as usize;
        let alphabet = b"*$\r\n0123-9\"'\\x GET\0\xff";
        let mut complete = 0;
        for _ in 0..200_000 {
            let len = next(24);
            let input: Vec<u8> = (0..len).map(|_| alphabet[next(alphabet.len())]).collect();
            let whole = parse(&input, &Limits::default());
            complete += usize::from(matches!(whole, Ok(Some(_))));
            let cut = next(len + 1);
            let mut parser = Parser::default();
            let first = parser.parse(&input[..cut], &Limits::default());
            if first == Ok(None) {
                assert_eq!(parser.parse(&input, &Limits::default()), whole);
            }
        }
        assert!(complete > 1000);
    }
}
