// SPDX-License-Identifier: Apache-2.0
//! Tests of clients that wait at keys, and of channels, where Redis itself is replicated.

#[path = "../common/mod.rs"]
mod common;
mod messages;

use common::redis::has_redis;
use common::{TestCluster, eventually, shape};
use local_cluster::Shape;
use local_cluster::resp::{Connection, Reply};

fn start(partitions: u16) -> Option<TestCluster> {
    if !has_redis() {
        return None;
    }
    let cluster = TestCluster::start(&Shape {
        partitions,
        ..shape("redis")
    });
    // Until a replica serves, clients that wait for that count as waiting, too.
    (0..3).for_each(|replica| drop(cluster.call(replica, &["DBSIZE"])));
    Some(cluster)
}

fn send(connection: &mut Connection, words: &str) {
    let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
    connection.push(&words);
    connection.flush().unwrap();
}

fn ask(connection: &mut Connection, words: &str) -> Reply {
    send(connection, words);
    connection.read().unwrap()
}

#[track_caller]
fn expect_error(connection: &mut Connection, words: &str, says: &str) {
    match ask(connection, words) {
        Reply::Error(text) => assert!(text.contains(says), "{words}: {text}"),
        other => panic!("{words}: {other:?}"),
    }
}

fn bulk(text: &str) -> Reply {
    Reply::Bulk(Some(text.as_bytes().to_vec()))
}

fn array(texts: &[&str]) -> Reply {
    Reply::Array(texts.iter().copied().map(bulk).collect())
}

fn info(cluster: &TestCluster, replica: usize, name: &str) -> u64 {
    let Reply::Bulk(Some(text)) = cluster.call(replica, &["INFO"]) else {
        panic!("no text");
    };
    let text = String::from_utf8(text).unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(name));
    let value = lines.find_map(|rest| rest.strip_prefix(':'));
    value.expect("it is there").trim().parse().unwrap()
}

fn await_waiting(cluster: &TestCluster, replica: usize, count: u64) {
    eventually("clients that wait", || {
        (info(cluster, replica, "blocked_clients") == count).then_some(())
    });
}

/// Waits until the connections of earlier calls are closed, and so many are left, including the one
/// that asks.
fn await_connections(asking: &mut Connection, count: usize) {
    eventually("connections that are closed", || {
        let listed = ask(asking, "CLIENT LIST TYPE normal");
        let Reply::Bulk(Some(text)) = listed else {
            panic!("{listed:?}");
        };
        let lines = text.iter().filter(|byte| **byte == b'\n').count();
        (lines == count + 1).then_some(())
    });
}

/// A change at one replica is noticed at another one, by the client that waits there longest.
#[test]
fn who_waits_gets_what_appears_anywhere() {
    let Some(cluster) = start(2) else { return };
    let mut waiting: Vec<Connection> = (0..3).map(|_| cluster.connect(0)).collect();
    for (n, connection) in waiting.iter_mut().enumerate() {
        send(connection, "BLPOP none{q} q{q} 0");
        await_waiting(&cluster, 0, n as u64 + 1);
    }
    let mut other = cluster.connect(1);
    for (n, connection) in waiting.iter_mut().enumerate() {
        let pushed = ask(&mut other, &format!("RPUSH q{{q}} {n}"));
        assert_eq!(pushed, Reply::Int(1));
        let got = connection.read().unwrap();
        assert_eq!(
            got,
            array(&["q{q}", &n.to_string()]),
            "the one that waits longest"
        );
    }
    await_waiting(&cluster, 0, 0);
    // Several clients are served at once.
    for connection in &mut waiting {
        send(connection, "BLPOP q{q} 0");
    }
    await_waiting(&cluster, 0, 3);
    ask(&mut other, "RPUSH q{q} a b c d");
    let mut got: Vec<Reply> = waiting.iter_mut().map(|c| c.read().unwrap()).collect();
    got.sort_by_key(|reply| format!("{reply:?}"));
    assert_eq!(got, ["a", "b", "c"].map(|item| array(&["q{q}", item])));
    assert_eq!(ask(&mut other, "LRANGE q{q} 0 -1"), array(&["d"]));
    cluster.assert_replicas_agree(3);
}

