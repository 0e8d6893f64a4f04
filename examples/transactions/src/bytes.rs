// SPDX-License-Identifier: Apache-2.0
//! Numbers and strings as bytes, big-endian.

/// The bytes don't mean anything: they end too early, are too long, or out of range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

/// Reads from the front of a slice.
pub(crate) struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    pub fn u16(&mut self) -> Result<u16, Malformed> {
        let bytes = self.take(2)?.try_into().map_err(|_| Malformed)?;
        Ok(u16::from_be_bytes(bytes))
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        let bytes = self.take(8)?.try_into().map_err(|_| Malformed)?;
        Ok(u64::from_be_bytes(bytes))
    }

    pub fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    /// Reads a string of at most `max` bytes.
    pub fn string(&mut self, max: usize) -> Result<Vec<u8>, Malformed> {
        let len = usize::from(self.u16()?);
        if len > max {
            return Err(Malformed);
        }
        Ok(self.take(len)?.to_vec())
    }

    /// Reads at most `max` items.
    pub fn list<T>(
        &mut self,
        max: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let len = usize::from(self.u8()?);
        if len > max {
            return Err(Malformed);
        }
        (0..len).map(|_| item(self)).collect()
    }

    /// Refuses bytes that are left over.
    pub fn end(&self) -> Result<(), Malformed> {
        match self.0 {
            [] => Ok(()),
            _ => Err(Malformed),
        }
    }
}

pub(crate) fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_be_bytes());
}

/// Writes a string. Callers keep it within the limits, which are below 64 KiB.
pub(crate) fn put_string(out: &mut Vec<u8>, string: &[u8]) {
    out.extend_from_slice(&(string.len() as u16).to_be_bytes());
    out.extend_from_slice(string);
}
