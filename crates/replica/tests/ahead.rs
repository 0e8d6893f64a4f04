// SPDX-License-Identifier: Apache-2.0
//! Execution ahead of the stable log: none of it is stored, and a change of the log takes it back,
//! with position, sessions and outcomes.

mod common;

use common::siblings::{Replica, SESSION, stamped};
use common::written::*;
use common::*;
use paxos::{Flags, Instance, PartitionId};
use replica::protocol::ReplyAddress;
use replica::{Restored, Settings, SiblingMessage, Worker};

// ---- Random logs

fn draw(rng: &mut Rng, at: usize, number: u64) -> Value {
    let session = |rng: &mut Rng| (rng.below(at as u64 + 1) + 1) << 16;
    let request = |rng: &mut Rng| 1 + rng.below(12);
    match rng.below(10) {
        0 | 1 => {
            let op = open(rng.below(2) == 0, 8, ReplyAddress::default());
            (Flags::NONE, number, 0, op.to_bytes())
        }
        2 => {
            let close = replica::protocol::SessionOp::Close.to_bytes();
            (Flags::NONE, session(rng), 0, close)
        }
        3 => (Flags::NOOP, 0, 0, Vec::new()),
        4 => {
            let items: Vec<_> = (0..3)
                .map(|n| (session(rng), request(rng), command(3 * number + n)))
                .collect();
            (Flags::PACKED, 55, 1, pack(&items))
        }
        _ => (Flags::NONE, session(rng), request(rng), command(3 * number)),
    }
}

fn random_logs<K: Persistent>(seed: u64) {
    let mut rng = Rng::new(seed);
    let kept = K::default();
    let mut ahead = Ahead::new(ahead_settings(), kept.open());
    let mut model = Model::new(ahead_settings());
    let mut writing = None;
    let mut taken_back = 0;
    for number in 1..=400 {
        let (stable, ready) = (ahead.stable as usize, ahead.log.len());
        match rng.below(16) {
            0..=7 => {
                let value = draw(&mut rng, ready, number);
                ahead.put(ready, value);
            }
            8 if stable < ready => {
                let at = stable + rng.below((ready - stable) as u64) as usize;
                let before = ahead.worker.next();
                let value = draw(&mut rng, at, number);
                ahead.put(at, value);
                taken_back += u64::from(ahead.worker.next() < before);
            }
            9 | 10 => {
                let end = stable as u64 + rng.below((ready - stable) as u64 + 1);
                for value in &ahead.log[stable..end as usize] {
                    model.log(value);
                }
                ahead.stable_below(end);
            }
            11 => ahead.tick(),
            12 => drop(ahead.worker.digest().unwrap()),
            13 => {
                let (position, _) = ahead.worker.snapshot().unwrap();
                assert!(
                    position <= ahead.stable,
                    "seed {seed}: a copy of what isn't stable"
                );
            }
            14 if rng.below(4) == 0 => {
                writing = None;
                ahead.restart(kept.open());
            }
            _ => drop(ahead.finish()),
        }
        writing = writing.or_else(|| ahead.worker.take_checkpoint());
        if rng.below(4) == 0 {
            if let Some(write) = writing.take() {
                ahead.worker.end_checkpoint(ahead.now, write()).unwrap();
            }
        }
        // The store is sound at whatever moment a kill or a power failure comes.
        let stored = Worker::<_, Written>::open_in(ahead.settings.clone(), kept.open(), 1, 0);
        let mut stored = stored.unwrap();
        let next = stored.next();
        assert!(next <= ahead.stable, "seed {seed}: {next} is stored");
        let expected = &model.behind[next as usize];
        assert_eq!(K::tally(stored.application()), expected, "seed {seed}");
    }
    assert!(taken_back > 0, "seed {seed} takes nothing back");

    // The whole log becomes stable. Then the sessions answer as if nothing had ever been taken
    // back.
    for value in &ahead.log[ahead.stable as usize..] {
        model.log(value);
    }
    ahead.stable_below(ahead.log.len() as Instance);
    while ahead.worker.next() < ahead.stable {
        ahead.finish();
    }
    ahead.finish();
    assert_eq!(ahead.worker.sessions(), model.fed.worker.sessions());
    for session in 1..=ahead.log.len() as u64 {
        for request in 1..=12 {
            let again = (Flags::NONE, session << 16, request, command(9_999_999));
            ahead.put(ahead.log.len(), again.clone());
            ahead.stable_below(ahead.log.len() as Instance);
            assert_eq!(ahead.finish(), model.log(&again), "seed {seed}");
        }
    }
    let counted = K::tally(ahead.worker.application());
    assert_eq!(Some(counted), model.behind.last(), "seed {seed}");
}