#[test]
fn all_commands_that_wait_do() {
    let Some(cluster) = start(1) else { return };
    let (mut one, mut other) = (cluster.connect(0), cluster.connect(2));
    let pair = |key: &str, inner: &[&str]| Reply::Array(vec![bulk(key), array(inner)]);
    let entry = |id: &str| {
        let entry = Reply::Array(vec![bulk(id), array(&["f", "v"])]);
        let stream = Reply::Array(vec![bulk("s"), Reply::Array(vec![entry])]);
        Reply::Array(vec![stream])
    };
    ask(&mut other, "XADD s 1-1 f old");
    ask(&mut other, "XGROUP CREATE s g $");
    for (waits, changes, answer) in [
        ("BRPOP l 0", "LPUSH l v", array(&["l", "v"])),
        ("BLMOVE l m LEFT RIGHT 0", "LPUSH l v", bulk("v")),
        ("BRPOPLPUSH l m 0", "LPUSH l w", bulk("w")),
        (
            "BLMPOP 0 2 x l LEFT COUNT 2",
            "LPUSH l a b",
            pair("l", &["b", "a"]),
        ),
        ("BZPOPMIN z 0", "ZADD z 2 m", array(&["z", "m", "2"])),
        ("BZPOPMAX z 0", "ZADD z 3 m", array(&["z", "m", "3"])),
        (
            "BZMPOP 0 1 z MIN",
            "ZADD z 4 m",
            Reply::Array(vec![bulk("z"), Reply::Array(vec![array(&["m", "4"])])]),
        ),
        ("XREAD BLOCK 0 STREAMS s $", "XADD s 2-1 f v", entry("2-1")),
        (
            "XREADGROUP GROUP g c BLOCK 0 STREAMS s >",
            "XADD s 3-1 f v",
            entry("3-1"),
        ),
        // Scripts make the next two changes: at a key that is given to them, and at another one.
        (
            "BLPOP l 0",
            "EVAL redis.call('LPUSH',KEYS[1],'v') 1 l",
            array(&["l", "v"]),
        ),
        (
            "BLPOP l 0",
            "EVAL redis.call('LPUSH','l','v') 0",
            array(&["l", "v"]),
        ),
        ("BLPOP l 0", "RENAME m l", array(&["l", "w"])),
    ] {
        if waits.starts_with("XREADGROUP") {
            // The entry that was added for XREAD is new to the group, too.
            ask(&mut one, "XREADGROUP GROUP g c STREAMS s >");
        }
        send(&mut one, waits);
        await_waiting(&cluster, 0, 1);
        ask(&mut other, changes);
        assert_eq!(one.read().unwrap(), answer, "{waits}");
    }
    // A client that has begun to wait isn't disturbed by a value of another type.
    for (waits, changes, answer) in [
        ("BLPOP t 0", "RPUSH t v", array(&["t", "v"])),
        ("BZPOPMIN t 0", "ZADD t 2 m", array(&["t", "m", "2"])),
    ] {
        expect_error(&mut other, "BLPOP s 0", "WRONGTYPE");
        ask(&mut other, "DEL t");
        send(&mut one, waits);
        await_waiting(&cluster, 0, 1);
        for words in ["SET t v", "SET t w", "DEL t", changes] {
            ask(&mut other, words);
        }
        assert_eq!(one.read().unwrap(), answer, "{waits}");
    }
    // One item is there at once, and another one doesn't come in time.
    ask(&mut other, "DEL l");
    ask(&mut other, "RPUSH l now");
    assert_eq!(ask(&mut one, "BLPOP l 0"), array(&["l", "now"]));
    assert_eq!(
        ask(&mut one, "BLMOVE none m LEFT LEFT 0.01"),
        Reply::Bulk(None)
    );
    assert_eq!(ask(&mut one, "BLPOP none 0.01"), Reply::Array(Vec::new()));
    assert_eq!(
        ask(&mut one, "XREAD BLOCK 10 STREAMS s $"),
        Reply::Array(Vec::new())
    );
    for (wrong, says) in [
        ("BLPOP l x", "timeout is not a float"),
        ("BLPOP l -1", "timeout is negative"),
        ("XREAD BLOCK x STREAMS s $", "timeout is not an integer"),
        ("XREAD BLOCK 0 COUNT 1 STREAMS s", "Unbalanced"),
        ("XREAD BLOCK 0 STREAMS z $", "WRONGTYPE"),
        ("BLPOP s 0", "WRONGTYPE"),
        ("XREADGROUP GROUP no c BLOCK 0 STREAMS s >", "NOGROUP"),
        ("BLPOP l", "wrong number of arguments"),
        ("WAIT x 0", "not an integer"),
    ] {
        if wrong.contains(" z ") {
            ask(&mut other, "ZADD z 1 m");
        }
        expect_error(&mut one, wrong, says);
    }
    assert_eq!(ask(&mut one, "WAIT 1 0"), Reply::Int(2));
    cluster.assert_replicas_agree(3);
}

