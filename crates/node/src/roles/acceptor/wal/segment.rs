// SPDX-License-Identifier: Apache-2.0
//! Frames in the sectors of a segment.
//!
//! A disk writes sectors whole, but in any order, and before a segment is used all of them hold zeros.
//! So each sector of a frame has a checksum of its own. What a crash leaves of the last frame is
//! sectors of it and sectors of zeros; whatever else is there was damaged since.

pub const SECTOR: usize = 512;
const HEAD: usize = 16;
const PAYLOAD: usize = SECTOR - HEAD;
/// What precedes a frame's records: their length.
pub const PREFIX: usize = 4;

/// What one sector holds of a frame.
struct Sector<'a> {
    index: usize,
    count: usize,
    number: u64,
    payload: &'a [u8],
}

/// Writes a frame to `out` as sectors. `records` begins with [`PREFIX`] bytes of room.
pub fn seal(key: u64, number: u64, records: &mut [u8], out: &mut Vec<u8>) {
    let length = (records.len() - PREFIX) as u32;
    records[..PREFIX].copy_from_slice(&length.to_be_bytes());
    let count = records.len().div_ceil(PAYLOAD);
    let count16 = u16::try_from(count).expect("a batch fits a frame");
    out.clear();
    for (index, payload) in records.chunks(PAYLOAD).enumerate() {
        let start = out.len();
        out.resize(start + SECTOR, 0);
        let sector = &mut out[start..];
        sector[4..6].copy_from_slice(&(index as u16).to_be_bytes());
        sector[6..8].copy_from_slice(&count16.to_be_bytes());
        sector[8..16].copy_from_slice(&number.to_be_bytes());
        sector[HEAD..HEAD + payload.len()].copy_from_slice(payload);
        let crc = checksum(key, &sector[4..]);
        sector[..4].copy_from_slice(&crc.to_be_bytes());
    }
}

/// Hands the records of each whole frame over, from number `next` on.
pub fn replay(
    bytes: &[u8],
    key: u64,
    next: &mut u64,
    mut take: impl FnMut(&[u8]) -> Result<(), String>,
) -> Result<(), String> {
    let sectors = bytes.chunks(SECTOR).enumerate();
    let sectors: Vec<_> = sectors
        .map(|(at, bytes)| Sector::read(bytes, key).map_err(|()| damaged(at)))
        .collect::<Result<_, _>>()?;
    let mut rest = &sectors[..];
    while let Some(frame) = whole_frame(rest, *next) {
        let payload: Vec<u8> = frame
            .iter()
            .flatten()
            .flat_map(|s| s.payload)
            .copied()
            .collect();
        let (length, records) = payload.split_first_chunk().ok_or("a frame is empty")?;
        let records = records.get(..u32::from_be_bytes(*length) as usize);
        take(records.ok_or("a frame is shorter than it says")?)?;
        *next += 1;
        rest = &rest[frame.len()..];
    }
    is_unfinished(rest, *next)
}

fn damaged(at: usize) -> String {
    format!("the {SECTOR} bytes at {} are damaged", at * SECTOR)
}

/// The sectors of the frame at the beginning, if all are there.
fn whole_frame<'a, 'b>(
    sectors: &'a [Option<Sector<'b>>],
    number: u64,
) -> Option<&'a [Option<Sector<'b>>]> {
    let count = sectors.first()?.as_ref()?.count;
    let frame = sectors.get(..count)?;
    let is_part = |(index, s): (usize, &Option<Sector<'_>>)| {
        let s = s.as_ref();
        s.is_some_and(|s| (s.number, s.index, s.count) == (number, index, count))
    };
    (count > 0 && frame.iter().enumerate().all(is_part)).then_some(frame)
}

/// Whether all that is left is sectors of one frame, which was being written when the crash came.
fn is_unfinished(sectors: &[Option<Sector<'_>>], number: u64) -> Result<(), String> {
    for (at, sector) in sectors.iter().enumerate() {
        let other = sector
            .as_ref()
            .filter(|s| (s.number, s.index) != (number, at));
        if let Some(s) = other {
            return Err(format!(
                "frame {number} is missing or damaged, and frame {} after it is not: the disk has \
                 lost what was stored",
                s.number
            ));
        }
    }
    Ok(())
}

impl<'a> Sector<'a> {
    /// `None` where there are only zeros; an error where there is something that is no sector.
    fn read(bytes: &'a [u8], key: u64) -> Result<Option<Sector<'a>>, ()> {
        if bytes.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        let (crc, rest) = bytes.split_first_chunk::<4>().ok_or(())?;
        let head = rest.first_chunk::<12>().ok_or(())?;
        if bytes.len() != SECTOR || u32::from_be_bytes(*crc) != checksum(key, rest) {
            return Err(());
        }
        let small = |at: usize| usize::from(u16::from_be_bytes([head[at], head[at + 1]]));
        Ok(Some(Sector {
            index: small(0),
            count: small(2),
            number: u64::from_be_bytes(head[4..].try_into().expect("eight bytes")),
            payload: &bytes[HEAD..],
        }))
    }
}

/// A checksum that only bytes of this log have.
pub fn checksum(key: u64, bytes: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&key.to_be_bytes());
    crc.update(bytes);
    crc.finalize()
}
