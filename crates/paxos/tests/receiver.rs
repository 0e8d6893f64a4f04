// SPDX-License-Identifier: Apache-2.0
//! The receiver of ordered messages: by hand, and against a model on a network that loses, repeats
//! and reorders.

use std::collections::BTreeMap;

use paxos::nopaxos::receiver::{Delivery, ReceiverSettings};
use paxos::nopaxos::{Receiver, Sequencer};
use paxos::outbox::Sent;
use paxos::{
    Deployment, Flags, Header, Instance, MsgType, NodeId, Packet, Program, Reason, Round, Time, To,
    Verdict,
};
use test_world::Rng;

const SEQUENCER: NodeId = 1;
const NONCE: u64 = 0xb1;
const SLOTS: usize = 8;
const WAIT: Time = 50_000;

fn deployment(node: NodeId) -> Deployment {
    Deployment {
        cluster: 0xc1,
        group: 1,
        partitions: 2,
        max_value: 64,
        node,
    }
}

fn receiver() -> Receiver {
    let mut receiver = Receiver::new(ReceiverSettings {
        deployment: deployment(11),
        pid: 0,
        slots: SLOTS,
        reorder_wait: WAIT,
    });
    receiver.listen(3, SEQUENCER, 100);
    receiver
}

fn ordered(slot: Instance) -> Header {
    Header {
        cluster: 0xc1,
        group: 1,
        inst: slot,
        rnd: Round::base(3),
        swid: SEQUENCER,
        client: 7,
        request: slot,
        ..Header::new(MsgType::Ordered)
    }
}

fn take(receiver: &mut Receiver, now: Time, header: Header) -> Verdict {
    let datagram = header.datagram(&header.inst.to_be_bytes());
    receiver.take(now, &Packet::parse(&datagram).expect("a packet"))
}

fn takes(receiver: &mut Receiver, now: Time, slot: Instance) {
    assert_eq!(
        take(receiver, now, ordered(slot)),
        Verdict::Changed,
        "{slot}"
    );
}

/// Returns the next delivery as text.
fn next(receiver: &mut Receiver, now: Time) -> String {
    match receiver.next(now) {
        None => "nothing".into(),
        Some(Delivery::Message(m)) => {
            assert_eq!(m.value, m.slot.to_be_bytes());
            assert_eq!((m.client, m.request), (7, m.slot));
            m.slot.to_string()
        }
        Some(Delivery::Dropped(slot)) => format!("dropped {slot}"),
        Some(Delivery::Terminated(session)) => format!("terminated {session}"),
    }
}

fn all(receiver: &mut Receiver, now: Time) -> Vec<String> {
    let mut found = Vec::new();
    loop {
        let text = next(receiver, now);
        let ends = text.parse::<u64>().is_err();
        found.push(text);
        if ends {
            return found;
        }
    }
}

/// A receiver delivers messages in order, each once. [O-ONCE]
#[test]
fn messages_come_in_order_and_once() {
    let mut r = receiver();
    assert_eq!(next(&mut r, 0), "nothing");
    for slot in [101, 100, 103, 102] {
        takes(&mut r, 0, slot);
    }
    assert_eq!(all(&mut r, 0), ["100", "101", "102", "103", "nothing"]);
    for (slot, reason) in [
        (100, Reason::Stale),
        (103, Reason::Stale),
        (0, Reason::Stale),
    ] {
        let verdict = take(&mut r, 0, ordered(slot));
        assert_eq!(verdict, Verdict::Dropped(reason), "{slot}");
    }
    takes(&mut r, 0, 106);
    let again = take(&mut r, 0, ordered(106));
    assert_eq!(again, Verdict::Dropped(Reason::Duplicate));
    assert_eq!(r.position(), 104);
}

