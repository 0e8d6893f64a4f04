// SPDX-License-Identifier: Apache-2.0
//! Tests of messages and their subscribers.

use super::*;

#[test]
fn messages_reach_subscribers_at_all_replicas() {
    let Some(cluster) = start(2) else { return };
    let mut subscribers: Vec<Connection> = (0..3).map(|replica| cluster.connect(replica)).collect();
    for subscriber in &mut subscribers {
        let subscribed = Reply::Array(vec![bulk("subscribe"), bulk("news"), Reply::Int(1)]);
        assert_eq!(ask(subscriber, "SUBSCRIBE news"), subscribed);
        let subscribed = Reply::Array(vec![bulk("psubscribe"), bulk("n*s"), Reply::Int(2)]);
        assert_eq!(ask(subscriber, "PSUBSCRIBE n*s"), subscribed);
        let subscribed = Reply::Array(vec![bulk("ssubscribe"), bulk("news"), Reply::Int(1)]);
        assert_eq!(ask(subscriber, "SSUBSCRIBE news"), subscribed);
        expect_error(subscriber, "GET k", "Can't execute 'get'");
        assert_eq!(ask(subscriber, "PING"), array(&["pong", ""]));
    }
    let mut publisher = cluster.connect(0);
    let counted = |count| Reply::Array(vec![bulk("news"), Reply::Int(count)]);
    eventually("front ends that have just started know it", || {
        let told = ask(&mut publisher, "PUBSUB NUMSUB news");
        (told == counted(3)).then_some(())
    });
    assert_eq!(ask(&mut publisher, "PUBLISH news 1"), Reply::Int(6));
    assert_eq!(ask(&mut publisher, "SPUBLISH news 2"), Reply::Int(3));
    assert_eq!(ask(&mut publisher, "PUBLISH nothing 2"), Reply::Int(0));
    // Messages are sent by a transaction, and by a script.
    let transaction = [
        "MULTI",
        "PUBLISH news 3",
        "SPUBLISH news 4",
        "SET k v",
        "PUBSUB NUMSUB news",
    ];
    for words in transaction {
        ask(&mut publisher, words);
    }
    let answers = Reply::Array(vec![
        Reply::Int(6),
        Reply::Int(3),
        Reply::Simple("OK".into()),
        counted(3),
    ]);
    assert_eq!(ask(&mut publisher, "EXEC"), answers);
    let script = "return redis.call('PUBLISH',KEYS[1],'5')";
    let words: [&[u8]; 4] = [b"EVAL", script.as_bytes(), b"1", b"news"];
    assert_eq!(publisher.call(&words).unwrap(), Reply::Int(1));
    for (n, subscriber) in subscribers.iter_mut().enumerate() {
        let mut got: Vec<Vec<String>> = Vec::new();
        for _ in 0..8 {
            let Reply::Array(items) = subscriber.read().unwrap() else {
                panic!("no array");
            };
            let texts = items.iter().map(|item| match item {
                Reply::Bulk(Some(text)) => String::from_utf8_lossy(text).into_owned(),
                other => panic!("{other:?}"),
            });
            got.push(texts.collect());
        }
        // The messages of the transaction's partition and of the channel's partition are each in
        // order, but not together.
        got.sort();
        let message = |text: &str| vec!["message".to_owned(), "news".into(), text.into()];
        let by_pattern = |text: &str| {
            let words = ["pmessage", "n*s", "news", text];
            words.map(str::to_owned).to_vec()
        };
        let sharded = |text: &str| vec!["smessage".to_owned(), "news".into(), text.into()];
        let mut expected = vec![sharded("2"), sharded("4")];
        for text in ["1", "3", "5"] {
            expected.extend([message(text), by_pattern(text)]);
        }
        expected.sort();
        assert_eq!(got, expected, "replica {n}");
    }
    assert_eq!(info(&cluster, 0, "pubsub_channels"), 1);
    assert_eq!(ask(&mut publisher, "PUBSUB NUMSUB news"), counted(3));
    assert_eq!(ask(&mut publisher, "PUBSUB SHARDNUMSUB news"), counted(3));
    assert_eq!(ask(&mut publisher, "PUBSUB NUMPAT"), Reply::Int(1));
    assert_eq!(ask(&mut publisher, "PUBSUB CHANNELS"), array(&["news"]));
    // A PUBSUB that is refused breaks the transaction.
    for words in ["MULTI", "PUBSUB NOSUCH"] {
        ask(&mut publisher, words);
    }
    expect_error(&mut publisher, "EXEC", "EXECABORT");
    // The front ends' own channel is refused to clients.
    for words in ["SSUBSCRIBE", "SPUBLISH"] {
        let words = format!(
            "{words} wirepaxos:audience {}",
            if words == "SPUBLISH" { "x" } else { "other" }
        );
        expect_error(&mut publisher, &words, "the front ends' own");
    }

    let subscriber = &mut subscribers[0];
    send(subscriber, "UNSUBSCRIBE");
    send(subscriber, "PUNSUBSCRIBE n*s");
    send(subscriber, "SUNSUBSCRIBE news");
    let left = [
        ("unsubscribe", "news", 1),
        ("punsubscribe", "n*s", 0),
        ("sunsubscribe", "news", 0),
    ];
    for (name, of, count) in left {
        let expected = Reply::Array(vec![bulk(name), bulk(of), Reply::Int(count)]);
        assert_eq!(subscriber.read().unwrap(), expected);
    }
    assert_eq!(ask(subscriber, "GET k"), bulk("v"));
    assert_eq!(ask(&mut publisher, "PUBSUB NUMSUB news"), counted(2));
    assert_eq!(ask(&mut publisher, "PUBLISH news 6"), Reply::Int(4));
    drop(subscribers);
    eventually("nobody counts them", || {
        let left = ask(&mut publisher, "PUBSUB NUMSUB news");
        (left == counted(0)).then_some(())
    });
    assert_eq!(ask(&mut publisher, "PUBSUB CHANNELS"), array(&[]));
    eventually("nobody listens", || {
        (info(&cluster, 1, "pubsub_channels") == 0).then_some(())
    });
    cluster.assert_replicas_agree(3);
}