#[test]
fn what_is_stored_is_stable_and_what_is_taken_back_never_was() {
    for seed in 0..40 {
        random_logs::<Disk>(seed);
        random_logs::<MemoryDisk>(seed);
    }
}

// ---- One at a time

#[test]
fn replies_of_what_is_taken_back_do_not_leave() {
    let mut r = Ahead::new(ahead_settings(), Durable::open(&Disk::default()));
    r.push(1, 0, &open(false, 8, ReplyAddress::default()).to_bytes());
    r.push(SESSION, 1, &command(1));
    r.stable_below(1);
    let other = (Flags::NONE, SESSION, 2, command(2));
    r.put(1, other);
    let requests: Vec<u64> = r.finish().iter().map(|reply| reply.request).collect();
    assert_eq!(requests, [0, 2]);
}

#[test]
fn who_can_take_nothing_back_executes_only_what_is_stable() {
    let disk = Disk::default();
    disk.with(|d| d.cannot_discard = true);
    let mut r = Ahead::new(ahead_settings(), Durable::open(&disk));
    for _ in 0..5 {
        r.noop();
    }
    r.finish();
    assert_eq!(r.worker.next(), 0);
    r.stable_below(3);
    r.finish();
    assert_eq!(r.worker.next(), 3);
}

#[test]
fn answers_that_wait_for_their_commit_wait_until_that_is_possible() {
    let settings = Settings {
        answers_wait: true,
        ..ahead_settings()
    };
    let mut r = Ahead::new(settings, Durable::open(&Disk::default()));
    r.push(1, 0, &open(false, 8, ReplyAddress::default()).to_bytes());
    assert_eq!(r.finish(), []);
    r.stable_below(1);
    assert_eq!(r.finish().len(), 1);
}

#[test]
fn a_full_batch_and_a_due_checkpoint_hold_execution_until_all_of_it_is_stable() {
    let disk = Disk::default();
    let mut r = Ahead::new(ahead_settings(), Durable::open(&disk));
    for _ in 0..3_000 {
        r.noop();
    }
    r.finish();
    assert_eq!((r.worker.next(), disk.with(|d| d.commits)), (1_024, 0));
    assert_eq!(r.worker.statistics().commit_holds, 1);
    assert_eq!(
        r.worker.next_deadline(),
        None,
        "nothing can be done by time"
    );
    r.stable_below(1_000);
    r.finish();
    assert_eq!((r.worker.next(), disk.with(|d| d.commits)), (1_024, 0));
    r.stable_below(1_030);
    r.finish();
    // A checkpoint is due, and values that aren't stable wait until it has begun.
    assert_eq!(r.worker.next(), 1_030);
    assert_eq!(r.worker.execution().checkpointing(), Some(1_030));
    r.finish();
    assert!(r.worker.next() > 1_030);
    let write = r.worker.take_checkpoint().unwrap();
    r.worker.end_checkpoint(r.now, write()).unwrap();
    assert_eq!(r.worker.checkpointed(), 1_030);
}

