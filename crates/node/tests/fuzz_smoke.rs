// SPDX-License-Identifier: Apache-2.0
//! The fuzz targets' bodies on a fixed stream of random input, so that they can't rot and an
//! ordinary test run finds what is easy to find. `fuzz/README.md` has the real thing.

#[path = "../../../fuzz/src/archive.rs"]
mod archive;
#[path = "../../../fuzz/src/checkpoint.rs"]
mod checkpoint;
#[path = "../../../fuzz/src/cluster_file.rs"]
mod cluster_file;
#[path = "../../../fuzz/src/control.rs"]
mod control_messages;
#[path = "../../../fuzz/src/disk.rs"]
mod disk;
#[allow(dead_code)]
#[path = "../../../fuzz/src/input.rs"]
mod input;
#[path = "../../../fuzz/src/members.rs"]
mod members;
#[path = "../../../fuzz/src/scratch.rs"]
mod scratch;

use test_world::Rng;

#[test]
fn damaged_segments_of_archives() {
    let mut random = Rng::new(4);
    for _ in 0..300 {
        archive::run(&random.bytes(100));
    }
}

#[test]
fn checkpoints_of_other_replicas() {
    let mut random = Rng::new(5);
    for _ in 0..2_000 {
        checkpoint::run(&random.bytes(2_000));
    }
}

#[test]
fn control_messages_into_all_handlers() {
    let mut random = Rng::new(6);
    for _ in 0..200 {
        control_messages::run(&random.bytes(4_000));
    }
    for message in [
        "\"stop\"",
        "{\"type\":\"stop\"}",
        "{\"type\":\"view\",\"group\":-1}",
    ] {
        let envelope = format!("{{\"cluster\":\"5eed0001\",\"to\":0,\"message\":{message}}}");
        control_messages::run(envelope.as_bytes());
    }
}

#[test]
fn cluster_files() {
    const SAMPLE: &str = include_str!("../../../testdata/cluster.toml");
    let mut random = Rng::new(7);
    for _ in 0..300 {
        let mut text = SAMPLE.as_bytes().to_vec();
        for _ in 0..random.next() % 8 {
            let at = random.next() as usize % text.len();
            text[at] = (random.next() % 96 + 32) as u8;
        }
        cluster_file::run(&text);
    }
}
