// SPDX-License-Identifier: Apache-2.0
//! A Redis server as a child process: its start, its requests, and its end.
//!
//! The server listens on a socket in a directory that only this user may enter, and on no port. It
//! stores nothing by itself. Its clock and its random numbers are those of the preloaded library
//! (`programs/preload`).

mod answers;
mod program;

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use replica::{Error, MOVE_AWAY};

use super::catalogue::Catalogue;
use super::connection::Connection;
use super::fingerprint::Fingerprint;
use super::notifications::Notifications;
use super::preload::{self, START_MS, ShownClock};
use super::replay_log::Batch;
use super::resp::{Value, put_request};
use super::scripts;
use super::server_check;
use crate::kv::MAX_REPLY_LEN;
pub use program::is_installed;
use program::{connect, find_program, last_words, program_name};

const LOG_FILE: &str = "server.log";

/// Programs that are Redis, and the name under which each is started: Debian's redis-tools has the
/// server under another name.
const PROGRAMS: [(&str, &str); 3] = [
    ("redis-server", "redis-server"),
    ("valkey-server", "valkey-server"),
    ("redis-check-rdb", "redis-server"),
];

/// The seed is equal on all replicas, so keys have the same hashes, and a cursor of SCAN is valid
/// at each of them.
const SEED: &str = "1";

/// The C library uses other code for `sin` and its like where the processor multiplies and adds in
/// one step. That rounds otherwise, so GEOADD would store other scores; no server uses it. Names
/// that a C library doesn't know have no effect.
const CPU_FEATURES: Option<(&str, &str)> = if cfg!(target_arch = "x86_64") {
    Some((
        "GLIBC_TUNABLES",
        "glibc.cpu.hwcaps=-FMA,-FMA4,-FMA_Usable,-FMA4_Usable",
    ))
} else {
    None
};

/// The time, in the library's steps, after which a script has taken too long: 200 million
/// instructions, or a million commands.
const SCRIPT_MS: &str = "2000";

/// The most bytes of a string: SETRANGE, APPEND, and SETBIT would make a large one with a short
/// command.
const MAX_STRING: &str = "64mb";

/// How many bytes of a server's log an operator is shown when it ends.
const LOG_SHOWN: usize = 600;
/// The number of commands whose answers are awaited together while they are executed again and the
/// answers don't matter.
const REPLAYED_AT_ONCE: usize = 64;
/// The number of bytes at which requests are sent early, so that the server works on them
/// meanwhile.
const SEND_BYTES: usize = 4 << 10;

/// The user whose rights a command has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum User {
    Client,
    Script,
}

impl User {
    fn name(self) -> &'static [u8] {
        match self {
            User::Client => b"client",
            User::Script => b"script",
        }
    }
}

/// A server's partition, the number of partitions, and a limit. Scripts may name keys of this
/// partition only.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home {
    pub pid: u16,
    pub partitions: u16,
    /// The most bytes of an answer to a client.
    pub most_answer: usize,
}

impl Default for Home {
    fn default() -> Home {
        Home {
            pid: 0,
            partitions: 0,
            most_answer: MAX_REPLY_LEN,
        }
    }
}

/// The state that a command needs of its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ClientState {
    pub user: User,
    pub resp3: bool,
}

/// A running server. It ends when this is dropped.
pub(super) struct Server {
    child: Child,
    /// The connection for decided commands.
    commands: Connection,
    client: ClientState,
    /// The connection for everything else.
    control: Connection,
    /// The connection that gets all published messages.
    pub(super) ear: Connection,
    /// Messages are wanted at present, and all earlier ones were read.
    pub(super) listens: bool,
    /// The events of keys of which the server tells.
    pub(super) notifies: Notifications,
    clock: ShownClock,
    most_answer: usize,
    /// The files of this start: its socket and its clock.
    files: [PathBuf; 2],
    pub(super) fingerprint: Fingerprint,
}

/// The reason why a server can't go on; it may be started anew.
pub(super) type Dead = io::Error;

