// SPDX-License-Identifier: Apache-2.0
//! Where a worker stands, shown to other threads without asking it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::transfer::server::Stand;

/// In place of an instance: none.
const NONE: u64 = u64::MAX;

/// See the module.
#[derive(Default)]
pub struct Standing {
    next: AtomicU64,
    committed: AtomicU64,
    needs: AtomicU64,
    is_behind: AtomicBool,
    is_installing: AtomicBool,
    /// 0 = not.
    stopped: AtomicU32,
}

impl Standing {
    pub fn show(&self, stand: Stand) {
        self.next.store(stand.next, Ordering::Relaxed);
        self.committed.store(stand.committed, Ordering::Relaxed);
        self.needs
            .store(stand.needs.unwrap_or(NONE), Ordering::Relaxed);
        self.is_behind.store(stand.is_behind, Ordering::Relaxed);
        self.is_installing
            .store(stand.is_installing, Ordering::Relaxed);
        // Who sees that it is stopped sees where.
        let stopped = stand.stopped.unwrap_or(0);
        self.stopped.store(stopped, Ordering::Release);
    }

    pub fn get(&self) -> Stand {
        let stopped = self.stopped.load(Ordering::Acquire);
        let needs = self.needs.load(Ordering::Relaxed);
        Stand {
            next: self.next.load(Ordering::Relaxed),
            committed: self.committed.load(Ordering::Relaxed),
            needs: (needs != NONE).then_some(needs),
            is_behind: self.is_behind.load(Ordering::Relaxed),
            is_installing: self.is_installing.load(Ordering::Relaxed),
            stopped: (stopped != 0).then_some(stopped),
        }
    }
}
