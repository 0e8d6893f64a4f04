// SPDX-License-Identifier: Apache-2.0
//! The events at a node, each as a line of text (`docs/testing.md`, "Traces"). Nodes record them,
//! and `crates/model` checks them against the protocol.
//!
//! Packets are recorded as they were on the wire, as hexadecimal datagrams.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

#[cfg(doc)]
use crate::acceptor::Start;
use crate::round::MAX_EPOCH;
use crate::{Configuration, Enable, Epoch, GroupId, Member, NodeId, PartitionId, Program};

/// The first line of a trace, which says where it was recorded.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Settings {
    /// The cluster's number.
    pub cluster: u32,
    /// The group.
    pub group: GroupId,
    /// The number of the group's partitions.
    pub partitions: PartitionId,
    /// The group's largest value, in bytes.
    pub max_value: u16,
    /// The number of slots of an acceptor's ring.
    pub slots: u64,
}

/// A role that the specification knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// An acceptor.
    Acceptor,
    /// A leader.
    Leader,
    /// A sequencer.
    Sequencer,
    /// A replica. More is recorded of it if it keeps the log, as with NOPaxos.
    Replica,
}

impl Role {
    const ALL: [Role; 4] = [Role::Acceptor, Role::Leader, Role::Sequencer, Role::Replica];

    fn name(self) -> &'static str {
        match self {
            Role::Acceptor => "acceptor",
            Role::Leader => "leader",
            Role::Sequencer => "sequencer",
            Role::Replica => "replica",
        }
    }
}

/// One line of a trace, which says what happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A process began. An acceptor with the same boot nonce as the process before still has its
    /// memory.
    Start {
        /// The node.
        node: NodeId,
        /// The role that it runs.
        role: Role,
        /// The boot nonce of its memory.
        nonce: u64,
        /// The start of an acceptor's memory ([`Start::number`]); 0 for other roles.
        start: u64,
    },
    /// The store has issued an epoch, or an epoch was read from it after a restart.
    Epoch(Configuration),
    /// An issued epoch is a session of NOPaxos, and the member with this index leads first.
    Session(Epoch, u16),
    /// The epoch's candidate may propose from now on, or replicas may go to the session's views.
    Writing(Epoch),
    /// The epoch is in force as long as it is the last one.
    Active(Epoch),
    /// An acceptor was enabled for an epoch.
    Enable(NodeId, Enable),
    /// The controller has let an acceptor go on after this start.
    Resume(NodeId, u64),
    /// A leader or sequencer was programmed with a round.
    Program(NodeId, Program),
    /// A leader or sequencer was told that a later epoch exists.
    Retire(NodeId, Epoch),
    /// A packet arrived.
    Recv(NodeId, Vec<u8>),
    /// A packet left.
    Send(NodeId, Vec<u8>),
}

// ---- Printing

impl Display for Settings {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "trace cluster={} group={} partitions={} max_value={} slots={}",
            self.cluster, self.group, self.partitions, self.max_value, self.slots
        )
    }
}

