// SPDX-License-Identifier: Apache-2.0
//! Runs the fuzz targets' bodies on a fixed stream of random input, so that they can't rot and an
//! ordinary test run finds what is easy to find. `fuzz/README.md` describes real fuzzing.

#[path = "../../../fuzz/src/header.rs"]
mod header;
#[path = "../../../fuzz/src/image.rs"]
mod image;
#[path = "../../../fuzz/src/input.rs"]
mod input;
#[path = "../../../fuzz/src/members.rs"]
mod members;
#[path = "../../../fuzz/src/nopaxos.rs"]
mod nopaxos;
#[path = "../../../fuzz/src/roles.rs"]
mod roles;
#[path = "../../../fuzz/src/tags.rs"]
mod tags;

use paxos::wire::HEADER_LEN;
use paxos::{Header, MsgType};
use test_world::Rng;

#[test]
fn headers_and_values() {
    let mut random = Rng::new(1);
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
    let mut random = Rng::new(2);
    for _ in 0..400 {
        roles::run(&random.bytes(4000));
    }
}

#[test]
fn packets_into_nopaxos() {
    let mut random = Rng::new(12);
    for _ in 0..1_000 {
        nopaxos::run(&random.bytes(2_000));
    }
}

#[test]
fn signed_packets() {
    let mut random = Rng::new(11);
    for _ in 0..400 {
        tags::run(&random.bytes(2_000));
    }
}

#[test]
fn saved_acceptors() {
    let mut random = Rng::new(8);
    for _ in 0..5_000 {
        image::run(&random.bytes(600));
    }
}
