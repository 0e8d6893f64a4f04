// SPDX-License-Identifier: Apache-2.0
//! Packets to be sent, grouped by destination. A packet for several addresses is stored only once.

use std::net::SocketAddr;
use std::slice;

use paxos::Header;
use paxos::wire::HEADER_LEN;

use super::udp::sys::SocketName;

/// The number of destinations whose packets are collected into runs. Packets to further
/// destinations are sent one by one.
const MAX_DESTINATIONS: usize = 64;
/// The number of datagrams in one run; older kernels segment into at most 64.
const MAX_RUN_DATAGRAMS: u32 = 64;
/// The number of bytes in one run, which is the payload of the largest IPv4 datagram.
const MAX_RUN_BYTES: u32 = 65_507;
/// Larger datagrams may exceed the MTU of the path: they are fragmented, never segmented.
const MAX_SEGMENT: u16 = 1500 - 40 - 8;
const INITIAL_CAPACITY: usize = 16 * 1024;

/// Datagrams of one size (the last one may be shorter) to one destination, stored back to back,
/// which one segmented send can send.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u32,
    bytes: u32,
    datagrams: u32,
    size: u16,
    /// A shorter datagram has ended the run.
    closed: bool,
}

/// One address, or the addresses of a multicast.
struct Destination {
    addresses: Vec<SocketAddr>,
    names: Vec<SocketName>,
    bytes: Vec<u8>,
    runs: Vec<Run>,
}

impl Destination {
    fn new(addresses: &[SocketAddr]) -> Self {
        Destination {
            addresses: addresses.to_vec(),
            names: addresses.iter().map(SocketName::from).collect(),
            bytes: Vec::with_capacity(INITIAL_CAPACITY),
            runs: Vec::new(),
        }
    }

    fn rename(&mut self, addresses: &[SocketAddr]) {
        self.addresses.clear();
        self.addresses.extend(addresses);
        self.names.clear();
        self.names.extend(addresses.iter().map(SocketName::from));
    }

    fn bytes_of(&self, run: &Run) -> &[u8] {
        &self.bytes[run.start as usize..(run.start + run.bytes) as usize]
    }

    fn append(&mut self, header: &Header, value: &[u8]) {
        header.append_datagram(value, &mut self.bytes);
        self.appended(HEADER_LEN + value.len());
    }

    /// Marks the last `len` bytes as a datagram.
    fn appended(&mut self, len: usize) {
        debug_assert!(len <= MAX_RUN_BYTES as usize);
        let start = (self.bytes.len() - len) as u32;
        let size = len as u16;
        match self.runs.last_mut() {
            Some(run)
                if !run.closed
                    && size <= run.size
                    && run.size <= MAX_SEGMENT
                    && run.datagrams < MAX_RUN_DATAGRAMS
                    && run.bytes + u32::from(size) <= MAX_RUN_BYTES =>
            {
                run.bytes += u32::from(size);
                run.datagrams += 1;
                run.closed = size < run.size;
            }
            _ => self.runs.push(Run {
                start,
                bytes: u32::from(size),
                datagrams: 1,
                size,
                closed: false,
            }),
        }
    }
}

/// A run in the form in which the plane sends it.
pub(super) struct Outgoing<'a> {
    pub name: &'a SocketName,
    pub bytes: &'a [u8],
    pub datagrams: u32,
    /// The size of every datagram except for the last.
    pub size: u16,
}

/// Packets to be sent. The buffers grow to the size of the largest batch ever sent, and are kept.
#[derive(Default)]
pub struct SendBatch {
    destinations: Vec<Destination>,
    /// The number of destinations in use; later entries keep their buffers for the next batches.
    used: usize,
    /// The index of the last packet's destination.
    latest: usize,
    /// Packets to destinations beyond [`MAX_DESTINATIONS`].
    others: Vec<Destination>,
    others_used: usize,
    datagrams: usize,
}

