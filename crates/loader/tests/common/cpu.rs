// SPDX-License-Identifier: Apache-2.0
//! A CPU for each test. A program runs on the CPU of the thread that calls it, and some count for
//! each CPU apart, so a test stays on one. Tests that run at the same time shouldn't share it while
//! another is idle.

use std::sync::{LazyLock, Mutex};
use std::thread;

use loader::sys::pin_to_cpu;

/// How many tests run on each CPU.
static TESTS: LazyLock<Mutex<Vec<usize>>> = LazyLock::new(|| {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    Mutex::new(vec![0; cpus])
});

thread_local! {
    static OWN: Own = Own::take();
}

/// A test's CPU, until its thread ends.
struct Own(usize);

impl Own {
    fn take() -> Own {
        let mut tests = TESTS.lock().expect("nobody panics");
        let least = (0..tests.len()).min_by_key(|cpu| tests[*cpu]);
        let own = Own(least.expect("there is one"));
        tests[own.0] += 1;
        own
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        TESTS.lock().expect("nobody panics")[self.0] -= 1;
    }
}

/// Binds this test's thread to its CPU, and says which.
pub fn stay() -> usize {
    let cpu = OWN.with(|own| own.0);
    pin_to_cpu(cpu).expect("the CPU is there");
    cpu
}
