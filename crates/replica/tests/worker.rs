// SPDX-License-Identifier: Apache-2.0
//! Order, commit, checkpoints and catch-up of one worker. The test writes the log.

mod common;

use common::*;
use paxos::wire::value::{Probe, ProbeReport, emit_marker};
use paxos::{Flags, Header, Instance, MsgType, NodeId, Packet, Reason, Round, To, Verdict};
use replica::protocol::{ReplyAddress, SessionOp};
use replica::storage::Storage;
use replica::{Application, InMemory, Restored, Settings, Status, Worker};
use std::io::{self, Read};
use std::sync::{Arc, Mutex};

fn fed() -> Fed {
    Fed::new(settings(REPLICAS[0]))
}

// ---- Order

/// Values are executed in the order of instances, in whatever order they arrive. [X-ORDER]
#[test]
fn values_execute_in_instance_order_however_they_come() {
    let mut r = fed();
    let s = r.open(1, true, 16);
    let mut later: Vec<u64> = (1..=8).collect();
    later.reverse();
    for request in later {
        assert_eq!(r.worker.next(), 1);
        let verdict = r.decide(request, Flags::NONE, (s, request), &command(request));
        assert_eq!(verdict, Verdict::Changed);
        if request > 1 {
            let repeated = r.decide(request, Flags::NONE, (s, request), &command(request));
            assert_eq!(repeated, Verdict::Dropped(Reason::Duplicate));
            // Another value for a decided instance is a conflict. [D-CONFLICT]
            let other = r.decide(request, Flags::NONE, (s, request + 1), &command(request));
            assert_eq!(other, Verdict::Dropped(Reason::Conflict));
        }
    }
    let replies = r.finish();
    let order: Vec<u64> = replies.iter().map(|r| r.request).collect();
    assert_eq!(order, (1..=8).collect::<Vec<_>>());
    assert_eq!(
        r.decide(3, Flags::NONE, (s, 3), &command(3)),
        Verdict::Dropped(Reason::Stale)
    );
    assert_eq!(r.worker.waiting(), 0);
}

#[test]
fn values_beyond_the_buffer_are_dropped() {
    let mut r = fed();
    let length = r.settings.buffer as u64;
    assert_eq!(
        r.decide(length - 1, Flags::NOOP, (0, 0), &[]),
        Verdict::Changed
    );
    for inst in [length, u64::MAX] {
        let verdict = r.decide(inst, Flags::NOOP, (0, 0), &[]);
        assert_eq!(verdict, Verdict::Dropped(Reason::Window));
    }
    assert_eq!(r.worker.waiting(), 1);
}

/// A packet that isn't valid changes nothing. [M-REFUSE] [D-DELIVER]
#[test]
fn bad_packets_change_nothing() {
    let mut r = fed();
    let good = Header {
        client: 5,
        request: 1,
        ..deliver_header()
    };
    let typed = |msgtype| Header { msgtype, ..good };
    let bad = [
        (Header { cluster: 1, ..good }, Reason::WrongCluster),
        (Header { group: 2, ..good }, Reason::UnknownGroup),
        (Header { pid: 1, ..good }, Reason::UnknownPartition),
        (Header { swid: 98, ..good }, Reason::UnknownSender),
        (Header { client: 0, ..good }, Reason::BadSession),
        (
            Header {
                rnd: Round(7),
                ..good
            },
            Reason::BadRound,
        ),
        (
            Header {
                rnd: Round::base(2),
                ..good
            },
            Reason::UnknownEpoch,
        ),
        (typed(MsgType::Phase2a), Reason::NotForRole),
        (typed(MsgType::Request), Reason::NotForRole),
        (typed(MsgType::Trim), Reason::NotForRole),
        (typed(MsgType::Ordered), Reason::NotForRole),
        (typed(MsgType::StartView), Reason::NotForRole),
        (typed(MsgType::Read), Reason::NotForRole),
        (typed(MsgType::Phase2b), Reason::UnknownSender),
        (typed(MsgType::Phase1b), Reason::Unexpected),
        (typed(MsgType::Reject), Reason::Unexpected),
        (typed(MsgType::Probe), Reason::BadValue),
        (
            Header {
                flags: Flags::RANGE,
                ..typed(MsgType::Phase1b)
            },
            Reason::BadValue,
        ),
    ];
    for (header, reason) in bad {
        let datagram = header.datagram(&command(1));
        let packet = Packet::parse(&datagram).unwrap();
        let verdict = r.worker.step(0, &packet, &mut r.out);
        assert_eq!(verdict, Verdict::Dropped(reason), "{header:?}");
    }
    assert!(r.finish().is_empty() && r.out.sent.is_empty());
    assert_eq!((r.worker.next(), r.worker.waiting()), (0, 0));
    assert_eq!(r.disk.with(|d| d.commits), 0);
    assert_eq!(
        r.worker.wanted().view_with,
        Some(2),
        "but a later epoch is worth asking for"
    );
}

#[test]
fn a_probe_shows_what_is_committed_and_what_is_durable() {
    let mut r = fed();
    r.open(1, false, 8);
    r.worker.checkpoint(0).unwrap();
    r.give(1, Flags::NOOP, (0, 0), &[]);
    r.finish();
    r.out.sent.clear();
    r.give(2, Flags::NOOP, (0, 0), &[]);
    let question = Header {
        msgtype: MsgType::Probe,
        client: 8,
        request: 9,
        rnd: Round::NONE,
        vrnd: Round::NONE,
        ..deliver_header()
    };
    let datagram = question.datagram(&Probe::Replica.emit());
    let packet = Packet::parse(&datagram).unwrap();
    assert_eq!(r.worker.step(0, &packet, &mut r.out), Verdict::Answered);
    let (to, header, value) = r.out.sent.pop().unwrap();
    let report = ProbeReport::parse(&value).unwrap();
    assert_eq!((to, header.msgtype), (To::Sender, MsgType::ProbeAck));
    assert_eq!((header.inst, report.trim, report.nonce), (2, 1, 1));
    assert_eq!(
        (header.client, header.request, header.swid),
        (8, 9, REPLICAS[0])
    );
    assert!(header.rnd.is_none());
    for other in [Probe::Leader, Probe::Acceptor, Probe::Sequencer] {
        let datagram = question.datagram(&other.emit());
        let packet = Packet::parse(&datagram).unwrap();
        let verdict = r.worker.step(0, &packet, &mut r.out);
        assert_eq!(verdict, Verdict::Dropped(Reason::NotForRole));
    }
}

// ---- Commit

/// With `answers_wait` replies are sent only after the commit. [X-ATOMIC]
#[test]
fn replies_leave_only_after_the_commit() {
    let mut r = fed();
    let s = r.open(1, false, 8);
    for request in 1..=3 {
        r.give(request, Flags::NONE, (s, request), &command(request));
    }
    assert!(r.out.replies.is_empty());
    assert_eq!(r.worker.pending_replies(), 3);
    let commits = r.disk.with(|d| d.commits);
    assert_eq!(r.finish().len(), 3);
    assert_eq!(r.disk.with(|d| d.commits), commits + 1, "one for the batch");
    assert_eq!(r.disk.committed().tally.total, 3);
    assert!(r.finish().is_empty());
    assert_eq!(
        r.disk.with(|d| d.commits),
        commits + 1,
        "nothing new, no commit"
    );
}

