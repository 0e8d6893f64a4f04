// SPDX-License-Identifier: Apache-2.0
//! Ordered unreliable multicast, on its own: all receivers see one order, and learn which messages
//! they missed.
//!
//! Nothing is sent twice, and nobody waits for anybody: a message may be lost on its way to some
//! receivers or to all of them. But all receivers that get a message get it at the same place, and
//! the others learn that they lack it. That is enough for a price feed, and NOPaxos replicates on
//! it. The names are those of the paper (section 3.2): [`Sender::send`], [`Receiver::listen`],
//! [`Receiver::get_message`].
//!
//! ```
//! use std::time::Duration;
//! use wirepaxos::oum::{Event, Group, Receiver, Sender, Sequencer};
//!
//! # fn main() -> std::io::Result<()> {
//! let group = Group { cluster: 0x5eed, group: 1, max_message: 256 };
//! let mut receiver = Receiver::bind("127.0.0.1:0", group)?;
//! let mut sequencer = Sequencer::bind("127.0.0.1:0", group)?;
//! sequencer.begin(1, 0, vec![receiver.address()?])?;
//! receiver.listen(1, 0, sequencer.address()?)?;
//!
//! let mut sender = Sender::new(sequencer.address()?, group)?;
//! sender.send(b"hello")?;
//! let patience = Duration::from_secs(10);
//! while sequencer.serve(patience)? == 0 {}
//! let event = receiver.get_message(patience)?;
//! assert_eq!(event, Some(Event::Message { slot: 0, message: b"hello".to_vec() }));
//! # Ok(())
//! # }
//! ```
//!
//! The program that begins sessions must number them upwards, and begin each at a slot that no
//! receiver has passed, as the controller does for NOPaxos. `examples/ticker.rs` is a feed with a
//! bad link.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use paxos::nopaxos;
use paxos::nopaxos::receiver::{Delivery, ReceiverSettings};
use paxos::round::MAX_EPOCH;
use paxos::wire::MAX_VALUE_LEN;
use paxos::{Deployment, Header, MsgType, NodeId, Outbox, Packet, Program, Time, To};

/// The node id of the sequencer; no other node has it.
const SEQUENCER: NodeId = 1;
/// The most messages that wait for earlier ones.
const SLOTS: usize = 4096;
/// How long a receiver waits for an earlier message.
const REORDER_WAIT: Duration = Duration::from_micros(50);
/// The size of a receive buffer, which is larger than any datagram.
const BUFFER: usize = 65_536;

/// The settings on which sender, sequencer and receivers must agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group {
    /// The number of the installation, which keeps its packets apart from those of another one.
    pub cluster: u32,
    /// The number of the group within the installation.
    pub group: u16,
    /// The longest message, in bytes; at most 1,400.
    pub max_message: u16,
}

impl Group {
    fn deployment(&self, node: NodeId) -> io::Result<Deployment> {
        if usize::from(self.max_message) > MAX_VALUE_LEN {
            let most = format!("messages have at most {MAX_VALUE_LEN} bytes; choose that or less");
            return Err(invalid(&most));
        }
        Ok(Deployment {
            cluster: self.cluster,
            group: self.group,
            partitions: 1,
            max_value: self.max_message,
            node,
        })
    }
}

/// Puts messages in order and sends them to all receivers.
pub struct Sequencer {
    socket: UdpSocket,
    role: nopaxos::Sequencer,
    receivers: Vec<SocketAddr>,
    buffer: Vec<u8>,
}

impl Sequencer {
    /// Opens the socket. Nothing is passed on before [`begin`](Sequencer::begin).
    ///
    /// # Errors
    /// An error of the socket if the address can't be taken, or one if the group's messages are too
    /// long for a datagram.
    pub fn bind(address: impl ToSocketAddrs, group: Group) -> io::Result<Sequencer> {
        let deployment = group.deployment(SEQUENCER)?;
        Ok(Sequencer {
            socket: UdpSocket::bind(address)?,
            role: nopaxos::Sequencer::new(deployment, random()),
            receivers: Vec::new(),
            buffer: vec![0; BUFFER],
        })
    }

