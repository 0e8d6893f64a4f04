// SPDX-License-Identifier: Apache-2.0
//! Reads the head of an HTTP request. These bytes may come from anybody.

use std::io::{self, Read};
use std::net::TcpStream;
use std::time::Instant;

/// The longest head of a request. Browsers send some hundreds of bytes.
const MAX_HEAD: usize = 8_192;

/// A request that may be answered.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    /// The path without its query.
    pub path: String,
    /// Only the head of the answer is wanted.
    pub is_head: bool,
}

/// The reason why a request isn't answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Malformed,
    TooLong,
    NotReading,
}

impl Request {
    /// Reads one request from a connection, until the deadline.
    pub(super) fn receive(
        mut stream: &TcpStream,
        deadline: Instant,
    ) -> io::Result<Result<Request, Refusal>> {
        let mut head = Vec::new();
        let mut buffer = [0; 1_024];
        loop {
            if let Some(parsed) = parse(&head) {
                return Ok(parsed);
            }
            stream.set_read_timeout(Some(super::answer::left(deadline)?))?;
            match stream.read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => head.extend_from_slice(&buffer[..n]),
            }
        }
    }
}

/// Returns the request in these bytes, or why it is refused; `None` while its head isn't whole.
pub fn parse(bytes: &[u8]) -> Option<Result<Request, Refusal>> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    match end {
        Some(end) if end <= MAX_HEAD => Some(parse_head(&bytes[..end])),
        None if bytes.len() <= MAX_HEAD => None,
        _ => Some(Err(Refusal::TooLong)),
    }
}

fn parse_head(head: &[u8]) -> Result<Request, Refusal> {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = std::str::from_utf8(line).map_err(|_| Refusal::Malformed)?;
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Refusal::Malformed);
    };
    if !version.starts_with("HTTP/1.") || !target.starts_with('/') {
        return Err(Refusal::Malformed);
    }
    let is_head = match method {
        "GET" => false,
        "HEAD" => true,
        _ => return Err(Refusal::NotReading),
    };
    let path = target.split(['?', '#']).next().unwrap_or_default();
    Ok(Request {
        path: path.to_owned(),
        is_head,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(bytes: &[u8]) -> Refusal {
        parse(bytes).unwrap().unwrap_err()
    }

    #[test]
    fn a_request_is_taken_once_its_head_is_whole() {
        let whole = b"GET /status.json?x=1 HTTP/1.1\r\nHost: a\r\n\r\n";
        for end in 0..whole.len() {
            assert_eq!(parse(&whole[..end]), None, "{end} bytes");
        }
        let request = parse(whole).unwrap().unwrap();
        assert_eq!((&*request.path, request.is_head), ("/status.json", false));
        let head = parse(b"HEAD / HTTP/1.0\r\n\r\n").unwrap().unwrap();
        assert!(head.is_head);
    }

    #[test]
    fn what_does_not_only_read_is_refused() {
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "get", "CONNECT"] {
            let request = format!("{method} / HTTP/1.1\r\n\r\n");
            assert_eq!(refused(request.as_bytes()), Refusal::NotReading, "{method}");
        }
    }

    #[test]
    fn what_is_no_request_or_too_long_is_refused() {
        for bytes in [
            "\r\n\r\n",
            "GET\r\n\r\n",
            "GET / \r\n\r\n",
            "GET /  HTTP/1.1\r\n\r\n",
            "GET http://other/ HTTP/1.1\r\n\r\n",
            "GET / HTTP/2\r\n\r\n",
        ] {
            assert_eq!(refused(bytes.as_bytes()), Refusal::Malformed, "{bytes:?}");
        }
        assert_eq!(refused(b"GET /\xff HTTP/1.1\r\n\r\n"), Refusal::Malformed);
        let long = [b"GET / HTTP/1.1\r\nX: ", &[b'x'; MAX_HEAD][..]].concat();
        assert_eq!(refused(&long), Refusal::TooLong);
        let ended = [&long[..], b"\r\n\r\n"].concat();
        assert_eq!(refused(&ended), Refusal::TooLong);
    }
}
