// SPDX-License-Identifier: Apache-2.0
//! The program that is replicated.
//!
//! An [`Application`] executes commands one after the other and never sees the network. The
//! replica's own records (its position in the log and the session table) are stored by the
//! application *together with* the effects of the commands, so that a kill at any instruction
//! repeats nothing and loses nothing.
//!
//! Two ways to become one:
//! - a program in memory implements [`StateMachine`](crate::memory::StateMachine), about twenty
//!   lines, and is wrapped in [`InMemory`](crate::memory::InMemory), which restarts it from its
//!   last checkpoint and the log;
//! - a program with a durable store implements [`Application`] and writes our records in the same
//!   atomic batch as its own.

use paxos::PartitionId;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// What a command is answered that takes no effect, since programs die of it.
pub const VOID: &[u8] =
    b"DIED not executed: the program of each replica died of this command, so it has no effect";

/// Why an application can't go on. The node stops with this message; it never acknowledges what
/// was not stored.
#[derive(Debug)]
pub struct Error(pub String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Self {
        Error(e.to_string())
    }
}

/// What an operator is to do about stored state that can't be used.
pub const MOVE_AWAY: &str = "move the directories of all partitions of this replica away and start the node again: it \
     then fetches a checkpoint from another replica. That is safe as long as no more than g replicas of the group \
     are without their state at a time; so wait until this one has caught up before the next one";

/// A record of the replica's own, kept by the application beside its data and out of its sight.
/// `value` `None` deletes the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Key, at most 64 bytes.
    pub key: Vec<u8>,
    /// New value, or deletion.
    pub value: Option<Vec<u8>>,
}

/// The part of a checkpoint that takes time; see [`Application::checkpoint`].
pub type Checkpoint = Box<dyn FnOnce() -> Result<(), Error> + Send>;

/// The part of taking over another replica's state that takes time; see [`Application::begin_restore`].
pub type Restore = Box<dyn FnOnce(&mut dyn io::Read) -> Result<(), Error> + Send>;

/// The part of a copy by links that takes time: it fills a directory that is there and empty; see
/// [`Application::link`].
pub type Link = Box<dyn FnOnce(&Path) -> Result<(), Error> + Send>;

/// Sees an answer.
pub type Take<'a> = dyn FnMut(&[u8]) + 'a;

/// Sees every stored record: key, value.
pub type RecordVisitor<'a> = dyn FnMut(&[u8], &[u8]) + 'a;

/// One partition's part in a command over several of them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Part {
    /// Which partition.
    pub pid: PartitionId,
    /// What it [prepared](Application::prepare).
    pub prepared: Vec<u8>,
    /// What is to change there; empty = nothing.
    pub effect: Vec<u8>,
}

fn executes_at_once() -> Error {
    Error("this application executes each command at once".into())
}

fn spans_nothing() -> Error {
    Error("this application executes no commands over several partitions".into())
}

/// A replicated program. One value serves one partition and is called from one thread.
pub trait Application: Send {
    /// Executes one command and appends the answer to `reply`. Deterministic: the outcome depends
    /// on nothing but the commands executed so far; no clock, no randomness. Effects are visible to
    /// the next `execute` and become permanent with the next [`commit`](Self::commit). A command
    /// that makes no sense is answered as such; an `Err` means that the program can't go on at all.
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error>;

    /// Whether commands are begun by [`begin`](Self::begin), one behind the other, and answered together by
    /// [`answers`](Self::answers). It is for programs that are reached by a connection, where each answer by itself
    /// costs a round trip. Otherwise they are executed by [`execute`](Self::execute).
    fn answers_later(&self) -> bool {
        false
    }

    /// Begins to execute one command, or one that only reads, behind all that were begun before. The outcome is that of
    /// `execute` in the same place. Until its answer was taken nothing is called but this, [`answers`](Self::answers) and
    /// [`is_read`](Self::is_read).
    fn begin(&mut self, _command: &[u8]) -> Result<(), Error> {
        Err(executes_at_once())
    }

    /// Waits until everything that was begun is executed. Shows the answers, in the order in which the commands were begun,
    /// one for each.
    fn answers(&mut self, _take: &mut Take<'_>) -> Result<(), Error> {
        Ok(())
    }

    /// After an error of [`execute`](Self::execute), [`begin`](Self::begin) or [`answers`](Self::answers): if the program died
    /// of one command, and died again when it was given that one alone, behind how many others that command was begun whose
    /// answers nobody has taken. `None` if another reason stops it. Only those are told that run a program in a process of its
    /// own, which a command can end.
    fn died_of(&self) -> Option<usize> {
        None
    }

    /// Appends the answer to a command that takes no effect, since programs die of it.
    fn answer_void(&self, reply: &mut Vec<u8>) {
        reply.extend_from_slice(VOID);
    }

    /// Says which command it is, in a few words for operators.
    fn describe(&self, command: &[u8]) -> String {
        format!("a command of {} bytes", command.len())
    }

