// SPDX-License-Identifier: Apache-2.0
use test_world::Rng;

use super::*;

const NOON: u64 = 1_795_467_197_000;
const HOUR: u64 = 3_600_000;

fn stamp(node: u16, ms: u64) -> Stamp {
    Stamp { node, ms }
}

/// Front ends 1, 2, ... report one after the other at one moment, each with the error of its clock.
fn report_all(clock: &mut Clock, ms: u64, off: &[i64]) {
    for (node, of) in (1..).zip(off) {
        clock.report(stamp(node, ms.saturating_add_signed(*of)), off.len() as u8);
    }
}

#[test]
fn one_wrong_clock_moves_nothing_wherever_it_is() {
    for off in [
        1_800_000,
        -1_800_000,
        86_400_000,
        -86_400_000,
        2_000,
        -2_000,
    ] {
        let mut clock = Clock::default();
        report_all(&mut clock, NOON, &[0, off, 0]);
        assert_eq!(clock.ms, NOON, "{off}");
        for n in 1..200 {
            // The wrong one's commands come first, then one of a front end that is right.
            let now = NOON + n * 50;
            for _ in 0..20 {
                clock.take(stamp(2, now.saturating_add_signed(off)));
                assert!(clock.ms <= now, "{off}");
            }
            clock.take(stamp(1, now));
            assert_eq!(clock.ms, now, "{off}");
            if n % 20 == 0 {
                report_all(&mut clock, now, &[0, off, 0]);
            }
        }
    }
}

/// Front ends publish messages before they know the time.
#[test]
fn front_ends_that_do_not_know_the_time_have_no_say() {
    let mut clock = Clock::default();
    clock.take(stamp(2, 0));
    clock.take(stamp(3, 0));
    clock.take(stamp(1, NOON));
    clock.take(stamp(2, 0));
    assert_eq!(clock.ms, NOON);
}

#[test]
fn a_clock_that_leaps_or_races_moves_the_time_by_its_reach() {
    let mut clock = Clock::default();
    report_all(&mut clock, NOON, &[0, 0, 0]);
    for n in 1..1_000 {
        clock.take(stamp(2, NOON + n * HOUR));
        assert!(clock.ms <= NOON + REACH_MS);
    }
    report_all(&mut clock, NOON + 1_000, &[0, 1_000 * HOUR as i64, 0]);
    clock.take(stamp(2, NOON + 2_000 * HOUR));
    assert!(clock.ms <= NOON + ROUND_MS + REACH_MS);
}

#[test]
fn time_never_goes_back_and_waits_for_a_majority_at_half_speed() {
    let mut clock = Clock::default();
    let ahead = 60_000;
    report_all(&mut clock, NOON, &[ahead, ahead, ahead]);
    let first = NOON + ahead as u64;
    assert_eq!(clock.ms, first);
    // All are corrected: a minute passes while the group's time moves on by half of it.
    for second in 1..=120 {
        let before = clock.ms;
        report_all(&mut clock, NOON + second * 1_000, &[0, 0, 0]);
        assert!(clock.ms >= before);
        assert!(
            clock.ms - before <= 1_000,
            "{second}: {}",
            clock.ms - before
        );
        if second > 2 && second < 118 {
            assert!(clock.ms - before >= 490, "{second}: it stands still");
        }
    }
    let late = NOON + 125_000;
    report_all(&mut clock, late, &[0, 0, 0]);
    assert_eq!(clock.ms, late);
}

#[test]
fn a_majority_that_was_behind_is_followed_at_once() {
    let mut clock = Clock::default();
    let behind = -2 * 24 * HOUR as i64;
    report_all(&mut clock, NOON, &[behind; 3]);
    assert_eq!(clock.ms, NOON.saturating_add_signed(behind));
    report_all(&mut clock, NOON + 1_000, &[0, behind, behind]);
    assert!(clock.ms < NOON - 24 * HOUR);
    report_all(&mut clock, NOON + 2_000, &[0, 0, behind]);
    assert_eq!(clock.ms, NOON + 2_000);
}

#[test]
fn of_two_the_smaller_counts_and_one_counts_alone() {
    let mut clock = Clock::default();
    report_all(&mut clock, NOON, &[0, HOUR as i64]);
    assert_eq!(clock.ms, NOON);
    let mut alone = Clock::default();
    alone.take(stamp(7, NOON));
    alone.take(stamp(7, NOON + 9 * HOUR));
    assert_eq!(alone.ms, NOON + 9 * HOUR);
}

#[test]
fn there_is_no_time_before_most_have_reported_or_a_command_comes() {
    let mut clock = Clock::default();
    clock.report(stamp(2, NOON + HOUR), 3);
    clock.report(stamp(2, NOON + HOUR + 1_000), 3);
    assert_eq!(clock.ms, 0);
    clock.report(stamp(1, NOON), 3);
    assert_eq!(clock.ms, NOON);
    let mut other = Clock::default();
    other.report(stamp(2, NOON), 3);
    other.take(stamp(2, NOON + 5));
    assert_eq!(other.ms, NOON + 5);
}

#[test]
fn time_goes_on_while_most_are_silent_and_who_left_is_forgotten() {
    let mut clock = Clock::default();
    report_all(&mut clock, NOON, &[0, 500, 0]);
    let own = 500;
    // Only the second one is left. The time that passes for it moves the others' readings, too.
    for n in 1..FORGET_ROUNDS {
        clock.report(stamp(2, NOON + own + n * 1_000), 3);
        assert!(clock.ms.abs_diff(NOON + n * 1_000) <= own, "{n}");
    }
    assert_eq!(clock.readings.len(), 3);
    for n in FORGET_ROUNDS..FORGET_ROUNDS + 3 {
        clock.report(stamp(2, NOON + own + n * 1_000), 3);
    }
    assert_eq!(clock.readings.len(), 1);
    assert_eq!(clock.ms, NOON + own + (FORGET_ROUNDS + 2) * 1_000);
}

