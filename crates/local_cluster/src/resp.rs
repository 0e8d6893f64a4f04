// SPDX-License-Identifier: Apache-2.0
//! The part of a Redis client that the demo needs: it sends commands in a pipeline and reads the
//! replies.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::error::Error;

/// A reply of RESP2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+OK` and the like.
    Simple(String),
    /// `-ERR …`.
    Error(String),
    /// `:7`.
    Int(i64),
    /// A string, or nil.
    Bulk(Option<Vec<u8>>),
    /// An array.
    Array(Vec<Reply>),
}

/// A front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// The address at which the server listens.
    pub address: SocketAddr,
    /// The password that the server wants first.
    pub password: Option<&'static str>,
}

impl Server {
    /// Returns whether a write succeeds through it.
    pub fn serves(self) -> bool {
        let attempt = || -> io::Result<bool> {
            let mut connection = Connection::open(self, Duration::from_secs(2))?;
            let reply = connection.call(&[b"SET", b"demo:ready", b"1"])?;
            Ok(reply == Reply::Simple("OK".into()))
        };
        attempt().unwrap_or(false)
    }
}

/// Waits until a write succeeds through each of them.
pub fn await_service(servers: &[Server], limit: Duration) -> Result<(), Error> {
    let deadline = Instant::now() + limit;
    for &server in servers {
        while !server.serves() {
            if Instant::now() > deadline {
                let address = server.address;
                return Err(Error::new(format!("{address} doesn't serve in {limit:?}")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

impl From<SocketAddr> for Server {
    fn from(address: SocketAddr) -> Server {
        Server {
            address,
            password: None,
        }
    }
}

/// One connection to a server.
pub struct Connection {
    input: BufReader<TcpStream>,
    output: Vec<u8>,
}

const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

impl Connection {
    /// Connects; a reply that takes longer than `timeout` is an error.
    pub fn open(server: impl Into<Server>, timeout: Duration) -> io::Result<Connection> {
        let server = server.into();
        let stream = TcpStream::connect_timeout(&server.address, CONNECT_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        let mut connection = Connection {
            input: BufReader::new(stream),
            output: Vec::new(),
        };
        match server
            .password
            .map(|p| connection.call(&[b"AUTH", p.as_bytes()]))
        {
            None | Some(Ok(Reply::Simple(_))) => Ok(connection),
            Some(Ok(refused)) => Err(io::Error::other(format!("AUTH: {refused:?}"))),
            Some(Err(e)) => Err(e),
        }
    }

    /// Queues a command.
    pub fn push(&mut self, arguments: &[&[u8]]) {
        append_command(&mut self.output, arguments);
    }

    /// Sends what is queued.
    pub fn flush(&mut self) -> io::Result<()> {
        self.input.get_mut().write_all(&self.output)?;
        self.output.clear();
        Ok(())
    }

    /// Sends one command and reads its reply.
    pub fn call(&mut self, arguments: &[&[u8]]) -> io::Result<Reply> {
        self.push(arguments);
        self.flush()?;
        self.read()
    }

    /// Reads one reply.
    pub fn read(&mut self) -> io::Result<Reply> {
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| malformed(&line))?;
        let number = || rest.parse::<i64>().map_err(|_| malformed(&line));
        match kind {
            "+" => Ok(Reply::Simple(rest.to_string())),
            "-" => Ok(Reply::Error(rest.to_string())),
            ":" => Ok(Reply::Int(number()?)),
            "$" => self.bulk(number()?),
            "*" => {
                let items = (0..number()?)
                    .map(|_| self.read())
                    .collect::<Result<_, _>>()?;
                Ok(Reply::Array(items))
            }
            _ => Err(malformed(&line)),
        }
    }

    fn bulk(&mut self, len: i64) -> io::Result<Reply> {
        let Ok(len) = usize::try_from(len) else {
            return Ok(Reply::Bulk(None));
        };
        let mut bytes = vec![0; len + 2];
        self.input.read_exact(&mut bytes)?;
        bytes.truncate(len);
        Ok(Reply::Bulk(Some(bytes)))
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.input.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.truncate(line.trim_end().len());
        Ok(line)
    }
}

/// Appends a command in RESP.
pub fn append_command(out: &mut Vec<u8>, arguments: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", arguments.len()).as_bytes());
    for argument in arguments {
        out.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
}

fn malformed(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a reply: {line:?}"))
}
