// SPDX-License-Identifier: Apache-2.0
//! Redis itself, unmodified: each partition has a server of its own, as a child of this process. It
//! executes decided commands in the order of the log, and nothing else.
//!
//! ```text
//!  log ──> execute ──requests──> redis-server  database 0: what clients see
//!              <────answers────    ^            database 1: position, sessions, answers, clock,
//!  commit: records stay in memory  │                        watched keys, scripts
//!  checkpoint: records into database 1, BGSAVE, sync, rename to `state.rdb`
//! ```
//!
//! Between checkpoints nothing is durable but the log. One snapshot of the server holds both
//! databases, so it is consistent. A server that dies is started anew from `state.rdb`, and is
//! given everything again that it was given since.
//!
//! `docs/redis.md` says what makes replicas agree, and what is refused for that reason.

mod about;
mod agreed_server;
mod catalogue;
mod clock;
mod command;
mod comparison;
mod connection;
mod digest;
mod fingerprint;
mod identity;
mod messages;
mod news;
mod notifications;
mod passed_reads;
mod pipeline;
mod preload;
mod replay_log;
mod resp;
mod rules;
mod saves;
mod script_memory;
mod scripts;
mod server;
mod server_check;
mod sets;
mod snapshots;
mod spop;
mod state;
mod transactions;
mod usage;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use replica::application::{RecordVisitor, Take, VOID};
use replica::storage::{private_directory, sync_directory_of};
use replica::{Application, Checkpoint, Error, MOVE_AWAY, Record, Restore, Snapshot};

pub use catalogue::{Catalogue, Keys, Spec, Spread};
pub use command::{Check, Command, Stamp, Watched, join_call, put_call, put_query};
pub use comparison::Alarm;
pub use fingerprint::Fingerprint;
pub use news::{AUDIENCE, Event, Message, News};
pub use notifications::{Notifications, SETTING, is_config_set, may_be_of_keys};
pub use resp::{End, Malformed, Value};
pub use rules::sorts_by_others;
pub use server::is_installed;
pub use server_check::accept;

use crate::kv::MAX_REPLY_LEN;
use crate::{echo, kv_app};

use news::Voice;
use saves::Purpose;
use server::{Home, Server};
use state::Replicated;

/// The file of contents that a server begins with at a start of the process.
pub(crate) const STATE: &str = "state.rdb";
/// How long to wait before checking again whether a snapshot is written.
const LOOK_AGAIN: Duration = Duration::from_millis(3);

/// A replica's servers as its front end sees them, by partition.
#[derive(Clone)]
pub struct Seen {
    servers: Arc<[SeenServer]>,
    began: Instant,
}

#[derive(Default)]
struct SeenServer {
    ms: AtomicU64,
    /// The latest time that any front end has stated.
    newest_ms: AtomicU64,
    /// When `ms` was shown first, in milliseconds since [`Seen::began`].
    moved: AtomicU64,
    process: AtomicU32,
    memory: AtomicU64,
    /// The group has agreed on a server.
    has_agreed: AtomicBool,
    /// How this server differs from the agreed one.
    remarks: Mutex<Vec<String>>,
    comparison: Mutex<comparison::ComparisonReport>,
}

impl Seen {
    /// Returns an empty view of this many partitions.
    pub fn new(partitions: u16) -> Seen {
        Seen {
            servers: (0..partitions).map(|_| SeenServer::default()).collect(),
            began: Instant::now(),
        }
    }

    /// Returns the number of partitions.
    pub fn partitions(&self) -> u16 {
        self.servers.len() as u16
    }

    /// Returns for how many milliseconds the partition's time has stood still, by this process's
    /// own clock.
    pub fn age_ms(&self, pid: u16) -> u64 {
        let moved = self.servers[usize::from(pid)].moved.load(Ordering::Relaxed);
        self.now_ms().saturating_sub(moved)
    }

    /// Returns milliseconds since this was made, by a clock that nobody sets.
    pub fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Returns the partition's time in milliseconds since 1970: the time of the last executed
    /// command, or 0 if there is none yet.
    pub fn ms(&self, pid: u16) -> u64 {
        self.servers[usize::from(pid)].ms.load(Ordering::Relaxed)
    }

    /// Returns the latest time that any front end has stated to the partition, as far as this
    /// replica has executed the log. Its [time](Self::ms) is of that state, or of a later one.
    pub fn newest_ms(&self, pid: u16) -> u64 {
        let server = &self.servers[usize::from(pid)];
        server.newest_ms.load(Ordering::Acquire)
    }

