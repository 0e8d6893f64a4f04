// SPDX-License-Identifier: Apache-2.0
//! Runs the fuzz target's code on a fixed stream of random input, so that the target stays usable
//! and an ordinary test run finds what is easy to find. `fuzz/README.md` tells how to fuzz in
//! earnest.

#[path = "../../../fuzz/src/resp.rs"]
mod requests;

#[test]
fn requests_whole_and_in_pieces() {
    const REQUESTS: &[u8] = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nSET k v\r\n*1\r\n$4\r\nPING\r\n";
    let mut random = test_world::Rng::new(10);
    for _ in 0..5_000 {
        requests::run(&random.bytes(100));
        let mut damaged = REQUESTS.to_vec();
        for _ in 0..random.next() % 4 {
            let at = random.next() as usize % damaged.len();
            damaged[at] = b"*$0123456789\r\n -"[random.next() as usize % 16];
        }
        requests::run(&damaged);
    }
}