/// As long as nothing happens to their keys, waiting clients try nothing.
#[test]
fn who_waits_costs_nothing() {
    let Some(cluster) = start(1) else { return };
    let asked = [
        "BLPOP q 0",
        "BRPOP q p 0",
        "BLMOVE q p LEFT LEFT 0",
        "BZMPOP 0 2 q p MIN",
        "XREADGROUP GROUP g c BLOCK 0 STREAMS s >",
    ];
    cluster.call(0, &["XGROUP", "CREATE", "s", "g", "$", "MKSTREAM"]);
    let mut waiting: Vec<Connection> = asked.iter().map(|_| cluster.connect(0)).collect();
    for (n, (connection, words)) in waiting.iter_mut().zip(asked).enumerate() {
        send(connection, words);
        await_waiting(&cluster, 0, n as u64 + 1);
    }
    let before = info(&cluster, 0, "total_commands_logged");
    for n in 0..100 {
        assert_eq!(cluster.call(0, &["INCR", "n"]), Reply::Int(n + 1));
    }
    assert_eq!(info(&cluster, 0, "total_commands_logged"), before + 100);
}

#[test]
fn who_is_gone_takes_nothing_and_who_is_unblocked_goes_on() {
    let Some(cluster) = start(1) else { return };
    let mut gone = cluster.connect(0);
    send(&mut gone, "BLPOP q 0");
    await_waiting(&cluster, 0, 1);
    drop(gone);
    await_waiting(&cluster, 0, 0);
    cluster.call(1, &["RPUSH", "q", "v"]);
    assert_eq!(cluster.call(0, &["LPOP", "q"]), bulk("v"));

    let mut waits = cluster.connect(0);
    let Reply::Int(id) = ask(&mut waits, "CLIENT ID") else {
        panic!("no number");
    };
    for (how, begins) in [("TIMEOUT", "Array"), ("ERROR", "Error(\"UNBLOCKED")] {
        send(&mut waits, "BLPOP q 0");
        await_waiting(&cluster, 0, 1);
        let done = cluster.call(0, &["CLIENT", "UNBLOCK", &id.to_string(), how]);
        assert_eq!(done, Reply::Int(1));
        let answer = format!("{:?}", waits.read().unwrap());
        assert!(answer.starts_with(begins), "{answer}");
    }
    // A command behind the waiting one is executed after it.
    send(&mut waits, "BLPOP q 0");
    send(&mut waits, "INCR n");
    await_waiting(&cluster, 0, 1);
    assert_eq!(cluster.call(0, &["GET", "n"]), Reply::Bulk(None));
    cluster.call(2, &["RPUSH", "q", "v"]);
    assert_eq!(waits.read().unwrap(), array(&["q", "v"]));
    assert_eq!(waits.read().unwrap(), Reply::Int(1));
}

/// Each item is taken once, whichever server or replica dies.
#[test]
fn nothing_is_taken_twice_when_servers_and_replicas_die() {
    let Some(mut cluster) = start(1) else { return };
    let mut consumers: Vec<Connection> = [0, 0, 1].map(|replica| cluster.connect(replica)).into();
    let mut producer = cluster.connect(1);
    let mut taken: Vec<u64> = Vec::new();
    for n in 0..60_u64 {
        let consumer = &mut consumers[n as usize % 3];
        send(consumer, "BLPOP q 0");
        match n {
            15 => cluster.processes.kill("leader-1"),
            30 => cluster.processes.kill("replica-3"),
            40 => cluster.start_node("replica-3"),
            _ => {}
        }
        assert!(matches!(
            ask(&mut producer, &format!("RPUSH q {n}")),
            Reply::Int(_)
        ));
        let Reply::Array(answer) = consumers[n as usize % 3].read().unwrap() else {
            panic!("no array");
        };
        let Reply::Bulk(Some(item)) = &answer[1] else {
            panic!("no item");
        };
        taken.push(std::str::from_utf8(item).unwrap().parse().unwrap());
    }
    assert!(taken.iter().copied().eq(0..60));
    assert_eq!(ask(&mut producer, "LLEN q"), Reply::Int(0));
    cluster.assert_replicas_agree(3);
}

