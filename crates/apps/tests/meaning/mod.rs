// SPDX-License-Identifier: Apache-2.0
//! What the entries of a log mean stays as it is, since replicas of two versions execute one log. A
//! change of any answer, or of what is stored, changes the digest here. [E-LEVEL]

use apps::Application;
use apps::kv::{Command, SetFlags};
use sha2::{Digest, Sha256};

use super::run;

const KEYS: [&[u8]; 8] = [b"a", b"b", b"c", b"apple", b"", b"\0", b"{a}1", b"{a}2"];
const VALUES: [&[u8]; 6] = [b"", b"0", b"41", b"-7", b"pear", b"9223372036854775807"];
const COMMANDS: u32 = 5_000;
/// If this differs, give what is new an operation of its own, which front ends send only once the
/// cluster's level has it: then the old entries go on to mean what they did. See decision 40.
const MEANING: &str = "1a0273b8fd958d19d0ddcb41cf6f9b30f0bf6088e2b7b61b280f79f377347595";

/// Numbers that no version draws otherwise.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    fn key(&mut self) -> &'static [u8] {
        KEYS[self.below(KEYS.len())]
    }

    fn keys(&mut self) -> Vec<&'static [u8]> {
        (0..=self.below(4)).map(|_| self.key()).collect()
    }

    fn value(&mut self) -> &'static [u8] {
        VALUES[self.below(VALUES.len())]
    }

    fn flags(&mut self) -> SetFlags {
        let condition = self.below(3);
        let answer = self.below(3);
        SetFlags {
            if_absent: condition == 1,
            if_present: condition == 2,
            get: answer == 1,
            answer_int: answer == 2,
        }
    }

    fn command(&mut self) -> Command<'static> {
        match self.below(14) {
            0 => Command::Dbsize,
            1 => Command::Scan {
                count: self.below(5) as u32,
                from: 0,
                pattern: [None, Some(&b"a*"[..])][self.below(2)],
            },
            2 => Command::Watch { keys: self.keys() },
            3 => Command::Exec {
                watched: (0..self.below(3))
                    .map(|_| (self.key(), self.below(40) as u64))
                    .collect(),
                commands: (0..self.below(4)).map(|_| self.of_strings()).collect(),
            },
            _ => self.of_strings(),
        }
    }

    fn of_strings(&mut self) -> Command<'static> {
        let key = self.key();
        match self.below(10) {
            0 => Command::Get { key },
            1 | 2 => Command::Set {
                flags: self.flags(),
                key,
                value: self.value(),
            },
            3 => Command::Del { keys: self.keys() },
            4 => Command::Exists { keys: self.keys() },
            5 => Command::Mget { keys: self.keys() },
            6 => Command::Mset {
                pairs: (0..=self.below(3))
                    .map(|_| (self.key(), self.value()))
                    .collect(),
            },
            7 => Command::IncrBy {
                key,
                delta: self.below(2_000) as i64 - 1_000,
            },
            8 => Command::Append {
                key,
                value: self.value(),
            },
            _ => match self.below(2) {
                0 => Command::Strlen { key },
                _ => Command::GetDel { key },
            },
        }
    }
}

/// Executes the same log as ever, and returns a digest of its entries, of all answers, and of what
/// is stored then.
fn meaning(app: &mut Box<dyn Application>) -> String {
    let (mut numbers, mut digest) = (Numbers(40), Sha256::new());
    for _ in 0..COMMANDS {
        let command = numbers.command();
        let mut entry = Vec::new();
        command.encode(&mut entry).unwrap();
        for part in [entry, run(app, &command)] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
    }
    app.commit(&[]).unwrap();
    digest.update(app.digest().unwrap());
    digest
        .finalize()
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

#[test]
fn a_log_means_what_it_meant_in_earlier_versions() {
    for store in super::STORES {
        let dir = super::TempDir::new(&format!("meaning-{store}"));
        let app = &mut apps::open(store, &dir.0).unwrap();
        assert_eq!(meaning(app), MEANING, "{store}");
    }
}
