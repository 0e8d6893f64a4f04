// SPDX-License-Identifier: Apache-2.0
//! The proposer: packing, retries, back-pressure.

mod retries;

use std::collections::{BTreeMap, BTreeSet};

use paxos::outbox::Sent;
use paxos::proposer::{Refused, STATUS_DEAD, STATUS_OUT_OF_ORDER};
use paxos::wire::value::{PackedItem, Vector, append_packed, packed_items};
use paxos::{
    Deployment, Flags, Header, MsgType, Packet, PartitionId, Proposer, ProposerSettings, Reason,
    Round, Time, To, Verdict,
};
use test_world::Rng;
use test_world::cluster::refused;

const NONCE: u64 = 99;
const RETRY: Time = 1000;
/// A time that is longer than any first waiting time.
const LATE: Time = 2 * RETRY;

fn settings() -> ProposerSettings {
    ProposerSettings {
        deployment: Deployment {
            cluster: 7,
            group: 1,
            partitions: 2,
            max_value: 100,
            node: 0,
        },
        retry_after: RETRY,
        ask_after: 7 * RETRY,
        nonce: NONCE,
        max_open_values: 1000,
    }
}

type Answers = Vec<(u64, u64, Vec<u8>)>;

fn step(proposer: &mut Proposer, now: Time, header: Header, value: &[u8]) -> (Verdict, Answers) {
    let header = Header {
        cluster: 7,
        group: 1,
        ..header
    };
    let datagram = header.datagram(value);
    let packet = Packet::parse(&datagram).unwrap();
    let mut answers = Vec::new();
    let verdict = proposer.step(now, &packet, &mut |client, request, answer| {
        answers.push((client, request, answer.to_vec()));
    });
    (verdict, answers)
}

fn flush(proposer: &mut Proposer, now: Time) -> Vec<(Header, Vec<u8>)> {
    let mut out = Sent::default();
    proposer.flush(now, &mut out);
    requests(out)
}

fn tick(proposer: &mut Proposer, now: Time) -> Vec<(Header, Vec<u8>)> {
    let mut out = Sent::default();
    proposer.tick(now, &mut out);
    requests(out)
}

/// Checks the properties of every REQUEST, and returns them all.
fn requests(out: Sent) -> Vec<(Header, Vec<u8>)> {
    out.0
        .into_iter()
        .map(|(to, header, value)| {
            assert_eq!(to, To::Leader);
            assert_eq!(header.msgtype, MsgType::Request);
            assert!(value.len() <= 100);
            let datagram = header.datagram(&value);
            let packet = Packet::parse(&datagram).unwrap();
            assert_eq!(settings().deployment.check(&packet), Ok(()));
            (header, value)
        })
        .collect()
}

/// Returns the (client, request) of the commands in a REQUEST.
fn commands((header, value): &(Header, Vec<u8>)) -> Vec<(u64, u64)> {
    if header.flags.has(Flags::PACKED) {
        let items = packed_items(value).map(|item| item.unwrap());
        items.map(|item| (item.client, item.request)).collect()
    } else {
        vec![(header.client, header.request)]
    }
}

fn reply_to(pid: PartitionId, client: u64, request: u64) -> Header {
    Header {
        pid,
        client,
        request,
        ..Header::new(MsgType::Reply)
    }
}

#[test]
fn one_command_goes_as_it_is_and_several_are_packed() {
    let mut proposer = Proposer::new(settings());
    proposer.submit(1, 5, 1, b"one").unwrap();
    let sent = flush(&mut proposer, 0);
    assert_eq!(sent.len(), 1);
    let (header, value) = &sent[0];
    assert_eq!((header.client, header.request, header.pid), (5, 1, 1));
    assert_eq!((header.flags, value.as_slice()), (Flags::NONE, &b"one"[..]));
    assert!(flush(&mut proposer, 0).is_empty());

    proposer.submit(1, 5, 2, b"two").unwrap();
    proposer.submit(0, 5, 2, b"elsewhere").unwrap();
    proposer.submit(1, 6, 1, b"").unwrap();
    let sent = flush(&mut proposer, 0);
    assert_eq!(commands(&sent[0]), [(5, 2)]);
    assert_eq!(sent[0].0.pid, 0);
    assert_eq!(commands(&sent[1]), [(5, 2), (6, 1)]);
    assert_eq!(sent[1].0.client, NONCE);
    assert_eq!(proposer.outstanding(), 4);
}

