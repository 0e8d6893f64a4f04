// SPDX-License-Identifier: Apache-2.0
//! The cursors of SCAN. Each is a number with all that a scan needs to continue, at any replica and
//! at any time.

use apps::place;
use paxos::PartitionId;

use crate::partitions::MAX_PARTITIONS;

/// A cursor stays below 2^53, so that clients in every programming language can represent it
/// exactly.
const _: () = assert!(((MAX_PARTITIONS as u64 - 1) << place::BITS) >> 53 == 0);

/// The position of a scan. A scan visits one partition after the other, and in each of them the
/// keys in the order of their places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cursor {
    pub pid: PartitionId,
    /// The place at which the scan continues.
    pub place: u64,
}

impl Cursor {
    /// Returns the cursor with this number in decimal digits, or `None` if no scan over so many
    /// partitions has such a cursor.
    pub fn parse(text: &[u8], partitions: u16) -> Option<Cursor> {
        if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let number: u64 = std::str::from_utf8(text).ok()?.parse().ok()?;
        let pid = number >> place::BITS;
        (pid < u64::from(partitions)).then_some(Cursor {
            pid: pid as PartitionId,
            place: number & ((1 << place::BITS) - 1),
        })
    }

    /// Returns the cursor's number for a client after a call in a partition, where `more_from` is
    /// the place of the next key, if there is one. It is 0 at the end of the last partition, as at
    /// the beginning of a scan.
    pub fn next_number(pid: PartitionId, more_from: Option<u64>, partitions: u16) -> u64 {
        match more_from {
            Some(place) => u64::from(pid) << place::BITS | place,
            None if pid + 1 < partitions => u64::from(pid + 1) << place::BITS,
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_good_as_places() {
        let last = (1 << place::BITS) - 1;
        for pid in [0, 1, 63] {
            for place in [1, 77, last] {
                let number = Cursor::next_number(pid, Some(place), 64);
                let cursor = Cursor::parse(number.to_string().as_bytes(), 64);
                assert_eq!(cursor, Some(Cursor { pid, place }));
                assert!(number < 1 << 53);
            }
        }
    }

    #[test]
    fn a_scan_goes_through_the_partitions_one_after_the_other() {
        let mut number = 0;
        for pid in 0..3 {
            let cursor = Cursor::parse(number.to_string().as_bytes(), 3);
            assert_eq!(cursor, Some(Cursor { pid, place: 0 }));
            number = Cursor::next_number(pid, None, 3);
        }
        assert_eq!(number, 0);
    }

    #[test]
    fn what_no_scan_gives_is_none() {
        let beyond = (3u64 << place::BITS).to_string();
        let texts = [
            "",
            "x",
            "-1",
            "+1",
            " 1",
            "1 ",
            "0x1",
            "18446744073709551616",
            &beyond,
        ];
        for text in texts {
            assert_eq!(Cursor::parse(text.as_bytes(), 3), None, "{text}");
        }
        assert!(Cursor::parse(beyond.as_bytes(), 4).is_some());
    }
}