/// If commits take long, the replica executes at most as many commands ahead as the application
/// allows. [N-COMMIT]
#[test]
fn a_store_whose_commits_take_long_runs_ahead_by_as_many_commands_as_it_says() {
    let disk = Disk::default();
    disk.with(|d| d.most_ahead = Some(8));
    let mut r = Ahead::new(ahead_settings(), Durable::open(&disk));
    r.push(1, 0, &open(false, 8, ReplyAddress::default()).to_bytes());
    r.stable_below(1);
    r.tick();
    let pack_of_three = |at: u64| {
        let items: Vec<_> = (0..3).map(|n| (SESSION, 3 * at + n, command(n))).collect();
        (Flags::PACKED, 55, 1, pack(&items))
    };
    (1..=20).for_each(|at| r.put(at as usize, pack_of_three(at)));
    r.finish();
    // The commands of one slot stay together.
    assert_eq!((r.worker.next(), disk.with(|d| d.commits)), (4, 1));
    assert_eq!(r.worker.statistics().commit_holds, 1);
    r.stable_below(3);
    r.tick();
    assert_eq!((r.worker.next(), disk.with(|d| d.commits)), (4, 1));
    // All stable values are executed, however many they are.
    r.stable_below(10);
    r.finish();
    assert_eq!((r.worker.next(), disk.with(|d| d.commits)), (10, 1));
    r.tick();
    assert_eq!(disk.with(|d| d.commits), 2);
    r.finish();
    assert_eq!(r.worker.next(), 13, "it goes on");
}

/// The checkpoint waits, too, for as long as it takes. Time alone brings nothing, so nothing is
/// due.
#[test]
fn an_overdue_checkpoint_keeps_nobody_awake_who_is_ahead() {
    let disk = Disk::default();
    let mut r = Ahead::new(ahead_settings(), Durable::open(&disk));
    r.noop();
    r.stable_below(1);
    r.tick();
    assert_eq!(disk.with(|d| d.commits), 1);
    r.noop();
    r.finish();
    r.now += 2 * r.settings.checkpoint_interval;
    r.worker.tick(r.now, &mut r.out).unwrap();
    assert_eq!(
        r.worker.execution().checkpointing(),
        None,
        "not all of it is stable"
    );
    let due = r.worker.next_deadline();
    assert!(due.is_none_or(|at| at > r.now), "{due:?} at {}", r.now);
    r.noop();
    r.finish();
    assert_eq!(r.worker.next(), 2, "it is overdue");
    assert_eq!(r.worker.statistics().commit_holds, 1);
    r.stable_below(2);
    r.finish();
    assert_eq!(r.worker.execution().checkpointing(), Some(2));
    r.finish();
    assert_eq!(r.worker.next(), 3, "it goes on");
}

/// A leader whose log always reaches beyond what is stable still answers a reader of its state.
/// Until then it executes no further. [X-READ]
#[test]
fn who_reads_the_state_waits_until_what_was_executed_is_stable() {
    let mut r = Ahead::new(ahead_settings(), Durable::open(&Disk::default()));
    r.push(1, 0, &open(false, 8, ReplyAddress::default()).to_bytes());
    assert!(r.worker.reader().is_none(), "some of it may be taken back");
    r.push(SESSION, 1, &command(1));
    r.finish();
    assert_eq!(r.worker.next(), 1);
    r.stable_below(1);
    assert!(r.worker.reader().is_some());
    r.finish();
    assert_eq!(r.worker.next(), 2, "it runs ahead again");
}

/// A number that the disk gets is stored, and nothing that isn't stable is stored with it.
#[test]
fn a_number_for_the_disk_brings_nothing_that_is_not_stable() {
    let disk = Disk::default();
    let mut r = Ahead::new(ahead_settings(), Durable::open(&disk));
    r.push(1, 0, &open(false, 8, ReplyAddress::default()).to_bytes());
    r.push(SESSION, 1, &command(1));
    r.worker.set_incarnation(1 << 32).unwrap();
    assert_eq!(disk.committed().tally.total, 0);
    r.finish();
    assert_eq!(r.worker.next(), 2, "it comes again");
    r.stable_below(2);
    r.tick();
    r.restart(Durable::open(&disk));
    assert_eq!(r.worker.execution().incarnation(), Some(1 << 32));
    assert_eq!(r.worker.application().tally.total, 1);
}

