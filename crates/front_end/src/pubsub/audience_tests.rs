// SPDX-License-Identifier: Apache-2.0
//! Tests of what front ends know of one another's subscribers, with one log for all.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::{Duration, Instant};

use crate::pubsub::audience::{AGAIN, Audience, BEAT, FORGOTTEN};
use crate::pubsub::by_name::ByName;
use crate::state::subscriptions::{KINDS, NameKind};
use crate::state::waiter::Waiter;
use crate::turns::Turn;

const NONE: [ByName; KINDS] = [const { ByName::new() }; KINDS];

/// Front ends, each with the subscriptions of its clients, and their common log.
struct FrontEnds {
    now: Instant,
    all: Vec<(Audience, [ByName; KINDS])>,
    log: Vec<Vec<u8>>,
    turn: Turn,
}

impl FrontEnds {
    fn of(count: u64) -> FrontEnds {
        FrontEnds {
            all: (1..=count)
                .map(|n| (Audience::new(n as u16, n), NONE))
                .collect(),
            now: Instant::now(),
            log: Vec::new(),
            turn: Turn::default(),
        }
    }

    fn subscribe(&mut self, at: usize, name: &str, count: u64) {
        let (audience, own) = &mut self.all[at];
        let (own, name) = (&mut own[NameKind::Channel as usize], name.as_bytes());
        let clients = (0..count).map(|client| (client, Waiter { index: 0, client }));
        match count {
            0 => own.remove(name),
            _ => own.insert(name.to_vec(), clients.collect::<BTreeMap<_, _>>()),
        };
        audience.changed(NameKind::Channel, name);
    }

    /// Lets a front end send its message if one is due; returns true if one was.
    fn say(&mut self, at: usize) -> bool {
        let (audience, own) = &mut self.all[at];
        let has_subscribers = own.iter().any(|names| !names.is_empty());
        let due = audience.deadline(has_subscribers);
        let is_due = due.is_some_and(|at| at <= self.now);
        if is_due {
            self.turn.begin();
            self.log.push(audience.say(self.now, own, &self.turn));
        }
        is_due
    }

    fn hear_at(&mut self, at: usize, text: &[u8]) {
        let mut taken = 0;
        self.turn.begin();
        let of = &mut self.all[at].0;
        while !of.hear(text, &mut taken, self.now, &self.turn) {
            self.turn.begin();
        }
    }

    fn hear(&mut self) {
        for text in std::mem::take(&mut self.log) {
            (0..self.all.len()).for_each(|at| self.hear_at(at, &text));
        }
    }

    /// Delivers messages until no front end has anything more to say.
    fn settle(&mut self) {
        loop {
            let said = (0..self.all.len()).filter(|at| self.say(*at)).count();
            if said == 0 {
                return;
            }
            self.hear();
        }
    }

    fn pass(&mut self, time: Duration) {
        let steps = time.as_millis() / BEAT.as_millis() + 1;
        for _ in 0..steps {
            self.now += time / steps as u32;
            self.settle();
            let now = self.now;
            self.all
                .iter_mut()
                .for_each(|(of, _)| of.forget_silent(now));
        }
    }

    fn counts(&self, name: &str) -> Vec<usize> {
        let count = |of: &Audience| of.count(NameKind::Channel, name.as_bytes());
        self.all.iter().map(|(of, _)| count(of)).collect()
    }
}

/// All front ends have the same counts once they have taken the same messages from the log.
/// [S-AUDIENCE]
#[test]
fn front_ends_know_what_others_have_said_before_in_the_log() {
    let mut group = FrontEnds::of(3);
    group.settle();
    group.subscribe(0, "news", 2);
    group.subscribe(1, "news", 1);
    let changes = group.all[0].0.changes();
    assert!(!group.all[0].0.knows(changes));
    group.settle();
    assert!(group.all[0].0.knows(changes));
    assert_eq!(group.counts("news"), [1, 2, 3]);
    group.subscribe(0, "news", 0);
    group.settle();
    assert_eq!(group.counts("news"), [1, 0, 1]);
}

#[test]
fn a_change_is_known_although_others_always_follow() {
    let mut group = FrontEnds::of(2);
    group.settle();
    group.subscribe(0, "news", 1);
    let changes = group.all[0].0.changes();
    for n in 0..20_000 {
        group.subscribe(0, &format!("channel {n}"), 1);
    }
    assert!(group.say(0));
    group.hear();
    assert!(group.all[0].0.knows(changes) && !group.all[0].0.knows(changes + 20_000));
    assert_eq!(group.counts("news"), [0, 1]);
}

