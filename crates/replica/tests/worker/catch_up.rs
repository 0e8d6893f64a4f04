// SPDX-License-Identifier: Apache-2.0
//! Taking over another replica's state, and refusing what is another's.

use super::*;

/// The bytes of a snapshot that hold its position.
const POSITION: std::ops::Range<usize> = 18..26;

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
