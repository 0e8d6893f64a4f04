// SPDX-License-Identifier: Apache-2.0
//! What executes a command that the table lets take effect.

use crate::application::{Application, Error};

/// Executes a command that the table lets take effect.
pub(crate) trait Executes {
    /// Executes a command, and appends the answer.
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error>;

    /// Passes a command that only reads; returns false for any other. [S-PASS]
    fn pass(&mut self, _command: &[u8]) -> Result<bool, Error> {
        Ok(false)
    }

    /// Executes a command again that was passed; returns false for a command that doesn't only
    /// read. [S-PASS]
    fn read_again(&mut self, _command: &[u8], _reply: &mut Vec<u8>) -> Result<bool, Error> {
        Ok(false)
    }
}

/// An application, which executes commands of one partition.
pub(crate) struct Whole<'a, A>(pub &'a mut A);

impl<A: Application> Executes for Whole<'_, A> {
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error> {
        self.0.execute(command, reply)
    }

    fn pass(&mut self, command: &[u8]) -> Result<bool, Error> {
        self.0.pass(command)
    }

    fn read_again(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<bool, Error> {
        self.0.read_again(command, reply)
    }
}

/// A function that gives the answer without executing the command, for commands whose outcome is
/// decided elsewhere: those over several partitions, and those that take no effect.
pub(crate) struct Found<F>(pub F);

impl<F: FnMut(&mut Vec<u8>) -> Result<(), Error>> Executes for Found<F> {
    fn execute(&mut self, _command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error> {
        (self.0)(reply)
    }
}
