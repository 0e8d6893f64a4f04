// SPDX-License-Identifier: Apache-2.0
//! What `ip` can't say of an interface. All of it is about the calling thread's namespace.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::process::Command;

use crate::{Error, Result};

/// Of linux/ethtool.h.
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_SGRO: u32 = 0x2c;
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// Its number.
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

/// Makes an end of a veth pair fit for XDP at either end. With GRO it takes frames that the other
/// end's programs redirect, also without a program of its own; and senders complete their
/// checksums, since only a real stack would fill them in later.
pub(crate) fn prepare_for_xdp(name: &str) -> Result<()> {
    ethtool(name, ETHTOOL_SGRO, 1).map_err(Error::at(format!("{name}: switching GRO on")))?;
    ethtool(name, ETHTOOL_STXCSUM, 0)
        .map_err(Error::at(format!("{name}: switching checksum offload off")))
}

/// Lets packets in that come from an address of the machine itself.
pub(crate) fn accept_own_addresses(name: &str) -> Result<()> {
    for (key, value) in [("accept_local", "1"), ("rp_filter", "0")] {
        let path = format!("/proc/sys/net/ipv4/conf/{name}/{key}");
        std::fs::write(&path, value).map_err(Error::at(format!("{name}: setting {key}")))?;
    }
    Ok(())
}

/// Makes every CPU send by the queue of its number, on all interfaces of a namespace. Otherwise a
/// flow's hash draws the queue, two senders may draw the same one, and a veth pair handles a whole
/// queue on one CPU.
pub(crate) fn send_by_cpu(namespace: &str) -> Result<()> {
    // The files are in /sys of that namespace, which only `ip netns exec` shows. Masks have words of
    // 32 bits. A kernel without CONFIG_XPS has no such files, and is only slower.
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

/// struct ethtool_value.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// struct ifreq, as far as it matters here.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    value: *mut Value,
    rest: [u64; 2],
}

fn ethtool(name: &str, command: u32, data: u32) -> io::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    let mut value = Value { command, data };
    let mut request = Request {
        name: [0; libc::IFNAMSIZ],
        value: &mut value,
        rest: [0; 2],
    };
    assert!(name.len() < libc::IFNAMSIZ);
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: request is as large as a struct ifreq and begins like one; its pointer leads to a
    // struct ethtool_value, which is what these two commands read. Both live until it returns.
    match unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &mut request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
