// SPDX-License-Identifier: Apache-2.0
//! A Redis server as a child process: its start, what it is given, and its end.
//!
//! It listens on a socket in a directory that only this user may enter, and on no port. It stores nothing by itself. Its clock
//! and its dice are those of the preloaded library (`programs/preload`).

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use replica::{Error, MOVE_AWAY};

use super::catalogue::Catalogue;
use super::connection::Connection;
use super::kept::Given;
use super::preload::{self, START_MS, ShownClock};
use super::resp::{MOST_ANSWER, Value, put_request, put_too_large};
use super::scripts;

const LOG_FILE: &str = "server.log";

/// Programs that are Redis, and as what each is to be called: Debian's redis-tools has the server under another name.
const PROGRAMS: [(&str, &str); 3] = [
    ("redis-server", "redis-server"),
    ("valkey-server", "valkey-server"),
    ("redis-check-rdb", "redis-server"),
];

/// The same for all replicas: keys then have the same hashes, so that a cursor of SCAN is good at each of them.
const SEED: &str = "1";

/// The C library takes other code for `sin` and its like where the processor multiplies and adds in one step, and rounds otherwise
/// there: GEOADD would store other scores. So no server uses it. Names that a C library doesn't know have no effect.
const CPU_FEATURES: Option<(&str, &str)> = if cfg!(target_arch = "x86_64") {
    Some((
        "GLIBC_TUNABLES",
        "glibc.cpu.hwcaps=-FMA,-FMA4,-FMA_Usable,-FMA4_Usable",
    ))
} else {
    None
};

/// After so many milliseconds, of such steps, a script has taken too long: 200 million instructions, or a million commands.
const SCRIPT_MS: &str = "2000";

/// No string grows beyond it: SETRANGE, APPEND, and SETBIT would make a large one of a short command.
const MAX_STRING: &str = "64mb";

/// Shown to an operator when a server ends: so much of its log.
const LOG_SHOWN: usize = 600;
/// Commands whose answers are awaited together, where the answers don't matter.
const REPLAYED_AT_ONCE: usize = 64;
/// So much that was put leaves at once: the server works on it meanwhile.
const SEND_BYTES: usize = 4 << 10;

/// Whose rights a command has.
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

/// Which partition, of how many, a server is. Scripts name keys of this one alone.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Home {
    pub pid: u16,
    pub partitions: u16,
}

/// How a connection is to stand before a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Standing {
    pub user: User,
    pub resp3: bool,
}

/// A running server. It ends when this is dropped.
pub(super) struct Server {
    child: Child,
    /// For decided commands.
    commands: Connection,
    standing: Standing,
    /// For everything else.
    control: Connection,
    /// Gets all messages that are published.
    ear: Connection,
    /// Whether all messages of before were taken.
    listens: bool,
    clock: ShownClock,
    /// Files of this start.
    files: [PathBuf; 2],
}

/// Why a server can't go on; it may be started anew.
pub(super) type Dead = io::Error;

impl Server {
    /// Starts one on the contents of a file of this directory, or on none, and waits until it serves. Meanwhile, and until
    /// it is told otherwise, its clock shows 1970: so nothing has expired.
    pub fn start(
        dir: &Path,
        contents: Option<&str>,
        home: Home,
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
            // First: other paths are relative to it.
            .arg("--dir")
            .arg(dir)
            .args(["--port", "0", "--unixsocketperm", "700"])
            .args(["--save", "", "--appendonly", "no", "--databases", "2"])
            .args(["--maxmemory", "0", "--activerehashing", "no"])
            .args(["--busy-reply-threshold", SCRIPT_MS])
            .args(["--proto-max-bulk-len", MAX_STRING])
            // Otherwise the next command on a damaged payload would end the servers of all replicas, at each start again. What a
            // server loads by itself was checked when it came in.
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
            // Short of memory, the system is to end this rather than the replica.
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
            // The others are removed at the next start, since a child's child may outlive it.
            .args(["--dbfilename", contents.unwrap_or("none")])
            .arg("--unixsocket")
            .arg(socket.file_name().expect("it has a name"))
            .env_clear()
            .env("LC_ALL", "C")
            .envs(CPU_FEATURES)
            .env("LD_PRELOAD", &preload)
            .env("WIREPAXOS_CLOCK", clock_path)
            .env("WIREPAXOS_SEED", SEED)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(File::create(dir.join("server.err")).map_err(|e| failed("write a log", e))?);
        let _ = fs::remove_file(&log);
        let mut child = command
            .spawn()
            .map_err(|e| failed(&format!("start {}", program_name(&command)), e))?;
        let standing = Standing {
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
            standing,
            control,
            ear,
            listens: false,
            clock: clock_file,
            files: [socket, clock],
        };
        let catalogue = server
            .prepare(&preload, home)
            .map_err(|e| failed("prepare everything", e))?;
        Ok((server, catalogue))
    }

