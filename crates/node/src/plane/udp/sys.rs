// SPDX-License-Identifier: Apache-2.0
//! The socket calls of the plane.
#![allow(unsafe_code)]

use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::{c_int, c_void, socklen_t};

/// A socket address in the kernel's form.
#[derive(Clone, Copy)]
#[repr(C)]
pub union SocketName {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl SocketName {
    fn zeroed() -> Self {
        // SAFETY: all-zero bytes are a valid value of every variant.
        unsafe { mem::zeroed() }
    }

    fn len(&self) -> socklen_t {
        // SAFETY: `family` is the first field of every variant and always initialised.
        let size = match c_int::from(unsafe { self.family }) {
            libc::AF_INET => size_of::<libc::sockaddr_in>(),
            _ => size_of::<libc::sockaddr_in6>(),
        };
        size as socklen_t
    }

    pub fn address(&self) -> SocketAddr {
        // SAFETY: every byte of the union is initialised, and integers have no invalid values;
        // `family` says which variant the kernel or `from` wrote.
        unsafe {
            match c_int::from(self.family) {
                libc::AF_INET6 => SocketAddr::V6(SocketAddrV6::new(
                    Ipv6Addr::from(self.v6.sin6_addr.s6_addr),
                    u16::from_be(self.v6.sin6_port),
                    self.v6.sin6_flowinfo,
                    self.v6.sin6_scope_id,
                )),
                _ => SocketAddr::V4(SocketAddrV4::new(
                    Ipv4Addr::from(u32::from_be(self.v4.sin_addr.s_addr)),
                    u16::from_be(self.v4.sin_port),
                )),
            }
        }
    }
}

impl From<&SocketAddr> for SocketName {
    fn from(address: &SocketAddr) -> Self {
        let mut name = SocketName::zeroed();
        match address {
            SocketAddr::V4(a) => {
                name.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: a.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from(*a.ip()).to_be(),
                    },
                    sin_zero: [0; 8],
                }
            }
            SocketAddr::V6(a) => {
                name.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: a.port().to_be(),
                    sin6_flowinfo: a.flowinfo(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: a.ip().octets(),
                    },
                    sin6_scope_id: a.scope_id(),
                }
            }
        }
        name
    }
}

/// Room for one control message with an integer of at most 8 bytes.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control {
    header: libc::cmsghdr,
    data: [u8; 8],
}

impl Control {
    fn zeroed() -> Self {
        // SAFETY: the fields are plain integers.
        unsafe { mem::zeroed() }
    }

    fn segment(size: u16) -> Self {
        let mut control = Control::zeroed();
        control.header.cmsg_level = libc::SOL_UDP;
        control.header.cmsg_type = libc::UDP_SEGMENT;
        control.header.cmsg_len = (size_of::<libc::cmsghdr>() + 2) as _;
        control.data[..2].copy_from_slice(&size.to_ne_bytes());
        control
    }

    /// Returns the segment size that UDP_GRO reports, if `len` bytes of control data contain one.
    fn segment_size(&self, len: usize) -> Option<usize> {
        let there = len >= size_of::<libc::cmsghdr>() + size_of::<c_int>()
            && self.header.cmsg_level == libc::SOL_UDP
            && self.header.cmsg_type == libc::UDP_GRO;
        let size = c_int::from_ne_bytes(self.data[..4].try_into().expect("four bytes"));
        (there && size > 0).then_some(size as usize)
    }
}

const SLOTS: usize = 64;
/// The size of the largest datagram, and of the largest run of datagrams that UDP_GRO returns.
const SLOT_BYTES: usize = 65_536;
/// The stride is seventeen cache lines more than a power of two, so that slots don't share cache
/// sets.
const SLOT_STRIDE: usize = SLOT_BYTES + 17 * 64;

/// The buffers of one `recvmmsg`. The memory of a slot is first touched by the first packet in it.
pub struct RecvRing {
    // The arrays are raw because the kernel's headers keep pointers into all of them.
    buffer: *mut [u8],
    names: *mut [SocketName],
    controls: *mut [Control],
    iovecs: *mut [libc::iovec],
    headers: *mut [libc::mmsghdr],
    filled: usize,
}

// SAFETY: the pointers own their allocations and are shared with nobody.
unsafe impl Send for RecvRing {}