/// A missing message is reported once the wait for it is over, and until the caller passes over it.
/// [O-WAIT]
#[test]
fn a_gap_is_told_when_it_was_waited_for_and_until_it_is_passed_over() {
    let mut r = receiver();
    takes(&mut r, 1_000, 102);
    takes(&mut r, 9_000, 105);
    assert_eq!(r.next_deadline(), Some(1_000 + WAIT));
    assert_eq!(all(&mut r, WAIT), ["nothing"], "not yet");
    assert!(r.missing(WAIT, 9).is_empty());

    let now = 1_000 + WAIT;
    assert_eq!(all(&mut r, now), ["dropped 100"]);
    assert_eq!(r.missing(now, 9), vec![100..102; 1]);
    assert_eq!(r.missing(now, 1), vec![100..101; 1]);
    let now = 9_000 + WAIT;
    assert_eq!(r.missing(now, 9), [100..102, 103..105], "all at once");

    // This packet is late, but comes before its slot was passed over.
    takes(&mut r, now, 100);
    assert_eq!(all(&mut r, now), ["100", "dropped 101"]);
    assert_eq!(next(&mut r, now), "dropped 101", "again");
    r.skip();
    let late = take(&mut r, now, ordered(101));
    assert_eq!(late, Verdict::Dropped(Reason::Stale));
    assert_eq!(all(&mut r, now), ["102", "dropped 103"]);
    r.skip();
    r.skip();
    assert_eq!(all(&mut r, now), ["105", "nothing"]);
    r.skip();
    assert_eq!((r.position(), r.next_deadline()), (106, None), "no gap");
}

/// A message too far ahead for the ring is dropped, and doesn't hold up others. [O-ONCE]
#[test]
fn what_is_beyond_the_ring_waits_for_nobody() {
    let mut r = receiver();
    let last = 100 + SLOTS as u64 - 1;
    takes(&mut r, 0, last);
    for slot in [last + 1, last + 1000, u64::MAX, u64::MAX - 1] {
        let verdict = take(&mut r, 0, ordered(slot));
        assert_eq!(verdict, Verdict::Dropped(Reason::Window), "{slot}");
    }
    // The ring wraps, and the old content of a slot doesn't show.
    for slot in 100..last {
        takes(&mut r, 0, slot);
    }
    assert_eq!(all(&mut r, 0).len(), SLOTS + 1);
    takes(&mut r, 0, last + 2);
    assert_eq!(all(&mut r, WAIT), [format!("dropped {}", last + 1)]);
    r.skip();
    assert_eq!(
        all(&mut r, WAIT),
        [format!("{}", last + 2), "nothing".into()]
    );
}

/// Delivers the last slots that have a number.
#[test]
fn the_last_slots_do_not_wrap() {
    let mut r = receiver();
    r.listen(3, SEQUENCER, u64::MAX - 2);
    let verdict = take(&mut r, 0, ordered(u64::MAX));
    assert_eq!(verdict, Verdict::Dropped(Reason::Window));
    takes(&mut r, 0, u64::MAX - 1);
    takes(&mut r, 0, u64::MAX - 2);
    assert_eq!(all(&mut r, 0).len(), 3);
}

/// A packet of another session is dropped and doesn't end the present one. [O-LATER]
#[test]
fn a_packet_of_another_session_ends_nothing() {
    let mut r = receiver();
    takes(&mut r, 0, 100);
    for session in [2, 4, 9] {
        let header = Header {
            rnd: Round::base(session),
            ..ordered(101)
        };
        let verdict = take(&mut r, 0, header);
        assert_eq!(verdict, Verdict::Dropped(Reason::OldSession), "{session}");
    }
    assert_eq!(r.later(), Some(9), "but it is worth asking");
    assert_eq!(all(&mut r, 0), ["100", "nothing"]);
    takes(&mut r, 0, 101);
    assert_eq!(all(&mut r, 0), ["101", "nothing"]);
}

/// An order of the control plane ends the session. [O-LATER]
#[test]
fn the_control_plane_ends_a_session() {
    let mut r = receiver();
    takes(&mut r, 0, 100);
    takes(&mut r, 0, 102);
    r.terminate(3);
    r.terminate(2);
    assert_eq!(next(&mut r, 0), "100", "no later session");
    r.terminate(4);
    assert_eq!(all(&mut r, WAIT), ["terminated 4"]);
    assert_eq!(next(&mut r, WAIT), "terminated 4", "until it listens");
    assert_eq!((r.next_deadline(), r.later()), (None, None));
    assert!(r.missing(WAIT, 9).is_empty());
    let verdict = take(&mut r, WAIT, ordered(101));
    assert_eq!(verdict, Verdict::Dropped(Reason::OldSession));
    r.terminate(3);
    r.terminate(5);
    assert_eq!(next(&mut r, WAIT), "terminated 5");

    r.listen(5, 2, 200);
    let of_five = |slot| Header {
        rnd: Round::base(5),
        swid: 2,
        ..ordered(slot)
    };
    assert_eq!(take(&mut r, WAIT, of_five(201)), Verdict::Changed);
    assert_eq!(
        all(&mut r, WAIT),
        ["nothing"],
        "what was before is forgotten"
    );
    assert_eq!(take(&mut r, WAIT, of_five(200)), Verdict::Changed);
    assert_eq!(all(&mut r, WAIT), ["200", "201", "nothing"]);
}

