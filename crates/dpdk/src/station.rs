// SPDX-License-Identifier: Apache-2.0
//! An address at a port: datagrams in and out, as a socket has them.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::frame::{Content, Head, parse};
use crate::neighbours::Neighbours;
use crate::port::{BURST, Port};

/// Bursts between two looks at the clock.
const BURSTS_OF_A_LOOK: u32 = 1_024;
/// Time between two looks at neighbours and at the link.
const TEND_INTERVAL: Duration = Duration::from_millis(500);

/// What became of frames, beside those whose datagram was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Of another protocol, or another port, or for another address: a socket's host would have its own use for them.
    pub others: u64,
    /// Longer than a buffer.
    pub too_long: u64,
    /// With lengths that don't fit.
    pub malformed: u64,
    /// With a wrong checksum.
    pub damaged: u64,
    /// How often the link was found down.
    pub down: u64,
}

/// One address at a port.
pub struct Station {
    port: Port,
    address: SocketAddr,
    neighbours: Neighbours,
    counters: Counters,
    /// What came with the last burst: which of its frames, the datagram's place in that, and its sender.
    arrivals: Vec<(usize, Range<usize>, SocketAddr)>,
    bursts: u32,
    tended: Option<Instant>,
    is_up: bool,
}

impl Station {
    /// The one of `address`, which nobody else at the link has, and only this port. The cluster's nodes have the
    /// addresses `nodes`.
    pub fn new(
        port: Port,
        address: SocketAddr,
        nodes: impl IntoIterator<Item = IpAddr>,
    ) -> Station {
        let neighbours = Neighbours::new(address.ip(), port.mac(), nodes);
        Station {
            port,
            address,
            neighbours,
            counters: Counters::default(),
            arrivals: Vec::with_capacity(BURST),
            bursts: 0,
            tended: None,
            is_up: false,
        }
    }

    /// The port that it is at.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// What became of frames that brought it nothing.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether there is somebody at the other end of its link, as it was found last.
    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// Nodes whose hardware address isn't known, so that nothing can be sent there.
    pub fn unreachable(&self) -> Vec<IpAddr> {
        self.neighbours.unknown().collect()
    }

    /// Takes what is there, at most a burst, in the place of what it took before. Whether there was anything for it.
    pub fn receive(&mut self) -> bool {
        self.arrivals.clear();
        if self.port.receive() > 0 {
            self.sort();
        }
        self.bursts = self.bursts.wrapping_add(1);
        if self.bursts % BURSTS_OF_A_LOOK == 1 {
            self.tend();
        }
        !self.arrivals.is_empty()
    }

    /// Whether the last burst was full: then more may be there.
    pub fn is_full(&self) -> bool {
        self.port.frames().len() == BURST
    }

    /// What it took, in order: senders and datagrams.
    #[inline]
    pub fn arrivals(&self) -> impl Iterator<Item = (SocketAddr, &[u8])> {
        let frames = self.port.frames();
        self.arrivals
            .iter()
            .map(move |(frame, at, from)| (*from, &frames[*frame].bytes()[at.clone()]))
    }

    /// Whether datagrams of so many bytes can be sent to an address, and the headers for them.
    #[inline]
    pub fn head(&self, to: SocketAddr) -> Option<Head> {
        let mac = self.neighbours.of(to.ip())?;
        (to.is_ipv4() == self.address.is_ipv4())
            .then(|| Head::new([self.port.mac(), mac], self.address, to))
    }

    /// Sends a datagram, with the next [`flush`](Self::flush) at the latest. False if it is longer than a packet may be.
    #[inline]
    pub fn push(&mut self, head: &Head, datagram: &[u8]) -> bool {
        if head.packet_len(datagram.len()) > usize::from(self.port.mtu()) {
            return false;
        }
        let len = head.frame_len(datagram.len());
        // What the port has no room for is lost like any other packet.
        self.port.push(len, |frame| head.write(datagram, frame));
        true
    }

    /// Sends what is to be sent.
    #[inline]
    pub fn flush(&mut self) {
        self.port.flush();
    }

    /// Finds the datagrams among the frames of a burst, and answers neighbours.
    fn sort(&mut self) {
        let mut answers = Vec::new();
        for (number, frame) in self.port.frames().iter().enumerate() {
            let bytes = frame.bytes();
            let content = match (frame.is_too_long(), frame.is_damaged()) {
                (true, _) => {
                    self.counters.too_long += 1;
                    continue;
                }
                (_, true) => Content::Damaged,
                _ => parse(bytes, frame.is_checked()),
            };
            match content {
                Content::Datagram(datagram) if datagram.to == self.address => {
                    self.neighbours.heard(datagram.from.ip(), datagram.by);
                    let begin = datagram.payload.as_ptr() as usize - bytes.as_ptr() as usize;
                    let at = begin..begin + datagram.payload.len();
                    self.arrivals.push((number, at, datagram.from));
                }
                Content::Neighbour => answers.extend(self.neighbours.take(bytes)),
                Content::Datagram(_) | Content::Other => self.counters.others += 1,
                Content::Malformed => self.counters.malformed += 1,
                Content::Damaged => self.counters.damaged += 1,
            }
        }
        self.send_frames(&answers);
    }

    /// Looks whether somebody is at the other end, and where others are, as often as that is due.
    fn tend(&mut self) {
        let now = Instant::now();
        let since = self.tended.map(|at| now.saturating_duration_since(at));
        if since.is_some_and(|since| since < TEND_INTERVAL) {
            return;
        }
        let was_up = self.is_up;
        self.is_up = self.port.is_up();
        if !self.is_up {
            self.counters.down += 1;
        } else if !was_up {
            let announcement = self.neighbours.announcement();
            self.send_frames(&[announcement]);
        }
        let questions = self.neighbours.questions(now);
        self.send_frames(&questions);
        self.tended = Some(now);
    }

    fn send_frames(&mut self, frames: &[Vec<u8>]) {
        for bytes in frames {
            self.port
                .push(bytes.len(), |frame| frame.copy_from_slice(bytes));
        }
        if !frames.is_empty() {
            self.port.flush();
        }
    }
}