    /// Returns the ids of the servers' processes.
    pub fn processes(&self) -> impl Iterator<Item = u32> {
        let all = self.servers.iter();
        let all = all.map(|server| server.process.load(Ordering::Relaxed));
        all.filter(|number| *number > 0)
    }

    /// Returns how many bytes of memory the servers had when they were asked last, which is less
    /// than a second ago while commands come.
    pub fn memory(&self) -> u64 {
        let all = self.servers.iter();
        all.map(|server| server.memory.load(Ordering::Relaxed))
            .sum()
    }

    /// Returns whether the group has agreed on a server in all partitions, as far as this replica
    /// has executed the log.
    pub fn has_agreed(&self) -> bool {
        let mut servers = self.servers.iter();
        servers.all(|server| server.has_agreed.load(Ordering::Relaxed))
    }

    /// Returns for an operator how the servers differ from those on which the group has agreed.
    pub fn remarks(&self) -> Vec<String> {
        let all = (0..).zip(self.servers.iter());
        let shown = all.map(|(pid, server): (u16, _)| {
            let remarks = lock(&server.remarks);
            remarks
                .iter()
                .map(|remark| format!("partition {pid}: {remark}"))
                .collect()
        });
        shown.collect::<Vec<Vec<String>>>().concat()
    }

    fn show(&self, pid: u16, state: &mut Replicated) {
        let server = &self.servers[usize::from(pid)];
        if server.ms.swap(state.ms(), Ordering::Relaxed) != state.ms() {
            server.moved.store(self.now_ms(), Ordering::Relaxed);
        }
        server
            .newest_ms
            .store(state.clock.newest_ms(), Ordering::Release);
        server.process.store(state.process(), Ordering::Relaxed);
        server.memory.store(state.memory(), Ordering::Relaxed);
        server
            .has_agreed
            .store(state.agreed.server.is_some(), Ordering::Relaxed);
        if let Some(remarks) = state.remarks.take() {
            *lock(&server.remarks) = remarks;
        }
        state.comparison.show(&server.comparison);
    }
}

/// The application that executes commands on a Redis server, for one partition.
pub struct Redis {
    dir: PathBuf,
    seen: Seen,
    voice: Voice,
    state: Arc<Mutex<Replicated>>,
    /// Another replica's state, once it has been read.
    taken: Arc<Mutex<Option<Taken>>>,
}

struct Taken {
    state: Replicated,
    file: PathBuf,
}

impl Drop for Taken {
    fn drop(&mut self) {
        // The file is gone if it was taken over.
        let _ = fs::remove_file(&self.file);
    }
}

impl Redis {
    /// Continues from the last checkpoint in `dir`, which is created if missing.
    pub fn open(dir: &Path) -> Result<Redis, Error> {
        Self::open_with(dir, 0, Seen::new(1), News::default(), MAX_REPLY_LEN)
    }

    /// Opens one partition as [`open`](Self::open) does. `seen` shows its state to the front end,
    /// and `news` tells its events. An answer has at most `most_answer` bytes.
    pub fn open_with(
        dir: &Path,
        pid: u16,
        seen: Seen,
        news: News,
        most_answer: usize,
    ) -> Result<Redis, Error> {
        let home = Home {
            pid,
            partitions: seen.partitions(),
            most_answer,
        };
        let voice = Voice { home, news };
        private_directory(dir).map_err(|e| failed("create", dir, &e))?;
        remove_others(dir)?;
        let contents = dir.join(STATE).exists().then_some(STATE);
        let mut state = Replicated::open(dir, contents, voice.clone())?;
        seen.show(pid, &mut state);
        state.show_notifications();
        Ok(Redis {
            dir: dir.to_owned(),
            seen,
            voice,
            state: Arc::new(Mutex::new(state)),
            taken: Arc::default(),
        })
    }

    /// Returns the id of the server's process.
    pub fn process(&self) -> u32 {
        lock(&self.state).process()
    }

    /// Returns the server's commands.
    pub fn catalogue(&self) -> Arc<Catalogue> {
        lock(&self.state).catalogue()
    }
}

/// Starts a server to ask for its commands and what it is, and ends it.
pub fn catalogue() -> Result<(Catalogue, Fingerprint), Error> {
    let dir = std::env::temp_dir().join(format!("wirepaxos-{:016x}", server::nonce()));
    private_directory(&dir).map_err(|e| failed("create", &dir, &e))?;
    let started = Server::start(&dir, None, Home::default(), None);
    let found = started.map(|(server, catalogue)| (catalogue, server.fingerprint.clone()));
    let _ = fs::remove_dir_all(&dir);
    found
}

