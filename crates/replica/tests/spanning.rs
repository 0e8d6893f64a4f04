// SPDX-License-Identifier: Apache-2.0
//! Commands over several partitions: the test hands out the logs and messages of one replica's
//! workers.

mod common;

use common::siblings::*;
use common::*;
use paxos::wire::value::emit_marker;
use paxos::{Flags, Instance, MsgType, Round};
use replica::Status;

/// Runs a script on the replica: everything that follows from a decided value happens at once.
impl Script for Replica {
    fn copy_at(&mut self, pid: usize, inst: Instance, epoch: u32, vector: &Places, request: u64) {
        let value = stamped(epoch, vector, &command(request));
        self.at(pid)
            .give(inst, Flags::MULTI, (SESSION, request), &value);
        self.settle();
    }

    fn noop(&mut self, pid: usize, inst: Instance) {
        self.at(pid).give(inst, Flags::NOOP, (0, 0), &[]);
        self.settle();
    }

    fn marker(&mut self, pid: usize, inst: Instance, epoch: u32) {
        let value = emit_marker(epoch);
        self.at(pid).give(inst, Flags::NOOP, (0, 0), &value);
        self.settle();
    }

    fn times(&mut self, number: u64) -> Vec<u64> {
        let times = self.partitions.iter_mut().map(|p| p.times(number));
        times.collect()
    }
}

trait Script {
    fn copy_at(&mut self, pid: usize, inst: Instance, epoch: u32, vector: &Places, request: u64);
    fn noop(&mut self, pid: usize, inst: Instance);
    fn marker(&mut self, pid: usize, inst: Instance, epoch: u32);
    fn times(&mut self, number: u64) -> Vec<u64>;

    /// Decides a copy in one partition, at its place.
    fn copy(&mut self, pid: usize, vector: &Places, request: u64) {
        let mut places = vector.iter();
        let (_, inst) = places.find(|(of, _)| usize::from(*of) == pid).unwrap();
        self.copy_at(pid, *inst, 1, vector, request);
    }
}

// ---- Without faults

/// A command over several partitions takes effect in all of them once each has met its copy.
/// [V-STEPS] [V-STAND] [V-SESSION]
#[test]
fn a_command_takes_effect_in_all_its_partitions_once_all_have_their_copy() {
    let mut r = Replica::new(3);
    let vector = [(0, 1), (2, 2)];
    r.copy(0, &vector, 5);
    // Commands behind the copy wait, in this partition alone.
    r.at(0).give(2, Flags::NONE, (SESSION, 6), &command(6));
    r.at(2).give(1, Flags::NONE, (SESSION, 5), &command(70));
    r.settle();
    assert!(r.at(0).worker.execution().waits_for_siblings());
    assert_eq!((r.next(), r.times(5)), (vec![1, 1, 2], vec![0, 0, 0]));
    r.replies.clear();
    r.copy(2, &vector, 5);
    assert_eq!(r.next(), [3, 1, 3]);
    assert_eq!(r.times(5), [1, 0, 1]);
    assert_eq!(r.times(6), [1, 0, 0]);
    // Each partition has noted what all had executed: nothing in 0, one command in 2.
    assert_eq!(r.times(SUM_OF + 5), [1, 0, 1]);
    let replies: Vec<(u64, Status)> = r.replies.iter().map(|r| (r.request, r.status)).collect();
    assert_eq!(
        replies,
        [(5, Status::Ok), (6, Status::Ok)],
        "partition 0 alone answers"
    );
}

/// Request 5 of the session in partition 1 and request 5 of the session in partition 0 are
/// different requests. [V-SESSION]
#[test]
fn only_the_session_of_the_lowest_partition_is_asked() {
    let mut r = Replica::new(2);
    r.at(1).give(1, Flags::NONE, (SESSION, 5), &command(70));
    let vector = [(0, 1), (1, 2)];
    r.copy(1, &vector, 5);
    r.copy(0, &vector, 5);
    assert_eq!(r.times(5), [1, 1]);
    // The same command once more changes nothing, and is answered from the record.
    r.replies.clear();
    let again = [(0, 2), (1, 3)];
    r.copy(0, &again, 5);
    r.copy(1, &again, 5);
    assert_eq!((r.next(), r.times(5)), (vec![3, 4], vec![1, 1]));
    assert_eq!(r.replies.len(), 1);
    assert_eq!(r.replies[0].bytes, 1u64.to_be_bytes());
}

/// A copy that is met early waits until its sibling is met. [V-STAND]
#[test]
fn a_copy_that_came_early_waits_for_its_turn() {
    let mut r = Replica::new(2);
    let vector = [(0, 2), (1, 2)];
    r.copy(0, &vector, 5);
    r.copy(1, &vector, 5);
    assert!(!r.at(0).worker.execution().waits_for_siblings());
    r.noop(1, 1);
    assert!(r.at(1).worker.execution().waits_for_siblings());
    r.noop(0, 1);
    assert_eq!((r.next(), r.times(5)), (vec![3, 3], vec![1, 1]));
}

