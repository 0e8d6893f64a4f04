// SPDX-License-Identifier: Apache-2.0
//! Packets into what NOPaxos consists of: three replicas, their sequencer, a receiver, and a
//! client's quorum. They are made up, or what the roles themselves sent before: damaged, late,
//! twice, or as if another member had sent them. Members that lie may break agreement, so what must
//! hold is what each role promises by itself.

use std::collections::BTreeMap;

use super::input::{Input, NONCE};
use super::members;
use paxos::nopaxos::{
    Delivery, Quorum, Receiver, ReceiverSettings, Replica, ReplicaSettings, Sequencer, Session,
    Stage, view,
};
use paxos::outbox::Sent;
use paxos::wire::nopaxos::{GapRequest, Noops, SyncPrepare};
use paxos::{
    Flags, Header, Instance, Member, MsgType, NodeId, Packet, PartitionId, Program, Reason, Round,
    Time, To, Verdict,
};

const MAX_VALUE: u16 = 96;
const SLOTS: usize = 16;
const REPLICAS: [NodeId; 3] = [1, 2, 3];
const SEQUENCER: NodeId = 4;
const RECEIVER: NodeId = 5;
const CLIENT: NodeId = 0;
/// Datagrams kept, with their receivers.
const MAX_KEPT: usize = 64;
/// Steps in one run.
const MAX_STEPS: usize = 400;
/// Position of the low byte of `swid`.
const SWID_LOW: usize = 25;

/// Runs the sequence that `data` spells.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::new();
    for _ in 0..MAX_STEPS {
        let Some(choice) = input.byte() else { return };
        match choice {
            0..40 => world.order(&mut input),
            40..208 => world.deliver(&mut input),
            _ => world.disturb(choice, &mut input),
        }
    }
}

struct World {
    now: Time,
    replicas: [Replica; 3],
    sequencer: Sequencer,
    receiver: Receiver,
    quorum: Quorum<(Round, Instance)>,
    /// For each member, the newest view and the end of its log that the quorum took.
    acknowledged: BTreeMap<NodeId, (Round, Instance)>,
    /// The requests that the sequencer has stamped.
    stamped: BTreeMap<(Round, PartitionId, Instance), Vec<u8>>,
    kept: Vec<(NodeId, Vec<u8>)>,
}

fn deployment(node: NodeId) -> paxos::Deployment {
    members::deployment(node, 1, MAX_VALUE)
}

fn session(number: u32, stage: Stage) -> Session {
    Session {
        number,
        sequencer: SEQUENCER,
        nonce: NONCE,
        members: REPLICAS.map(|node| Member { node, nonce: NONCE }).to_vec(),
        f: 1,
        lead: (number % 3) as u16,
        stage,
        anew: None,
    }
}

/// Returns what the store says once session `number` is active, or writing.
fn told(number: u32, is_active: bool) -> Vec<Session> {
    let by = |number| view::first(number);
    let active = |number| session(number, Stage::Active { by: by(number) });
    let mut sessions: Vec<Session> = (1..number).map(active).collect();
    sessions.push(match is_active {
        true => active(number),
        false => session(number, Stage::Writing),
    });
    sessions
}

impl World {
    fn new() -> World {
        let replica = |node| {
            let settings = ReplicaSettings::new(deployment(node), 0, SLOTS, NONCE);
            Replica::new(settings, 0)
        };
        let mut world = World {
            now: 0,
            replicas: REPLICAS.map(replica),
            sequencer: Sequencer::new(deployment(SEQUENCER), NONCE),
            receiver: Receiver::new(ReceiverSettings {
                deployment: deployment(RECEIVER),
                pid: 0,
                slots: SLOTS,
                reorder_wait: 0,
            }),
            quorum: Quorum::new(0),
            acknowledged: BTreeMap::new(),
            stamped: BTreeMap::new(),
            kept: Vec::new(),
        };
        world.program(1, 0);
        world.receiver.listen(1, SEQUENCER, 0);
        for at in 0..3 {
            world.tell(at, 1, false);
        }
        // Everything that they say comes once, in order: they are in the first view.
        for _ in 0..8 {
            for (to, datagram) in std::mem::take(&mut world.kept) {
                world.hand(to, &datagram);
            }
        }
        for at in 0..3 {
            world.tell(at, 1, true);
        }
        world
    }

