// SPDX-License-Identifier: Apache-2.0
//! The proposer of ordered sessions that have several values in flight, over networks that lose,
//! delay, repeat and refuse packets: how long its commands take, and how often they leave.

use std::collections::{BTreeMap, BTreeSet};

use paxos::outbox::Sent;
use paxos::proposer::STATUS_OUT_OF_ORDER;
use paxos::wire::value::{PackedItem, append_packed, packed_items};
use paxos::{Deployment, Flags, Header, MsgType, Packet, Proposer, ProposerSettings, Reason, Time};
use test_world::Rng;
use test_world::cluster::refused;

const MICROSECOND: Time = 1_000;
const MILLISECOND: Time = 1_000 * MICROSECOND;
const RETRY: Time = 20 * MILLISECOND;
/// The time of a packet, one way.
const WAY: Time = 50 * MICROSECOND;
/// The usual time for which the log executes a value.
const SERVICE: Time = 20 * MICROSECOND;
/// Requests of a session in flight, counted from the oldest without an answer.
const WINDOW: u64 = 64;

/// The faults among 100 packets on their way to the log.
#[derive(Clone, Copy, Default)]
struct Faults {
    lost: u64,
    repeated: u64,
    delayed: u64,
    refused: u64,
    /// How many answers out of 100 are lost.
    lost_answers: u64,
}

const BAD_NETWORK: Faults = Faults {
    lost: 10,
    repeated: 15,
    delayed: 15,
    refused: 5,
    lost_answers: 0,
};

enum Event {
    Arrives(Header, Vec<u8>),
    Returns(Header, Vec<u8>),
}

#[derive(Default)]
struct Session {
    submitted: u64,
    answered: BTreeSet<u64>,
    /// The last request up to which all are answered.
    done: u64,
    /// The last request that the server has executed.
    executed: u64,
}

/// A front end with some sessions, and a log that is executed in its order.
struct World {
    rng: Rng,
    faults: Faults,
    /// The time for which the log executes a value.
    service: Time,
    commands: u64,
    proposer: Proposer,
    sessions: BTreeMap<u64, Session>,
    now: Time,
    /// The events by time, and in the order in which they were caused.
    events: BTreeMap<(Time, u64), Event>,
    last_event: u64,
    free_at: Time,
    /// The number of commands that have left, counting each copy.
    sent: u64,
}

impl World {
    fn new(seed: u64, sessions: u64, commands: u64, faults: Faults) -> World {
        let proposer = Proposer::new(ProposerSettings {
            deployment: Deployment {
                cluster: 7,
                group: 1,
                partitions: 1,
                max_value: 1024,
                node: 0,
            },
            retry_after: RETRY,
            ask_after: 1_000_000 * RETRY,
            nonce: 99 + seed,
            max_open_values: 64,
        });
        World {
            rng: Rng::new(seed),
            faults,
            service: SERVICE,
            commands,
            proposer,
            sessions: (1..=sessions).map(|id| (id, Session::default())).collect(),
            now: 0,
            events: BTreeMap::new(),
            last_event: 0,
            free_at: 0,
            sent: 0,
        }
    }

    /// Runs until every session has an answer to each of its commands.
    fn run(&mut self) {
        loop {
            self.submit();
            let mut out = Sent::default();
            self.proposer.tick(self.now, &mut out);
            let sent = out.0.into_iter();
            sent.for_each(|(_, header, value)| self.leaves(header, value));
            if self.sessions.values().all(|s| s.done == self.commands) {
                return;
            }
            let next = self.events.first_key_value().map(|((at, _), _)| *at);
            let due = next.into_iter().chain(self.proposer.next_deadline());
            self.now = due.min().expect("something is in flight");
            assert!(self.now < 1_000_000 * MILLISECOND, "it never ends");
            while let Some(event) = self.events.first_entry() {
                if event.key().0 > self.now {
                    break;
                }
                match event.remove() {
                    Event::Arrives(header, value) => self.arrives(&header, &value),
                    Event::Returns(header, value) => self.returns(header, &value),
                }
            }
        }
    }

    fn submit(&mut self) {
        for (id, session) in &mut self.sessions {
            while session.submitted < self.commands && session.submitted < session.done + WINDOW {
                session.submitted += 1;
                let len = if session.submitted % 3 == 0 { 180 } else { 20 };
                let submitted = self
                    .proposer
                    .submit(0, *id, session.submitted, &vec![7; len]);
                submitted.unwrap();
            }
        }
    }

