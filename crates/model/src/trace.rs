//! Recorded runs as text: one event a line (`docs/testing.md`, "Traces").
//!
//! Packets are what was on the wire, as hexadecimal datagrams, so a capture of a real network is
//! as good a source as the simulator.

use std::fmt::Write as _;

use paxos::{Configuration, Enable, Member, NodeId, Program};

/// What a trace begins with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The cluster's number.
    pub cluster: u32,
    /// The group.
    pub group: u16,
    /// Its partitions.
    pub partitions: u16,
    /// Its largest value.
    pub max_value: u16,
    /// Slots of an acceptor's ring.
    pub slots: u64,
}

/// A role that the specification says everything about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// An acceptor.
    Acceptor,
    /// A leader.
    Leader,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A process began, with an empty memory or with the one that it had.
    Start {
        /// The node.
        node: NodeId,
        /// What it runs.
        role: Role,
        /// Its boot nonce.
        nonce: u64,
        /// Whether it still knows what it knew.
        kept: bool,
    },
    /// The store has issued an epoch.
    Epoch(Configuration),
    /// An acceptor was told of an epoch.
    Enable(NodeId, Enable),
    /// A leader was given a round.
    Program(NodeId, Program),
    /// A leader was told that a later epoch exists.
    Retire(NodeId, u32),
    /// A packet arrived.
    Recv(NodeId, Vec<u8>),
    /// A packet left.
    Send(NodeId, Vec<u8>),
}

/// A recorded run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// Where it ran.
    pub settings: Settings,
    /// In order.
    pub events: Vec<Event>,
}

impl Trace {
    /// The text.
    pub fn print(&self) -> String {
        let s = &self.settings;
        let mut out = format!(
            "trace cluster={} group={} partitions={} max_value={} slots={}\n",
            s.cluster, s.group, s.partitions, s.max_value, s.slots
        );
        for event in &self.events {
            out += &print(event);
            out.push('\n');
        }
        out
    }

    /// Reads the text; empty lines and what follows `#` don't count.
    pub fn parse(text: &str) -> Result<Trace, String> {
        let lines = text.lines().enumerate();
        let mut lines = lines
            .map(|(at, line)| (at + 1, line.split('#').next().unwrap_or("").trim()))
            .filter(|(_, line)| !line.is_empty());
        let (_, first) = lines.next().ok_or("the trace is empty")?;
        let settings = parse_settings(first).ok_or("the first line isn't `trace ...`")?;
        let mut events = Vec::new();
        for (number, line) in lines {
            events.push(parse(line).ok_or_else(|| format!("line {number}: {line}"))?);
        }
        Ok(Trace { settings, events })
    }
}

fn print(event: &Event) -> String {
    match event {
        Event::Start {
            node,
            role,
            nonce,
            kept,
        } => {
            let role = match role {
                Role::Acceptor => "acceptor",
                Role::Leader => "leader",
            };
            let memory = if *kept { "kept" } else { "fresh" };
            format!("start {node} {role} {memory} nonce={nonce}")
        }
        Event::Epoch(c) => format!(
            "epoch {} leader={} acceptors={} f={} replicas={} g={}",
            c.epoch,
            member(&c.leader),
            c.acceptors.iter().map(member).collect::<Vec<_>>().join(","),
            c.f,
            list(&c.replicas),
            c.g
        ),
        Event::Enable(node, e) => format!(
            "enable {node} epoch={} nonce={} trim={} end={} replicas={} g={}",
            e.epoch,
            e.nonce,
            list(&e.trim),
            list(&e.end),
            list(&e.replicas),
            e.g
        ),
        Event::Program(node, p) => format!(
            "program {node} epoch={} nonce={} next={} trimmed={} window={} replicas={} g={}",
            p.epoch,
            p.nonce,
            list(&p.next),
            list(&p.trimmed),
            p.window,
            list(&p.replicas),
            p.g
        ),
        Event::Retire(node, epoch) => format!("retire {node} epoch={epoch}"),
        Event::Recv(node, bytes) => format!("recv {node} {}", hex(bytes)),
        Event::Send(node, bytes) => format!("send {node} {}", hex(bytes)),
    }
}

fn member(member: &Member) -> String {
    format!("{}:{}", member.node, member.nonce)
}

fn list<T: ToString>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        write!(out, "{byte:02x}").expect("a string");
        out
    })
}

/// The words of a line after the first two, by name.
struct Fields<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Fields<'a> {
    fn of(words: &[&'a str]) -> Fields<'a> {
        let pairs = words.iter().filter_map(|word| word.split_once('='));
        Fields(pairs.collect())
    }
    fn text(&self, name: &str) -> Option<&'a str> {
        Some(self.0.iter().find(|(known, _)| *known == name)?.1)
    }
    fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.text(name)?.parse().ok()
    }
    fn numbers<T: std::str::FromStr>(&self, name: &str) -> Option<Vec<T>> {
        let items = self.text(name)?.split(',').filter(|item| !item.is_empty());
        items.map(|item| item.parse().ok()).collect()
    }
}

fn parse_settings(line: &str) -> Option<Settings> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let fields = Fields::of(&words);
    (*words.first()? == "trace").then_some(())?;
    Some(Settings {
        cluster: fields.number("cluster")?,
        group: fields.number("group")?,
        partitions: fields.number("partitions")?,
        max_value: fields.number("max_value")?,
        slots: fields.number("slots")?,
    })
}

fn parse(line: &str) -> Option<Event> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let fields = Fields::of(&words);
    let node: NodeId = words.get(1)?.parse().ok()?;
    Some(match words[0] {
        "start" => Event::Start {
            node,
            role: match *words.get(2)? {
                "acceptor" => Role::Acceptor,
                "leader" => Role::Leader,
                _ => return None,
            },
            kept: *words.get(3)? == "kept",
            nonce: fields.number("nonce")?,
        },
        "epoch" => Event::Epoch(Configuration {
            epoch: words[1].parse().ok()?,
            leader: parse_member(fields.text("leader")?)?,
            acceptors: fields
                .text("acceptors")?
                .split(',')
                .map(parse_member)
                .collect::<Option<_>>()?,
            f: fields.number("f")?,
            replicas: fields.numbers("replicas")?,
            g: fields.number("g")?,
        }),
        "enable" => Event::Enable(
            node,
            Enable {
                epoch: fields.number("epoch")?,
                nonce: fields.number("nonce")?,
                trim: fields.numbers("trim")?,
                end: fields.numbers("end")?,
                replicas: fields.numbers("replicas")?,
                g: fields.number("g")?,
            },
        ),
        "program" => Event::Program(
            node,
            Program {
                epoch: fields.number("epoch")?,
                nonce: fields.number("nonce")?,
                next: fields.numbers("next")?,
                trimmed: fields.numbers("trimmed")?,
                window: fields.number("window")?,
                replicas: fields.numbers("replicas")?,
                g: fields.number("g")?,
            },
        ),
        "retire" => Event::Retire(node, fields.number("epoch")?),
        "recv" => Event::Recv(node, parse_hex(words.get(2)?)?),
        "send" => Event::Send(node, parse_hex(words.get(2)?)?),
        _ => return None,
    })
}

fn parse_member(text: &str) -> Option<Member> {
    let (node, nonce) = text.split_once(':')?;
    Some(Member {
        node: node.parse().ok()?,
        nonce: nonce.parse().ok()?,
    })
}

fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let even = text.len() % 2 == 0 && text.is_ascii();
    let pairs = even.then(|| text.as_bytes().chunks(2))?;
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}
