// SPDX-License-Identifier: Apache-2.0
//! The proposer over networks that lose packets: how long it waits, and how much it sends.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use paxos::outbox::Sent;
use paxos::{Deployment, Header, MsgType, Packet, PartitionId, Proposer, ProposerSettings, Time};
use test_world::Rng;

const MICROSECOND: Time = 1_000;
const MILLISECOND: Time = 1_000 * MICROSECOND;
const RETRY: Time = 50 * MILLISECOND;
const ROUND_TRIP: Time = 100 * MICROSECOND;
/// The time by which packets may overtake each other, once they have.
const REORDERING: Time = ROUND_TRIP / 4;

fn proposer() -> Proposer {
    proposer_of(99)
}

fn proposer_of(nonce: u64) -> Proposer {
    Proposer::new(ProposerSettings {
        deployment: Deployment {
            cluster: 7,
            group: 1,
            partitions: 2,
            max_value: 100,
            node: 0,
        },
        retry_after: RETRY,
        ask_after: 10 * RETRY,
        nonce,
        max_open_values: 1_000,
    })
    .without_packing()
}

/// Sends a command at `now`.
fn send(proposer: &mut Proposer, now: Time, pid: PartitionId, request: u64) {
    proposer.submit(pid, 5, request, b"x").unwrap();
    let mut out = Sent::default();
    proposer.flush(now, &mut out);
    assert_eq!(requests(out), [(pid, request)]);
}

fn requests(out: Sent) -> Vec<(PartitionId, u64)> {
    let sent = out.0.into_iter();
    sent.map(|(_, header, _)| (header.pid, header.request))
        .collect()
}

/// Returns the requests of partition 0 that leave by a tick at `now`.
fn tick(proposer: &mut Proposer, now: Time) -> Vec<u64> {
    let mut out = Sent::default();
    proposer.tick(now, &mut out);
    let of_first = requests(out).into_iter().filter(|(pid, _)| *pid == 0);
    of_first.map(|(_, request)| request).collect()
}

fn answer(proposer: &mut Proposer, now: Time, pid: PartitionId, request: u64) {
    let header = Header {
        cluster: 7,
        group: 1,
        pid,
        client: 5,
        request,
        ..Header::new(MsgType::Reply)
    };
    let datagram = header.datagram(b"\0");
    let _ = proposer.step(now, &Packet::parse(&datagram).unwrap(), &mut |_, _, _| {});
}

/// Returns a proposer whose answers have always taken a round trip.
fn acquainted() -> (Proposer, Time) {
    let mut proposer = proposer();
    let mut now = 0;
    for request in 1_000..1_100 {
        for pid in 0..2 {
            send(&mut proposer, now, pid, request);
            answer(&mut proposer, now + ROUND_TRIP, pid, request);
        }
        now += ROUND_TRIP;
    }
    (proposer, now)
}

/// If a later answer shows that a value was lost, the value is sent again at once. [P-OVERTAKEN]
#[test]
fn what_a_later_answer_shows_to_be_lost_leaves_again_at_once() {
    let (mut proposer, start) = acquainted();
    for request in 1..=4 {
        send(&mut proposer, start + request, 0, request);
    }
    send(&mut proposer, start, 1, 1);
    let answered_at = start + ROUND_TRIP + 3;
    answer(&mut proposer, answered_at, 0, 3);
    // Command 4 left later, and another partition has a log of its own.
    assert_eq!(proposer.next_deadline(), Some(answered_at));
    assert_eq!(tick(&mut proposer, answered_at), [1, 2]);
    assert!(tick(&mut proposer, answered_at + ROUND_TRIP).is_empty());
}

