// SPDX-License-Identifier: Apache-2.0
//! Virtual links that programs are at, and what `ip` can't say of an interface. All of it is about
//! the calling thread's network namespace.
#![allow(unsafe_code)]

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use crate::ip;
use crate::object::{Result, possible_cpus};

/// Numbers of linux/ethtool.h.
const ETHTOOL_GDRVINFO: u32 = 3;
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_SGRO: u32 = 0x2c;
const SIOCETHTOOL: libc::Ioctl = 0x8946;

const MAX_QUEUES: usize = 64;

/// Returns a queue for each CPU at either end: what two CPUs send into one of a few hundred frames
/// is lost sooner.
pub fn queues() -> String {
    let cpus = possible_cpus().min(MAX_QUEUES);
    format!("numtxqueues {cpus} numrxqueues {cpus}")
}

/// Adds a link within a switch, by which packets of one of its roles reach another one. Packets
/// that no role takes reach the machine's own stack, from an address of that machine.
pub fn add_loopback(ends: &[String; 2], alias: &str) -> Result<()> {
    let [out, back] = ends;
    let queues = queues();
    let mut lines = vec![format!(
        "link add name {out} {queues} type veth peer name {back} {queues}"
    )];
    for end in ends {
        lines.push(format!("link set {end} alias {alias}"));
        lines.push(format!("link set {end} addrgenmode none up"));
    }
    ip::batch(&[], &lines)?;
    ends.iter().try_for_each(|end| {
        prepare_for_xdp(end)?;
        accept_own_addresses(end)
    })
}

/// Makes an end of a veth pair fit for XDP at either end. With GRO it takes frames that the other
/// end's programs redirect, also without a program of its own; and senders complete their
/// checksums, since only a real stack would fill them in later.
pub fn prepare_for_xdp(name: &str) -> Result<()> {
    let failed = |what: &'static str| move |e: io::Error| format!("{name}: switching {what}: {e}");
    ethtool(name, ETHTOOL_SGRO, 1).map_err(failed("GRO on"))?;
    ethtool(name, ETHTOOL_STXCSUM, 0).map_err(failed("checksum offload off"))
}

/// Lets packets in that come from an address of the machine itself.
fn accept_own_addresses(name: &str) -> Result<()> {
    for (key, value) in [("accept_local", "1"), ("rp_filter", "0")] {
        let path = format!("/proc/sys/net/ipv4/conf/{name}/{key}");
        std::fs::write(&path, value).map_err(|e| format!("{name}: setting {key}: {e}"))?;
    }
    Ok(())
}

/// Returns the name of an interface's driver; none if it doesn't say.
pub fn driver(name: &str) -> Option<String> {
    let mut info = DriverInfo {
        command: ETHTOOL_GDRVINFO,
        driver: [0; 32],
        rest: [0; 160],
    };
    // SAFETY: a struct ethtool_drvinfo, which is what this command fills in.
    unsafe { ioctl(name, (&raw mut info).cast()) }.ok()?;
    let text = info.driver.iter().copied().take_while(|byte| *byte != 0);
    Some(String::from_utf8_lossy(&text.collect::<Vec<_>>()).into_owned())
}

/// struct ethtool_drvinfo.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
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
    value: *mut libc::c_void,
    rest: [u64; 2],
}

fn ethtool(name: &str, command: u32, data: u32) -> io::Result<()> {
    let mut value = Value { command, data };
    // SAFETY: a struct ethtool_value, which is what these two commands read.
    unsafe { ioctl(name, (&raw mut value).cast()) }
}

/// # Safety
/// `value` leads to what its command reads and writes.
unsafe fn ioctl(name: &str, value: *mut libc::c_void) -> io::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    let mut request = Request {
        name: [0; libc::IFNAMSIZ],
        value,
        rest: [0; 2],
    };
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: request is as large as a struct ifreq and begins like one; the caller answers for its
    // pointer. Both live until it returns.
    match unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &mut request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_no_driver_and_nothing_has_none() {
        assert_eq!(driver("lo"), None);
        assert_eq!(driver("an-interface-with-a-long-name"), None);
    }
}
