// SPDX-License-Identifier: Apache-2.0
//! A learner's ring, read in place: no copy, and no system call while decisions come in.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::time::Duration;

use crate::object::{Object, Result};
use crate::sys::{Byte, Mapped, atomic32, atomic64};

const PAGE: usize = 4096;
/// The bytes before each record: its length with two flags, and a word for the kernel.
const HEAD: usize = 8;
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;

/// The reading side of a BPF ring buffer; there is one reader.
#[derive(Debug)]
pub struct Ring {
    consumer: Mapped<Byte>,
    /// The producer's page, then the data, twice, so that no record is ever split.
    producer: Mapped<Byte>,
    mask: u64,
    fd: OwnedFd,
}

impl Ring {
    /// Opens ring number `ring` of a learner's object.
    pub fn open(object: &Object, ring: usize) -> Result<Ring> {
        let (fd, size) = object.ring(ring)?;
        let failed = |error: std::io::Error| format!("ring{ring}: {error}");
        Ok(Ring {
            consumer: Mapped::new(fd, 0, PAGE, true).map_err(failed)?,
            producer: Mapped::new(fd, PAGE, PAGE + 2 * size, false).map_err(failed)?,
            mask: size as u64 - 1,
            fd: fd.try_clone_to_owned().map_err(failed)?,
        })
    }

    /// Waits for a record, at most for this time. Returns whether there is one.
    pub fn wait(&self, timeout: Duration) -> std::io::Result<bool> {
        let mut waited = libc::pollfd {
            fd: self.fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry, which lives through the call.
        match unsafe { libc::poll(&raw mut waited, 1, timeout.as_millis() as i32) } {
            -1 => Err(std::io::Error::last_os_error()),
            ready => Ok(ready == 1),
        }
    }

    /// Returns whether there is no record, not even one that is still being written.
    pub fn is_empty(&self) -> bool {
        // SAFETY: both positions begin pages that `self` has mapped.
        let (consumed, produced) = unsafe {
            (
                atomic64(self.consumer.at(0).cast()),
                atomic64(self.producer.at(0).cast()),
            )
        };
        consumed.load(SeqCst) == produced.load(SeqCst)
    }

    /// Hands the next record to `take`, where it lies; `None` while there is none.
    pub fn next<R>(&mut self, take: impl FnOnce(&[u8]) -> R) -> Option<R> {
        loop {
            // SAFETY: both positions begin pages that `self` has mapped.
            let (consumed, produced) = unsafe {
                (
                    atomic64(self.consumer.at(0).cast()),
                    atomic64(self.producer.at(0).cast()),
                )
            };
            let at = consumed.load(Acquire);
            if at == produced.load(Acquire) {
                return None;
            }
            let head = self.producer.at(PAGE + (at & self.mask) as usize);
            // SAFETY: records begin at multiples of 8 bytes inside the data.
            let word = unsafe { atomic32(head.cast()) }.load(Acquire);
            if word & BUSY != 0 {
                return None;
            }
            let len = (word & !DISCARDED) as usize;
            let next = at + ((len + HEAD).div_ceil(8) * 8) as u64;
            if word & DISCARDED != 0 {
                consumed.store(next, Release);
                continue;
            }
            // SAFETY: the kernel writes a committed record no more until it is consumed, below, and
            // the data lies twice in a row, so it ends inside the mapping.
            let record = unsafe { std::slice::from_raw_parts(head.cast::<u8>().add(HEAD), len) };
            let taken = take(record);
            consumed.store(next, Release);
            return Some(taken);
        }
    }
}
