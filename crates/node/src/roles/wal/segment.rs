// SPDX-License-Identifier: Apache-2.0
//! Frames in the sectors of a segment.
//!
//! A disk writes sectors whole, but in any order. Before a segment is used, its sectors hold zeros
//! or the bytes of an earlier segment that had the same file. So each sector of a frame has its own
//! checksum and names its segment. After a crash each sector of the last frame is either written or
//! as it was before; any other content means later damage. Each frame begins a new block, since
//! many disks write whole blocks, and a synced block should never be written again.
//!
//! ```text
//! sector   CRC-32 of the rest u32, place in the frame u16, sectors of the frame u16, segment u32,
//!          number of the frame u64, 492 bytes of: length of the records u32, records, zeros
//! ```

pub const SECTOR: usize = 512;
/// Frames begin at multiples of this size; zeros fill the rest of the last block.
pub const BLOCK: usize = 8 * SECTOR;
const HEAD: usize = 20;
const PAYLOAD: usize = SECTOR - HEAD;
/// The length of a frame's records precedes them.
pub const PREFIX: usize = 4;

/// The log and the segment that sectors belong to.
#[derive(Clone, Copy, Debug)]
pub struct SegmentId {
    /// The log's own number, which is part of each checksum.
    pub key: u64,
    /// The segment's number.
    pub segment: u32,
}

/// One sector of a frame.
struct Sector<'a> {
    index: usize,
    count: usize,
    number: u64,
    payload: &'a [u8],
}

/// Returns the room that a frame of `bytes` takes in a segment. `bytes` includes the prefix.
pub fn room(bytes: usize) -> usize {
    (sectors(bytes) * SECTOR).next_multiple_of(BLOCK)
}

fn sectors(bytes: usize) -> usize {
    bytes.div_ceil(PAYLOAD)
}

/// Writes a frame to `out` as sectors. `records` begins with [`PREFIX`] bytes of room.
pub fn seal(id: SegmentId, number: u64, records: &mut [u8], out: &mut Vec<u8>) {
    let length = (records.len() - PREFIX) as u32;
    records[..PREFIX].copy_from_slice(&length.to_be_bytes());
    let count = u16::try_from(sectors(records.len())).expect("a batch fits a frame");
    out.clear();
    for (index, payload) in records.chunks(PAYLOAD).enumerate() {
        let start = out.len();
        out.resize(start + SECTOR, 0);
        let sector = &mut out[start..];
        sector[4..6].copy_from_slice(&(index as u16).to_be_bytes());
        sector[6..8].copy_from_slice(&count.to_be_bytes());
        sector[8..12].copy_from_slice(&id.segment.to_be_bytes());
        sector[12..20].copy_from_slice(&number.to_be_bytes());
        sector[HEAD..HEAD + payload.len()].copy_from_slice(payload);
        let crc = checksum(id.key, &sector[4..]);
        sector[..4].copy_from_slice(&crc.to_be_bytes());
    }
    out.resize(out.len().next_multiple_of(BLOCK), 0);
}

/// The frames that were found in a segment.
pub struct Replayed {
    /// The number of the first frame; if there is none, the number that was expected.
    pub first: Option<u64>,
    /// The number after the last frame.
    pub next: Option<u64>,
    /// The bytes that the frames take.
    pub bytes: u64,
}

