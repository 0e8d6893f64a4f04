// SPDX-License-Identifier: Apache-2.0
//! The owner of stored records, and of checkpoints sent to another replica: a partition of a group
//! of a cluster. [X-NAME]
//!
//! | checkpoint on its way (big-endian) | |
//! |---|---|
//! | magic | 8 bytes, the last one the version |
//! | identity | cluster u32, group u16, partition u16, partitions u16 |
//! | position | next instance u64 |
//! | the application's own snapshot | up to the end |

use crate::application::Snapshot;
use paxos::{Deployment, GroupId, Instance, PartitionId};
use std::fmt;
use std::io::{self, Read, Write};

const MAGIC: &[u8; 8] = b"WPstate\x01";

/// The cluster, group and partition to which a state belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    cluster: u32,
    group: GroupId,
    pid: PartitionId,
    partitions: u16,
}

impl Identity {
    pub const LEN: usize = 4 + 2 + 2 + 2;

    pub fn of(deployment: &Deployment, pid: PartitionId) -> Identity {
        Identity {
            cluster: deployment.cluster,
            group: deployment.group,
            pid,
            partitions: deployment.partitions,
        }
    }

    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..4].copy_from_slice(&self.cluster.to_be_bytes());
        out[4..6].copy_from_slice(&self.group.to_be_bytes());
        out[6..8].copy_from_slice(&self.pid.to_be_bytes());
        out[8..].copy_from_slice(&self.partitions.to_be_bytes());
        out
    }

    pub fn parse(bytes: &[u8; Self::LEN]) -> Identity {
        let u16_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        Identity {
            cluster: u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            group: u16_at(4),
            pid: u16_at(6),
            partitions: u16_at(8),
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Identity {
            cluster,
            group,
            pid,
            partitions,
        } = self;
        write!(
            f,
            "partition {pid} of {partitions} of group {group} of cluster {cluster:08x}"
        )
    }
}

/// An application's snapshot behind the name of its owner.
pub(crate) struct Named {
    pub identity: Identity,
    pub position: Instance,
    pub snapshot: Box<dyn Snapshot>,
}

impl Snapshot for Named {
    fn write_to(&mut self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(MAGIC)?;
        out.write_all(&self.identity.emit())?;
        out.write_all(&self.position.to_be_bytes())?;
        self.snapshot.write_to(out)
    }
}

/// Reads the name before an application's snapshot: the state's owner and its position.
pub(crate) fn read_name(from: &mut dyn Read) -> io::Result<(Identity, Instance)> {
    let mut magic = [0; MAGIC.len()];
    from.read_exact(&mut magic)?;
    if magic != *MAGIC {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "it doesn't begin as a checkpoint of this version",
        ));
    }
    let mut identity = [0; Identity::LEN];
    from.read_exact(&mut identity)?;
    let mut position = [0; 8];
    from.read_exact(&mut position)?;
    Ok((Identity::parse(&identity), u64::from_be_bytes(position)))
}