    /// Returns the address to which senders send.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Begins a session, whose first message gets `slot`, for these receivers.
    ///
    /// # Errors
    /// An error if the session isn't later than the one before.
    pub fn begin(&mut self, session: u32, slot: u64, receivers: Vec<SocketAddr>) -> io::Result<()> {
        let program = Program {
            epoch: session,
            nonce: self.role.nonce(),
            next: vec![slot],
            trimmed: vec![slot],
            // No messages are kept anywhere, so nothing limits how far the sequencer may go.
            window: u64::MAX,
            acceptors: vec![SEQUENCER],
            f: 0,
            replicas: vec![SEQUENCER],
            g: 0,
        };
        self.role.program(&program).map_err(invalid)?;
        self.receivers = receivers;
        Ok(())
    }

    /// Waits for a message and passes it on, with all others that have come. Returns how many they
    /// are; 0 = none came in time.
    ///
    /// # Errors
    /// The errors of the socket. A message that can't be sent to a receiver is lost to it, like any
    /// other loss.
    pub fn serve(&mut self, patience: Duration) -> io::Result<usize> {
        let mut passed = 0;
        let mut patience = Some(patience);
        while let Some((len, from)) = receive(&self.socket, &mut self.buffer, patience.take())? {
            let Ok(packet) = Packet::parse(&self.buffer[..len]) else {
                continue;
            };
            // Other messages don't belong here, as there are no reports or refusals.
            if !matches!(packet.header.msgtype, MsgType::Request | MsgType::Probe) {
                continue;
            }
            let mut out = Sending {
                socket: &self.socket,
                receivers: &self.receivers,
                asker: from,
            };
            let verdict = self.role.step(&packet, &mut out);
            passed += usize::from(verdict == paxos::Verdict::Changed);
        }
        Ok(passed)
    }
}

struct Sending<'a> {
    socket: &'a UdpSocket,
    receivers: &'a [SocketAddr],
    asker: SocketAddr,
}

impl Outbox for Sending<'_> {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        let datagram = header.datagram(value);
        let receivers = match to {
            To::Replicas => self.receivers,
            _ => std::slice::from_ref(&self.asker),
        };
        for to in receivers {
            // A datagram that can't be sent is lost, as every packet may be.
            let _ = self.socket.send_to(&datagram, to);
        }
    }
}

/// Sends messages to a group.
pub struct Sender {
    socket: UdpSocket,
    header: Header,
    max_message: usize,
}

impl Sender {
    /// Returns a sender to this sequencer.
    ///
    /// # Errors
    /// The errors of the socket, or one if the group's messages are too long for a datagram.
    pub fn new(sequencer: SocketAddr, group: Group) -> io::Result<Sender> {
        let deployment = group.deployment(0)?;
        let any = if sequencer.is_ipv4() {
            "0.0.0.0:0"
        } else {
            "[::]:0"
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(sequencer)?;
        let header = Header {
            cluster: deployment.cluster,
            group: deployment.group,
            client: random(),
            ..Header::new(MsgType::Request)
        };
        Ok(Sender {
            socket,
            header,
            max_message: deployment.max_value.into(),
        })
    }

    /// Sends a message once. The message may be lost, and the sender doesn't learn of that.
    ///
    /// # Errors
    /// An error if the message is longer than the group's messages may be, or if the socket refuses
    /// it.
    pub fn send(&mut self, message: &[u8]) -> io::Result<()> {
        if message.len() > self.max_message {
            let most = format!(
                "a message of {} bytes: this group's have at most {}",
                message.len(),
                self.max_message
            );
            return Err(invalid(&most));
        }
        self.header.request += 1;
        self.socket.send(&self.header.datagram(message)).map(drop)
    }
}

/// The events that a receiver gets, slot by slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A message at its place.
    Message {
        /// The place of the message.
        slot: u64,
        /// The message as it was sent.
        message: Vec<u8>,
    },
    /// The message of this slot was lost on its way here. Others may have it.
    Dropped {
        /// The place of the lost message.
        slot: u64,
    },
    /// A later session has begun, and nobody knows which other messages were stamped in the one
    /// before. The event is repeated until [`Receiver::listen`].
    Terminated {
        /// The later session.
        session: u32,
    },
}

/// Receives messages in the sequencer's order.
pub struct Receiver {
    socket: UdpSocket,
    role: nopaxos::Receiver,
    sequencer: Option<SocketAddr>,
    begun: Instant,
    buffer: Vec<u8>,
}

impl Receiver {
    /// Opens the socket. Nothing is received before [`listen`](Receiver::listen).
    ///
    /// # Errors
    /// An error of the socket if the address can't be taken, or one if the group's messages are too
    /// long for a datagram.
    pub fn bind(address: impl ToSocketAddrs, group: Group) -> io::Result<Receiver> {
        let settings = ReceiverSettings {
            deployment: group.deployment(0)?,
            pid: 0,
            slots: SLOTS,
            reorder_wait: REORDER_WAIT.as_nanos() as Time,
        };
        Ok(Receiver {
            socket: UdpSocket::bind(address)?,
            role: nopaxos::Receiver::new(settings),
            sequencer: None,
            begun: Instant::now(),
            buffer: vec![0; BUFFER],
        })
    }