/// A packet that isn't for this receiver changes nothing. [O-SENDER] [M-PACKET]
#[test]
fn what_is_not_for_it_changes_nothing() {
    let mut r = receiver();
    let good = ordered(100);
    let bad = [
        (Header { cluster: 1, ..good }, Reason::WrongCluster),
        (Header { group: 2, ..good }, Reason::UnknownGroup),
        (Header { pid: 2, ..good }, Reason::UnknownPartition),
        (Header { pid: 1, ..good }, Reason::UnknownPartition),
        (Header { client: 0, ..good }, Reason::BadSession),
        (Header { swid: 2, ..good }, Reason::UnknownSender),
        (Header { swid: 0, ..good }, Reason::UnknownSender),
        (
            Header {
                rnd: Round::NONE,
                ..good
            },
            Reason::BadRound,
        ),
        (
            Header {
                rnd: Round(Round::base(3).0 + 1),
                ..good
            },
            Reason::BadRound,
        ),
        (
            Header {
                vrnd: Round::base(3),
                ..good
            },
            Reason::BadRound,
        ),
        (
            Header {
                msgtype: MsgType::Request,
                ..good
            },
            Reason::NotForRole,
        ),
        (
            Header {
                msgtype: MsgType::Phase2a,
                ..good
            },
            Reason::NotForRole,
        ),
    ];
    let before = format!("{r:?}");
    for (header, reason) in bad {
        let verdict = take(&mut r, 0, header);
        assert_eq!(verdict, Verdict::Dropped(reason), "{header:?}");
    }
    assert_eq!(format!("{r:?}"), before);

    let mut never = Receiver::new(ReceiverSettings {
        deployment: deployment(11),
        pid: 0,
        slots: SLOTS,
        reorder_wait: WAIT,
    });
    let verdict = take(&mut never, 0, good);
    assert_eq!(verdict, Verdict::Dropped(Reason::OldSession));
    assert_eq!(next(&mut never, WAIT), "nothing");
}

/// A flag of the value travels with it, and a tag doesn't.
#[test]
fn a_message_is_what_was_sent() {
    let mut r = receiver();
    let header = Header {
        flags: Flags::PACKED.with(Flags::TAG),
        value_len: 1,
        ..ordered(100)
    };
    let mut bytes = [0; paxos::wire::HEADER_LEN];
    header.emit(&mut bytes);
    let datagram = [&bytes[..], &[9; paxos::wire::TAG_LEN], b"v"].concat();
    let verdict = r.take(0, &Packet::parse(&datagram).unwrap());
    assert_eq!(verdict, Verdict::Changed);
    let Some(Delivery::Message(m)) = r.next(0) else {
        panic!("it came");
    };
    assert_eq!((m.flags, m.value), (Flags::PACKED, &b"v"[..]));
}

// ---- Sequencer, network, receivers

/// A network between a real sequencer and receivers: each copy is lost, repeated, or late.
struct World {
    random: Rng,
    now: Time,
    sequencer: Sequencer,
    /// Datagrams by the moment that they arrive, and by receiver.
    on_their_way: BTreeMap<(Time, u64), (usize, Vec<u8>)>,
    sent: u64,
    receivers: Vec<Followed>,
}

