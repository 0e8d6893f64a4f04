// SPDX-License-Identifier: Apache-2.0
//! Tests of the servers' memory.

use super::*;

#[test]
fn info_counts_the_memory_of_the_servers() {
    let Some(cluster) = start(2) else { return };
    cluster.call(0, &["SET", "ready", "1"]);
    let mut connection = cluster.connect(0);
    let before = eventually("the servers' memory", || {
        Some(used_memory(&mut connection)).filter(|bytes| *bytes > 0)
    });
    for n in 0..64 {
        let answer = ask(&mut connection, &format!("SETRANGE key:{n} 1048575 x"));
        assert_eq!(answer, Reply::Int(1 << 20));
    }
    eventually("more memory", || {
        (used_memory(&mut connection) >= before + (48 << 20)).then_some(())
    });
}

#[test]
fn servers_that_have_too_much_memory_make_writes_fail_and_nothing_else() {
    if !has_redis() {
        return;
    }
    let shape = Shape {
        partitions: 2,
        ..shape("redis")
    };
    const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'. ";
    let mut cluster = TestCluster::start_with(&shape, "max_memory_mib = 48\nmax_answer_mib = 1");
    cluster.call(0, &["SET", "first", "1"]);
    let mut connection = cluster.connect(0);
    let max = Reply::Array(vec![bulk("maxmemory"), bulk(&(48 << 20).to_string())]);
    assert_eq!(ask(&mut connection, "CONFIG GET maxmemory"), max);
    let filler = "x".repeat(500_000);
    let mut full = 0;
    let why = eventually("a refusal", || {
        full += 1;
        match ask(&mut connection, &format!("SET key:{full} {filler}")) {
            Reply::Error(why) => Some(why),
            _ => None,
        }
    });
    assert!(
        why.starts_with(OOM) && why.contains("max_memory_mib"),
        "{why}"
    );
    assert!(full > 60, "{full} values of half a megabyte");
    // With these megabytes neither a deletion below nor what a server frees by itself makes room.
    let script: &[u8] = b"#!lua flags=allow-oom\nreturn redis.call('SET', KEYS[1], ARGV[1])";
    for _ in 0..8 {
        full += 1;
        let key = format!("key:{full}");
        let set = [b"EVAL", script, b"1", key.as_bytes(), filler.as_bytes()];
        assert_eq!(connection.call(&set).unwrap(), ok());
    }
    // Commands that need no memory go on. Those that may need some are refused, and not ordered.
    assert_eq!(ask(&mut connection, "STRLEN key:1"), Reply::Int(500_000));
    for words in [
        "LPUSH l x",
        "EVAL return(1) 0",
        "BLMOVE a b LEFT LEFT 0",
        "APPEND first x",
    ] {
        expect_error(&mut connection, words, OOM);
    }
    assert_eq!(ask(&mut connection, "EVAL_RO return(1) 0"), Reply::Int(1));
    let script: &[u8] = b"local v = redis.call('GET', KEYS[1]) return {v, v, v}";
    match connection
        .call(&[b"EVAL_RO", script, b"1", b"key:2"])
        .unwrap()
    {
        Reply::Error(why) => assert!(
            why.contains("more than 1 MiB, which max_answer_mib"),
            "{why}"
        ),
        _ => panic!("the answer has 1.5 MB"),
    }
    let script: &[u8] = b"#!lua flags=allow-oom\nreturn redis.call('DEL', KEYS[1])";
    let deleted = connection.call(&[b"EVAL", script, b"1", b"key:1"]);
    assert_eq!(deleted.unwrap(), Reply::Int(1));
    assert_eq!(ask(&mut connection, "MULTI"), ok());
    expect_error(&mut connection, "INCR first", OOM);
    expect_error(&mut connection, "EXEC", "EXECABORT");
    let name = "CLIENT SETNAME once:0123456789abcdef:1";
    assert_eq!(ask(&mut connection, name), ok());
    match ask(&mut connection, "INCR first") {
        Reply::Error(why) => assert!(why.contains("send it again later"), "{why}"),
        other => panic!("{other:?}"),
    }
    eventually("a warning", || {
        let status = cluster.run("status", &[]).stdout;
        let status = String::from_utf8_lossy(&status);
        status.contains("max_memory_mib allows 48").then_some(())
    });
    // A replica that starts again counts anew, perhaps a little less, and refuses as well.
    cluster.processes.kill("replica-2");
    cluster.start_node("replica-2");
    eventually("a refusal of the replica that started again", || {
        full += 1;
        let mut other = Connection::open(cluster.local.redis[1], Duration::from_secs(5)).ok()?;
        let key = format!("key:{full}");
        let answer = other.call(&[b"SET", key.as_bytes(), filler.as_bytes()]);
        matches!(answer.ok()?, Reply::Error(why) if why.starts_with(OOM)).then_some(())
    });
    for n in 1..=full {
        ask(&mut connection, &format!("DEL key:{n}"));
    }
    for replica in 0..3 {
        cluster.call(replica, &["SET", &format!("again:{replica}"), "1"]);
    }
    assert_eq!(cluster.call(1, &["GET", "first"]), bulk("1"));
    cluster.assert_replicas_agree(3);
}

fn used_memory(connection: &mut Connection) -> u64 {
    let Reply::Bulk(Some(text)) = ask(connection, "INFO memory") else {
        panic!("no text");
    };
    let text = String::from_utf8(text).unwrap();
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix("used_memory:"));
    value.expect("it is there").parse().unwrap()
}
