// SPDX-License-Identifier: Apache-2.0
//! Derives keys from secrets.

use crate::{KEY_LEN, mac};

/// The purpose of a key. Keys of different purposes are independent of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The `mac` in the tag of a packet on the data plane.
    PacketMac,
    /// The `digest` in that tag. It is sent in the clear, for values that others choose; with the
    /// same key a value could be chosen so that its digest is the `mac` of another packet.
    PacketDigest,
    /// The `mac` of packets that are signed by HalfSipHash. That key is shorter, and finding it
    /// reveals no part of the other keys.
    HalfPacketMac,
    /// The `digest` of packets that are signed by HalfSipHash.
    HalfPacketDigest,
    /// The HMAC of control messages.
    Control,
    /// Connections on which replicas fetch each other's state.
    State,
}

impl Purpose {
    const fn label(self) -> &'static [u8] {
        match self {
            Self::PacketMac => b"wirepaxos packet mac 1",
            Self::PacketDigest => b"wirepaxos packet digest 1",
            Self::HalfPacketMac => b"wirepaxos packet mac 2",
            Self::HalfPacketDigest => b"wirepaxos packet digest 2",
            Self::Control => b"wirepaxos control 1",
            Self::State => b"wirepaxos state 1",
        }
    }
}

/// Derives a holder's secret from one of the cluster's secrets.
pub(crate) fn holder(secret: &[u8; KEY_LEN], cluster: u32, number: u8) -> [u8; KEY_LEN] {
    let cluster = cluster.to_be_bytes();
    mac(secret, &[b"wirepaxos holder 1", &cluster, &[number]])
}

/// Derives a key from its holder's secret.
pub(crate) fn key(holder: &[u8; KEY_LEN], purpose: Purpose) -> [u8; KEY_LEN] {
    mac(holder, &[purpose.label()])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes of different versions must derive the same keys. These were computed with Python's
    /// `hmac`.
    #[test]
    fn keys_are_what_they_have_always_been() {
        let secret: [u8; KEY_LEN] = std::array::from_fn(|at| at as u8);
        let nodes = holder(&secret, 0x5eed_0001, 0);
        let third = holder(&secret, 0x5eed_0001, 3);
        let start = |key: [u8; KEY_LEN]| u64::from_be_bytes(key[..8].try_into().unwrap());
        assert_eq!(
            [
                start(key(&nodes, Purpose::PacketMac)),
                start(key(&nodes, Purpose::PacketDigest)),
                start(key(&nodes, Purpose::Control)),
                start(key(&third, Purpose::PacketMac)),
                start(key(&nodes, Purpose::HalfPacketMac)),
                start(key(&nodes, Purpose::HalfPacketDigest)),
            ],
            EXPECTED
        );
    }

    const EXPECTED: [u64; 6] = [
        0x6c68_c3cb_2155_baa6,
        0xdc55_0f4d_4b75_1eed,
        0x50a6_4ea3_ca7c_1522,
        0x5111_02d3_7a39_3d8d,
        0x7eda_2906_a9af_65ab,
        0xca26_504a_ef5c_52fc,
    ];
}