/// A receiver, and the model's state of it.
struct Followed {
    receiver: Receiver,
    /// The packets that have come for slots that aren't passed yet.
    came: BTreeMap<Instance, Vec<u8>>,
    /// The delivered values; `None` = the slot was dropped.
    log: Vec<Option<Vec<u8>>>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut sequencer = Sequencer::new(deployment(SEQUENCER), NONCE);
        let program = Program {
            epoch: 3,
            nonce: NONCE,
            next: vec![100, 0],
            trimmed: vec![100, 0],
            window: 1 << 40,
            acceptors: vec![11, 12, 13],
            f: 1,
            replicas: vec![11, 12, 13],
            g: 1,
        };
        sequencer.program(&program).expect("its nonce");
        let followed = || Followed {
            receiver: receiver(),
            came: BTreeMap::new(),
            log: Vec::new(),
        };
        World {
            random: Rng::new(seed),
            now: 0,
            sequencer,
            on_their_way: BTreeMap::new(),
            sent: 0,
            receivers: vec![followed(), followed(), followed()],
        }
    }

    fn send(&mut self) {
        self.sent += 1;
        let request = Header {
            cluster: 0xc1,
            group: 1,
            client: 7,
            request: self.sent,
            ..Header::new(MsgType::Request)
        };
        let datagram = request.datagram(&self.sent.to_be_bytes());
        let mut out = Sent::default();
        let packet = Packet::parse(&datagram).expect("a packet");
        assert_eq!(self.sequencer.step(&packet, &mut out), Verdict::Changed);
        for (to, header, value) in out.0 {
            assert_eq!(to, To::Replicas);
            let datagram = header.datagram(&value);
            for to in 0..self.receivers.len() {
                let copies = match self.random.below(20) {
                    0 => 0,
                    1 => 2,
                    _ => 1,
                };
                for _ in 0..copies {
                    let late = match self.random.below(10) {
                        0 => self.random.below(20 * WAIT),
                        _ => self.random.below(WAIT / 4),
                    };
                    let order = self.random.next();
                    let arrives = (self.now + late, order);
                    self.on_their_way.insert(arrives, (to, datagram.clone()));
                }
            }
        }
    }

    fn run_until(&mut self, end: Time) {
        while let Some(entry) = self.on_their_way.first_entry() {
            if entry.key().0 > end {
                break;
            }
            let ((now, _), (to, datagram)) = entry.remove_entry();
            self.receivers[to].takes(now, &datagram);
            self.receivers[to].delivers(now);
        }
        self.now = end;
        for followed in &mut self.receivers {
            followed.delivers(end);
        }
    }
}

impl Followed {
    fn takes(&mut self, now: Time, datagram: &[u8]) {
        let packet = Packet::parse(datagram).expect("a packet");
        let slot = packet.header.inst;
        let next = 100 + self.log.len() as u64;
        let expected = match slot {
            slot if slot < next => Verdict::Dropped(Reason::Stale),
            slot if slot >= next + SLOTS as u64 => Verdict::Dropped(Reason::Window),
            slot if self.came.contains_key(&slot) => Verdict::Dropped(Reason::Duplicate),
            _ => Verdict::Changed,
        };
        assert_eq!(self.receiver.take(now, &packet), expected, "slot {slot}");
        if expected == Verdict::Changed {
            self.came.insert(slot, packet.value.to_vec());
        }
    }

    fn delivers(&mut self, now: Time) {
        loop {
            let slot = 100 + self.log.len() as u64;
            assert_eq!(self.receiver.position(), slot);
            let came = self.came.remove(&slot);
            match (self.receiver.next(now), came) {
                (None, None) => return,
                (Some(Delivery::Message(m)), Some(value)) => {
                    assert_eq!((m.slot, m.value), (slot, &value[..]));
                    self.log.push(Some(value));
                }
                (Some(Delivery::Dropped(dropped)), None) => {
                    assert_eq!(dropped, slot);
                    assert!(!self.came.is_empty(), "a later one has come");
                    self.receiver.skip();
                    self.log.push(None);
                }
                (told, came) => panic!("{told:?}, and the model has {came:?} at {slot}"),
            }
        }
    }
}

/// All receivers see the same order, and each is told of what it missed. [O-ONCE] [O-WAIT]
/// [Q-STAMP]
#[test]
fn receivers_agree_but_for_what_they_are_told_they_missed() {
    let mut dropped = 0;
    for seed in 0..60 {
        let mut world = World::new(seed);
        for _ in 0..300 {
            world.send();
            let pause = world.random.below(WAIT / 2);
            world.run_until(world.now + pause);
        }
        world.run_until(world.now + 100 * WAIT);
        for followed in &world.receivers {
            assert!(followed.came.is_empty(), "nothing is held back");
            for (at, entry) in followed.log.iter().enumerate() {
                dropped += usize::from(entry.is_none());
                if let Some(value) = entry {
                    assert_eq!(*value, (at as u64 + 1).to_be_bytes(), "seed {seed}");
                }
            }
            // Only packets are missing that were lost at the very end, or that were beyond the ring
            // when they came.
            assert!(followed.log.len() > 200, "seed {seed}");
        }
    }
    assert!(dropped > 1000, "the network loses: {dropped}");
}
