// SPDX-License-Identifier: Apache-2.0
//! Runs a fuzz target's body that reaches inside this crate, on a fixed stream of random input. The
//! others are in `tests/fuzz_smoke.rs`.

#[path = "../../../fuzz/src/http.rs"]
mod http;
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

#[test]
fn requests_for_metrics_or_the_page() {
    const WHOLE: &[u8] = b"\0GET /status.json?x=1 HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n";
    let mut random = test_world::Rng::new(10);
    http::run(WHOLE);
    for _ in 0..20_000 {
        let mut request = WHOLE.to_vec();
        for _ in 0..random.next() % 6 {
            let at = random.next() as usize % request.len();
            request[at] = random.next() as u8;
        }
        http::run(&request);
    }
}
