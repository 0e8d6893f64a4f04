// SPDX-License-Identifier: Apache-2.0
//! What the stations of one port share: the port, and who else is at its link.
//!
//! Frames that come are sorted by station, each of which takes its own in its turn. What one of
//! them sends to another one doesn't leave: it goes straight there, in a buffer of the port.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::frame::{Content, Datagram, Ends, Head, Mac, parse};
use crate::library::Functions;
use crate::neighbours::Neighbours;
use crate::port::{BURST, Frame, Port};
use crate::station::Counters;

/// Bursts between two looks at the clock.
const BURSTS_OF_A_LOOK: u32 = 1_024;
/// Flows that are remembered.
const FLOWS: usize = 16;
/// Time between two looks at neighbours and at the link.
const TEND_INTERVAL: Duration = Duration::from_millis(500);
/// Frames that wait for a station at most. A port has 4,095 buffers, which have to be enough for
/// what waits at the card, too.
const MAX_WAITING: usize = 512;

/// A link, as its stations have it. It is for one thread at a time.
pub type Shared = Arc<Mutex<Link>>;

/// Locks the link.
#[inline]
pub(crate) fn take(link: &Shared) -> MutexGuard<'_, Link> {
    link.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A port and its stations, as this module describes.
pub struct Link {
    /// The stations by place; `None` where one has left.
    members: Vec<Option<Member>>,
    hosts: Vec<Neighbours>,
    port: Port,
    counters: Counters,
    flows: [Option<Flow>; FLOWS],
    /// Counts whatever may change a way.
    changes: u64,
    bursts: u32,
    tended: Option<Instant>,
    is_up: bool,
}

/// The result of the last look-up for datagrams between two ends, because often others follow.
struct Flow {
    by: Mac,
    ends: Ends,
    from: SocketAddr,
    /// The station's place.
    place: usize,
}

/// One of the stations.
struct Member {
    address: SocketAddr,
    waiting: Inbox,
}

/// Datagrams in the frames that they have come in. It goes before its port does.
pub(crate) struct Inbox {
    functions: &'static Functions,
    /// Narrowed to their datagrams.
    frames: Vec<Frame>,
    senders: Vec<SocketAddr>,
}

impl Inbox {
    fn new(functions: &'static Functions) -> Inbox {
        Inbox {
            functions,
            frames: Vec::with_capacity(BURST),
            senders: Vec::with_capacity(BURST),
        }
    }

    pub fn len(&self) -> usize {
        self.frames.len()
    }

    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (SocketAddr, &[u8])> {
        let all = self.senders.iter().zip(&self.frames);
        all.map(|(from, frame)| (*from, frame.bytes()))
    }

    #[inline]
    fn push(&mut self, frame: Frame, from: &SocketAddr) {
        self.frames.push(frame);
        self.senders.push(*from);
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        Port::release(self.functions, &mut self.frames);
    }
}

/// The way to an address.
pub(crate) struct Way {
    head: Head,
    /// The place of the station there, if it is at this very port.
    here: Option<usize>,
}

/// The destination that a datagram reached.
pub(crate) enum Sent {
    /// The datagram went to the port, which has dropped it if it had no room.
    Away,
    /// The datagram went to another station.
    Here,
    /// Nowhere: it is longer than a packet may be.
    Not,
}

impl Link {
    /// Creates the link of a port, without any station.
    pub fn of(port: Port) -> Shared {
        Arc::new(Mutex::new(Link {
            members: Vec::new(),
            hosts: Vec::new(),
            port,
            counters: Counters::default(),
            flows: [const { None }; FLOWS],
            changes: 0,
            bursts: 0,
            tended: None,
            is_up: false,
        }))
    }

    /// Returns the link's port.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Adds a station: its place, and its inbox.
    pub(crate) fn enter(
        &mut self,
        address: SocketAddr,
        nodes: impl IntoIterator<Item = IpAddr>,
    ) -> (usize, Inbox) {
        let inbox = || Inbox::new(self.port.functions());
        let (waiting, received) = (inbox(), inbox());
        self.members.push(Some(Member { address, waiting }));
        if self.hosts.iter().all(|host| host.own() != address.ip()) {
            let neighbours = Neighbours::new(address.ip(), self.port.mac(), nodes);
            self.hosts.push(neighbours);
        }
        self.forget_flows();
        // The new address must be told to others at the link.
        self.is_up = false;
        self.tended = None;
        (self.members.len() - 1, received)
    }

