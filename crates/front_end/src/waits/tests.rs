// SPDX-License-Identifier: Apache-2.0
//! Tests of the clients that wait for something to appear at a key.

use super::*;

const NOTHING: &[u8] = b"*-1\r\n";

fn waiter(client: u64) -> Waiter {
    Waiter {
        index: client as usize,
        client,
    }
}

fn pop(key: &str) -> Question {
    Question {
        pid: 0,
        resp3: false,
        takes: true,
        args: vec![b"BLPOP".to_vec(), key.into(), b"0".to_vec()],
    }
}

fn begin(waits: &mut Waits, client: u64, key: &str, deadline: Option<Instant>) {
    let keys = [key.as_bytes().to_vec()];
    waits
        .begin(waiter(client), pop(key), &keys, deadline)
        .unwrap();
}

/// Continues until nothing is left to do, and returns what connections must do.
fn take_acts(waits: &mut Waits) -> Vec<(u64, Act)> {
    tick(waits, Instant::now() - Duration::from_secs(60));
    let acts = std::iter::from_fn(|| waits.next_act());
    acts.map(|(waiter, act)| (waiter.client, act)).collect()
}

fn tick(waits: &mut Waits, now: Instant) {
    let turn = Turn::default();
    waits.go_on(now, &turn);
    while turn.is_over() {
        turn.begin();
        waits.go_on(now, &turn);
    }
}

#[track_caller]
fn expect(waits: &mut Waits, acts: &[(u64, Act)]) {
    let taken: Vec<_> = take_acts(waits);
    assert_eq!(taken, acts);
}

fn tries() -> Act {
    Act::Try(Vec::new())
}

fn over() -> Act {
    Act::Answer(NOTHING.to_vec())
}

#[test]
fn who_waits_longest_is_served_first_and_only_one_tries() {
    let mut waits = Waits::default();
    for client in 1..=3 {
        begin(&mut waits, client, "k", None);
    }
    expect(&mut waits, &[(1, tries())]);
    assert_eq!(waits.count(), 0, "there may be something");
    waits.found_nothing(1, NOTHING);
    assert_eq!(waits.count(), 3);
    waits.changed(b"other");
    expect(&mut waits, &[]);
    waits.changed(b"k");
    waits.changed(b"k");
    expect(&mut waits, &[(1, tries())]);
    waits.served(1);
    expect(&mut waits, &[(2, tries())]);
    waits.found_nothing(2, NOTHING);
    expect(&mut waits, &[]);
    assert_eq!(waits.count(), 2);
}

#[test]
fn what_changes_during_a_try_causes_another_one() {
    let mut waits = Waits::default();
    begin(&mut waits, 1, "k", None);
    waits.changed(b"k");
    expect(&mut waits, &[(1, tries())]);
    waits.found_nothing(1, NOTHING);
    expect(&mut waits, &[(1, tries())]);
    waits.found_nothing(1, NOTHING);
    expect(&mut waits, &[]);
}

fn moves(key: &str, takes: bool) -> Question {
    Question {
        takes,
        args: vec![b"BLMOVE".to_vec()],
        ..pop(key)
    }
}

#[test]
fn different_questions_about_a_key_are_tried_in_the_order_of_those_who_ask() {
    let mut waits = Waits::default();
    let keys = [b"k".to_vec()];
    begin(&mut waits, 2, "k", None);
    waits
        .begin(waiter(1), moves("k", true), &keys, None)
        .unwrap();
    begin(&mut waits, 3, "k", None);
    expect(&mut waits, &[(2, tries())]);
    waits.found_nothing(2, NOTHING);
    expect(&mut waits, &[(1, tries())]);
    waits.found_nothing(1, NOTHING);
    expect(&mut waits, &[]);
    // There are two items. The third client has the first one's question, but began last.
    waits.changed(b"k");
    expect(&mut waits, &[(2, tries())]);
    waits.served(2);
    expect(&mut waits, &[(1, tries())]);
    waits.served(1);
    expect(&mut waits, &[(3, tries())]);
    waits.found_nothing(3, NOTHING);
    expect(&mut waits, &[]);
    // A client that goes away while it tries holds up nobody.
    waits
        .begin(waiter(4), moves("k", true), &keys, None)
        .unwrap();
    waits.changed(b"k");
    waits.leave(4);
    expect(&mut waits, &[(4, tries()), (3, tries())]);
    waits.leave(3);
    assert!(waits.asked.is_empty() && waits.lines.is_empty() && waits.by_key.is_empty());
}

