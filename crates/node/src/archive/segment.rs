// SPDX-License-Identifier: Apache-2.0
//! Segments: the files of an archive, to which one writer appends.
//!
//! | segment (big-endian) | |
//! |---|---|
//! | `WPar` | 4 bytes |
//! | format | u32, 1 |
//! | cluster | u32 |
//! | time | u64, ms since 1970, when it was begun |
//! | checksum | u32, CRC-32 of what is before it |
//! | records | the rest ([`Record`]); the last one says that the segment is closed |
//!
//! A writer that was killed leaves a segment that isn't closed and may end within a record. The
//! reader takes what is whole. Nothing is ever appended behind such an end.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use paxos::Instance;
use replica::storage::sync_directory_of;

use super::record::GroupPartition;
use super::record::{self, Entry, HEAD_LEN, PREFIX_LEN, Record};

const MAGIC: &[u8; 4] = b"WPar";
const FORMAT: u32 = 1;
const HEADER_LEN: usize = 4 + 4 + 4 + 8 + 4;

/// Appends to a segment.
pub struct Writer {
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl Writer {
    /// Creates a segment, which must not be there, and makes its name durable.
    pub fn create(path: &Path, cluster: u32, now_ms: u64) -> io::Result<Writer> {
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        let begun = Writer::begin(file, path, cluster, now_ms).and_then(|writer| {
            sync_directory_of(path)?;
            Ok(writer)
        });
        if begun.is_err() {
            // Many attempts on a full disk don't leave many files.
            let _ = fs::remove_file(path);
        }
        begun
    }

    fn begin(mut file: File, path: &Path, cluster: u32, now_ms: u64) -> io::Result<Writer> {
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&FORMAT.to_be_bytes());
        header.extend_from_slice(&cluster.to_be_bytes());
        header.extend_from_slice(&now_ms.to_be_bytes());
        header.extend_from_slice(&crc32fast::hash(&header).to_be_bytes());
        file.write_all(&header)?;
        file.sync_all()?;
        Ok(Writer {
            file,
            path: path.to_owned(),
            bytes: HEADER_LEN as u64,
        })
    }

    /// Appends records. After an error the segment must be left as it is.
    pub fn append(&mut self, records: &[u8]) -> io::Result<()> {
        self.file.write_all(records)?;
        self.bytes += records.len() as u64;
        Ok(())
    }

    /// Makes durable what was appended.
    ///
    /// # Errors
    /// Also if nobody would find it, since the file or its directory was removed or replaced.
    pub fn sync(&mut self) -> io::Result<()> {
        let own = self.file.metadata()?;
        let is_own = |found: &fs::Metadata| (found.dev(), found.ino()) == (own.dev(), own.ino());
        match fs::metadata(&self.path).is_ok_and(|found| is_own(&found)) {
            true => self.file.sync_data(),
            false => Err(io::Error::other(format!(
                "{} was removed or replaced while it was written",
                self.path.display()
            ))),
        }
    }

    /// Returns the bytes of the segment.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Closes the segment.
    pub fn close(mut self, now_ms: u64) -> io::Result<()> {
        let mut end = Vec::new();
        record::emit_end(now_ms, &mut end);
        self.append(&end)?;
        self.sync()
    }
}

/// How a segment ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Its writer has closed it.
    Closed,
    /// Its writer still appends, or was killed: it ends behind the last whole record, at this byte.
    Open(u64),
    /// Its writer has closed it, but it can't be read from this byte on.
    Damaged(u64),
}

/// Reads a segment, which may hold anything.
pub struct Reader<R> {
    from: R,
    at: u64,
    body: Vec<u8>,
    ending: Option<Ending>,
    is_closed: bool,
    /// The instance that comes next in each partition of which there were values.
    next: BTreeMap<GroupPartition, Instance>,
}

impl Reader<BufReader<File>> {
    /// Opens a segment of a cluster's archive. The error says what is wrong with it.
    pub fn open(path: &Path, cluster: u32) -> Result<Self, String> {
        let failed = |e: io::Error| format!("can't be read: {e}");
        let file = File::open(path).map_err(failed)?;
        Reader::new(BufReader::with_capacity(1 << 18, file), cluster)
    }
}