/// If a value that seemed lost was only late, others wait for a while. [P-OVERTAKEN]
#[test]
fn where_packets_overtake_each_other_there_is_more_patience() {
    let (mut proposer, start) = acquainted();
    send(&mut proposer, start, 0, 1);
    send(&mut proposer, start, 0, 2);
    let mut now = start + ROUND_TRIP;
    answer(&mut proposer, now, 0, 2);
    assert_eq!(tick(&mut proposer, now), [1]);
    answer(&mut proposer, now + 1, 0, 1);
    // Now all other values are late, too, and none is sent twice.
    for request in 3..30 {
        send(&mut proposer, now, 0, 2 * request);
        send(&mut proposer, now, 0, 2 * request + 1);
        now += ROUND_TRIP;
        answer(&mut proposer, now, 0, 2 * request + 1);
        let late = proposer.next_deadline().unwrap() - 1;
        assert!((now + REORDERING / 2..now + ROUND_TRIP / 2).contains(&late));
        assert!(tick(&mut proposer, late).is_empty());
        answer(&mut proposer, late, 0, 2 * request);
    }
    // The loss of later values ends this patience.
    let mut again = 0;
    for request in 30..60 {
        send(&mut proposer, now, 0, 2 * request);
        send(&mut proposer, now, 0, 2 * request + 1);
        now += ROUND_TRIP;
        answer(&mut proposer, now, 0, 2 * request + 1);
        again += tick(&mut proposer, now).len();
        now += ROUND_TRIP;
        again += tick(&mut proposer, now).len();
        now += ROUND_TRIP;
        answer(&mut proposer, now, 0, 2 * request);
    }
    assert_eq!(again, 30);
    send(&mut proposer, now, 0, 1);
    send(&mut proposer, now, 0, 2);
    answer(&mut proposer, now + ROUND_TRIP, 0, 2);
    assert_eq!(tick(&mut proposer, now + ROUND_TRIP), [1]);
}

/// A command that was given up doesn't make another value count as lost. [P-OVERTAKEN]
#[test]
fn what_is_given_up_shows_nothing() {
    let (mut proposer, start) = acquainted();
    send(&mut proposer, start, 0, 1);
    send(&mut proposer, start, 0, 2);
    assert!(proposer.reply(0, 5, 2));
    assert!(tick(&mut proposer, start + ROUND_TRIP).is_empty());
}

/// A command that is never answered, of an expired session, say, doesn't leave again with each
/// answer to others. [P-OVERTAKEN]
#[test]
fn what_is_overtaken_again_and_again_leaves_ever_more_seldom() {
    let (mut proposer, start) = acquainted();
    let (mut now, mut times) = (start, Vec::new());
    send(&mut proposer, now, 0, 1);
    for request in 2..20_000 {
        send(&mut proposer, now + 1, 0, request);
        now += ROUND_TRIP;
        answer(&mut proposer, now, 0, request);
        let again = tick(&mut proposer, now);
        assert!(again.iter().all(|request| *request == 1));
        times.extend(again.iter().map(|_| (now - start) / ROUND_TRIP));
    }
    // Two seconds are 20,000 round trips. Each copy waits four times as long as the one before.
    assert!((5..=9).contains(&times.len()), "{times:?}");
    assert!(
        times.windows(2).skip(2).all(|t| t[1] > 2 * t[0]),
        "{times:?}"
    );
}

/// Without any answer only one value at a time is sent again. [P-WAIT]
#[test]
fn without_any_answer_one_value_alone_leaves_again() {
    let (mut proposer, start) = acquainted();
    for request in 1..=20 {
        send(&mut proposer, start + request, 0, request);
    }
    let (mut now, mut times) = (start, Vec::new());
    while now < start + 2_000 * MILLISECOND {
        now = proposer.next_deadline().unwrap();
        let again = tick(&mut proposer, now);
        times.extend(again.into_iter().map(|request| (now - start, request)));
    }
    // The first command is sent again after a time that a thread may need, and all others in their
    // turn.
    assert!(
        times[0].0 >= MILLISECOND && times[0].0 < 2 * MILLISECOND,
        "{times:?}"
    );
    let order: Vec<u64> = times.iter().map(|(_, request)| *request).collect();
    assert!(order[1..].is_sorted(), "{order:?}");
    assert!((9..=12).contains(&times.len()), "{times:?}");
    // One of the values is answered, so those before it were lost, and are sent together.
    let copy = *order.last().unwrap();
    answer(&mut proposer, now + ROUND_TRIP, 0, copy);
    let again = tick(&mut proposer, now + ROUND_TRIP + RETRY * 32);
    assert_eq!(again.len(), 19);
}