#[test]
fn who_takes_nothing_waits_for_nobody() {
    let mut waits = Waits::default();
    let keys = [b"k".to_vec()];
    begin(&mut waits, 1, "k", None);
    waits
        .begin(waiter(2), moves("k", false), &keys, None)
        .unwrap();
    expect(&mut waits, &[(1, tries()), (2, tries())]);
}

#[test]
fn the_key_that_changed_first_is_tried_first() {
    let mut waits = Waits::default();
    let keys = ["a", "b", "c"].map(|key| key.as_bytes().to_vec());
    waits.begin(waiter(1), pop("a"), &keys, None).unwrap();
    waits.begin(waiter(2), pop("a"), &keys, None).unwrap();
    waits.found_nothing(1, NOTHING);
    take_acts(&mut waits);
    let first = |keys: &[&str]| {
        let keys = keys.iter().map(|key| key.as_bytes().to_vec());
        Act::Try(keys.collect())
    };
    waits.changed(b"c");
    waits.changed(b"a");
    waits.changed(b"c");
    expect(&mut waits, &[(1, first(&["c", "a"]))]);
    waits.served(1);
    expect(&mut waits, &[(2, first(&["c", "a"]))]);
    waits.changed(b"b");
    waits.found_nothing(2, NOTHING);
    expect(&mut waits, &[(2, first(&["b"]))]);
}

#[test]
fn a_wait_ends_when_its_time_is_up() {
    let mut waits = Waits::default();
    let now = Instant::now();
    let second = Duration::from_secs(1);
    begin(&mut waits, 1, "k", Some(now + second));
    begin(&mut waits, 2, "k", Some(now + 2 * second));
    tick(&mut waits, now + second);
    // The first client's command is being tried, so it may still get something.
    expect(&mut waits, &[(1, tries())]);
    waits.found_nothing(1, NOTHING);
    expect(&mut waits, &[(1, over())]);
    assert_eq!(waits.next_deadline(), Some(now + 2 * second));
    tick(&mut waits, now + 2 * second);
    expect(&mut waits, &[(2, over())]);
    assert!(waits.count() == 0 && waits.next_deadline().is_none());
    assert!(waits.asked.is_empty() && waits.by_key.is_empty() && waits.keys == 0);
}

#[test]
fn a_wait_whose_time_is_up_before_it_was_tried_is_tried() {
    let mut waits = Waits::default();
    let now = Instant::now();
    begin(&mut waits, 1, "k", None);
    begin(&mut waits, 2, "k", Some(now));
    tick(&mut waits, now);
    expect(&mut waits, &[(1, tries())]);
    waits.served(1);
    expect(&mut waits, &[(2, tries())]);
    waits.found_nothing(2, NOTHING);
    expect(&mut waits, &[(2, over())]);
}

#[test]
fn the_next_one_tries_when_the_first_one_leaves() {
    let mut waits = Waits::default();
    begin(&mut waits, 1, "k", None);
    begin(&mut waits, 2, "k", None);
    waits.leave(1);
    expect(&mut waits, &[(1, tries()), (2, tries())]);
    waits.found_nothing(1, NOTHING);
    waits.served(1);
    waits.leave(2);
    expect(&mut waits, &[]);
    assert!(waits.asked.is_empty() && waits.known.is_empty());
}

#[test]
fn a_client_is_unblocked_by_another_one() {
    let mut waits = Waits::default();
    begin(&mut waits, 1, "k", None);
    begin(&mut waits, 2, "k", None);
    waits.found_nothing(1, NOTHING);
    take_acts(&mut waits);
    assert!(waits.unblock(1, true) && waits.unblock(2, false) && !waits.unblock(3, false));
    let error = Act::Answer(UNBLOCKED.to_vec());
    expect(&mut waits, &[(1, error), (2, over())]);
}

#[test]
fn guesses_are_rare() {
    let mut waits = Waits::default();
    begin(&mut waits, 1, "k", None);
    waits.found_nothing(1, NOTHING);
    take_acts(&mut waits);
    (0..5).for_each(|_| waits.any_changed(0, false));
    waits.any_changed(1, true);
    expect(&mut waits, &[]);
    let at = waits.next_deadline().unwrap();
    tick(&mut waits, at);
    expect(&mut waits, &[(1, tries())]);
    assert_eq!(waits.next_deadline(), None);
    waits.found_nothing(1, NOTHING);
    waits.any_changed(0, true);
    expect(&mut waits, &[(1, tries())]);
}

#[test]
fn there_is_a_limit() {
    let mut waits = Waits::default();
    let keys: Vec<Vec<u8>> = (0..=MAX_KEYS).map(|n| n.to_be_bytes().to_vec()).collect();
    let refused = waits.begin(waiter(1), pop("k"), &keys, None);
    assert_eq!(refused, Err(TOO_MANY));
    assert_eq!(waits.count(), 0);
}