impl Server {
    /// Starts a server on the contents of a file of this directory, or on none, and waits until it
    /// serves. Until [`set_clock`](Self::set_clock) its clock shows 1970, so nothing has expired.
    ///
    /// A server that doesn't fit the group's is an error. Commands that the group's lacks are
    /// refused.
    pub fn start(
        dir: &Path,
        contents: Option<&str>,
        home: Home,
        agreed: Option<&Fingerprint>,
    ) -> Result<(Server, Catalogue), Error> {
        let number = nonce();
        let [socket, clock] =
            ["socket", "clock"].map(|name| dir.join(format!("{name}-{number:016x}")));
        let log = dir.join(LOG_FILE);
        let failed = |what: &str, e: io::Error| {
            Error(format!(
                "cannot {what} for a Redis server in {}: {e}",
                dir.display()
            ))
        };
        let preload = preload::write(dir).map_err(|e| failed("write the library", e))?;
        let clock_file = ShownClock::create(&clock).map_err(|e| failed("write the clock", e))?;
        let clock_path = fs::canonicalize(&clock).map_err(|e| failed("find the clock", e))?;
        let preload = fs::canonicalize(&preload).map_err(|e| failed("find the library", e))?;
        let (program, name) = find_program()?;
        let mut command = Command::new(program);
        command
            .arg0(name)
            .current_dir(dir)
            // This comes first, since other paths are relative to it.
            .args(["--dir", "."])
            .args(["--port", "0", "--unixsocketperm", "700"])
            .args(["--save", "", "--appendonly", "no", "--databases", "2"])
            .args(["--maxmemory", "0", "--activerehashing", "no"])
            .args(["--busy-reply-threshold", SCRIPT_MS])
            .args(["--proto-max-bulk-len", MAX_STRING])
            // Otherwise the next command on a damaged payload would end the servers of all
            // replicas, at each start again. The contents that a server loads by itself were
            // checked when they came in.
            .args(["--sanitize-dump-payload", "clients"])
            .args([
                "--enable-protected-configs",
                "yes",
                "--enable-debug-command",
                "yes",
                "--enable-module-command",
                "yes",
                "--rdbcompression",
                "no",
            ])
            .args([
                "--set-proc-title",
                "no",
                "--stop-writes-on-bgsave-error",
                "no",
            ])
            // If memory is short, the system should end the server rather than the replica.
            .args(["--oom-score-adj", "absolute"])
            .args(["--oom-score-adj-values", "500", "500", "800"])
            // Messages of scripts wait until their script has ended.
            .args(["--client-output-buffer-limit", "pubsub 0 0 0"])
            .args([
                "--client-query-buffer-limit",
                "2gb",
                "--loglevel",
                "warning",
            ])
            .args(["--daemonize", "no", "--logfile", LOG_FILE])
            // Files of other names are removed at the next start, since a server's own child may
            // outlive it.
            .args(["--dbfilename", contents.unwrap_or("none")])
            .arg("--unixsocket")
            .arg(socket.file_name().expect("it has a name"))
            .env_clear()
            .env("LC_ALL", "C")
            .envs(CPU_FEATURES)
            // The whole path may have a space or a colon, which would separate names here.
            .env("LD_PRELOAD", Path::new(".").join(preload::FILE))
            .env("WIREPAXOS_CLOCK", clock_path)
            .env("WIREPAXOS_SEED", SEED)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(File::create(dir.join("server.err")).map_err(|e| failed("write a log", e))?);
        let _ = fs::remove_file(&log);
        let mut child = command
            .spawn()
            .map_err(|e| failed(&format!("start {}", program_name(&command)), e))?;
        let client = ClientState {
            user: User::Client,
            resp3: false,
        };
        let connections = connect(&mut child, dir, &socket);
        let connections = connections.and_then(|commands| {
            let another = || Connection::to(dir, &socket);
            Ok((commands, another()?, another()?))
        });
        let (commands, control, ear) = match connections {
            Ok(all) => all,
            Err(e) => {
                let _ = child.kill();
                let _ = child.wait();
                let loads = match contents {
                    Some(_) => format!("; if its contents are damaged, {MOVE_AWAY}"),
                    None => String::new(),
                };
                let said = last_words(dir);
                return Err(Error(format!(
                    "the Redis server in {} doesn't start: {e}{loads}. Its last words: {said}",
                    dir.display()
                )));
            }
        };
        let mut server = Server {
            child,
            commands,
            client,
            control,
            ear,
            listens: false,
            notifies: Notifications::default(),
            clock: clock_file,
            most_answer: home.most_answer,
            files: [socket, clock],
            fingerprint: Fingerprint::default(),
        };
        let not_prepared = |e| failed("prepare everything", e);
        let mut catalogue = server.examine().map_err(not_prepared)?;
        let fingerprint = server.identify(&catalogue).map_err(not_prepared)?;
        if let Some(agreed) = agreed {
            server_check::check(dir, &fingerprint, agreed)?;
            catalogue.limit_to(|name| agreed.knows(name));
        }
        server.fingerprint = fingerprint;
        server
            .prepare(&catalogue, &preload, home)
            .map_err(not_prepared)?;
        Ok((server, catalogue))
    }

