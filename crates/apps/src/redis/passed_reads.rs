// SPDX-License-Identifier: Apache-2.0
//! How a replica passes over commands of the log that only read and that another replica answers:
//! its server never sees them, so none of them can end or stall all servers of a group.

use replica::Error;

use super::command::{Arguments, Command, Stamp};
use super::state::Replicated;

impl Replicated {
    /// Passes over a command that only reads; all that it does here is to move the clock. Returns
    /// false, and has done nothing, for any other command.
    pub fn pass(&mut self, command: &[u8]) -> Result<bool, Error> {
        let Some(stamp) = self.stamp_of_read(&Command::parse(command).ok()) else {
            return Ok(false);
        };
        if let Some(stamp) = stamp {
            self.begin_at(stamp)?;
        }
        Ok(true)
    }

    /// Executes a command that was passed over, on the present state. Returns false if the command
    /// doesn't only read.
    pub fn read_again(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<bool, Error> {
        let command = Command::parse(command).ok();
        if self.stamp_of_read(&command).is_none() {
            return Ok(false);
        }
        self.settle()?;
        match command {
            Some(Command::Call { resp3, args, .. } | Command::Query { resp3, args }) => {
                self.query(resp3, &args, reply)?;
            }
            Some(Command::Exec {
                resp3,
                watched,
                commands,
                ..
            }) => self.exec(resp3, &watched, &commands, reply)?,
            _ => {}
        }
        Ok(true)
    }

    /// Returns the stamp of a command that only reads, if it has one; `None` for any other command.
    /// A transaction only reads if all of its commands do.
    fn stamp_of_read(&self, command: &Option<Command<'_>>) -> Option<Option<Stamp>> {
        let reads = |args: &Arguments<'_>, in_transaction| {
            let judged = self.catalogue.judge(args, in_transaction);
            judged.is_ok_and(|spec| spec.is_read)
        };
        match command {
            Some(Command::Call { stamp, args, .. }) if reads(args, false) => Some(Some(*stamp)),
            Some(Command::Query { args, .. }) if reads(args, false) => Some(None),
            Some(Command::Exec {
                stamp, commands, ..
            }) if commands.iter().all(|args| reads(args, true)) => Some(Some(*stamp)),
            _ => None,
        }
    }
}
