// SPDX-License-Identifier: Apache-2.0
//! A port: frames in and out, in bursts.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::{NonNull, null_mut};

use crate::library::{Eal, Functions, RawPort};

/// The most frames of one burst.
pub const BURST: usize = 32;

/// Bytes of a frame for which a buffer has room by default: one of Ethernet, with an MTU of 1,500,
/// and more.
pub const ROOM: u16 = 2048;

/// The facts about a port when it is opened.
#[repr(C)]
pub(crate) struct Opened {
    mac: [u8; 6],
    mtu: u16,
    driver: [u8; 64],
}

/// A buffer of DPDK with a frame in it, or with room for one.
#[repr(C)]
pub struct Frame {
    buffer: *mut c_void,
    data: *mut u8,
    len: u32,
    flags: u32,
}

const RIGHT: u32 = 1;
const WRONG: u32 = 2;
const LONG: u32 = 4;

/// The placeholder for a frame that has been passed on.
pub(crate) const NO_FRAME: Frame = Frame {
    buffer: null_mut(),
    data: null_mut(),
    len: 0,
    flags: 0,
};

// SAFETY: a frame is the only one that has its buffer, and DPDK takes buffers back from any thread.
unsafe impl Send for Frame {}

impl Frame {
    /// Returns the frame's bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: a frame is lent by the port that holds its buffer, with this many bytes in it.
        unsafe { std::slice::from_raw_parts(self.data, self.len as usize) }
    }

    /// Leaves those of its bytes alone that are in a range.
    #[inline]
    pub(crate) fn narrow(&mut self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len as usize);
        // SAFETY: the frame has at least this many bytes.
        self.data = unsafe { self.data.add(range.start) };
        self.len = range.len() as u32;
    }

    /// Returns whether the card has found its checksums right.
    pub fn is_checked(&self) -> bool {
        self.flags & RIGHT != 0
    }

    /// Returns whether the card has found one of them wrong.
    pub fn is_damaged(&self) -> bool {
        self.flags & WRONG != 0
    }

    /// Returns whether it is longer than a buffer; then there is nothing to look at.
    pub fn is_too_long(&self) -> bool {
        self.flags & LONG != 0
    }
}

/// Frames of one burst. The first `len` of them have a buffer.
struct Frames {
    all: [Frame; BURST],
    len: usize,
}

impl Frames {
    const fn new() -> Frames {
        Frames {
            all: [NO_FRAME; BURST],
            len: 0,
        }
    }

    fn release(&mut self, functions: &Functions) {
        // SAFETY: the first `len` frames have buffers that nobody else holds, and they aren't used
        // after this.
        unsafe { (functions.release)(self.all.as_mut_ptr(), self.len as u32) };
        self.len = 0;
    }
}

/// Buffers for what is sent, in order: those that have left, the filled ones, and the empty ones.
struct Leaving {
    all: [Frame; BURST],
    left: usize,
    filled: usize,
    len: usize,
}

impl Leaving {
    const fn new() -> Leaving {
        Leaving {
            all: [NO_FRAME; BURST],
            left: 0,
            filled: 0,
            len: 0,
        }
    }

    /// If no frame is left, all places are free again.
    fn begin_anew(&mut self) {
        if self.left == self.len {
            (self.left, self.filled, self.len) = (0, 0, 0);
        }
    }
}

/// An open port. What it has received, and what it is to send, lies in DPDK's own buffers.
pub struct Port {
    functions: &'static Functions,
    raw: RawPort,
    mac: [u8; 6],
    mtu: u16,
    driver: String,
    received: Frames,
    leaving: Leaving,
    passing: Frames,
    sent: u64,
    dropped: u64,
    /// A port may be used by one thread at a time only.
    _not_shared: PhantomData<*mut ()>,
}

// SAFETY: which thread that is doesn't matter to DPDK, and one that has a port has it alone.
unsafe impl Send for Port {}