/// Returns a worker whose answers don't wait for a commit.
fn answers_at_once() -> Fed {
    Fed::new(Settings {
        answers_wait: false,
        ..settings(REPLICAS[0])
    })
}

/// Otherwise answers are sent before the commit, which follows within a limited time. [X-ANSWER]
#[test]
fn answers_leave_before_the_commit_which_follows_in_time() {
    let mut r = answers_at_once();
    let s = r.open(1, false, 8);
    r.worker.tick(0, &mut r.out).unwrap();
    assert!(r.worker.next_deadline().unwrap() <= r.settings.commit_after);
    r.now = r.settings.commit_after - 1;
    assert_eq!(r.log(s, 1, &command(1)).len(), 1);
    r.worker.tick(r.now, &mut r.out).unwrap();
    assert_eq!(r.disk.with(|d| d.commits), 0);

    // A kill takes what was answered, and the log brings it back.
    r.restart();
    assert_eq!(r.worker.next(), 0);
    assert_eq!(r.open(1, false, 8), s);
    assert_eq!(status_of(&r.log(s, 1, &command(1))), Status::Ok);
    assert_eq!(r.times(1), 1);
    r.now += r.settings.commit_after;
    r.worker.tick(r.now, &mut r.out).unwrap();
    assert_eq!(r.disk.with(|d| d.commits), 1, "one for both");
    r.restart();
    assert_eq!((r.worker.next(), r.times(1)), (2, 1));
}

/// A commit is due after a number of commands. [X-ANSWER]
#[test]
fn a_commit_is_due_by_number() {
    let every = settings(REPLICAS[0]).commit_every;
    let mut r = answers_at_once();
    let s = r.open(1, false, 1_000);
    let commits = |r: &mut Fed| {
        r.worker.tick(0, &mut r.out).unwrap();
        r.disk.with(|d| d.commits)
    };
    for n in 1..every {
        assert_eq!(commits(&mut r), 0, "before {n}");
        r.log(s, n, &command(n));
    }
    assert_eq!(commits(&mut r), 1, "by instances");
    assert_eq!(r.disk.committed().tally.total, every - 1);
    let pack = |from: u64, to: u64| (from..to).map(|n| (s, n, command(n))).collect::<Vec<_>>();
    for few in pack(every, 2 * every - 1).chunks(17) {
        r.log_pack(few);
    }
    assert_eq!(commits(&mut r), 1);
    r.log_pack(&pack(2 * every - 1, 2 * every));
    assert_eq!(commits(&mut r), 2, "by commands");
}

/// Others are told, and get, only what is stored. [X-ANSWER]
#[test]
fn others_hear_only_of_what_is_stored() {
    let mut r = answers_at_once();
    r.worker.set_incarnation(7).unwrap();
    for inst in 0..3 {
        r.give(inst, Flags::NOOP, (0, 0), &[]);
    }
    r.finish();
    let probe = Header {
        msgtype: MsgType::Probe,
        rnd: Round::NONE,
        vrnd: Round::NONE,
        ..deliver_header()
    };
    let datagram = probe.datagram(&Probe::Replica.emit());
    let packet = Packet::parse(&datagram).unwrap();
    let shown = |r: &mut Fed| {
        r.out.sent.clear();
        let _ = r.worker.step(r.now, &packet, &mut r.out);
        r.out.of_type(MsgType::ProbeAck)[0].1.inst
    };
    assert_eq!((r.worker.next(), shown(&mut r)), (3, 0));
    assert_eq!(snapshot(&mut r).0, 3, "it is stored first");
    assert_eq!(r.disk.with(|d| d.commits), 2);
    assert_eq!(shown(&mut r), 3);
}

/// An alarm about answered commands comes again after each start. [X-BEGIN] [X-ANSWER]
#[test]
fn what_was_answered_is_stored_before_an_alarm() {
    let mut r = answers_at_once();
    let s = r.open(1, true, 8);
    r.log(s, 1, &command(1));
    r.worker.begins(1, 1);
    assert_alarmed(&mut r);
    r.restart();
    assert_eq!(r.times(1), 1);
    r.worker.begins(1, 1);
    assert_alarmed(&mut r);
}

/// After a failed commit the worker acknowledges nothing and stops. [X-FAIL]
#[test]
fn a_failed_commit_acknowledges_nothing_and_ends_the_worker() {
    let mut r = fed();
    let s = r.open(1, false, 8);
    r.disk.with(|d| d.fail_commits = true);
    r.give(1, Flags::NONE, (s, 1), &command(1));
    let error = r.worker.finish_batch(0, &mut r.out).unwrap_err();
    assert_eq!(error.to_string(), "the disk is full");
    r.disk.with(|d| d.fail_commits = false);
    for _ in 0..2 {
        assert!(r.worker.finish_batch(0, &mut r.out).is_err());
        assert!(r.worker.tick(0, &mut r.out).is_err());
        assert!(r.worker.checkpoint(0).is_err());
        assert!(r.worker.snapshot().is_err());
        let verdict = r.decide(2, Flags::NONE, (s, 2), &command(2));
        assert_eq!(verdict, Verdict::Dropped(Reason::Busy));
    }
    assert!(r.out.replies.is_empty() && r.out.of_type(MsgType::Trim).is_empty());
    r.restart();
    assert_eq!(r.worker.next(), 1);
    assert_eq!(status_of(&r.log(s, 1, &command(1))), Status::Ok);
    assert_eq!(r.times(1), 1);
}

/// If the application can't continue, the worker stops at that instance. [X-FAIL]
#[test]
fn an_application_that_can_not_go_on_stops_the_worker_at_that_instance() {
    let mut r = fed();
    let s = r.open(1, false, 8);
    r.give(2, Flags::NONE, (s, 2), &command(2));
    r.disk.with(|d| d.fail_execute = true);
    r.give(1, Flags::NONE, (s, 1), &command(1));
    assert!(r.worker.finish_batch(0, &mut r.out).is_err());
    assert!(r.out.replies.is_empty());
    assert_eq!(r.worker.next(), 1);
}

/// One log with everything that sessions can do is executed in different batches, with kills at any
/// step. The committed state in the end must be the same, to the byte. [X-ATOMIC]
#[test]
fn kills_and_batches_make_no_difference() {
    for seed in 0..60 {
        let log = random_log(seed, 300);
        let reference = run_log(&log, None);
        let disturbed = run_log(&log, Some(seed));
        let kept = &reference.records;
        assert!(kept.keys().any(|key| key[0] == b'r'), "seed {seed}");
        assert_eq!(reference.tally, disturbed.tally, "seed {seed}");
        assert_eq!(reference.records, disturbed.records, "seed {seed}");
        let worst = reference.tally.by_command.values().max();
        assert_eq!(worst, Some(&1), "every command once, seed {seed}");
    }
}

