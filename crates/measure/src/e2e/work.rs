// SPDX-License-Identifier: Apache-2.0
//! The commands that a client sends, and the answers that are right.

use std::collections::VecDeque;

use apps::kv::{Command, Reply, SetFlags};
use paxos::PartitionId;

use local_cluster::Error;
use paxos::mix;

/// Commands without end: of random bytes, or puts of such values to keys that nobody has used; and
/// gets of what was put.
pub(super) struct Work {
    /// No two have the same among all that run.
    stream: u64,
    drawn: u64,
    /// The answer to a put; an echo is answered by itself.
    put: Option<Vec<u8>>,
    value: Vec<u8>,
    /// Keys whose puts are answered, by partition.
    known: Vec<VecDeque<u64>>,
}

/// A stream draws at most 2 to this power numbers.
const STREAM_BITS: u32 = 40;
/// Keys of a partition that gets choose from: the last ones put.
const KNOWN: usize = 100_000;

/// Fills a value with bytes that follow from its key.
fn fill(value: &mut [u8], key: u64) {
    let mut random = key;
    for piece in value.chunks_mut(8) {
        random = mix(random.wrapping_add(1));
        piece.copy_from_slice(&random.to_be_bytes()[..piece.len()]);
    }
}

fn name_of(key: u64) -> String {
    format!("{key:016x}")
}

fn key_named(name: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(name).ok()?, 16).ok()
}

impl Work {
    pub fn new(app: &str, value_bytes: u16, stream: u64) -> Work {
        let mut ok = Vec::new();
        Reply::Ok.encode(&mut ok);
        Work {
            stream,
            drawn: 0,
            put: (app != "echo").then_some(ok),
            value: vec![0; usize::from(value_bytes)],
            known: Vec::new(),
        }
    }

    /// Notes that a put in this partition is answered, so that its key may be read.
    pub fn answered(&mut self, pid: PartitionId, command: &[u8]) {
        let Ok(Command::Set { key, .. }) = Command::parse(command) else {
            return;
        };
        let at = usize::from(pid);
        if self.known.len() <= at {
            self.known.resize_with(at + 1, VecDeque::new);
        }
        let known = &mut self.known[at];
        if known.len() == KNOWN {
            known.pop_front();
        }
        known.extend(key_named(key));
    }

    /// Writes a get of something that was put in this partition; false if nothing was.
    pub fn next_get(&mut self, pid: PartitionId, command: &mut Vec<u8>) -> Result<bool, Error> {
        let random = self.draw();
        let known = self.known.get(usize::from(pid));
        let Some(known) = known.filter(|known| !known.is_empty()) else {
            return Ok(false);
        };
        let key = name_of(known[random as usize % known.len()]);
        command.clear();
        let get = Command::Get {
            key: key.as_bytes(),
        };
        get.encode(command)
            .map_err(|_| Error::new("the key is too long"))?;
        Ok(true)
    }

    /// Writes the next command.
    pub fn next(&mut self, command: &mut Vec<u8>) -> Result<(), Error> {
        let key = self.draw();
        fill(&mut self.value, key);
        command.clear();
        if self.put.is_none() {
            command.extend_from_slice(&self.value);
            return Ok(());
        }
        let key = name_of(key);
        let put = Command::Set {
            flags: SetFlags::default(),
            key: key.as_bytes(),
            value: &self.value,
        };
        put.encode(command)
            .map_err(|_| Error::new("the value is too long"))
    }

    /// Writes the next command over two partitions, and says over which: ascending.
    pub fn next_over_two(
        &mut self,
        command: &mut Vec<u8>,
        partition_of: impl Fn(&[u8]) -> PartitionId,
    ) -> Result<[PartitionId; 2], Error> {
        let mut draw = || {
            let key = name_of(self.draw());
            (partition_of(key.as_bytes()), key)
        };
        let (first, mut second) = (draw(), draw());
        while second.0 == first.0 {
            second = draw();
        }
        let pids = [first.0.min(second.0), first.0.max(second.0)];
        if self.put.is_none() {
            self.next(command)?;
            return Ok(pids);
        }
        command.clear();
        let pairs = [&first.1, &second.1].map(|key| (key.as_bytes(), &self.value[..]));
        let put = Command::Mset {
            pairs: pairs.to_vec(),
        };
        put.encode(command)
            .map_err(|_| Error::new("the value is too long"))?;
        Ok(pids)
    }

