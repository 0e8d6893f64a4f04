// SPDX-License-Identifier: Apache-2.0
//! Tests of commands of one pipeline that are joined into one command of the log.

use std::cell::RefCell;

use apps::redis::Command;
use paxos::PartitionId;
use replica::Status;

use crate::connection::turn_tests::{connection, native};
use crate::connection::{Connection, Sink};
use crate::log::lane::{LaneSession, Logged};
use crate::shared::Shared;
use crate::state::named_command::Once;

/// A log that notes what it is sent: the request's number, and its bytes.
#[derive(Default)]
struct Sent(RefCell<Vec<(u64, Vec<u8>)>>);

impl Sink for Sent {
    fn open(&mut self, _: PartitionId) -> u64 {
        1
    }

    fn send(&mut self, _: u64, request: u64, logged: &Logged) {
        self.0.borrow_mut().push((request, logged.bytes.clone()));
    }

    fn send_part(&mut self, _: PartitionId, _: u64, _: u64, _: &[u8]) {}

    fn send_once(&mut self, _: Once, _: Logged) {}

    fn can_read(&self) -> bool {
        false
    }

    fn read(&mut self, _: PartitionId, _: &[u8], _: bool) -> u64 {
        0
    }
}

/// Returns a connection with a session, and what it sends for these commands, each a line.
fn pipeline(shared: &Shared, lines: &str) -> (Connection, Vec<(u64, Vec<u8>)>) {
    let (mut connection, mut sent) = (connection(), Sent::default());
    feed(&mut connection, shared, lines);
    connection.propose(shared, 1, &mut sent);
    connection.lane(0).unwrap().session = LaneSession::Open(5);
    connection.propose(shared, 1, &mut sent);
    (connection, sent.0.into_inner())
}

fn feed(connection: &mut Connection, shared: &Shared, lines: &str) {
    shared.turn.begin();
    connection.feed(lines.replace('\n', "\r\n").as_bytes());
    connection.run(shared);
}

/// Returns how many commands of the client each one of the log has.
fn counts(sent: &[(u64, Vec<u8>)]) -> Vec<usize> {
    let count = |(_, bytes): &(u64, Vec<u8>)| match Command::parse(bytes).unwrap() {
        Command::Exec { commands, .. } => commands.len(),
        _ => 1,
    };
    sent.iter().map(count).collect()
}

fn shown(connection: &mut Connection) -> String {
    let shown = String::from_utf8_lossy(connection.pending_output()).into_owned();
    connection.discard_output();
    shown
}

#[test]
fn commands_of_a_pipeline_are_joined_and_answered_each_in_its_place() {
    let Some(shared) = native() else { return };
    let (mut c, sent) = pipeline(&shared, "SET a 1\nPING\nINCR n\nLPUSH l x\n");
    assert_eq!(counts(&sent), [3]);
    assert_eq!(shown(&mut c), "");
    let array = b"*3\r\n+OK\r\n-ERR no\r\n:7\r\n";
    let answered = |c: &mut Connection, number, status, bytes: &[u8]| {
        assert!(
            c.on_answer((0, number), Some(status), bytes, &shared)
                .is_none()
        );
    };
    answered(&mut c, 1, Status::Ok, array);
    assert_eq!(shown(&mut c), "+OK\r\n+PONG\r\n-ERR no\r\n:7\r\n");

    // What arrives later isn't joined to what is in flight, and an error answers all.
    for (status, bytes, answer) in [
        (Status::Ok, &b"-LIMIT no\r\n"[..], "-LIMIT no\r\n"),
        (Status::ReplyTooLarge, b"", "-EXECUTED"),
    ] {
        let (mut c, sent) = pipeline(&shared, "SET a 1\nINCR n\n");
        feed(&mut c, &shared, "INCR n\n");
        let mut more = Sent::default();
        c.propose(&shared, 4, &mut more);
        assert_eq!(
            (counts(&sent), counts(&more.0.into_inner())),
            (vec![2], vec![1])
        );
        answered(&mut c, 1, status, bytes);
        let all = shown(&mut c);
        assert_eq!(all.matches(answer).count(), 2, "{all}");
    }
}

#[test]
fn only_writes_with_short_answers_are_joined() {
    let Some(shared) = native() else { return };
    for (lines, expected) in [
        ("INCR n\nGET n\nINCR n\nINCR n\n", vec![1, 1, 2]),
        ("SET a 1\nSET a 2 GET\nSET a 3\n", vec![1, 1, 1]),
        ("LPOP l\nGETDEL a\nSPOP s\n", vec![1, 1, 1]),
        ("EVAL return 0\nINCR n\n", vec![1, 1]),
        ("MULTI\nINCR n\nINCR n\nEXEC\nINCR n\nINCR n\n", vec![2, 2]),
        ("PUBLISH c m\nPUBLISH c m\n", vec![1, 1]),
        ("SET a 1\nHELLO 3\nSET a 2\nSET a 3\n", vec![1, 2]),
    ] {
        let (_, sent) = pipeline(&shared, lines);
        assert_eq!(counts(&sent), expected, "{lines}");
    }
}

/// Values can be filled, and an answer to all joined commands is short enough to be remembered.
#[test]
fn joined_commands_take_half_a_value_and_are_sixteen_at_most() {
    let Some(shared) = native() else { return };
    let (_, sent) = pipeline(&shared, &"INCR n\n".repeat(40));
    assert_eq!(counts(&sent), [16, 16, 8]);
    let (_, sent) = pipeline(&shared, &format!("SET a {}\n", "x".repeat(200)).repeat(5));
    assert_eq!(counts(&sent), [2, 2], "the rest waits for room");
    assert!(
        sent.iter()
            .all(|(_, bytes)| bytes.len() <= shared.max_value / 2)
    );
}

/// Nobody knows whether commands that were in flight took effect, and each of them says so.
#[test]
fn a_connection_that_ends_knows_all_commands_in_flight() {
    let Some(shared) = native() else { return };
    let (c, _) = pipeline(&shared, "SET a 1\nINCR n\nINCR n\n");
    assert_eq!(c.orders.in_flight(), [1, 2, 3]);
}
