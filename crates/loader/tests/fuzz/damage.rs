// SPDX-License-Identifier: Apache-2.0
//! Damages packets as a forger or a bad link would.

use test_world::Rng;

/// Changes bytes of a datagram: mostly of its header.
pub fn forge(random: &mut Rng, datagram: &mut Vec<u8>) {
    for _ in 0..=random.below(3) {
        match random.below(12) {
            // The sender.
            0..3 if datagram.len() >= 26 => datagram[25] = random.next() as u8,
            3 if datagram.len() >= 48 => {
                let at = 4 * random.below(12) as usize;
                datagram[at..at + 4].copy_from_slice(&(random.next() as u32).to_be_bytes());
            }
            4 => datagram.truncate(random.below(datagram.len() as u64 + 1) as usize),
            5 => {
                let more = random.below(64);
                datagram.extend((0..more).map(|i| i as u8));
            }
            6 => {
                let len = random.below(1400);
                *datagram = (0..len).map(|_| random.next() as u8).collect();
            }
            _ if !datagram.is_empty() => {
                let at = random.below(datagram.len().min(64) as u64) as usize;
                datagram[at] ^= 1 << random.below(8);
            }
            _ => {}
        }
    }
    datagram.truncate(1400);
}

/// Damages a frame, anywhere.
pub fn damage(random: &mut Rng, bytes: &mut Vec<u8>) {
    match random.below(10) {
        // Test runs take no frame without a whole Ethernet header.
        0 => bytes.truncate((14 + random.below(bytes.len() as u64)) as usize),
        1 => bytes.extend((0..random.below(40)).map(|i| i as u8)),
        2 => {
            // Headers of IP and UDP, where lengths are.
            let at = 14 + random.below(50).min(bytes.len() as u64 - 15) as usize;
            bytes[at] = random.next() as u8;
        }
        _ => {
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
        }
    }
}