impl RecvRing {
    pub fn new() -> Self {
        let leak = |len| Box::into_raw(vec![0u8; len].into_boxed_slice());
        let buffer = leak(SLOTS * SLOT_STRIDE);
        let names = Box::into_raw(vec![SocketName::zeroed(); SLOTS].into_boxed_slice());
        let controls = Box::into_raw(vec![Control::zeroed(); SLOTS].into_boxed_slice());
        let slot_iovec = |slot: usize| libc::iovec {
            iov_base: (buffer as *mut u8).wrapping_add(slot * SLOT_STRIDE) as *mut c_void,
            iov_len: SLOT_BYTES,
        };
        let iovecs = Box::into_raw((0..SLOTS).map(slot_iovec).collect::<Box<[_]>>());
        let slot_header = |slot: usize| {
            // SAFETY: the fields are plain integers and pointers, for which zero is valid.
            let mut header: libc::mmsghdr = unsafe { mem::zeroed() };
            let name = (names as *mut SocketName).wrapping_add(slot);
            let control = (controls as *mut Control).wrapping_add(slot);
            header.msg_hdr.msg_name = name as *mut c_void;
            header.msg_hdr.msg_iov = (iovecs as *mut libc::iovec).wrapping_add(slot);
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control as *mut c_void;
            reset(&mut header);
            header
        };
        let headers = Box::into_raw((0..SLOTS).map(slot_header).collect::<Box<[_]>>());
        RecvRing {
            buffer,
            names,
            controls,
            iovecs,
            headers,
            filled: 0,
        }
    }

    /// Receives the datagrams that are there, without waiting, and returns the number of filled
    /// slots.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        // SAFETY: `headers` is a live allocation that only `self` uses.
        let headers = unsafe { &mut *self.headers };
        headers[..self.filled].iter_mut().for_each(reset);
        self.filled = 0;
        // SAFETY: every header points to a live name, iovec, buffer and control block of its own,
        // with their true lengths; nothing else refers to them during the call.
        let n = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                SLOTS as _,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        if n < 0 {
            return Err(io::Error::last_os_error());
        }
        self.filled = n as usize;
        Ok(self.filled)
    }

    pub fn slots() -> usize {
        SLOTS
    }

    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Returns a filled slot: its bytes, the size of the datagrams in it, and the sender.
    pub fn slot(&self, slot: usize) -> (&[u8], usize, SocketAddr) {
        assert!(slot < self.filled);
        // SAFETY: the allocations live as long as `self`, and are written only through
        // `&mut self`; `slot` is in range, and the kernel filled its first `msg_len` bytes.
        unsafe {
            let header = &(&*self.headers)[slot];
            let len = (header.msg_len as usize).min(SLOT_BYTES);
            let start = slot * SLOT_STRIDE;
            let bytes = &(&*self.buffer)[start..start + len];
            let control = &(&*self.controls)[slot];
            let size = control.segment_size(header.msg_hdr.msg_controllen);
            (bytes, size.unwrap_or(len), (&*self.names)[slot].address())
        }
    }
}

/// Restores the lengths, which the kernel has overwritten with those that it used.
fn reset(header: &mut libc::mmsghdr) {
    header.msg_hdr.msg_namelen = size_of::<SocketName>() as socklen_t;
    header.msg_hdr.msg_controllen = size_of::<Control>() as _;
}

impl Drop for RecvRing {
    fn drop(&mut self) {
        // SAFETY: Box::into_raw made the pointers in `new`, and they are freed once.
        unsafe {
            drop(Box::from_raw(self.headers));
            drop(Box::from_raw(self.iovecs));
            drop(Box::from_raw(self.controls));
            drop(Box::from_raw(self.names));
            drop(Box::from_raw(self.buffer));
        }
    }
}

/// Bytes to send to an address, cut into datagrams of `segment` bytes if that is set.
#[derive(Clone, Copy)]
pub struct SendItem<'a> {
    pub name: &'a SocketName,
    pub bytes: &'a [u8],
    pub segment: Option<u16>,
}

/// How many items one call of [`send_many`] takes.
pub const SEND_ITEMS: usize = 64;

/// Sends the items in order, without waiting, and returns how many were sent. An error belongs to
/// the first item.
pub fn send_many(socket: BorrowedFd<'_>, items: &[SendItem<'_>]) -> io::Result<usize> {
    assert!(!items.is_empty() && items.len() <= SEND_ITEMS);
    if let [
        SendItem {
            name,
            bytes,
            segment: None,
        },
    ] = items
    {
        return send_one(socket, name, bytes);
    }
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; SEND_ITEMS];
    let mut iovecs = [const { MaybeUninit::<libc::iovec>::uninit() }; SEND_ITEMS];
    let mut controls = [const { MaybeUninit::<Control>::uninit() }; SEND_ITEMS];
    let rooms = headers.iter_mut().zip(&mut iovecs).zip(&mut controls);
    for (item, ((header, iovec), control)) in items.iter().zip(rooms) {
        let iovec = iovec.write(libc::iovec {
            iov_base: item.bytes.as_ptr() as *mut c_void,
            iov_len: item.bytes.len(),
        });
        // SAFETY: the fields are plain integers and pointers, for which zero is valid.
        let header = header.write(unsafe { mem::zeroed() });
        header.msg_hdr.msg_name = ptr::from_ref(item.name) as *mut c_void;
        header.msg_hdr.msg_namelen = item.name.len();
        header.msg_hdr.msg_iov = iovec;
        header.msg_hdr.msg_iovlen = 1;
        if let Some(size) = item.segment {
            header.msg_hdr.msg_control =
                ptr::from_mut(control.write(Control::segment(size))).cast();
            header.msg_hdr.msg_controllen = size_of::<Control>() as _;
        }
    }
    // SAFETY: the first `items.len()` headers are initialised; what they point to (the caller's
    // names and bytes, and the arrays above) outlives the call, and sending only reads it.
    let n = unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr().cast(),
            items.len() as _,
            libc::MSG_DONTWAIT as _,
        )
    };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(n as usize)
}

