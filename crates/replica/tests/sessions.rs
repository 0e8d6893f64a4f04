// SPDX-License-Identifier: Apache-2.0
//! The rules of the session table, with one test for each rule. The test writes the log.

mod common;

use common::*;
use paxos::wire::value::Vector;
use paxos::{Flags, Round, Verdict};
use replica::protocol::{MAX_WINDOW, ReplyAddress, SessionOp};
use replica::{Limits, ReplyTo, Settings, Status};

fn fed() -> Fed {
    Fed::new(settings(REPLICAS[0]))
}

/// A repeated command takes effect once and gets the same answer again. [S-ONCE]
#[test]
fn a_repeated_command_takes_effect_once_and_is_answered_alike() {
    let mut r = fed();
    let s = r.open(1, false, 8);
    let first = r.log(s, 1, &command(100));
    assert_eq!(status_of(&first), Status::Ok);
    assert_eq!(r.log(s, 1, &command(100)), first);
    r.restart();
    assert_eq!(r.log(s, 1, &command(100)), first, "also after a kill");
    assert_eq!(r.times(100), 1);
}

/// A command that is sent again together with others takes effect once. [S-ONCE]
#[test]
fn a_retry_in_another_pack_takes_effect_once() {
    let mut r = fed();
    let s = r.open(1, false, 8);
    let t = r.open(2, false, 8);
    let item = |session, request, number| (session, request, command(number));
    let first = r.log_pack(&[item(s, 1, 101), item(t, 1, 201), item(s, 2, 102)]);
    // The pack has the same session twice, in another order, with something new; and the request
    // comes unpacked.
    let second = r.log_pack(&[
        item(s, 2, 102),
        item(s, 1, 101),
        item(s, 1, 101),
        item(s, 3, 103),
    ]);
    assert_eq!(second[0], first[2]);
    assert_eq!(second[1], first[0]);
    assert_eq!(second[2], first[0]);
    assert_eq!(r.log(t, 1, &command(201))[0], first[1]);
    for number in [101, 102, 103, 201] {
        assert_eq!(r.times(number), 1, "command {number}");
    }
}

/// Within the window an unordered session executes its requests in any order. [S-ONCE]
#[test]
fn requests_of_an_unordered_session_execute_in_any_order_within_the_window() {
    let mut r = fed();
    let s = r.open(1, false, 4);
    for request in [3, 1, 5, 2, 4] {
        // Request 1 is max - 2 and 2 is max - 3, so both are within the window of 4.
        assert_eq!(status_of(&r.log(s, request, &command(request))), Status::Ok);
    }
    assert_eq!(status_of(&r.log(s, 9, &command(9))), Status::Ok);
    assert_eq!(
        status_of(&r.log(s, 6, &command(6))),
        Status::Ok,
        "max - 3 is the last one in the window"
    );
    assert_eq!(
        status_of(&r.log(s, 5, &command(5))),
        Status::StaleRequest,
        "overwritten by 9"
    );
    assert_eq!(r.times(5), 1);
    assert_eq!(
        status_of(&r.log(s, 4, &command(4))),
        Status::Ok,
        "below, but still recorded"
    );
    assert_eq!(r.times(4), 1);

    let s = r.open(2, false, 4);
    r.log(s, 10, &command(110));
    assert_eq!(status_of(&r.log(s, 6, &command(106))), Status::StaleRequest);
    assert_eq!(
        r.times(106),
        0,
        "never executed, yet refused: it may have been"
    );
    assert_eq!(
        status_of(&r.log(s, u64::MAX >> 1, &command(111))),
        Status::Ok,
        "no overflow"
    );
}

/// An ordered session executes its requests one after the other, without gaps. [S-ORDERED]
#[test]
fn an_ordered_session_executes_without_gaps() {
    let mut r = fed();
    let s = r.open(1, true, 2);
    assert_eq!(status_of(&r.log(s, 2, &command(2))), Status::OutOfOrder);
    assert_eq!(r.times(2), 0);
    let first = r.log(s, 1, &command(1));
    assert_eq!(status_of(&first), Status::Ok);
    assert_eq!(
        status_of(&r.log(s, 2, &command(2))),
        Status::Ok,
        "the refusal left no trace"
    );
    assert_eq!(r.log(s, 1, &command(1)), first);
    assert_eq!(status_of(&r.log(s, 3, &command(3))), Status::Ok);
    assert_eq!(
        status_of(&r.log(s, 1, &command(1))),
        Status::StaleRequest,
        "its slot was needed"
    );
    assert_eq!(
        status_of(&r.log(s, u64::MAX >> 1, &command(4))),
        Status::OutOfOrder
    );
    for number in [1, 2, 3] {
        assert_eq!(r.times(number), 1);
    }
}