/// Returns (flags, client, request, value) for each instance. Commands carry (session, request) as
/// their number, so a command that took effect twice shows.
fn random_log(seed: u64, length: usize) -> Vec<(Flags, u64, u64, Vec<u8>)> {
    let mut rng = Rng::new(seed);
    let mut ids: Vec<u64> = vec![0xdead];
    let mut log = Vec::new();
    for inst in 0..length as u64 {
        let mut item = |rng: &mut Rng, index: u64| -> (u64, u64, Vec<u8>) {
            let session = ids[rng.below(ids.len() as u64) as usize];
            match rng.below(20) {
                0..=2 => {
                    ids.push((inst + 1) << 16 | index);
                    let home = REPLICAS[rng.below(3) as usize];
                    let to = ReplyAddress {
                        home,
                        ..ReplyAddress::default()
                    };
                    let op = open(rng.percent(50), 1 + rng.below(9) as u16, to);
                    (rng.below(40), 0, op.to_bytes())
                }
                3 => (session, 0, SessionOp::Close.to_bytes()),
                4 => {
                    let op = SessionOp::Expire {
                        last_request: rng.below(6),
                        last_inst: inst.saturating_sub(rng.below(30)),
                    };
                    (session, 0, op.to_bytes())
                }
                5 => {
                    let reply_to = ReplyAddress {
                        address: Some(([10, 0, 0, 1], 1 + rng.below(9) as u16).into()),
                        ..ReplyAddress::default()
                    };
                    (session, 0, SessionOp::Move { reply_to }.to_bytes())
                }
                _ => {
                    let request = 1 + rng.below(12);
                    let number = session << 8 | request;
                    (
                        session,
                        request,
                        command_with_reply(number, rng.below(300) as u32),
                    )
                }
            }
        };
        log.push(match rng.below(10) {
            0 => (Flags::NOOP, 0, 0, Vec::new()),
            1..=4 => {
                let items: Vec<_> = (0..1 + rng.below(4)).map(|i| item(&mut rng, i)).collect();
                (Flags::PACKED, 55, inst, pack(&items))
            }
            _ => {
                let (client, request, bytes) = item(&mut rng, 0);
                (Flags::NONE, client.max(1), request, bytes)
            }
        });
    }
    log
}

fn run_log(log: &[(Flags, u64, u64, Vec<u8>)], disturb: Option<u64>) -> Image {
    let mut settings = settings(REPLICAS[0]);
    settings.answers_wait = disturb.is_none_or(|seed| seed % 2 == 0);
    settings.commit_every = 7;
    settings.limits.reply = 100;
    settings.limits.last_reply = 200;
    settings.limits.recorded = 3_000;
    settings.limits.sessions = 20;
    settings.checkpoint_every = 40;
    let mut r = Fed::new(settings);
    let mut rng = Rng::new(disturb.unwrap_or(0) + 1_000_000);
    while r.worker.next() < log.len() as u64 {
        let next = r.worker.next();
        let ahead = if disturb.is_some() { rng.below(5) } else { 0 };
        let inst = (next + ahead).min(log.len() as u64 - 1);
        let (flags, client, request, value) = &log[inst as usize];
        let _ = r.decide(inst, *flags, (*client, *request), value);
        if disturb.is_none() || rng.percent(30) {
            r.finish();
            r.worker.tick(r.now, &mut r.out).unwrap();
        }
        if disturb.is_some() && rng.percent(5) {
            if rng.percent(50) {
                r.disk.power_failure();
            }
            r.restart();
        }
    }
    r.finish();
    r.fold();
    r.disk.committed().without_commits()
}

/// A commit is one record, however many sessions it changes. [X-ATOMIC]
#[test]
fn a_commit_is_one_record_however_many_sessions_it_changes() {
    let mut r = fed();
    let sessions: Vec<u64> = (1..=5).map(|n| r.open(n, true, 8)).collect();
    r.fold();
    let before = r.disk.committed().records;
    for request in 1..=3 {
        for (n, s) in sessions.iter().enumerate() {
            let inst = r.worker.next();
            let number = 10 * request + n as u64;
            r.give(inst, Flags::NONE, (*s, request), &command(number));
        }
    }
    r.finish();
    let mut after = r.disk.committed().records;
    let one = after.remove(&[b'c', 0, 0][..]);
    let mut before_it = before.clone();
    before_it.remove(&[b'c', 0, 0][..]);
    assert!(one.is_some());
    assert_eq!(after, before_it, "the only one that was written");

    // After a kill the whole commit is there.
    r.restart();
    for (n, s) in sessions.iter().enumerate() {
        let again = r.log(*s, 3, &command(0));
        assert_eq!(status_of(&again), Status::Ok);
        assert_eq!(r.times(30 + n as u64), 1);
    }
    assert_eq!(r.times(0), 0);
}

/// The stored records of commits stay bounded without a checkpoint. Records that a fold has left
/// are out of date, and do no harm.
#[test]
fn commits_that_are_folded_are_out_of_date() {
    let mut r = fed();
    let s = r.open(1, false, 4);
    let reply = |n: u64| command_with_reply(n, 1_000);
    for n in 1..=9_000 {
        r.log(s, n, &reply(n));
        let commits = r.disk.with(|d| {
            let records = d.committed.records.iter();
            let commits = records.filter(|(key, _)| key[0] == b'c');
            commits.map(|(_, value)| value.len()).sum::<usize>()
        });
        assert!(commits < 9 << 20, "{commits} bytes after {n}");
    }
    let closed = r.open(2, false, 4);
    r.fold();
    r.op(closed, SessionOp::Close);
    for _ in 0..2 {
        r.restart();
        assert_eq!(r.worker.sessions(), 1);
        assert_eq!(status_of(&r.log(s, 8_996, &reply(0))), Status::StaleRequest);
        assert_eq!(status_of(&r.log(s, 8_999, &reply(0))), Status::Ok);
        assert_eq!(r.times(0), 0);
        r.fold();
    }
    let left = r.disk.committed().without_commits().records;
    assert_eq!(
        left.len(),
        4,
        "identity, position, the session and its replies"
    );
}

/// One commit's record is lost, exchanged, or belongs to another commit.
#[test]
fn commits_that_do_not_follow_one_another_are_refused() {
    let mut r = fed();
    let s = r.open(1, false, 8);
    for n in 1..=3 {
        r.log(s, n, &command(n));
    }
    let stored = r.disk.committed();
    let place = |n: u8| vec![b'c', 0, n];
    let opened = |change: &dyn Fn(&mut Image)| {
        r.disk.with(|d| {
            d.committed = stored.clone();
            change(&mut d.committed);
        });
        let worker = Worker::open(settings(REPLICAS[0]), Durable::open(&r.disk), 1, 0);
        worker.map(|_| ()).map_err(|e| e.to_string())
    };
    opened(&|_| ()).unwrap();
    let lost = |n| opened(&|image| drop(image.records.remove(&place(n))));
    let shorten = |record: &mut Vec<u8>| record.truncate(record.len() - 1);
    let cut = |n| opened(&|image| shorten(image.records.get_mut(&place(n)).unwrap()));
    for n in 0..3 {
        for error in [lost(n).unwrap_err(), cut(n).unwrap_err()] {
            assert!(error.contains(replica::MOVE_AWAY), "{error}");
        }
    }
    let exchanged = opened(&|image| {
        let one = image.records.remove(&place(1)).unwrap();
        let two = image.records.insert(place(2), one).unwrap();
        image.records.insert(place(1), two);
    });
    let error = exchanged.unwrap_err();
    assert!(error.contains("the stored commit 1 is damaged"), "{error}");
}