    /// Returns the address to which the sequencer sends.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Listens to a session of this sequencer from a slot on.
    ///
    /// # Errors
    /// An error if the number can't be that of a session.
    pub fn listen(&mut self, session: u32, slot: u64, sequencer: SocketAddr) -> io::Result<()> {
        if session == 0 || session > MAX_EPOCH {
            return Err(invalid(&format!("sessions are 1 to {MAX_EPOCH}")));
        }
        self.role.listen(session, SEQUENCER, slot);
        self.sequencer = Some(sequencer);
        Ok(())
    }

    /// Notes that a later session has begun, on the word of the program that begins sessions. A
    /// packet of a later session is no proof of that, but
    /// [`later_session`](Receiver::later_session) shows it.
    pub fn terminate(&mut self, session: u32) {
        self.role.terminate(session);
    }

    /// Returns the latest session of which a packet has come, if it is later than the one listened
    /// to. This is a reason to ask for the present session.
    pub fn later_session(&self) -> Option<u32> {
        self.role.later()
    }

    /// Returns the next event, or `None` if nothing happens in time. A missing message shows only
    /// when a later one has come.
    ///
    /// # Errors
    /// The errors of the socket.
    pub fn get_message(&mut self, patience: Duration) -> io::Result<Option<Event>> {
        let end = Instant::now() + patience;
        loop {
            self.take_all()?;
            let now = self.now();
            let event = self.role.next(now).map(owned);
            if let Some(event) = event {
                if matches!(event, Event::Dropped { .. }) {
                    self.role.skip();
                }
                return Ok(Some(event));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let due = self.role.next_deadline();
            let due = due.map_or(left, |due| Duration::from_nanos(due.saturating_sub(now)));
            let arrived = receive(&self.socket, &mut self.buffer, Some(left.min(due)))?;
            self.take(arrived);
        }
    }

    fn take_all(&mut self) -> io::Result<()> {
        // It takes no more datagrams than fit the ring, which would drop the rest.
        for _ in 0..SLOTS {
            let arrived = receive(&self.socket, &mut self.buffer, None)?;
            if arrived.is_none() {
                break;
            }
            self.take(arrived);
        }
        Ok(())
    }

    fn take(&mut self, arrived: Option<(usize, SocketAddr)>) {
        let Some((len, from)) = arrived else { return };
        // Only the sequencer's own packets count.
        if self.sequencer != Some(from) {
            return;
        }
        if let Ok(packet) = Packet::parse(&self.buffer[..len]) {
            // A refused packet is lost like any other.
            let _ = self
                .role
                .take(self.begun.elapsed().as_nanos() as Time, &packet);
        }
    }

    fn now(&self) -> Time {
        self.begun.elapsed().as_nanos() as Time
    }
}

fn owned(delivery: Delivery<'_>) -> Event {
    match delivery {
        Delivery::Message(m) => Event::Message {
            slot: m.slot,
            message: m.value.to_vec(),
        },
        Delivery::Dropped(slot) => Event::Dropped { slot },
        Delivery::Terminated(session) => Event::Terminated { session },
    }
}

/// Receives one datagram, and returns its length and its sender. `None` = none came in time, or
/// none is there now if `patience` is `None`.
fn receive(
    socket: &UdpSocket,
    buffer: &mut [u8],
    patience: Option<Duration>,
) -> io::Result<Option<(usize, SocketAddr)>> {
    socket.set_nonblocking(patience.is_none())?;
    if let Some(patience) = patience {
        // A timeout of zero would mean to wait forever.
        socket.set_read_timeout(Some(patience.max(Duration::from_micros(1))))?;
    }
    match socket.recv_from(buffer) {
        Ok(arrived) => Ok(Some(arrived)),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock
            | io::ErrorKind::TimedOut
            | io::ErrorKind::Interrupted
            // An earlier datagram of this socket was sent to a port that nobody has open.
            | io::ErrorKind::ConnectionRefused => Ok(None),
            _ => Err(error),
        },
    }
}

/// Returns a random number that is never 0.
fn random() -> u64 {
    RandomState::new().build_hasher().finish().max(1)
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