    // ---- What happens

    fn program(&mut self, epoch: u32, next: Instance) {
        // A refusal is part of what is tried.
        let _ = self.sequencer.program(&Program {
            epoch,
            nonce: NONCE,
            next: vec![next],
            trimmed: vec![next],
            window: SLOTS as u64,
            acceptors: REPLICAS.to_vec(),
            f: 1,
            replicas: REPLICAS.to_vec(),
            g: 1,
        });
    }

    fn tell(&mut self, at: usize, number: u32, is_active: bool) {
        let sessions = told(number, is_active);
        let _ = self.replicas[at].configure(&sessions);
        let last = sessions.last().expect("there is one");
        let _ = self.quorum.learn(last);
        self.tick(at);
    }

    /// A client's request is stamped, and reaches some of the replicas at once.
    fn order(&mut self, input: &mut Input<'_>) {
        let request = Header {
            cluster: 7,
            group: 1,
            client: input.number() | 1,
            request: input.number(),
            ..Header::new(MsgType::Request)
        };
        let datagram = request.datagram(input.bytes(40));
        let behind = self.kept.len();
        self.hand(SEQUENCER, &datagram);
        let reached = input.small();
        let new: Vec<_> = self.kept.iter().skip(behind).cloned().collect();
        for (to, datagram) in new {
            if reached & 1 << (to % 8) == 0 {
                self.hand(to, &datagram);
            }
        }
    }

    fn deliver(&mut self, input: &mut Input<'_>) {
        let choice = input.small();
        let (to, datagram) = match choice {
            0..8 => (choice % 6, input.bytes(255).to_vec()),
            8..216 if !self.kept.is_empty() => {
                let (to, mut datagram) = self.kept[usize::from(choice) % self.kept.len()].clone();
                match input.small() {
                    0..16 => input.damage(&mut datagram),
                    // The packet seems to come from another member.
                    16..48 if datagram.len() > SWID_LOW => {
                        datagram[SWID_LOW] = 1 + choice % 3;
                    }
                    _ => {}
                }
                (to as u8, datagram)
            }
            _ => (choice % 6, made_up(input)),
        };
        self.hand(to.into(), &datagram);
    }

    /// Causes an event that doesn't come from the data plane.
    fn disturb(&mut self, choice: u8, input: &mut Input<'_>) {
        let at = usize::from(choice) % 3;
        match input.small() % 12 {
            0..4 => {
                self.now += Time::from(input.small()) * 500_000;
                self.tick(at);
            }
            4 => self.tell(at, 1 + u32::from(input.small() % 3), choice % 2 == 0),
            5 => self.program(u32::from(input.small() % 4), input.number()),
            6 => self.replicas[at].set_crowded(choice % 2 == 0, input.number()),
            7 => self.acknowledge(at),
            8 => {
                let mut out = Sent::default();
                let inst = self.replicas[at].stable();
                self.replicas[at].checkpointed(self.now, inst, &mut out);
                self.keep(REPLICAS[at], None, out);
            }
            9 => {
                let mut out = Sent::default();
                let inst = input.number() % 32;
                self.replicas[at].restored(self.now, inst, &mut out);
                self.keep(REPLICAS[at], None, out);
            }
            10 => {
                let mut out = Sent::default();
                self.replicas[at].synchronise(&mut out);
                self.keep(REPLICAS[at], None, out);
            }
            _ => {
                let slot = self.receiver.position() + u64::from(input.small() % 4);
                self.receiver
                    .listen(1 + u32::from(input.small() % 3), SEQUENCER, slot);
            }
        }
    }

