// SPDX-License-Identifier: Apache-2.0
//! Runs a fuzz target's body that reaches inside this crate, on a fixed stream of random input. The others are in
//! `tests/fuzz_smoke.rs`.

#[allow(dead_code)]
#[path = "../../../fuzz/src/input.rs"]
mod input;
#[path = "../../../fuzz/src/log.rs"]
mod log;
#[path = "../../../fuzz/src/scratch.rs"]
mod scratch;

#[test]
fn damaged_files_of_acceptors() {
    let mut random = test_world::Rng::new(9);
    for _ in 0..60 {
        log::run(&random.bytes(1_000));
    }
}
