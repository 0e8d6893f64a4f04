// SPDX-License-Identifier: Apache-2.0
//! Locks a mutex, also after a thread has panicked while it held the lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