/// An answer may belong to the first copy, however late, and says nothing of the time that answers
/// take. [P-WAIT]
#[test]
fn the_answer_to_a_copy_is_no_sample() {
    let (mut proposer, start) = acquainted();
    send(&mut proposer, start, 0, 1);
    let due = proposer.next_deadline().unwrap();
    assert_eq!(tick(&mut proposer, due), [1]);
    // This answer comes sooner than any before it, so the first copy was slow and not lost.
    send(&mut proposer, due - 1, 0, 2);
    answer(&mut proposer, due + ROUND_TRIP / 2, 0, 1);
    assert!(
        tick(&mut proposer, due + ROUND_TRIP).is_empty(),
        "2 isn't overtaken"
    );
    send(&mut proposer, due + ROUND_TRIP, 0, 3);
    answer(&mut proposer, due + 2 * ROUND_TRIP, 0, 2);
    answer(&mut proposer, due + 2 * ROUND_TRIP, 0, 3);
    let now = due + 3 * ROUND_TRIP;
    send(&mut proposer, now, 0, 4);
    let wait = proposer.next_deadline().unwrap() - now;
    assert!(wait < 2 * MILLISECOND, "{wait}");
}

/// Returns how many copies leave of 50 commands, one after the other, whose answers take this long.
fn copies(mut proposer: Proposer, mut now: Time, answers_take: Time) -> usize {
    let mut copies = 0;
    for request in 1..=50 {
        send(&mut proposer, now, 0, request);
        let answered_at = now + answers_take;
        while proposer.next_deadline().unwrap() < answered_at {
            now = proposer.next_deadline().unwrap();
            copies += tick(&mut proposer, now).len();
        }
        now = answered_at;
        answer(&mut proposer, now, 0, request);
    }
    copies
}

/// If answers take longer than the first waiting time, or longer than they took before, they are
/// waited for. [P-WAIT]
#[test]
fn an_overload_is_no_loss() {
    let of_new = copies(proposer(), 0, 3 * RETRY);
    assert!(of_new <= 3, "{of_new}");
    let (proposer, now) = acquainted();
    let of_acquainted = copies(proposer, now, 200 * ROUND_TRIP);
    assert!(of_acquainted <= 7, "{of_acquainted}");
}

/// Returns the commands in a second of simulated time, with 64 in flight and a server that answers
/// in order. Every packet is lost with this probability, in millionths.
fn throughput(seed: u64, loss: u64) -> f64 {
    const COMMANDS: u64 = 50_000;
    const OUTSTANDING: usize = 64;
    let mut rng = Rng::new(seed);
    let mut proposer = proposer();
    // The answers that arrive at the client.
    let mut answers: BinaryHeap<Reverse<(Time, u64)>> = BinaryHeap::new();
    let (mut now, mut submitted, mut done) = (0, 0, 0);
    while done < COMMANDS {
        while submitted < COMMANDS && proposer.outstanding() < OUTSTANDING {
            submitted += 1;
            proposer.submit(0, 5, submitted, b"x").unwrap();
        }
        let mut out = Sent::default();
        proposer.tick(now, &mut out);
        for (_, request) in requests(out) {
            let mut arrives = || rng.below(1_000_000) >= loss;
            if arrives() && arrives() {
                let jitter = rng.below(10 * MICROSECOND);
                answers.push(Reverse((now + ROUND_TRIP + jitter, request)));
            }
        }
        let next = answers.peek().map(|Reverse((at, _))| *at);
        let due = proposer.next_deadline().into_iter().chain(next).min();
        now = due.expect("something is in flight");
        while let Some(Reverse((at, request))) = answers.peek().copied() {
            if at > now {
                break;
            }
            answers.pop();
            let before = proposer.outstanding();
            answer(&mut proposer, now, 0, request);
            done += (before - proposer.outstanding()) as u64;
        }
    }
    COMMANDS as f64 * 1e9 / now as f64
}

