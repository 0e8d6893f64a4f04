// SPDX-License-Identifier: Apache-2.0
//! Frames as they are, from and to all interfaces of the calling thread's namespace.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// The largest receive buffer that the kernel gives to root, because a burst waits here.
const RECEIVE_BUFFER: libc::c_int = 64 << 20;
const ALL_PROTOCOLS: u16 = (libc::ETH_P_ALL as u16).to_be();
const ADDRESS_LEN: libc::socklen_t = size_of::<libc::sockaddr_ll>() as libc::socklen_t;

/// A socket for whole frames.
#[derive(Debug)]
pub struct PacketSocket {
    socket: OwnedFd,
}

impl PacketSocket {
    /// Opens a socket for all interfaces of the calling thread's namespace.
    pub fn open() -> io::Result<PacketSocket> {
        Self::bound(address(0))
    }

    /// Opens a socket for frames of an Ethernet type at one interface.
    pub fn of(interface: u32, ethertype: u16) -> io::Result<PacketSocket> {
        Self::bound(libc::sockaddr_ll {
            sll_protocol: ethertype.to_be(),
            ..address(interface)
        })
    }

    fn bound(address: libc::sockaddr_ll) -> io::Result<PacketSocket> {
        // The socket has no protocol until it is set up, so that nothing comes in before. SAFETY:
        // the call only takes numbers, and nobody else has the descriptor that it returns.
        let socket = unsafe {
            let flags = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
            OwnedFd::from_raw_fd(checked(libc::socket(libc::AF_PACKET, flags, 0))?)
        };
        let socket = PacketSocket { socket };
        socket.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER)?;
        // Otherwise it would get what it sends itself.
        socket.set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
        // SAFETY: the address is a struct sockaddr_ll of the length that is given.
        checked(unsafe {
            libc::bind(
                socket.socket.as_raw_fd(),
                (&raw const address).cast(),
                ADDRESS_LEN,
            )
        })?;
        Ok(socket)
    }

    /// Returns the next frame and the index of the interface it came in on; `None` where none
    /// waits.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<(u32, usize)>> {
        let mut from = address(0);
        let mut from_len = ADDRESS_LEN;
        // SAFETY: buffer and from are valid for writes of the lengths that are given.
        let received = unsafe {
            libc::recvfrom(
                self.socket.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                libc::MSG_DONTWAIT,
                (&raw mut from).cast(),
                &mut from_len,
            )
        };
        match usize::try_from(received) {
            Ok(len) => Ok(Some((from.sll_ifindex as u32, len))),
            Err(_) => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
                e => Err(e),
            },
        }
    }

    /// Sends a frame as it is; says whether the kernel took it.
    pub fn send(&self, interface: u32, frame: &[u8]) -> bool {
        let to = address(interface);
        // SAFETY: frame and to are valid for reads of the lengths that are given.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                libc::MSG_DONTWAIT,
                (&raw const to).cast(),
                ADDRESS_LEN,
            )
        };
        sent >= 0
    }

    /// Waits until a frame is there, at most for this long.
    pub fn wait(&self, timeout: Duration) {
        let mut poll = libc::pollfd {
            fd: self.socket.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: both structures live until it returns; no signal mask is given.
        unsafe { libc::ppoll(&mut poll, 1, &timeout, std::ptr::null()) };
    }

    fn set(&self, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
        // SAFETY: value is an integer of the length that is given.
        let result = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                level,
                option,
                (&raw const value).cast(),
                size_of_val(&value) as libc::socklen_t,
            )
        };
        checked(result).map(|_| ())
    }
}

fn address(interface: u32) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: ALL_PROTOCOLS,
        sll_ifindex: interface as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    match result {
        0.. => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}