    /// Checks that the library is loaded, and returns the server's commands.
    fn examine(&mut self) -> io::Result<Catalogue> {
        const TRIAL_MS: u64 = 1_234_567_890_123;
        self.clock.show(TRIAL_MS)?;
        let time = self.ask(&[b"TIME"])?;
        let shown = Value::parse(&time).ok();
        let shown = shown.as_ref().and_then(|v| v.items().first()?.text());
        if shown != Some(b"1234567890") {
            return Err(io::Error::other(
                "its clock isn't that of the preloaded library: LD_PRELOAD has no effect on this \
                 program, or on a file system that is mounted with `noexec`",
            ));
        }
        self.clock.show(START_MS)?;
        self.find_counted_clock()?;
        let answer = self.ask(&[b"COMMAND"])?;
        let catalogue = Catalogue::parse(&answer);
        catalogue.map_err(|_| io::Error::other("its COMMAND isn't understood"))
    }

    /// Makes the server ready for commands, with these for scripts.
    fn prepare(&mut self, catalogue: &Catalogue, preload: &Path, home: Home) -> io::Result<()> {
        for user in [User::Client, User::Script] {
            self.order(&[
                b"ACL",
                b"SETUSER",
                user.name(),
                b"on",
                b"nopass",
                b"~*",
                b"&*",
                b"+@all",
                b"-@admin",
                b"-@pubsub",
                b"+publish",
            ])?;
        }
        // This comes after COMMAND, so that clients don't get the commands that the library adds.
        let rules = scripts::rules(catalogue);
        let numbers = [home.pid, home.partitions].map(|number| number.to_string());
        let mut load: Vec<&[u8]> = vec![b"MODULE", b"LOAD", preload.as_os_str().as_bytes()];
        load.extend(numbers.iter().chain(&rules).map(String::as_bytes));
        self.order(&load)?;
        // PUBLISH answers a script with the number of receivers, which is always one: this
        // connection.
        self.ear.put(b"PSUBSCRIBE *\r\n");
        self.ear.send()?;
        self.ear.skip()?;
        // The replica's own data lies in the other database.
        self.order(&[b"SELECT", b"1"])?;
        self.put_client_state(self.client);
        self.send()?;
        self.receive_standing()
    }

    /// Returns an error unless the server asks the system for its own clock: that is where the
    /// steps of a script are counted.
    fn find_counted_clock(&mut self) -> io::Result<()> {
        let info = self.order(&[b"INFO", b"server"])?;
        let info = String::from_utf8_lossy(&info);
        match info.contains("monotonic_clock:POSIX") {
            true => Ok(()),
            false => Err(io::Error::other(
                "it takes its own clock from the processor, so scripts can't be limited: install a \
                 build without USE_PROCESSOR_CLOCK",
            )),
        }
    }

    /// Returns the id of the server's process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    // ---- Decided commands

    /// Sets the time. Everything that was sent before must have been answered.
    pub fn set_clock(&mut self, ms: u64) -> Result<(), Dead> {
        self.clock.show(ms)
    }

    /// Returns whether the server has ended because scripts took too many steps.
    pub fn is_over(&self) -> Result<bool, Dead> {
        self.clock.is_over()
    }

    /// Returns whether the server has ended because scripts took too much memory.
    pub fn is_full(&self) -> Result<bool, Dead> {
        self.clock.is_full()
    }

    /// Returns why the server has ended, if a script was refused something after it had changed
    /// something.
    pub fn refusal(&self) -> Result<Option<String>, Dead> {
        self.clock.refusal()
    }

    /// Returns how many bytes Lua has in memory.
    pub fn held(&self) -> Result<u64, Dead> {
        self.clock.held()
    }

    /// Executes the requests, and appends the last answer. Their scripts may use `room` bytes,
    /// including what they have already; 0 means no limit.
    pub fn execute(&mut self, given: &Batch, room: u64, answer: &mut Vec<u8>) -> Result<(), Dead> {
        let greets = self.put(given)?;
        if given.scripts > 0 {
            self.clock.begin_run(given.scripts, room)?;
        }
        self.send()?;
        self.receive(given, greets, self.most_answer, answer)?;
        self.clock.end_run()
    }