#[test]
fn a_pipelined_pack_that_is_retried_and_overtaken_keeps_its_order() {
    let mut r = fed();
    let s = r.open(1, true, 16);
    let item = |request| (s, request, command(request));
    // The retry with 1 to 4 is decided first. The delayed original, and a pack that was sent before
    // its predecessor was known, come later.
    let statuses = |replies: Vec<Reply>| replies.iter().map(|r| r.status).collect::<Vec<_>>();
    assert_eq!(
        statuses(r.log_pack(&[item(5), item(6)])),
        [Status::OutOfOrder, Status::OutOfOrder]
    );
    assert_eq!(
        statuses(r.log_pack(&[1, 2, 3, 4].map(item))),
        [Status::Ok; 4]
    );
    assert_eq!(
        statuses(r.log_pack(&[1, 2, 3, 4].map(item))),
        [Status::Ok; 4]
    );
    assert_eq!(statuses(r.log_pack(&[item(5), item(6)])), [Status::Ok; 2]);
    for number in 1..=6 {
        assert_eq!(r.times(number), 1);
    }
}

fn expire(request: u64, inst: u64) -> SessionOp {
    SessionOp::Expire {
        last_request: request,
        last_inst: inst,
    }
}

/// Late packets of an expired session are answered with "unknown session". [S-EXPIRE]
#[test]
fn an_expired_session_is_unknown_to_late_packets() {
    let mut r = fed();
    let s = r.open(1, false, 8);
    let inst = r.worker.next();
    r.log(s, 1, &command(1));
    assert!(r.op(s, expire(1, inst)).is_empty());
    assert_eq!(r.worker.sessions(), 0);
    assert_eq!(status_of(&r.log(s, 1, &command(1))), Status::UnknownSession);
    assert_eq!(status_of(&r.log(s, 2, &command(2))), Status::UnknownSession);
    assert_eq!((r.times(1), r.times(2)), (1, 0));
    assert!(
        r.op(s, expire(1, inst)).is_empty(),
        "a repeated expiry does nothing"
    );
    // Only the position and the identity are left of the records.
    r.fold();
    let left = r.disk.committed().without_commits();
    assert_eq!(left.records.len(), 2);
}

/// A session doesn't expire if one of its commands comes before the expiry in the log. [S-EXPIRE]
#[test]
fn expiry_has_no_effect_when_the_log_has_something_of_the_session_first() {
    let mut r = fed();
    let s = r.open(1, false, 8);
    let opened_at = r.worker.next() - 1;
    r.log(s, 1, &command(1));
    r.op(s, expire(0, opened_at));
    assert_eq!(r.worker.sessions(), 1, "request 1 came first");

    let seen = r.worker.next() - 1;
    assert_eq!(status_of(&r.log(s, 1, &command(1))), Status::Ok);
    r.op(s, expire(1, seen));
    assert_eq!(
        r.worker.sessions(),
        1,
        "even a repetition shows that the client lives"
    );
    r.op(s, expire(1, seen + 1));
    assert_eq!(r.worker.sessions(), 0);
}

/// A repeated OPEN returns the same session while that exists. [S-OPEN]
#[test]
fn a_repeated_open_names_the_same_session_while_it_lives() {
    let mut r = fed();
    let s = r.open(77, false, 8);
    assert_eq!(r.open(77, false, 8), s);
    r.op(s, expire(0, 0));
    assert_eq!(
        r.worker.sessions(),
        1,
        "the repetition shows that the client lives"
    );
    r.restart();
    assert_eq!(r.open(77, true, 4), s, "also after a kill");
    assert_eq!(r.worker.sessions(), 1);

    assert_eq!(status_of(&r.op(s, SessionOp::Close)), Status::Ok);
    let late = r.open(77, false, 8);
    assert_ne!(late, s, "a delayed duplicate opens another session");
    assert_eq!(status_of(&r.log(s, 1, &command(1))), Status::UnknownSession);
    assert_eq!(r.times(1), 0);
    assert_eq!(
        status_of(&r.op(s, SessionOp::Close)),
        Status::UnknownSession
    );
    assert_eq!(
        r.worker.sessions(),
        1,
        "closing the old one again leaves the other one open"
    );
}

