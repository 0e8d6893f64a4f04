// SPDX-License-Identifier: Apache-2.0
//! The position of a worker, which other threads can read without asking the worker.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::transfer::server::WorkerPosition;

/// Stands for no instance.
const NONE: u64 = u64::MAX;

/// The position of a worker.
#[derive(Default)]
pub struct SharedPosition {
    next: AtomicU64,
    committed: AtomicU64,
    needs: AtomicU64,
    is_behind: AtomicBool,
    is_installing: AtomicBool,
    /// The epoch until which execution is stopped; 0 means that it isn't.
    stopped: AtomicU32,
}

impl SharedPosition {
    pub fn show(&self, stand: WorkerPosition) {
        self.next.store(stand.next, Ordering::Relaxed);
        self.committed.store(stand.committed, Ordering::Relaxed);
        self.needs
            .store(stand.needs.unwrap_or(NONE), Ordering::Relaxed);
        self.is_behind.store(stand.is_behind, Ordering::Relaxed);
        self.is_installing
            .store(stand.is_installing, Ordering::Relaxed);
        // A thread that sees that the worker is stopped also sees its position.
        let stopped = stand.stopped.unwrap_or(0);
        self.stopped.store(stopped, Ordering::Release);
    }

    pub fn get(&self) -> WorkerPosition {
        let stopped = self.stopped.load(Ordering::Acquire);
        let needs = self.needs.load(Ordering::Relaxed);
        WorkerPosition {
            next: self.next.load(Ordering::Relaxed),
            committed: self.committed.load(Ordering::Relaxed),
            needs: (needs != NONE).then_some(needs),
            is_behind: self.is_behind.load(Ordering::Relaxed),
            is_installing: self.is_installing.load(Ordering::Relaxed),
            stopped: (stopped != 0).then_some(stopped),
        }
    }
}
