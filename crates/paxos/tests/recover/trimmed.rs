// SPDX-License-Identifier: Apache-2.0
//! Tests of instances that are trimmed, or lie outside of a window.

use super::*;

/// A trimmed instance is reported and never repaired. [R-TRIMMED]
#[test]
fn what_is_trimmed_is_reported_and_never_repaired() {
    let mut bench = Bench::new();
    for inst in 0..3 {
        bench.recover(inst);
    }
    let full = bench.recover.recover(bench.now, 9, Filler::Noop);
    assert_eq!(full, Err(Reason::Full));
    let trimmed = |trim| Rejection {
        reason: Reason::Trimmed,
        round: Round::NONE,
        trim,
    };
    assert_eq!(
        bench.reject(1, Round::NONE, trimmed(0)),
        Verdict::Dropped(Reason::BadValue)
    );
    assert_eq!(bench.reject(1, Round::NONE, trimmed(9)), Verdict::Changed);
    assert_eq!(bench.recover.poll(), None, "one of f+1");
    // The acceptors needn't have trimmed to the same place: both have got as far as the lower one.
    assert_eq!(bench.reject(3, Round::NONE, trimmed(2)), Verdict::Changed);
    for inst in 0..2 {
        assert_eq!(
            bench.recover.poll(),
            Some(Outcome::Trimmed { inst, trim: 2 })
        );
    }
    assert_eq!(bench.recover.poll(), None);
    let again = bench.recover.recover(bench.now, 1, Filler::Noop);
    assert_eq!(again, Err(Reason::Trimmed));
    bench.recover.forget_below(3);
    assert_eq!(bench.recover.open(), 0);
}

/// One acceptor that wrongly says that an instance is trimmed doesn't end the repair. [R-TRIMMED]
#[test]
fn one_acceptor_with_a_wrong_trim_ends_no_repair() {
    let wrong = |trim| Rejection {
        reason: Reason::Trimmed,
        round: Round::NONE,
        trim,
    };
    let (mut bench, round) = Bench::in_phase1();
    // The acceptor counts once, however often its answer comes, late or twice, and with ever larger
    // numbers.
    for (trim, verdict) in [
        (1, Verdict::Changed),
        (1, Verdict::Dropped(Reason::Duplicate)),
        (1 << 63, Verdict::Changed),
        (7, Verdict::Dropped(Reason::Duplicate)),
    ] {
        assert_eq!(bench.reject(3, round, wrong(trim)), verdict);
    }
    // A stranger's word counts for nothing.
    let stranger = bench.reject(9, round, wrong(1));
    assert_eq!(stranger, Verdict::Dropped(Reason::UnknownSender));
    assert_eq!(bench.recover.poll(), None);

    // The others bring the repair to its end, and nothing remains of that one's claim.
    for from in [1, 2] {
        assert_eq!(
            bench.promise(from, round, Round::NONE, b""),
            Verdict::Changed
        );
    }
    assert_eq!(bench.vote(1, 0, round, b""), Verdict::Changed);
    assert_eq!(bench.vote(2, 0, round, b""), Verdict::Changed);
    let ended = bench.recover.poll();
    assert!(matches!(ended, Some(Outcome::Decided { .. })), "{ended:?}");
    bench.recover(0);
    assert_eq!(bench.reject(1, Round::NONE, wrong(1)), Verdict::Changed);
    assert_eq!(bench.recover.poll(), None);
}

/// Acceptors of another configuration don't count when an instance is said to be trimmed.
/// [R-TRIMMED]
#[test]
fn members_of_another_configuration_confirm_no_trim() {
    let mut bench = Bench::new();
    let trimmed = Rejection {
        reason: Reason::Trimmed,
        round: Round::NONE,
        trim: 1,
    };
    bench.recover(0);
    let _ = bench.reject(1, Round::NONE, trimmed);
    bench.epoch(3, &[1, 4, 5], Some(5));
    let _ = bench.reject(4, Round::NONE, trimmed);
    assert_eq!(bench.recover.poll(), None, "1 of epoch 3, 1 of epoch 2");
    let _ = bench.reject(1, Round::NONE, trimmed);
    assert!(bench.recover.poll().is_some());
}

/// The others may be dead, or lack the last reports of replicas that are.
#[test]
fn a_repair_that_gets_no_further_would_have_a_checkpoint_confirm_the_trim() {
    let mut bench = Bench::new();
    let trimmed = |trim| Rejection {
        reason: Reason::Trimmed,
        round: Round::NONE,
        trim,
    };
    bench.recover(0);
    assert_eq!(bench.vote(2, 0, BASE, b"x"), Verdict::Changed);
    let _ = bench.reject(1, Round::NONE, trimmed(5));
    assert_eq!(bench.recover.doubtful_trim(), None, "the third may answer");
    for _ in 0..8 {
        bench.tick(LATER);
    }
    assert_eq!(bench.recover.doubtful_trim(), Some(5));
    assert_eq!(bench.recover.poll(), None);
    assert_eq!(bench.recover.open(), 1, "it goes on meanwhile");
    assert_eq!(bench.vote(3, 0, BASE, b"x"), Verdict::Changed);
    assert_eq!(bench.recover.doubtful_trim(), None);
}

#[test]
fn an_acceptor_whose_window_lags_has_not_answered() {
    let mut bench = Bench::new();
    bench.recover(0);
    let window = Rejection {
        reason: Reason::Window,
        round: Round::NONE,
        trim: 0,
    };
    for from in 1..=3 {
        assert_eq!(
            bench.reject(from, Round::NONE, window),
            Verdict::Dropped(Reason::Window)
        );
    }
    bench.tick(LATER);
    assert!(bench.all(MsgType::Phase1a).is_empty());
}
