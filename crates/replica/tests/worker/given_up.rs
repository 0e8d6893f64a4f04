// SPDX-License-Identifier: Apache-2.0
//! Instances that an operator gave up.

use super::*;

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
