// SPDX-License-Identifier: Apache-2.0
//! Tests of Redis's keyspace notifications over a cluster of real processes: each event comes once
//! to whoever has subscribed, whichever replica took the command.

mod common;

use std::collections::BTreeMap;

use common::redis::{REPLICAS, has_redis, kill_servers};
use common::{TestCluster, eventually, shape};
use local_cluster::Shape;
use local_cluster::resp::{Connection, Reply};

const SETTING: &str = "notify-keyspace-events";

fn start(durable: bool) -> Option<TestCluster> {
    if !has_redis() {
        return None;
    }
    Some(TestCluster::start(&Shape {
        partitions: 2,
        durable,
        ..shape("redis")
    }))
}

fn text(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(Some(text)) => String::from_utf8_lossy(text).into_owned(),
        other => panic!("{other:?}"),
    }
}

fn flags(cluster: &TestCluster, replica: usize) -> String {
    match cluster.call(replica, &["CONFIG", "GET", SETTING]) {
        Reply::Array(items) => text(&items[1]),
        other => panic!("{other:?}"),
    }
}

/// Sets the flags once all replicas have executed all writes of before, since another partition may
/// be behind the first one, which has the flags.
fn set_flags(cluster: &TestCluster, replica: usize, given: &str, shown: &str) {
    cluster.assert_replicas_agree(REPLICAS.len());
    let set = cluster.call(replica, &["CONFIG", "SET", SETTING, given]);
    assert_eq!(set, Reply::Simple("OK".into()));
    for replica in 0..REPLICAS.len() {
        eventually("the flags at each replica", || {
            (flags(cluster, replica) == shown).then_some(())
        });
    }
}

fn subscribe(cluster: &TestCluster, replica: usize, pattern: &str) -> Connection {
    let mut subscriber = cluster.connect(replica);
    let subscribed = subscriber.call(&[b"PSUBSCRIBE", pattern.as_bytes()]);
    assert!(matches!(subscribed, Ok(Reply::Array(_))), "{subscribed:?}");
    subscriber
}

/// Reads as many events as are expected, and expects these. Keys of before may expire late, or
/// again after their server was replaced.
#[track_caller]
fn expect(subscriber: &mut Connection, expected: &BTreeMap<String, usize>) {
    let mut events = BTreeMap::new();
    let mut left: usize = expected.values().sum();
    while left > 0 {
        let message = subscriber.read();
        let Ok(Reply::Array(items)) = &message else {
            panic!("{left} events are missing, besides {events:?}: {message:?}");
        };
        let [kind, _, channel, told] = items.as_slice() else {
            panic!("{items:?}");
        };
        assert_eq!(text(kind), "pmessage");
        let event = format!("{} {}", text(channel), text(told));
        if event.contains("expired") && !expected.contains_key(&event) {
            continue;
        }
        *events.entry(event).or_default() += 1;
        left -= 1;
    }
    assert_eq!(&events, expected);
}

/// Returns the events of these keys, as both kinds of channels tell them.
fn events<'a>(of: impl IntoIterator<Item = (&'a str, &'a str)>) -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    for (event, key) in of {
        *all.entry(format!("__keyspace@0__:{key} {event}"))
            .or_default() += 1;
        *all.entry(format!("__keyevent@0__:{event} {key}"))
            .or_default() += 1;
    }
    all
}

/// Writes to keys of both partitions, and returns the events of that.
fn write(cluster: &TestCluster, replica: usize, round: &str) -> BTreeMap<String, usize> {
    let keys: Vec<String> = (0..8).map(|n| format!("{round}:{n}")).collect();
    let mut expected = Vec::new();
    let mut connection = cluster.connect(replica);
    let mut ask = |words: &[&str]| {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let answer = connection.call(&words).unwrap();
        assert!(!matches!(answer, Reply::Error(_)), "{answer:?}");
    };
    for key in &keys {
        let list = format!("list:{key}");
        ask(&["SET", key, "v"]);
        ask(&["LPUSH", &list, "a", "b"]);
        ask(&["PEXPIRE", key, "1"]);
        ask(&["DEL", &list]);
        let script = "return redis.call('SETEX', KEYS[1], 1000, 'v')";
        ask(&["EVAL", script, "1", &list]);
        for event in ["set", "expire", "expired"] {
            expected.push((event, key.clone()));
        }
        for event in ["lpush", "del", "set", "expire"] {
            expected.push((event, list.clone()));
        }
    }
    events(expected.iter().map(|(event, key)| (*event, key.as_str())))
}