// ---- Checkpoints

/// Returns a worker with a checkpoint every ten instances.
fn every_ten(node: NodeId) -> Fed {
    Fed::new(Settings {
        checkpoint_every: 10,
        ..settings(node)
    })
}

/// TRIM is sent after a checkpoint, and repeated. [T-CHECKPOINT]
#[test]
fn trim_follows_a_checkpoint_and_is_repeated() {
    let mut r = every_ten(REPLICAS[0]);
    for inst in 0..10 {
        assert!(r.out.of_type(MsgType::Trim).is_empty());
        r.give(inst, Flags::NOOP, (0, 0), &[]);
        r.finish();
    }
    assert!(r.out.of_type(MsgType::Trim).is_empty(), "it has begun");
    r.write_checkpoint().unwrap();
    r.finish();
    assert!(r.out.of_type(MsgType::Trim).is_empty(), "as which disk?");
    r.worker.set_incarnation(7).unwrap();
    assert!(r.worker.next_deadline().unwrap() <= r.now);
    r.worker.tick(r.now, &mut r.out).unwrap();
    let sent = r.out.of_type(MsgType::Trim);
    let to: Vec<To> = sent.iter().map(|(to, ..)| *to).collect();
    assert_eq!(to, [To::Acceptors, To::Leader]);
    for (_, header, _) in &sent {
        assert_eq!((header.inst, header.swid), (10, REPLICAS[0]));
        assert!(header.rnd.is_none());
        // TRIM names the disk, and the newest epoch that the replica knows.
        assert_eq!((header.client, header.request), (7, 1));
    }
    r.out.sent.clear();
    r.worker.tick(SECOND - 1, &mut r.out).unwrap();
    assert!(r.out.of_type(MsgType::Trim).is_empty());
    r.worker.tick(SECOND, &mut r.out).unwrap();
    assert_eq!(r.out.of_type(MsgType::Trim).len(), 2);
    assert!(r.worker.next_deadline().unwrap() <= 2 * SECOND);
}

/// Returns the disk and the instance in the next TRIM.
fn report(r: &mut Fed) -> Option<(u64, Instance)> {
    r.out.sent.clear();
    r.now += 10 * SECOND;
    r.worker.tick(r.now, &mut r.out).unwrap();
    let said = r.out.of_type(MsgType::Trim);
    said.first().map(|(_, h, _)| (h.client, h.inst))
}

/// A replica with an empty disk reports that at once, and keeps the number of the disk. [T-DISK]
#[test]
fn an_empty_disk_says_so_at_once_and_keeps_its_number() {
    let mut r = every_ten(REPLICAS[0]);
    assert!(r.worker.wanted().incarnation);
    assert_eq!(report(&mut r), None, "it has no number");
    r.worker.set_incarnation(7).unwrap();
    assert!(!r.worker.wanted().incarnation);
    assert_eq!(report(&mut r), Some((7, 0)), "that an older disk is gone");
    r.worker.set_incarnation(8).unwrap();
    assert_eq!(report(&mut r), Some((7, 0)), "one number a process");
    r.restart();
    assert_eq!(r.worker.incarnation(), Some(7), "alone on the disk");

    // The next process goes on with the number, whether or not it gets another one.
    for inst in 0..10 {
        r.give(inst, Flags::NOOP, (0, 0), &[]);
    }
    r.finish();
    r.restart();
    assert!(r.worker.wanted().incarnation);
    assert_eq!(report(&mut r), Some((7, 10)));
    r.worker.set_incarnation(9).unwrap();
    assert_eq!(report(&mut r), Some((9, 10)));

    // A number of 0 says nothing and isn't taken.
    r.restart();
    r.worker.set_incarnation(0).unwrap();
    assert_eq!(report(&mut r), Some((9, 10)));
    assert!(r.worker.wanted().incarnation);
}

/// A copy of another replica's state doesn't contain the number of that replica's disk. [T-DISK]
#[test]
fn another_replicas_state_brings_no_number_of_a_disk() {
    let mut ahead = fed();
    ahead.worker.set_incarnation(7).unwrap();
    let s = ahead.open(1, false, 8);
    ahead.log(s, 1, &command(1));
    let (position, bytes) = snapshot(&mut ahead);

    // The number isn't taken over even if the process dies before it can act.
    let mut r = Fed::new(settings(REPLICAS[1]));
    r.worker.restore(0, position, &mut &bytes[..]).unwrap();
    r.restart();
    assert_eq!(r.worker.next(), 2);
    assert_eq!(r.worker.incarnation(), None);

    let mut r = Fed::new(settings(REPLICAS[1]));
    r.worker.set_incarnation(3).unwrap();
    r.worker.restore(0, position, &mut &bytes[..]).unwrap();
    assert_eq!(report(&mut r), Some((3, 2)));
    r.restart();
    assert_eq!(report(&mut r), Some((3, 2)));
}

/// TRIM never covers what a power failure could take away. [T-CHECKPOINT]
#[test]
fn trim_never_covers_what_a_power_failure_takes() {
    let mut r = every_ten(REPLICAS[0]);
    r.worker.set_incarnation(7).unwrap();
    r.disk.with(|d| d.fail_checkpoints = true);
    for inst in 0..10 {
        r.give(inst, Flags::NOOP, (0, 0), &[]);
    }
    r.finish();
    assert!(r.write_checkpoint().is_err());
    assert!(r.worker.finish_batch(0, &mut r.out).is_err());
    let said = r.out.of_type(MsgType::Trim);
    assert!(!said.is_empty() && said.iter().all(|(_, h, _)| h.inst == 0));
    assert_eq!(r.worker.checkpointed(), 0);
    assert!(
        r.worker.finish_batch(0, &mut r.out).is_err(),
        "and stays so"
    );

    // After a kill everything committed is made durable before it is reported.
    r.disk.with(|d| d.fail_checkpoints = false);
    r.restart();
    assert_eq!(r.worker.checkpointed(), 10);
    r.disk.power_failure();
    r.restart();
    assert_eq!(r.worker.next(), 10);
}

/// TRIM covers only what was committed when the checkpoint began. [T-CHECKPOINT]
#[test]
fn trim_covers_no_more_than_was_committed_when_the_checkpoint_began() {
    let mut r = every_ten(REPLICAS[0]);
    for inst in 0..35 {
        r.give(inst, Flags::NOOP, (0, 0), &[]);
        if inst % 10 != 7 {
            r.finish();
        }
    }
    assert_eq!(r.worker.checkpointed(), 0);
    r.write_checkpoint().unwrap();
    assert_eq!(r.worker.checkpointed(), 10);
    r.worker.set_incarnation(7).unwrap();
    r.finish();
    assert_eq!(r.out.of_type(MsgType::Trim)[0].1.inst, 10);
    assert!(
        r.worker.is_checkpointing(),
        "the next one is due long since"
    );
    r.disk.power_failure();
    r.restart();
    assert_eq!(r.worker.next(), 10);
}