/// A number that the disk got after its last checkpoint is taken back with the rest, and is stored
/// again. [T-DISK]
#[test]
fn a_program_in_memory_keeps_the_number_of_its_disk() {
    let disk = MemoryDisk::default();
    let mut r = Ahead::new(ahead_settings(), Persistent::open(&disk));
    r.worker.set_incarnation(1 << 32).unwrap();
    r.noop();
    r.put(0, (Flags::NOOP, 0, 0, Vec::new()));
    r.stable_below(1);
    r.worker.checkpoint(r.now).unwrap();
    r.restart(Persistent::open(&disk));
    assert_eq!(r.worker.execution().incarnation(), Some(1 << 32));
}

/// The commits of instances that were taken back are gone, and later commits are numbered anew.
#[test]
fn commits_follow_on_what_is_left_where_something_was_taken_back() {
    let mut r = Ahead::new(ahead_settings(), Persistent::open(&MemoryDisk::default()));
    for number in 0..3 {
        r.noop();
        r.stable_below(number + 1);
        r.tick();
    }
    r.noop();
    r.put(3, (Flags::NOOP, 0, 0, Vec::new()));
    r.stable_below(4);
    r.finish();
    let (position, mut snapshot) = r.worker.snapshot().unwrap();
    let mut bytes = Vec::new();
    snapshot.write_to(&mut bytes).unwrap();
    let settings = ahead_settings();
    let mut other = Ahead::new(settings, Persistent::open(&MemoryDisk::default()));
    let restored = other.worker.restore(0, position, &mut &bytes[..]).unwrap();
    assert!(matches!(restored, Restored::To(4)), "{restored:?}");
}

/// Values kept for another replica can't be taken back. [X-LOG]
#[test]
fn nothing_is_kept_for_another_replica_that_is_not_stable() {
    let mut r = Ahead::new(ahead_settings(), Durable::open(&Disk::default()));
    r.worker.execution_mut().keep_log(true);
    r.noop();
    let session = open(false, 8, ReplyAddress::default()).to_bytes();
    r.put(0, (Flags::NONE, 1, 0, session));
    r.push(SESSION, 1, &command(1));
    r.stable_below(1);
    r.finish();
    let log = r.worker.execution_mut().take_log().unwrap();
    let mut other = Fed::new(settings(REPLICAS[1]));
    other.worker.replay(0, &log, &mut other.out).unwrap();
    assert_eq!((other.worker.next(), other.worker.sessions()), (1, 1));
    assert_eq!(r.worker.next(), 1);
}

/// Values behind a copy are taken back, but the copy itself isn't, since siblings count on it.
/// [V-STABLE] [V-KEPT]
#[test]
fn a_copy_waits_until_it_is_stable_and_then_it_stays_passed() {
    let (mut zero, copy) = zero_at_its_copy();
    let disk = Disk::default();
    let mut one = partition_one(&disk);
    one.put(1, copy);
    assert_eq!(says_to_zero(&mut one), 0, "it isn't stable");
    one.stable_below(2);
    one.push(SESSION, 9, &command(9));
    exchange(&mut zero, &mut one);
    assert_eq!(
        (one.worker.next(), one.worker.execution().kept_outcomes()),
        (3, 1)
    );
    assert_eq!(disk.committed().tally.by_command.get(&5), Some(&1));
    assert_eq!(disk.committed().tally.by_command.get(&9), None);

    one.put(2, (Flags::NOOP, 0, 0, Vec::new()));
    assert_eq!(
        (one.worker.next(), one.worker.execution().kept_outcomes()),
        (3, 1)
    );
    assert_eq!(says_to_zero(&mut one), 0, "nobody is asked again");
    let tally = &one.worker.application().tally;
    assert_eq!((tally.by_command[&5], tally.total), (1, 1));
    assert_eq!(zero.at(0).times(5), 1);
}