#[test]
fn subscribers_of_a_front_end_that_is_gone_are_not_counted() {
    let Some(mut cluster) = start(1) else { return };
    let mut publisher = cluster.connect(0);
    let subscribed = Reply::Array(vec![bulk("subscribe"), bulk("news"), Reply::Int(1)]);
    let counted = |count| Reply::Array(vec![bulk("news"), Reply::Int(count)]);
    let mut subscriber = cluster.connect(1);
    assert_eq!(ask(&mut subscriber, "SUBSCRIBE news"), subscribed);
    eventually("front ends that have just started know it", || {
        let told = ask(&mut publisher, "PUBSUB NUMSUB news");
        (told == counted(1)).then_some(())
    });
    cluster.processes.kill("replica-2");
    eventually("it is forgotten", || {
        let left = ask(&mut publisher, "PUBSUB NUMSUB news");
        (left == counted(0)).then_some(())
    });
    assert_eq!(ask(&mut publisher, "PUBLISH news 1"), Reply::Int(0));
}

#[test]
fn clients_that_want_no_answers_get_their_messages() {
    let Some(cluster) = start(1) else { return };
    let (mut one, mut other) = (cluster.connect(0), cluster.connect(1));
    for words in [
        "CLIENT REPLY OFF",
        "SET k v",
        "NOSUCH",
        "PUBSUB NUMPAT",
        "PUBSUB NOSUCH",
        "SUBSCRIBE news",
    ] {
        send(&mut one, words);
    }
    let told = |kind: &str, last: Reply| Reply::Array(vec![bulk(kind), bulk("news"), last]);
    assert_eq!(one.read().unwrap(), told("subscribe", Reply::Int(1)));
    ask(&mut other, "PUBLISH news 1");
    assert_eq!(one.read().unwrap(), told("message", bulk("1")));
    let Reply::Bulk(Some(listed)) = cluster.call(0, &["CLIENT", "LIST", "TYPE", "pubsub"]) else {
        panic!("no text");
    };
    let listed = String::from_utf8(listed).unwrap();
    assert!(
        listed.contains("flags=P") && listed.contains("cmd=subscribe"),
        "{listed}"
    );
    send(&mut one, "UNSUBSCRIBE news");
    assert_eq!(one.read().unwrap(), told("unsubscribe", Reply::Int(0)));
    for words in ["LPUSH l 1", "CLIENT REPLY ON"] {
        send(&mut one, words);
    }
    assert_eq!(one.read().unwrap(), Reply::Simple("OK".into()));
    assert_eq!(ask(&mut one, "LRANGE l 0 -1"), array(&["1"]));
    // A client that is ended while it waits takes nothing.
    send(&mut one, "BLPOP q 0");
    await_waiting(&cluster, 0, 1);
    // One connection does both, since that of another call might not be noticed as closed yet, and
    // be ended, too.
    let mut killer = cluster.connect(0);
    await_connections(&mut killer, 1);
    assert_eq!(ask(&mut killer, "CLIENT KILL TYPE normal"), Reply::Int(1));
    assert!(one.read().is_err());
    await_waiting(&cluster, 0, 0);
    ask(&mut other, "RPUSH q v");
    assert_eq!(cluster.call(0, &["LPOP", "q"]), bulk("v"));
    expect_error(&mut other, "CLIENT TRACKING ON", "isn't available here");
}
