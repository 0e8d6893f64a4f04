// SPDX-License-Identifier: Apache-2.0
//! Tests of SPOP, which takes the same members everywhere.

use super::judge::Encoded;
use super::*;

#[test]
fn spop_takes_the_same_members_whatever_a_set_has_lived_through() {
    if !is_installed() {
        return;
    }
    let (dir, other) = (TempDir::new("redis-spop"), TempDir::new("redis-spop-2"));
    let mut app = Redis::open(&dir.0).unwrap();
    // The set's table is larger than that of a set that is read from a snapshot.
    for n in 0..2_000 {
        expect(&mut app, &format!("SADD s member:{n}"), ":1\r\n");
    }
    for n in 300..2_000 {
        expect(&mut app, &format!("SREM s member:{n}"), ":1\r\n");
    }
    let mut bytes = Vec::new();
    app.snapshot().unwrap().write_to(&mut bytes).unwrap();
    let mut copy = Redis::open(&other.0).unwrap();
    copy.restore(&mut &bytes[..]).unwrap();
    let transaction = |commands: &[&str]| {
        encoded(&Command::Exec {
            stamp: Stamp { node: 1, ms: NOON },
            resp3: false,
            watched: Vec::new(),
            commands: commands
                .iter()
                .map(|words| words.split(' ').map(str::as_bytes).collect())
                .collect(),
        })
    };
    let mut both = |command: &[u8]| {
        let answers = [&mut app, &mut copy].map(|app| execute(app, command));
        assert_eq!(answers[0], answers[1]);
        String::from_utf8_lossy(&answers[0]).into_owned()
    };
    let mut taken = Vec::new();
    for _ in 0..50 {
        taken.push(both(&call("SPOP s")));
        taken.push(both(&call("SPOP s 2")));
    }
    taken.sort();
    taken.dedup();
    assert_eq!(taken.len(), 100, "each is taken once");
    assert_eq!(both(&call("SCARD s")), ":150\r\n");
    let shown = both(&transaction(&[
        "SADD t x", "SPOP t", "SPOP t", "SADD t y", "SPOP s 0", "SPOP t 5",
    ]));
    assert_eq!(
        shown,
        "*6\r\n:1\r\n$1\r\nx\r\n$-1\r\n:1\r\n*0\r\n*1\r\n$1\r\ny\r\n"
    );
    let beside = both(&transaction(&["SPOP s", "EVAL return(1) 0"]));
    assert!(beside.starts_with("-EXECABORT"), "{beside}");
    assert_eq!(both(&call("SCARD s")), ":150\r\n");
    assert_eq!(both(&call("SPOP s 1000")).lines().count(), 301);
    for (words, answer) in [
        ("SPOP s", "$-1\r\n"),
        ("SPOP s 2", "*0\r\n"),
        (
            "SPOP s -1",
            "-ERR value is out of range, must be positive\r\n",
        ),
        (
            "SPOP s x",
            "-ERR value is out of range, must be positive\r\n",
        ),
        ("SPOP s 1 1", "-ERR syntax error\r\n"),
        ("SET k v", "+OK\r\n"),
        (
            "SPOP k",
            "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
        ),
    ] {
        assert_eq!(both(&call(words)), answer, "{words}");
    }
    kill_server(&app);
    expect(&mut app, "SADD t last", ":1\r\n");
    expect(&mut copy, "SADD t last", ":1\r\n");
    assert_eq!(app.digest().unwrap(), copy.digest().unwrap());
}

/// One replica gets its commands in batches and is killed on the way; the other one forgets all
/// known sets again and again.
#[test]
fn spop_takes_the_same_members_whatever_is_known_of_their_set() {
    if !is_installed() {
        return;
    }
    let dirs = [TempDir::new("redis-known"), TempDir::new("redis-known-2")];
    let [mut app, mut other] = dirs.each_ref().map(|dir| Redis::open(&dir.0).unwrap());
    let forget = encoded(&Command::Exec {
        stamp: Stamp { node: 1, ms: NOON },
        resp3: false,
        watched: Vec::new(),
        commands: vec![vec![b"ECHO", b""]],
    });
    let mut rng = Rng::new(5);
    let mut ms = NOON;
    let (mut taken, mut none, mut wrong) = (0, 0, 0);
    for round in 0..400 {
        let mut answers = Vec::new();
        for _ in 0..=rng.below(40) {
            ms += u64::from(rng.below(30) == 0) * rng.below(50);
            let of = rng.below(24) as usize;
            let words = SPOP_AMONG.get(of).copied().unwrap_or("SPOP {s}");
            let words = words
                .split(' ')
                .map(|word| fill(&mut rng, word).into_bytes());
            let words: Vec<_> = words.collect();
            let args: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            let resp3 = rng.below(4) == 0;
            let command = match words[0][..] {
                // A read may be executed outside of the log.
                [b'S', b'C', ..] => Command::Query { resp3, args }.encoded(),
                _ => {
                    let stamp = Stamp { node: 1, ms };
                    Command::Call { stamp, resp3, args }.encoded()
                }
            };
            app.begin(&command).unwrap();
            if rng.below(3) == 0 {
                execute(&mut other, &forget);
            }
            answers.push((words, execute(&mut other, &command)));
            if rng.below(200) == 0 {
                kill_server(&app);
            }
        }
        let mut answers = answers.into_iter();
        app.answers(&mut |answer| {
            let (words, expected) = answers.next().expect("an answer for each");
            let shown: Vec<_> = words.iter().map(|w| String::from_utf8_lossy(w)).collect();
            assert_eq!(
                String::from_utf8_lossy(answer),
                String::from_utf8_lossy(&expected),
                "{round}: {shown:?}"
            );
            let is_spop = u64::from(words[0] == b"SPOP");
            match answer[0] {
                b'-' => wrong += is_spop,
                b'_' => none += is_spop,
                _ if answer == b"$-1\r\n" => none += is_spop,
                _ => taken += is_spop,
            }
        })
        .unwrap();
        assert_eq!(answers.next(), None);
        commit(&mut app, round + 1);
        if round % 50 == 7 {
            checkpoint(&mut app);
        }
    }
    assert!(
        taken > 1_000 && none > 100 && wrong > 10,
        "{taken} {none} {wrong}"
    );
    assert_eq!(app.digest().unwrap(), other.digest().unwrap());
}

/// Commands that come between the SPOPs.
const SPOP_AMONG: &[&str] = &[
    "SADD {s} {v} {v} {v} {n} {n} {n} {n} {n}",
    "SADD {s} {v} {v} {v} {n} {n} {n} {n} {n}",
    "SADD {s} {n} {n}",
    "SREM {s} {v} {n}",
    "SMOVE {s} {s} {v}",
    "SUNIONSTORE {s} {s} {s}",
    "SPOP {s} 3",
    "SPOP {s} {n}",
    "SPOP {s} x",
    "DEL {s}",
    "SET {s} {v}",
    "RENAME {s} {s}",
    "PEXPIRE {s} 20",
    "PERSIST {s}",
    "EVAL @add 1 {s}",
    "SCARD {s}",
    "SET {k} {v}",
    "INCR {c}",
    "EXISTS {s} {k}",
];