    /// Executes everything that another server was given before, in the same order.
    pub fn replay<'a>(&mut self, all: impl Iterator<Item = &'a Batch>) -> Result<(), Dead> {
        let mut put: Vec<(&Batch, bool)> = Vec::new();
        for given in all {
            let goes_along = |(last, _): &(&Batch, bool)| last.ms == given.ms && given.scripts == 0;
            let awaited: usize = put.iter().map(|(given, _)| given.count).sum();
            if !put.last().is_some_and(goes_along) || awaited >= REPLAYED_AT_ONCE {
                self.receive_all(&mut put)?;
            }
            match given.scripts {
                0 => put.push((given, self.put(given)?)),
                // It was found small enough when it was executed first.
                _ => self.execute(given, 0, &mut Vec::new())?,
            }
        }
        self.receive_all(&mut put)
    }

    /// Puts requests behind those that were put before at the same time; they are sent once there
    /// are many, or with [`Server::send`]. Returns whether the connection's state changes for them,
    /// which has an answer of its own.
    pub fn put(&mut self, given: &Batch) -> Result<bool, Dead> {
        self.clock.show(given.ms)?;
        let greets = given.client != self.client;
        if greets {
            self.put_client_state(given.client);
        }
        self.commands.put(&given.requests);
        if self.commands.unsent() >= SEND_BYTES && given.scripts == 0 {
            self.send()?;
        }
        Ok(greets)
    }

    /// Sends everything that was put.
    pub fn send(&mut self) -> Result<(), Dead> {
        self.commands.send()
    }

    fn put_client_state(&mut self, client: ClientState) {
        let version: &[u8] = if client.resp3 { b"3" } else { b"2" };
        let mut hello = Vec::new();
        let user = client.user.name();
        put_request(&mut hello, &[b"HELLO", version, b"AUTH", user, b""]);
        self.commands.put(&hello);
        self.client = client;
    }

    // ---- Everything else

    /// Asks something in the database that clients don't see, or about the server, and returns the
    /// answer.
    pub fn ask(&mut self, args: &[&[u8]]) -> Result<Vec<u8>, Dead> {
        let mut request = Vec::new();
        put_request(&mut request, args);
        let mut answer = Vec::new();
        self.control.put(&request);
        self.control.send()?;
        self.control.receive(&mut answer)?;
        Ok(answer)
    }

    /// Asks as [`ask`](Self::ask) does, and returns an error if the server refuses.
    pub fn order(&mut self, args: &[&[u8]]) -> Result<Vec<u8>, Dead> {
        let answer = self.ask(args)?;
        match answer.first() {
            Some(b'-') => Err(refused(&answer)),
            _ => Ok(answer),
        }
    }

    /// Asks several things at once, and returns the answers.
    pub fn ask_all(&mut self, requests: &[u8], count: usize) -> Result<Vec<Vec<u8>>, Dead> {
        self.control.put(requests);
        self.control.send()?;
        let mut answers = Vec::with_capacity(count);
        for _ in 0..count {
            let mut answer = Vec::new();
            self.control.receive(&mut answer)?;
            answers.push(answer);
        }
        Ok(answers)
    }

    /// Puts a request that is sent with the next question. That returns an error if this request
    /// was refused.
    pub fn queue(&mut self, args: &[&[u8]]) {
        let mut request = Vec::new();
        put_request(&mut request, args);
        self.control.put_unanswered(&request);
    }

    /// Returns whether a snapshot is being written, and whether the last one succeeded.
    pub fn saves(&mut self) -> Result<Saves, Dead> {
        let info = self.info(b"persistence")?;
        Ok(Saves {
            is_running: info.field("rdb_bgsave_in_progress") != Some("0"),
            was_good: info.field("rdb_last_bgsave_status") == Some("ok"),
        })
    }

    /// Asks for a section of INFO.
    pub fn info(&mut self, section: &[u8]) -> Result<Info, Dead> {
        let answer = self.order(&[b"INFO", section])?;
        Ok(Info(String::from_utf8_lossy(&answer).into_owned()))
    }
}

/// A section of INFO, as the server has answered it.
pub(super) struct Info(pub String);

impl Info {
    /// Returns what the line `name:...` says.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.0.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    }
}

/// The state of the server's snapshots, returned by [`Server::saves`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Saves {
    pub is_running: bool,
    pub was_good: bool,
}

impl Server {
    /// Kills the server. Everything that it holds is stored or in the log.
    pub fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
    }
}

pub(super) fn refused(answer: &[u8]) -> io::Error {
    let text = String::from_utf8_lossy(answer);
    io::Error::other(format!("the Redis server refuses: {}", text.trim()))
}

/// Returns another number for each start, also of other processes: a child of a killed server may
/// still write its file.
pub(super) fn nonce() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}
