// SPDX-License-Identifier: Apache-2.0
//! The commands that a client has sent since MULTI.

use replica::parts::MAX_COMMAND_LEN;

/// The bytes that count for each argument of a queued command besides its own, roughly.
const OVERHEAD: usize = 8;
/// The bytes of memory that an argument takes besides its own, roughly.
const ARGUMENT: usize = 48;

/// A transaction may have this many commands that the front end itself answers, all in one turn.
pub(crate) const MAX_OWN: usize = 256;

/// The commands that a client has sent since MULTI.
#[derive(Default)]
pub(crate) struct Transaction {
    /// The queued commands with their arguments.
    queued: Vec<Vec<Vec<u8>>>,
    bytes: usize,
    /// The number of arguments of all queued commands.
    args: usize,
    /// The number of queued commands that the front end itself answers.
    own: usize,
    /// True if a command was refused, so that EXEC executes nothing.
    is_broken: bool,
}

impl Transaction {
    /// Creates a transaction that EXEC refuses.
    pub fn broken() -> Transaction {
        Transaction {
            is_broken: true,
            ..Transaction::default()
        }
    }

    /// Counts one more command, and returns false if those that the front end itself answers are
    /// too many.
    pub fn count(&mut self, is_own: bool) -> bool {
        self.own += usize::from(is_own);
        self.own <= MAX_OWN
    }

    /// Queues a command, or returns the bytes of all commands together if they would be too many.
    pub fn push(&mut self, args: Vec<Vec<u8>>) -> Result<(), usize> {
        let len: usize = args.iter().map(|arg| arg.len() + OVERHEAD).sum();
        let all = self.bytes + len;
        if all > MAX_COMMAND_LEN {
            self.is_broken = true;
            return Err(all);
        }
        self.bytes = all;
        self.args += args.len();
        self.queued.push(args);
        Ok(())
    }

    /// Returns the queued commands, each with its arguments, or nothing if a command was refused.
    pub fn into_commands(self) -> Option<Vec<Vec<Vec<u8>>>> {
        (!self.is_broken).then_some(self.queued)
    }

    /// Returns how many commands are queued.
    pub fn len(&self) -> usize {
        self.queued.len()
    }

    /// Returns the number of arguments of all queued commands.
    pub fn args(&self) -> usize {
        self.args
    }

    /// Returns the bytes of the queued commands.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes of memory that the transaction takes, roughly.
    pub fn memory(&self) -> usize {
        self.bytes + ARGUMENT * (self.queued.len() + self.args)
    }

    /// Returns all queued commands, each with its arguments.
    pub fn commands(&self) -> impl Iterator<Item = &[Vec<u8>]> {
        self.queued.iter().map(Vec::as_slice)
    }

    /// Notes that a command couldn't be queued, so that EXEC executes nothing.
    pub fn refuse(&mut self) {
        self.is_broken = true;
    }
}