#[test]
fn checkpoints_come_by_time_too_but_not_for_nothing() {
    let mut r = fed();
    r.now = r.settings.checkpoint_interval;
    r.worker.tick(r.now, &mut r.out).unwrap();
    assert_eq!(r.worker.statistics().checkpoints, 0);
    r.give(0, Flags::NOOP, (0, 0), &[]);
    r.finish();
    r.write_checkpoint().unwrap();
    assert_eq!(r.worker.checkpointed(), 1);
    r.worker.tick(r.now * 2, &mut r.out).unwrap();
    assert_eq!(r.worker.statistics().checkpoints, 1);
}

// ---- Expiry

#[test]
fn idle_sessions_are_proposed_for_expiry_by_one_replica_after_the_other() {
    let mut workers: Vec<Fed> = REPLICAS.map(|n| Fed::new(settings(n))).into();
    let timeout = workers[0].settings.session_timeout;
    let (idle, inst, busy) = {
        let mut ids = Vec::new();
        for r in &mut workers {
            let idle = r.open(1, false, 8);
            let busy = r.open(2, false, 8);
            r.log(idle, 7, &command(1));
            r.now = timeout / 2;
            r.log(busy, 1, &command(2));
            ids.push((idle, 2, busy));
        }
        ids[0]
    };
    let mut proposals = |now| -> Vec<usize> {
        let ask = |r: &mut Fed| {
            r.out.sent.clear();
            r.worker.tick(now, &mut r.out).unwrap();
            let sent = r.out.of_type(MsgType::Request);
            for (to, header, value) in &sent {
                assert_eq!((*to, header.request), (To::Leader, 0));
                assert!(header.client == idle || header.client == busy);
                if header.client == idle {
                    let op = SessionOp::Expire {
                        last_request: 7,
                        last_inst: inst,
                    };
                    assert_eq!(SessionOp::parse(value), Some(op));
                }
            }
            sent.len()
        };
        workers.iter_mut().map(ask).collect()
    };
    assert_eq!(proposals(timeout - 1), [0, 0, 0]);
    assert_eq!(
        proposals(timeout + SECOND),
        [1, 0, 0],
        "the first replica's turn"
    );
    assert_eq!(
        proposals(timeout + SECOND + 1),
        [0, 0, 0],
        "not at once again"
    );
    assert_eq!(
        proposals(timeout + 2 * SECOND),
        [1, 0, 0],
        "but until it takes effect"
    );
    assert_eq!(
        proposals(timeout * 5 / 4 + SECOND),
        [1, 1, 0],
        "the first one is slow"
    );
    assert_eq!(
        workers[0].worker.sessions(),
        2,
        "a proposal alone does nothing"
    );
    let op = SessionOp::Expire {
        last_request: 7,
        last_inst: inst,
    };
    workers[0].op(idle, op);
    assert_eq!(workers[0].worker.sessions(), 1);
}

// ---- Catch-up

/// The bytes of a snapshot that hold its position.
const POSITION: std::ops::Range<usize> = 18..26;

fn snapshot(r: &mut Fed) -> (Instance, Vec<u8>) {
    let (position, mut snapshot) = r.worker.snapshot().unwrap();
    let mut bytes = Vec::new();
    snapshot.write_to(&mut bytes).unwrap();
    (position, bytes)
}

#[test]
fn a_snapshot_brings_sessions_along_and_waiting_values_go_on() {
    let mut ahead = fed();
    let s = ahead.open(1, true, 8);
    let first = ahead.log(s, 1, &command(1));
    ahead.log(s, 2, &command(2));
    let (position, bytes) = snapshot(&mut ahead);
    assert_eq!(position, 3);

    let mut behind = Fed::new(settings(REPLICAS[1]));
    // Two values are known already: one that the snapshot covers, and the next one.
    behind.give(2, Flags::NONE, (s, 2), &command(2));
    behind.give(3, Flags::NONE, (s, 3), &command(3));
    let restored = behind.worker.restore(0, position, &mut &bytes[..]).unwrap();
    assert!(matches!(restored, Restored::To(3)));
    assert_eq!(behind.worker.next(), 4, "3 had been waiting");
    assert_eq!(behind.finish().len(), 1);
    assert_eq!(behind.log(s, 1, &command(1)), first, "a repetition");
    for number in [1, 2, 3] {
        assert_eq!(behind.times(number), 1);
    }
    assert_eq!(
        behind.worker.checkpointed(),
        3,
        "a restored state is durable"
    );
    behind.restart();
    assert_eq!(behind.log(s, 1, &command(1)), first, "also after a kill");
}

/// A snapshot isn't taken while a checkpoint is being made. [T-CHECKPOINT]
#[test]
fn a_snapshot_never_meets_a_checkpoint_under_way() {
    let mut ahead = fed();
    let s = ahead.open(1, false, 8);
    for number in 1..20 {
        ahead.log(s, number, &command(number));
    }
    let (position, bytes) = snapshot(&mut ahead);
    let mut behind = every_ten(REPLICAS[1]);
    for inst in 0..10 {
        behind.give(inst, Flags::NOOP, (0, 0), &[]);
    }
    behind.finish();
    let mut unread = &bytes[..];
    let restored = behind.worker.restore(0, position, &mut unread).unwrap();
    assert!(matches!(restored, Restored::Failed(_)));
    assert_eq!((unread.len(), behind.worker.next()), (bytes.len(), 10));
    behind.write_checkpoint().unwrap();
    let restored = behind.worker.restore(0, position, &mut &bytes[..]).unwrap();
    assert!(matches!(restored, Restored::To(20)));
    behind.disk.power_failure();
    behind.restart();
    assert_eq!(behind.worker.next(), 20);
}

/// A replica never installs a state that is older than its own. [X-CATCHUP]
#[test]
fn a_replica_never_goes_backwards() {
    let mut old = fed();
    let s = old.open(1, false, 8);
    let (position, bytes) = snapshot(&mut old);
    let mut r = fed();
    assert_eq!(r.open(1, false, 8), s);
    r.log(s, 1, &command(1));
    for announced in [0, position, 2] {
        let mut unread = &bytes[..];
        let restored = r.worker.restore(0, announced, &mut unread).unwrap();
        assert!(matches!(restored, Restored::NotNewer(2)));
        assert_eq!(unread.len(), bytes.len());
    }
    assert_eq!(status_of(&r.log(s, 1, &command(1))), Status::Ok);
    assert_eq!(r.times(1), 1);

    let restored = r.worker.restore(0, 100, &mut &bytes[..]).unwrap();
    assert!(matches!(restored, Restored::Failed(_)), "announced falsely");
    // A snapshot that contains a false position is noticed afterwards, and stops the worker.
    let mut lies = bytes.clone();
    lies[POSITION].copy_from_slice(&100u64.to_be_bytes());
    assert!(r.worker.restore(0, 100, &mut &lies[..]).is_err());
    assert!(r.worker.finish_batch(0, &mut r.out).is_err());
    assert!(r.out.replies.is_empty());
}

