// SPDX-License-Identifier: Apache-2.0
//! Network interfaces of the calling process's namespace, as the kernel shows them.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

use crate::object::Result;

/// An interface that programs can be attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The name.
    pub name: String,
    /// The number.
    pub index: u32,
    /// The hardware address.
    pub mac: [u8; 6],
}

impl Interface {
    /// Returns the interface with this address.
    pub fn with_address(address: IpAddr) -> Result<Interface> {
        if address.is_loopback() {
            return Err(format!(
                "{address} is on loopback, where there are no Ethernet frames: use the udp plane \
                 there"
            ));
        }
        let all = entries()?;
        let found = all.iter().find(|entry| entry.ip == Some(address));
        let name = &found
            .ok_or_else(|| {
                format!(
                    "no interface of this machine has the address {address}: all planes but \
                         udp run where the node's address is"
                )
            })?
            .name;
        Self::of_entries(&all, name)
    }

    /// Returns the interface with this name.
    pub fn named(name: &str) -> Result<Interface> {
        Self::of_entries(&entries()?, name)
    }

    fn of_entries(all: &[Entry], name: &str) -> Result<Interface> {
        let hardware = all.iter().filter(|entry| entry.name == name);
        let found = hardware.filter_map(|entry| entry.hardware).next();
        match found {
            Some((index, mac)) if mac != [0; 6] => Ok(Interface {
                name: name.to_owned(),
                index,
                mac,
            }),
            _ => Err(format!(
                "{name} isn't an Ethernet interface, and this plane wants whole frames: use the \
                 udp plane there"
            )),
        }
    }
}

/// One address of an interface.
struct Entry {
    name: String,
    ip: Option<IpAddr>,
    /// Number and hardware address.
    hardware: Option<(u32, [u8; 6])>,
}

fn entries() -> Result<Vec<Entry>> {
    let mut first = ptr::null_mut();
    // SAFETY: the call fills in the pointer on success.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        let error = std::io::Error::last_os_error();
        return Err(format!("can't list the interfaces: {error}"));
    }
    let mut all = Vec::new();
    let mut next = first;
    while !next.is_null() {
        // SAFETY: an element of the list that getifaddrs made; it lives until freeifaddrs.
        let element = unsafe { &*next };
        // SAFETY: a string that ends with a zero.
        let name = unsafe { CStr::from_ptr(element.ifa_name) };
        let (ip, hardware) = address_of(element.ifa_addr);
        all.push(Entry {
            name: name.to_string_lossy().into_owned(),
            ip,
            hardware,
        });
        next = element.ifa_next;
    }
    // SAFETY: getifaddrs made the list, and nothing of it is used any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(all)
}

fn address_of(address: *const libc::sockaddr) -> (Option<IpAddr>, Option<(u32, [u8; 6])>) {
    if address.is_null() {
        return (None, None);
    }
    // SAFETY: a socket address of getifaddrs; its family says which type it has.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let v4 = &*address.cast::<libc::sockaddr_in>();
                let bits = u32::from_be(v4.sin_addr.s_addr);
                (Some(Ipv4Addr::from(bits).into()), None)
            }
            libc::AF_INET6 => {
                let v6 = &*address.cast::<libc::sockaddr_in6>();
                (Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into()), None)
            }
            libc::AF_PACKET => {
                let packet = &*address.cast::<libc::sockaddr_ll>();
                let mut mac = [0; 6];
                if packet.sll_halen == 6 {
                    mac.copy_from_slice(&packet.sll_addr[..6]);
                }
                (None, Some((packet.sll_ifindex as u32, mac)))
            }
            _ => (None, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_carries_no_frames() {
        let error = Interface::with_address(Ipv4Addr::LOCALHOST.into()).unwrap_err();
        assert!(error.contains("is on loopback"), "{error}");
        let error = Interface::with_address(Ipv4Addr::new(192, 0, 2, 77).into()).unwrap_err();
        assert!(error.contains("no interface of this machine"), "{error}");
    }
}
