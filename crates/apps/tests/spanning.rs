// SPDX-License-Identifier: Apache-2.0
//! Tests that a store spread over partitions answers as one store does, and holds the same.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use apps::kv::{Command, Reply, SetFlags};
use apps::{Application, Share};
use replica::{Part, slot};
use test_world::Rng;

const PARTITIONS: u16 = 5;

struct Spread {
    partitions: Vec<Box<dyn Application>>,
    one: Box<dyn Application>,
    dir: PathBuf,
}

impl Spread {
    fn open_in(name: &str) -> Spread {
        let dir = std::env::temp_dir().join(format!("apps-spread-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let open = |pid| {
            let share = Share {
                pid,
                partitions: PARTITIONS,
            };
            apps::open_share("leveldb", &dir.join(pid.to_string()), share, 64 << 20).unwrap()
        };
        Spread {
            partitions: (0..PARTITIONS).map(open).collect(),
            one: apps::open("leveldb", &dir.join("one")).unwrap(),
            dir,
        }
    }

    /// Executes a command on the partitions and on the single store, and returns both answers.
    fn execute(&mut self, command: &Command<'_>, pids: &BTreeSet<u16>) -> [Vec<u8>; 2] {
        let (mut bytes, mut answer, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        command.encode(&mut bytes).unwrap();
        self.one.execute(&bytes, &mut expected).unwrap();
        if let [pid] = pids.iter().collect::<Vec<_>>()[..] {
            let partition = &mut self.partitions[usize::from(*pid)];
            partition.execute(&bytes, &mut answer).unwrap();
            return [answer, expected];
        }
        let mut parts: Vec<Part> = Vec::new();
        for &pid in pids {
            let mut prepared = Vec::new();
            let partition = &mut self.partitions[usize::from(pid)];
            assert!(partition.spans_partitions());
            partition.prepare(&bytes, &mut prepared).unwrap();
            parts.push(Part {
                pid,
                prepared,
                effect: Vec::new(),
            });
        }
        let lowest = &self.partitions[usize::from(parts[0].pid)];
        lowest.combine(&bytes, &mut parts, &mut answer).unwrap();
        for part in parts.iter().filter(|part| !part.effect.is_empty()) {
            let partition = &mut self.partitions[usize::from(part.pid)];
            partition.apply(&part.effect).unwrap();
        }
        [answer, expected]
    }
}

impl Drop for Spread {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn a_spread_store_answers_as_one_does() {
    let mut spread = Spread::open_in("all");
    let mut rng = Rng::new(0x59a4);
    let keys: Vec<String> = (0..12).map(|n| format!("k{n}")).collect();
    let mut spanning = 0;
    for n in 0..3_000 {
        let count = 1 + rng.below(5) as usize;
        let drawn: Vec<&[u8]> = (0..count)
            .map(|_| keys[rng.below(keys.len() as u64) as usize].as_bytes())
            .collect();
        let value = format!("v{n}");
        let (value, key) = (value.as_bytes(), drawn[0]);
        let number = n.to_string();
        let several = (0..rng.below(6)).map(|_| {
            let key = *rng.pick(&drawn);
            match rng.below(7) {
                0 => Command::Get { key },
                1 => Command::Set {
                    flags: SetFlags {
                        if_absent: true,
                        ..SetFlags::default()
                    },
                    key,
                    value: number.as_bytes(),
                },
                2 => Command::IncrBy { key, delta: 3 },
                3 => Command::Append { key, value: b"7" },
                4 => Command::GetDel { key },
                5 => Command::Strlen { key },
                _ => Command::Mset {
                    pairs: drawn.iter().map(|key| (*key, number.as_bytes())).collect(),
                },
            }
        });
        let several: Vec<_> = several.collect();
        let command = match rng.below(10) {
            0 => Command::Get { key },
            1 => Command::Set {
                flags: SetFlags::default(),
                key,
                value,
            },
            2 | 3 => Command::Mset {
                pairs: drawn.iter().map(|key| (*key, value)).collect(),
            },
            4 => Command::Del {
                keys: drawn.clone(),
            },
            5 => Command::Exists {
                keys: drawn.clone(),
            },
            6 => Command::Mget {
                keys: drawn.clone(),
            },
            7 | 8 => Command::Exec {
                watched: Vec::new(),
                commands: several,
            },
            _ => Command::Dbsize,
        };
        let named: &[&[u8]] = match command {
            Command::Get { .. } | Command::Set { .. } => &drawn[..1],
            // The command may name all of the drawn keys.
            _ => &drawn,
        };
        let pids: BTreeSet<u16> = match command {
            Command::Dbsize => (0..PARTITIONS).collect(),
            // Some commands also go to partitions that none of the keys is in.
            _ if rng.percent(20) && named.len() > 1 => (0..PARTITIONS).collect(),
            _ => named
                .iter()
                .map(|key| slot::partition_of(key, PARTITIONS))
                .collect(),
        };
        spanning += usize::from(pids.len() > 1);
        let [answer, expected] = spread.execute(&command, &pids);
        assert_eq!(
            Reply::parse(&answer),
            Reply::parse(&expected),
            "{n}: {command:?}"
        );
    }
    assert!(spanning > 1_000, "{spanning}");
}

/// The watched keys belong to two partitions; `execute` compares the spread store with one that has
/// all keys.
#[test]
fn a_transaction_does_nothing_where_a_watched_key_was_changed() {
    let mut spread = Spread::open_in("watched");
    let keys = vec![&b"foo"[..], b"bar"];
    let pids: BTreeSet<u16> = keys
        .iter()
        .map(|key| slot::partition_of(key, PARTITIONS))
        .collect();
    assert_eq!(pids.len(), 2);
    let versions = |[answer, _]: [Vec<u8>; 2]| -> Vec<u64> {
        let Ok(Reply::Array(versions)) = Reply::parse(&answer) else {
            panic!("{answer:?}");
        };
        let version = |reply: &Reply<'_>| match reply {
            Reply::Int(version) => *version as u64,
            other => panic!("{other:?}"),
        };
        versions.iter().map(version).collect()
    };
    for changed in [None, Some(b"foo"), Some(b"bar")] {
        let watch = Command::Watch { keys: keys.clone() };
        let versions = versions(spread.execute(&watch, &pids));
        let watched = keys.iter().copied().zip(versions).collect();
        if let Some(key) = changed {
            let set = Command::Set {
                flags: SetFlags::default(),
                key: &key[..],
                value: b"1",
            };
            let pid = BTreeSet::from([slot::partition_of(key, PARTITIONS)]);
            spread.execute(&set, &pid);
        }
        let exec = Command::Exec {
            watched,
            commands: vec![Command::IncrBy {
                key: b"foo",
                delta: 1,
            }],
        };
        let [answer, _] = spread.execute(&exec, &pids);
        let is_nil = Reply::parse(&answer) == Ok(Reply::Nil);
        assert_eq!(is_nil, changed.is_some(), "{changed:?}: {answer:?}");
    }
}

/// Such a transaction changes nothing in any partition.
#[test]
fn a_transaction_with_values_that_are_too_long_is_refused() {
    let mut spread = Spread::open_in("too-long");
    let pids: BTreeSet<u16> = (0..PARTITIONS).collect();
    let (half, one) = (vec![b'h'; 40_000], vec![b'1'; 1]);
    let exec = |value| Command::Exec {
        watched: Vec::new(),
        commands: vec![
            Command::Append { key: b"foo", value },
            Command::Append {
                key: b"bar",
                value: b"x",
            },
        ],
    };
    let mut answers = Vec::new();
    for value in [&half, &one, &half] {
        let [answer, _] = spread.execute(&exec(value), &pids);
        answers.push(matches!(Reply::parse(&answer), Ok(Reply::Array(_))));
    }
    assert_eq!(answers, [true, true, false]);
    let strlen = Command::Strlen { key: b"bar" };
    let pid = BTreeSet::from([slot::partition_of(b"bar", PARTITIONS)]);
    let [answer, _] = spread.execute(&strlen, &pid);
    assert_eq!(Reply::parse(&answer), Ok(Reply::Int(2)));
}
