// SPDX-License-Identifier: Apache-2.0
//! The network: the set of all messages ever sent.
//!
//! A message in the set may arrive at any time, any number of times, or never: loss, duplication,
//! delay and reordering are all in that. Retransmission adds nothing.

use std::collections::HashMap;

use paxos::nopaxos::{Session, Started};
use paxos::wire::value::RangeReport;
use paxos::{Enable, Epoch, Flags, Header, Instance, Member, MsgType, Program, Round};

use crate::bounds::{Bounds, memory_nonce};

/// The number of an actor in the cluster.
pub type ActorId = u8;

/// The contents of a message.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Payload {
    /// A packet of the data plane.
    Packet {
        /// The header.
        header: Header,
        /// The value.
        value: Vec<u8>,
    },
    /// Controller to acceptor.
    Enable(Enable),
    /// Controller to leader.
    Program(Program),
    /// Controller to a repairing host: the epoch is active, and this is your lane.
    Active {
        /// The epoch.
        epoch: Epoch,
        /// The lane.
        lane: u8,
    },
    /// Controller to a replica: the sessions that are in the store.
    Sessions(Vec<Session>),
    /// A replica to the controller: f+1 members have begun a view that it leads.
    Started {
        /// The replica.
        from: Member,
        /// The report's contents.
        started: Started,
    },
    /// A record for the judge, sent to nobody: somebody has delivered a value.
    Delivered {
        /// The instance.
        inst: Instance,
        /// The value.
        value: Value,
    },
}

/// A value with what identifies it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Value {
    /// Session.
    pub client: u64,
    /// Request number.
    pub request: u64,
    /// The flags of the value.
    pub flags: Flags,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl Value {
    /// Returns the value that a packet carries.
    pub fn of(header: &Header, bytes: &[u8]) -> Value {
        Value {
            client: header.client,
            request: header.request,
            flags: header.flags.of_value(),
            bytes: bytes.to_vec(),
        }
    }
}

/// A message on its way.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Message {
    /// The contents.
    pub payload: Payload,
    /// The place of the sender.
    pub from: ActorId,
    /// Whom it may reach: one bit a place.
    pub to: u32,
    /// The boot nonce of the acceptor's memory that sent it; 0 for others. For the properties only.
    pub memory: u64,
}

impl Message {
    /// Returns a client's request.
    pub fn request(client: u64, from: ActorId, to: u32) -> Message {
        Message {
            payload: Payload::Packet {
                header: Header {
                    cluster: 1,
                    group: 1,
                    client,
                    request: 1,
                    ..Header::new(MsgType::Request)
                },
                value: Vec::new(),
            },
            from,
            to,
            memory: 0,
        }
    }

    /// Returns the header, if it is a packet.
    pub fn header(&self) -> Option<&Header> {
        match &self.payload {
            Payload::Packet { header, .. } => Some(header),
            _ => None,
        }
    }
}

/// Number of a message.
pub type MessageId = u16;

/// The messages of a state, in ascending order.
pub type Sent = [MessageId];

/// Returns a set of places as a mask, with one bit for each place.
pub fn mask(places: std::ops::Range<ActorId>) -> u32 {
    places.fold(0, |mask, place| mask | 1 << place)
}

/// All messages that were sent in any state; a message's index is its number.
#[derive(Default)]
pub struct Messages {
    all: Vec<Message>,
    numbers: HashMap<Message, MessageId>,
}

impl Messages {
    /// Returns the number of a message, and whether it is a new one.
    pub fn number(&mut self, message: Message) -> (MessageId, bool) {
        if let Some(&known) = self.numbers.get(&message) {
            return (known, false);
        }
        let number = MessageId::try_from(self.all.len()).expect("bounds are small");
        self.all.push(message.clone());
        self.numbers.insert(message, number);
        (number, true)
    }

    /// Returns the message with this number.
    pub fn get(&self, id: MessageId) -> &Message {
        &self.all[id as usize]
    }

    /// Returns the number of messages.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

/// Returns one line that describes a message.
pub fn describe(message: &Message) -> String {
    match &message.payload {
        Payload::Packet { header, value } => describe_packet(header, value),
        Payload::Enable(e) => format!("Enable epoch {} trim {:?} end {:?}", e.epoch, e.trim, e.end),
        Payload::Program(p) => format!("Program epoch {} next {:?}", p.epoch, p.next),
        Payload::Active { epoch, lane } => format!("Active epoch {epoch} lane {lane}"),
        Payload::Sessions(told) => {
            let stages = told.iter().map(|s| format!("{}: {:?}", s.number, s.stage));
            format!("Sessions {}", stages.collect::<Vec<_>>().join(", "))
        }
        Payload::Started { started, .. } => {
            format!("Started {} end {}", started.view, started.end)
        }
        Payload::Delivered { inst, value } => format!("delivered {value:?} at {inst}"),
    }
}

/// Returns one line that describes a packet.
pub fn describe_packet(h: &Header, value: &[u8]) -> String {
    let mut line = format!("{} i{}", h.msgtype.name(), h.inst);
    if h.rnd != Round::NONE {
        line += &format!(" r{}", h.rnd);
    }
    if h.vrnd != Round::NONE && h.msgtype != MsgType::Phase2b {
        line += &format!(" v{}", h.vrnd);
    }
    if h.flags.has(Flags::RANGE) {
        line += " range";
    }
    if h.flags.has(Flags::NOOP) {
        line += " noop";
    } else if h.client != 0 {
        line += &format!(" {}:{}", h.client, h.request);
    }
    if !value.is_empty() {
        line += " ";
        value.iter().for_each(|byte| line += &format!("{byte:02x}"));
    }
    line
}

impl Bounds {
    /// Returns the message with acceptors exchanged: acceptor `a` becomes `way[a]`.
    pub fn exchanged(&self, way: &[u8], mut message: Message) -> Message {
        let place = |place: ActorId| way.get(usize::from(place)).copied().unwrap_or(place);
        let nonce = |nonce: u64| {
            let of = |&(a, k): &(u8, u64)| memory_nonce(a, k) == nonce;
            let all = (0..self.acceptors).flat_map(|a| [(a, 1), (a, 2)]);
            all.into_iter()
                .find(of)
                .map_or(nonce, |(a, k)| memory_nonce(way[usize::from(a)], k))
        };
        let to = (0..self.places() as ActorId).filter(|p| message.to >> p & 1 == 1);
        message.to = to.fold(0, |mask, p| mask | 1 << place(p));
        message.from = place(message.from);
        message.memory = nonce(message.memory);
        match &mut message.payload {
            Payload::Packet { header, value } => {
                if let Some(sender) = self.place_of(header.swid).filter(|_| header.swid != 0) {
                    header.swid = self.node(place(sender));
                }
                let range = header.msgtype == MsgType::Phase1b && header.flags.has(Flags::RANGE);
                let report = RangeReport::parse(value).ok().filter(|_| range);
                if let Some(report) = report {
                    let nonce = nonce(report.nonce);
                    *value = RangeReport { nonce, ..report }.emit().to_vec();
                }
            }
            Payload::Enable(enable) => enable.nonce = nonce(enable.nonce),
            Payload::Program(_)
            | Payload::Active { .. }
            | Payload::Sessions(_)
            | Payload::Started { .. }
            | Payload::Delivered { .. } => {}
        }
        message
    }
}