    /// Whether a command changes nothing, whatever the state: it may be executed without a place in the log.
    fn is_read(&self, _command: &[u8]) -> bool {
        false
    }

    /// Passes a command of the log that only another replica answers. Of one that only reads nothing is left but its place, and what
    /// it says of the time: it returns true, and no answer is shown for it. Any other it leaves alone, and it is to be executed. It
    /// may come behind commands that were begun. [S-PASS]
    fn pass(&mut self, command: &[u8]) -> Result<bool, Error> {
        Ok(self.is_read(command))
    }

    /// Executes a command again that was passed, at a later place: it changes nothing, not even what time it is. False if it doesn't
    /// only read. [S-PASS]
    fn read_again(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<bool, Error> {
        let is_read = self.is_read(command);
        if is_read {
            self.read(command, reply)?;
        }
        Ok(is_read)
    }

    /// Executes such a command without a place in the log.
    fn read(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error> {
        self.execute(command, reply)
    }

    /// Whether commands over several partitions are executed here, by [`prepare`](Self::prepare),
    /// [`combine`](Self::combine) and [`apply`](Self::apply). Otherwise they are answered `unsupported`.
    fn spans_partitions(&self) -> bool {
        false
    }

    /// The first step of a command over several partitions, in each of them: appends to `prepared` what
    /// the command needs to know of this partition. It changes nothing, and sees the effects of
    /// everything before the command. As deterministic as [`execute`](Self::execute).
    fn prepare(&mut self, _command: &[u8], _prepared: &mut Vec<u8>) -> Result<(), Error> {
        Err(spans_nothing())
    }

    /// The second step, in the lowest of the partitions alone: says what is answered and, part by
    /// part, what is to change there; an empty effect changes nothing. It is a function of its
    /// arguments and looks at no store. A command that makes no sense is answered as such.
    fn combine(
        &self,
        _command: &[u8],
        _parts: &mut [Part],
        _reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        Err(spans_nothing())
    }

    /// The third step, in each partition whose effect isn't empty: changes what the effect says. It
    /// becomes permanent with the next [`commit`](Self::commit), like the effects of
    /// [`execute`](Self::execute). An effect comes once, after everything that lies before its command.
    fn apply(&mut self, _effect: &[u8]) -> Result<(), Error> {
        Err(spans_nothing())
    }

    /// Told before the commands of an instance are executed. For programs that show instance
    /// numbers to their users, such as the C binding's `deliver`; the others need not care.
    fn at_instance(&mut self, _instance: paxos::Instance) {}

    /// Makes the effects of all commands since the last commit permanent, atomically with
    /// `records`: after a kill either all of it is there or nothing.
    fn commit(&mut self, records: &[Record]) -> Result<(), Error>;

    /// Whether [`discard`](Self::discard) is there.
    fn can_discard(&self) -> bool {
        false
    }

    /// So many commands that can still be [taken back](Self::discard) may wait for a commit; then it comes before the next
    /// one. Nobody is answered while it runs, so a store, whose commits take the longer the more they hold, wants few.
    fn most_ahead(&self) -> u64 {
        u64::MAX
    }

    /// Takes back everything since the last [`commit`](Self::commit), or since an earlier one:
    /// [`records`](Self::records) then say which. No checkpoint that has been made holds less. Commands are
    /// executed before their order is final only where this is there.
    fn discard(&mut self) -> Result<(), Error> {
        Err(Error(
            "this application can't take back what it has executed".into(),
        ))
    }

    /// Shows all records that are stored; called at start, and after each [`discard`](Self::discard) and
    /// [`end_restore`](Self::end_restore).
    fn records(&mut self, visit: &mut RecordVisitor<'_>) -> Result<(), Error>;

    /// Begins a checkpoint. What it returns runs in another thread while this one goes on. When
    /// that has run, everything that is committed now survives a power failure. Only one is under
    /// way at a time, and no `restore` comes meanwhile.
    fn checkpoint(&mut self) -> Result<Checkpoint, Error>;

    /// A consistent copy of the committed state, records included, to be sent to another replica
    /// from another thread while this one goes on.
    fn snapshot(&mut self) -> Result<Box<dyn Snapshot>, Error>;

    /// Something that executes commands on the committed state as it is now, from another thread while this
    /// one goes on: for those that only read, and take long. Not all applications have it.
    fn reader(&mut self) -> Result<Box<dyn Reader>, Error> {
        Err(Error("this application has no readers".into()))
    }

    /// Begins a copy that shares with this state the files that don't change any more (hard links), so that
    /// it costs little, however large the state is. What it returns makes it, in another thread while this one
    /// goes on, in a directory of the same file system. The copy has all that is committed now, and perhaps more of
    /// what is committed next; it is opened like the state itself. What was made isn't synced yet. Without it,
    /// a copy is written from a [`snapshot`](Self::snapshot).
    fn link(&mut self) -> Option<Link> {
        None
    }

    /// Begins to take over a snapshot that was written elsewhere. What it returns reads it, in another
    /// thread while this one goes on, and changes nothing of the present state, whether reading
    /// succeeds or fails. A second one takes the place of the first.
    fn begin_restore(&mut self) -> Result<Restore, Error>;

    /// Replaces the whole state, records included, by the snapshot that was read, durably and
    /// atomically: after a kill in the middle the old state is there, or the new one.
    fn end_restore(&mut self) -> Result<(), Error>;

    /// Forgets a snapshot that was read and isn't needed.
    fn forget_restore(&mut self) {}

    /// All of it at once.
    fn restore(&mut self, from: &mut dyn io::Read) -> Result<(), Error> {
        self.begin_restore()?(from)?;
        self.end_restore()
    }

    /// SHA-256 over the contents in a canonical order, without the replica's records. Equal for
    /// replicas at the same instance.
    fn digest(&mut self) -> Result<[u8; 32], Error>;

    /// CPU time that this thread has spent in the library of a store since it was opened, roughly: for
    /// measurements.
    fn library_cpu(&self) -> Duration {
        Duration::ZERO
    }
}

/// A consistent copy of an application's state.
pub trait Snapshot: Send {
    /// Writes all of it. A second call writes the same bytes again.
    fn write_to(&mut self, out: &mut dyn io::Write) -> io::Result<()>;
}

/// Executes commands that only read on the state of one moment.
pub trait Reader: Send {
    /// Executes one command and appends the answer to `reply`. What it doesn't execute is answered as such.
    fn read(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error>;
}

/// Opens a reader of a partition's state. That state has all that the replica had executed there before.
/// Says why there is none.
pub type OpenReader = Arc<dyn Fn(PartitionId) -> Result<Box<dyn Reader>, String> + Send + Sync>;

impl Application for Box<dyn Application> {
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error> {
        (**self).execute(command, reply)
    }

    fn answers_later(&self) -> bool {
        (**self).answers_later()
    }

    fn begin(&mut self, command: &[u8]) -> Result<(), Error> {
        (**self).begin(command)
    }

    fn answers(&mut self, take: &mut Take<'_>) -> Result<(), Error> {
        (**self).answers(take)
    }

    fn died_of(&self) -> Option<usize> {
        (**self).died_of()
    }

    fn answer_void(&self, reply: &mut Vec<u8>) {
        (**self).answer_void(reply);
    }

    fn describe(&self, command: &[u8]) -> String {
        (**self).describe(command)
    }

    fn is_read(&self, command: &[u8]) -> bool {
        (**self).is_read(command)
    }

    fn pass(&mut self, command: &[u8]) -> Result<bool, Error> {
        (**self).pass(command)
    }

    fn read_again(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<bool, Error> {
        (**self).read_again(command, reply)
    }

    fn read(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error> {
        (**self).read(command, reply)
    }

    fn spans_partitions(&self) -> bool {
        (**self).spans_partitions()
    }

    fn prepare(&mut self, command: &[u8], prepared: &mut Vec<u8>) -> Result<(), Error> {
        (**self).prepare(command, prepared)
    }

    fn combine(
        &self,
        command: &[u8],
        parts: &mut [Part],
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        (**self).combine(command, parts, reply)
    }

    fn apply(&mut self, effect: &[u8]) -> Result<(), Error> {
        (**self).apply(effect)
    }

    fn at_instance(&mut self, instance: paxos::Instance) {
        (**self).at_instance(instance);
    }

    fn commit(&mut self, records: &[Record]) -> Result<(), Error> {
        (**self).commit(records)
    }

    fn can_discard(&self) -> bool {
        (**self).can_discard()
    }

    fn most_ahead(&self) -> u64 {
        (**self).most_ahead()
    }

    fn discard(&mut self) -> Result<(), Error> {
        (**self).discard()
    }

    fn records(&mut self, visit: &mut RecordVisitor<'_>) -> Result<(), Error> {
        (**self).records(visit)
    }

    fn checkpoint(&mut self) -> Result<Checkpoint, Error> {
        (**self).checkpoint()
    }

    fn snapshot(&mut self) -> Result<Box<dyn Snapshot>, Error> {
        (**self).snapshot()
    }

    fn reader(&mut self) -> Result<Box<dyn Reader>, Error> {
        (**self).reader()
    }

    fn link(&mut self) -> Option<Link> {
        (**self).link()
    }

    fn begin_restore(&mut self) -> Result<Restore, Error> {
        (**self).begin_restore()
    }

    fn end_restore(&mut self) -> Result<(), Error> {
        (**self).end_restore()
    }

    fn forget_restore(&mut self) {
        (**self).forget_restore();
    }

    fn digest(&mut self) -> Result<[u8; 32], Error> {
        (**self).digest()
    }

    fn library_cpu(&self) -> Duration {
        (**self).library_cpu()
    }
}
