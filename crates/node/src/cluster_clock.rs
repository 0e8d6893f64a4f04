// SPDX-License-Identifier: Apache-2.0
//! The time of most nodes of the cluster, for the front end beside a replica. The replica's control
//! thread asks the nodes and stores the result here.

use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed, Ordering::Release};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The time that most nodes agree on, shared by two threads.
#[derive(Debug)]
pub struct ClusterClock {
    began: Instant,
    /// How far the median of the wall clocks is ahead of the milliseconds since `began`.
    ahead_ms: AtomicI64,
    is_settled: AtomicBool,
}

impl Default for ClusterClock {
    fn default() -> ClusterClock {
        ClusterClock {
            began: Instant::now(),
            ahead_ms: AtomicI64::new(0),
            is_settled: AtomicBool::new(false),
        }
    }
}

impl ClusterClock {
    /// Returns milliseconds since 1970 by the median of the nodes' clocks. Returns none until most
    /// nodes were heard, or patience for them is over.
    pub fn ms(&self) -> Option<u64> {
        let is_settled = self.is_settled.load(Acquire);
        let ahead_ms = self.ahead_ms.load(Relaxed);
        is_settled.then(|| self.passed_ms().saturating_add_signed(ahead_ms))
    }

    /// Returns the milliseconds that have passed, by a clock that nobody sets.
    pub(crate) fn passed_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    pub(crate) fn show(&self, ahead_ms: i64) {
        self.ahead_ms.store(ahead_ms, Relaxed);
        self.is_settled.store(true, Release);
    }
}

/// Returns this machine's wall clock in milliseconds since 1970.
pub fn wall_clock_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_millis() as u64
}