impl Display for Event {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Event::Start {
                node,
                role,
                nonce,
                start,
            } => {
                let role = role.name();
                write!(f, "start {node} {role} nonce={nonce} start={start}")
            }
            Event::Resume(node, start) => write!(f, "resume {node} start={start}"),
            Event::Epoch(c) => {
                let member = |m: &Member| format!("{}:{}", m.node, m.nonce);
                let acceptors: Vec<_> = c.acceptors.iter().map(member).collect();
                write!(
                    f,
                    "epoch {} leader={} acceptors={} f={} replicas={} g={}",
                    c.epoch,
                    member(&c.leader),
                    list(&acceptors),
                    c.f,
                    list(&c.replicas),
                    c.g
                )
            }
            Event::Session(epoch, lead) => write!(f, "session {epoch} lead={lead}"),
            Event::Writing(epoch) => write!(f, "writing {epoch}"),
            Event::Active(epoch) => write!(f, "active {epoch}"),
            Event::Enable(node, e) => write!(
                f,
                "enable {node} epoch={} nonce={} trim={} end={} replicas={} g={}",
                e.epoch,
                e.nonce,
                list(&e.trim),
                list(&e.end),
                list(&e.replicas),
                e.g
            ),
            Event::Program(node, p) => write!(
                f,
                "program {node} epoch={} nonce={} next={} trimmed={} window={} acceptors={} f={} \
                 replicas={} g={}",
                p.epoch,
                p.nonce,
                list(&p.next),
                list(&p.trimmed),
                p.window,
                list(&p.acceptors),
                p.f,
                list(&p.replicas),
                p.g
            ),
            Event::Retire(node, epoch) => write!(f, "retire {node} epoch={epoch}"),
            Event::Recv(node, bytes) => write!(f, "recv {node} {}", hexadecimal(bytes)),
            Event::Send(node, bytes) => write!(f, "send {node} {}", hexadecimal(bytes)),
        }
    }
}

fn list<T: ToString>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

fn hexadecimal(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(nibble.into(), 16).expect("four bits");
    let digits = bytes.iter().flat_map(|b| [digit(b >> 4), digit(b & 15)]);
    digits.collect()
}

// ---- Reading

impl Settings {
    /// Reads the first line of a trace, or returns `None` if the line is something else.
    pub fn parse(line: &str) -> Option<Settings> {
        let fields = Fields(line.strip_prefix("trace ")?);
        Some(Settings {
            cluster: fields.number("cluster")?,
            group: fields.number("group")?,
            partitions: fields.number("partitions")?,
            max_value: fields.number("max_value")?,
            slots: fields.number("slots")?,
        })
    }
}

impl Event {
    /// Reads any other line, or returns `None` if it is no event.
    pub fn parse(line: &str) -> Option<Event> {
        let mut words = line.split_whitespace();
        let (kind, subject) = (words.next()?, words.next()?);
        let of_epoch = || epoch(subject);
        match kind {
            "epoch" => return Some(Event::Epoch(Fields(line).epoch(of_epoch()?)?)),
            "session" => return Some(Event::Session(of_epoch()?, Fields(line).number("lead")?)),
            "writing" => return Some(Event::Writing(of_epoch()?)),
            "active" => return Some(Event::Active(of_epoch()?)),
            _ => {}
        }
        let node: NodeId = subject.parse().ok()?;
        let fields = Fields(line);
        Some(match kind {
            "start" => {
                let role = words.next()?;
                Event::Start {
                    node,
                    role: Role::ALL.into_iter().find(|known| known.name() == role)?,
                    nonce: fields.number("nonce")?,
                    start: fields.number("start")?,
                }
            }
            "resume" => Event::Resume(node, fields.number("start")?),
            "enable" => Event::Enable(node, fields.enable()?),
            "program" => Event::Program(node, fields.program()?),
            "retire" => Event::Retire(node, epoch(fields.text("epoch")?)?),
            "recv" => Event::Recv(node, bytes(words.next()?)?),
            "send" => Event::Send(node, bytes(words.next()?)?),
            _ => return None,
        })
    }
}

/// The `name=value` words of a line.
struct Fields<'a>(&'a str);

