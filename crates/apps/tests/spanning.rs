// SPDX-License-Identifier: Apache-2.0
//! A store spread over partitions answers as one store does, and holds the same.

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
    fn open() -> Spread {
        let dir = std::env::temp_dir().join(format!("apps-spread-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let open = |pid| {
            let share = Share {
                pid,
                partitions: PARTITIONS,
            };
            apps::open_share("leveldb", &dir.join(pid.to_string()), share).unwrap()
        };
        Spread {
            partitions: (0..PARTITIONS).map(open).collect(),
            one: apps::open("leveldb", &dir.join("one")).unwrap(),
            dir,
        }
    }

    /// Executes a command on both; returns what they answer.
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
    let mut spread = Spread::open();
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
        let command = match rng.below(8) {
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
            _ => Command::Dbsize,
        };
        let named: &[&[u8]] = match command {
            Command::Get { .. } | Command::Set { .. } => &drawn[..1],
            _ => &drawn,
        };
        let pids: BTreeSet<u16> = match command {
            Command::Dbsize => (0..PARTITIONS).collect(),
            // Also over partitions that none of the keys is in.
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
