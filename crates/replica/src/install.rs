// SPDX-License-Identifier: Apache-2.0
//! The install of another replica's state, in all partitions of a replica together.
//!
//! The partitions' stores commit one by one, so a kill in the middle leaves some of them replaced
//! and others not: a state that no replica ever had. So the install is noted durably before the
//! first store is replaced, and no partition executes anything before all of them have reached the
//! installed position and are durable. A replica that finds such a note at its start goes on with
//! the install. [X-INSTALL]
//!
//! | note (big-endian) | |
//! |---|---|
//! | magic | 8 bytes, the last one the version |
//! | cluster u32, group u16, partitions u16 | whose it is |
//! | by partition: next instance u64 | of the state that is being installed |
//! | CRC-32 u32 | |

use crate::application::Error;
use paxos::{Deployment, Instance, PartitionId};

const MAGIC: &[u8; 8] = b"WPinst\0\x01";

/// An install that has begun.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Install {
    positions: Vec<Instance>,
}

impl Install {
    /// Begins the install of a state that stands at these instances, one for each partition.
    pub fn new(positions: Vec<Instance>) -> Install {
        Install { positions }
    }

    /// Returns the positions of the state.
    pub fn positions(&self) -> &[Instance] {
        &self.positions
    }

    /// Returns whether a partition that stands at `next` takes the state over. A partition that is
    /// further keeps its own.
    pub fn puts(&self, pid: PartitionId, next: Instance) -> bool {
        self.positions[usize::from(pid)] > next
    }

    /// Returns whether another state can replace this one in an install that has begun: none of its
    /// partitions may lie behind.
    pub fn can_become(&self, other: &Install) -> bool {
        let mut both = self.positions.iter().zip(&other.positions);
        self.positions.len() == other.positions.len() && both.all(|(own, other)| own <= other)
    }

    /// Returns the bytes of the note.
    pub fn emit(&self, of: &Deployment) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&of.cluster.to_be_bytes());
        out.extend_from_slice(&of.group.to_be_bytes());
        out.extend_from_slice(&of.partitions.to_be_bytes());
        for position in &self.positions {
            out.extend_from_slice(&position.to_be_bytes());
        }
        out.extend_from_slice(&crc32fast::hash(&out).to_be_bytes());
        out
    }

    /// Reads a note of this deployment; another deployment's note is refused.
    pub fn parse(note: &[u8], of: &Deployment) -> Result<Install, Error> {
        let damaged = || Error("the note of an install that was begun is damaged".into());
        let (body, sum) = note.split_last_chunk().ok_or_else(damaged)?;
        if crc32fast::hash(body) != u32::from_be_bytes(*sum) {
            return Err(damaged());
        }
        let own = Install::new(Vec::new()).emit(of);
        let own = &own[..own.len() - 4];
        let positions = body.strip_prefix(own).ok_or_else(|| {
            let why = "the note of an install that was begun is of another cluster or version";
            Error(why.into())
        })?;
        let positions = positions.chunks(8).map(|word| word.try_into().ok());
        let positions: Option<Vec<_>> = positions.map(|w| w.map(u64::from_be_bytes)).collect();
        positions
            .filter(|p| p.len() == usize::from(of.partitions))
            .map(Install::new)
            .ok_or_else(damaged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment() -> Deployment {
        Deployment {
            cluster: 9,
            group: 1,
            partitions: 2,
            max_value: 512,
            node: 1,
        }
    }

    /// Each partition keeps its own state or the copy, whichever is further in the log. [X-INSTALL]
    #[test]
    fn each_partition_keeps_what_is_further() {
        let install = Install::new(vec![10, 20]);
        assert!(install.puts(0, 9) && !install.puts(0, 10) && install.puts(1, 19));
        assert!(install.can_become(&install));
        assert!(install.can_become(&Install::new(vec![10, 21])));
        assert!(!install.can_become(&Install::new(vec![9, 100])));
        assert!(!install.can_become(&Install::new(vec![10])));
    }

    #[test]
    fn a_note_is_read_whole_by_whom_it_is_of_or_refused() {
        let install = Install::new(vec![10, 20]);
        let note = install.emit(&deployment());
        assert_eq!(Install::parse(&note, &deployment()).unwrap(), install);
        for bit in 0..note.len() * 8 {
            let mut note = note.clone();
            note[bit / 8] ^= 1 << (bit % 8);
            assert!(Install::parse(&note, &deployment()).is_err(), "bit {bit}");
        }
        for len in 0..note.len() {
            assert!(Install::parse(&note[..len], &deployment()).is_err());
        }
        let three = Deployment {
            partitions: 3,
            ..deployment()
        };
        let refused = Install::parse(&note, &three).unwrap_err();
        assert!(refused.to_string().contains("another cluster"), "{refused}");
    }
}
