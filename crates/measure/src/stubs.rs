// SPDX-License-Identifier: Apache-2.0
//! The process of `--followers stub`: stands for replicas of NOPaxos that don't lead. Each keeps
//! the log that a replica keeps, by the same code, acknowledges, synchronises and goes through view
//! changes; but none executes or stores anything. So what followers cost their machines isn't taken
//! from the leader, where all of them share a few CPUs.
//!
//! It is for measurements alone: nothing is replicated but the log, in memory, and a stub must not
//! lead.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use control::{Message, View};
use node::cluster_file::{Group, Node, Role};
use node::host::{Ready, Spinner};
use node::plane::{PlaneOptions, RecvBatch, UdpPlane};
use node::{ClusterFile, ControlPeers, Senders};
use paxos::nopaxos::Ack;
use paxos::wire::value::{PackedItem, Probe, ProbeReport, packed_items};
use paxos::{Flags, Header, Instance, Member, MsgType, Outbox, Packet, Time, To};
use replica::protocol::SessionOp;
use replica::{Agreement, Decided, Event, Log, NoPaxos, Settings, Speculative};

use crate::destinations::Destinations;
use local_cluster::Error;

/// After this many stable slots a stub reports that it no longer needs them.
const FORGET_EVERY: u64 = 4_096;
/// How often it says so, and asks for the view, where nothing happens.
const AGAIN: Duration = Duration::from_secs(1);
/// How often a stub asks for a view that it lacks, and tells the controller of one that has begun.
const SOON: Duration = Duration::from_millis(20);
/// The number of the disk that it doesn't have.
const INCARNATION: u64 = 1;

/// Serves as these replicas of the cluster file, until killed.
pub fn serve(cluster: &ClusterFile, names: &[String]) -> Result<(), Error> {
    let open = |name: &String| Stub::open(cluster, cluster.named(name)?);
    let mut stubs = names.iter().map(open).collect::<Result<Vec<_>, Error>>()?;
    let first = stubs.first().ok_or_else(|| Error::new("name a replica"))?;
    if let Some(cpu) = first.cpu {
        node::host::pin_to_cpu(cpu)?;
    }
    let mut spinner = Spinner::new(first.spin);
    let mut inbox = RecvBatch::new();
    loop {
        let due = stubs.iter().map(Stub::due_in).min().unwrap_or(AGAIN);
        let ready = spinner.wait_for(stubs.iter().flat_map(Stub::sockets), Some(due))?;
        for (at, stub) in stubs.iter_mut().enumerate() {
            stub.turn(at, ready, &mut inbox)?;
        }
    }
}

struct Stub {
    settings: Settings,
    member: Member,
    cpu: Option<usize>,
    spin: Duration,
    start: Instant,
    agreement: NoPaxos,
    plane: UdpPlane,
    senders: Senders,
    destinations: Destinations,
    control: UdpSocket,
    peers: ControlPeers,
    sequencers: Vec<(u16, SocketAddr)>,
    /// The addresses to which sessions' answers go.
    clients: BTreeMap<u64, SocketAddr>,
    /// Nothing below this slot is needed any more.
    forgotten: Instance,
    said: Instant,
    asked_view: Instant,
    reported: Instant,
    /// True if there may be more at the socket than was taken.
    more: bool,
}

impl Stub {
    fn open(cluster: &ClusterFile, node: &Node) -> Result<Stub, Error> {
        let group = group_of(cluster, node)?;
        let deployment = cluster.deployment(node, group);
        let settings = Settings {
            window: group.window,
            ..Settings::new(deployment, 0)
        };
        let nonce = node::random_nonce()?;
        let control = UdpSocket::bind(node.control)?;
        control.set_nonblocking(true)?;
        let now = Instant::now();
        let long_ago = now.checked_sub(AGAIN).unwrap_or(now);
        let stamps = cluster.nodes.iter().filter(|n| n.role == Role::Sequencer);
        Ok(Stub {
            member: Member {
                node: node.id,
                nonce,
            },
            cpu: node.cpu,
            spin: node.spin,
            start: now,
            agreement: NoPaxos::open(&settings, nonce, 0, 0),
            plane: UdpPlane::bind(node.address, PlaneOptions::default())?,
            senders: Senders::of(cluster),
            destinations: Destinations::of(cluster),
            control,
            peers: ControlPeers::new(cluster, node.id),
            sequencers: stamps.map(|n| (n.id, n.address)).collect(),
            clients: BTreeMap::new(),
            forgotten: 0,
            said: now,
            asked_view: long_ago,
            reported: long_ago,
            more: false,
            settings,
        })
    }

    fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.plane.as_fd(), self.control.as_fd()].into_iter()
    }

    fn due_in(&self) -> Duration {
        if self.more {
            return Duration::ZERO;
        }
        let due = self.agreement.next_deadline().unwrap_or(Time::MAX);
        let left = Duration::from_nanos(due.saturating_sub(self.now()));
        let pause = match self.needs_the_controller() {
            true => SOON,
            false => AGAIN,
        };
        left.min(pause)
    }

    fn now(&self) -> Time {
        self.start.elapsed().as_nanos() as Time
    }

    fn needs_the_controller(&self) -> bool {
        let knows_nothing = self.agreement.epoch().is_none();
        knows_nothing
            || self.agreement.wanted().view_with.is_some()
            || self.agreement.replica().unreported().is_some()
    }

    /// Takes what has come to it, which is the `at`-th of those that wait, and does what is due.
    fn turn(&mut self, at: usize, ready: Ready, inbox: &mut RecvBatch) -> Result<(), Error> {
        let now = self.now();
        if self.more || ready.has(2 * at) {
            self.more = self.plane.receive(inbox)? && inbox.is_full();
            self.take(now, inbox);
        }
        if ready.has(2 * at + 1) {
            self.hear(now);
        }
        self.go_on(now);
        self.speak()?;
        self.plane.send(&mut self.destinations.batch);
        Ok(())
    }

    // ---- Packets

    fn take(&mut self, now: Time, inbox: &RecvBatch) {
        for arrival in inbox.iter() {
            self.destinations.asker = Some(arrival.from);
            for datagram in arrival.datagrams() {
                let Ok(packet) = self.senders.parse(datagram, &arrival.from) else {
                    continue;
                };
                if self.settings.deployment.check(&packet).is_err() || packet.header.pid != 0 {
                    continue;
                }
                match packet.header.msgtype {
                    MsgType::Probe => self.on_probe(&packet),
                    _ => {
                        let _ = self.agreement.step(now, &packet, &mut self.destinations);
                    }
                }
            }
        }
    }

    /// Answers a probe as a replica's worker does.
    fn on_probe(&mut self, packet: &Packet<'_>) {
        if Probe::parse(packet.value) != Ok(Probe::Replica) {
            return;
        }
        let report = ProbeReport {
            nonce: self.member.nonce,
            trim: self.forgotten,
            // The stub's memory isn't stored.
            start: 0,
        };
        let header = Header {
            rnd: self.agreement.status().shown.unwrap_or_default(),
            inst: self.agreement.stable(),
            value_len: ProbeReport::LEN as u16,
            client: packet.header.client,
            request: packet.header.request,
            ..self.header(MsgType::ProbeAck)
        };
        self.destinations.send(To::Sender, &header, &report.emit());
    }

    /// Does what a worker does after each batch of packets, but executes nothing.
    fn go_on(&mut self, now: Time) {
        self.agreement.end_batch(now, false, &mut self.destinations);
        let _ = self.agreement.take_rewind();
        let stable = self.agreement.stable();
        self.agreement.executed(stable);
        if let Some(ack) = self.agreement.take_ack() {
            self.acknowledge(&ack);
        }
        if stable >= self.forgotten + FORGET_EVERY || self.said.elapsed() >= AGAIN {
            self.forget(stable);
        }
    }

    /// Lets the log and the sequencer's window go on without what is below. [Q-WINDOW]
    fn forget(&mut self, stable: Instance) {
        self.said = Instant::now();
        self.forgotten = stable;
        self.agreement.on_event(Event::Durable(stable));
        if let Some(session) = self.agreement.epoch() {
            let header = Header {
                inst: stable,
                client: INCARNATION,
                request: session.into(),
                ..self.header(MsgType::Trim)
            };
            self.destinations.send(To::Leader, &header, &[]);
        }
    }

    /// Sends one acknowledgement to each client that these slots name. [N-ACK]
    fn acknowledge(&mut self, ack: &Ack) {
        let mut waiting = Vec::new();
        for slot in ack.slots.clone() {
            if let Some(value) = self.agreement.entry(slot) {
                waiting.extend(client_of(&mut self.clients, &value));
            }
        }
        waiting.sort_unstable();
        waiting.dedup();
        for to in &waiting {
            self.destinations.batch.push(to, &ack.header, &[]);
        }
    }

    fn header(&self, msgtype: MsgType) -> Header {
        let deployment = &self.settings.deployment;
        Header {
            cluster: deployment.cluster,
            group: deployment.group,
            swid: deployment.node,
            ..Header::new(msgtype)
        }
    }

    // ---- The control plane

    fn hear(&mut self, now: Time) {
        let mut buffer = [0; 1 << 16];
        while let Ok((len, from)) = self.control.recv_from(&mut buffer) {
            if let Ok(Message::View(view)) = self.peers.open(&buffer[..len], from) {
                self.learn(now, &view);
            }
        }
    }

    fn learn(&mut self, now: Time, view: &View) {
        if view.group != self.settings.deployment.group {
            return;
        }
        if let Some(active) = view.active() {
            let leads = |(id, _): &&(u16, SocketAddr)| *id == active.leader.0;
            let sequencer = self.sequencers.iter().find(leads);
            self.destinations.leader = sequencer.map(|(_, address)| *address);
        }
        let sessions = view.sessions(0).unwrap_or_default();
        self.agreement.configure(now, &sessions, 0);
    }

    fn speak(&mut self) -> Result<(), Error> {
        let group = self.settings.deployment.group;
        let interval = match self.needs_the_controller() {
            true => SOON,
            false => AGAIN,
        };
        if self.asked_view.elapsed() >= interval {
            self.asked_view = Instant::now();
            self.tell_controller(&Message::ViewRequest { group })?;
        }
        let begun = self.agreement.replica().unreported();
        if let Some(started) = begun.filter(|_| self.reported.elapsed() >= SOON) {
            self.reported = Instant::now();
            let report = Message::view_started(group, self.member, 0, &started);
            self.tell_controller(&report)?;
        }
        Ok(())
    }

    /// Sends a message to the controller; its caller sends it again if it was lost.
    fn tell_controller(&self, message: &Message) -> Result<(), Error> {
        for to in self.peers.controllers() {
            let _ = self.control.send_to(&self.peers.seal(*to, message)?, to);
        }
        Ok(())
    }
}

