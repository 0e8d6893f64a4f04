// SPDX-License-Identifier: Apache-2.0
//! Tests from which networks requests of clients are accepted. [M-ASKER]

use std::net::IpAddr;

use loader::frame;

/// An address, and how many bits of it count.
pub type Network = (IpAddr, u8);

/// Returns the cases: IPv6 or not, the networks of clients, and true if a test frame's command
/// counts.
pub fn cases() -> [(bool, Vec<Network>, bool); 8] {
    let net = |address: [u8; 4], bits| (IpAddr::from(address), bits);
    let net6 = |address: [u16; 8], bits| (IpAddr::from(address), bits);
    let [v4, v6]: [IpAddr; 2] = [frame::V4_FROM.into(), frame::V6_FROM.into()];
    let [ten, fd00] = [
        net([10, 0, 0, 0], 8),
        net6([0xfd00, 0, 0, 0, 0, 0, 0, 0], 16),
    ];
    let elsewhere = net([10, 9, 9, 9], 32);
    [
        (false, vec![(v4, 32)], true),
        (false, vec![elsewhere, ten], true),
        (false, vec![net([0, 0, 0, 0], 0)], true),
        (false, vec![elsewhere, fd00], false),
        (false, vec![], false),
        (true, vec![(v6, 128)], true),
        (true, vec![fd00], true),
        (
            true,
            vec![
                net([0, 0, 0, 0], 0),
                net6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 64),
            ],
            false,
        ),
    ]
}
