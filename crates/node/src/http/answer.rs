// SPDX-License-Identifier: Apache-2.0
//! Writes an HTTP answer. Its headers allow a browser as little as the page needs.

use std::borrow::Cow;
use std::io::{self, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::request::Refusal;

/// A page may load and ask only what comes from here, and no script may write HTML.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// An answer to one request.
pub(super) struct Answer {
    status: &'static str,
    kind: &'static str,
    body: Cow<'static, str>,
    /// The body isn't sent.
    is_head: bool,
}

impl Answer {
    pub fn new(kind: &'static str, body: impl Into<Cow<'static, str>>) -> Answer {
        Answer {
            status: "200 OK",
            kind,
            body: body.into(),
            is_head: false,
        }
    }

    pub fn json(body: String) -> Answer {
        Answer::new(JSON, body)
    }

    fn failure(status: &'static str, why: &'static str) -> Answer {
        Answer {
            status,
            ..Answer::new(TEXT, why)
        }
    }

    pub fn not_found(why: &'static str) -> Answer {
        Answer::failure("404 Not Found", why)
    }

    pub fn unavailable(why: &'static str) -> Answer {
        Answer::failure("503 Service Unavailable", why)
    }

    /// Returns the answer to one of too many connections.
    pub fn busy() -> Answer {
        Answer::unavailable("too many connections: close some, or ask again\n")
    }

    pub fn refusal(refusal: Refusal) -> Answer {
        match refusal {
            Refusal::Malformed => Answer::failure("400 Bad Request", "this is no HTTP request\n"),
            Refusal::TooLong => Answer::failure(
                "431 Request Header Fields Too Large",
                "the head of the request is too long\n",
            ),
            Refusal::NotReading => Answer::failure(
                "405 Method Not Allowed",
                "this can only be read: use GET or HEAD\n",
            ),
        }
    }

    pub fn head_only(self, is_head: bool) -> Answer {
        Answer { is_head, ..self }
    }

    /// Sends the answer, until the deadline.
    pub fn send(&self, mut stream: &TcpStream, deadline: Instant) -> io::Result<()> {
        let text = self.text();
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            stream.set_write_timeout(Some(left(deadline)?))?;
            match stream.write(rest)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => rest = &rest[n..],
            }
        }
        Ok(())
    }

    /// Sends as much of the answer as the connection takes at once.
    pub fn send_at_once(&self, mut stream: &TcpStream) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        stream.write(self.text().as_bytes()).map(|_| ())
    }

    fn text(&self) -> String {
        let Answer {
            status, kind, body, ..
        } = self;
        let allow = if status.starts_with("405") {
            "Allow: GET, HEAD\r\n"
        } else {
            ""
        };
        let shown = if self.is_head { "" } else { &**body };
        let len = body.len();
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n{allow}\
             Content-Security-Policy: {POLICY}\r\nX-Content-Type-Options: nosniff\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\nReferrer-Policy: no-referrer\r\n\
             Cache-Control: no-store\r\nConnection: close\r\n\r\n{shown}"
        )
    }
}

/// Returns the time until a deadline, or an error if it has passed.
pub(super) fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_says_the_length_of_what_is_not_sent() {
        let whole = Answer::json("{}".to_owned());
        assert!(whole.text().ends_with("\r\n\r\n{}"));
        let head = whole.head_only(true).text();
        assert!(head.ends_with("\r\n\r\n"), "{head}");
        assert!(head.contains("Content-Length: 2\r\n"), "{head}");
    }
}