    fn tick(&mut self, at: usize) {
        let mut out = Sent::default();
        self.replicas[at].tick(self.now, &mut out);
        self.keep(REPLICAS[at], None, out);
    }

    /// A follower acknowledges, or a leader answers the last slot that it has.
    fn acknowledge(&mut self, at: usize) {
        let replica = &mut self.replicas[at];
        let header = match replica.take_ack() {
            Some(ack) => {
                assert!(ack.slots.end <= replica.next(), "{ack:?}");
                ack.header
            }
            None if replica.leads() && replica.ready() > 0 => Header {
                cluster: 7,
                group: 1,
                rnd: replica.view(),
                inst: replica.ready() - 1,
                swid: REPLICAS[at],
                ..Header::new(MsgType::Reply)
            },
            None => return,
        };
        self.remember(CLIENT, header.datagram(&[]));
    }

    // ---- Who gets it

    fn hand(&mut self, to: NodeId, datagram: &[u8]) {
        let Ok(packet) = Packet::parse(datagram) else {
            return;
        };
        match to {
            1..=3 => self.replica_takes(usize::from(to) - 1, &packet),
            SEQUENCER => self.sequencer_takes(&packet),
            RECEIVER => self.receiver_takes(&packet),
            _ => self.client_takes(&packet),
        }
    }

    fn replica_takes(&mut self, at: usize, packet: &Packet<'_>) {
        let mut out = Sent::default();
        let before = self.replicas[at].clone();
        let replica = &mut self.replicas[at];
        match replica.step(self.now, packet, &mut out) {
            Verdict::Dropped(Reason::Conflict) => {}
            Verdict::Dropped(reason) => {
                assert_eq!(before, *replica, "{reason:?}: {:?}", packet.header);
                assert_eq!(out.0, [], "{reason:?}: {:?}", packet.header);
            }
            Verdict::Rejected(_) => panic!("a replica refuses nothing aloud"),
            Verdict::Changed | Verdict::Answered => {}
        }
        assert!(before.stable() <= replica.stable(), "{:?}", packet.header);
        assert!(before.view() <= replica.view(), "{:?}", packet.header);
        assert!(replica.floor() <= replica.stable() && replica.stable() <= replica.next());
        assert!(replica.ready() <= replica.next());
        self.keep(REPLICAS[at], Some(packet.header.swid), out);
    }

    fn sequencer_takes(&mut self, packet: &Packet<'_>) {
        let mut out = Sent::default();
        let before = format!("{:?}", self.sequencer);
        let verdict = self.sequencer.step(packet, &mut out);
        if !matches!(verdict, Verdict::Changed) {
            assert_eq!(before, format!("{:?}", self.sequencer), "{verdict:?}");
        }
        for (_, header, value) in &out.0 {
            if header.msgtype == MsgType::Ordered {
                let place = (header.rnd, header.pid, header.inst);
                let twice = self.stamped.insert(place, header.datagram(value));
                assert_eq!(twice, None, "{place:?} is stamped twice");
            }
        }
        self.keep(SEQUENCER, Some(CLIENT), out);
    }

    fn receiver_takes(&mut self, packet: &Packet<'_>) {
        let position = self.receiver.position();
        let verdict = self.receiver.take(self.now, packet);
        let mut next = position;
        loop {
            match self.receiver.next(self.now) {
                Some(Delivery::Message(message)) => {
                    assert_eq!(message.slot, next);
                    next += 1;
                }
                Some(Delivery::Dropped(slot)) => {
                    assert_eq!(slot, next);
                    self.receiver.skip();
                    next += 1;
                }
                Some(Delivery::Terminated(_)) | None => break,
            }
        }
        assert_eq!(self.receiver.position(), next);
        let is_dropped = matches!(verdict, Verdict::Dropped(_));
        assert!(!is_dropped || next == position, "{:?}", packet.header);
    }