    /// Finds out whether the library is there, and what the server can do.
    fn prepare(&mut self, preload: &Path, home: Home) -> io::Result<Catalogue> {
        const TRIAL_MS: u64 = 1_234_567_890_123;
        self.clock.show(TRIAL_MS)?;
        let time = self.ask(&[b"TIME"])?;
        let shown = Value::parse(&time).ok();
        let shown = shown.as_ref().and_then(|v| v.items().first()?.text());
        if shown != Some(b"1234567890") {
            return Err(io::Error::other(
                "its clock isn't that of the preloaded library: LD_PRELOAD has no effect on this program, or on a file \
                 system that is mounted with `noexec`",
            ));
        }
        self.clock.show(START_MS)?;
        self.find_counted_clock()?;
        let answer = self.ask(&[b"COMMAND"])?;
        let catalogue = Catalogue::parse(&answer);
        let catalogue = catalogue.map_err(|_| io::Error::other("its COMMAND isn't understood"))?;
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
        // Behind COMMAND: what the library adds is no client's.
        let rules = scripts::rules(&catalogue);
        let numbers = [home.pid, home.partitions].map(|number| number.to_string());
        let mut load: Vec<&[u8]> = vec![b"MODULE", b"LOAD", preload.as_os_str().as_bytes()];
        load.extend(numbers.iter().chain(&rules).map(String::as_bytes));
        self.order(&load)?;
        // How many get a message decides what PUBLISH answers to a script: it is one, always.
        self.ear.put(b"PSUBSCRIBE *\r\n");
        self.ear.send()?;
        self.ear.skip()?;
        // What is the replica's own lies in the other database.
        self.order(&[b"SELECT", b"1"])?;
        self.put_standing(self.standing);
        self.send()?;
        self.receive_standing()?;
        Ok(catalogue)
    }

    /// The steps of a script are counted where the server asks the system for its own clock.
    fn find_counted_clock(&mut self) -> io::Result<()> {
        let info = self.order(&[b"INFO", b"server"])?;
        let info = String::from_utf8_lossy(&info);
        match info.contains("monotonic_clock:POSIX") {
            true => Ok(()),
            false => Err(io::Error::other(
                "it takes its own clock from the processor, so scripts can't be limited: install a build without \
                 USE_PROCESSOR_CLOCK",
            )),
        }
    }

    /// The process's number.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    // ---- Decided commands

    /// What time it is from now on. Everything that was sent before must have been answered.
    pub fn set_clock(&mut self, ms: u64) -> Result<(), Dead> {
        self.clock.show(ms)
    }

    /// Whether the server has ended since scripts took too many steps.
    pub fn is_over(&self) -> Result<bool, Dead> {
        self.clock.is_over()
    }

    /// Whether it has ended since scripts took too much memory.
    pub fn is_full(&self) -> Result<bool, Dead> {
        self.clock.is_full()
    }

    /// Why it has ended, if a script was refused something behind what it had changed.
    pub fn refusal(&self) -> Result<Option<String>, Dead> {
        self.clock.refusal()
    }