impl<'a> Fields<'a> {
    fn text(&self, name: &str) -> Option<&'a str> {
        let mut pairs = self.0.split_whitespace().filter_map(|w| w.split_once('='));
        Some(pairs.find(|(known, _)| *known == name)?.1)
    }

    fn number<T: FromStr>(&self, name: &str) -> Option<T> {
        self.text(name)?.parse().ok()
    }

    fn items(&self, name: &str) -> Option<impl Iterator<Item = &'a str> + use<'a>> {
        let text = self.text(name)?;
        Some(text.split(',').filter(|item| !item.is_empty()))
    }

    fn numbers<T: FromStr>(&self, name: &str) -> Option<Vec<T>> {
        self.items(name)?.map(|item| item.parse().ok()).collect()
    }

    fn epoch(&self, epoch: Epoch) -> Option<Configuration> {
        Some(Configuration {
            epoch,
            leader: member(self.text("leader")?)?,
            acceptors: self
                .items("acceptors")?
                .map(member)
                .collect::<Option<_>>()?,
            f: self.number("f")?,
            replicas: self.numbers("replicas")?,
            g: self.number("g")?,
        })
    }

    fn enable(&self) -> Option<Enable> {
        Some(Enable {
            epoch: epoch(self.text("epoch")?)?,
            nonce: self.number("nonce")?,
            trim: self.numbers("trim")?,
            end: self.numbers("end")?,
            replicas: self.numbers("replicas")?,
            g: self.number("g")?,
        })
    }

    fn program(&self) -> Option<Program> {
        Some(Program {
            epoch: epoch(self.text("epoch")?)?,
            nonce: self.number("nonce")?,
            next: self.numbers("next")?,
            trimmed: self.numbers("trimmed")?,
            window: self.number("window")?,
            acceptors: self.numbers("acceptors")?,
            f: self.number("f")?,
            replicas: self.numbers("replicas")?,
            g: self.number("g")?,
        })
    }
}

fn epoch(text: &str) -> Option<Epoch> {
    let number = text.parse().ok()?;
    (1..=MAX_EPOCH).contains(&number).then_some(number)
}

fn member(text: &str) -> Option<Member> {
    let (node, nonce) = text.split_once(':')?;
    Some(Member {
        node: node.parse().ok()?,
        nonce: nonce.parse().ok()?,
    })
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    let nibble = |c: u8| Some(char::from(c).to_digit(16)? as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match *pair {
            [high, low] => Some(nibble(high)? << 4 | nibble(low)?),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_again() {
        let lines = [
            "start 11 acceptor nonce=9187 start=4294967296",
            "resume 11 start=8589934599",
            "start 1 leader nonce=77 start=0",
            "start 41 sequencer nonce=78 start=0",
            "start 21 replica nonce=79 start=0",
            "epoch 1 leader=1:77 acceptors=11:9187,12:5,13:6 f=1 replicas=21,22,23 g=1",
            "session 1 lead=2",
            "writing 1",
            "active 1",
            "enable 11 epoch=1 nonce=9187 trim=0 end=0 replicas=21,22,23 g=1",
            "program 1 epoch=1 nonce=77 next=1,4 trimmed=0,2 window=32 acceptors=11,12,13 f=1 \
             replicas=21 g=0",
            "retire 1 epoch=2",
            "recv 11 0103ff",
            "send 11 010400",
        ];
        for line in lines {
            let event = Event::parse(line).expect(line);
            assert_eq!(event.to_string(), line);
        }
        let first = "trace cluster=7 group=1 partitions=2 max_value=512 slots=32";
        assert_eq!(Settings::parse(first).unwrap().to_string(), first);
    }

    #[test]
    fn what_says_nothing_is_refused() {
        let lines = [
            "",
            "recv",
            "recv 11",
            "recv 11 0",
            "recv 11 0g",
            "recv 11 +1",
            "recv x 00",
            "start 11 learner nonce=1 start=0",
            "start 11 acceptor nonce=1",
            "resume 11",
            "start 11 acceptor",
            "enable 11 epoch=1 nonce=9187 trim=0,x end=0 replicas=21 g=1",
            "epoch 1 leader=1 acceptors=11:1 f=1 replicas=21 g=1",
            "writing 0",
            "session 1",
            "active 1048576",
            "stop 11",
        ];
        for line in lines {
            assert_eq!(Event::parse(line), None, "{line}");
        }
        assert_eq!(Settings::parse("trace cluster=1"), None);
        assert_eq!(Settings::parse("recv 11 00"), None);
    }
}
