// SPDX-License-Identifier: Apache-2.0
//! Tests of how long one client's commands occupy the front end's thread, in steps and turns: each
//! command of a server's catalogue, and of the front end's own, with as many and as long arguments
//! as a request may have.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use apps::kv::MAX_REPLY_LEN;
use apps::redis::{News, Seen};
use paxos::PartitionId;
use replica::Status;

use crate::commands::transaction::MAX_WATCHED;
use crate::connection::{Connection, Sink};
use crate::dispatch;
use crate::log::lane::Logged;
use crate::native::{Member, Native};
use crate::pubsub::survey::{Question, Survey};
use crate::resp::Writer;
use crate::settings::{Neighbour, Neighbours, Order};
use crate::shared::Shared;
use crate::state::client::Client;
use crate::state::named_command::Once;
use crate::state::transaction::MAX_OWN;
use crate::turns::{MOST_STEPS, Turn};
use crate::users::{Access, ReadAccess, Users};

/// The bytes that are read from a socket at once.
const PIECE: usize = 64 << 10;
/// The bytes that a request may have, roughly.
const MOST_BYTES: usize = (4 << 20) - 64;

/// A log that takes everything.
#[derive(Default)]
pub(super) struct Taken(pub Vec<(PartitionId, u64)>);

impl Sink for Taken {
    fn open(&mut self, _: PartitionId) -> u64 {
        1
    }

    fn send(&mut self, _: u64, request: u64, logged: &Logged) {
        self.0.push((logged.partitions.lowest(), request));
    }

    fn send_part(&mut self, pid: PartitionId, _: u64, number: u64, _: &[u8]) {
        self.0.push((pid, number));
    }

    fn send_once(&mut self, _: Once, _: Logged) {}

    fn can_read(&self) -> bool {
        false
    }

    fn read(&mut self, _: PartitionId, _: &[u8], _: bool) -> u64 {
        0
    }
}

fn shared(native: Option<Native>) -> Shared {
    let address = "127.0.0.1:1".parse().unwrap();
    Shared {
        partitions: 1,
        order: Order::default(),
        without_log: false,
        ways: native.as_ref().map_or(Vec::new(), dispatch::ways),
        native,
        users: RefCell::new(users()),
        max_value: 1024,
        max_clients: 10,
        max_output_bytes: usize::MAX,
        max_memory_bytes: usize::MAX,
        max_answer_bytes: MAX_REPLY_LEN,
        this: Neighbour {
            node: 1,
            address,
            tls: false,
        },
        others: Neighbours::default(),
        describe: Box::new(|_| {}),
        metrics: Arc::default(),
        keys: vec![AtomicU64::new(0)],
        started: Instant::now(),
        waits: RefCell::default(),
        channels: RefCell::default(),
        jobs: RefCell::default(),
        turn: Turn::default(),
        pause: RefCell::default(),
    }
}

fn users() -> Users {
    let access: ReadAccess = Box::new(|| Ok(Access::Password(None)));
    Users::new(access, &|_| None).unwrap()
}

pub(super) fn native() -> Option<Shared> {
    if !apps::redis::is_installed() {
        println!("SKIPPED: redis-server is not installed (./dev setup installs it)");
        return None;
    }
    let native = Native::new(
        apps::redis::catalogue().unwrap(),
        Seen::new(1),
        News::default(),
        Member {
            node: 1,
            all: vec![1],
        },
        Box::new(|| Some(1_795_467_197_000)),
    );
    Some(shared(Some(native)))
}

pub(super) fn connection() -> Connection {
    let address = "127.0.0.1:2".parse().unwrap();
    let mut client = Client::new(1, 0, address, address);
    client.user = users().of_a_stranger().cloned();
    Connection::new(client)
}

/// Sends requests, a piece at a time, and continues until nothing is left to do. Returns the number
/// of turns.
fn send(connection: &mut Connection, shared: &Shared, requests: &[u8]) -> usize {
    let mut turns = 0;
    for piece in requests.chunks(PIECE) {
        connection.feed(piece);
        loop {
            shared.turn.begin();
            turns += 1;
            connection.run(shared);
            connection.propose(shared, 1, &mut Taken::default());
            connection.discard_output();
            if !shared.turn.is_over() {
                break;
            }
        }
    }
    turns
}