fn group_of<'a>(cluster: &'a ClusterFile, node: &Node) -> Result<&'a Group, Error> {
    let group = node.group.and_then(|id| cluster.group(id));
    let group = group.filter(|group| group.partitions == 1 && node.role == Role::Replica);
    group.ok_or_else(|| {
        Error::new(format!(
            "{} is no replica of a group with one partition",
            node.name
        ))
    })
}

/// Returns who waits for the answer to a value; also notes whose sessions are opened in it. A
/// session's id is the place of its OPEN.
fn client_of(clients: &mut BTreeMap<u64, SocketAddr>, value: &Decided<'_>) -> Option<SocketAddr> {
    if value.flags.has(Flags::NOOP) {
        return None;
    }
    let mut first = None;
    let mut note = |index: u64, item: &PackedItem<'_>| {
        let opened = match item.request {
            0 => address_in(item.bytes),
            _ => None,
        };
        if let Some(address) = opened {
            clients.insert((value.inst + 1) << 16 | index, address);
        }
        if index == 0 {
            first = opened.or_else(|| clients.get(&item.client).copied());
        }
    };
    match value.flags.has(Flags::PACKED) {
        true => {
            let items = packed_items(value.value).flatten();
            (0..)
                .zip(items)
                .for_each(|(index, item)| note(index, &item));
        }
        false => note(
            0,
            &PackedItem {
                client: value.client,
                request: value.request,
                bytes: value.value,
            },
        ),
    }
    first
}

fn address_in(operation: &[u8]) -> Option<SocketAddr> {
    match SessionOp::parse(operation)? {
        SessionOp::Open { reply_to, .. } | SessionOp::Move { reply_to } => reply_to.address,
        SessionOp::Close
        | SessionOp::Expire { .. }
        | SessionOp::Died { .. }
        | SessionOp::Void { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use paxos::wire::value::append_packed;
    use replica::protocol::ReplyAddress;

    use super::*;

    fn open(port: u16) -> Vec<u8> {
        let reply_to = ReplyAddress {
            home: 0,
            address: Some(([127, 0, 0, 1], port).into()),
            key: 0,
        };
        let open = SessionOp::Open {
            ordered: false,
            window: 8,
            reply_to,
        };
        open.to_bytes()
    }

    /// The acknowledgement of a value goes to the client of its first command. [N-ACK]
    #[test]
    fn the_first_command_of_a_value_names_who_is_told() {
        let mut clients = BTreeMap::new();
        let mut told = |inst, flags, client, request, value: &[u8]| {
            let value = Decided {
                inst,
                flags,
                client,
                request,
                value,
            };
            client_of(&mut clients, &value).map(|address| address.port())
        };
        assert_eq!(told(4, Flags::NONE, 77, 0, &open(1)), Some(1));
        let mut packed = Vec::new();
        for (request, bytes) in [(1, b"command".to_vec()), (0, open(2))] {
            let client = 5 << 16;
            append_packed(
                &mut packed,
                &PackedItem {
                    client,
                    request,
                    bytes: &bytes,
                },
            );
        }
        assert_eq!(told(9, Flags::PACKED, 0, 0, &packed), Some(1));
        assert_eq!(told(10, Flags::NONE, 10 << 16 | 1, 1, b"command"), Some(2));
        assert_eq!(told(11, Flags::NONE, 10 << 16, 1, b"command"), None);
        assert_eq!(told(12, Flags::NOOP, 5 << 16, 1, b""), None);
    }
}
