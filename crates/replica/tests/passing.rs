// SPDX-License-Identifier: Apache-2.0
//! The replica that answers executes commands of the log that only read, and the others pass them.

mod common;

use common::*;
use replica::Status;
use replica::protocol::ReplyAddress;

/// Returns a replica, and an ordered session of the front end beside the second replica.
fn with_session(node: u16, answers_later: bool) -> (Fed, u64) {
    let disk = Disk::default();
    disk.with(|d| {
        d.answers_later = answers_later;
        d.cannot_discard = true;
    });
    let mut fed = Fed::on(settings(node), disk);
    let home = ReplyAddress {
        home: REPLICAS[1],
        ..ReplyAddress::default()
    };
    fed.op(1, open(true, 8, home));
    (fed, 1 << 16)
}

/// A replica doesn't execute a read whose answer goes to another replica's front end. [S-PASS]
#[test]
fn a_read_that_another_front_end_hears_is_not_executed() {
    for answers_later in [false, true] {
        let (mut fed, session) = with_session(REPLICAS[0], answers_later);
        assert!(fed.log(session, 1, &command(100)).is_empty());
        // From now on any execution fails.
        fed.disk.with(|d| d.fail_execute = true);
        fed.log_pack(&[(session, 2, command(READ)), (session, 3, command(READ))]);
        fed.disk.with(|d| d.fail_execute = false);
        // The read lies between other commands, which are executed in their places.
        fed.log_pack(&[
            (session, 4, command(101)),
            (session, 5, command(READ)),
            (session, 6, command(102)),
            (session, 7, command(READ)),
        ]);
        assert_eq!([100, 101, 102].map(|number| fed.times(number)), [1; 3]);
        fed.restart();
        fed.log(session, 8, &command(103));
        assert_eq!(fed.times(103), 1, "its place was passed");
    }
}

/// The home replica of a session executes its reads, and answers repetitions from its record.
/// [S-PASS]
#[test]
fn the_home_of_a_session_executes_its_reads_and_answers_from_its_record() {
    for answers_later in [false, true] {
        let (mut fed, session) = with_session(REPLICAS[1], answers_later);
        fed.log(session, 1, &command(100));
        let first = fed.log(session, 2, &command(READ));
        assert_eq!(first[0].bytes, 1u64.to_be_bytes());
        let (mut stranger, _) = with_session(REPLICAS[1], answers_later);
        let own = stranger.open(2, true, 8);
        fed.log(session, 3, &command(101));
        assert_eq!(fed.log(session, 2, &command(READ))[0].bytes, first[0].bytes);
        assert_eq!(status_of(&stranger.log(own, 1, &command(READ))), Status::Ok);
    }
}

/// If a home takes over the state of a replica that passed a read, it executes the read when that
/// is repeated, unless a command followed. [S-PASS]
#[test]
fn a_home_that_took_the_state_of_one_that_passed_a_read_executes_it_again_if_nothing_followed() {
    let (mut fed, session) = with_session(REPLICAS[0], false);
    fed.log(session, 1, &command(100));
    fed.log(session, 2, &command(READ));
    let mut home = Fed::on(settings(REPLICAS[1]), fed.disk.clone());
    let again = home.log(session, 2, &command(READ));
    assert_eq!(status_of(&again), Status::Ok);
    assert_eq!(again[0].bytes, 1u64.to_be_bytes());
    assert_eq!(home.times(100), 1);
    // If another command came in between, the read would see a later state.
    home.log(session, 3, &command(101));
    let again = home.log(session, 2, &command(READ));
    assert_eq!(status_of(&again), Status::ReplyTooLarge);
}
