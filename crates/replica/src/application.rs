// SPDX-License-Identifier: Apache-2.0
//! The interface of a replicated program.
//!
//! An [`Application`] executes commands one after the other and never sees the network. The
//! replica's own records (its position in the log and the session table) are stored by the
//! application *together with* the effects of the commands, so that a kill at any instruction
//! repeats nothing and loses nothing.
//!
//! There are two ways to write one:
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

/// The answer to a command that takes no effect because programs die on it.
pub const VOID: &[u8] =
    b"DIED not executed: the program of each replica died of this command, so it has no effect";

/// The reason why an application can't go on. The node stops with this message, and never
/// acknowledges anything that wasn't stored.
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

/// The instruction to an operator about stored state that can't be used.
pub const MOVE_AWAY: &str = "move the directories of all partitions of this replica away and start \
                             the node again: it then fetches a checkpoint from another replica. \
                             That is safe as long as no more than g replicas of the group are \
                             without their state at a time; so wait until this one has caught up \
                             before the next one";

/// A record of the replica's own, which the application keeps beside its data and hides from its
/// users. A `value` of `None` deletes the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The key, at most 64 bytes.
    pub key: Vec<u8>,
    /// The new value; `None` deletes the key.
    pub value: Option<Vec<u8>>,
}

/// The slow part of a checkpoint, run in another thread; see [`Application::checkpoint`].
pub type Checkpoint = Box<dyn FnOnce() -> Result<(), Error> + Send>;

/// The slow part of taking over another replica's state, run in another thread; see
/// [`Application::begin_restore`].
pub type Restore = Box<dyn FnOnce(&mut dyn io::Read) -> Result<(), Error> + Send>;

/// The slow part of a copy by links, run in another thread: it fills an existing, empty directory;
/// see [`Application::link`].
pub type Link = Box<dyn FnOnce(&Path) -> Result<(), Error> + Send>;

/// A function that receives an answer.
pub type Take<'a> = dyn FnMut(&[u8]) + 'a;

/// A function that receives the key and value of every stored record.
pub type RecordVisitor<'a> = dyn FnMut(&[u8], &[u8]) + 'a;