// ---- Steps

/// Continues until nothing is left to do. Returns the acts, the steps that this took, and those of
/// the longest turn.
fn count_steps(waits: &mut Waits, now: Instant) -> (usize, usize, usize) {
    let (turn, mut acts, mut steps) = (Turn::default(), 0, 0);
    loop {
        turn.begin();
        waits.go_on(now, &turn);
        steps += turn.spent();
        while waits.next_act().is_some() {
            acts += 1;
        }
        if !turn.is_over() {
            return (acts, steps, turn.longest());
        }
    }
}

const MANY: u64 = 10_000;
/// The steps that a client, or a key of a question, may cost each time that something happens to
/// it.
const STEPS_EACH: usize = 5 * LOOK_UP;

#[test]
fn the_end_of_very_many_waits_costs_steps_for_each_and_not_for_each_pair() {
    let now = Instant::now();
    let ends: [fn(&mut Waits, u64); 3] = [
        |waits, client| assert!(waits.unblock(client, true)),
        |waits, client| waits.leave(client),
        |_, _| {},
    ];
    for end in ends {
        let mut waits = Waits::default();
        for client in 1..=MANY {
            begin(&mut waits, client, "k", Some(now));
        }
        waits.found_nothing(1, NOTHING);
        let early = now - Duration::from_secs(1);
        assert_eq!(count_steps(&mut waits, early).0, 1, "one client tries");
        // The last ones go first, so that a search from the beginning would find them last.
        (1..=MANY).rev().for_each(|client| end(&mut waits, client));
        let (acts, steps, _) = count_steps(&mut waits, now);
        assert!(acts == MANY as usize || acts == 0, "{acts} acts");
        assert!(steps <= MANY as usize * STEPS_EACH, "{steps} steps");
        assert!(waits.asked.is_empty() && waits.lines.is_empty() && waits.count() == 0);
    }
}

#[test]
fn very_many_questions_about_one_key_are_tried_in_turns_and_each_costs_as_much() {
    let mut waits = Waits::default();
    let keys = |n: u64| [b"shared".to_vec(), n.to_string().into_bytes()];
    for n in 1..=MANY {
        let question = Question {
            args: vec![n.to_string().into_bytes()],
            ..pop("shared")
        };
        waits.begin(waiter(n), question, &keys(n), None).unwrap();
    }
    let early = Instant::now() - Duration::from_secs(1);
    for is_first in [true, false] {
        for n in 1..=MANY {
            let (acts, steps, longest) = count_steps(&mut waits, early);
            assert_eq!(acts, 1, "only the client that has waited longest tries");
            let all = if n == 1 { 2 * MANY as usize } else { 2 };
            assert!(steps <= all * STEPS_EACH, "{n}: {steps} steps");
            let is_cut = n > 1 || is_first || longest < 10_000;
            assert!(is_cut, "{longest} steps in one turn");
            waits.found_nothing(n, NOTHING);
        }
        waits.changed(b"shared");
    }
}

#[test]
fn a_change_for_many_questions_with_many_keys_is_noted_in_turns() {
    let mut waits = Waits::default();
    for n in 0..50_u64 {
        let own = (1..MAX_KEYS_EACH as u64).map(|key| (n << 32 | key).to_be_bytes().to_vec());
        let keys: Vec<Vec<u8>> = own.chain([b"shared".to_vec()]).collect();
        let question = Question {
            args: vec![n.to_be_bytes().to_vec()],
            ..pop("shared")
        };
        waits.begin(waiter(n + 1), question, &keys, None).unwrap();
    }
    let early = Instant::now() - Duration::from_secs(1);
    for n in 1..=50 {
        assert_eq!(count_steps(&mut waits, early).0, 1);
        waits.found_nothing(n, NOTHING);
    }
    count_steps(&mut waits, early);
    waits.changed(b"shared");
    let (acts, _, longest) = count_steps(&mut waits, early);
    assert!(
        acts == 1 && longest <= 4 * LOOK_UP * MAX_KEYS_EACH,
        "{acts} {longest}"
    );
}

#[test]
fn the_same_change_is_noted_once_however_often_it_is_told() {
    let mut waits = Waits::default();
    begin(&mut waits, 1, "k", None);
    for _ in 0..MANY {
        waits.changed(b"k");
        waits.any_changed(0, false);
        waits.changed(b"nobody waits for it");
    }
    assert_eq!(waits.changes.len(), 2);
}