impl<R: Read + Seek> Reader<R> {
    /// Reads a segment from its beginning.
    pub fn new(mut from: R, cluster: u32) -> Result<Reader<R>, String> {
        let failed = |e: io::Error| format!("can't be read: {e}");
        let is_closed = is_closed(&mut from).map_err(failed)?;
        from.rewind().map_err(failed)?;
        let mut header = Vec::new();
        let read = from.by_ref().take(HEADER_LEN as u64);
        read_all(read, &mut header).map_err(failed)?;
        let ending = match <[u8; HEADER_LEN]>::try_from(header) {
            // Its writer was killed before anything was in it.
            Err(_) => Some(Ending::Open(0)),
            Ok(header) => check_header(&header, cluster).map(|()| None)?,
        };
        Ok(Reader {
            from,
            at: HEADER_LEN as u64,
            body: Vec::new(),
            ending,
            is_closed,
            next: BTreeMap::new(),
        })
    }

    /// Returns the next record, or `None` at the segment's end.
    pub fn read_next(&mut self) -> io::Result<Option<Record<'_>>> {
        if self.ending.is_some() {
            return Ok(None);
        }
        let sum = self.read_body()?;
        let found = sum.and_then(|sum| record::parse(&self.body, sum));
        let ending = match found {
            Some(Entry::Values(record)) => {
                let next = self.next.entry(record.place).or_insert(record.first);
                if record.first <= *next && record.end >= *next {
                    *next = record.end;
                    self.at += (PREFIX_LEN + self.body.len()) as u64;
                    return Ok(Some(record));
                }
                self.cut()
            }
            Some(Entry::End) => Ending::Closed,
            None => self.cut(),
        };
        self.ending = Some(ending);
        Ok(None)
    }

    /// Returns how the segment ends, once its end was reached.
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    fn cut(&self) -> Ending {
        match self.is_closed {
            true => Ending::Damaged(self.at),
            false => Ending::Open(self.at),
        }
    }

    /// Reads the bytes of a record, and returns their checksum. Returns `None` if some are missing.
    fn read_body(&mut self) -> io::Result<Option<u32>> {
        let mut prefix = Vec::new();
        read_all(self.from.by_ref().take(PREFIX_LEN as u64), &mut prefix)?;
        let prefix = <[u8; PREFIX_LEN]>::try_from(prefix).ok();
        let Some((length, sum)) = prefix.and_then(record::parse_prefix) else {
            return Ok(None);
        };
        self.body.clear();
        read_all(self.from.by_ref().take(length as u64), &mut self.body)?;
        Ok((self.body.len() == length).then_some(sum))
    }
}

fn read_all(mut from: impl Read, into: &mut Vec<u8>) -> io::Result<()> {
    from.read_to_end(into).map(|_| ())
}

fn check_header(header: &[u8; HEADER_LEN], cluster: u32) -> Result<(), String> {
    let (body, sum) = header.split_at(HEADER_LEN - 4);
    let number = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|i: usize| header[at + i]));
    if !header.starts_with(MAGIC) {
        return Err("is no segment of an archive".into());
    }
    if number(4) != FORMAT {
        return Err(format!(
            "is of format {}, and this program reads format {FORMAT}: use the version that wrote \
             it",
            number(4)
        ));
    }
    if crc32fast::hash(body).to_be_bytes() != *sum {
        return Err("is damaged at its beginning".into());
    }
    match number(8) == cluster {
        true => Ok(()),
        false => Err(format!("is of cluster {:08x}", number(8))),
    }
}

