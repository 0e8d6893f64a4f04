// SPDX-License-Identifier: Apache-2.0
//! Tests of the comparison of replicas in the background.

mod common;

use apps::Redis;
use apps::redis::{Alarm, Check, Command, News, Seen, Stamp};
use common::TempDir;
use common::redis::*;

/// The largest command that a front end may put into one value.
const VALUE: usize = 1_024;
/// Rounds in which the walks over the keys of these tests come to their end.
const ROUNDS: u64 = 8;

/// The replicas of a group, whose nodes are numbered from 1 on.
struct Group {
    replicas: Vec<(Redis, Seen)>,
    dirs: Vec<TempDir>,
    ms: u64,
}

impl Group {
    fn open(name: &str) -> Option<Group> {
        if !is_installed() {
            return None;
        }
        let dirs = (1..=3).map(|node| TempDir::new(&format!("redis-{name}-{node}")));
        let mut group = Group {
            replicas: Vec::new(),
            dirs: dirs.collect(),
            ms: NOON,
        };
        for at in 0..3 {
            let replica = group.begin(at);
            group.replicas.push(replica);
        }
        Some(group)
    }

    fn begin(&self, at: usize) -> (Redis, Seen) {
        let seen = Seen::new(1);
        let app = Redis::open_with(&self.dirs[at].0, 0, seen.clone(), News::default(), 64 << 20);
        (app.unwrap(), seen)
    }

    fn execute(&mut self, command: &[u8]) {
        let mut answers = self
            .replicas
            .iter_mut()
            .map(|(app, _)| execute(app, command));
        let first = answers.next().unwrap();
        assert!(!first.starts_with(b"-"), "{}", first.escape_ascii());
        answers.for_each(|answer| assert_eq!(answer, first));
    }

    fn call(&mut self, words: &str) {
        self.execute(&call(words));
    }

    /// Lets each replica report once a second.
    fn compare(&mut self) {
        for _ in 0..ROUNDS {
            self.ms += 1_000;
            for at in 0..3 {
                let node = at as u16 + 1;
                let stamp = Stamp { node, ms: self.ms };
                let report = self.replicas[at].1.report(0, (stamp, 3), true, VALUE);
                self.execute(&report);
            }
        }
    }

    /// Returns which replicas have found that another one differs, and in which key.
    fn alarms(&self) -> Vec<(usize, u16, String)> {
        let all = (1..).zip(&self.replicas).flat_map(|(own, (_, seen))| {
            let shown = move |Alarm { pid, node, key }| {
                assert_eq!(pid, 0);
                (own, node, String::from_utf8(key).unwrap())
            };
            seen.alarms().into_iter().map(shown)
        });
        all.collect()
    }

    #[track_caller]
    fn assert_found(&mut self, key: &str) {
        self.compare();
        let alarms = self.alarms();
        assert!(!alarms.is_empty(), "{key}");
        for (own, other, of) in alarms {
            assert_eq!(of, key);
            assert!(own == 2 || other == 2, "{own} {other}");
        }
    }
}

#[test]
fn equal_replicas_raise_no_alarm() {
    let Some(mut group) = Group::open("equal") else {
        return;
    };
    for n in 0..50 {
        group.call(&format!("SET string:{n} {n}"));
        group.call(&format!("SET short:{n} v PX {}", n * 200 + 1));
        group.call(&format!("HSET hash:{} f{n} {n}", n % 3));
        group.call(&format!("RPUSH list:{} {n}", n % 3));
        group.call(&format!("SADD set:{} m{n} {n}", n % 3));
        group.call(&format!("ZADD zset:{} {n}.5 m{n}", n % 3));
        group.call(&format!("XADD stream:{} * f {n}", n % 3));
    }
    group.call("XGROUP CREATE stream:0 g 0");
    group.compare();
    kill_server(&group.replicas[0].0);
    commit(&mut group.replicas[1].0, 1);
    checkpoint(&mut group.replicas[1].0);
    let again = {
        group.replicas.remove(1);
        group.begin(1)
    };
    group.replicas.insert(1, again);
    for n in 0..20 {
        group.call(&format!("DEL string:{n}"));
    }
    group.compare();
    assert_eq!(group.alarms(), []);
}

#[test]
fn a_replica_that_differs_is_found_until_it_begins_again() {
    let Some(mut group) = Group::open("differs") else {
        return;
    };
    for n in 0..40 {
        group.call(&format!("SET k:{n} {n}"));
    }
    let server = apps::redis::catalogue().unwrap().1.to_bytes();
    let begins = |node| {
        encoded(&Command::Server {
            node,
            members: vec![1, 2, 3],
            fingerprint: &server,
        })
    };
    let differences = [
        ("SET k:7 other", "SET k:7 7", "k:7"),
        ("DEL k:8", "SET k:8 8", "k:8"),
        ("SET extra 1", "DEL extra", "extra"),
        ("PEXPIREAT k:9 1999999999999", "PERSIST k:9", "k:9"),
    ];
    for (spoils, heals, key) in differences {
        execute(&mut group.replicas[1].0, &call(spoils));
        group.assert_found(key);
        // A difference that was found is remembered until an operator has let a replica begin
        // again.
        execute(&mut group.replicas[1].0, &call(heals));
        group.assert_found(key);
        group.execute(&begins(2));
        (0..3).for_each(|at| {
            let (app, seen) = &mut group.replicas[at];
            execute(app, &begins(1));
            execute(app, &begins(3));
            assert_eq!(seen.alarms(), [], "{key}");
        });
        // The last digests that were shown are from when the replica differed, so the comparison is
        // repeated.
        group.compare();
        (1..=3).for_each(|node| group.execute(&begins(node)));
        group.compare();
        assert_eq!(group.alarms(), [], "{key}");
    }
}

#[test]
fn only_small_keys_are_compared() {
    let Some(mut group) = Group::open("large") else {
        return;
    };
    let large = "x".repeat(64 << 10);
    group.call(&format!("SET large {large}"));
    group.call("SET small 1");
    let app = &mut group.replicas[1].0;
    execute(app, &call("APPEND large y"));
    group.compare();
    assert_eq!(group.alarms(), []);
    execute(&mut group.replicas[1].0, &call("APPEND small y"));
    group.assert_found("small");
}

#[test]
fn a_server_that_dies_of_a_probe_ends_no_replica_and_is_no_alarm() {
    let Some(mut group) = Group::open("dies") else {
        return;
    };
    group.call("SET k 1");
    group.compare();
    let check = Check {
        probe: 1,
        keys: vec![b"k"],
        ..Check::default()
    };
    let report = |ms, check| {
        let stamp = Stamp { node: 9, ms };
        encoded(&Command::Report {
            stamp,
            voices: 3,
            check: Some(check),
        })
    };
    kill_server(&group.replicas[0].0);
    group.execute(&report(group.ms, check));
    // Replica 1 hasn't executed the probe, and the others have.
    let stated = Check {
        stated: 1,
        digests: vec![1],
        ..Check::default()
    };
    group.execute(&report(group.ms + 1, stated));
    let forged = |own| (own, 9, "k".to_string());
    assert_eq!(group.alarms(), [forged(2), forged(3)]);
    group.compare();
    assert_eq!(group.alarms(), [forged(2), forged(3)]);
}