#[test]
fn events_of_all_partitions_come_once_whichever_replica_writes_and_whatever_dies() {
    let Some(mut cluster) = start(false) else {
        return;
    };
    // Without flags nothing is told, with them only classes that are named.
    let mut early = subscribe(&cluster, 1, "__key*@0__:*");
    write(&cluster, 0, "before");
    set_flags(&cluster, 0, "KEl", "lKE");
    cluster.call(2, &["SET", "string", "v"]);
    cluster.call(2, &["RPUSH", "list", "a"]);
    expect(&mut early, &events([("rpush", "list")]));
    set_flags(&cluster, 2, "g$lshzxetdKE", "AKE");

    let mut subscriber = subscribe(&cluster, 1, "__key*@0__:*");
    for (replica, round) in [(0, "first"), (2, "second"), (1, "third")] {
        let expected = write(&cluster, replica, round);
        expect(&mut subscriber, &expected);
    }
    cluster.processes.kill("replica-3");
    let expected = write(&cluster, 0, "without replica-3");
    expect(&mut subscriber, &expected);
    cluster.start_node("replica-3");
    let expected = write(&cluster, 2, "with it");
    expect(&mut subscriber, &expected);
    // Their successors are given old commands again, of which nothing is told.
    kill_servers(&cluster, "replica-2");
    let expected = write(&cluster, 0, "other servers");
    expect(&mut subscriber, &expected);

    // All front ends count the subscriptions, and a message is delivered as by any other channel.
    assert_eq!(cluster.call(0, &["PUBSUB", "NUMPAT"]), Reply::Int(1));
    let published = cluster.call(2, &["PUBLISH", "__keyspace@0__:k", "own"]);
    assert_eq!(published, Reply::Int(2));
    let own = BTreeMap::from([("__keyspace@0__:k own".to_owned(), 1)]);
    expect(&mut subscriber, &own);

    set_flags(&cluster, 1, "", "");
    write(&cluster, 0, "after");
    set_flags(&cluster, 1, "E$", "$E");
    cluster.call(0, &["SET", "last", "v"]);
    let last = BTreeMap::from([("__keyevent@0__:set last".to_owned(), 1)]);
    expect(&mut subscriber, &last);
    cluster.assert_replicas_agree(3);
}

#[test]
fn the_flags_survive_a_restart_of_all_and_wrong_ones_change_nothing() {
    let Some(mut cluster) = start(true) else {
        return;
    };
    set_flags(&cluster, 1, "Exn", "xnE");
    let mut client = cluster.connect(2);
    for (words, why) in [
        (
            &["notify-keyspace-events", "KQ"][..],
            "ERR CONFIG SET failed (possibly related to argument 'notify-keyspace-events') - \
             Invalid event class character. Use 'Ag$lshzxeKEtmdn'.",
        ),
        (
            &["notify-keyspace-events", "AKEm"],
            "ERR CONFIG SET failed (possibly related to argument 'notify-keyspace-events') - \
             events of keys that aren't found",
        ),
        (
            &["notify-keyspace-events"],
            "ERR wrong number of arguments for 'config|set' command",
        ),
        (
            &["notify-keyspace-events", "K", "Notify-Keyspace-Events", "E"],
            "ERR CONFIG SET failed (possibly related to argument 'notify-keyspace-events') - \
             duplicate parameter",
        ),
        (
            &["notify-keyspace-events", "K", "maxmemory", "1"],
            "ERR CONFIG SET takes notify-keyspace-events alone here",
        ),
        (
            &["maxmemory", "1"],
            "ERR CONFIG SET takes notify-keyspace-events alone here",
        ),
    ] {
        let mut all: Vec<&[u8]> = vec![b"CONFIG", b"SET"];
        all.extend(words.iter().map(|word| word.as_bytes()));
        match client.call(&all).unwrap() {
            Reply::Error(text) => assert!(text.starts_with(why), "{words:?}: {text}"),
            other => panic!("{words:?}: {other:?}"),
        }
    }
    let nodes = cluster.local.nodes.clone();
    nodes.iter().for_each(|name| cluster.processes.kill(name));
    cluster.start_all();
    for replica in 0..REPLICAS.len() {
        eventually("the flags after the restart", || {
            (flags(&cluster, replica) == "xnE").then_some(())
        });
    }
    let mut subscriber = subscribe(&cluster, 1, "__keyevent@0__:expired");
    cluster.call(0, &["SET", "k", "v", "PX", "1"]);
    let expired = BTreeMap::from([("__keyevent@0__:expired k".to_owned(), 1)]);
    expect(&mut subscriber, &expired);
}
