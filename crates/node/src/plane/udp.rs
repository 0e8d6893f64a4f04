// SPDX-License-Identifier: Apache-2.0
//! The socket plane, which needs no special kernel and no privilege.
//!
//! `recvmmsg` with UDP_GRO and `sendmmsg` with UDP_SEGMENT pass many datagrams in one call and one
//! trip through the kernel's stack. If the kernel or the path refuses segmentation, at start or
//! later, the plane continues with plain datagrams. If the process may load programs, one checks
//! tags before packets reach the socket ([`UdpPlane::use_keys`]).

pub(crate) mod sys;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use loader::tag_filter::TagFilter;
use paxos::auth::Keyring;
use paxos::wire::ReasonCounters;
use tracing::debug;

use self::sys::{Icmp, RecvRing, SEND_ITEMS, SendItem};
use super::send_batch::{Outgoing, SendBatch};

/// The options of a socket.
#[derive(Clone, Copy, Debug)]
pub struct PlaneOptions {
    /// Use UDP_SEGMENT and UDP_GRO where the kernel has them.
    pub offload: bool,
    /// How many bytes to request for the socket's receive and send buffers.
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

/// A batch of received datagrams, which is made once and filled by [`UdpPlane::receive`].
pub struct RecvBatch(RecvRing);

impl Default for RecvBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl RecvBatch {
    /// Returns an empty batch. Its memory (4 MiB) is touched only as packets arrive.
    pub fn new() -> Self {
        RecvBatch(RecvRing::new())
    }

    /// Returns the datagrams that have arrived, in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = Arrival<'_>> {
        (0..self.0.filled()).map(|slot| {
            let (bytes, size, from) = self.0.slot(slot);
            Arrival { bytes, size, from }
        })
    }

    /// Returns whether every slot was filled, so that there may be more to receive at once.
    pub fn is_full(&self) -> bool {
        self.0.filled() == RecvRing::slots()
    }
}

/// Datagrams of one sender that arrived together: a single one, or several that UDP_GRO has
/// combined.
pub struct Arrival<'a> {
    bytes: &'a [u8],
    /// The size of each datagram except for the last.
    size: usize,
    /// The sender's address.
    pub from: SocketAddr,
}

impl<'a> Arrival<'a> {
    /// Returns a datagram that arrived alone.
    pub(super) fn single(bytes: &'a [u8], from: SocketAddr) -> Arrival<'a> {
        let size = bytes.len();
        Arrival { bytes, size, from }
    }

    /// Returns each of the datagrams. An empty datagram counts, too.
    #[inline]
    pub fn datagrams(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let whole = self.bytes.is_empty().then_some(self.bytes);
        whole.into_iter().chain(self.bytes.chunks(self.size.max(1)))
    }
}

/// The results of sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendCounters {
    /// Datagrams handed to the kernel.
    pub sent: u64,
    /// Datagrams dropped because the socket's buffer was full.
    pub dropped: u64,
    /// Datagrams that the kernel refused because of a missing route, a filter or an unreachable
    /// neighbour.
    pub refused: u64,
}

/// A bound, non-blocking UDP socket.
pub struct UdpPlane {
    /// The field comes before `socket`, so the filter is dropped first.
    filter: Option<Box<TagFilter>>,
    socket: UdpSocket,
    segment: bool,
    coalesce: bool,
    /// ICMP messages are kept for [`refused`](UdpPlane::refused).
    hears_refusals: bool,
    counters: SendCounters,
}

