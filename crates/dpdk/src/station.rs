// SPDX-License-Identifier: Apache-2.0
//! A station: an address at a port, which takes and sends datagrams like a socket.

use std::net::{IpAddr, SocketAddr};

use crate::frame::payload_sum;
use crate::link::{Inbox, Link, Sent, Shared, Way, take};
use crate::port::{BURST, Port};

/// Counters of frames at a port that brought no datagram to a station.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames of another protocol, another port or another address, for which a host with sockets
    /// would have its own use.
    pub others: u64,
    /// Frames longer than a buffer.
    pub too_long: u64,
    /// Frames with lengths that don't fit.
    pub malformed: u64,
    /// Frames with a wrong checksum.
    pub damaged: u64,
    /// Frames for a station that had too many waiting.
    pub no_room: u64,
    /// How often the link was found down.
    pub down: u64,
}

/// The view of a link from one of its addresses.
pub struct View {
    link: Shared,
    own: IpAddr,
}

impl View {
    /// Returns the view from this address.
    pub fn of(link: &Shared, own: IpAddr) -> View {
        let link = link.clone();
        View { link, own }
    }

    /// Returns what became of frames that brought nothing to anybody at the port.
    pub fn counters(&self) -> Counters {
        take(&self.link).counters()
    }

    /// Returns the name of DPDK's driver for the port.
    pub fn driver(&self) -> String {
        take(&self.link).port().driver().to_owned()
    }

    /// Frames that had come to the port and found no room. It takes a moment.
    pub fn missed(&self) -> u64 {
        let link = take(&self.link);
        link.port().missed() + link.counters().no_room
    }

    /// Returns whether there is somebody at the other end, as it was found last.
    pub fn is_up(&self) -> bool {
        take(&self.link).is_up()
    }

    /// Returns the nodes whose hardware address isn't known, so that nothing can be sent there.
    pub fn unreachable(&self) -> Vec<IpAddr> {
        take(&self.link).unreachable(self.own)
    }
}

/// One address at a port, which may have other stations.
pub struct Station {
    /// The datagrams that it took last. They must be dropped before the port.
    received: Inbox,
    link: Shared,
    place: usize,
    address: SocketAddr,
    ways: Ways,
    sent: u64,
    dropped: u64,
}

impl Station {
    /// Opens the only station of a port, with the address `address`, which nobody else at the link
    /// has. The cluster's nodes have the addresses `nodes`.
    pub fn new(
        port: Port,
        address: SocketAddr,
        nodes: impl IntoIterator<Item = IpAddr>,
    ) -> Station {
        Station::at(Link::of(port), address, nodes)
    }

    /// Opens a station at a link that others may share.
    pub fn at(
        link: Shared,
        address: SocketAddr,
        nodes: impl IntoIterator<Item = IpAddr>,
    ) -> Station {
        let (place, received) = take(&link).enter(address, nodes);
        Station {
            received,
            link,
            place,
            address,
            ways: Ways::default(),
            sent: 0,
            dropped: 0,
        }
    }

    /// Returns the station's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns what is to be seen at its link.
    pub fn view(&self) -> View {
        View::of(&self.link, self.address.ip())
    }

    /// Returns the number of frames that the station has sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Frames that it couldn't send: the ring was full, or there was no buffer.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Takes what is there, at most a burst and what had come for it before, in the place of what
    /// it took before. Whether there was anything.
    #[inline]
    pub fn receive(&mut self) -> bool {
        take(&self.link).receive(self.place, &mut self.received);
        self.received.len() > 0
    }

    /// Returns whether the last take was a full burst, so that more may be there.
    pub fn is_full(&self) -> bool {
        self.received.len() >= BURST
    }

    /// Returns the datagrams that the station took last, in order, with their senders.
    #[inline]
    pub fn arrivals(&self) -> impl Iterator<Item = (SocketAddr, &[u8])> {
        self.received.iter()
    }

    /// Returns the station's way to send.
    #[inline]
    pub fn outlet(&mut self) -> Outlet<'_> {
        self.split().1
    }

    /// Returns the datagrams that the station took last, and its way to send.
    #[inline]
    pub fn split(&mut self) -> (impl Iterator<Item = (SocketAddr, &[u8])>, Outlet<'_>) {
        let outlet = Outlet {
            link: &self.link,
            own: self.address,
            ways: &mut self.ways,
            sent: &mut self.sent,
            dropped: &mut self.dropped,
        };
        (self.received.iter(), outlet)
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        take(&self.link).leave(self.place);
    }
}

/// The ways to where a datagram went last: the next one often goes there, too.
#[derive(Default)]
struct Ways {
    to: Vec<SocketAddr>,
    all: Vec<Option<Way>>,
    /// The link's number of changes when the ways were found.
    changes: u64,
    /// True if a way isn't known.
    lacks: bool,
}

impl Ways {
    /// Makes them those to other addresses.
    #[inline]
    fn lead(&mut self, link: &mut Link, own: SocketAddr, to: &[SocketAddr]) {
        if self.changes != link.changes() || self.lacks || self.to != to {
            self.find(link, own, to);
        }
    }

    fn find(&mut self, link: &mut Link, own: SocketAddr, to: &[SocketAddr]) {
        self.to.clear();
        self.to.extend(to);
        self.all.clear();
        self.all.extend(to.iter().map(|to| link.find(own, *to)));
        self.changes = link.changes();
        self.lacks = self.all.iter().any(Option::is_none);
    }
}

/// A station's way out.
pub struct Outlet<'a> {
    link: &'a Shared,
    own: SocketAddr,
    ways: &'a mut Ways,
    sent: &'a mut u64,
    dropped: &'a mut u64,
}

impl Outlet<'_> {
    /// Sends datagrams, each to some addresses, in order. How many copies weren't sent: it isn't
    /// known where their address is, or they are longer than a packet may be.
    #[inline]
    pub fn send<'d>(&mut self, all: impl Iterator<Item = (&'d [SocketAddr], &'d [u8])>) -> u64 {
        let mut link = take(self.link);
        let before = (link.port().sent(), link.port().dropped());
        let mut refused = 0;
        let mut latest: &[SocketAddr] = &[];
        // This isn't a plain loop, because the chained iterator would check its state again for
        // each datagram.
        all.for_each(|(to, datagram)| {
            // Datagrams to the same addresses come one after the other.
            if !std::ptr::eq(latest, to) {
                self.ways.lead(&mut link, self.own, to);
                latest = to;
            }
            let sum = payload_sum(datagram);
            for way in self.ways.all.iter_mut() {
                match way
                    .as_mut()
                    .map(|way| link.push(self.own, way, datagram, sum))
                {
                    Some(Sent::Here) => *self.sent += 1,
                    Some(Sent::Away) => {}
                    Some(Sent::Not) | None => refused += 1,
                }
            }
        });
        link.flush();
        *self.sent += link.port().sent() - before.0;
        *self.dropped += link.port().dropped() - before.1;
        refused
    }
}
