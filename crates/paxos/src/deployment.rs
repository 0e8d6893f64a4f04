// SPDX-License-Identifier: Apache-2.0
//! The deployment that a role serves, and the checks that all roles make alike.

use crate::{Flags, GroupId, MsgType, NodeId, Packet, Reason};

/// The deployment that a role serves: one group of one cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Deployment {
    /// The cluster's random number.
    pub cluster: u32,
    /// The group.
    pub group: GroupId,
    /// The number of partitions of the group: `pid` is 0 to `partitions - 1`.
    pub partitions: u16,
    /// The largest value in bytes, at most [`crate::wire::MAX_VALUE_LEN`].
    pub max_value: u16,
    /// The number of this node.
    pub node: NodeId,
}

impl Deployment {
    /// Checks what every handler relies on: cluster, group, partition, size, and that the packet
    /// names a session exactly if its type must. [M-PACKET]
    #[inline]
    pub fn check(&self, packet: &Packet<'_>) -> Result<(), Reason> {
        let h = &packet.header;
        if h.cluster != self.cluster {
            return Err(Reason::WrongCluster);
        }
        if h.group != self.group {
            return Err(Reason::UnknownGroup);
        }
        if h.pid >= self.partitions {
            return Err(Reason::UnknownPartition);
        }
        // The answer of an application is bounded by the datagram, not by the log's largest value.
        if h.value_len > self.max_value && h.msgtype != MsgType::Reply {
            return Err(Reason::ValueTooLarge);
        }
        let session_needed = matches!(
            h.msgtype,
            MsgType::Request
                | MsgType::Phase2a
                | MsgType::Phase2b
                | MsgType::Deliver
                | MsgType::Ordered
                | MsgType::Read
        ) && !h.flags.has(Flags::NOOP);
        let session_forbidden = h.flags.has(Flags::NOOP);
        if session_needed && h.client == 0 || session_forbidden && (h.client | h.request) != 0 {
            return Err(Reason::BadSession);
        }
        Ok(())
    }
}
