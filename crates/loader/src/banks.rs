// SPDX-License-Identifier: Apache-2.0
//! Of two banks, one is in use. The other one may be written when no program is left that began
//! while it was in use.
//!
//! Programs run inside RCU's read-side sections, in drivers and in the stack as in test runs. So
//! whoever waits for a grace period of RCU has waited for each run, on any CPU, that had begun
//! before. The kernel promises such a wait to whoever updates a map of maps ("so that userspace,
//! when we return to it, knows that all programs that could be running use the new map value",
//! `maybe_wait_bpf_programs` in kernel/bpf/syscall.c, since 4.20), for just this purpose. That such
//! maps are used by no program changes nothing. `membarrier` waits as long, but not on machines
//! with CPUs that are kept free of ticks; and to visit each CPU in turn needs every CPU to be
//! allowed to this process.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};

use crate::object::Result;
use crate::sys::{create_array, create_array_of_maps, put_map};

/// Knows when the bank that isn't in use may be written. Only one writer may exist for each pair of
/// banks.
#[derive(Debug)]
pub(crate) struct Banks {
    map: OwnedFd,
    map_of_maps: OwnedFd,
    /// True if no program still reads the bank that isn't in use.
    settled: Cell<bool>,
}

impl Banks {
    /// Creates the state of two banks. `never_changed` says that no other bank has ever been in
    /// use; otherwise an earlier process may have changed banks a moment ago.
    pub fn new(never_changed: bool) -> Result<Banks> {
        let failed = |e| format!("a map of maps, to wait for programs: {e}; it needs root");
        let map = create_array().map_err(failed)?;
        Ok(Banks {
            map_of_maps: create_array_of_maps(map.as_fd()).map_err(failed)?,
            map,
            settled: Cell::new(never_changed),
        })
    }

    /// Waits, if it must, until the bank not in use may be written.
    pub fn settle(&self) -> std::result::Result<(), &'static str> {
        if !self.settled.get() {
            put_map(self.map_of_maps.as_fd(), self.map.as_fd())
                .map_err(|_| "the kernel doesn't say when programs have ended")?;
            self.settled.set(true);
        }
        Ok(())
    }

    /// Notes that the other bank is in use from now on.
    pub fn changed(&self) {
        self.settled.set(false);
    }
}
