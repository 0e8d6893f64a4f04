// SPDX-License-Identifier: Apache-2.0
//! Measures how much CPU time a thread spends in a store's library. Reading the thread's clock
//! costs a tenth of a write, so only some calls are timed, and stand for the others.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::time::Duration;

/// One of this many calls is timed.
const EVERY: u64 = 32;

/// The time of one kind of calls, made by one thread at a time.
#[derive(Default)]
pub(crate) struct LibraryTime {
    calls: Cell<u64>,
    timed: Cell<Duration>,
}

impl LibraryTime {
    pub fn during<R>(&self, call: impl FnOnce() -> R) -> R {
        let calls = self.calls.get();
        self.calls.set(calls + 1);
        if calls % EVERY != 0 {
            return call();
        }
        let before = thread_cpu();
        let result = call();
        let after = thread_cpu();
        // Reading the clock takes time, too.
        let clock = thread_cpu().saturating_sub(after);
        let used = after.saturating_sub(before).saturating_sub(clock);
        self.timed.set(self.timed.get() + used);
        result
    }

    /// Returns the time of all calls, roughly.
    pub fn total(&self) -> Duration {
        let timed = self.calls.get().div_ceil(EVERY).max(1);
        self.timed
            .get()
            .mul_f64(self.calls.get() as f64 / timed as f64)
    }
}

/// Returns the CPU time that this thread has used.
fn thread_cpu() -> Duration {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the clock is there on every Linux, and the call writes one time.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_timed_stands_for_all() {
        let time = LibraryTime::default();
        assert_eq!(time.total(), Duration::ZERO);
        for n in 0..10 * EVERY + 1 {
            assert_eq!(time.during(|| n), n);
        }
        time.timed.set(Duration::from_micros(11));
        let all = (10 * EVERY + 1) as u32;
        assert_eq!(time.total(), Duration::from_micros(1).mul_f64(all.into()));
    }
}