    /// What Lua has in memory, in bytes.
    pub fn held(&self) -> Result<u64, Dead> {
        self.clock.held()
    }

    /// Executes what is given, and appends the last answer. Together with what they have, scripts get so many bytes; with 0 as many
    /// as they like.
    pub fn execute(&mut self, given: &Given, room: u64, answer: &mut Vec<u8>) -> Result<(), Dead> {
        let greets = self.put(given)?;
        if given.scripts > 0 {
            self.clock.begin_run(given.scripts, room)?;
        }
        self.send()?;
        self.receive(given, greets, MOST_ANSWER, answer)?;
        self.clock.end_run()
    }

    /// Executes what another server was given before, in the same order.
    pub fn replay<'a>(&mut self, all: impl Iterator<Item = &'a Given>) -> Result<(), Dead> {
        let mut put: Vec<(&Given, bool)> = Vec::new();
        for given in all {
            let goes_along = |(last, _): &(&Given, bool)| last.ms == given.ms && given.scripts == 0;
            let awaited: usize = put.iter().map(|(given, _)| given.count).sum();
            if !put.last().is_some_and(goes_along) || awaited >= REPLAYED_AT_ONCE {
                self.receive_all(&mut put)?;
            }
            match given.scripts {
                0 => put.push((given, self.put(given)?)),
                // It was found small enough.
                _ => self.execute(given, 0, &mut Vec::new())?,
            }
        }
        self.receive_all(&mut put)
    }

    fn receive_all(&mut self, put: &mut Vec<(&Given, bool)>) -> Result<(), Dead> {
        self.send()?;
        let mut answer = Vec::new();
        for (given, greets) in put.drain(..) {
            answer.clear();
            self.receive(given, greets, MOST_ANSWER, &mut answer)?;
        }
        Ok(())
    }

    /// Puts what is given behind what was put before at the same time; it leaves once there is much, or with
    /// [`Server::send`]. Whether the connection's standing changes for it, which has an answer of its own.
    pub fn put(&mut self, given: &Given) -> Result<bool, Dead> {
        self.clock.show(given.ms)?;
        let greets = given.standing != self.standing;
        if greets {
            self.put_standing(given.standing);
        }
        self.commands.put(&given.requests);
        if self.commands.unsent() >= SEND_BYTES && given.scripts == 0 {
            self.send()?;
        }
        Ok(greets)
    }

    /// What was put is on its way.
    pub fn send(&mut self) -> Result<(), Dead> {
        self.commands.send()
    }

    /// Waits for the answers to the next that was put, and appends the last of them, or an error in the place of one that has
    /// more than `most` bytes.
    pub fn receive(
        &mut self,
        given: &Given,
        greets: bool,
        most: usize,
        answer: &mut Vec<u8>,
    ) -> Result<(), Dead> {
        if greets {
            self.receive_standing()?;
        }
        for _ in 1..given.count {
            self.commands.skip()?;
        }
        if !self.commands.receive_at_most(most, answer)? {
            put_too_large(answer);
        }
        Ok(())
    }

    fn put_standing(&mut self, standing: Standing) {
        let version: &[u8] = if standing.resp3 { b"3" } else { b"2" };
        let mut hello = Vec::new();
        let user = standing.user.name();
        put_request(&mut hello, &[b"HELLO", version, b"AUTH", user, b""]);
        self.commands.put(&hello);
        self.standing = standing;
    }

    fn receive_standing(&mut self) -> io::Result<()> {
        let mut answer = Vec::new();
        self.commands.receive(&mut answer)?;
        match answer.first() {
            Some(b'-') => Err(refused(&answer)),
            _ => Ok(()),
        }
    }

    // ---- Messages

    /// What is published from now on is wanted, or not.
    pub fn listen(&mut self, listens: bool) -> Result<(), Dead> {
        match (self.listens, listens) {
            (true, true) => Ok(()),
            (_, false) => {
                self.listens = false;
                self.ear.drop_arrived()
            }
            (false, true) => self.hear().map(|_| self.listens = true),
        }
    }

    /// All messages that have been published since the last time.
    pub fn hear(&mut self) -> Result<Vec<Vec<u8>>, Dead> {
        // The server has sent them when it answers this.
        self.ear.put(b"PING\r\n");
        self.ear.send()?;
        let mut all = Vec::new();
        loop {
            let mut told = Vec::new();
            self.ear.receive(&mut told)?;
            if told.starts_with(b"*2\r\n$4\r\npong") {
                return Ok(all);
            }
            all.push(told);
        }
    }

    // ---- Everything else

    /// Asks something in the database that clients don't see, or of the server.
    pub fn ask(&mut self, args: &[&[u8]]) -> Result<Vec<u8>, Dead> {
        let mut request = Vec::new();
        put_request(&mut request, args);
        let mut answer = Vec::new();
        self.control.put(&request);
        self.control.send()?;
        self.control.receive(&mut answer)?;
        Ok(answer)
    }

    /// The same, of something that can't be refused.
    pub fn order(&mut self, args: &[&[u8]]) -> Result<Vec<u8>, Dead> {
        let answer = self.ask(args)?;
        match answer.first() {
            Some(b'-') => Err(refused(&answer)),
            _ => Ok(answer),
        }
    }

    /// Asks several things at once.
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

    /// The same; it leaves with what is asked next, which then tells if it was refused.
    pub fn queue(&mut self, args: &[&[u8]]) {
        let mut request = Vec::new();
        put_request(&mut request, args);
        self.control.put_unanswered(&request);
    }

    /// Whether a snapshot is being written, and how the last one ended.
    pub fn saves(&mut self) -> Result<Saves, Dead> {
        let info = self.order(&[b"INFO", b"persistence"])?;
        let info = String::from_utf8_lossy(&info).into_owned();
        let says = |line: &str| info.lines().any(|l| l == line);
        Ok(Saves {
            is_running: !says("rdb_bgsave_in_progress:0"),
            was_good: says("rdb_last_bgsave_status:ok"),
        })
    }
}

