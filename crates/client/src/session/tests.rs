// SPDX-License-Identifier: Apache-2.0
use replica::Status;
use replica::parts::Sending;

use super::{Large, Session};

/// A refused part leaves no other part of its command in progress. [S-PARTS]
#[test]
fn a_part_that_is_refused_leaves_none_of_its_command_under_way() {
    let command = vec![7; 5_000];
    let mut sending = Sending::new(1, command.len(), 1_000);
    let mut part = Vec::new();
    let sent: Vec<u64> = std::iter::from_fn(|| sending.next(&command, &mut part)).collect();
    let mut session = Session {
        large: Some(Large { command, sending }),
        ..Session::default()
    };
    let mut given_up = Vec::new();
    let mut answered =
        |number, status| session.answered_request(number, status, |part| given_up.push(part));
    assert_eq!(answered(sent[1], Status::Ok), None);
    assert_eq!(answered(sent[0], Status::UnknownSession), Some(1));
    assert_eq!(given_up, sent[2..]);
    assert!(session.large.is_none());
}

#[test]
fn the_oldest_unanswered_request_holds_the_window() {
    let mut session = Session::default();
    for _ in 0..4 {
        session.submitted();
    }
    session.complete(3);
    session.complete(2);
    session.complete(3);
    assert_eq!(
        (
            session.oldest(),
            session.answered.len(),
            session.outstanding
        ),
        (1, 4, 2)
    );
    session.complete(1);
    assert_eq!(
        (
            session.oldest(),
            session.answered.len(),
            session.outstanding
        ),
        (4, 1, 1)
    );
    session.complete(9);
    session.complete(4);
    assert_eq!(
        (
            session.oldest(),
            session.answered.len(),
            session.outstanding
        ),
        (5, 0, 0)
    );
}