    /// Removes the station at this place. If it was the last one with its IP address, the address
    /// is removed, too.
    pub(crate) fn leave(&mut self, place: usize) {
        self.members[place] = None;
        self.forget_flows();
        let members = &self.members;
        let is_here = |ip| members.iter().flatten().any(|m| m.address.ip() == ip);
        self.hosts.retain(|host| is_here(host.own()));
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    pub(crate) fn is_up(&self) -> bool {
        self.is_up
    }

    /// Nodes of which one at `own` doesn't know where they are.
    pub(crate) fn unreachable(&self, own: IpAddr) -> Vec<IpAddr> {
        let hosts = self.hosts.iter().filter(|host| host.own() == own);
        let unknown = hosts.flat_map(Neighbours::unknown);
        unknown.filter(|ip| !self.is_here(*ip)).collect()
    }

    fn is_here(&self, ip: IpAddr) -> bool {
        self.hosts.iter().any(|host| host.own() == ip)
    }

    /// Takes what is there for all of them, at most a burst, and gives the one at `place` what has
    /// come for it, in the place of what it had.
    #[inline]
    pub(crate) fn receive(&mut self, place: usize, received: &mut Inbox) {
        if received.len() > 0 {
            self.port.reuse(&mut received.frames);
            received.senders.clear();
        }
        if self.port.receive() > 0 {
            self.sort();
        }
        self.bursts = self.bursts.wrapping_add(1);
        if self.bursts % BURSTS_OF_A_LOOK == 1 {
            self.tend();
        }
        if let Some(member) = &mut self.members[place] {
            std::mem::swap(&mut member.waiting, received);
        }
    }

    /// Returns a number that stays the same as long as all ways that were found remain valid.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns the way from an address here to another one, if it is known. If it isn't, asks for
    /// it.
    pub(crate) fn find(&mut self, own: SocketAddr, to: SocketAddr) -> Option<Way> {
        let way = self.way(own, to);
        if way.is_none() {
            self.seek(own, to);
        }
        way
    }

    #[inline]
    fn way(&self, own: SocketAddr, to: SocketAddr) -> Option<Way> {
        if to.is_ipv4() != own.is_ipv4() {
            return None;
        }
        let here = self.place(to);
        let mac = match here {
            Some(_) => self.port.mac(),
            None => self.neighbours(own.ip())?.of(to.ip())?,
        };
        Some(Way {
            head: Head::new([self.port.mac(), mac], own, to),
            here,
        })
    }

    /// Asks for the hardware address of `to`, because the station at `own` has something to send
    /// there and knows no way.
    fn seek(&mut self, own: SocketAddr, to: SocketAddr) {
        let mut hosts = self.hosts.iter_mut();
        let host = hosts.find(|host| host.own() == own.ip());
        let question = host.and_then(|host| host.seek(to.ip(), Instant::now()));
        self.send_frames(question.as_slice());
    }

    /// Sends a datagram, to whose checksum its payload adds `sum`.
    #[inline]
    pub(crate) fn push(
        &mut self,
        from: SocketAddr,
        way: &mut Way,
        datagram: &[u8],
        sum: u64,
    ) -> Sent {
        let head = &mut way.head;
        if head.packet_len(datagram.len()) > usize::from(self.port.mtu()) {
            return Sent::Not;
        }
        let len = head.frame_len(datagram.len());
        let write = |frame: &mut [u8]| head.write(datagram, sum, frame);
        let Some(place) = way.here else {
            self.port.push(len, write);
            return Sent::Away;
        };
        if let Some(mut frame) = self.port.make(len, write) {
            frame.narrow(len - datagram.len()..len);
            let given = give(self.members.get_mut(place), frame, &from, &self.port);
            self.counters.no_room += u64::from(!given);
        }
        Sent::Here
    }

    #[inline]
    pub(crate) fn flush(&mut self) {
        self.port.flush();
    }

    #[inline]
    fn hand_on(&mut self, flow: usize, frame: Frame) {
        if let Some(flow) = &self.flows[flow] {
            let member = self.members.get_mut(flow.place);
            let given = give(member, frame, &flow.from, &self.port);
            self.counters.no_room += u64::from(!given);
        }
    }

    fn place(&self, address: SocketAddr) -> Option<usize> {
        let is_it = |member: &Option<Member>| member.as_ref().is_some_and(|m| m.address == address);
        self.members.iter().position(is_it)
    }

    fn neighbours(&self, own: IpAddr) -> Option<&Neighbours> {
        self.hosts.iter().find(|host| host.own() == own)
    }

    /// Finds the datagrams among the frames of a burst, and answers neighbours.
    fn sort(&mut self) {
        let mut answers = Vec::new();
        for number in 0..self.port.frames().len() {
            let frame = &self.port.frames()[number];
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
                Content::Datagram(Datagram { by, ends, payload }) => {
                    let begin = payload.as_ptr() as usize - bytes.as_ptr() as usize;
                    let at = begin..begin + payload.len();
                    let Some(flow) = self.flow(by, &ends) else {
                        self.counters.others += 1;
                        continue;
                    };
                    let mut frame = self.port.take(number);
                    frame.narrow(at);
                    self.hand_on(flow, frame);
                }
                Content::Neighbour => {
                    self.changes += 1;
                    let hosts = self.hosts.iter_mut();
                    answers.extend(hosts.filter_map(|host| host.take(bytes)));
                }
                Content::Other => self.counters.others += 1,
                Content::Malformed => self.counters.malformed += 1,
                Content::Damaged => self.counters.damaged += 1,
            }
        }
        self.send_frames(&answers);
    }

