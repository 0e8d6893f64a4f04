// SPDX-License-Identifier: Apache-2.0
//! The fuzz target's body on a fixed stream of random input, so that it can't rot and an ordinary
//! test run finds what is easy to find. `fuzz/README.md` has the real thing.

#[allow(dead_code)]
#[path = "../../../fuzz/src/input.rs"]
mod input;
#[path = "../../../fuzz/src/kv.rs"]
mod kv;
#[path = "../../../fuzz/src/scratch.rs"]
mod scratch;

#[test]
fn bytes_commands_and_snapshots() {
    let mut random = test_world::Rng::new(4);
    for _ in 0..500 {
        kv::run(&random.bytes(2_000));
    }
}
