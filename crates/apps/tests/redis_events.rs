// SPDX-License-Identifier: Apache-2.0
//! Tests of the events of keys that a replica's Redis server tells.

mod common;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use apps::redis::{Event, News, Seen};
use apps::{Application, Redis};
use common::TempDir;
use common::redis::*;

const ANSWER: usize = 64 << 20;

type ToldEvents = Arc<Mutex<Vec<String>>>;

/// Opens a replica, and returns it with what it tells its front end.
fn open(dir: &TempDir) -> (Redis, News, ToldEvents) {
    let (news, told) = (News::default(), ToldEvents::default());
    let heard = told.clone();
    news.tell(move |_, event| {
        if let Event::Message(message) = event {
            let text = [&message.channel[..], b" ", &message.text].concat();
            heard.lock().unwrap().push(String::from_utf8(text).unwrap());
        }
    });
    let app = Redis::open_with(&dir.0, 0, Seen::new(1), news.clone(), ANSWER).unwrap();
    (app, news, told)
}

fn listen(news: &News, listens: bool) {
    news.listen(listens);
    news.listen_to_keys(listens);
}

fn take(told: &ToldEvents) -> Vec<String> {
    std::mem::take(&mut *told.lock().unwrap())
}

const ALL: &str = "CONFIG SET notify-keyspace-events AE";

#[test]
fn events_are_told_once_while_somebody_listens() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-events");
    let (mut app, news, told) = open(&dir);
    expect(&mut app, ALL, "+OK\r\n");
    expect(&mut app, "SET before v", "+OK\r\n");
    listen(&news, true);
    expect(&mut app, "SET k v", "+OK\r\n");
    expect(&mut app, "GET k", "$1\r\nv\r\n");
    assert_eq!(take(&told), ["__keyevent@0__:set k"]);
    // A server that takes the place of another one is given the old commands again, and tells only
    // of the new one.
    kill_server(&app);
    expect(&mut app, "RPUSH list a b", ":2\r\n");
    assert_eq!(take(&told), ["__keyevent@0__:rpush list"]);
    let script = [
        &b"EVAL"[..],
        b"redis.call('DEL', 'k') redis.call('PUBLISH', 'c', 'hi') redis.call('SET', 'k', 'w')",
        b"0",
    ];
    execute(&mut app, &call_at(NOON, &script));
    let all = ["__keyevent@0__:del k", "c hi", "__keyevent@0__:set k"];
    assert_eq!(take(&told), all);
    // A batch tells all of its events, in their order.
    let words = ["SADD s a", "SPOP s", "SET k x"];
    words
        .iter()
        .for_each(|words| app.begin(&call(words)).unwrap());
    app.answers(&mut |_| {}).unwrap();
    // SPOP asks for the members first, and removes some behind what else is in flight.
    let all = ["sadd s", "set k", "srem s", "del s"];
    assert_eq!(take(&told), all.map(|of| format!("__keyevent@0__:{of}")));
    // The replica's own records aren't told of.
    commit(&mut app, 1);
    checkpoint(&mut app);
    expect(&mut app, "SET k y", "+OK\r\n");
    assert_eq!(take(&told), ["__keyevent@0__:set k"]);
    listen(&news, false);
    expect(&mut app, "SET k z", "+OK\r\n");
    listen(&news, true);
    expect(&mut app, "DEL k", ":1\r\n");
    assert_eq!(take(&told), ["__keyevent@0__:del k"]);
}

#[test]
fn keys_that_expire_are_told_of_when_the_groups_time_has_passed() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-events-expired");
    let (mut app, news, told) = open(&dir);
    listen(&news, true);
    expect(&mut app, ALL, "+OK\r\n");
    expect(&mut app, "SET k v PX 100", "+OK\r\n");
    let all = ["__keyevent@0__:set k", "__keyevent@0__:expire k"];
    assert_eq!(take(&told), all);
    let until = Instant::now() + Duration::from_secs(40);
    let mut ms = NOON;
    let expired = loop {
        ms += 50;
        // This key isn't asked for, so the server itself removes it.
        execute(&mut app, &call_at(ms, &[b"GET", b"other"]));
        let told = take(&told);
        if !told.is_empty() {
            break told;
        }
        assert!(Instant::now() < until, "nothing expires");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(expired, ["__keyevent@0__:expired k"]);
}

#[test]
fn the_flags_are_in_a_checkpoint() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-events-flags");
    let (mut app, news, _) = open(&dir);
    expect(&mut app, "CONFIG SET notify-keyspace-events xKE", "+OK\r\n");
    let wrong = execute(&mut app, &call("CONFIG SET notify-keyspace-events Q"));
    assert!(wrong.starts_with(b"-ERR CONFIG SET failed"));
    commit(&mut app, 1);
    checkpoint(&mut app);
    assert_eq!(news.notifications().shown(), "xKE");
    drop(app);
    let (mut app, news, told) = open(&dir);
    assert_eq!(news.notifications().shown(), "xKE");
    listen(&news, true);
    expect(&mut app, "PEXPIREAT k 1", ":0\r\n");
    expect(&mut app, "SET k v", "+OK\r\n");
    expect(&mut app, "PEXPIREAT k 1", ":1\r\n");
    expect(&mut app, "CONFIG SET notify-keyspace-events gKE", "+OK\r\n");
    expect(&mut app, "SET k v", "+OK\r\n");
    expect(&mut app, "DEL k", ":1\r\n");
    let all = ["__keyspace@0__:k del", "__keyevent@0__:del k"];
    assert_eq!(take(&told), all);
}