impl Port {
    pub(crate) fn open(eal: Eal, number: u16, room: u16) -> Result<Port, (c_int, String)> {
        let functions = eal.functions;
        let mut error = 0;
        let mut opened = Opened {
            mac: [0; 6],
            mtu: 0,
            driver: [0; 64],
        };
        // SAFETY: the library only writes to both, and keeps no pointer to them.
        let raw = unsafe { (functions.open)(number, room, &mut opened, &mut error) };
        let raw = NonNull::new(raw).ok_or_else(|| (error, eal.why(error)))?;
        let driver = opened.driver.iter().copied().take_while(|b| *b != 0);
        let driver = String::from_utf8_lossy(&driver.collect::<Vec<_>>()).into_owned();
        Ok(Port {
            functions,
            raw,
            mac: opened.mac,
            mtu: opened.mtu,
            driver,
            received: Frames::new(),
            leaving: Leaving::new(),
            passing: Frames::new(),
            sent: 0,
            dropped: 0,
            _not_shared: PhantomData,
        })
    }

    /// Returns the port's hardware address.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Returns the length of the longest IP packet that the port sends.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Returns the name of DPDK's driver for the port.
    pub fn driver(&self) -> &str {
        &self.driver
    }

    /// Takes what is there, at most a burst, in the place of what it took before. How many frames
    /// that are.
    #[inline]
    pub fn receive(&mut self) -> usize {
        if self.received.len > 0 {
            self.received.release(self.functions);
        }
        let room = self.received.all.as_mut_ptr();
        // SAFETY: the array has room for this many frames.
        let got = unsafe { (self.functions.receive)(self.raw, room, BURST as u32) };
        self.received.len = got as usize;
        self.received.len
    }

    /// Returns what was received last.
    #[inline]
    pub fn frames(&self) -> &[Frame] {
        &self.received.all[..self.received.len]
    }

    /// Takes one of them out. What nobody takes goes back to DPDK with the next burst.
    #[inline]
    pub(crate) fn take(&mut self, at: usize) -> Frame {
        std::mem::replace(&mut self.received.all[at], NO_FRAME)
    }

    /// Gives back what was taken out.
    pub(crate) fn release(functions: &Functions, frames: &mut [Frame]) {
        for burst in frames.chunks_mut(BURST) {
            // SAFETY: all of them have a buffer that nobody else holds, and the caller doesn't use
            // them afterwards.
            unsafe { (functions.release)(burst.as_mut_ptr(), burst.len() as u32) };
        }
    }

    /// Uses these frames for the next packets that are sent: their memory is in the cache, and the
    /// pool has less work.
    #[inline]
    pub(crate) fn reuse(&mut self, frames: &mut Vec<Frame>) {
        let leaving = &mut self.leaving;
        leaving.begin_anew();
        let kept = frames.len().min(BURST - leaving.len);
        let room = &mut leaving.all[leaving.len..][..kept];
        for (room, frame) in room.iter_mut().zip(frames.drain(..kept)) {
            *room = frame;
        }
        // SAFETY: this many frames have a buffer of this port that nobody else holds.
        let renewed = unsafe { (self.functions.renew)(self.raw, room.as_mut_ptr(), kept as u32) };
        leaving.len += renewed as usize;
        Port::release(self.functions, frames);
        frames.clear();
    }