#[test]
fn a_snapshot_that_breaks_off_changes_nothing() {
    let mut ahead = fed();
    let s = ahead.open(1, false, 8);
    ahead.log(s, 1, &command(1));
    let (position, bytes) = snapshot(&mut ahead);
    let mut r = fed();
    // The snapshot is cut among its records; the test's snapshots have no checksum.
    for cut in 0..bytes.len() - 24 {
        let restored = r.worker.restore(0, position, &mut &bytes[..cut]);
        assert!(matches!(restored, Ok(Restored::Failed(_))), "cut at {cut}");
        assert_eq!(r.worker.next(), 0);
    }
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::ConnectionReset.into())
        }
    }
    let mut r = fed();
    r.open(9, false, 8);
    let restored = r.worker.restore(0, position, &mut Broken).unwrap();
    assert!(matches!(restored, Restored::Failed(_)));
    assert_eq!((r.worker.next(), r.worker.sessions()), (1, 1));
    r.open(10, false, 8);
}

#[test]
fn replies_that_were_committed_before_a_restore_still_go_out() {
    let mut ahead = fed();
    for inst in 0..5 {
        ahead.give(inst, Flags::NOOP, (0, 0), &[]);
    }
    let (position, bytes) = snapshot(&mut ahead);
    let mut r = fed();
    let op = open(false, 8, ReplyAddress::default()).to_bytes();
    r.give(0, Flags::NONE, (1, 0), &op);
    r.worker.restore(0, position, &mut &bytes[..]).unwrap();
    assert_eq!(status_of(&r.finish()), Status::Ok);
}

// ---- Whose state it is

/// Returns settings of the same partition with one difference each.
fn strangers() -> [Settings; 4] {
    let own = settings(REPLICAS[0]);
    let with = |change: fn(&mut Settings)| {
        let mut settings = own.clone();
        change(&mut settings);
        settings
    };
    [
        with(|s| s.deployment.cluster += 1),
        with(|s| s.deployment.group += 1),
        with(|s| s.deployment.partitions += 1),
        with(|s| {
            s.deployment.partitions = 2;
            s.pid = 1;
        }),
    ]
}

/// A directory that belongs to another replica is refused, and the error names that replica.
/// [X-NAME]
#[test]
fn anothers_directory_is_refused_by_name() {
    let mut own = fed();
    own.open(1, false, 8);
    let disk = &own.disk;
    let stored = disk.committed();
    for settings in strangers() {
        let serves = settings.deployment;
        let Err(error) = Worker::open(settings, Durable::open(disk), 1, 0) else {
            panic!("{serves:?} serves another one's state");
        };
        let error = error.to_string();
        assert!(
            error.contains("partition 0 of 1 of group 1 of cluster 0000004d"),
            "{error}"
        );
        assert!(error.contains(replica::MOVE_AWAY), "{error}");
        assert_eq!(disk.committed(), stored);
    }
    // Another node of the same group may take the disk over.
    Worker::open(settings(REPLICAS[1]), Durable::open(disk), 1, 0).unwrap();
}

/// A checkpoint of another partition or group is refused and changes nothing. [X-NAME]
#[test]
fn anothers_checkpoint_is_refused_and_changes_nothing() {
    let mut ahead = fed();
    for inst in 0..5 {
        ahead.give(inst, Flags::NOOP, (0, 0), &[]);
    }
    let (position, bytes) = snapshot(&mut ahead);
    for settings in strangers() {
        let disk = Disk::default();
        let mut worker = Worker::open(settings, Durable::open(&disk), 1, 0).unwrap();
        let restored = worker.restore(0, position, &mut &bytes[..]).unwrap();
        let Restored::Failed(error) = restored else {
            panic!("{restored:?}");
        };
        assert!(error.to_string().contains("of cluster 0000004d"), "{error}");
        assert_eq!(
            (worker.next(), disk.committed()),
            (0, Image::default()),
            "{error}"
        );
    }
}

#[test]
fn records_of_another_version_are_refused_by_name() {
    let mut own = fed();
    own.open(1, false, 8);
    let opened = || Worker::open(settings(REPLICAS[0]), Durable::open(&own.disk), 1, 0);
    let identity = own.disk.with(|d| d.committed.records[&b"i"[..]].clone());
    for (format, named) in [(4, "format 4"), (6, "format 6")] {
        own.disk
            .with(|d| d.committed.records.get_mut(&b"i"[..]).unwrap()[0] = format);
        let error = opened().err().unwrap().to_string();
        assert!(error.contains(named), "{error}");
    }
    own.disk.with(|d| d.committed.records.remove(&b"i"[..]));
    let error = opened().err().unwrap().to_string();
    assert!(error.contains("an earlier one"), "{error}");
    own.disk
        .with(|d| d.committed.records.insert(b"i".to_vec(), identity));
    assert!(opened().is_ok());
}

// ---- Programs in memory

fn in_memory(disk: &MemoryDisk) -> Worker<InMemory<Tally, MemoryDisk>> {
    let app = InMemory::open(disk.clone(), Tally::default()).unwrap();
    let mut worker = Worker::open(settings(REPLICAS[0]), app, 1, 0).unwrap();
    worker.configure(0, &[active(1)]);
    worker
}

fn feed<A: Application>(worker: &mut Worker<A>, out: &mut Out, id: (u64, u64), value: &[u8]) {
    let header = Header {
        inst: worker.next(),
        client: id.0,
        request: id.1,
        ..deliver_header()
    };
    let datagram = header.datagram(value);
    let verdict = worker.step(0, &Packet::parse(&datagram).unwrap(), out);
    assert_eq!(verdict, Verdict::Changed);
    worker.finish_batch(0, out).unwrap();
}

#[test]
fn a_program_in_memory_restarts_from_its_checkpoint_and_the_log() {
    let disk = MemoryDisk::default();
    let mut out = Out::default();
    let op = open(true, 8, ReplyAddress::default()).to_bytes();
    let s = 1 << 16;
    let mut worker = in_memory(&disk);
    feed(&mut worker, &mut out, (1, 0), &op);
    feed(&mut worker, &mut out, (s, 1), &command(1));
    worker.checkpoint(0).unwrap();
    feed(&mut worker, &mut out, (s, 2), &command(2));
    let digest = worker.digest().unwrap();
    drop(worker);

    let mut worker = in_memory(&disk);
    assert_eq!((worker.next(), worker.checkpointed()), (2, 2));
    feed(&mut worker, &mut out, (s, 2), &command(2));
    assert_eq!(worker.digest().unwrap(), digest);
    feed(&mut worker, &mut out, (s, 2), &command(2));
    let tally = worker.application().state();
    assert_eq!((tally.by_command[&1], tally.by_command[&2]), (1, 1));

    // The program moves to another replica with its sessions.
    let (position, mut snapshot) = worker.snapshot().unwrap();
    let mut bytes = Vec::new();
    snapshot.write_to(&mut bytes).unwrap();
    let other_disk = MemoryDisk::default();
    let mut other = in_memory(&other_disk);
    other.restore(0, position, &mut &bytes[..]).unwrap();
    assert_eq!(other.digest().unwrap().1, digest.1);
    drop(other);
    let mut other = in_memory(&other_disk);
    assert_eq!(other.next(), position, "and is durable there");
    feed(&mut other, &mut out, (s, 1), &command(1));
    assert_eq!(other.application().state().by_command[&1], 1);
}

