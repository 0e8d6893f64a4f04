// SPDX-License-Identifier: Apache-2.0
//! Replicates an unmodified server, memcached. docs/any-server.md says what a server needs for
//! that.
//!
//! ```text
//! memcached cluster.toml serve replica-1       # be a replica, with a memcached as a child
//! memcached cluster.toml ask "set a 0 0 3" abc # ask the replicated memcached
//! memcached cluster.toml ask "incr n 4"
//! ```
//!
//! With `WIREPAXOS_PRELOAD=/path/preload.so` the child gets its clock and its random numbers from
//! `programs/preload`, and ends with its replica.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use wirepaxos::{Client, ClientOptions, ClusterFile, Error, Program, StateMachine, Stop};

/// The time that the child is told, in microseconds since 1970. It stands still.
const TIME: u64 = 1_000_000_000_000_000;

/// A memcached on a private socket. It runs without eviction, which would depend on the layout of
/// its memory.
pub struct Memcached {
    child: Child,
    stream: Mutex<BufReader<UnixStream>>,
    directory: PathBuf,
}

impl Memcached {
    /// Starts an empty memcached.
    pub fn start() -> io::Result<Memcached> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("memcached-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&directory)?;
        let socket = directory.join("socket");
        let mut command = Command::new("memcached");
        command.args(["-M", "-m", "1024", "-t", "1", "-u", "root", "-s"]);
        command.arg(&socket).stdin(Stdio::piped());
        if let Some(library) = std::env::var_os("WIREPAXOS_PRELOAD") {
            let clock = directory.join("clock");
            let numbers = [TIME, !TIME].map(u64::to_ne_bytes);
            std::fs::write(&clock, numbers.concat())?;
            command
                .env("LD_PRELOAD", library)
                .env("WIREPAXOS_SEED", "1");
            command.env("WIREPAXOS_CLOCK", clock);
        }
        let child = command.spawn()?;
        let stream = connect(&socket)?;
        Ok(Memcached {
            child,
            stream: Mutex::new(BufReader::new(stream)),
            directory,
        })
    }

    /// Sends a command and returns the answer: all lines up to the one that ends it.
    fn ask(&self, command: &[u8]) -> io::Result<Vec<u8>> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        stream.get_mut().write_all(command)?;
        let mut answer = Vec::new();
        loop {
            let start = answer.len();
            if stream.read_until(b'\n', &mut answer)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let line = &answer[start..];
            if line.starts_with(b"VALUE ") {
                let len: usize = word(line, 3).parse().unwrap_or(0);
                let mut data = vec![0; len + 2];
                stream.read_exact(&mut data)?;
                answer.extend(data);
            } else if !line.starts_with(b"key=") {
                // Another replica, with other data in its memory, may have had room, so this
                // replica can't go on.
                return match line.starts_with(b"SERVER_ERROR") {
                    true => Err(io::Error::other(String::from_utf8_lossy(line))),
                    false => Ok(answer),
                };
            }
        }
    }

    /// Returns all contents, as the commands that set them, in the order of the keys.
    fn contents(&self) -> io::Result<Vec<u8>> {
        let listed = self.ask(b"lru_crawler metadump all\r\n")?;
        let lines = listed.split(|byte| *byte == b'\n');
        let keys = lines.filter_map(|line| line.strip_prefix(b"key="));
        let mut keys: Vec<_> = keys.map(|rest| decoded(&word(rest, 0))).collect();
        keys.sort();
        let mut all = Vec::new();
        for key in keys {
            let found = self.ask(&[b"get ", &key[..], b"\r\n"].concat())?;
            let Some(head) = found.split_inclusive(|byte| *byte == b'\n').next() else {
                continue;
            };
            let data = found[head.len()..].strip_suffix(b"END\r\n");
            let flags_and_len = format!(" {} 0 {}\r\n", word(head, 2), word(head, 3));
            let set = [
                b"set ",
                &key[..],
                flags_and_len.as_bytes(),
                data.unwrap_or_default(),
            ];
            all.extend((set.concat().len() as u32).to_be_bytes());
            all.extend(set.concat());
        }
        Ok(all)
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn connect(socket: &Path) -> io::Result<UnixStream> {
    let mut attempts = 0;
    loop {
        match UnixStream::connect(socket) {
            Err(_) if attempts < 500 => std::thread::sleep(Duration::from_millis(10)),
            connected => return connected,
        }
        attempts += 1;
    }
}

/// Returns a word of a line, counted from 0.
fn word(line: &[u8], at: usize) -> String {
    let text = String::from_utf8_lossy(line);
    text.split_ascii_whitespace()
        .nth(at)
        .unwrap_or_default()
        .to_owned()
}

/// Decodes a key as memcached lists it: `%25` stands for a percent sign, and so on.
fn decoded(listed: &str) -> Vec<u8> {
    let mut parts = listed.split('%');
    let mut key = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (code, rest) = part.split_at(part.len().min(2));
        key.extend(u8::from_str_radix(code, 16));
        key.extend_from_slice(rest.as_bytes());
    }
    key
}

