// SPDX-License-Identifier: Apache-2.0
//! Reads the parts of commands and replies.

use super::{Command, LONG, Malformed, OP_DBSIZE, OP_EXEC, OP_SCAN, OP_WATCH, Pair};
use crate::place;

/// The bytes that aren't parsed yet.
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl<'a> Input<'a> {
    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn place(&mut self) -> Result<u64, Malformed> {
        let place = u64::from_be_bytes(self.array()?);
        (place >> place::BITS == 0)
            .then_some(place)
            .ok_or(Malformed)
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = match u16::from_be_bytes(self.array()?) {
            LONG => u32::from_be_bytes(self.array()?) as usize,
            len => return self.take(usize::from(len)),
        };
        match len >= usize::from(LONG) {
            true => self.take(len),
            false => Err(Malformed),
        }
    }

    pub(super) fn option(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        match self.u8()? {
            0 => Ok(None),
            1 => self.bytes().map(Some),
            _ => Err(Malformed),
        }
    }

    /// Reads items up to the end; there must be at least one.
    pub(super) fn list(&mut self) -> Result<Vec<&'a [u8]>, Malformed> {
        let mut items = vec![self.bytes()?];
        while !self.0.is_empty() {
            items.push(self.bytes()?);
        }
        Ok(items)
    }

    pub(super) fn pairs(&mut self) -> Result<Vec<Pair<'a>>, Malformed> {
        let mut pairs = vec![(self.bytes()?, self.bytes()?)];
        while !self.0.is_empty() {
            pairs.push((self.bytes()?, self.bytes()?));
        }
        Ok(pairs)
    }

    pub(super) fn versions(&mut self) -> Result<Vec<(&'a [u8], u64)>, Malformed> {
        let count = u16::from_be_bytes(self.array()?);
        let mut versions = Vec::new();
        for _ in 0..count {
            versions.push((self.bytes()?, u64::from_be_bytes(self.array()?)));
        }
        Ok(versions)
    }

    /// Reads the parts of an EXEC, up to the end.
    pub(super) fn commands(&mut self) -> Result<Vec<Command<'a>>, Malformed> {
        let mut commands = Vec::new();
        while !self.0.is_empty() {
            let len = u32::from_be_bytes(self.array()?);
            let bytes = self.take(len as usize)?;
            // This is checked before parsing, so that these don't nest.
            if matches!(
                bytes.first(),
                Some(&(OP_EXEC | OP_WATCH | OP_SCAN | OP_DBSIZE))
            ) {
                return Err(Malformed);
            }
            commands.push(Command::parse(bytes)?);
        }
        Ok(commands)
    }

    pub(super) fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Malformed)
        }
    }
}
