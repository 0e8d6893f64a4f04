// SPDX-License-Identifier: Apache-2.0
//! The partition of a key, which its hash slot determines as in Redis Cluster. Each partition has
//! an equal range of slots.

use paxos::PartitionId;

/// The number of hash slots.
pub const SLOTS: u16 = 16_384;

/// Returns the hash slot of a key. If the key has a tag, a nonempty part in braces, only the tag
/// counts: `{user:7}.name` and `{user:7}.mail` are in one slot.
pub fn of_key(key: &[u8]) -> u16 {
    crc16(tag(key).unwrap_or(key)) % SLOTS
}

/// Returns the partition, among `partitions`, that a key belongs to.
pub fn partition_of(key: &[u8], partitions: u16) -> PartitionId {
    if partitions <= 1 {
        return 0;
    }
    let ranges = u32::from(of_key(key)) * u32::from(partitions);
    (ranges / u32::from(SLOTS)) as PartitionId
}

/// Returns the bytes between the first `{` and the next `}`, if there are any.
fn tag(key: &[u8]) -> Option<&[u8]> {
    let start = key.iter().position(|b| *b == b'{')? + 1;
    let len = key[start..].iter().position(|b| *b == b'}')?;
    (len > 0).then(|| &key[start..start + len])
}

/// Returns CRC16-CCITT in the XMODEM variant: polynomial 0x1021, from 0, nothing reflected.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)]
    })
}

const TABLE: [u16; 256] = table();

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            let carry = crc & 0x8000 != 0;
            crc = (crc << 1) ^ if carry { 0x1021 } else { 0 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers come from Redis Cluster's documentation and from `CLUSTER KEYSLOT`.
    #[test]
    fn slots_are_those_of_redis_cluster() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, slot) in [("", 0), ("foo", 12_182), ("bar", 5_061), ("hello", 866)] {
            assert_eq!(of_key(key.as_bytes()), slot, "{key}");
        }
    }

    #[test]
    fn a_tag_alone_counts_unless_it_is_empty() {
        let same = |a: &str, b: &str| of_key(a.as_bytes()) == of_key(b.as_bytes());
        assert!(same("{user1000}.following", "{user1000}.followers"));
        assert!(same("a{user1000}b", "user1000"));
        assert!(same("foo{bar}{zap}", "bar"));
        // The first brace opens, and the next one closes.
        assert!(same("foo{{bar}}zap", "{bar"));
        // The whole key counts if nothing is in the braces, or they aren't closed.
        for whole in ["foo{}{bar}", "foo{bar", "foo}bar{"] {
            assert_eq!(of_key(whole.as_bytes()), crc16(whole.as_bytes()) % SLOTS);
        }
    }

    #[test]
    fn partitions_have_equal_ranges_of_slots_and_every_key_has_one() {
        for partitions in [1, 2, 3, 4, 7, 16, 64] {
            let mut keys = vec![0; usize::from(partitions)];
            for n in 0..40_000 {
                keys[usize::from(partition_of(format!("key:{n}").as_bytes(), partitions))] += 1;
            }
            let fair = 40_000 / i32::from(partitions);
            assert!(keys.iter().all(|k| (k - fair).abs() < fair / 4), "{keys:?}");
        }
    }
}