#[test]
fn a_damaged_checkpoint_is_never_loaded() {
    let disk = MemoryDisk::default();
    let mut worker = in_memory(&disk);
    let op = open(true, 8, ReplyAddress::default()).to_bytes();
    feed(&mut worker, &mut Out::default(), (1, 0), &op);
    worker.checkpoint(0).unwrap();
    let good = disk.0.lock().unwrap().0.clone().unwrap();
    let load = |bytes: &[u8]| {
        let disk = MemoryDisk(Arc::new(Mutex::new((Some(bytes.to_vec()), false))));
        InMemory::open(disk, Tally::default()).map(|_| ())
    };
    load(&good).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        assert!(load(&bad).is_err(), "byte {at} is wrong");
        assert!(load(&good[..at]).is_err(), "cut at {at}");
        let (before, _) = worker.digest().unwrap();
        let restored = worker.restore(0, 100, &mut &bad[..]).unwrap();
        assert!(matches!(restored, Restored::Failed(_)));
        assert_eq!(worker.digest().unwrap().0, before);
    }
}

#[test]
fn a_program_in_memory_goes_on_while_its_checkpoint_is_written() {
    let disk = MemoryDisk::default();
    let mut app = InMemory::open(disk.clone(), Tally::default()).unwrap();
    let mut reply = Vec::new();
    app.execute(&command(1), &mut reply).unwrap();
    let write = app.checkpoint().unwrap();
    app.execute(&command(2), &mut reply).unwrap();
    write().unwrap();
    let stored = InMemory::open(disk.clone(), Tally::default()).unwrap();
    assert_eq!(stored.state().total, 1, "what it had when that began");
    app.checkpoint().unwrap()().unwrap();
    let stored = InMemory::open(disk.clone(), Tally::default()).unwrap();
    assert_eq!(stored.state().total, 2);
    disk.0.lock().unwrap().1 = true;
    app.checkpoint().unwrap()().unwrap();
}

#[test]
fn a_full_disk_stops_a_program_in_memory_before_trim() {
    let disk = MemoryDisk::default();
    let mut worker = in_memory(&disk);
    let mut out = Out::default();
    worker.set_incarnation(7).unwrap();
    let op = open(true, 8, ReplyAddress::default()).to_bytes();
    feed(&mut worker, &mut out, (1, 0), &op);
    disk.0.lock().unwrap().1 = true;
    assert!(worker.checkpoint(0).is_err());
    assert!(worker.tick(100 * SECOND, &mut out).is_err());
    let said = out.of_type(MsgType::Trim);
    assert!(said.iter().all(|(_, h, _)| h.inst == 0));
}