/// Returns whether the last record says that the segment is closed.
fn is_closed(from: &mut (impl Read + Seek)) -> io::Result<bool> {
    let length = from.seek(SeekFrom::End(0))?;
    let of_end = (PREFIX_LEN + HEAD_LEN) as u64;
    if length < HEADER_LEN as u64 + of_end {
        return Ok(false);
    }
    from.seek(SeekFrom::Start(length - of_end))?;
    let mut prefix = [0; PREFIX_LEN];
    from.read_exact(&mut prefix)?;
    let mut body = [0; HEAD_LEN];
    from.read_exact(&mut body)?;
    let found = record::parse_prefix(prefix).filter(|(length, _)| *length == HEAD_LEN);
    let found = found.and_then(|(_, sum)| record::parse(&body, sum));
    Ok(found == Some(Entry::End))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;
    use std::io::Cursor;

    fn record(pid: u16, at: Instance) -> Record<'static> {
        Record {
            place: (1, pid),
            time_ms: 100 + at,
            first: at,
            end: at,
            values: &[],
        }
    }

    /// Returns a segment with three records, and closes it if that is wanted.
    fn segment(close: bool) -> Vec<u8> {
        let directory = TestDir::new();
        let path = directory.path().join("segment");
        let mut writer = Writer::create(&path, 7, 99).unwrap();
        for of in [record(0, 5), record(1, 9), record(0, 5)] {
            let mut bytes = Vec::new();
            of.emit(&mut bytes);
            writer.append(&bytes).unwrap();
        }
        writer.sync().unwrap();
        assert!(Writer::create(&path, 7, 99).is_err(), "it is there already");
        if close {
            writer.close(200).unwrap();
        }
        std::fs::read(path).unwrap()
    }

    #[test]
    fn what_nobody_would_find_is_not_durable() {
        let directory = TestDir::new();
        let inner = directory.path().join("archive");
        let moved = directory.path().join("moved");
        fs::create_dir(&inner).unwrap();
        let path = inner.join("segment");
        let mut writer = Writer::create(&path, 7, 99).unwrap();
        fs::rename(&inner, &moved).unwrap();
        fs::create_dir(&inner).unwrap();
        let why = writer.sync().unwrap_err().to_string();
        assert!(why.contains("was removed or replaced"), "{why}");
        let mut other = Writer::create(&path, 7, 99).unwrap();
        assert!(writer.sync().is_err(), "another file has its name");
        other.sync().unwrap();
        fs::remove_file(&path).unwrap();
        assert!(other.close(100).is_err());
    }

    fn read(bytes: &[u8]) -> Result<(usize, Ending), String> {
        let mut reader = Reader::new(Cursor::new(bytes), 7)?;
        let mut records = 0;
        while reader.read_next().unwrap().is_some() {
            records += 1;
        }
        Ok((records, reader.ending().unwrap()))
    }

    #[test]
    fn a_segment_is_read_as_far_as_it_is_whole() {
        let (open, closed) = (segment(false), segment(true));
        assert_eq!(read(&closed), Ok((3, Ending::Closed)));
        assert_eq!(read(&open), Ok((3, Ending::Open(open.len() as u64))));
        let one = PREFIX_LEN + HEAD_LEN;
        for length in 0..open.len() {
            let whole = length.saturating_sub(HEADER_LEN) / one;
            let (records, ending) = read(&open[..length]).unwrap();
            assert_eq!(records, whole, "{length}");
            assert!(matches!(ending, Ending::Open(_)));
        }
        // Behind a torn record nothing counts, even if it is whole.
        let mut torn = open.clone();
        torn[HEADER_LEN + one + 20] ^= 1;
        let cut = (HEADER_LEN + one) as u64;
        assert_eq!(read(&torn), Ok((1, Ending::Open(cut))));
        let mut damaged = closed.clone();
        damaged[HEADER_LEN + one + 20] ^= 1;
        assert_eq!(read(&damaged), Ok((1, Ending::Damaged(cut))));
    }

    #[test]
    fn another_file_is_refused_by_what_it_is() {
        let whole = segment(true);
        let refused = |at: usize, words: &str| {
            let mut other = whole.clone();
            other[at] ^= 2;
            let why = read(&other).unwrap_err();
            assert!(why.contains(words), "{at}: {why}");
        };
        refused(0, "no segment");
        refused(7, "format 3");
        refused(15, "damaged at its beginning");
        let why = Reader::new(Cursor::new(&whole), 8).err().unwrap();
        assert!(why.contains("cluster 00000007"), "{why}");
    }
}