#[test]
fn a_stamp_that_is_late_or_comes_twice_changes_nothing() {
    let mut clock = Clock::default();
    report_all(&mut clock, NOON, &[0, 0, 0]);
    clock.take(stamp(1, NOON + 700));
    let before = clock.clone();
    clock.take(stamp(1, NOON - HOUR));
    clock.take(stamp(1, NOON + 700));
    assert_eq!(clock, before);
}

#[test]
fn no_more_front_ends_count_than_a_group_has() {
    let mut clock = Clock::default();
    for node in 0..1_000 {
        clock.take(stamp(node, NOON));
    }
    assert_eq!(clock.readings.len(), MOST);
    clock.report(stamp(0, NOON), 3);
    clock.report(stamp(0, NOON), 3);
    clock.take(stamp(2_000, NOON));
    assert_eq!(clock.readings.len(), MOST, "one that is silent made room");
    assert!(clock.readings.iter().any(|r| r.node == 2_000));
}

#[test]
fn it_is_stored_whole_and_what_is_damaged_is_refused() {
    let mut clock = Clock::default();
    report_all(&mut clock, NOON, &[0, HOUR as i64, 5]);
    clock.take(stamp(1, NOON + 70));
    report_all(&mut clock, NOON - 40, &[0, 0, 5]);
    let mut bytes = Vec::new();
    clock.emit(&mut bytes);
    let len = bytes.len();
    bytes.extend_from_slice(b"rest");
    assert_eq!(Clock::parse(&bytes), Some((clock, &b"rest"[..])));
    for end in 0..len {
        assert_eq!(Clock::parse(&bytes[..end]), None, "{end}");
    }
    // The readings now are later than the time that has passed.
    bytes[8..16].fill(0);
    assert_eq!(Clock::parse(&bytes), None);
}

/// A front end of the random test, with its clock's error.
struct FrontEnd {
    node: u16,
    off: i64,
    /// How much the error changes each second.
    drift: i64,
    next_report: u64,
}

impl FrontEnd {
    fn wall(&self, ms: u64) -> u64 {
        let drift = self.drift * ((ms - NOON) / 1_000) as i64;
        ms.saturating_add_signed(self.off + drift)
    }
}

/// Returns front ends most of which are right within 20 ms.
fn random_front_ends(rng: &mut Rng) -> Vec<FrontEnd> {
    let many = 1 + rng.below(7);
    let wrong = rng.below(many.div_ceil(2));
    let of = |n| {
        let is_wrong = n < wrong;
        let days = rng.below(6 * 86_400_000) as i64 - 3 * 86_400_000;
        FrontEnd {
            node: 100 - n as u16,
            off: if is_wrong { days } else { days % 20 },
            drift: if is_wrong {
                rng.below(9_000) as i64 - 4_500
            } else {
                0
            },
            next_report: NOON + rng.below(1_000),
        }
    };
    (0..many).map(of).collect()
}

#[test]
fn in_random_groups_a_minority_moves_the_time_by_its_reach_at_most() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut all = random_front_ends(&mut rng);
        let many = all.len() as u8;
        let (mut clock, mut copy) = (Clock::default(), Clock::default());
        let mut now = NOON;
        while now < NOON + 60_000 {
            now += rng.below(30);
            let speaker = rng.below(many.into()) as usize;
            // The command was under way for a while, or is sent again.
            let late = rng.below(40) * u64::from(rng.percent(10));
            let command = stamp(all[speaker].node, all[speaker].wall(now) - late);
            let due = all.iter_mut().filter(|f| f.next_report <= now);
            let reports: Vec<Stamp> = due
                .map(|front_end| {
                    front_end.next_report = now + 1_000 + rng.below(30);
                    stamp(front_end.node, front_end.wall(now))
                })
                .collect();
            let before = clock.ms;
            // One clock executes the whole log, the other one begins anew with the stored state.
            for clock in [&mut clock, &mut copy] {
                reports.iter().for_each(|of| clock.report(*of, many));
                if clock.ms > 0 {
                    clock.take(command);
                }
            }
            assert_eq!(clock, copy, "seed {seed}");
            if rng.percent(5) {
                let mut bytes = Vec::new();
                clock.emit(&mut bytes);
                copy = Clock::parse(&bytes).expect("it is sound").0;
            }
            assert!(clock.ms >= before, "seed {seed}: it goes back");
            assert!(
                clock.ms <= now + REACH_MS + 600,
                "seed {seed}: ahead at {now}"
            );
            // Once all have reported, the time is no further behind than the last report of a front
            // end that is right.
            if now > NOON + 3_000 {
                let behind = now.saturating_sub(clock.ms);
                assert!(behind <= 1_150, "seed {seed}: {behind} behind");
            }
        }
    }
}

/// A front end must not take the time of a replica that hasn't executed its report for the group's.
#[test]
fn the_newest_reading_tells_whether_a_report_was_executed() {
    let mut clock = Clock::default();
    assert_eq!(clock.newest_ms(), 0);
    report_all(&mut clock, NOON, &[0, 0, 0]);
    clock.report(stamp(2, NOON + HOUR), 3);
    assert_eq!(clock.newest_ms(), NOON + HOUR);
    assert!(clock.ms < NOON + HOUR, "the others are silent");
}