impl SendBatch {
    /// Returns an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends one message; `header.value_len` is set from `value`.
    pub fn push(&mut self, to: &SocketAddr, header: &Header, value: &[u8]) {
        self.push_all(slice::from_ref(to), header, value);
    }

    /// Appends a copy of one message for each of `to`.
    #[inline]
    pub fn push_all(&mut self, to: &[SocketAddr], header: &Header, value: &[u8]) {
        if !to.is_empty() {
            self.datagrams += to.len();
            self.destination(to).append(header, value);
        }
    }

    /// Appends a copy of one signed message for each of `to`. `head` is its header and tag.
    pub(crate) fn push_signed(&mut self, to: &[SocketAddr], head: &[u8], value: &[u8]) {
        if to.is_empty() {
            return;
        }
        self.datagrams += to.len();
        let destination = self.destination(to);
        destination.bytes.extend_from_slice(head);
        destination.bytes.extend_from_slice(value);
        destination.appended(head.len() + value.len());
    }

    /// Appends a datagram unchanged.
    pub fn push_datagram(&mut self, to: &SocketAddr, datagram: &[u8]) {
        self.push_signed(slice::from_ref(to), datagram, &[]);
    }

    /// Returns the number of messages in the batch, counting each copy.
    pub fn len(&self) -> usize {
        self.datagrams
    }

