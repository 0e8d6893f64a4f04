// SPDX-License-Identifier: Apache-2.0
//! Asks the kernel what an interface's driver can do (generic netlink family `netdev`).
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};

use crate::interface::Interface;

/// A flag of linux/netdev.h: the driver runs programs, which can drop, pass and send back frames,
const BASIC: u64 = 1;
/// and it takes frames that others redirect to it.
const NDO_XMIT: u64 = 4;

const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NLM_F_REQUEST: u16 = 1;

/// The bytes of the message header and the generic header behind it.
const HEADERS: usize = 16 + 4;

/// Returns whether frames can be redirected to an interface. `None` where the kernel doesn't say,
/// as before 6.3.
pub fn takes_redirects(interface: &Interface) -> Option<bool> {
    features(interface.index).ok().map(|f| f & NDO_XMIT != 0)
}

/// Returns whether an interface's driver runs programs. `None` where the kernel doesn't say.
pub fn runs_programs(interface: &Interface) -> Option<bool> {
    features(interface.index).ok().map(|f| f & BASIC != 0)
}

fn features(index: u32) -> io::Result<u64> {
    let mut socket = open()?;
    let name = attribute(CTRL_ATTR_FAMILY_NAME, b"netdev\0");
    let answer = ask(&mut socket, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, &name)?;
    let family = number(find(&answer, CTRL_ATTR_FAMILY_ID)?) as u16;
    let which = attribute(NETDEV_A_DEV_IFINDEX, &index.to_ne_bytes());
    let answer = ask(&mut socket, family, NETDEV_CMD_DEV_GET, &which)?;
    Ok(number(find(&answer, NETDEV_A_DEV_XDP_FEATURES)?))
}

fn open() -> io::Result<File> {
    // SAFETY: the call takes no pointers.
    let fd = unsafe {
        libc::socket(
            libc::AF_NETLINK,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            libc::NETLINK_GENERIC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Asks one question; returns the attributes of the answer.
fn ask(socket: &mut File, family: u16, command: u8, attributes: &[u8]) -> io::Result<Vec<u8>> {
    let mut message = Vec::new();
    message.extend(((HEADERS + attributes.len()) as u32).to_ne_bytes());
    message.extend(family.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend([0; 8]); // sequence number and port
    message.extend([command, 1, 0, 0]);
    message.extend(attributes);
    socket.write_all(&message)?;
    let mut answer = vec![0; 8192];
    let len = socket.read(&mut answer)?;
    answer.truncate(len);
    let kind = answer.get(4..6).ok_or_else(malformed)?;
    if kind != family.to_ne_bytes() {
        // NLMSG_ERROR: there is no such family or interface.
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(answer.split_off(HEADERS.min(len)))
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend((4 + value.len() as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn find(mut attributes: &[u8], kind: u16) -> io::Result<&[u8]> {
    while let Some((head, _)) = attributes.split_first_chunk::<4>() {
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        if len < 4 {
            break;
        }
        let found = attributes.get(4..len).ok_or_else(malformed)?;
        if u16::from_ne_bytes([head[2], head[3]]) == kind {
            return Ok(found);
        }
        let next = len.next_multiple_of(4).min(attributes.len());
        attributes = &attributes[next..];
    }
    Err(io::ErrorKind::NotFound.into())
}

/// Returns an unsigned number of any width, in the machine's order.
fn number(bytes: &[u8]) -> u64 {
    let mut wide = [0; 8];
    let len = bytes.len().min(8);
    if cfg!(target_endian = "little") {
        wide[..len].copy_from_slice(&bytes[..len]);
    } else {
        wide[8 - len..].copy_from_slice(&bytes[..len]);
    }
    u64::from_ne_bytes(wide)
}

fn malformed() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_behind_padding_and_never_beyond_the_end() {
        let mut both = attribute(2, b"netdev\0");
        both.extend(attribute(1, &7u16.to_ne_bytes()));
        assert_eq!(number(find(&both, 1).unwrap()), 7);
        assert!(find(&both, 9).is_err());
        for len in 0..both.len() {
            let _ = find(&both[..len], 1);
        }
        let mut lying = both.clone();
        lying[0] = 200;
        assert!(find(&lying, 1).is_err());
    }

    #[test]
    fn loopback_takes_no_redirects() {
        let loopback = Interface {
            name: "lo".to_owned(),
            index: 1,
            mac: [0; 6],
        };
        // None: the kernel is older than the question.
        assert_ne!(takes_redirects(&loopback), Some(true));
    }
}