#[test]
fn packs_are_as_large_as_a_value_and_keep_the_order() {
    let mut proposer = Proposer::new(settings());
    for request in 1..=9 {
        proposer.submit(0, 5, request, &[7; 22]).unwrap();
    }
    let sent = flush(&mut proposer, 0);
    let all: Vec<_> = sent.iter().flat_map(commands).map(|c| c.1).collect();
    assert_eq!(all, (1..=9).collect::<Vec<_>>());
    // Two items of 40 bytes fit a value of 100.
    assert_eq!(sent.len(), 5);
    let names: BTreeSet<_> = sent.iter().map(|(h, _)| (h.client, h.request)).collect();
    assert_eq!(names.len(), 5);
}

#[test]
fn what_can_not_be_proposed_is_refused() {
    let mut proposer = Proposer::new(settings());
    let too_large = Err(Refused::TooLarge { max: 100 });
    assert_eq!(proposer.submit(0, 5, 1, &[0; 101]), too_large);
    assert_eq!(proposer.submit(2, 5, 1, b""), Err(Refused::Invalid));
    assert_eq!(proposer.submit(0, 0, 1, b""), Err(Refused::Invalid));
    assert_eq!(proposer.submit(0, 5, 1, &[0; 100]), Ok(()));
    assert_eq!(proposer.submit(0, 5, 1, b"x"), Err(Refused::Outstanding));
    let multi = |p: &mut Proposer, pids: &[u16], len| p.submit_multi(pids, 5, 9, &vec![0; len]);
    for pids in [&[][..], &[1, 0], &[0, 0], &[0, 2]] {
        assert_eq!(multi(&mut proposer, pids, 1), Err(Refused::Invalid));
    }
    let too_large = Err(Refused::TooLarge { max: 74 });
    assert_eq!(multi(&mut proposer, &[0, 1], 75), too_large);
    assert_eq!(multi(&mut proposer, &[0, 1], 74), Ok(()));
    assert_eq!(proposer.outstanding(), 2);
}

#[test]
fn a_command_over_several_partitions_goes_alone_with_room_for_its_vector() {
    let mut proposer = Proposer::new(settings());
    proposer.submit(0, 5, 1, b"a").unwrap();
    proposer.submit_multi(&[0, 1], 5, 2, b"both").unwrap();
    proposer.submit(0, 5, 3, b"b").unwrap();
    proposer.submit(0, 5, 4, b"c").unwrap();
    let sent = flush(&mut proposer, 0);
    let all: Vec<_> = sent.iter().map(commands).collect();
    assert_eq!(all, [vec![(5, 1)], vec![(5, 2)], vec![(5, 3), (5, 4)]]);
    let (header, value) = &sent[1];
    assert_eq!((header.flags, header.pid), (Flags::MULTI, 0));
    let vector = Vector::parse(value).unwrap();
    assert_eq!(vector.iter().collect::<Vec<_>>(), [(0, 0), (1, 0)]);
    assert_eq!((vector.round, vector.command), (Round::NONE, &b"both"[..]));
    assert!(proposer.reply(0, 5, 2));
}

#[test]
fn a_reply_ends_a_command_once() {
    let mut proposer = Proposer::new(settings());
    proposer.submit(1, 5, 1, b"x").unwrap();
    flush(&mut proposer, 0);
    let elsewhere = step(&mut proposer, 0, reply_to(0, 5, 1), b"\0ok");
    assert_eq!(elsewhere.0, Verdict::Dropped(Reason::Unexpected));
    let (verdict, answers) = step(&mut proposer, 0, reply_to(1, 5, 1), b"\0ok");
    assert_eq!(verdict, Verdict::Changed);
    assert_eq!(answers, [(5, 1, b"\0ok".to_vec())]);
    let (verdict, answers) = step(&mut proposer, 0, reply_to(1, 5, 1), b"\0ok");
    assert_eq!(verdict, Verdict::Dropped(Reason::Unexpected));
    assert!(answers.is_empty());
    assert_eq!((proposer.outstanding(), proposer.open_values()), (0, 0));
    assert_eq!(proposer.next_deadline(), None);
    assert!(tick(&mut proposer, Time::MAX).is_empty());
}

