// SPDX-License-Identifier: Apache-2.0
//! The fuzz target's body on a fixed stream of random input, so that it can't rot and an ordinary
//! test run finds what is easy to find. `fuzz/README.md` has the real thing.

#[allow(dead_code)]
#[path = "../../../fuzz/src/input.rs"]
mod input;
#[path = "../../../fuzz/src/transactions.rs"]
mod transactions_target;

#[test]
fn bytes_commands_and_states() {
    let mut random = test_world::Rng::new(5);
    for _ in 0..2_000 {
        transactions_target::run(&random.bytes(1_500));
    }
}
