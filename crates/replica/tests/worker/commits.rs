// SPDX-License-Identifier: Apache-2.0
//! Commits, and the answers that wait for them.

use super::*;

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