impl UdpPlane {
    /// Binds a socket to `address`.
    pub fn bind(address: SocketAddr, options: PlaneOptions) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        sys::set_buffers(socket.as_fd(), options.buffer_bytes.min(1 << 30) as i32);
        Ok(UdpPlane {
            segment: options.offload && sys::has_gso(socket.as_fd()),
            coalesce: options.offload && sys::enable_gro(socket.as_fd()),
            socket,
            hears_refusals: false,
            counters: SendCounters::default(),
            filter: None,
        })
    }

    /// Returns a plane that only sends, through a socket from which another receiver reads.
    pub fn way_out(socket: &UdpSocket) -> io::Result<UdpPlane> {
        Ok(UdpPlane {
            segment: sys::has_gso(socket.as_fd()),
            coalesce: false,
            socket: socket.try_clone()?,
            hears_refusals: false,
            counters: SendCounters::default(),
            filter: None,
        })
    }

    /// Returns another plane that sends through the same socket, with its own counters.
    pub fn another(&self) -> io::Result<UdpPlane> {
        Ok(UdpPlane {
            socket: self.socket.try_clone()?,
            segment: self.segment,
            coalesce: self.coalesce,
            hears_refusals: false,
            counters: SendCounters::default(),
            filter: None,
        })
    }

    /// Makes the kernel keep ICMP errors for [`refused`](UdpPlane::refused) (IP_RECVERR).
    pub fn hear_refusals(&mut self) -> io::Result<()> {
        sys::enable_refusals(self.socket.as_fd(), &self.local_addr()?)?;
        self.hears_refusals = true;
        Ok(())
    }

    /// Returns the addresses that answered a datagram with ICMP port unreachable.
    pub fn refused(&mut self) -> Vec<SocketAddr> {
        let mut refused = Vec::new();
        if !self.hears_refusals {
            return refused;
        }
        while let Some(heard) = sys::take_icmp(self.socket.as_fd()) {
            if let Icmp::Refused(by) = heard {
                refused.push(by);
            }
        }
        refused
    }

    /// Returns the address to which the socket is bound.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Returns whether the kernel segments sends (UDP_SEGMENT).
    pub fn segments(&self) -> bool {
        self.segment
    }

    /// Returns whether the kernel combines received datagrams (UDP_GRO).
    pub fn coalesces(&self) -> bool {
        self.coalesce
    }

    /// Returns the counters of sends.
    pub fn counters(&self) -> SendCounters {
        self.counters
    }

    /// Sets the keys with which arriving packets must be signed. If this process may load programs,
    /// one drops unsigned packets before they are queued; the receiver checks all packets anyway.
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

    /// Returns whether a program checks tags before the socket.
    pub fn filters(&self) -> bool {
        self.filter.is_some()
    }

    /// Returns how many packets that program has dropped, by reason.
    pub fn dropped(&self) -> ReasonCounters {
        let filter = self.filter.as_ref();
        filter.map_or_else(ReasonCounters::default, |filter| filter.dropped())
    }

    /// Receives the datagrams that are there into `batch`, without waiting. Returns false, with an
    /// empty batch, if there are none.
    pub fn receive(&mut self, batch: &mut RecvBatch) -> io::Result<bool> {
        match batch.0.receive(self.socket.as_fd()) {
            Ok(slots) => Ok(slots > 0),
            Err(error) if is_transient(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends the batch without waiting, and clears it. Datagrams that can't be sent are dropped and
    /// counted: every protocol above tolerates loss, and waiting here would delay all other
    /// destinations.
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

    /// Sends as many runs as fit into one system call.
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
        // The first error may be an ICMP message about an earlier datagram, so the send is
        // repeated.
        let mut is_told = !self.hears_refusals;
        while let Some(first) = items.first() {
            match sys::send_many(self.socket.as_fd(), items) {
                Err(error) if !is_told && !is_full(&error) => is_told = true,
                Ok(n) => {
                    is_told = !self.hears_refusals;
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
                    match is_full(&error) {
                        true => self.counters.dropped += datagrams_of(first),
                        false => self.counters.refused += datagrams_of(first),
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

/// The items of one system call, on the stack.
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

/// Returns whether a buffer or memory is short at the moment.
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM)
    )
}

/// Returns whether a later receive may succeed after this error: no datagram is there, a signal
/// came, memory is short, or an ICMP message of any kind is about an earlier send.
fn is_transient(error: &io::Error) -> bool {
    let is_icmp = matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNREFUSED
                | libc::ECONNRESET
                | libc::EHOSTUNREACH
                | libc::EHOSTDOWN
                | libc::ENETUNREACH
                | libc::ENONET
                | libc::ENOPROTOOPT
                | libc::EOPNOTSUPP
                | libc::EMSGSIZE
                | libc::EPROTO
                | libc::EACCES
        )
    );
    is_icmp || is_full(error) || error.kind() == io::ErrorKind::Interrupted
}

#[cfg(test)]
mod tests;