impl Application for Redis {
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error> {
        let mut state = lock(&self.state);
        state.execute(command, reply)?;
        state.measure();
        self.seen.show(self.voice.home.pid, &mut state);
        Ok(())
    }

    fn answers_later(&self) -> bool {
        true
    }

    fn begin(&mut self, command: &[u8]) -> Result<(), Error> {
        lock(&self.state).begin(command)
    }

    fn answers(&mut self, take: &mut Take<'_>) -> Result<(), Error> {
        let mut state = lock(&self.state);
        state.answers(take)?;
        state.measure();
        self.seen.show(self.voice.home.pid, &mut state);
        Ok(())
    }

    fn died_of(&self) -> Option<usize> {
        lock(&self.state).died_of()
    }

    fn answer_void(&self, reply: &mut Vec<u8>) {
        resp::put_error(reply, &String::from_utf8_lossy(VOID));
    }

    fn describe(&self, command: &[u8]) -> String {
        about_command(command)
    }

    fn is_read(&self, command: &[u8]) -> bool {
        command::is_query(command)
    }

    fn pass(&mut self, command: &[u8]) -> Result<bool, Error> {
        let mut state = lock(&self.state);
        let is_passed = state.pass(command)?;
        self.seen.show(self.voice.home.pid, &mut state);
        Ok(is_passed)
    }