/// The log gives ids to sessions, and two sessions opened in one value get different ids. [S-OPEN]
#[test]
fn ids_are_given_by_the_log_and_differ_within_a_pack() {
    let mut r = fed();
    let op = open(false, 8, ReplyAddress::default()).to_bytes();
    let inst = r.worker.next();
    let replies = r.log_pack(&[(1, 0, op.clone()), (2, 0, op.clone()), (1, 0, op)]);
    let ids: Vec<u64> = replies.iter().map(Reply::session_id).collect();
    assert_eq!(
        ids,
        [(inst + 1) << 16, (inst + 1) << 16 | 1, (inst + 1) << 16]
    );
}

#[test]
fn sessions_are_bounded_in_number_and_size() {
    let limits = Limits {
        sessions: 2,
        slots: 100,
        ..Limits::default()
    };
    let mut r = Fed::new(Settings {
        limits,
        ..settings(REPLICAS[0])
    });
    let of_front_end = ReplyAddress {
        home: REPLICAS[0],
        ..ReplyAddress::default()
    };
    let s = r.op(1, open(false, 60, of_front_end))[0].session_id();
    let too_wide = r.op(2, open(false, 41, of_front_end));
    assert_eq!(status_of(&too_wide), Status::TooManySessions);
    let second = r.op(3, open(false, 40, of_front_end));
    assert_eq!(status_of(&second), Status::Ok);
    let third = open(false, 1, of_front_end);
    assert_eq!(status_of(&r.op(4, third)), Status::TooManySessions);
    r.restart();
    assert_eq!(
        status_of(&r.op(4, third)),
        Status::TooManySessions,
        "also after a kill"
    );
    r.op(s, SessionOp::Close);
    assert_eq!(status_of(&r.op(4, third)), Status::Ok, "room again");
    let wider = open(false, MAX_WINDOW + 1, of_front_end);
    assert_eq!(status_of(&r.op(5, wider)), Status::Malformed);
}

/// Clients at one address can't use up the whole session table. [S-SHARE]
#[test]
fn one_address_leaves_room_for_sessions_of_others() {
    let limits = Limits {
        sessions: 40,
        slots: 400,
        ..Limits::default()
    };
    let mut r = Fed::new(Settings {
        limits,
        ..settings(REPLICAS[0])
    });
    let to = |ip: u8, port| ReplyAddress {
        address: Some(([10, 0, 0, ip], port).into()),
        ..ReplyAddress::default()
    };
    let mut nonce = 0;
    let mut open_from = |r: &mut Fed, ip, window| {
        nonce += 1;
        let replies = r.op(nonce, open(false, window, to(ip, nonce as u16)));
        let opened = status_of(&replies) == Status::Ok;
        opened.then(|| replies[0].session_id())
    };
    let greedy: Vec<_> = (0..100).map_while(|_| open_from(&mut r, 1, 1)).collect();
    assert_eq!(greedy.len(), 30);
    assert!(open_from(&mut r, 2, 1).is_some());
    r.restart();
    assert!(open_from(&mut r, 1, 1).is_none(), "also after a kill");
    r.op(greedy[0], SessionOp::Close);
    assert!(open_from(&mut r, 1, 1).is_some());
    // A session that moves away counts at its new address.
    let moved = SessionOp::Move { reply_to: to(3, 1) };
    r.op(greedy[1], moved);
    assert!(open_from(&mut r, 1, 1).is_some());
    r.restart();
    assert!(open_from(&mut r, 1, 1).is_none());
    // Windows are shared in the same way.
    assert!(open_from(&mut r, 4, 301).is_none());
    assert!(open_from(&mut r, 4, 300).is_some());
    assert!(open_from(&mut r, 4, 1).is_none());
}

/// Named sessions can't use up the whole session table, and every replica answers them. [S-SHARE]
/// [S-NAMED]
#[test]
fn names_leave_room_for_sessions_of_others_and_every_replica_answers_them() {
    let limits = Limits {
        sessions: 40,
        ..Limits::default()
    };
    for node in REPLICAS {
        let mut r = Fed::new(Settings {
            limits,
            ..settings(node)
        });
        let of_name = open(false, 16, ReplyAddress::default());
        let id = status_of(&r.op(1, of_name)) == Status::Ok;
        assert!(id, "{node} answers");
        assert_eq!(r.op(1, of_name).len(), 1, "and whoever asks again");
        for nonce in 2..=30 {
            assert_eq!(status_of(&r.op(nonce, of_name)), Status::Ok);
        }
        let more = r.op(31, of_name);
        assert_eq!(status_of(&more), Status::TooManySessions);
        let of_connection = ReplyAddress {
            home: node,
            ..ReplyAddress::default()
        };
        let other = r.op(32, open(true, 16, of_connection));
        assert_eq!(status_of(&other), Status::Ok);
        let local: Vec<_> = r
            .worker
            .execution()
            .local_sessions()
            .map(|s| s.nonce)
            .collect();
        assert_eq!(local, [32], "no front end closes what is a name's");
    }
}