    fn at(&mut self, time: Time, event: Event) {
        self.last_event += 1;
        self.events.insert((time, self.last_event), event);
    }

    fn leaves(&mut self, header: Header, value: Vec<u8>) {
        self.sent += commands(&header, &value).len() as u64;
        let f = self.faults;
        if self.rng.percent(f.lost) {
            return;
        }
        if self.rng.percent(f.refused) {
            return self.refuse(&header);
        }
        let mut takes = WAY;
        if self.rng.percent(f.delayed) {
            takes += self.rng.below(MILLISECOND);
        }
        if self.rng.percent(f.repeated) {
            self.at(self.now + takes, Event::Arrives(header, value.clone()));
        }
        self.at(self.now + takes, Event::Arrives(header, value));
    }

    fn refuse(&mut self, header: &Header) {
        let (header, rejection) = refused(header, Reason::Window);
        let returns = Event::Returns(header, rejection.to_vec());
        self.at(self.now + 2 * WAY, returns);
    }

    fn arrives(&mut self, header: &Header, value: &[u8]) {
        self.free_at = self.now.max(self.free_at) + self.service;
        let mut answers = Vec::new();
        for (client, request) in commands(header, value) {
            let session = self.sessions.get_mut(&client).unwrap();
            let is_early = request > session.executed + 1;
            session.executed = session.executed.max(if is_early { 0 } else { request });
            let bytes = &[if is_early { STATUS_OUT_OF_ORDER } else { 0 }][..];
            let answer = PackedItem {
                client,
                request,
                bytes,
            };
            append_packed(&mut answers, &answer);
        }
        if !self.rng.percent(self.faults.lost_answers) {
            let header = Header {
                msgtype: MsgType::Reply,
                flags: Flags::PACKED,
                value_len: answers.len() as u16,
                ..*header
            };
            self.at(self.free_at + WAY, Event::Returns(header, answers));
        }
    }

    fn returns(&mut self, header: Header, value: &[u8]) {
        let datagram = header.datagram(value);
        let packet = Packet::parse(&datagram).unwrap();
        let mut ended = Vec::new();
        let _ = self
            .proposer
            .step(self.now, &packet, &mut |client, request, _| {
                ended.push((client, request));
            });
        for (client, request) in ended {
            let session = self.sessions.get_mut(&client).unwrap();
            assert!(session.answered.insert(request), "answered twice");
            while session.answered.contains(&(session.done + 1)) {
                session.done += 1;
            }
        }
    }
}

/// Returns the (client, request) of the commands in a REQUEST.
fn commands(header: &Header, value: &[u8]) -> Vec<(u64, u64)> {
    if header.flags.has(Flags::PACKED) {
        let items = packed_items(value).map(|item| item.unwrap());
        items.map(|item| (item.client, item.request)).collect()
    } else {
        vec![(header.client, header.request)]
    }
}

/// A third of all packets is lost, late or refused, and each makes what follows it in its session
/// come too early. Without such faults it takes 3 ms with one session, and 24 ms with eight.
/// [P-EARLY]
#[test]
fn a_lost_value_costs_an_ordered_session_a_few_round_trips() {
    const COMMANDS: u64 = 1_200;
    for (seed, sessions) in (1..=5).flat_map(|seed| [(seed, 1), (seed, 8)]) {
        for lost_answers in [0, 10] {
            let faults = Faults {
                lost_answers,
                ..BAD_NETWORK
            };
            let mut world = World::new(seed, sessions, COMMANDS, faults);
            world.run();
            let (takes, copies) = (world.now, world.sent);
            assert!(takes < 200 * MILLISECOND, "{takes} ns, seed {seed}");
            assert!(copies < 3 * sessions * COMMANDS, "{copies}, seed {seed}");
        }
    }
}

/// No packet is lost, so hardly any leaves twice. [P-OVERTAKEN] [P-WAIT]
#[test]
fn what_a_slow_log_answers_late_is_not_taken_for_lost() {
    const COMMANDS: u64 = 1_200;
    for (sessions, ms) in [1, 8].into_iter().flat_map(|n| [(n, 1), (n, 3), (n, 10)]) {
        let mut world = World::new(7, sessions, COMMANDS, Faults::default());
        world.service = ms * MILLISECOND;
        world.run();
        let (sent, all) = (world.sent, sessions * COMMANDS);
        assert!(
            5 * sent < 6 * all,
            "{sent} of {all}, {sessions} sessions, {ms} ms"
        );
    }
}