fn send_one(socket: BorrowedFd<'_>, name: &SocketName, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: bytes and name are live and given with their true lengths.
    let n = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_DONTWAIT,
            ptr::from_ref(name).cast(),
            name.len(),
        )
    };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(1)
}

fn set_option(socket: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the option value is a live c_int, given with its size.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            ptr::from_ref(&value).cast(),
            size_of::<c_int>() as socklen_t,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Requests large buffers, above the system's limit if this process may.
pub fn set_buffers(socket: BorrowedFd<'_>, bytes: c_int) {
    let sizes = [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
    ];
    for (force, plain) in sizes {
        if set_option(socket, libc::SOL_SOCKET, force, bytes).is_err() {
            // Smaller buffers only lose packets earlier.
            let _ = set_option(socket, libc::SOL_SOCKET, plain, bytes);
        }
    }
}

/// Turns on UDP_GRO, and returns false if the kernel doesn't support it.
pub fn enable_gro(socket: BorrowedFd<'_>) -> bool {
    set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok()
}

/// Returns whether the kernel supports UDP_SEGMENT.
pub fn has_gso(socket: BorrowedFd<'_>) -> bool {
    set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
}

/// Turns on the queue of [`take_icmp`] for a socket of this address's family.
pub fn enable_refusals(socket: BorrowedFd<'_>, address: &SocketAddr) -> io::Result<()> {
    match address {
        SocketAddr::V4(_) => set_option(socket, libc::SOL_IP, libc::IP_RECVERR, 1),
        SocketAddr::V6(_) => set_option(socket, libc::SOL_IPV6, libc::IPV6_RECVERR, 1),
    }
}

/// Room for the control message of an ICMP error: what it says, and the address of who says it.
#[repr(C, align(8))]
struct IcmpError {
    header: libc::cmsghdr,
    error: libc::sock_extended_err,
    offender: SocketName,
}

/// The next ICMP message about a datagram that was sent from a socket.
pub enum Icmp {
    /// The machine at this address says that nobody has its port.
    Refused(SocketAddr),
    /// Anything else.
    Other,
}

/// Takes the next ICMP message without waiting, or returns `None` if there is none. The kernel
/// passes only messages that quote a datagram of this socket.
pub fn take_icmp(socket: BorrowedFd<'_>) -> Option<Icmp> {
    let mut name = SocketName::zeroed();
    // SAFETY: the fields are plain integers, for which zero is valid.
    let (mut control, mut header): (IcmpError, libc::msghdr) = unsafe { mem::zeroed() };
    header.msg_name = ptr::from_mut(&mut name).cast();
    header.msg_namelen = size_of::<SocketName>() as socklen_t;
    header.msg_control = ptr::from_mut(&mut control).cast();
    header.msg_controllen = size_of::<IcmpError>() as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the header points to a live name and control block, with their true lengths.
    let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut header, flags) };
    if n < 0 {
        return None;
    }
    let family = match (control.header.cmsg_level, control.header.cmsg_type) {
        (libc::SOL_IP, libc::IP_RECVERR) => libc::SO_EE_ORIGIN_ICMP,
        (libc::SOL_IPV6, libc::IPV6_RECVERR) => libc::SO_EE_ORIGIN_ICMP6,
        _ => return Some(Icmp::Other),
    };
    let is_whole = header.msg_flags & libc::MSG_CTRUNC == 0;
    let error = &control.error;
    let is_refusal = error.ee_origin == family && error.ee_errno == libc::ECONNREFUSED as u32;
    let to = name.address();
    match is_whole && is_refusal && control.offender.address().ip() == to.ip() {
        true => Some(Icmp::Refused(to)),
        false => Some(Icmp::Other),
    }
}

/// Turns off the checksums of this socket, so that the kernel refuses UDP_SEGMENT with EINVAL.
#[cfg(test)]
pub fn disable_checksums(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1)
}
