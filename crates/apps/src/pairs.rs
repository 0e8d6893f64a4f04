// SPDX-License-Identifier: Apache-2.0
//! The format of snapshots: a magic number, pairs of {key length u32, value length u32, key,
//! value}, an end mark, and the number of pairs u64. Keys ascend, numbers are big-endian, and all
//! stores share the format.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

const MAGIC: &[u8; 8] = b"WPsnap\0\x03";
/// The end mark, in place of a key's length.
const END: u32 = u32::MAX;
const MAX_KEY_LEN: u32 = 1 << 20;
const MAX_VALUE_LEN: u32 = 1 << 30;

/// Writes pairs one after the other.
pub(crate) struct Writer<'a> {
    out: BufWriter<&'a mut dyn Write>,
    count: u64,
}

impl<'a> Writer<'a> {
    pub fn begin(out: &'a mut dyn Write) -> io::Result<Self> {
        let mut out = BufWriter::with_capacity(64 << 10, out);
        out.write_all(MAGIC)?;
        Ok(Writer { out, count: 0 })
    }

    pub fn pair(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.count += 1;
        self.out.write_all(&(key.len() as u32).to_be_bytes())?;
        self.out.write_all(&(value.len() as u32).to_be_bytes())?;
        self.out.write_all(key)?;
        self.out.write_all(value)
    }

    pub fn end(mut self) -> io::Result<()> {
        self.out.write_all(&END.to_be_bytes())?;
        self.out.write_all(&self.count.to_be_bytes())?;
        self.out.flush()
    }
}

/// Reads all pairs up to the very end of `from`, since the caller may check the stream as a whole
/// there.
pub(crate) fn read(
    from: &mut dyn Read,
    mut visit: impl FnMut(&[u8], &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let from = &mut io::BufReader::with_capacity(64 << 10, from);
    let mut magic = [0; MAGIC.len()];
    from.read_exact(&mut magic)?;
    if magic != *MAGIC {
        return Err(match magic[..7] == MAGIC[..7] {
            true => io::Error::other("the snapshot is of another version of this program"),
            false => damaged("it doesn't begin as a snapshot"),
        });
    }
    let (mut last, mut key, mut value) = (Vec::new(), Vec::new(), Vec::new());
    let mut count = 0u64;
    loop {
        let key_len = read_u32(from)?;
        if key_len == END {
            break;
        }
        let value_len = read_u32(from)?;
        if key_len > MAX_KEY_LEN || value_len > MAX_VALUE_LEN {
            return Err(damaged("a length is out of range"));
        }
        read_bytes(from, key_len, &mut key)?;
        read_bytes(from, value_len, &mut value)?;
        if count > 0 && key <= last {
            return Err(damaged("its keys are not in order"));
        }
        visit(&key, &value)?;
        count += 1;
        std::mem::swap(&mut last, &mut key);
    }
    let mut stated = [0; 8];
    from.read_exact(&mut stated)?;
    if u64::from_be_bytes(stated) != count {
        return Err(damaged("pairs are missing"));
    }
    if from.read(&mut [0])? != 0 {
        return Err(damaged("something follows its end"));
    }
    Ok(())
}

/// Reads `len` bytes. The buffer grows as they arrive, so that a false length reserves nothing.
fn read_bytes(from: &mut impl Read, len: u32, into: &mut Vec<u8>) -> io::Result<()> {
    into.clear();
    if from.take(u64::from(len)).read_to_end(into)? < len as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

fn read_u32(from: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}

pub(crate) fn damaged(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the snapshot is damaged: {what}"),
    )
}

pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