/// One partition's part in a command over several partitions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Part {
    /// The partition.
    pub pid: PartitionId,
    /// The data that the partition [prepared](Application::prepare).
    pub prepared: Vec<u8>,
    /// The change to be made there; empty = nothing changes.
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
    /// Executes one command and appends the answer to `reply`; effects are visible to the next
    /// `execute` and become permanent with the next [`commit`](Self::commit). It must be
    /// deterministic: the outcome depends on nothing but the commands executed so far, not on a
    /// clock or on randomness. A command that makes no sense gets an answer that says so; an `Err`
    /// means that the program can't go on at all.
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error>;

    /// Returns whether commands are begun one behind the other by [`begin`](Self::begin) and
    /// answered together by [`answers`](Self::answers), instead of by [`execute`](Self::execute).
    /// This suits programs that are reached by a connection, where each separate answer costs a
    /// round trip.
    fn answers_later(&self) -> bool {
        false
    }

    /// Begins to execute a command, or one that only reads, behind all that were begun before; the
    /// outcome is that of `execute` in the same place. Until its answer was taken, only this
    /// function, [`answers`](Self::answers), [`pass`](Self::pass),
    /// [`at_instance`](Self::at_instance) and [`is_read`](Self::is_read) are called.
    fn begin(&mut self, _command: &[u8]) -> Result<(), Error> {
        Err(executes_at_once())
    }

    /// Waits until everything that was begun is executed, and shows one answer for each command, in
    /// the order in which they were begun.
    fn answers(&mut self, _take: &mut Take<'_>) -> Result<(), Error> {
        Ok(())
    }

    /// Returns on which command the program died, after an error of [`execute`](Self::execute),
    /// [`begin`](Self::begin) or [`answers`](Self::answers): the number of unanswered commands
    /// begun before it. Only applications that run a program in a process of its own know this, and
    /// only if the program died again when it was given that command alone; `None` = it stopped for
    /// another reason.
    fn died_of(&self) -> Option<usize> {
        None
    }

    /// Appends the answer to a command that takes no effect because programs die on it.
    fn answer_void(&self, reply: &mut Vec<u8>) {
        reply.extend_from_slice(VOID);
    }

    /// Describes a command in a few words for operators.
    fn describe(&self, command: &[u8]) -> String {
        format!("a command of {} bytes", command.len())
    }

    /// Returns whether a command changes nothing, whatever the state, so that it may be executed
    /// without a place in the log.
    fn is_read(&self, _command: &[u8]) -> bool {
        false
    }

    /// Passes a command of the log that only another replica answers, and returns true, if the
    /// command only reads; it then keeps nothing of the command but what it says of the time, and
    /// shows no answer. For any other command it does nothing and returns false, and the command is
    /// executed; the call may come behind commands that were begun. [S-PASS]
    fn pass(&mut self, command: &[u8]) -> Result<bool, Error> {
        Ok(self.is_read(command))
    }

    /// Executes a passed command again at a later place, where it must change nothing, not even the
    /// time. It returns false for a command that doesn't only read. [S-PASS]
    fn read_again(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<bool, Error> {
        let is_read = self.is_read(command);
        if is_read {
            self.read(command, reply)?;
        }
        Ok(is_read)
    }

    /// Executes a command that only reads, without a place in the log.
    fn read(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error> {
        self.execute(command, reply)
    }

    /// Returns whether commands over several partitions are executed here, by
    /// [`prepare`](Self::prepare), [`combine`](Self::combine) and [`apply`](Self::apply). Otherwise
    /// they are answered `unsupported`.
    fn spans_partitions(&self) -> bool {
        false
    }

    /// Carries out the first step of a command over several partitions, in each of them: appends to
    /// `prepared` the data that the command needs from this partition. It changes nothing, sees the
    /// effects of everything before the command, and is as deterministic as
    /// [`execute`](Self::execute).
    fn prepare(&mut self, _command: &[u8], _prepared: &mut Vec<u8>) -> Result<(), Error> {
        Err(spans_nothing())
    }

    /// Carries out the second step, in the lowest of the partitions only: appends the answer and
    /// fills in each part's effect, which is empty if nothing changes there. It is a function of
    /// its arguments and reads no store; a command that makes no sense gets an answer that says so.
    fn combine(
        &self,
        _command: &[u8],
        _parts: &mut [Part],
        _reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        Err(spans_nothing())
    }

    /// Carries out the third step, in each partition whose effect isn't empty: makes the change,
    /// which becomes permanent with the next [`commit`](Self::commit). Each effect comes once,
    /// after everything that lies before its command.
    fn apply(&mut self, _effect: &[u8]) -> Result<(), Error> {
        Err(spans_nothing())
    }

    /// Tells the instance whose commands are executed next. Only programs that show instance
    /// numbers to their users need it, such as the C binding's `deliver`.
    fn at_instance(&mut self, _instance: paxos::Instance) {}

    /// Makes the effects of all commands since the last commit permanent, atomically with
    /// `records`: after a kill either all of them are there or none.
    fn commit(&mut self, records: &[Record]) -> Result<(), Error>;

    /// Returns whether [`discard`](Self::discard) works here.
    fn can_discard(&self) -> bool {
        false
    }

    /// Returns how many commands that can still be [taken back](Self::discard) may wait for a
    /// commit before the commit must come. Nobody is answered during a commit, so a store whose
    /// commits take longer the more they hold wants few.
    fn most_ahead(&self) -> u64 {
        u64::MAX
    }

    /// Takes back everything since the last [`commit`](Self::commit) or an earlier one, but never
    /// more than since the last checkpoint; [`records`](Self::records) then say which position that
    /// is. Only with this function are commands executed before their order is final.
    fn discard(&mut self) -> Result<(), Error> {
        Err(Error(
            "this application can't take back what it has executed".into(),
        ))
    }

    /// Shows all stored records. It is called at the start, and after each
    /// [`discard`](Self::discard) and [`end_restore`](Self::end_restore).
    fn records(&mut self, visit: &mut RecordVisitor<'_>) -> Result<(), Error>;

    /// Begins a checkpoint and returns its slow part, which runs in another thread while this one
    /// goes on. After that everything that is committed now survives a power failure; only one
    /// checkpoint is under way at a time, and no `restore` comes meanwhile.
    fn checkpoint(&mut self) -> Result<Checkpoint, Error>;

    /// Returns a consistent copy of the committed state, records included. Another thread sends it
    /// to another replica while this one goes on.
    fn snapshot(&mut self) -> Result<Box<dyn Snapshot>, Error>;

    /// Returns a reader of the committed state as it is now, which executes slow commands that only
    /// read in another thread while this one goes on. Not all applications have one.
    fn reader(&mut self) -> Result<Box<dyn Reader>, Error> {
        Err(Error("this application has no readers".into()))
    }

    /// Begins a copy that shares the files that don't change any more by hard links, so that it
    /// costs little, however large the state is; `None` = this application makes no such copies,
    /// and its state is copied from a [`snapshot`](Self::snapshot). The returned function makes the
    /// copy in another thread, in a directory of the same file system. The copy holds everything
    /// committed now, and perhaps some later commits; it is opened like the state itself, and it
    /// isn't synced yet.
    fn link(&mut self) -> Option<Link> {
        None
    }

    /// Begins to take over a snapshot that was written elsewhere. The returned function reads it in
    /// another thread and changes nothing of the present state, whether reading succeeds or fails;
    /// a second snapshot replaces the first.
    fn begin_restore(&mut self) -> Result<Restore, Error>;

    /// Replaces the whole state, records included, by the snapshot that was read, durably and
    /// atomically: after a kill in the middle either the old or the new state is there.
    fn end_restore(&mut self) -> Result<(), Error>;

    /// Forgets a snapshot that was read and isn't needed.
    fn forget_restore(&mut self) {}

    /// Begins and ends a restore at once.
    fn restore(&mut self, from: &mut dyn io::Read) -> Result<(), Error> {
        self.begin_restore()?(from)?;
        self.end_restore()
    }

    /// Returns SHA-256 over the contents in a canonical order, without the replica's records. It is
    /// equal for replicas at the same instance.
    fn digest(&mut self) -> Result<[u8; 32], Error>;

    /// Returns roughly the CPU time that this thread has spent in the store's library since it was
    /// opened, for measurements.
    fn library_cpu(&self) -> Duration {
        Duration::ZERO
    }
}

/// A consistent copy of an application's state.
pub trait Snapshot: Send {
    /// Writes the whole copy. A second call writes the same bytes again.
    fn write_to(&mut self, out: &mut dyn io::Write) -> io::Result<()>;
}

/// A reader executes commands that only read on the state of one moment.
pub trait Reader: Send {
    /// Executes one command and appends the answer to `reply`. A command that it doesn't execute
    /// gets an answer that says so.
    fn read(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error>;
}

/// A function that opens a reader of a partition's state, which has everything that the replica had
/// executed there before. The error says why there is no reader.
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