/// If one command of a value was answered, only the others are sent again. [P-AGAIN]
#[test]
fn an_answered_neighbour_does_not_travel_again() {
    let mut proposer = Proposer::new(settings());
    for request in 1..=3 {
        proposer.submit(0, 5, request, b"x").unwrap();
    }
    let first = flush(&mut proposer, 0);
    assert_eq!(first.len(), 1);
    let mut value = Vec::new();
    for request in [2, 8] {
        let item = PackedItem {
            client: 5,
            request,
            bytes: b"\0",
        };
        append_packed(&mut value, &item);
    }
    let header = Header {
        flags: Flags::PACKED,
        ..reply_to(0, NONCE, 1)
    };
    let (verdict, answers) = step(&mut proposer, 1, header, &value);
    assert_eq!(verdict, Verdict::Changed);
    assert_eq!(answers, [(5, 2, b"\0".to_vec())]);
    let deadline = proposer.next_deadline().unwrap();
    assert!(tick(&mut proposer, deadline - 1).is_empty());
    let again = tick(&mut proposer, deadline);
    assert_eq!(commands(&again[0]), [(5, 1), (5, 3)]);
    // The commands leave in a new pack, since no acceptor may see one name with two values.
    assert_ne!(again[0].0.request, first[0].0.request);
    // The last command that is left goes under its own name.
    assert!(proposer.reply(0, 5, 1));
    let last = tick(&mut proposer, deadline + 10 * LATE);
    assert_eq!((last[0].0.client, last[0].0.request), (5, 3));
}

#[test]
fn malformed_replies_change_nothing() {
    let mut proposer = Proposer::new(settings());
    proposer.submit(0, 5, 1, b"x").unwrap();
    flush(&mut proposer, 0);
    let mut no_status = Vec::new();
    for bytes in [&b"\0"[..], b""] {
        let item = PackedItem {
            client: 5,
            request: 1,
            bytes,
        };
        append_packed(&mut no_status, &item);
    }
    let packed = Header {
        flags: Flags::PACKED,
        ..reply_to(0, 5, 1)
    };
    for (header, value) in [
        (reply_to(0, 5, 1), &b""[..]),
        (packed, b""),
        (packed, &no_status),
        (packed, &no_status[..20]),
        (packed, b"\xff\xff"),
        (
            Header {
                msgtype: MsgType::Reject,
                ..reply_to(0, 5, 1)
            },
            b"x",
        ),
    ] {
        let (verdict, answers) = step(&mut proposer, 0, header, value);
        assert_eq!(verdict, Verdict::Dropped(Reason::BadValue));
        assert!(answers.is_empty());
    }
    let other = Header::new(MsgType::Deliver);
    let (verdict, _) = step(&mut proposer, 0, Header { client: 1, ..other }, b"x");
    assert_eq!(verdict, Verdict::Dropped(Reason::NotForRole));
    assert_eq!(proposer.outstanding(), 1);
}

/// An answer `out_of_order` doesn't count as an answer; the command is sent again. [P-AGAIN]
#[test]
fn out_of_order_is_no_answer() {
    let mut proposer = Proposer::new(settings());
    proposer.submit(0, 5, 2, b"x").unwrap();
    flush(&mut proposer, 0);
    let (_, answers) = step(&mut proposer, 0, reply_to(0, 5, 2), &[STATUS_OUT_OF_ORDER]);
    assert!(answers.is_empty());
    assert_eq!(commands(&tick(&mut proposer, LATE)[0]), [(5, 2)]);
    let (_, answers) = step(&mut proposer, 0, reply_to(0, 5, 2), &[0]);
    assert_eq!(answers.len(), 1);
}

/// Returns the (client, request) of all commands that a tick sends.
fn leaves(proposer: &mut Proposer, now: Time) -> Vec<(u64, u64)> {
    tick(proposer, now).iter().flat_map(commands).collect()
}