/// An application without the three steps refuses commands over several partitions. [X-MULTI]
#[test]
fn a_program_without_the_three_steps_refuses() {
    let mut r = Replica::new(2);
    for fed in &mut r.partitions {
        fed.disk.with(|d| d.spans = false);
    }
    r.replies.clear();
    let vector = [(0, 1), (1, 1)];
    r.copy(1, &vector, 5);
    assert_eq!(r.next(), [1, 2], "nobody waits");
    r.copy(0, &vector, 5);
    assert_eq!(status_of(&r.replies), Status::Unsupported);
    assert_eq!(r.times(5), [0, 0]);
}

/// A value that isn't a well-formed command over several partitions executes nothing. [X-FORM]
#[test]
fn what_is_no_vector_executes_nothing() {
    let mut r = Replica::new(2);
    let good = stamped(1, &[(0, 1), (1, 1)], &command(5));
    let foreign = stamped(1, &[(0, 2), (2, 1)], &command(5));
    let id = (SESSION, 5);
    r.at(0).give(1, Flags::MULTI, id, &good[..9]);
    r.at(0).give(2, Flags::MULTI, id, &foreign);
    let packed = Flags(Flags::MULTI.0 | Flags::PACKED.0);
    r.at(0)
        .give(3, packed, id, &stamped(1, &[(0, 3)], &command(5)));
    r.settle();
    assert_eq!(r.next(), [4, 1]);
    assert_eq!(r.at(0).worker.statistics().malformed, 3);
    assert_eq!(r.times(5), [0, 0]);
}

// ---- Dead copies

/// Returns whether the last answer says that this vector is dead.
fn died(replies: &[Reply], epoch: u32, inst: Instance) -> bool {
    let place = [&Round::base(epoch).0.to_be_bytes()[..], &inst.to_be_bytes()].concat();
    let last = replies.last();
    last.is_some_and(|r| (r.status, &r.bytes) == (Status::Dead, &place))
}

/// If another partition holds something else at the command's place, the command has no effect.
/// [V-ALIVE] [V-DEAD]
#[test]
fn a_copy_whose_sibling_holds_something_else_is_dead() {
    for lowest_lost in [true, false] {
        let mut r = Replica::new(2);
        let vector = [(0, 1), (1, 1)];
        let (lost, there) = if lowest_lost { (0, 1) } else { (1, 0) };
        r.copy(there, &vector, 5);
        r.noop(lost, 1);
        assert_eq!((r.next(), r.times(5)), (vec![2, 2], vec![0, 0]));
        assert!(died(&r.replies, 1, 1));
        // The dead copy left nothing, so the same request takes effect with another vector.
        let again = [(0, 2), (1, 2)];
        r.copy(0, &again, 5);
        r.copy(1, &again, 5);
        assert_eq!((r.times(5), r.kept()), (vec![1, 1], vec![1, 1]));
    }
}

/// A copy at a place that its vector doesn't name has no effect. [V-ALIVE]
#[test]
fn a_copy_at_a_place_that_its_vector_does_not_name_is_dead() {
    let mut r = Replica::new(2);
    let vector = [(0, 2), (1, 1)];
    r.copy_at(0, 1, 1, &vector, 5);
    assert_eq!(r.next(), [2, 1]);
    assert!(died(&r.replies, 1, 2));
    r.copy_at(0, 2, 1, &vector, 5);
    r.copy_at(1, 1, 1, &vector, 5);
    assert_eq!(r.times(5), [1, 1], "those at its places live");
}

/// The marker of a later epoch ends the wait for a copy. [V-ALIVE] [V-MARKER] [V-JUDGE]
#[test]
fn a_later_epochs_marker_ends_waiting() {
    for lowest_waits in [true, false] {
        let mut r = Replica::new(2);
        let vector = [(0, 3), (1, 3)];
        let (waits, other) = if lowest_waits { (0, 1) } else { (1, 0) };
        r.noop(waits, 1);
        r.noop(waits, 2);
        r.copy(waits, &vector, 5);
        // A marker of the copy's own epoch says nothing.
        r.marker(other, 1, 1);
        assert!(r.at(waits).worker.execution().waits_for_siblings());
        r.marker(other, 2, 2);
        assert_eq!(r.at(waits).worker.next(), 4);
        assert!(died(&r.replies, 1, 3));
        // A copy that a repair revives behind the marker is dead, too, even after a restart.
        r.kill(&[]);
        r.settle();
        r.at(other).tell_epoch(2);
        r.copy(other, &vector, 5);
        assert_eq!((r.next(), r.times(5)), (vec![4, 4], vec![0, 0]));
    }
}