    /// Returns whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.datagrams == 0
    }

    /// Removes all messages, but keeps the buffers.
    pub fn clear(&mut self) {
        let used = self.destinations[..self.used].iter_mut();
        for destination in used.chain(&mut self.others[..self.others_used]) {
            destination.bytes.clear();
            destination.runs.clear();
        }
        self.used = 0;
        self.others_used = 0;
        self.latest = 0;
        self.datagrams = 0;
    }

    /// Returns the runs for each single address.
    pub(super) fn outgoing(&self) -> impl Iterator<Item = Outgoing<'_>> {
        self.destinations().flat_map(|d| {
            let of_name = move |name| {
                d.runs.iter().map(move |run| Outgoing {
                    name,
                    bytes: d.bytes_of(run),
                    datagrams: run.datagrams,
                    size: run.size,
                })
            };
            d.names.iter().flat_map(of_name)
        })
    }

    /// Returns each datagram with the addresses to which it goes.
    #[inline]
    pub(super) fn multicasts(&self) -> impl Iterator<Item = (&[SocketAddr], &[u8])> {
        self.destinations().flat_map(|d| {
            let datagrams = |run: &Run| d.bytes_of(run).chunks(usize::from(run.size));
            let all = d.runs.iter().flat_map(datagrams);
            all.map(|datagram| (&d.addresses[..], datagram))
        })
    }

    fn destinations(&self) -> impl Iterator<Item = &Destination> {
        let used = self.destinations[..self.used].iter();
        used.chain(&self.others[..self.others_used])
    }

    /// Returns the entry for a destination. Few nodes talk to few others, so a scan that starts at
    /// the likeliest entry is faster than a hash; entries from `used` on are of an earlier batch,
    /// whose destinations often return.
    fn destination(&mut self, to: &[SocketAddr]) -> &mut Destination {
        let is_it = |destination: &Destination| destination.addresses == *to;
        let used = &self.destinations[..self.used];
        // A role that answers twice visits the same destinations in the same order.
        let next = if self.latest + 1 < self.used {
            self.latest + 1
        } else {
            0
        };
        let found = [self.latest, next]
            .into_iter()
            .find(|&at| used.get(at).is_some_and(is_it))
            .or_else(|| used.iter().position(is_it));
        if let Some(at) = found {
            self.latest = at;
            return &mut self.destinations[at];
        }
        if self.used == MAX_DESTINATIONS {
            return Self::take(&mut self.others, &mut self.others_used, to);
        }
        self.latest = self.used;
        Self::take(&mut self.destinations, &mut self.used, to)
    }

    /// Takes the next unused entry of a table, with its buffers, for `to`.
    fn take<'a>(
        table: &'a mut Vec<Destination>,
        used: &mut usize,
        to: &[SocketAddr],
    ) -> &'a mut Destination {
        let at = *used;
        *used += 1;
        if at == table.len() {
            table.push(Destination::new(to));
        } else if table[at].addresses != *to {
            table[at].rename(to);
        }
        &mut table[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paxos::MsgType;

    fn shape(batch: &SendBatch) -> Vec<(u32, u16, usize)> {
        batch
            .outgoing()
            .map(|o| (o.datagrams, o.size, o.bytes.len()))
            .collect()
    }

    fn push(batch: &mut SendBatch, port: u16, len: usize) {
        let to = SocketAddr::from(([127, 0, 0, 1], port));
        batch.push(&to, &Header::new(MsgType::Reply), &vec![0; len]);
    }

    #[test]
    fn equal_sizes_form_a_run_that_a_shorter_one_ends() {
        let mut batch = SendBatch::new();
        for len in [10, 10, 4, 10, 12] {
            push(&mut batch, 1, len);
        }
        assert_eq!(shape(&batch), [(3, 58, 168), (1, 58, 58), (1, 60, 60)]);
    }

    #[test]
    fn runs_are_bounded_in_datagrams_and_bytes() {
        let mut batch = SendBatch::new();
        for _ in 0..65 {
            push(&mut batch, 1, 0);
        }
        assert_eq!(shape(&batch), [(64, 48, 64 * 48), (1, 48, 48)]);
        batch.clear();
        for _ in 0..50 {
            push(&mut batch, 1, 1352);
        }
        assert_eq!(shape(&batch), [(46, 1400, 46 * 1400), (4, 1400, 4 * 1400)]);
    }

    #[test]
    fn a_multicast_is_there_once_and_leaves_for_each() {
        let all = [1, 2, 3].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let mut batch = SendBatch::new();
        for value in [&b"a"[..], b"bc"] {
            batch.push_all(&all, &Header::new(MsgType::Phase2a), value);
            batch.push_all(&[], &Header::new(MsgType::Phase2a), value);
        }
        batch.push(&all[0], &Header::new(MsgType::Reply), b"d");
        assert_eq!(batch.len(), 7);
        let sent: u32 = batch.outgoing().map(|run| run.datagrams).sum();
        assert_eq!(sent, 7);
        for (at, to) in all.iter().enumerate() {
            let runs = batch.outgoing().filter(|run| run.name.address() == *to);
            let bytes: Vec<_> = runs.map(|run| run.bytes.len()).collect();
            assert_eq!(bytes, [&[49, 50][..], &[49, 50, 49]][usize::from(at == 0)]);
        }
        let each: Vec<_> = batch
            .multicasts()
            .map(|(to, datagram)| (to.len(), datagram.len()))
            .collect();
        assert_eq!(each, [(3, 49), (3, 50), (1, 49)]);
    }

    #[test]
    fn what_may_exceed_the_mtu_is_not_segmented() {
        let mut batch = SendBatch::new();
        for len in [3000, 3000, 10] {
            push(&mut batch, 1, len);
        }
        assert_eq!(
            shape(&batch),
            [(1, 3048, 3048), (1, 3048, 3048), (1, 58, 58)]
        );
    }

    #[test]
    fn any_number_of_destinations_is_taken() {
        let mut batch = SendBatch::new();
        for round in 0..2 {
            for port in 1..=200 {
                push(&mut batch, port + round, 0);
            }
        }
        let sent: u32 = batch.outgoing().map(|o| o.datagrams).sum();
        assert_eq!((batch.len(), sent), (400, 400));
        batch.clear();
        assert!(batch.is_empty() && batch.outgoing().next().is_none());
        push(&mut batch, 9, 0);
        assert_eq!(shape(&batch), [(1, 48, 48)]);
    }
}