    /// An answer is final only if a follower has shown more than its slot, in its view.
    fn client_takes(&mut self, packet: &Packet<'_>) {
        let h = &packet.header;
        if deployment(CLIENT).check(packet).is_err() {
            return;
        }
        match h.msgtype {
            MsgType::Reply => {
                let _ = self.quorum.reply(h, (h.rnd, h.inst));
            }
            MsgType::Ack if self.quorum.ack(h).is_ok() => {
                self.acknowledged.insert(h.swid, (h.rnd, h.inst));
            }
            _ => return,
        }
        while let Some((view, slot)) = self.quorum.next() {
            let has = |(of, end): &&(Round, Instance)| *of == view && *end > slot;
            let count = self.acknowledged.values().filter(has).count();
            assert!(count > 0, "slot {slot} of {view}: {:?}", self.acknowledged);
        }
    }

    // ---- What they send

    fn keep(&mut self, from: NodeId, sender: Option<NodeId>, out: Sent) {
        for (to, header, value) in out.0 {
            let datagram = header.datagram(&value);
            let packet = Packet::parse(&datagram).expect("roles send well-formed packets");
            assert_eq!(deployment(CLIENT).check(&packet), Ok(()), "{header:?}");
            match to {
                // This packet is a replica's timer, which it sends to itself.
                To::Node(node) if node == from => self.hand(node, &datagram),
                To::Node(node) => self.remember(node, datagram),
                To::Replicas => {
                    for node in REPLICAS.into_iter().chain([RECEIVER]) {
                        self.remember(node, datagram.clone());
                    }
                }
                To::Sender => self.remember(sender.unwrap_or(CLIENT), datagram),
                To::Leader => self.remember(SEQUENCER, datagram),
                To::Acceptors | To::Learners => panic!("there are none: {header:?}"),
            }
        }
    }

    fn remember(&mut self, to: NodeId, datagram: Vec<u8>) {
        if self.kept.len() == MAX_KEPT {
            self.kept.remove(0);
        }
        self.kept.push((to, datagram));
    }
}

/// Returns a packet of the right cluster, with fields from a small range.
fn made_up(input: &mut Input<'_>) -> Vec<u8> {
    let types: Vec<MsgType> = MsgType::ALL
        .into_iter()
        .filter(|msgtype| *msgtype as u8 >= MsgType::Ordered as u8)
        .chain([MsgType::Reply, MsgType::Trim, MsgType::Reject])
        .collect();
    let msgtype = types[usize::from(input.small()) % types.len()];
    let (inst, stable) = (input.number(), input.number());
    let mut value = Vec::new();
    let noops = (stable..inst).take(1).map(|slot| slot..slot + 1);
    match msgtype {
        _ if input.small() < 32 => value.extend_from_slice(input.bytes(80)),
        MsgType::GapRequest => {
            let count = u32::from(input.small() % 65);
            value.extend_from_slice(&GapRequest { count }.emit());
        }
        MsgType::SyncPrepare => {
            SyncPrepare::append(&mut value, stable, input.number(), noops);
        }
        MsgType::GapCommit | MsgType::ViewChange | MsgType::StartView => {
            Noops::append(&mut value, stable, noops);
        }
        _ => {}
    }
    let flags = Flags(u16::from(input.small() % 8) & msgtype.allowed_flags().0);
    let is_noop = flags.has(Flags::NOOP);
    let number = u32::from(input.small() % 4);
    let digest = session(number.max(1), Stage::Writing).digest();
    let header = Header {
        cluster: 7,
        group: 1,
        inst,
        rnd: Round(number << 12 | u32::from(input.small() % 4)),
        vrnd: Round(input.round()),
        swid: u16::from(input.small()) % 6,
        flags,
        client: if is_noop { 0 } else { NONCE },
        request: match input.small() {
            _ if is_noop => 0,
            0..128 => digest,
            _ => input.number(),
        },
        ..Header::new(msgtype)
    };
    header.datagram(&value)
}
