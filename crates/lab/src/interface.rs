// SPDX-License-Identifier: Apache-2.0
//! Properties of an interface that `ip` doesn't show. All functions apply to the calling thread's
//! namespace.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::process::Command;

use crate::{Error, Result};

/// Returns the index of an interface.
pub(crate) fn index(name: &str) -> Result<u32> {
    let c_name = CString::new(name).map_err(Error::at(name))?;
    // SAFETY: c_name is a string that ends with a zero.
    match unsafe { libc::if_nametoindex(c_name.as_ptr()) } {
        0 => Err(Error::at(format!("interface {name}"))(
            io::Error::last_os_error(),
        )),
        index => Ok(index),
    }
}

/// Makes every CPU send through the queue of its number, on all interfaces of a namespace.
/// Otherwise a flow's hash chooses the queue, two senders may share one, and a veth pair handles a
/// whole queue on one CPU.
pub(crate) fn send_by_cpu(namespace: &str) -> Result<()> {
    // The files are in /sys of that namespace, which only `ip netns exec` shows. Masks have words
    // of 32 bits; a kernel without CONFIG_XPS has no such files, and is only slower.
    const SCRIPT: &str = "for queue in /sys/class/net/*/queues/tx-*; do \
        n=${queue##*-}; rest=; while [ $n -ge 32 ]; do n=$((n-32)); rest=,00000000$rest; done; \
        [ ! -e $queue/xps_cpus ] || printf '%x%s' $((1<<n)) \"$rest\" > $queue/xps_cpus || :; \
        done 2>/dev/null";
    let output = Command::new("ip")
        .args(["netns", "exec", namespace, "sh", "-c", SCRIPT])
        .output()
        .map_err(Error::at("ip netns exec"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Error::new(format!(
            "ip netns exec {namespace}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
    }
}
