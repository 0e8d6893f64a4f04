// SPDX-License-Identifier: Apache-2.0
//! The checker finds each known anomaly, and finds nothing in histories that are right.

use crate::checker::{AnomalyKind, check};
use crate::cycles::Edge;
use crate::history::Operation::{Append, Read};
use crate::history::{ClientOutcome, Entry, Operation};

const X: u64 = 1;
const Y: u64 = 2;

/// A transaction that committed between these times.
fn committed(begin: u64, end: u64, operations: &[Operation]) -> Entry {
    Entry {
        begin,
        end,
        told: ClientOutcome::Committed,
        operations: operations.to_vec(),
    }
}

/// A transaction that ran at the same time as all others like it.
fn at_once(operations: &[Operation]) -> Entry {
    committed(0, 100, operations)
}

fn told(told: ClientOutcome, operations: &[Operation]) -> Entry {
    Entry {
        told,
        ..at_once(operations)
    }
}

fn read(key: u64, list: &[u64]) -> Operation {
    Read(key, list.to_vec())
}

#[track_caller]
fn shows(kind: AnomalyKind, history: &[Entry]) {
    let found = check(history);
    let kinds: Vec<AnomalyKind> = found.iter().map(|anomaly| anomaly.kind).collect();
    assert_eq!(kinds, [kind], "{found:?}");
}

#[test]
fn a_serial_history_is_right() {
    let history = [
        committed(0, 1, &[read(X, &[]), Append(X, 1), read(X, &[1])]),
        committed(2, 3, &[Append(X, 2), Append(Y, 3)]),
        committed(2, 5, &[read(X, &[1, 2]), read(Y, &[3])]),
        committed(4, 6, &[Append(X, 4), Append(X, 5), read(X, &[1, 2, 4, 5])]),
    ];
    assert_eq!(check(&history), []);
}

#[test]
fn what_ran_at_once_may_be_in_any_order() {
    let history = [
        at_once(&[Append(X, 1)]),
        at_once(&[Append(X, 2)]),
        at_once(&[read(X, &[])]),
        at_once(&[read(X, &[2])]),
        at_once(&[read(X, &[2, 1])]),
    ];
    assert_eq!(check(&history), []);
}

#[test]
fn what_nobody_was_told_may_have_happened_or_not() {
    let unknown = told(ClientOutcome::Nothing, &[Append(X, 1), Append(Y, 2)]);
    for (x, y) in [(vec![], vec![]), (vec![1], vec![2])] {
        let later = committed(200, 201, &[Read(X, x), Read(Y, y)]);
        assert_eq!(check(&[unknown.clone(), later]), []);
    }
    let half = committed(200, 201, &[read(X, &[1]), read(Y, &[])]);
    shows(AnomalyKind::SingleAntiDependency, &[unknown, half]);
}

#[test]
fn a_write_cycle_is_g0() {
    let history = [
        at_once(&[Append(X, 1), Append(Y, 1 + 10)]),
        at_once(&[Append(X, 2), Append(Y, 2 + 10)]),
        at_once(&[read(X, &[1, 2]), read(Y, &[12, 11])]),
    ];
    shows(AnomalyKind::DirtyWrite, &history);
}

#[test]
fn reading_what_was_aborted_is_g1a() {
    let history = [
        told(ClientOutcome::Aborted, &[Append(X, 1)]),
        at_once(&[read(X, &[1])]),
    ];
    shows(AnomalyKind::AbortedRead, &history);
}

#[test]
fn reading_what_is_overwritten_later_is_g1b() {
    let history = [
        at_once(&[Append(X, 1), Append(X, 2)]),
        at_once(&[read(X, &[1])]),
        at_once(&[read(X, &[1, 2])]),
    ];
    shows(AnomalyKind::IntermediateRead, &history);
}

#[test]
fn reading_from_one_another_is_g1c() {
    let history = [
        at_once(&[Append(X, 1), read(Y, &[2])]),
        at_once(&[Append(Y, 2), read(X, &[1])]),
    ];
    shows(AnomalyKind::CircularInformation, &history);
}

#[test]
fn reading_half_of_a_transaction_is_g_single() {
    let history = [
        at_once(&[Append(X, 1), Append(Y, 2)]),
        at_once(&[read(X, &[1]), read(Y, &[])]),
        at_once(&[read(Y, &[2])]),
    ];
    shows(AnomalyKind::SingleAntiDependency, &history);
    let found = check(&history);
    assert_eq!(found[0].transactions.len(), 2);
    assert!(found[0].edges.contains(&Edge::ReadWrite));
}

#[test]
fn two_that_append_to_what_both_read_lose_an_update() {
    let history = [
        at_once(&[read(X, &[]), Append(X, 1)]),
        at_once(&[read(X, &[]), Append(X, 2)]),
        at_once(&[read(X, &[1, 2])]),
    ];
    shows(AnomalyKind::LostUpdate, &history);
}

#[test]
fn write_skew_is_g2() {
    let history = [
        at_once(&[read(X, &[]), Append(Y, 1)]),
        at_once(&[read(Y, &[]), Append(X, 2)]),
        at_once(&[read(X, &[2]), read(Y, &[1])]),
    ];
    shows(AnomalyKind::AntiDependency, &history);
}

#[test]
fn a_stale_read_breaks_real_time() {
    let mut history = [
        committed(0, 1, &[Append(X, 1)]),
        committed(2, 3, &[read(X, &[])]),
        committed(4, 5, &[read(X, &[1])]),
    ];
    shows(AnomalyKind::RealTime, &history);
    assert!(check(&history)[0].edges.contains(&Edge::RealTime));
    // The reader began before the append had ended.
    history[1].begin = 1;
    assert_eq!(check(&history), []);
}

#[test]
fn an_acknowledged_append_that_is_never_seen_again_breaks_real_time() {
    let history = [
        committed(0, 1, &[Append(X, 1)]),
        committed(2, 3, &[Append(X, 2)]),
        committed(4, 5, &[read(X, &[2])]),
    ];
    shows(AnomalyKind::RealTime, &history);
}

#[test]
fn half_of_a_transaction_in_one_list_is_a_lost_append() {
    let history = [
        at_once(&[Append(X, 1), Append(X, 2)]),
        at_once(&[read(X, &[2])]),
    ];
    shows(AnomalyKind::LostAppend, &history);
}

#[test]
fn lists_that_contradict_each_other_are_found() {
    let writes = at_once(&[Append(X, 1)]);
    let more = at_once(&[Append(X, 2)]);
    let one = at_once(&[read(X, &[1, 2])]);
    let other = at_once(&[read(X, &[2])]);
    shows(AnomalyKind::Disagreement, &[writes, more, one, other]);
}

#[test]
fn values_from_nowhere_and_twice_are_found() {
    shows(AnomalyKind::Unwritten, &[at_once(&[read(X, &[7])])]);
    let twice = [at_once(&[Append(X, 1)]), at_once(&[read(X, &[1, 1])])];
    shows(AnomalyKind::Duplicate, &twice);
}

#[test]
fn a_transaction_must_see_its_own_writes() {
    shows(
        AnomalyKind::Internal,
        &[at_once(&[Append(X, 1), read(X, &[])])],
    );
    let changes = [
        at_once(&[read(X, &[]), read(X, &[1])]),
        at_once(&[Append(X, 1)]),
    ];
    shows(AnomalyKind::Internal, &changes);
}
