// SPDX-License-Identifier: Apache-2.0
//! Writes answers, in both versions of the protocol.

use apps::kv::put_integer;

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

    /// Writes the beginning of a message that answers no command: these words, after which two more
    /// items follow.
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
}