fn too_early(proposer: &mut Proposer, now: Time, request: u64) -> Verdict {
    let header = reply_to(0, 5, request);
    let (verdict, answers) = step(proposer, now, header, &[STATUS_OUT_OF_ORDER]);
    assert!(answers.is_empty());
    verdict
}

/// Holds the commands of an ordered session after its first value was lost. [P-EARLY]
#[test]
fn what_came_too_early_waits_for_the_commands_before_it() {
    let mut proposer = Proposer::new(settings());
    for request in 1..=5 {
        proposer.submit(0, 5, request, &[b'x'; 70]).unwrap();
    }
    assert_eq!(flush(&mut proposer, 0).len(), 5);
    // Each of these was too early, so it was decided, and the value before it was lost.
    for request in 2..=5 {
        assert_eq!(too_early(&mut proposer, 10, request), Verdict::Changed);
    }
    assert_eq!(leaves(&mut proposer, 10), [(5, 1)]);
    // A further command of the session would come too early, too, but one of another session
    // wouldn't.
    proposer.submit(0, 5, 6, b"x").unwrap();
    proposer.submit(0, 6, 1, b"x").unwrap();
    assert_eq!(leaves(&mut proposer, 11), [(6, 1)]);
    // A repeated answer changes nothing.
    let unexpected = Verdict::Dropped(Reason::Unexpected);
    assert_eq!(too_early(&mut proposer, 12, 5), unexpected);
    // Whatever may be lost meanwhile, these commands aren't.
    assert_eq!(leaves(&mut proposer, LATE), [(5, 1)]);
    for (request, followers) in [
        (1, &[2, 3][..]),
        (2, &[4, 5]),
        (3, &[6]),
        (4, &[]),
        (5, &[]),
    ] {
        // This answer to the first copy is late by an hour.
        if request > 1 {
            assert_eq!(too_early(&mut proposer, LATE, request), unexpected);
        }
        let (_, answers) = step(&mut proposer, LATE, reply_to(0, 5, request), &[0]);
        assert_eq!(answers.len(), 1);
        let again: Vec<_> = leaves(&mut proposer, LATE);
        let again: Vec<_> = again.iter().filter(|c| c.0 == 5).map(|c| c.1).collect();
        assert_eq!(again, followers, "after {request}");
    }
    assert!(proposer.reply(0, 5, 6) && proposer.reply(0, 6, 1));
    assert_eq!((proposer.outstanding(), proposer.open_values()), (0, 0));
    assert_eq!(proposer.next_deadline(), None);
}

/// The caller may give up any of the held commands. [P-EARLY]
#[test]
fn what_waits_for_a_command_that_is_given_up_waits_no_longer() {
    let mut proposer = Proposer::new(settings());
    for request in 1..=4 {
        proposer.submit(0, 5, request, &[b'x'; 70]).unwrap();
    }
    flush(&mut proposer, 0);
    for request in 2..=4 {
        let _ = too_early(&mut proposer, 10, request);
    }
    assert!(proposer.reply(0, 5, 3) && proposer.reply(0, 5, 1));
    assert_eq!(leaves(&mut proposer, 10), [(5, 2), (5, 4)]);
}

/// Commands are sent again in order; otherwise all that follow one in their session would come too
/// early again. [P-AGAIN]
#[test]
fn what_leaves_again_leaves_in_the_order_in_which_it_was_submitted() {
    let mut proposer = Proposer::new(settings());
    for request in 1..=4 {
        proposer.submit(0, 5, request, &[b'x'; 70]).unwrap();
    }
    flush(&mut proposer, 0);
    let due = proposer.next_deadline().unwrap();
    assert_eq!(leaves(&mut proposer, due).len(), 1, "alone");
    proposer.submit(0, 6, 1, &[b'x'; 70]).unwrap();
    flush(&mut proposer, due);
    let (_, answers) = step(&mut proposer, due + 10, reply_to(0, 6, 1), &[0]);
    assert_eq!(answers.len(), 1);
    // The copy leaves in order, too, although it left last.
    let again = leaves(&mut proposer, due + 10);
    assert_eq!(again, [(5, 1), (5, 2), (5, 3), (5, 4)]);
}