/// Passes the records of each whole frame to `take`, from number `next` on. With `None` the first
/// frame that is found sets the number.
pub fn replay(
    bytes: &[u8],
    id: SegmentId,
    next: Option<u64>,
    mut take: impl FnMut(&[u8]) -> Result<(), String>,
) -> Result<Replayed, String> {
    let sectors = bytes.chunks(SECTOR).enumerate();
    let sectors: Vec<_> = sectors
        .map(|(at, bytes)| Sector::read(bytes, id).map_err(|why| damaged(at, why)))
        .collect::<Result<_, _>>()?;
    let mut rest = &sectors[..];
    let first = next.or(sectors.iter().flatten().next().map(|s| s.number));
    let mut number = first.unwrap_or(0);
    while let Some(frame) = whole_frame(rest, number) {
        let payload: Vec<u8> = frame
            .iter()
            .flatten()
            .flat_map(|s| s.payload)
            .copied()
            .collect();
        let (length, records) = payload.split_first_chunk().ok_or("a frame is empty")?;
        let records = records.get(..u32::from_be_bytes(*length) as usize);
        take(records.ok_or("a frame is shorter than it says")?)?;
        number += 1;
        let blocks = frame.len().next_multiple_of(BLOCK / SECTOR);
        rest = rest.get(blocks..).unwrap_or(&[]);
    }
    is_unfinished(rest, number)?;
    let whole = sectors.len() - rest.len();
    Ok(Replayed {
        first,
        next: if whole > 0 { Some(number) } else { next },
        bytes: (whole * SECTOR) as u64,
    })
}

/// Checks blocks of a segment that were synced, where `bytes` begins at byte `from` of it. Returns
/// an error if a sector is damaged or lost.
pub fn check(bytes: &[u8], from: u64, id: SegmentId) -> Result<(), String> {
    for (offset, block) in (from..).step_by(BLOCK).zip(bytes.chunks(BLOCK)) {
        let at = offset as usize / SECTOR;
        let mut left = None;
        for (at, bytes) in (at..).zip(block.chunks(SECTOR)) {
            let sector = Sector::read(bytes, id).map_err(|why| damaged(at, why))?;
            // Each block begins with a sector of a frame, and the frame may end in it.
            let expected = left.unwrap_or(1);
            match sector {
                None if expected > 0 => return Err(damaged(at, "lost")),
                None => left = Some(0),
                Some(sector) => left = Some(sector.count.saturating_sub(sector.index + 1)),
            }
        }
    }
    Ok(())
}

/// Returns an error unless the whole file holds only zeros or sectors of earlier segments, so that
/// it can become this segment.
pub fn is_vacant(bytes: &[u8], id: SegmentId) -> Result<(), String> {
    for (at, bytes) in bytes.chunks(SECTOR).enumerate() {
        match Sector::read(bytes, id) {
            Ok(None) => {}
            Ok(Some(_)) => return Err(damaged(at, "of a later segment")),
            Err(why) => return Err(damaged(at, why)),
        }
    }
    Ok(())
}

fn damaged(at: usize, why: &str) -> String {
    format!("the {SECTOR} bytes at {} are {why}", at * SECTOR)
}

/// Returns the sectors of the frame at the beginning, if all of them are there.
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

/// Returns an error unless all remaining sectors belong to the one frame that was being written
/// when the crash came.
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
    /// Returns `None` for zeros and for an earlier segment's sector, and an error for bytes that
    /// are no sector.
    fn read(bytes: &'a [u8], id: SegmentId) -> Result<Option<Sector<'a>>, &'static str> {
        if bytes.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        let (crc, rest) = bytes.split_first_chunk::<4>().ok_or("damaged")?;
        let head = rest.first_chunk::<16>().ok_or("damaged")?;
        if bytes.len() != SECTOR || u32::from_be_bytes(*crc) != checksum(id.key, rest) {
            return Err("damaged");
        }
        let segment = u32::from_be_bytes(head[4..8].try_into().expect("four bytes"));
        if segment > id.segment {
            return Err("of a later segment");
        }
        let small = |at: usize| usize::from(u16::from_be_bytes([head[at], head[at + 1]]));
        Ok((segment == id.segment).then(|| Sector {
            index: small(0),
            count: small(2),
            number: u64::from_be_bytes(head[8..].try_into().expect("eight bytes")),
            payload: &bytes[HEAD..],
        }))
    }
}

/// Returns a checksum that includes the log's own number, so that only bytes of this log can match
/// it.
pub fn checksum(key: u64, bytes: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&key.to_be_bytes());
    crc.update(bytes);
    crc.finalize()
}