fn request<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let words: Vec<&[u8]> = words.into_iter().collect();
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Returns arguments that are as many or as long as a request may have: their number, and their
/// bytes as they are sent.
fn largest() -> Vec<(usize, Vec<u8>)> {
    let short: Vec<String> = (0..MOST_BYTES / 12).map(|n| format!("{n:x}")).collect();
    let short: Vec<&[u8]> = short.iter().map(String::as_bytes).collect();
    let few = short.len() / 4;
    let (all, some) = (short.len() - 2, few.to_string());
    let long = vec![b'*'; (1 << 20) - 64];
    let class = [b"*[", &[b'x'; (1 << 20) - 64][..]].concat();
    let of = |words: &[&[u8]]| {
        let request = request(words.iter().copied());
        let head = request.iter().position(|byte| *byte == b'\n').unwrap();
        (words.len(), request[head + 1..].to_vec())
    };
    vec![
        of(&vec![&b""[..]; MOST_BYTES / 7]),
        of(&short[..all]),
        // Some commands have a number in the first or second place that says how many of the
        // arguments are keys.
        of(&[&[some.as_bytes()], &short[..few]].concat()),
        of(&[&[&b"0"[..], some.as_bytes()], &short[..few]].concat()),
        of(&[b"k", &long, &long]),
        // The pattern is a set of characters, and every byte of each name is compared with each
        // byte of the set.
        of(&[&class]),
        of(&[b"0", b"MATCH", &class]),
        of(&[&class[..]; 3]),
    ]
}

/// Checks that no turn of any command is longer than other clients may wait.
fn measure(shared: &Shared, names: &[String]) {
    let (arguments, mut longest) = (largest(), Vec::new());
    for name in names {
        let words: Vec<&[u8]> = name.split('|').map(str::as_bytes).collect();
        let mut connection = connection();
        for (count, arguments) in &arguments {
            let (head, before) = (request(words.iter().copied()), shared.turn.longest());
            let first = head.iter().position(|byte| *byte == b'\n').unwrap();
            let count = format!("*{}\r\n", words.len() + count);
            let whole = [count.as_bytes(), &head[first + 1..], &arguments[..]];
            send(&mut connection, shared, &whole.concat());
            let after = shared.turn.longest();
            if after > before {
                longest.push((after, name.clone()));
            }
            assert!(after <= MOST_STEPS, "{name}: {after} steps in one turn");
            connection.abandon();
            connection = self::connection();
        }
    }
    // The line shows that steps were counted at all.
    println!("the longest turns: {longest:?}");
    assert!(longest.iter().any(|(steps, _)| *steps > 100_000));
}

#[test]
fn no_command_of_a_server_keeps_others_waiting() {
    let Some(shared) = native() else { return };
    let native = shared.native.as_ref().unwrap();
    // A command with subcommands is refused by its own name; those that the front end executes are
    // tried in another test.
    let mut names = native.names();
    names.retain(|name| !name.contains('|') || name.starts_with("pubsub"));
    assert!(names.len() > 200, "{}", names.len());
    measure(&shared, &names);
}

#[test]
fn no_command_of_the_front_end_keeps_others_waiting() {
    let names = crate::table::COMMANDS.iter().map(|spec| spec.name);
    let subcommands = [
        "client|info",
        "client|list",
        "client|list|id",
        "client|kill|addr",
        "client|no-evict",
        "client|setinfo|lib-name",
        "client|setname",
        "client|unblock",
        "cluster|keyslot",
        "command|docs",
        "command|info",
        "config|get",
        "hello|3|setname",
    ];
    let names: Vec<String> = names.chain(subcommands).map(str::to_owned).collect();
    measure(&shared(None), &names);
}

#[test]
fn no_transaction_of_the_front_ends_own_commands_keeps_others_waiting() {
    let shared = shared(None);
    for own in ["INFO", "COMMAND", "CONFIG GET *", "CLUSTER SLOTS"] {
        let mut connection = connection();
        let queued = format!("{own}\r\n").repeat(10_000);
        send(&mut connection, &shared, b"MULTI\r\n");
        send(&mut connection, &shared, queued.as_bytes());
        send(&mut connection, &shared, b"EXEC\r\n");
        let queued = format!("{own}\r\n").repeat(MAX_OWN);
        let all = format!("MULTI\r\n{queued}EXEC\r\n");
        send(&mut connection, &shared, all.as_bytes());
    }
    let longest = shared.turn.longest();
    assert!((100_000..=MOST_STEPS).contains(&longest), "{longest} steps");
}

#[test]
fn what_clients_call_themselves_is_short_so_that_a_list_of_all_is() {
    let shared = shared(None);
    for (head, is_taken) in [
        ("CLIENT SETNAME", 1_024),
        ("CLIENT SETINFO lib-name", 1_024),
    ]
    .iter()
    .flat_map(|(head, most)| {
        [
            (format!("{head} {}", "x".repeat(*most)), true),
            (format!("{head} {}", "x".repeat(most + 1)), false),
        ]
    }) {
        let mut connection = connection();
        shared.turn.begin();
        connection.feed(format!("{head}\r\n").as_bytes());
        connection.run(&shared);
        let answer = connection.pending_output();
        assert_eq!(answer == b"+OK\r\n", is_taken, "{}", answer.escape_ascii());
    }
}