/// The wait doubles until something that was sent once is answered, also beside copies. [P-WAIT]
#[test]
fn a_command_that_was_sent_once_shows_how_long_answers_take_also_beside_copies() {
    let mut proposer = Proposer::new(settings());
    proposer.submit(0, 5, 1, b"x").unwrap();
    flush(&mut proposer, 0);
    for _ in 0..4 {
        let due = proposer.next_deadline().unwrap();
        assert_eq!(leaves(&mut proposer, due), [(5, 1)]);
    }
    let mut now = proposer.next_deadline().unwrap();
    proposer.submit(0, 5, 2, b"x").unwrap();
    assert_eq!(leaves(&mut proposer, now), [(5, 1), (5, 2)]);
    for request in 1..=2 {
        let header = reply_to(0, 5, request);
        assert_eq!(step(&mut proposer, now + 100, header, &[0]).1.len(), 1);
    }
    now += 100;
    proposer.submit(0, 5, 3, b"x").unwrap();
    flush(&mut proposer, now);
    let wait = proposer.next_deadline().unwrap() - now;
    assert!(wait <= RETRY + RETRY / 2, "{wait}");
}

#[test]
fn under_load_commands_wait_and_pack() {
    let mut proposer = Proposer::new(ProposerSettings {
        max_open_values: 1,
        ..settings()
    });
    proposer.submit(0, 5, 1, b"x").unwrap();
    assert_eq!(flush(&mut proposer, 0).len(), 1);
    for request in 2..=4 {
        proposer.submit(0, 5, request, b"x").unwrap();
        assert!(flush(&mut proposer, 0).is_empty());
    }
    // Another partition has a log, and room, of its own.
    proposer.submit(1, 5, 1, b"x").unwrap();
    assert_eq!(flush(&mut proposer, 0).len(), 1);
    assert!(proposer.reply(0, 5, 1));
    // A command that is given up while it waits is not sent at all.
    assert!(proposer.reply(0, 5, 3));
    let sent = flush(&mut proposer, 0);
    assert_eq!(commands(&sent[0]), [(5, 2), (5, 4)]);
    assert_eq!(sent.len(), 1);
    // The value makes room only once all of it is answered.
    proposer.submit(0, 5, 5, b"x").unwrap();
    assert!(proposer.reply(0, 5, 2));
    assert!(flush(&mut proposer, 0).is_empty());
    assert!(proposer.reply(0, 5, 4));
    assert_eq!(flush(&mut proposer, 0).len(), 1);
}

/// Answers in small portions, as they come if commands are spread over partitions, don't lead to
/// ever smaller values.
#[test]
fn what_would_leave_in_small_values_waits_for_the_answer_to_one() {
    let mut proposer = Proposer::new(settings());
    let half = usize::from(settings().deployment.max_value) / 2;
    for request in 1..=3 {
        proposer.submit(0, 5, request, b"x").unwrap();
        assert_eq!(flush(&mut proposer, 0).len(), usize::from(request < 3));
    }
    // Another partition isn't affected, and a partition with more to send doesn't wait.
    proposer.submit(1, 5, 1, b"x").unwrap();
    assert_eq!(flush(&mut proposer, 0).len(), 1);
    proposer.submit(0, 5, 4, &vec![0; half]).unwrap();
    let sent = flush(&mut proposer, 0);
    assert_eq!(commands(&sent[0]), [(5, 3), (5, 4)]);
    // Commands over several partitions don't wait either, since they share no value.
    proposer.submit_multi(&[0, 1], 5, 5, b"x").unwrap();
    assert_eq!(flush(&mut proposer, 0).len(), 1);
    // A value that was sent before an answered one isn't waited for, since it may be lost.
    proposer.submit(0, 5, 6, b"x").unwrap();
    assert_eq!(flush(&mut proposer, 0).len(), 0);
    assert!(proposer.reply(0, 5, 3));
    for request in 7..=9 {
        assert_eq!(flush(&mut proposer, 0).len(), usize::from(request < 9));
        proposer.submit(0, 5, request, b"x").unwrap();
    }
    // When the value is sent again, it is treated like any other.
    let mut out = Sent::default();
    proposer.leader_changed(LATE, &mut out);
    let all: Vec<_> = requests(out).iter().flat_map(commands).collect();
    assert_eq!(all.len(), 9, "{all:?}");
}