    fn read_again(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<bool, Error> {
        lock(&self.state).read_again(command, reply)
    }

    fn commit(&mut self, records: &[Record]) -> Result<(), Error> {
        lock(&self.state).commit(records)
    }

    fn records(&mut self, visit: &mut RecordVisitor<'_>) -> Result<(), Error> {
        lock(&self.state).records(visit);
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<Checkpoint, Error> {
        let Some(number) = lock(&self.state).begin_checkpoint()? else {
            return Ok(Box::new(|| Ok(())));
        };
        let (dir, state) = (self.dir.clone(), self.state.clone());
        Ok(Box::new(move || finish_checkpoint(&dir, &state, number)))
    }

    fn snapshot(&mut self) -> Result<Box<dyn Snapshot>, Error> {
        // A server writes one snapshot at a time.
        while lock(&self.state).is_saving()? {
            std::thread::sleep(LOOK_AGAIN);
        }
        let save = lock(&self.state).begin_save(Purpose::Copy)?;
        Ok(Box::new(Copied {
            file: self.dir.join(&save.file),
            number: save.number,
            state: self.state.clone(),
        }))
    }

    fn begin_restore(&mut self) -> Result<Restore, Error> {
        self.forget_restore();
        let (dir, taken, voice) = (self.dir.clone(), self.taken.clone(), self.voice.clone());
        Ok(Box::new(move |from| {
            let name = format!("incoming-{:016x}.rdb", server::nonce());
            let file = dir.join(&name);
            let state =
                receive(from, &file).and_then(|()| Replicated::open(&dir, Some(&name), voice));
            match state {
                Ok(state) => *lock(&taken) = Some(Taken { state, file }),
                Err(e) => {
                    let _ = fs::remove_file(&file);
                    return Err(e);
                }
            }
            Ok(())
        }))
    }

    fn end_restore(&mut self) -> Result<(), Error> {
        let taken = lock(&self.taken).take();
        let mut taken = taken.ok_or_else(|| Error("no other replica's state was read".into()))?;
        put_in_place(&self.dir, &taken.file)?;
        taken.state.is_in_place();
        let mut state = lock(&self.state);
        std::mem::swap(&mut *state, &mut taken.state);
        self.seen.show(self.voice.home.pid, &mut state);
        state.show_notifications();
        self.voice.leapt();
        Ok(())
    }

    fn forget_restore(&mut self) {
        *lock(&self.taken) = None;
        // A state that is still being read is then dropped when it is complete.
        self.taken = Arc::default();
    }

    fn digest(&mut self) -> Result<[u8; 32], Error> {
        lock(&self.state).digest()
    }
}

/// How many bytes of a word an operator is shown.
const SHOWN: usize = 40;

/// Names a command and its first argument, for operators.
fn about_command(command: &[u8]) -> String {
    let words = |args: &[&[u8]]| -> String {
        let shown = args.iter().take(2);
        let shown = shown.map(|word| word[..word.len().min(SHOWN)].escape_ascii().to_string());
        let more = if args.len() > 2 { " ..." } else { "" };
        shown.collect::<Vec<_>>().join(" ") + more
    };
    match Command::parse(command) {
        Ok(Command::Call { args, .. } | Command::Query { args, .. }) => words(&args),
        Ok(Command::Exec { commands, .. }) => {
            let all: Vec<String> = commands.iter().map(|args| words(args)).collect();
            let shown: String = all.join("; ").chars().take(4 * SHOWN).collect();
            format!("EXEC of {} commands: {shown}", all.len())
        }
        Ok(Command::Watch { .. }) => "WATCH".into(),
        Ok(Command::Report { .. }) => "a report of a clock".into(),
        Ok(Command::Server { .. }) => "a report of a server".into(),
        Err(_) => format!("a command of {} bytes", command.len()),
    }
}

/// Waits until a snapshot is written that has everything of the checkpoint with this number, and
/// puts it in place.
fn finish_checkpoint(dir: &Path, state: &Mutex<Replicated>, number: u64) -> Result<(), Error> {
    loop {
        let written = {
            let mut state = lock(state);
            if state.has_checkpoint(number) {
                return Ok(());
            }
            state.written()?
        };
        match written {
            None => std::thread::sleep(LOOK_AGAIN),
            Some(save) => {
                let file = dir.join(&save.file);
                sync(&file)?;
                // From the same moment the server's next start begins with it.
                lock(state).adopt(&save, || put_in_place(dir, &file))?;
            }
        }
    }
}

fn sync(file: &Path) -> Result<(), Error> {
    let synced = File::open(file).and_then(|opened| opened.sync_all());
    synced.map_err(|e| failed("sync", file, &e))
}

fn put_in_place(dir: &Path, file: &Path) -> Result<(), Error> {
    let state = dir.join(STATE);
    let put = fs::rename(file, &state).and_then(|()| sync_directory_of(&state));
    put.map_err(|e| failed("replace", &state, &e))
}

fn receive(from: &mut dyn Read, file: &Path) -> Result<(), Error> {
    let received = File::create(file).and_then(|mut out| {
        io::copy(from, &mut out)?;
        out.sync_all()
    });
    received.map_err(|e| failed("write", file, &e))
}

/// A snapshot that is sent to another replica.
struct Copied {
    state: Arc<Mutex<Replicated>>,
    number: u64,
    file: PathBuf,
}

impl Snapshot for Copied {
    fn write_to(&mut self, out: &mut dyn Write) -> io::Result<()> {
        while !lock(&self.state)
            .has_copy(self.number)
            .map_err(io::Error::other)?
        {
            std::thread::sleep(LOOK_AGAIN);
        }
        io::copy(&mut File::open(&self.file)?, out)?;
        Ok(())
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        // A file that isn't written yet is removed at the next start.
        let _ = fs::remove_file(&self.file);
    }
}

/// Names, or beginnings of names, of files that a process may leave behind.
const LEFT: [&str; 9] = [
    "socket-",
    "clock-",
    "save-",
    "copy-",
    "base-",
    "incoming-",
    "preload",
    "server.",
    "temp-",
];

/// Files that other applications keep in a partition's directory.
const OF_OTHERS: [&str; 2] = [kv_app::CURRENT, echo::FILE];

/// Removes what earlier processes have left: sockets, clocks, and snapshots that were never used;
/// the node's own files stay. Refuses a directory with another application's files.
fn remove_others(dir: &Path) -> Result<(), Error> {
    let names = fs::read_dir(dir).and_then(|entries| {
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect::<io::Result<Vec<_>>>()
    });
    let names = names.map_err(|e| failed("read", dir, &e))?;
    let is_left = |name: &String| LEFT.iter().any(|left| name.starts_with(left));
    if let Some(other) = names.iter().find(|name| OF_OTHERS.contains(&name.as_str())) {
        return Err(Error(format!(
            "{} holds {other:?}, which isn't of `application = \"redis\"`: correct `application` \
             or `data` in the cluster file; or {MOVE_AWAY}",
            dir.display()
        )));
    }
    for name in names.iter().filter(|name| is_left(name)) {
        let path = dir.join(name);
        fs::remove_file(&path).map_err(|e| failed("remove", &path, &e))?;
    }
    Ok(())
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(doing: &str, path: &Path, e: &io::Error) -> Error {
    Error(format!("cannot {doing} {}: {e}", path.display()))
}