#[test]
fn a_datagram_client_gets_no_reply_beyond_the_limit() {
    let limits = Limits {
        reply: 100,
        ..Limits::default()
    };
    let mut r = Fed::new(Settings {
        limits,
        ..settings(REPLICAS[0])
    });
    let client = ReplyAddress {
        address: Some("10.0.0.1:5000".parse().unwrap()),
        ..ReplyAddress::default()
    };
    let s = r.op(1, open(true, 8, client))[0].session_id();
    assert_eq!(
        status_of(&r.log(s, 1, &command_with_reply(1, 100))),
        Status::Ok
    );
    let large = r.log(s, 2, &command_with_reply(2, 101));
    assert_eq!(status_of(&large), Status::ReplyTooLarge);
    assert_eq!(r.log(s, 2, &command_with_reply(2, 101)), large);
    assert_eq!(r.times(2), 1, "it was executed");
}

#[test]
fn of_a_front_ends_session_only_the_last_reply_is_recorded_when_large() {
    let limits = Limits {
        reply: 100,
        last_reply: 1_000,
        ..Limits::default()
    };
    let mut r = Fed::new(Settings {
        limits,
        ..settings(REPLICAS[0])
    });
    let s = r.open(1, true, 8);
    let huge = r.log(s, 1, &command_with_reply(1, 5_000));
    assert_eq!(
        huge[0].bytes.len(),
        5_000,
        "any size is answered the first time"
    );
    let again = r.log(s, 1, &command_with_reply(1, 5_000));
    assert_eq!(status_of(&again), Status::ReplyTooLarge);

    let large = r.log(s, 2, &command_with_reply(2, 1_000));
    assert_eq!(r.log(s, 2, &command_with_reply(2, 1_000)), large);
    r.restart();
    assert_eq!(
        r.log(s, 2, &command_with_reply(2, 1_000)),
        large,
        "also after a kill"
    );
    r.log(s, 3, &command(3));
    let again = r.log(s, 2, &command_with_reply(2, 1_000));
    assert_eq!(
        status_of(&again),
        Status::ReplyTooLarge,
        "no longer the last"
    );
    r.restart();
    let again = r.log(s, 2, &command_with_reply(2, 1_000));
    assert_eq!(status_of(&again), Status::ReplyTooLarge);
    for number in [1, 2, 3] {
        assert_eq!(r.times(number), 1);
    }
}

#[test]
fn recorded_replies_are_bounded_over_all_sessions() {
    let limits = Limits {
        recorded: 250,
        ..Limits::default()
    };
    let mut r = Fed::new(Settings {
        limits,
        ..settings(REPLICAS[0])
    });
    let s = r.open(1, false, 8);
    let t = r.open(2, false, 8);
    r.log(s, 1, &command_with_reply(1, 100));
    r.log(t, 1, &command_with_reply(2, 100));
    let third = r.log(t, 2, &command_with_reply(3, 100));
    assert_eq!(third[0].bytes.len(), 100, "answered the first time");
    r.restart();
    let again = r.log(t, 2, &command_with_reply(3, 100));
    assert_eq!(status_of(&again), Status::ReplyTooLarge);
    r.op(s, SessionOp::Close);
    let fourth = r.log(t, 3, &command_with_reply(4, 100));
    assert_eq!(
        r.log(t, 3, &command_with_reply(4, 100)),
        fourth,
        "room again"
    );
}

