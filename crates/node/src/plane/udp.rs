// SPDX-License-Identifier: Apache-2.0
//! The socket plane: any kernel, no privilege.
//!
//! `recvmmsg` with UDP_GRO takes, and `sendmmsg` with UDP_SEGMENT gives, many datagrams a call and
//! many a trip through the kernel's stack. Where the kernel or the path refuses segmentation, at
//! start or later, the plane goes on with plain datagrams. With the privilege to load programs one looks at tags before the
//! socket ([`UdpPlane::use_keys`]).

pub(crate) mod sys;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use loader::tag_filter::TagFilter;
use paxos::auth::Keyring;
use paxos::wire::ReasonCounters;
use tracing::debug;

use self::sys::{RecvRing, SEND_ITEMS, SendItem};
use super::send_batch::{Outgoing, SendBatch};

/// What a socket is opened with.
#[derive(Clone, Copy, Debug)]
pub struct PlaneOptions {
    /// Use UDP_SEGMENT and UDP_GRO where the kernel has them.
    pub offload: bool,
    /// Bytes of the socket's receive and send buffers to ask for.
    pub buffer_bytes: u32,
}

impl Default for PlaneOptions {
    fn default() -> Self {
        PlaneOptions {
            offload: true,
            buffer_bytes: 8 << 20,
        }
    }
}

/// Received datagrams; made once, filled by [`UdpPlane::receive`].
pub struct RecvBatch(RecvRing);

impl Default for RecvBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl RecvBatch {
    /// An empty batch. Its memory (4 MiB) is touched only as packets arrive.
    pub fn new() -> Self {
        RecvBatch(RecvRing::new())
    }

    /// What has arrived, in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = Arrival<'_>> {
        (0..self.0.filled()).map(|slot| {
            let (bytes, size, from) = self.0.slot(slot);
            Arrival { bytes, size, from }
        })
    }

    /// Whether every slot was filled: then there may be more to receive at once.
    pub fn is_full(&self) -> bool {
        self.0.filled() == RecvRing::slots()
    }
}

/// Datagrams of one sender that came together: one, or as many as UDP_GRO put together.
pub struct Arrival<'a> {
    bytes: &'a [u8],
    /// Of each datagram but the last.
    size: usize,
    /// Who sent them.
    pub from: SocketAddr,
}

impl<'a> Arrival<'a> {
    /// A datagram that came alone.
    pub(super) fn single(bytes: &'a [u8], from: SocketAddr) -> Arrival<'a> {
        let size = bytes.len();
        Arrival { bytes, size, from }
    }

    /// Each of them. An empty datagram is one too.
    #[inline]
    pub fn datagrams(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let whole = self.bytes.is_empty().then_some(self.bytes);
        whole.into_iter().chain(self.bytes.chunks(self.size.max(1)))
    }
}

/// What became of sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendCounters {
    /// Datagrams handed to the kernel.
    pub sent: u64,
    /// Datagrams dropped as the socket's buffer was full.
    pub dropped: u64,
    /// Datagrams that the kernel refused: no route, a filter, a dead neighbour.
    pub refused: u64,
}

/// A bound, non-blocking UDP socket.
pub struct UdpPlane {
    /// Goes before its socket does.
    filter: Option<Box<TagFilter>>,
    socket: UdpSocket,
    segment: bool,
    coalesce: bool,
    counters: SendCounters,
}

