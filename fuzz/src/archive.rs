// SPDX-License-Identifier: Apache-2.0
//! A segment of an archive after something has happened to it, and any bytes in its place. What is
//! read are records that were written, in order, from the first on; or the segment is refused.

use std::io::Cursor;

use super::input::Input;
use node::archive::{Reader, Record, Writer};

use super::scratch::Scratch;

const CLUSTER: u32 = 7;

/// Runs what `data` spells.
pub fn run(data: &[u8]) {
    let _ = read(data);
    let mut input = Input(data);
    let written: Vec<_> = (0..input.small() % 20).map(|_| place(&mut input)).collect();
    let mut bytes = write(&written, input.small() < 128);
    if bytes.is_empty() {
        return;
    }
    for _ in 0..input.small() % 4 {
        let at = usize::from(input.small()) * 256 + usize::from(input.small());
        let at = at % bytes.len();
        match input.small() {
            0..64 => bytes.truncate(at.max(1)),
            change => bytes[at] ^= change,
        }
    }
    if let Ok(read) = read(&bytes) {
        assert!(written.starts_with(&read), "{read:?} of {written:?}");
    }
}

fn place(input: &mut Input<'_>) -> (u16, u64) {
    (u16::from(input.small() % 3), u64::from(input.small()))
}

fn record((pid, time_ms): (u16, u64)) -> Record<'static> {
    let at = u64::from(pid) * 9;
    Record {
        place: (1, pid),
        time_ms,
        first: at,
        end: at,
        values: &[],
    }
}

fn write(written: &[(u16, u64)], close: bool) -> Vec<u8> {
    let directory = Scratch::new();
    let path = directory.0.join("segment");
    let mut writer = Writer::create(&path, CLUSTER, 1).expect("a new file");
    for of in written {
        let mut bytes = Vec::new();
        record(*of).emit(&mut bytes);
        writer.append(&bytes).expect("room");
    }
    if close {
        writer.close(2).expect("room");
    }
    std::fs::read(path).expect("the file")
}

fn read(bytes: &[u8]) -> Result<Vec<(u16, u64)>, String> {
    let mut reader = Reader::new(Cursor::new(bytes), CLUSTER)?;
    let mut read = Vec::new();
    while let Some(record) = reader.read_next().expect("bytes in memory") {
        assert!(record.values.is_empty() == (record.first == record.end));
        read.push((record.place.1, record.time_ms));
    }
    assert!(reader.ending().is_some());
    Ok(read)
}