/// Returns why a command isn't executed. Only whole commands are executed that have one answer and
/// depend on no clock.
fn refusal(command: &[u8]) -> Option<&'static str> {
    let head = command.split_inclusive(|byte| *byte == b'\n').next();
    let head = head.unwrap_or_default();
    let data = &command[head.len()..];
    let is_whole = head.ends_with(b"\r\n") && !head[..head.len() - 2].contains(&b'\r');
    match (word(head, 0).as_str(), data.is_empty()) {
        ("set" | "add" | "replace" | "append" | "prepend", _) => {
            let len: Option<usize> = word(head, 4).parse().ok();
            let ends = len.map(|len| len + 2) == Some(data.len()) && data.ends_with(b"\r\n");
            match (
                is_whole && ends && word(head, 5).is_empty(),
                word(head, 3).as_str(),
            ) {
                (true, "0") => None,
                (true, _) => {
                    Some("CLIENT_ERROR exptime must be 0: replicas share no clock here\r\n")
                }
                (false, _) => Some("CLIENT_ERROR this is not one whole command\r\n"),
            }
        }
        ("get", true) if is_whole && word(head, 2).is_empty() => None,
        ("delete", true) if is_whole && word(head, 2).is_empty() => None,
        ("incr" | "decr", true) if is_whole && word(head, 3).is_empty() => None,
        _ => Some("CLIENT_ERROR this command isn't replicated\r\n"),
    }
}

impl StateMachine for Memcached {
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) {
        if let Some(why) = refusal(command) {
            return reply.extend_from_slice(why.as_bytes());
        }
        match self.ask(command) {
            Ok(answer) => reply.extend(answer),
            // The replica's next start takes its data from the last checkpoint and the log.
            Err(e) => {
                eprintln!("memcached can't go on: {e}");
                std::process::exit(1);
            }
        }
    }

    fn is_read(command: &[u8]) -> bool {
        command.starts_with(b"get ") && refusal(command).is_none()
    }

    fn save(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.contents()?)
    }

    fn load(from: &mut dyn Read) -> io::Result<Self> {
        let server = Memcached::start()?;
        let mut len = [0; 4];
        while from.read(&mut len[..1])? == 1 {
            from.read_exact(&mut len[1..])?;
            let mut command = vec![0; u32::from_be_bytes(len) as usize];
            from.read_exact(&mut command)?;
            if server.ask(&command)? != b"STORED\r\n" {
                return Err(ErrorKind::InvalidData.into());
            }
        }
        Ok(server)
    }
}

/// Returns the program that a replica executes.
pub fn program() -> Program {
    Program::in_memory(|| Memcached::start().expect("memcached starts: is it installed?"))
}

fn serve(file: &str, name: &str) -> Result<(), Error> {
    let cluster = ClusterFile::load(Path::new(file))?;
    let stop = Stop::new()?;
    stop.on_signals()?;
    wirepaxos::run(&cluster, name, &program(), &stop)
}

fn ask(file: &str, lines: &[&str]) -> Result<(), Error> {
    let cluster = ClusterFile::load(Path::new(file))?;
    let mut client = Client::open(&cluster, ClientOptions::default())?;
    let command: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    let answer = client.call(0, command.as_bytes(), Duration::from_secs(5));
    print!("{}", String::from_utf8_lossy(&answer.answer()?));
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match &arguments[..] {
        [file, "serve", name] => serve(file, name),
        [file, "ask", lines @ ..] => ask(file, lines),
        _ => {
            eprintln!(
                "usage: memcached CLUSTER.toml serve NODE | memcached CLUSTER.toml ask LINE ..."
            );
            return ExitCode::FAILURE;
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("memcached: {e}");
            ExitCode::FAILURE
        }
    }
}