#[test]
fn a_checkpoint_file_is_replaced_whole() {
    let dir = std::env::temp_dir().join(format!("checkpoint-file-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let mut file = replica::storage::CheckpointFile::new(dir.join("p0"));
    assert_eq!(file.load().unwrap(), None);
    file.replace(b"one").unwrap();
    // The file that a crash before the rename leaves behind disturbs nothing.
    std::fs::write(dir.join("p0.new"), b"tw").unwrap();
    assert_eq!(file.load().unwrap().as_deref(), Some(&b"one"[..]));
    file.replace(b"two").unwrap();
    assert_eq!(file.load().unwrap().as_deref(), Some(&b"two"[..]));
    std::fs::remove_dir_all(&dir).unwrap();
    let error = file.replace(b"three").unwrap_err().to_string();
    assert!(error.contains("p0"), "the message names the file: {error}");
}

// ---- What an operator gave up

const GIVEN_UP: std::ops::Range<Instance> = 3..1 << 32;

/// Returns a worker that has executed everything below `next`, and holds a command behind a gap.
fn standing_at(next: Instance) -> Fed {
    let mut r = fed();
    let session = r.open(9, false, 8);
    for inst in 1..next {
        r.give(inst, Flags::NOOP, (0, 0), &[]);
    }
    r.give(next + 1, Flags::NONE, (session, 1), &command(1));
    r.finish();
    r
}

/// A replica that has executed everything that stays continues behind the instances that were given
/// up. [G-LEAP]
#[test]
fn who_has_executed_all_that_stays_goes_on_behind_what_was_given_up() {
    let mut r = standing_at(3);
    r.worker.give_up(0, &[GIVEN_UP]);
    assert_eq!((r.worker.next(), r.worker.waiting()), (GIVEN_UP.end, 0));
    assert_eq!(r.worker.wanted().checkpoint_at_least, None);
    r.finish();
    r.restart();
    assert_eq!(r.worker.next(), GIVEN_UP.end, "stored");
    r.worker.give_up(0, &[GIVEN_UP]);
    let earlier = 1..5;
    r.worker.give_up(0, std::slice::from_ref(&earlier));
    let late = r.decide(3, Flags::NOOP, (0, 0), &[]);
    assert_eq!(late, Verdict::Dropped(Reason::Stale));
    r.log(1 << 16, 2, &command(2));
    assert_eq!((r.times(1), r.times(2)), (0, 1));
}

/// A replica that is behind executes what stays, and nothing that was given up. [G-LEAP] [G-BEHIND]
#[test]
fn who_is_behind_executes_what_stays_and_nothing_that_was_given_up() {
    let mut r = standing_at(2);
    r.worker.give_up(0, &[GIVEN_UP]);
    assert_eq!((r.worker.next(), r.worker.waiting()), (2, 0));
    assert_eq!(r.worker.wanted().checkpoint_at_least, Some(GIVEN_UP.end));
    r.give(2, Flags::NOOP, (0, 0), &[]);
    assert_eq!(r.worker.next(), GIVEN_UP.end);
    assert_eq!(r.worker.wanted().checkpoint_at_least, None);
    r.finish();
    assert_eq!(r.times(1), 0);
}

/// A replica that has executed an instance that was given up installs another replica's state.
/// [G-BEHIND]
#[test]
fn who_has_executed_something_that_was_given_up_takes_another_ones_state() {
    let mut r = standing_at(4);
    r.worker.give_up(0, &[GIVEN_UP]);
    assert_eq!(r.worker.next(), 4);
    assert_eq!(r.worker.wanted().checkpoint_at_least, Some(GIVEN_UP.end));
    r.give(4, Flags::NOOP, (0, 0), &[]);
    assert_eq!((r.worker.next(), r.worker.waiting()), (4, 0));
    let mut other = standing_at(3);
    other.worker.give_up(0, &[GIVEN_UP]);
    let (position, bytes) = snapshot(&mut other);
    r.worker.restore(0, position, &mut &bytes[..]).unwrap();
    assert_eq!(r.worker.next(), GIVEN_UP.end);
    assert_eq!(r.worker.digest().unwrap(), other.worker.digest().unwrap());
}

// ---- Where epochs begin

fn marker(r: &mut Fed, epoch: u32) {
    let inst = r.worker.next();
    r.give(inst, Flags::NOOP, (0, 0), &emit_marker(epoch));
    r.finish();
}

/// Checks that the worker has stopped, since an epoch begins below its position.
#[track_caller]
fn assert_alarmed(r: &mut Fed) {
    assert!(r.worker.is_alarmed());
    assert_stopped(r);
}

/// Checks that the worker has stopped, and that nothing later is stored or answered.
#[track_caller]
fn assert_stopped(r: &mut Fed) {
    let stored = r.disk.committed();
    let error = r.worker.finish_batch(r.now, &mut r.out).unwrap_err();
    assert!(error.to_string().contains("ALARM"), "{error}");
    let next = r.worker.next();
    let more = r.decide(next, Flags::NOOP, (0, 0), &[]);
    assert_eq!(more, Verdict::Dropped(Reason::Busy));
    assert!(r.worker.finish_batch(r.now, &mut r.out).is_err());
    assert!(r.worker.tick(r.now, &mut r.out).is_err());
    assert!(r.worker.snapshot().is_err());
    assert_eq!((r.disk.committed(), r.out.replies.len()), (stored, 0));
}

/// A replica stops if an epoch begins below what it has executed. [X-BEGIN]
#[test]
fn a_replica_stops_where_an_epoch_begins_below_what_it_has_executed() {
    let mut r = fed();
    marker(&mut r, 1);
    let s = r.open(1, true, 8);
    r.log(s, 1, &command(1));
    assert_eq!(r.worker.next(), 3);
    r.worker.begins(1, 0);
    r.log(s, 2, &command(2));
    r.worker.begins(2, 3);
    assert_alarmed(&mut r);
    // The alarm comes again, as often as the worker is started.
    r.restart();
    r.worker.begins(2, 3);
    assert_alarmed(&mut r);
}

#[test]
fn a_replica_that_is_told_first_stops_before_it_stores_what_comes_in_the_markers_place() {
    let mut r = fed();
    marker(&mut r, 1);
    let s = r.open(1, true, 8);
    r.worker.begins(2, 2);
    r.give(3, Flags::NONE, (s, 2), &command(2));
    r.give(2, Flags::NONE, (s, 1), &command(1));
    assert_alarmed(&mut r);
    assert_eq!(r.disk.committed().tally.total, 0);
    // A plain no-op isn't a marker, and an older epoch's marker doesn't count.
    for value in [&[][..], &emit_marker(1)] {
        r.restart();
        r.worker.begins(2, 2);
        r.give(2, Flags::NOOP, (0, 0), value);
        assert_alarmed(&mut r);
    }
    r.restart();
    r.worker.begins(2, 2);
    assert!(!r.worker.is_alarmed(), "the marker is next");
    marker(&mut r, 2);
    assert!(!r.worker.is_alarmed());
}

/// The controller's store was emptied, so the numbers of disks begin anew, too. The process knows
/// that the number it has drawn isn't late. [X-ANEW]
#[test]
fn a_replica_stops_if_its_disk_gets_a_number_of_an_epoch_that_began_anew() {
    let number = |epoch: u64, n: u64| epoch << 32 | n;
    let before = number(2, 9);
    // The number is of an epoch before the last that was met, or isn't larger than the last one.
    for drawn in [number(1, 20), number(2, 7), before, number(3, 20)] {
        let mut r = fed();
        r.worker.set_incarnation(before).unwrap();
        marker(&mut r, 4);
        r.restart();
        assert!(r.worker.set_incarnation(drawn).is_err());
        assert_stopped(&mut r);
        // The alarm comes again, as often as the worker is started.
        r.restart();
        assert_eq!(r.worker.incarnation(), Some(before));
        assert!(r.worker.set_incarnation(drawn).is_err());
        assert_stopped(&mut r);
        r.restart();
        r.worker.set_incarnation(number(4, 1)).unwrap();
    }
    // An epoch that it meets while the answer is on its way proves nothing.
    let mut r = fed();
    marker(&mut r, 1);
    marker(&mut r, 2);
    r.worker.set_incarnation(number(1, 1)).unwrap();
}

/// Votes of epochs before the last executed marker decide nothing. [X-EARLIER]
#[test]
fn nothing_is_decided_in_epochs_before_the_last_marker() {
    let mut r = fed();
    marker(&mut r, 4);
    // A view with epoch 1 alone is late, or belongs to another epoch 1.
    r.restart();
    let unknown = Verdict::Dropped(Reason::UnknownEpoch);
    assert_eq!(r.decide(1, Flags::NOOP, (0, 0), &[]), unknown);
    assert!(r.worker.wanted().incarnation);
    r.worker.configure(0, &[active(1), active(4)]);
    assert_eq!(r.decide(1, Flags::NOOP, (0, 0), &[]), unknown);
    r.tell_epoch(4);
    r.give(1, Flags::NOOP, (0, 0), &[]);
}

/// PROBE_ACK shows the last epoch whose marker was executed. [E-NEWEST]
#[test]
fn a_probe_shows_the_last_epoch_whose_marker_was_executed() {
    let mut r = fed();
    assert_eq!(shown(&mut r), Round::NONE);
    marker(&mut r, 4);
    marker(&mut r, 2);
    assert_eq!(shown(&mut r), Round::base(4));
    r.restart();
    assert_eq!(shown(&mut r), Round::base(4));
}

/// Returns the round in the answer to a PROBE.
fn shown(r: &mut Fed) -> Round {
    let question = Header {
        msgtype: MsgType::Probe,
        client: 8,
        request: 9,
        rnd: Round::NONE,
        vrnd: Round::NONE,
        ..deliver_header()
    };
    r.out.sent.clear();
    assert_eq!(
        step(r, &question, &Probe::Replica.emit()),
        Verdict::Answered
    );
    r.out.of_type(MsgType::ProbeAck)[0].1.rnd
}

fn step(r: &mut Fed, header: &Header, value: &[u8]) -> Verdict {
    let datagram = header.datagram(value);
    let packet = Packet::parse(&datagram).unwrap();
    r.worker.step(r.now, &packet, &mut r.out)
}

/// A report that is late or repeated doesn't cause an alarm. [X-BEGIN]
#[test]
fn what_is_told_late_or_again_is_no_alarm() {
    let mut r = fed();
    for epoch in [1, 2, 3] {
        marker(&mut r, epoch);
        r.worker.begins(epoch, r.worker.next() - 1);
    }
    // Behind a newer epoch's marker an older one doesn't count.
    marker(&mut r, 2);
    r.restart();
    for (epoch, at) in [(1, 0), (2, 1), (3, 2), (2, 1), (3, 2)] {
        r.worker.begins(epoch, at);
        assert!(!r.worker.is_alarmed());
    }
    r.finish();
    // The replica's state moves elsewhere, and the marker with it.
    let (position, bytes) = snapshot(&mut r);
    let mut behind = Fed::new(settings(REPLICAS[1]));
    behind.worker.begins(3, 2);
    let restored = behind.worker.restore(0, position, &mut &bytes[..]).unwrap();
    assert!(matches!(restored, Restored::To(4)), "{restored:?}");
    behind.finish();
    // The ranges that were given up lie below the beginning of the next epoch, also for a replica
    // that stands inside them.
    for next in [2, 3, 4] {
        let mut r = standing_at(next);
        r.worker.give_up(0, &[GIVEN_UP]);
        r.worker.begins(1, GIVEN_UP.end);
        r.finish();
        assert!(!r.worker.is_alarmed());
    }
}
