// SPDX-License-Identifier: Apache-2.0
//! Signals that come while a program is verified: the kernel gives that up, and it must be begun
//! again. A node that is told to end, or paused, while it starts would otherwise fail.
#![allow(unsafe_code)]

mod common;

use std::os::unix::thread::JoinHandleExt;
use std::thread;
use std::time::Duration;

use common::objects_or_skip;
use loader::object::{Object, Role, Sizes};

extern "C" fn nothing(_: libc::c_int) {}

#[test]
fn a_signal_only_delays_the_loading_of_a_program() {
    let Some(dir) = objects_or_skip() else { return };
    // SAFETY: a zeroed sigaction is valid, and the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        assert_eq!(
            libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()),
            0
        );
    }
    // The leader's takes longest.
    let loads =
        thread::spawn(move || Object::load(&dir, Role::Leader, &Sizes::of(1, 1, 64)).map(drop));
    for _ in 0..30 {
        thread::sleep(Duration::from_millis(10));
        if !loads.is_finished() {
            // SAFETY: the thread hasn't been joined.
            unsafe { libc::pthread_kill(loads.as_pthread_t(), libc::SIGUSR1) };
        }
    }
    let loaded = loads.join().expect("it doesn't panic");
    assert_eq!(
        loaded.map_err(|why| why.lines().next().unwrap_or_default().to_owned()),
        Ok(())
    );
}