/// A marker behind the places of a command doesn't make it dead. [V-JUDGE]
#[test]
fn a_marker_behind_the_places_kills_nothing() {
    let mut r = Replica::new(2);
    let vector = [(0, 1), (1, 1)];
    r.copy(0, &vector, 5);
    r.copy(1, &vector, 5);
    r.marker(0, 2, 2);
    // Partition 1 alone loses what it has executed.
    r.checkpoint(0);
    r.settle();
    r.kill(&[1]);
    r.settle();
    assert_eq!(r.next(), [3, 0]);
    replay(&mut r, 1);
    r.copy(1, &vector, 5);
    assert_eq!(r.times(5), [1, 1]);
}

/// Decides again the values of [`Replica::new`].
fn replay(r: &mut Replica, pid: usize) {
    r.open(pid);
    r.settle();
}

// ---- What is kept

/// Outcomes are kept until all partitions have passed them and that is on disk. [V-RECORD]
/// [V-FORGET]
#[test]
fn outcomes_are_kept_until_all_have_passed_them_on_disk() {
    for lost in [0, 1, 2] {
        let mut r = Replica::new(3);
        for pid in 0..3 {
            r.checkpoint(pid);
            r.settle();
        }
        let vector = [(0, 1), (1, 1), (2, 1)];
        for pid in 0..3 {
            r.copy(pid, &vector, 5);
        }
        for pid in (0..3).filter(|pid| *pid != lost) {
            r.checkpoint(pid);
            r.settle();
            assert_eq!(r.kept(), [1, 1, 1]);
        }
        r.kill(&[lost]);
        r.settle();
        assert_eq!((r.at(lost).worker.next(), r.kept()[lost]), (1, 0));
        r.replies.clear();
        r.copy(lost, &vector, 5);
        assert_eq!(
            (r.times(5), r.times(SUM_OF + 5)),
            (vec![1, 1, 1], vec![0, 0, 0])
        );
        assert_eq!(
            r.replies.len(),
            usize::from(lost == 0),
            "its session is there"
        );
        r.checkpoint(lost);
        r.settle();
        assert_eq!(r.kept(), [0, 0, 0]);
        // The next commit stores that the outcomes may be forgotten.
        for pid in 0..3 {
            r.noop(pid, 2);
            let records = r.at(pid).disk.committed().records;
            assert!(!records.keys().any(|key| key[0] == b'o'));
        }
    }
}

/// The others learn the outcome from the lowest partition, which learns it from the one that has
/// it. [V-RECORD]
#[test]
fn one_record_is_enough() {
    let mut r = Replica::new(3);
    for pid in 0..3 {
        r.checkpoint(pid);
        r.settle();
    }
    let vector = [(0, 1), (1, 1), (2, 1)];
    for pid in 0..3 {
        r.copy(pid, &vector, 5);
    }
    r.checkpoint(1);
    r.settle();
    r.kill(&[0, 2]);
    r.settle();
    r.copy(2, &vector, 5);
    assert_eq!(r.times(5), [0, 1, 0]);
    r.copy(0, &vector, 5);
    assert_eq!(r.times(5), [1, 1, 1]);
}

/// An outcome that changes nothing is recorded, too. [V-RECORD]
#[test]
fn a_repetition_has_an_outcome() {
    let mut r = Replica::new(2);
    for (request, inst) in [(5, 1), (5, 2)] {
        let vector = [(0, inst), (1, inst)];
        r.copy(0, &vector, request);
        r.copy(1, &vector, request);
    }
    r.checkpoint(1);
    r.settle();
    r.kill(&[0]);
    r.settle();
    replay(&mut r, 0);
    for inst in [1, 2] {
        r.copy(0, &[(0, inst), (1, inst)], 5);
    }
    assert_eq!((r.next(), r.times(5)), (vec![3, 3], vec![1, 1]));
}

/// Returns the instances that a partition asks acceptors about before its next poll is due.
fn asks_about(r: &mut Replica, pid: usize) -> Vec<Instance> {
    let fed = r.at(pid);
    for now in [0, SECOND / 4, SECOND / 2] {
        fed.out.sent.clear();
        fed.now = now;
        fed.worker.tick(now, &mut fed.out).unwrap();
    }
    let asked = fed.out.of_type(MsgType::Query);
    let mut instances: Vec<_> = asked.iter().map(|(_, header, _)| header.inst).collect();
    instances.dedup();
    instances
}

/// A partition that hears of a copy looks for its own copy. [V-GAP]
#[test]
fn a_copy_starts_the_siblings_gap_timers() {
    let mut r = Replica::new(3);
    r.copy(2, &[(0, 1), (1, 2), (2, 1)], 5);
    assert_eq!(asks_about(&mut r, 0), [1]);
    assert_eq!(asks_about(&mut r, 1), [1, 2]);
    // A copy of an earlier epoch than the active one doesn't show that anything was begun.
    let mut r = Replica::new(2);
    for fed in &mut r.partitions {
        fed.worker.configure(0, &[active(1), active(2)]);
    }
    r.copy(1, &[(0, 1), (1, 1)], 5);
    assert_eq!(asks_about(&mut r, 0), []);
}
