// SPDX-License-Identifier: Apache-2.0
//! Reads a server's answers to requests that were put.

use std::io;

use super::{Dead, Server, refused};
use crate::redis::replay_log::Batch;
use crate::redis::resp::{put_number, put_too_large};

impl Server {
    /// Waits for the answers to the next requests that were put, and appends the last one, or an
    /// error in its place if it has more than `most` bytes.
    pub fn receive(
        &mut self,
        given: &Batch,
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
            put_too_large(answer, most);
        }
        Ok(())
    }

    /// Waits for the answers to the next requests that were put, and appends all of them as one
    /// array.
    pub fn receive_each(
        &mut self,
        given: &Batch,
        greets: bool,
        most: usize,
        answers: &mut Vec<u8>,
    ) -> Result<(), Dead> {
        if greets {
            self.receive_standing()?;
        }
        put_number(answers, b'*', given.count);
        for _ in 0..given.count {
            if !self.commands.receive_at_most(most, answers)? {
                put_too_large(answers, most);
            }
        }
        Ok(())
    }

    pub(super) fn receive_all(&mut self, put: &mut Vec<(&Batch, bool)>) -> Result<(), Dead> {
        self.send()?;
        let mut answer = Vec::new();
        for (given, greets) in put.drain(..) {
            answer.clear();
            self.receive(given, greets, self.most_answer, &mut answer)?;
        }
        Ok(())
    }

    pub(super) fn receive_standing(&mut self) -> io::Result<()> {
        let mut answer = Vec::new();
        self.commands.receive(&mut answer)?;
        match answer.first() {
            Some(b'-') => Err(refused(&answer)),
            _ => Ok(()),
        }
    }
}