/// The errors are those of Redis, whose clients wait within it.
#[test]
fn who_waits_for_a_group_is_told_that_it_is_gone() {
    let Some(cluster) = start(1) else { return };
    let (mut one, mut other) = (cluster.connect(0), cluster.connect(2));
    let no_stream = "UNBLOCKED the stream key no longer exists";
    let no_group = "NOGROUP the consumer group this client was blocked on no longer exists";
    for (ends, says) in [
        (&["DEL s"][..], no_stream),
        (&["SET s v"], no_stream),
        (&["RENAME s x"], no_stream),
        (&["SET x v", "RENAME x s"], no_stream),
        (&["FLUSHALL"], no_stream),
        (&["XGROUP DESTROY s g"], no_group),
        (&["XADD x 5-1 f v", "RENAME x s"], no_group),
    ] {
        for keys in ["s >", "t s > >"] {
            for words in [
                "DEL s t x",
                "XGROUP CREATE s g $ MKSTREAM",
                "XGROUP CREATE t g $ MKSTREAM",
            ] {
                ask(&mut other, words);
            }
            send(
                &mut one,
                &format!("XREADGROUP GROUP g c BLOCK 0 STREAMS {keys}"),
            );
            await_waiting(&cluster, 0, 1);
            for words in ends {
                ask(&mut other, words);
            }
            assert_eq!(one.read().unwrap(), Reply::Error(says.into()), "{ends:?}");
        }
    }
    cluster.assert_replicas_agree(3);
}

/// The order holds whichever commands the clients wait with, and whichever connection was opened
/// first.
#[test]
fn who_waits_longest_for_a_key_is_served_first() {
    let Some(cluster) = start(1) else { return };
    let mut waiting: Vec<Connection> = (0..4).map(|_| cluster.connect(0)).collect();
    let mut other = cluster.connect(1);
    waiting.reverse();
    let asked = [
        "BZMPOP 0 2 z y MIN COUNT 1",
        "BZMPOP 0 2 z y MAX COUNT 10",
        "BZMPOP 0 2 z y MIN COUNT 10",
        "BZMPOP 0 2 z y MAX COUNT 1",
    ];
    for (n, (connection, words)) in waiting.iter_mut().zip(asked).enumerate() {
        send(connection, words);
        await_waiting(&cluster, 0, n as u64 + 1);
    }
    let all = |key: &str, members: &[(&str, &str)]| {
        let pairs = members
            .iter()
            .map(|(member, score)| array(&[member, score]));
        Reply::Array(vec![bulk(key), Reply::Array(pairs.collect())])
    };
    for words in ["MULTI", "ZADD z 1 a 2 b 3 c", "ZADD y 1 a 2 b 3 c", "EXEC"] {
        ask(&mut other, words);
    }
    assert_eq!(waiting[0].read().unwrap(), all("z", &[("a", "1")]));
    assert_eq!(
        waiting[1].read().unwrap(),
        all("z", &[("c", "3"), ("b", "2")])
    );
    assert_eq!(
        waiting[2].read().unwrap(),
        all("y", &[("a", "1"), ("b", "2"), ("c", "3")])
    );
    await_waiting(&cluster, 0, 1);
    ask(&mut other, "ZADD y 1 a 2 b");
    assert_eq!(waiting[3].read().unwrap(), all("y", &[("b", "2")]));

    // Of several keys, the one that was written first counts.
    for (waits, changes, answer) in [
        (
            "BLPOP a b c 0",
            &["RPUSH c 1", "RPUSH b 2", "RPUSH a 3"][..],
            array(&["c", "1"]),
        ),
        (
            "BZPOPMIN a b c 0",
            &["ZADD b 2 m", "ZADD c 1 m", "ZADD a 3 m"],
            array(&["b", "m", "2"]),
        ),
        (
            "BLMPOP 0 3 a b c LEFT",
            &["RPUSH b 2", "RPUSH a 3"],
            Reply::Array(vec![bulk("b"), array(&["2"])]),
        ),
        // A move takes from its source, even if its destination was written first.
        (
            "BLMOVE a b LEFT LEFT 0",
            &["RPUSH b 2", "RPUSH a 3"],
            bulk("3"),
        ),
        ("BRPOPLPUSH a b 0", &["RPUSH b 2", "RPUSH a 3"], bulk("3")),
    ] {
        // The waiting client's own replica has executed this before it waits, so sees no change.
        ask(&mut waiting[0], "DEL a b c");
        send(&mut waiting[0], waits);
        await_waiting(&cluster, 0, 1);
        ask(&mut other, "MULTI");
        for words in changes {
            ask(&mut other, words);
        }
        ask(&mut other, "EXEC");
        assert_eq!(waiting[0].read().unwrap(), answer, "{waits}");
    }
    cluster.assert_replicas_agree(3);
}