/// Datagrams of one size cost a network of sockets hardly more than one of them. So the proposer
/// sends neither a full value and a small rest, nor another size for each partition.
#[test]
fn what_leaves_at_once_leaves_in_values_of_one_size() {
    let mut proposer = Proposer::new(settings());
    let sizes = |sent: Vec<(Header, Vec<u8>)>| -> Vec<_> {
        sent.iter().map(|request| commands(request).len()).collect()
    };
    // Five commands fit a value.
    for request in 1..=6 {
        for pid in 0..2 {
            proposer.submit(pid, 5, request, b"x").unwrap();
        }
    }
    assert_eq!(sizes(flush(&mut proposer, 0)), [3, 3, 3, 3]);
    // The last value may be shorter, and there are no more values than needed.
    for request in 7..=19 {
        proposer.submit(0, 5, request, b"x").unwrap();
    }
    assert_eq!(sizes(flush(&mut proposer, 0)), [5, 5, 3]);
    // Less than a value of commands leaves as before.
    for request in 20..=23 {
        proposer.submit(0, 5, request, b"x").unwrap();
    }
    assert_eq!(sizes(flush(&mut proposer, 0)), [4]);
}

/// Runs against a network that loses most packets: every command is answered exactly once, under
/// its own name, and the slots of forgotten commands are never mistaken for others.
#[test]
fn every_command_is_answered_once_over_a_bad_network() {
    for seed in 1..200u64 {
        let mut rng = Rng::new(seed);
        let mut proposer = Proposer::new(ProposerSettings {
            max_open_values: 1 + rng.below(4) as usize,
            ..settings()
        });
        let mut waiting: BTreeMap<(u64, u64), Vec<u8>> = BTreeMap::new();
        let mut old_replies: Vec<(u64, u64)> = Vec::new();
        let mut names: BTreeMap<(u64, u64), Vec<u8>> = BTreeMap::new();
        let (mut now, mut next) = (0, 1);
        while next <= 60 || !waiting.is_empty() {
            assert!(now < 100_000 * RETRY, "seed {seed} never ends");
            now += rng.below(RETRY);
            for _ in 0..rng.below(6) {
                if next <= 60 {
                    let command = vec![next as u8; rng.below(90) as usize];
                    let client = 1 + next % 3;
                    proposer.submit(0, client, next, &command).unwrap();
                    waiting.insert((client, next), command);
                    next += 1;
                }
            }
            let mut sent = tick(&mut proposer, now);
            sent.extend(flush(&mut proposer, now));
            for request in sent {
                let (header, value) = &request;
                if header.flags.has(Flags::PACKED) {
                    let name = (header.client, header.request);
                    assert_eq!(names.insert(name, value.clone()), None);
                    for item in packed_items(value) {
                        let item = item.unwrap();
                        assert_eq!(waiting[&(item.client, item.request)], item.bytes);
                    }
                } else {
                    assert_eq!(waiting[&(header.client, header.request)], *value);
                }
                for (client, request) in commands(&request) {
                    if rng.below(3) == 0 {
                        old_replies.push((client, request));
                    }
                }
            }
            for _ in 0..rng.below(4) {
                if old_replies.is_empty() {
                    break;
                }
                let at = rng.below(old_replies.len() as u64) as usize;
                let (client, request) = old_replies[at];
                let header = reply_to(0, client, request);
                let (_, answers) = step(&mut proposer, now, header, b"\0");
                let expected = waiting.remove(&(client, request)).is_some();
                assert_eq!(answers.len(), usize::from(expected));
            }
            assert_eq!(proposer.outstanding(), waiting.len());
        }
        assert_eq!((proposer.outstanding(), proposer.open_values()), (0, 0));
        assert_eq!(proposer.next_deadline(), None);
    }
}