/// A command that isn't executed is answered with the reason and leaves no trace. [X-MULTI]
/// [S-SAYS] [X-FORM]
#[test]
fn what_is_not_executed_says_so_and_leaves_no_trace() {
    let mut r = fed();
    let s = r.open(1, true, 8);
    let decide = |r: &mut Fed, flags, value: &[u8]| {
        let next = r.worker.next();
        assert_eq!(r.decide(next, flags, (s, 1), value), Verdict::Changed);
        assert_eq!(r.worker.next(), next + 1);
        r.finish()
    };
    let mut both = Vec::new();
    Vector::reserve(&[0], &mut both);
    Vector::stamp(&mut both, Round::base(1), |_| 1);
    both.extend_from_slice(&command(9));
    assert_eq!(
        status_of(&decide(&mut r, Flags::MULTI, &both)),
        Status::Unsupported
    );
    assert_eq!(
        status_of(&r.op(s, open(false, 1, ReplyAddress::default()))),
        Status::Ok
    );
    assert_eq!(status_of(&r.log(s, 0, &[9, 9])), Status::Malformed);
    // The second item of the pack is cut, so that not even the first is executed.
    let mut value = pack(&[(s, 1, command(9)), (s, 2, command(9))]);
    value.pop();
    assert!(decide(&mut r, Flags::PACKED, &value).is_empty());
    assert!(decide(&mut r, Flags::PACKED, &[]).is_empty());
    assert_eq!(r.worker.statistics().malformed, 2);
    let next = r.worker.next();
    for (step, marker) in [&[][..], &[0, 0, 0, 1], &[1]].into_iter().enumerate() {
        let inst = next + step as u64;
        assert_eq!(
            r.decide(inst, Flags::NOOP, (0, 0), marker),
            Verdict::Changed
        );
    }
    assert!(r.finish().is_empty());
    assert_eq!(r.worker.statistics().noops, 3);
    assert_eq!(r.times(9), 0);
    assert_eq!(
        status_of(&r.log(s, 1, &command(9))),
        Status::Ok,
        "request 1 is still to come"
    );
}

/// The home replica answers the first execution, and every replica answers a repetition. [S-HOME]
#[test]
fn the_home_replica_answers_first_and_all_answer_a_repetition() {
    let home = REPLICAS[1];
    let socket = "[::1]:900".parse().unwrap();
    let address = Some(socket);
    for node in REPLICAS {
        let mut r = Fed::new(settings(node));
        let at_home = usize::from(node == home);
        let opened = r.op(
            1,
            open(
                false,
                8,
                ReplyAddress {
                    home,
                    address,
                    key: 3,
                },
            ),
        );
        assert_eq!(opened.len(), at_home);
        let s = 1 << 16;
        let first = r.log(s, 1, &command(1));
        assert_eq!(first.len(), at_home);
        let second = r.log(s, 1, &command(1));
        assert_eq!(second.len(), 1, "the home replica may be gone");
        assert_eq!(second[0].to, ReplyTo::Address(socket, 3));

        // A front end hears only the replica beside it.
        let local = ReplyAddress {
            home,
            ..ReplyAddress::default()
        };
        r.op(2, open(false, 8, local));
        let t = r.worker.next() << 16;
        for _ in 0..2 {
            let replies = r.log(t, 1, &command(2));
            assert_eq!(replies.len(), at_home);
            assert!(replies.iter().all(|r| r.to == ReplyTo::Local));
        }

        // A session that moves is answered at its new address.
        let moved = ReplyAddress {
            home: node,
            ..ReplyAddress::default()
        };
        let reply = r.op(s, SessionOp::Move { reply_to: moved });
        assert_eq!(
            (reply[0].to, status_of(&reply)),
            (ReplyTo::Local, Status::Ok)
        );
        assert_eq!(r.log(s, 2, &command(3))[0].to, ReplyTo::Local);
        r.restart();
        assert_eq!(r.log(s, 3, &command(4))[0].to, ReplyTo::Local);
    }
}

#[test]
fn the_client_of_a_session_that_is_gone_hears_of_it() {
    let mut r = fed();
    let to = ReplyAddress {
        address: Some("10.0.0.1:5000".parse().unwrap()),
        ..ReplyAddress::default()
    };
    let s = r.op(1, open(false, 8, to))[0].session_id();
    r.op(s, SessionOp::Close);
    let refused = r.log(s, 1, &command(1));
    assert_eq!(status_of(&refused), Status::UnknownSession);
    assert_eq!(refused[0].to, ReplyTo::Address(to.address.unwrap(), 0));

    // A replica that restarted doesn't remember the address, but MOVE names it.
    r.restart();
    assert_eq!(r.log(s, 1, &command(1))[0].to, ReplyTo::Local);
    let refused = r.op(s, SessionOp::Move { reply_to: to });
    assert_eq!(status_of(&refused), Status::UnknownSession);
    assert_eq!(refused[0].to, ReplyTo::Address(to.address.unwrap(), 0));
}
