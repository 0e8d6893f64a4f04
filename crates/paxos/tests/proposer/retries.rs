// SPDX-License-Identifier: Apache-2.0
//! Tests of retries, and of leaders and windows that make a proposer wait.

use super::*;

/// All replicas say that a vector is dead, and a late one says it again. [V-DEAD]
#[test]
fn a_dead_vector_costs_one_further_request() {
    let dead = |epoch, inst: u64| {
        let round = Round::base(epoch).0.to_be_bytes();
        [&[STATUS_DEAD], &round[..], &inst.to_be_bytes()].concat()
    };
    let mut proposer = Proposer::new(settings());
    proposer.submit_multi(&[0, 1], 5, 1, b"both").unwrap();
    assert_eq!(flush(&mut proposer, 0).len(), 1);
    for again in [1, 0, 0] {
        let (_, answers) = step(&mut proposer, 7, reply_to(0, 5, 1), &dead(1, 40));
        assert!(answers.is_empty());
        assert_eq!(tick(&mut proposer, 7).len(), again, "at once, and once");
    }
    let _ = step(&mut proposer, 8, reply_to(0, 5, 1), &dead(2, 30));
    assert_eq!(tick(&mut proposer, 8).len(), 1, "of a later epoch");
    let _ = step(&mut proposer, 8, reply_to(0, 5, 1), &dead(2, 29));
    assert_eq!(tick(&mut proposer, 8).len(), 0, "one before it");
    assert!(!proposer.needs_leader());
    for no_answer in [&dead(3, 1)[..5], &[STATUS_DEAD]] {
        let (_, answers) = step(&mut proposer, 8, reply_to(0, 5, 1), no_answer);
        assert!(answers.is_empty() && tick(&mut proposer, 8).is_empty());
    }
    let (_, answers) = step(&mut proposer, 9, reply_to(0, 5, 1), &[0]);
    assert_eq!(answers.len(), 1);
    let _ = step(&mut proposer, 9, reply_to(0, 5, 1), &dead(3, 1));
    assert_eq!(tick(&mut proposer, LATE).len(), 0, "it was answered");
}

/// The proposer waits longer before each retry, and asks for the leader after some of them.
/// [P-AGAIN]
#[test]
fn retries_back_off_and_ask_for_a_leader() {
    let mut proposer = Proposer::new(settings());
    proposer.submit(0, 5, 1, b"x").unwrap();
    flush(&mut proposer, 0);
    let mut now = 0;
    for tries in 0..8 {
        let wait = proposer.next_deadline().unwrap() - now;
        let base = RETRY << tries.min(5);
        assert!((base..=base + base / 2).contains(&wait), "{wait}");
        assert_eq!(proposer.needs_leader(), now >= 7 * RETRY);
        now += wait;
        assert_eq!(commands(&tick(&mut proposer, now)[0]), [(5, 1)]);
    }
    let mut out = Sent::default();
    proposer.leader_changed(now, &mut out);
    assert_eq!(requests(out).len(), 1);
    assert!(!proposer.needs_leader());
    let wait = proposer.next_deadline().unwrap() - now;
    assert!(wait <= RETRY + RETRY / 2);
}

#[test]
fn a_new_leader_gets_everything_in_order() {
    let mut proposer = Proposer::new(settings());
    for request in 1..=9 {
        proposer.submit(0, 5, request, &[1; 40]).unwrap();
        flush(&mut proposer, request);
    }
    assert!(proposer.reply(0, 5, 4));
    let mut out = Sent::default();
    proposer.leader_changed(20, &mut out);
    let all: Vec<_> = requests(out).iter().flat_map(commands).collect();
    let requests: Vec<_> = all.iter().map(|c| c.1).collect();
    assert_eq!(requests, [1, 2, 3, 5, 6, 7, 8, 9]);
}

#[test]
fn a_full_window_is_tried_again_soon_and_is_no_failure() {
    let mut proposer = Proposer::new(settings());
    proposer.submit(0, 5, 1, b"x").unwrap();
    proposer.submit(0, 5, 2, b"x").unwrap();
    let sent = flush(&mut proposer, 0);
    for _ in 0..20 {
        let (header, value) = refused(&sent[0].0, Reason::Window);
        assert_eq!(step(&mut proposer, 0, header, &value).0, Verdict::Changed);
    }
    let soon = proposer.next_deadline().unwrap();
    assert!(soon < RETRY / 4, "{soon}");
    let again = tick(&mut proposer, soon);
    assert_eq!(commands(&again[0]), [(5, 1), (5, 2)]);
    // A late REJECT names a value that is gone.
    let (header, value) = refused(&sent[0].0, Reason::Window);
    let late = step(&mut proposer, soon, header, &value).0;
    assert_eq!(late, Verdict::Dropped(Reason::Unexpected));
    assert!(!proposer.needs_leader());
}

#[test]
fn waiting_for_the_window_never_asks_for_a_leader() {
    let mut proposer = Proposer::new(settings());
    proposer.submit(0, 5, 1, b"x").unwrap();
    let mut sent = flush(&mut proposer, 0);
    for _ in 0..20 {
        let now = proposer.next_deadline().unwrap() - 1;
        let (header, value) = refused(&sent[0].0, Reason::Window);
        let _ = step(&mut proposer, now, header, &value);
        sent = tick(&mut proposer, now + RETRY);
        assert_eq!(commands(&sent[0]), [(5, 1)]);
    }
    assert!(!proposer.needs_leader());
}

/// The leader that was silent may only be slow; one that has refused may lead by now. [P-WAIT]
#[test]
fn a_leader_that_is_named_again_gets_at_once_what_it_has_refused() {
    let mut proposer = Proposer::new(settings());
    proposer.submit(0, 5, 1, b"x").unwrap();
    let sent = flush(&mut proposer, 0);
    let mut now = 0;
    while !proposer.needs_leader() {
        now = proposer.next_deadline().unwrap();
        tick(&mut proposer, now);
    }
    let (due, mut out) = (proposer.next_deadline(), Sent::default());
    proposer.leader_confirmed(now, &mut out);
    assert!(requests(out).is_empty() && !proposer.needs_leader());
    assert_eq!(proposer.next_deadline(), due);
    let (header, value) = refused(&sent[0].0, Reason::NotLeader);
    assert_eq!(step(&mut proposer, now, header, &value).0, Verdict::Changed);
    for leaves in [true, false] {
        let mut out = Sent::default();
        proposer.leader_confirmed(now, &mut out);
        assert_eq!(requests(out).is_empty(), !leaves);
        assert!(!proposer.needs_leader());
    }
}

#[test]
fn who_does_not_lead_says_so() {
    let mut proposer = Proposer::new(settings());
    proposer.submit(0, 5, 1, b"x").unwrap();
    let sent = flush(&mut proposer, 0);
    let stranger = Header {
        client: 6,
        ..sent[0].0
    };
    let (header, value) = refused(&stranger, Reason::NotLeader);
    let verdict = step(&mut proposer, 0, header, &value).0;
    assert_eq!(verdict, Verdict::Dropped(Reason::Unexpected));
    assert!(!proposer.needs_leader());
    let (header, value) = refused(&sent[0].0, Reason::NotLeader);
    assert_eq!(step(&mut proposer, 0, header, &value).0, Verdict::Changed);
    assert!(proposer.needs_leader());
    assert_eq!(proposer.outstanding(), 1);
}
