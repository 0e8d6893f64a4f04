// SPDX-License-Identifier: Apache-2.0
//! Runs the fuzz target's body on a fixed stream of random input, so that the target keeps working
//! and an ordinary test run finds easy errors. `fuzz/README.md` describes the real runs.

#[path = "../../../fuzz/src/disk.rs"]
mod disk;
#[allow(dead_code)]
#[path = "../../../fuzz/src/input.rs"]
mod input;
#[path = "../../../fuzz/src/members.rs"]
mod members;
#[path = "../../../fuzz/src/worker.rs"]
mod worker;

#[test]
fn packets_times_and_kills_into_a_worker() {
    let mut random = test_world::Rng::new(3);
    for _ in 0..400 {
        worker::run(&random.bytes(20_000));
    }
}