#[test]
fn subscribing_to_very_many_channels_is_done_in_turns_and_costs_others_nothing() {
    let Some(shared) = native() else { return };
    let names: Vec<String> = (0..60_000).map(|n| format!("channel-{n}")).collect();
    let subscribe = [&b"SUBSCRIBE"[..]].into_iter();
    let subscribe = request(subscribe.chain(names.iter().map(String::as_bytes)));
    let mut connection = connection();
    let turns = send(&mut connection, &shared, &subscribe);
    assert_eq!(
        connection
            .client
            .subscriptions
            .len(crate::state::subscriptions::NameKind::Channel),
        60_000
    );
    assert!(turns > 100, "{turns}");
    // A PING costs this client as many steps as any other client.
    let steps = |connection: &mut Connection| {
        shared.turn.begin();
        let left = shared.turn.left();
        connection.feed(b"PING\r\n");
        connection.run(&shared);
        left - shared.turn.left()
    };
    assert_eq!(steps(&mut connection), steps(&mut self::connection()));
    for command in [&b"UNSUBSCRIBE\r\n"[..], b"RESET\r\n"] {
        send(&mut connection, &shared, &subscribe);
        assert!(send(&mut connection, &shared, command) > 100);
        assert!(connection.client.subscriptions.is_empty());
    }
    let longest = shared.turn.longest();
    assert!(longest < 2 * 60_000, "{longest} steps");
}

#[test]
fn what_is_asked_of_very_many_names_is_counted_in_turns() {
    let Some(shared) = native() else { return };
    let names: Vec<String> = (0..60_000).map(|n| format!("channel-{n}")).collect();
    for command in ["SUBSCRIBE", "PSUBSCRIBE"] {
        let words = [command]
            .into_iter()
            .chain(names.iter().map(String::as_str));
        send(
            &mut connection(),
            &shared,
            &request(words.map(str::as_bytes)),
        );
    }
    let answer = |question| {
        let (mut survey, mut turns, mut shown) =
            (Survey::of(question, MAX_REPLY_LEN), 1, Vec::new());
        shared.turn.begin();
        while !survey.go_on(&shared.channels.borrow(), &shared.turn) {
            shared.turn.begin();
            turns += 1;
        }
        let mut writer = Writer {
            out: &mut shown,
            resp3: false,
        };
        survey.show(&mut writer, &shared.turn);
        (String::from_utf8(shown).unwrap(), turns)
    };
    let of = |pattern: &str| Question::Names {
        kind: crate::state::subscriptions::NameKind::Channel,
        pattern: Some(pattern.as_bytes().to_vec()),
    };
    let (shown, turns) = answer(of("channel-*9"));
    assert!(
        shown.starts_with("*6000\r\n") && shown.contains("$9\r\nchannel-9\r\n"),
        "{turns}"
    );
    assert!(turns > 100, "{turns}");
    let (shown, turns) = answer(of(&format!("{}b", "*a".repeat(100_000))));
    assert!(shown == "*0\r\n" && turns > 100, "{turns}");
    let receivers = Question::Receivers {
        channel: b"channel-77".to_vec(),
        is_sharded: false,
    };
    let (shown, turns) = answer(receivers);
    assert!(shown == ":2\r\n" && turns > 100, "{shown} {turns}");
    let (shown, turns) = answer(Question::Patterns);
    assert!(shown == ":60000\r\n" && turns > 100, "{shown} {turns}");
    assert!(shared.turn.longest() <= MOST_STEPS);
}

#[test]
fn watching_as_many_keys_as_may_be_is_no_work_for_each_pair_of_them() {
    let Some(shared) = native() else { return };
    let keys: Vec<String> = (0..MAX_WATCHED).map(|n| format!("k{n}")).collect();
    let watch = request(
        [&b"WATCH"[..]]
            .into_iter()
            .chain(keys.iter().map(String::as_bytes)),
    );
    let (mut connection, mut log) = (connection(), Taken::default());
    connection.feed(&watch);
    shared.turn.begin();
    connection.run(&shared);
    connection.propose(&shared, 1, &mut log);
    connection.lane(0).unwrap().session = crate::log::lane::LaneSession::Open(1);
    connection.propose(&shared, 1, &mut log);
    let mut answer = format!("*{}\r\n", 2 * keys.len());
    (0..keys.len()).for_each(|n| answer.push_str(&format!(":{n}\r\n:1\r\n")));
    while let Some((pid, number)) = log.0.pop() {
        connection.on_answer((pid, number), Some(Status::Ok), answer.as_bytes(), &shared);
        connection.propose(&shared, 1, &mut log);
    }
    assert_eq!(connection.client.watched.iter().count(), MAX_WATCHED);
    assert!(shared.turn.longest() <= MOST_STEPS);
}