impl UdpPlane {
    /// Binds to `address`.
    pub fn bind(address: SocketAddr, options: PlaneOptions) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        sys::set_buffers(socket.as_fd(), options.buffer_bytes.min(1 << 30) as i32);
        Ok(UdpPlane {
            segment: options.offload && sys::has_gso(socket.as_fd()),
            coalesce: options.offload && sys::enable_gro(socket.as_fd()),
            socket,
            counters: SendCounters::default(),
            filter: None,
        })
    }

    /// A way out by a socket from which somebody else receives.
    pub fn way_out(socket: &UdpSocket) -> io::Result<UdpPlane> {
        Ok(UdpPlane {
            segment: sys::has_gso(socket.as_fd()),
            coalesce: false,
            socket: socket.try_clone()?,
            counters: SendCounters::default(),
            filter: None,
        })
    }

    /// Another way out by the same socket, with counters of its own.
    pub fn another(&self) -> io::Result<UdpPlane> {
        Ok(UdpPlane {
            socket: self.socket.try_clone()?,
            segment: self.segment,
            coalesce: self.coalesce,
            counters: SendCounters::default(),
            filter: None,
        })
    }

    /// Where it is bound.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Whether sends are segmented by the kernel (UDP_SEGMENT).
    pub fn segments(&self) -> bool {
        self.segment
    }

    /// Whether receives are coalesced by the kernel (UDP_GRO).
    pub fn coalesces(&self) -> bool {
        self.coalesce
    }

    /// What became of sends so far.
    pub fn counters(&self) -> SendCounters {
        self.counters
    }

    /// What arrives must be signed with these keys. Where this process may load programs, one drops what isn't before it is
    /// queued and wakes anybody. Whoever receives checks all the same.
    pub fn use_keys(&mut self, keyring: &Keyring) {
        let used = match &self.filter {
            Some(filter) => filter.use_keys(keyring),
            None => TagFilter::before(&self.socket, keyring)
                .map(|filter| self.filter = Some(Box::new(filter))),
        };
        if let Err(why) = used {
            debug!("plane: nobody looks at tags before the socket: {why}");
            self.filter = None;
        }
    }

    /// Whether a program looks at tags before the socket.
    pub fn filters(&self) -> bool {
        self.filter.is_some()
    }

    /// What that has dropped.
    pub fn dropped(&self) -> ReasonCounters {
        let filter = self.filter.as_ref();
        filter.map_or_else(ReasonCounters::default, |filter| filter.dropped())
    }

    /// Receives what is there into `batch`, without waiting. False, and an empty batch, if there is
    /// nothing.
    pub fn receive(&mut self, batch: &mut RecvBatch) -> io::Result<bool> {
        match batch.0.receive(self.socket.as_fd()) {
            Ok(slots) => Ok(slots > 0),
            Err(error) if is_transient(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends the batch, without waiting, and clears it. What can't be sent is dropped and counted:
    /// every protocol above tolerates loss, and waiting here would stop all other destinations.
    pub fn send(&mut self, batch: &mut SendBatch) {
        if batch.is_empty() {
            return;
        }
        let mut runs = batch.outgoing().peekable();
        while runs.peek().is_some() {
            self.send_runs(&mut runs);
        }
        drop(runs);
        batch.clear();
    }

    /// Sends as many runs as fit one call.
    fn send_runs<'a>(
        &mut self,
        runs: &mut std::iter::Peekable<impl Iterator<Item = Outgoing<'a>>>,
    ) {
        let Some(first) = runs.next() else { return };
        if !self.segment && first.datagrams > 1 {
            return self.send_plain(&first);
        }
        if runs.peek().is_none() {
            return self.send_items(&[item(&first)]);
        }
        let mut items = Chunk::new(item(&first));
        while let Some(run) = runs.next_if(|run| self.segment || run.datagrams == 1) {
            items.push(item(&run));
            if items.is_full() {
                break;
            }
        }
        self.send_items(items.as_slice());
    }

    /// Sends the datagrams of a run one by one.
    fn send_plain(&mut self, run: &Outgoing<'_>) {
        let item = |bytes| SendItem {
            name: run.name,
            bytes,
            segment: None,
        };
        let mut datagrams = run.bytes.chunks(run.size as usize);
        while let Some(first) = datagrams.next() {
            let mut items = Chunk::new(item(first));
            while !items.is_full() {
                let Some(bytes) = datagrams.next() else { break };
                items.push(item(bytes));
            }
            self.send_items(items.as_slice());
        }
    }

    fn send_items(&mut self, mut items: &[SendItem<'_>]) {
        while let Some(first) = items.first() {
            match sys::send_many(self.socket.as_fd(), items) {
                Ok(n) => {
                    self.counters.sent += items[..n].iter().map(datagrams_of).sum::<u64>();
                    items = &items[n..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_refusal_to_segment(&error, first) => {
                    self.segment = false;
                    for item in items {
                        self.send_plain(&Outgoing {
                            name: item.name,
                            bytes: item.bytes,
                            datagrams: datagrams_of(item) as u32,
                            size: item.segment.unwrap_or(item.bytes.len() as u16),
                        });
                    }
                    return;
                }
                Err(error) => {
                    match error.raw_os_error() {
                        Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                            self.counters.dropped += datagrams_of(first);
                        }
                        _ => self.counters.refused += datagrams_of(first),
                    }
                    items = &items[1..];
                }
            }
        }
    }
}

impl AsFd for UdpPlane {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Items of one system call, on the stack.
struct Chunk<'a> {
    items: [SendItem<'a>; SEND_ITEMS],
    len: usize,
}

impl<'a> Chunk<'a> {
    fn new(first: SendItem<'a>) -> Self {
        Chunk {
            items: [first; SEND_ITEMS],
            len: 1,
        }
    }

    fn push(&mut self, item: SendItem<'a>) {
        self.items[self.len] = item;
        self.len += 1;
    }

    fn is_full(&self) -> bool {
        self.len == SEND_ITEMS
    }

    fn as_slice(&self) -> &[SendItem<'a>] {
        &self.items[..self.len]
    }
}

fn item<'a>(run: &Outgoing<'a>) -> SendItem<'a> {
    SendItem {
        name: run.name,
        bytes: run.bytes,
        segment: (run.datagrams > 1).then_some(run.size),
    }
}

fn datagrams_of(item: &SendItem<'_>) -> u64 {
    match item.segment {
        Some(size) => item.bytes.len().div_ceil(size as usize) as u64,
        None => 1,
    }
}

fn is_refusal_to_segment(error: &io::Error, item: &SendItem<'_>) -> bool {
    let refusal = matches!(
        error.raw_os_error(),
        Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP)
    );
    item.segment.is_some() && refusal
}

/// Errors of a receive after which the next one may work: nothing is there, a signal came, an ICMP
/// message is about an earlier send, or there is no memory at the moment.
fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::EAGAIN
                | libc::EINTR
                | libc::ECONNREFUSED
                | libc::ECONNRESET
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::ENOBUFS
                | libc::ENOMEM
        )
    )
}

#[cfg(test)]
mod tests;