    /// Returns the functions for frames that outlast a burst.
    pub(crate) fn functions(&self) -> &'static Functions {
        self.functions
    }

    /// Sends a frame of `len` bytes, which `write` writes, with the next [`flush`](Self::flush) at
    /// the latest. False if it is lost: it is longer than a buffer, or there is none.
    #[inline]
    pub fn push(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> bool {
        let is_filled = self.fill(len, write);
        self.leaving.filled += usize::from(is_filled);
        is_filled
    }

    /// Makes a frame for another station at this port, which gets it directly.
    #[inline]
    pub(crate) fn make(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> Option<Frame> {
        if !self.fill(len, write) {
            return None;
        }
        let leaving = &mut self.leaving;
        let (before, behind) = leaving.all[..leaving.len].split_at_mut(leaving.filled + 1);
        let filled = &mut before[leaving.filled];
        let frame = Frame {
            len: len as u32,
            flags: 0,
            ..*filled
        };
        *filled = behind
            .last_mut()
            .map_or(NO_FRAME, |last| std::mem::replace(last, NO_FRAME));
        leaving.len -= 1;
        Some(frame)
    }

    /// Fills the first empty buffer, where it stays: a frame that was written just now is better
    /// not copied, as a processor waits with one load of what was stored in parts.
    #[inline]
    fn fill(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> bool {
        if self.leaving.filled == self.leaving.len {
            self.take_fresh();
        }
        let leaving = &mut self.leaving;
        let empty = leaving.all[..leaving.len].get_mut(leaving.filled);
        let Some(frame) = empty.filter(|frame| len <= frame.len as usize) else {
            self.dropped += 1;
            return false;
        };
        frame.len = len as u32;
        // SAFETY: the buffer has room for this many bytes, and belongs to this frame alone. The
        // bytes that an earlier frame has left are initialized.
        write(unsafe { std::slice::from_raw_parts_mut(frame.data, len) });
        true
    }

    /// Sends each received frame unchanged, as often as `copies` says, and uses its own buffer for
    /// the last copy. The frames leave with the next [`flush`](Self::flush) at the latest.
    pub fn send_on(&mut self, mut copies: impl FnMut() -> usize) {
        for at in 0..self.received.len {
            let Some(further) = copies().checked_sub(1) else {
                continue;
            };
            let frame = std::mem::replace(&mut self.received.all[at], NO_FRAME);
            let bytes = frame.bytes();
            for _ in 0..further {
                self.push(bytes.len(), |room| room.copy_from_slice(bytes));
            }
            if self.passing.len == BURST {
                self.flush();
            }
            self.passing.all[self.passing.len] = frame;
            self.passing.len += 1;
        }
        // Where a frame was there is none to release.
        self.received.release(self.functions);
    }

    /// Sends what is filled, and takes empty buffers.
    fn take_fresh(&mut self) {
        self.flush();
        self.leaving.begin_anew();
        let room = self.leaving.all.as_mut_ptr();
        // SAFETY: the array has room for this many frames.
        let got = unsafe { (self.functions.take)(self.raw, room, BURST as u32) };
        self.leaving.len = got as usize;
    }

    /// Sends what is to be sent. What the ring has no room for is lost.
    #[inline]
    pub fn flush(&mut self) {
        let leaving = &mut self.leaving;
        let filled = &mut leaving.all[leaving.left..leaving.filled];
        leaving.left = leaving.filled;
        let passing = std::mem::take(&mut self.passing.len);
        for frames in [filled, &mut self.passing.all[..passing]] {
            if frames.is_empty() {
                continue;
            }
            let n = frames.len() as u32;
            // SAFETY: the first `n` frames have buffers, which belong to DPDK after this.
            let sent = unsafe { (self.functions.send)(self.raw, frames.as_mut_ptr(), n) };
            self.sent += u64::from(sent);
            self.dropped += u64::from(n - sent);
        }
    }

    /// Returns the number of frames that have left.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Frames that couldn't leave: the ring was full, or there was no buffer.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the number of frames that arrived and found no room. The call takes a moment.
    pub fn missed(&self) -> u64 {
        // SAFETY: the port is open.
        unsafe { (self.functions.missed)(self.raw) }
    }

    /// Returns whether there is somebody at the other end. It takes a moment.
    pub fn is_up(&self) -> bool {
        // SAFETY: the port is open.
        unsafe { (self.functions.is_up)(self.raw) != 0 }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        for frames in [&mut self.received, &mut self.passing] {
            frames.release(self.functions);
        }
        let Leaving { all, left, len, .. } = &mut self.leaving;
        Port::release(self.functions, &mut all[*left..*len]);
        // SAFETY: nobody holds anything of the port any more.
        unsafe { (self.functions.close)(self.raw) };
    }
}
