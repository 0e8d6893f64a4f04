// SPDX-License-Identifier: Apache-2.0
//! Bytes that decide what happens, and the small random numbers that packets are made of.

/// A boot nonce that members have.
pub const NONCE: u64 = 100;

/// The rest of a fuzzer's bytes.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// Returns a byte, 0 at the end.
    pub fn small(&mut self) -> u8 {
        self.byte().unwrap_or(0)
    }

    pub fn bytes(&mut self, max: usize) -> &'a [u8] {
        let len = usize::from(self.small()).min(max).min(self.0.len());
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        bytes
    }

    /// Mostly a small number, sometimes one at the far end.
    pub fn number(&mut self) -> u64 {
        match self.small() {
            250 => NONCE,
            n @ 251..=255 => u64::MAX - u64::from(n - 251),
            n @ 200..250 => u64::from(n % 16),
            n => u64::from(n % 4),
        }
    }

    /// Returns the number of a round, of a small epoch.
    pub fn round(&mut self) -> u32 {
        match self.small() {
            0..64 => 0,
            n @ 64..200 => (u32::from(n) % 4) << 12,
            n => (u32::from(n) % 4) << 12 | u32::from(self.small()),
        }
    }

    /// Changes `bytes` in a few places, or their length.
    pub fn damage(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.small() % 4 {
            let at = usize::from(u16::from_be_bytes([self.small(), self.small()]));
            match self.small() {
                0..32 => bytes.truncate(at % (bytes.len() + 1)),
                32..64 => bytes.extend_from_slice(self.bytes(64)),
                mask if bytes.is_empty() => bytes.push(mask),
                mask => {
                    let at = at % bytes.len();
                    bytes[at] ^= mask;
                }
            }
        }
    }
}