/// In another log the copy may be at that place. [V-STABLE]
#[test]
fn a_place_that_was_passed_ahead_of_what_is_stable_says_nothing() {
    for is_lost in [false, true] {
        let (mut zero, copy) = zero_at_its_copy();
        let mut one = partition_one(&Disk::default());
        one.noop();
        exchange(&mut zero, &mut one);
        assert_eq!((zero.at(0).worker.next(), one.worker.next()), (1, 2));
        if !is_lost {
            one.put(1, copy);
        }
        one.stable_below(2);
        exchange(&mut zero, &mut one);
        assert_eq!((zero.at(0).worker.next(), one.worker.next()), (2, 2));
        let times = u64::from(!is_lost);
        assert_eq!(zero.at(0).times(5), times);
        assert_eq!(one.worker.application().tally.total, times);
    }
}

/// The copy of an earlier session can't come there any more. [V-SEALED]
#[test]
fn where_a_later_session_begins_ends_the_wait_for_a_copy() {
    for (session, begins, ends) in [(2, 1, true), (2, 2, false), (1, 1, false)] {
        let (mut zero, _) = zero_at_its_copy();
        let mut one = partition_one(&Disk::default());
        exchange(&mut zero, &mut one);
        assert!(one.worker.begins(session, begins));
        assert!(!one.worker.begins(session, begins), "it is no news");
        exchange(&mut zero, &mut one);
        let next = zero.at(0).worker.next();
        assert_eq!(next, if ends { 2 } else { 1 }, "{session} {begins}");
        assert_eq!(zero.at(0).times(5), 0);
    }
}

/// Returns partition 0 of a replica, which stands at a copy of command 5 that also has slot 1 of
/// partition 1, and that copy.
fn zero_at_its_copy() -> (Replica, Value) {
    let mut zero = Replica::new(2);
    let copy = stamped(1, &[(0, 1), (1, 1)], &command(5));
    zero.at(0).give(1, Flags::MULTI, (SESSION, 5), &copy);
    (zero, (Flags::MULTI, SESSION, 5, copy))
}

/// Returns partition 1 of the same replica, in which a session is open.
fn partition_one(disk: &Disk) -> Ahead<Durable> {
    disk.with(|d| d.spans = true);
    let mut settings = ahead_settings();
    settings.deployment.partitions = 2;
    settings.pid = 1;
    let mut one = Ahead::new(settings, Durable::open(disk));
    one.push(7, 0, &open(false, 64, ReplyAddress::default()).to_bytes());
    one.stable_below(1);
    one
}

/// Returns how many messages partition 1 has for partition 0, without those about its durable
/// position.
fn says_to_zero(one: &mut Ahead<Durable>) -> usize {
    one.finish();
    let mail = std::mem::take(&mut one.out.mail);
    let says = |(_, message): &&(PartitionId, SiblingMessage)| {
        !matches!(message, SiblingMessage::Synced(_))
    };
    mail.iter().filter(says).count()
}

/// Delivers messages in both directions until there are none.
fn exchange(zero: &mut Replica, one: &mut Ahead<Durable>) {
    loop {
        one.finish();
        zero.finish(0);
        let (to_zero, to_one) = (&mut one.out.mail, &mut zero.mail[0][1]);
        if to_zero.is_empty() && to_one.is_empty() {
            return;
        }
        let zero = &mut zero.partitions[0];
        for (_, message) in to_zero.drain(..) {
            zero.worker.sibling(zero.now, 1, message);
        }
        for message in to_one.drain(..) {
            one.worker.sibling(one.now, 0, message);
        }
    }
}