    /// Returns the index of the flow to which a datagram belongs, if it is for a station.
    #[inline]
    fn flow(&mut self, by: Mac, ends: &Ends) -> Option<usize> {
        let at = ends.spread() % FLOWS;
        match &self.flows[at] {
            Some(flow) if flow.by == by && flow.ends == *ends => {}
            _ => self.flows[at] = Some(self.find_flow(by, *ends)?),
        }
        Some(at)
    }

    fn find_flow(&mut self, by: Mac, ends: Ends) -> Option<Flow> {
        let (from, to) = (ends.from(), ends.to());
        let place = self.place(to)?;
        let mut hosts = self.hosts.iter_mut();
        if let Some(host) = hosts.find(|host| host.own() == to.ip()) {
            self.changes += u64::from(host.heard(from.ip(), by));
        }
        Some(Flow {
            by,
            ends,
            from,
            place,
        })
    }

    /// Flows and ways are looked up again after this.
    fn forget_flows(&mut self) {
        self.flows = [const { None }; FLOWS];
        self.changes += 1;
    }

    /// Looks whether somebody is at the other end, and where others are, as often as that is due.
    fn tend(&mut self) {
        let now = Instant::now();
        let since = self.tended.map(|at| now.saturating_duration_since(at));
        if since.is_some_and(|since| since < TEND_INTERVAL) {
            return;
        }
        // Whose flow is known is not noted again, and notes of others are dropped where there are
        // too many.
        self.forget_flows();
        let was_up = self.is_up;
        self.is_up = self.port.is_up();
        if !self.is_up {
            self.counters.down += 1;
        } else if !was_up {
            let announcements = self.hosts.iter().map(Neighbours::announcement);
            self.send_frames(&announcements.collect::<Vec<_>>());
        }
        let here: Vec<_> = self.hosts.iter().map(Neighbours::own).collect();
        let hosts = self.hosts.iter_mut();
        let questions = hosts.flat_map(|host| host.questions(now, &here));
        let questions: Vec<_> = questions.collect();
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

/// Gives a frame to a station, or back to DPDK if too many wait there. Returns true if the station
/// got it.
#[inline]
fn give(member: Option<&mut Option<Member>>, frame: Frame, from: &SocketAddr, port: &Port) -> bool {
    match member.and_then(Option::as_mut) {
        Some(member) if member.waiting.len() < MAX_WAITING => {
            member.waiting.push(frame, from);
            true
        }
        _ => {
            Port::release(port.functions(), &mut [frame]);
            false
        }
    }
}
