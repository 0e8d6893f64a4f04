//! The fuzz targets' bodies on a fixed stream of random input, so that they can't rot and an
//! ordinary test run finds what is easy to find. `fuzz/README.md` has the real thing.

#[path = "../../../fuzz/src/header.rs"]
mod header;
#[path = "../../../fuzz/src/roles.rs"]
mod roles;

use paxos::wire::HEADER_LEN;
use paxos::{Header, MsgType};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn bytes(&mut self, max: u64) -> Vec<u8> {
        let len = self.next() % (max + 1);
        (0..len).map(|_| self.next() as u8).collect()
    }
}

#[test]
fn headers_and_values() {
    let mut random = Random(1);
    for _ in 0..50_000 {
        let value = random.bytes(90);
        header::run(&value);
        let msgtype = MsgType::ALL[random.next() as usize % MsgType::ALL.len()];
        let mut datagram = Header::new(msgtype).datagram(&value);
        header::run(&datagram);
        let at = random.next() as usize % HEADER_LEN;
        datagram[at] ^= random.next() as u8;
        header::run(&datagram);
        datagram.truncate(random.next() as usize % (datagram.len() + 1));
        header::run(&datagram);
    }
}

#[test]
fn packets_into_every_role() {
    let mut random = Random(2);
    for _ in 0..400 {
        roles::run(&random.bytes(4000));
    }
}