/// One lost packet costs about a round trip, not a timeout.
#[test]
fn a_network_that_loses_one_packet_of_a_hundred_costs_little() {
    for seed in 1..=5 {
        let (lossless, lossy) = (throughput(seed, 0), throughput(seed, 10_000));
        assert!(lossy > 0.9 * lossless, "{lossy} of {lossless}, seed {seed}");
    }
}

/// Clients with one command in flight each, and one server, which takes some time for each packet.
struct Crowd {
    service: Time,
    clients: Vec<Proposer>,
    /// The time at which each client is due.
    due: Vec<Time>,
    /// The events by time, client and request. Request 0 says that the client may be due.
    events: BinaryHeap<Reverse<(Time, usize, u64)>>,
    queued: usize,
    free_at: Time,
    served: u64,
    answered: u64,
}

impl Crowd {
    /// Returns clients that have all found the server idle, and then come at once.
    fn new(clients: usize, service: Time) -> Crowd {
        let acquainted = |n: usize| {
            let mut client = proposer_of(n as u64 + 1);
            send(&mut client, 0, 0, 1);
            answer(&mut client, service, 0, 1);
            client.submit(0, 5, 2, b"x").unwrap();
            client
        };
        Crowd {
            service,
            clients: (0..clients).map(acquainted).collect(),
            due: vec![service; clients],
            events: (0..clients).map(|n| Reverse((service, n, 0))).collect(),
            queued: 0,
            free_at: service,
            served: 0,
            answered: 0,
        }
    }

    fn step(&mut self) {
        let Reverse((now, n, request)) = self.events.pop().expect("something is in flight");
        match request {
            0 if now != self.due[n] => return,
            0 => {}
            _ => self.serve(now, n, request),
        }
        let mut out = Sent::default();
        let client = &mut self.clients[n];
        client.tick(now, &mut out);
        if client.needs_leader() {
            client.leader_confirmed(now, &mut out);
        }
        let due = client.next_deadline().expect("one is in flight");
        if due != std::mem::replace(&mut self.due[n], due) {
            self.events.push(Reverse((due, n, 0)));
        }
        for (_, request) in requests(out) {
            self.arrive(now, n, request);
        }
    }

    fn arrive(&mut self, now: Time, n: usize, request: u64) {
        /// The number of packets that a socket holds.
        const QUEUE: usize = 4_096;
        if self.queued < QUEUE {
            self.queued += 1;
            self.free_at = now.max(self.free_at) + self.service;
            self.events.push(Reverse((self.free_at, n, request)));
        }
    }

    fn serve(&mut self, now: Time, n: usize, request: u64) {
        (self.queued, self.served) = (self.queued - 1, self.served + 1);
        let client = &mut self.clients[n];
        answer(client, now, 0, request);
        if client.outstanding() == 0 {
            self.answered += 1;
            client.submit(0, 5, request + 1, b"x").unwrap();
        }
    }
}

/// Returns the share of first copies in what the server serves, until each client has 20 answers in
/// the mean.
fn share_of_first_copies(clients: usize, service: Time) -> f64 {
    let mut crowd = Crowd::new(clients, service);
    while crowd.answered < 20 * clients as u64 {
        crowd.step();
    }
    crowd.answered as f64 / crowd.served as f64
}

/// Clients that all wait for one server don't keep it from its work, even if each waits for longer
/// than until it asks who leads. [P-WAIT]
#[test]
fn a_crowd_does_not_send_the_same_again_and_again() {
    for service in [100 * MICROSECOND, MILLISECOND] {
        let share = share_of_first_copies(1_000, service);
        assert!(share > 0.7, "{share} where a packet takes {service} ns");
    }
}
