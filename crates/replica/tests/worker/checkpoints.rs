// SPDX-License-Identifier: Apache-2.0
//! Checkpoints, TRIM, and the expiry of sessions.

use super::*;

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
    assert_eq!(
        r.worker.execution().incarnation(),
        Some(7),
        "alone on the disk"
    );

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
    assert_eq!(r.worker.execution().incarnation(), None);

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
    let expire = SessionOp::Expire {
        last_request: 7,
        last_inst: inst,
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
                    assert_eq!(SessionOp::parse(value), Some(expire));
                }
            }
            sent.len()
        };
        workers.iter_mut().map(ask).collect()
    };
    for (now, proposed, why) in [
        (timeout - 1, [0, 0, 0], "none is idle"),
        (timeout + SECOND, [1, 0, 0], "the first replica's turn"),
        (timeout + SECOND + 1, [0, 0, 0], "not at once again"),
        (timeout + 2 * SECOND, [1, 0, 0], "but until it takes effect"),
        (timeout * 5 / 4 + SECOND, [1, 1, 0], "the first one is slow"),
    ] {
        assert_eq!(proposals(now), proposed, "{why}");
    }
    assert_eq!(
        workers[0].worker.sessions(),
        2,
        "a proposal alone does nothing"
    );
    workers[0].op(idle, expire);
    assert_eq!(workers[0].worker.sessions(), 1);
}