/// See [`Server::saves`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Saves {
    pub is_running: bool,
    pub was_good: bool,
}

impl Server {
    /// Ends it. What it holds is stored, or in the log.
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

/// Another number for each start, also of other processes: a child of a server that was killed may still write its file.
pub(super) fn nonce() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}

/// The server's program, and as what it is called.
fn find_program() -> Result<(PathBuf, &'static str), Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let found = PROGRAMS.iter().find_map(|(file, name)| {
        let mut files = dirs.iter().map(|dir| dir.join(file));
        files.find(|path| path.is_file()).map(|path| (path, *name))
    });
    found.ok_or_else(|| {
        Error(
            "there is no redis-server in the search path: install Redis or Valkey (on Debian and Ubuntu, \
             the package redis-server, or redis-tools, which has the program, too)"
                .into(),
        )
    })
}

/// Whether there is a server to be started.
pub fn is_installed() -> bool {
    find_program().is_ok()
}

fn program_name(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

/// Connects as soon as the server listens, and waits until it has read its contents.
fn connect(child: &mut Child, dir: &Path, socket: &Path) -> io::Result<Connection> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Err(io::Error::other(format!("it has ended ({status})")));
        }
        let Ok(mut connection) = Connection::to(dir, socket) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let mut answer = Vec::new();
        connection.put(b"PING\r\n");
        connection.send()?;
        connection.receive(&mut answer)?;
        if answer == b"+PONG\r\n" {
            return Ok(connection);
        }
        if !answer.starts_with(b"-LOADING") {
            return Err(refused(&answer));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn last_words(dir: &Path) -> String {
    let texts = [LOG_FILE, "server.err"].map(|name| fs::read(dir.join(name)).unwrap_or_default());
    let text = texts.concat();
    let shown = &text[text.len().saturating_sub(LOG_SHOWN)..];
    String::from_utf8_lossy(shown).trim().replace('\n', " | ")
}
