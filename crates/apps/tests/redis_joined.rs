// SPDX-License-Identifier: Apache-2.0
//! Transactions that a front end makes of a pipeline's commands: they are given to a server without
//! MULTI and EXEC, and nobody may see a difference.

mod common;

use apps::redis::{Command, Stamp, Value, join_call, put_call};
use apps::{Application, Redis};
use common::TempDir;
use common::redis::*;
use test_world::Rng;

/// Commands of all kinds of values; `K` is one of few keys, which others fill with another kind.
const COMMANDS: [&str; 24] = [
    "SET K 7",
    "SET K 8 EX 1",
    "SET K x NX",
    "SETNX K 5",
    "APPEND K 12",
    "INCR K",
    "DECRBY K 3",
    "INCRBYFLOAT K 0.5",
    "SETRANGE K 2 ab",
    "MSET K 1 K 2",
    "MSETNX K 1 K 2",
    "DEL K K",
    "PEXPIRE K 30",
    "PERSIST K",
    "RENAME K K",
    "LPUSH K a b",
    "LSET K 0 c",
    "SADD K a b c",
    "SMOVE K K a",
    "HSET K f 1 g 2",
    "HINCRBY K f 4",
    "ZADD K 1 a 2 b",
    "ZINCRBY K 5 a",
    "XADD K * f v",
];

fn random_words(rng: &mut Rng) -> Vec<Vec<u8>> {
    let line = COMMANDS[rng.below(COMMANDS.len() as u64) as usize];
    let words = line.split(' ').map(|word| match word {
        "K" => format!("k{}", rng.below(8)).into_bytes(),
        other => other.as_bytes().to_vec(),
    });
    words.collect()
}

/// Returns up to nine commands that are joined, and the same ones each by itself.
fn random_pipeline(rng: &mut Rng, ms: u64) -> (Vec<u8>, Vec<Vec<u8>>) {
    let resp3 = rng.percent(20);
    let count = 1 + rng.below(9);
    let apart = (0..count).map(|_| {
        let words = random_words(rng);
        let args: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let mut bytes = Vec::new();
        put_call(&mut bytes, Stamp { node: 1, ms }, resp3, &args);
        bytes
    });
    let apart: Vec<Vec<u8>> = apart.collect();
    let mut joined = apart[0].clone();
    for next in &apart[1..] {
        assert!(join_call(&mut joined, next, usize::MAX));
    }
    (joined, apart)
}

fn taken(app: &mut Redis) -> Vec<Vec<u8>> {
    let mut answers = Vec::new();
    app.answers(&mut |answer| answers.push(answer.to_vec()))
        .unwrap();
    answers
}

/// Returns the answers to joined commands as they are without one another.
fn as_apart(answer: &[u8], count: usize) -> Vec<u8> {
    if count == 1 {
        return answer.to_vec();
    }
    let head = format!("*{count}\r\n");
    assert!(answer.starts_with(head.as_bytes()), "{answer:?}");
    assert_eq!(Value::parse(answer).unwrap().items().len(), count);
    answer[head.len()..].to_vec()
}

/// One replica executes joined commands in batches, while its server is killed now and then; one
/// executes the same transactions by MULTI and EXEC, as one that isn't in a batch does, and one
/// executes each command by itself.
#[test]
fn joined_commands_do_and_answer_what_they_would_each_by_itself() {
    if !is_installed() {
        return;
    }
    let dirs = ["joined", "multi", "apart"].map(|name| TempDir::new(&format!("redis-{name}")));
    let [mut joined, mut multi, mut apart] = dirs.each_ref().map(|d| Redis::open(&d.0).unwrap());
    let mut rng = Rng::new(7);
    let (mut ms, mut waiting, mut errors) = (NOON, Vec::new(), 0);
    for round in 0..1_500u64 {
        ms += [0, 0, 1, 20][rng.below(4) as usize];
        let (together, each) = random_pipeline(&mut rng, ms);
        joined.begin(&together).unwrap();
        let by_multi = as_apart(&execute(&mut multi, &together), each.len());
        let one_by_one: Vec<u8> = each.iter().flat_map(|c| execute(&mut apart, c)).collect();
        assert_eq!(by_multi, one_by_one);
        errors += usize::from(one_by_one.starts_with(b"-"));
        waiting.push((each.len(), one_by_one));
        if rng.below(400) == 0 {
            kill_server(&joined);
        }
        if rng.percent(10) {
            let answers = taken(&mut joined);
            assert_eq!(answers.len(), waiting.len());
            for (answer, (count, expected)) in answers.iter().zip(waiting.drain(..)) {
                assert_eq!(as_apart(answer, count), expected);
            }
            commit(&mut joined, round + 1);
        }
    }
    taken(&mut joined);
    assert!(
        errors > 100,
        "{errors} pipelines began with a refused command"
    );
    let digests = [&mut joined, &mut multi, &mut apart].map(|app| app.digest().unwrap());
    assert!(digests.iter().all(|digest| *digest == digests[0]));
}

/// A watching client sees each key that a joined command changes, also before the batch ends.
#[test]
fn joined_commands_touch_watched_keys() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-joined-watched");
    let mut app = Redis::open(&dir.0).unwrap();
    let stamp = Stamp { node: 1, ms: NOON };
    let watch = |key: &'static [u8]| Command::Watch {
        stamp,
        keys: vec![key],
    };
    // The keys exist before and after, so only their versions can differ.
    expect(&mut app, "MSET k1 a k2 b", "+OK\r\n");
    let [changed, other] = [b"k1", b"k2"].map(|key| execute(&mut app, &encoded(&watch(key))));
    let mut together = call("INCR k0");
    assert!(join_call(&mut together, &call("SET k1 x"), 100));
    app.begin(&together).unwrap();
    let again = [b"k1", b"k2"].map(|key| execute(&mut app, &encoded(&watch(key))));
    assert_ne!(changed, again[0]);
    assert_eq!(other, again[1]);
}