    /// Returns whether this is what the application must answer.
    pub fn is_right(&self, command: &[u8], answer: &[u8]) -> bool {
        answer == self.put.as_deref().unwrap_or(command)
    }

    /// Returns whether this is what it must answer to a get. Where that may be old, it may know
    /// nothing of the key.
    pub fn is_right_get(&self, command: &[u8], answer: &[u8], may_be_old: bool) -> bool {
        let key = match Command::parse(command) {
            Ok(Command::Get { key }) => key_named(key),
            _ => None,
        };
        match (key, Reply::parse(answer)) {
            (Some(key), Ok(Reply::Bulk(value))) => {
                let mut expected = vec![0; self.value.len()];
                fill(&mut expected, key);
                value == expected
            }
            (Some(_), Ok(Reply::Nil)) => may_be_old,
            _ => false,
        }
    }

    /// Draws a number that no stream has drawn before.
    fn draw(&mut self) -> u64 {
        let number = self.stream << STREAM_BITS | self.drawn;
        self.drawn += 1;
        mix(number)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_put_has_a_key_and_a_value_of_its_own() {
        let (mut keys, mut values) = (BTreeSet::new(), BTreeSet::new());
        for stream in 0..3 {
            let mut work = Work::new("rocksdb", 61, stream);
            for _ in 0..1_000 {
                let mut bytes = Vec::new();
                work.next(&mut bytes).unwrap();
                let Ok(Command::Set { key, value, .. }) = Command::parse(&bytes) else {
                    panic!("not a put: {bytes:?}");
                };
                assert_eq!((key.len(), value.len()), (16, 61));
                assert!(value.iter().collect::<BTreeSet<_>>().len() > 20, "constant");
                assert!(keys.insert(key.to_vec()) && values.insert(value.to_vec()));
            }
        }
    }

    #[test]
    fn a_get_is_of_what_was_put_and_answered_in_its_partition() {
        let mut work = Work::new("leveldb", 61, 1);
        let (mut put, mut get) = (Vec::new(), Vec::new());
        work.next(&mut put).unwrap();
        assert!(!work.next_get(1, &mut get).unwrap(), "nothing is answered");
        work.answered(1, &put);
        assert!(!work.next_get(0, &mut get).unwrap(), "not here");
        assert!(work.next_get(1, &mut get).unwrap());
        let Ok(Command::Set { key, value, .. }) = Command::parse(&put) else {
            panic!("no put: {put:?}");
        };
        assert_eq!(Command::parse(&get), Ok(Command::Get { key }));
        let is_right = |reply: Reply<'_>, may_be_old| {
            let mut bytes = Vec::new();
            reply.encode(&mut bytes);
            work.is_right_get(&get, &bytes, may_be_old)
        };
        assert!(is_right(Reply::Bulk(value), false));
        assert!(!is_right(Reply::Bulk(&value[1..]), true));
        assert!(!is_right(Reply::Nil, false) && is_right(Reply::Nil, true));
        assert!(!is_right(Reply::Ok, true));
    }

    #[test]
    fn an_answer_counts_only_if_it_is_the_right_one() {
        let mut command = Vec::new();
        let mut echo = Work::new("echo", 64, 1);
        echo.next(&mut command).unwrap();
        assert!(echo.is_right(&command, &command));
        let mut other = command.clone();
        other[63] ^= 1;
        assert!(!echo.is_right(&command, &other));
        assert!(!echo.is_right(&command, &command[..63]));

        let put = Work::new("leveldb", 64, 1);
        let answer = |reply: Reply<'_>| {
            let mut bytes = Vec::new();
            reply.encode(&mut bytes);
            put.is_right(&command, &bytes)
        };
        assert!(answer(Reply::Ok));
        assert!(!answer(Reply::Nil) && !answer(Reply::Int(1)));
        assert!(!put.is_right(&command, &command));
    }
}