#[test]
fn who_has_been_silent_says_everything_and_who_stays_silent_is_forgotten() {
    let mut group = FrontEnds::of(2);
    group.subscribe(0, "news", 1);
    group.subscribe(1, "news", 1);
    group.settle();
    group.pass(4 * FORGOTTEN);
    assert_eq!(group.counts("news"), [1, 1], "it says that it is there");
    group.subscribe(1, "news", 0);
    group.pass(4 * FORGOTTEN);
    group.subscribe(1, "news", 1);
    assert!(group.say(1));
    group.hear();
    assert_eq!(group.counts("news"), [1, 1], "at once");
    // The first front end dies.
    for _ in 0..4 {
        group.now += BEAT;
        group.say(1);
        group.hear();
    }
    let now = group.now;
    group.all[1].0.forget_silent(now);
    assert_eq!(group.counts("news"), [1, 0]);
}

#[test]
fn what_lies_before_the_question_of_a_front_end_is_not_believed() {
    let mut group = FrontEnds::of(2);
    group.subscribe(0, "news", 1);
    assert!(group.say(0));
    let old = group.log.clone();
    group.settle();
    // The first front end starts again without subscribers, and the other one's replica executes
    // the log anew.
    group.all[0] = (Audience::new(1, 7), NONE);
    group.all[1] = (Audience::new(2, 8), NONE);
    group.now = Instant::now() + AGAIN;
    group.say(1);
    let asks = std::mem::take(&mut group.log);
    group.log = old;
    group.hear();
    assert_eq!(group.counts("news"), [0, 0]);
    group.log = asks;
    group.settle();
    assert_eq!(group.counts("news"), [0, 0]);
}

#[test]
fn everything_is_said_again_where_something_is_missing() {
    let mut group = FrontEnds::of(2);
    for n in 0..10_000 {
        group.subscribe(0, &format!("channel {n}"), 1);
    }
    group.settle();
    assert_eq!(group.counts("channel 9999"), [0, 1], "in several messages");
    // The front end's own connection is lost together with a message.
    group.subscribe(0, "news", 1);
    assert!(group.say(0));
    group.log.clear();
    let now = group.now;
    group.all[0].0.lost(now);
    assert!(!group.say(0), "a moment later");
    group.now += AGAIN;
    group.settle();
    assert_eq!(group.counts("news"), [0, 1]);
    // The other front end misses a message.
    group.subscribe(0, "more", 1);
    assert!(group.say(0));
    let message = group.log.pop().unwrap();
    group.hear_at(0, &message);
    group.subscribe(0, "most", 1);
    group.now += AGAIN;
    group.settle();
    group.now += AGAIN;
    group.settle();
    assert_eq!(group.counts("more"), [0, 1]);
    // The other front end's replica takes another replica's state.
    group.all[1].0.leapt();
    assert_eq!(group.counts("more"), [0, 0]);
    group.settle();
    assert_eq!(group.counts("more"), [0, 1]);
}

#[test]
fn very_many_names_are_said_heard_and_forgotten_in_turns() {
    const NAMES: usize = 200_000;
    let mut group = FrontEnds::of(2);
    group.settle();
    // These are more names than the queue takes.
    for n in 0..NAMES {
        group.subscribe(0, &format!("channel {n}"), 1);
    }
    let changes = group.all[0].0.changes();
    let mut messages = 0;
    while group.say(0) {
        messages += 1;
        assert!(!group.all[0].0.knows(changes));
        group.hear();
    }
    assert!(
        messages > 100 && group.all[0].0.knows(changes),
        "{messages}"
    );
    let other = &mut group.all[1].0;
    let (mut names, mut last) = (0, Vec::new());
    while let Some(name) = other.first(NameKind::Channel, Bound::Excluded(&last)) {
        names += 1;
        last = name.to_vec();
    }
    assert_eq!(names, NAMES);
    other.leapt();
    let mut turns = 0;
    while other.is_untidy() {
        group.turn.begin();
        other.tidy(&group.turn);
        turns += 1;
    }
    assert!(turns > 100, "{turns}");
    let longest = group.turn.longest();
    assert!(longest <= crate::turns::MOST_STEPS, "{longest} steps");
}

#[test]
fn a_message_that_is_none_is_ignored() {
    let mut group = FrontEnds::of(2);
    group.subscribe(0, "news", 1);
    group.settle();
    let beats = [1, 2].map(|_| {
        group.now += BEAT;
        assert!(group.say(0));
        let text = group.log.pop().unwrap();
        group.hear_at(0, &text);
        text
    });
    let mut cut = beats[0].clone();
    cut.extend([
        NameKind::Shard as u8,
        0,
        0,
        0,
        9,
        0xff,
        0xff,
        0xff,
        0xff,
        b'x',
    ]);
    group.hear_at(1, &cut);
    let mut unknown = beats[1].clone();
    unknown.extend([77, 0, 0, 0, 9, 0, 0, 0, 1, b'x']);
    group.hear_at(1, &unknown);
    assert_eq!(group.counts("news"), [0, 1]);
    for len in 0..19 {
        group.hear_at(1, &beats[0][..len]);
    }
    assert_eq!(group.counts("x"), [0, 0]);
    assert_eq!(group.counts("news"), [0, 1]);
}
