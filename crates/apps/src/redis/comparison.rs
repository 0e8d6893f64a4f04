// SPDX-License-Identifier: Apache-2.0
//! Compares replicas' contents in the background, a few keys at a time. Nothing of this is
//! replicated state.
//!
//! ```text
//!  REPORT of replica 1: keys a, b ──> each notes its digests of both, at one place of the log
//!  REPORT of replica 2: its digests ──> each replica compares them with its own
//! ```
//!
//! Each replica walks over its own keys, so a key that only one replica has is found, too. A front
//! end that reports its clock passes on what its replica's worker has found. A probe is executed
//! once, and what a Redis server executes is never taken back, so one difference is an alarm.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use replica::Error;
use sha2::{Digest, Sha256};

use super::command::{Check, Stamp};
use super::resp::{Value, put_request};
use super::server::{Dead, Server, nonce};
use super::state::Replicated;
use super::{Command, Seen, digest, lock};

/// The most keys of one probe.
pub(super) const MOST_KEYS: usize = 16;
/// Keys with more bytes of memory aren't compared, since that would take the server too long.
const MOST_BYTES: i64 = 64 << 10;
/// Longer names fit no command of the log.
pub(super) const MOST_NAME: usize = 1_400;
/// The number of probes whose digests are remembered: those of two seconds in the largest group.
const REMEMBERED: usize = 128;
/// The most replicas of which differences are remembered, which is the most that a group has.
const MOST_NODES: usize = 64;

/// A probe that was executed here, with one digest for each of its keys.
struct Probed {
    probe: u64,
    keys: Vec<Vec<u8>>,
    digests: Vec<u32>,
}

/// A partition's comparison with other replicas.
pub(super) struct Comparison {
    probed: VecDeque<Probed>,
    /// The replicas that differ from this one, each with the first key that did.
    differences: BTreeMap<u16, Vec<u8>>,
    /// Where the walk over the keys goes on.
    cursor: Vec<u8>,
    /// The next keys to compare.
    names: VecDeque<Vec<u8>>,
    /// The front end must be shown this.
    is_new: bool,
}

/// What a partition's worker shows its front end and operators of the comparison.
#[derive(Default)]
pub(super) struct ComparisonReport {
    /// The last probe that was executed, and its digests.
    stated: (u64, Vec<u32>),
    names: VecDeque<Vec<u8>>,
    alarms: Vec<(u16, Vec<u8>)>,
}

/// A replica that has other contents than this one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Alarm {
    /// The partition.
    pub pid: u16,
    /// The other replica's node.
    pub node: u16,
    /// One of the keys that differ.
    pub key: Vec<u8>,
}

impl Seen {
    /// Returns a front end's report of its clock. It has at most `most` bytes and, if the group
    /// `has_others`, also what compares this replica with them.
    pub fn report(
        &self,
        pid: u16,
        (stamp, voices): (Stamp, u8),
        has_others: bool,
        most: usize,
    ) -> Vec<u8> {
        let encoded = |check| {
            let mut bytes = Vec::new();
            let report = Command::Report {
                stamp,
                voices,
                check,
            };
            report.encode(&mut bytes);
            bytes
        };
        if !has_others {
            return encoded(None);
        }
        let mut shown = lock(&self.servers[usize::from(pid)].comparison);
        let (probe, digests) = shown.stated.clone();
        let check = Check {
            stated: probe,
            digests,
            probe: nonce(),
            keys: Vec::new(),
        };
        let room = most.checked_sub(encoded(Some(check.clone())).len());
        let Some(room) = room else {
            return encoded(None);
        };
        let taken = shown.take_names(room);
        let keys = taken.iter().map(Vec::as_slice).collect();
        encoded(Some(Check { keys, ..check }))
    }

    /// Returns which replicas have other contents than this one.
    pub fn alarms(&self) -> Vec<Alarm> {
        let mut all = Vec::new();
        for (pid, server) in (0..).zip(self.servers.iter()) {
            let alarms = lock(&server.comparison).alarms.clone();
            all.extend(
                alarms
                    .into_iter()
                    .map(|(node, key)| Alarm { pid, node, key }),
            );
        }
        all
    }
}

impl ComparisonReport {
    /// Takes the names that fit into so many bytes together. A name that doesn't fit by itself is
    /// dropped.
    fn take_names(&mut self, mut room: usize) -> Vec<Vec<u8>> {
        let mut taken = Vec::new();
        while taken.len() < MOST_KEYS {
            let Some(name) = self.names.pop_front() else {
                break;
            };
            // A length takes two bytes at most.
            let Some(rest) = room.checked_sub(name.len() + 2) else {
                if !taken.is_empty() {
                    self.names.push_front(name);
                }
                break;
            };
            room = rest;
            taken.push(name);
        }
        taken
    }
}

impl Comparison {
    /// Begins with nothing, which the front end is shown.
    pub fn new() -> Comparison {
        Comparison {
            probed: VecDeque::new(),
            differences: BTreeMap::new(),
            cursor: b"0".to_vec(),
            names: VecDeque::new(),
            is_new: true,
        }
    }

    /// Compares a replica's digests with this one's, if this one has executed the same probe.
    fn compare(&mut self, node: u16, stated: u64, digests: &[u32]) {
        let Some(own) = self.probed.iter().find(|own| own.probe == stated) else {
            return;
        };
        if own.digests.len() != digests.len() {
            return;
        }
        let differs = own.digests.iter().zip(digests).position(|(a, b)| a != b);
        let Some(at) = differs else {
            return;
        };
        if self.differences.len() < MOST_NODES {
            let key = own.keys[at].clone();
            self.differences.entry(node).or_insert(key);
        }
    }

    /// Remembers a probe that was executed here.
    fn remember(&mut self, probed: Probed) {
        if self.probed.len() == REMEMBERED {
            self.probed.pop_front();
        }
        self.probed.push_back(probed);
    }

    /// Forgets how a replica differed, since it has begun again.
    pub fn begins_again(&mut self, node: u16) {
        self.is_new |= self.differences.remove(&node).is_some();
    }

    /// Shows what is new to the front end.
    pub fn show(&mut self, shown: &Mutex<ComparisonReport>) {
        if !std::mem::take(&mut self.is_new) {
            return;
        }
        let mut shown = lock(shown);
        let last = self.probed.back();
        shown.stated = last.map_or((0, Vec::new()), |last| (last.probe, last.digests.clone()));
        let alarms = self.differences.iter();
        shown.alarms = alarms.map(|(node, key)| (*node, key.clone())).collect();
        if shown.names.is_empty() {
            shown.names = std::mem::take(&mut self.names);
        }
    }
}

impl Replicated {
    /// Takes a front end's report of its clock.
    pub(super) fn hear_report(
        &mut self,
        stamp: Stamp,
        voices: u8,
        check: Option<Check<'_>>,
    ) -> Result<(), Error> {
        self.note_command();
        self.clock.report(stamp, voices);
        let Some(check) = check else {
            return Ok(());
        };
        self.comparison.is_new = true;
        self.comparison
            .compare(stamp.node, check.stated, &check.digests);
        self.probe(&check)
    }

    /// Executes a probe, and looks for the next keys to compare. A server that dies meanwhile is
    /// replaced, and this probe isn't compared: a comparison must not end a replica.
    fn probe(&mut self, check: &Check<'_>) -> Result<(), Error> {
        let keys: Vec<Vec<u8>> = check.keys.iter().map(|key| key.to_vec()).collect();
        let digests = self
            .server
            .set_clock(self.clock.ms)
            .and_then(|()| digests(&mut self.server, &keys));
        match digests {
            Ok(digests) if !keys.is_empty() => self.comparison.remember(Probed {
                probe: check.probe,
                keys,
                digests,
            }),
            Ok(_) => {}
            Err(_) => return self.revive(),
        }
        if self.comparison.names.is_empty() {
            match walk(&mut self.server, &mut self.comparison.cursor) {
                Ok(names) => self.comparison.names = names,
                Err(_) => return self.revive(),
            }
        }
        Ok(())
    }
}

/// Returns a digest of each key, or 0 if there is no such key. Only what all versions of servers
/// answer alike is in it.
fn digests(server: &mut Server, keys: &[Vec<u8>]) -> Result<Vec<u32>, Dead> {
    let mut requests = Vec::new();
    keys.iter()
        .for_each(|key| digest::put_questions(&mut requests, key));
    let answers = ask_clients(server, &requests, digest::QUESTIONS * keys.len())?;
    let digest = |about: &[Vec<u8>]| {
        if !digest::exists(about) {
            return 0;
        }
        let mut hash = Sha256::new();
        about
            .iter()
            .for_each(|answer| digest::add(&mut hash, answer));
        let hash: [u8; 32] = hash.finalize().into();
        u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]])
    };
    Ok(answers.chunks(digest::QUESTIONS).map(digest).collect())
}

/// Goes one step on in the walk over the keys, and returns those that are small enough to be
/// compared.
fn walk(server: &mut Server, cursor: &mut Vec<u8>) -> Result<VecDeque<Vec<u8>>, Dead> {
    let mut requests = Vec::new();
    let count = MOST_KEYS.to_string();
    put_request(
        &mut requests,
        &[b"SCAN", cursor, b"COUNT", count.as_bytes()],
    );
    let answers = ask_clients(server, &requests, 1)?;
    let strange = || Dead::other("the Redis server's answer to SCAN isn't understood");
    let answer = Value::parse(&answers[0]).map_err(|_| strange())?;
    let [next, found] = answer.items() else {
        return Err(strange());
    };
    *cursor = next.text().unwrap_or(b"0").to_vec();
    let found = found.items().iter().filter_map(Value::text);
    let found: Vec<&[u8]> = found.filter(|name| name.len() <= MOST_NAME).collect();
    requests.clear();
    for name in &found {
        put_request(&mut requests, &[b"MEMORY", b"USAGE", name]);
    }
    let sizes = ask_clients(server, &requests, found.len())?;
    let is_small = |size: &[u8]| {
        let size = Value::parse(size).ok().and_then(|size| size.int());
        size.is_some_and(|size| size <= MOST_BYTES)
    };
    let all = found.iter().zip(&sizes);
    let small = all.filter(|(_, size)| is_small(size));
    Ok(small.map(|(name, _)| name.to_vec()).collect())
}

/// Asks several things at once in the clients' database.
fn ask_clients(server: &mut Server, requests: &[u8], count: usize) -> Result<Vec<Vec<u8>>, Dead> {
    let mut all = Vec::new();
    put_request(&mut all, &[b"SELECT", b"0"]);
    all.extend_from_slice(requests);
    put_request(&mut all, &[b"SELECT", b"1"]);
    let mut answers = server.ask_all(&all, count + 2)?;
    let last = answers.pop();
    let first = answers.remove(0);
    match first == b"+OK\r\n" && last.as_deref() == Some(b"+OK\r\n") {
        true => Ok(answers),
        false => Err(Dead::other("the Redis server refuses SELECT")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_probes(probes: &[u64]) -> Comparison {
        let mut comparison = Comparison::new();
        for probe in probes {
            comparison.remember(Probed {
                probe: *probe,
                keys: vec![b"a".to_vec(), b"b".to_vec()],
                digests: vec![1, 2],
            });
        }
        comparison
    }

    fn alarms(comparison: &mut Comparison) -> Vec<(u16, Vec<u8>)> {
        comparison.is_new = true;
        let shown = Mutex::default();
        comparison.show(&shown);
        let shown = shown.into_inner().unwrap();
        shown.alarms
    }

    #[test]
    fn a_difference_is_an_alarm_until_the_replica_begins_again() {
        let mut comparison = with_probes(&[7, 8]);
        comparison.compare(3, 7, &[1, 9]);
        assert_eq!(alarms(&mut comparison), [(3, b"b".to_vec())]);
        comparison.compare(3, 8, &[1, 2]);
        comparison.begins_again(2);
        assert_eq!(alarms(&mut comparison), [(3, b"b".to_vec())]);
        comparison.begins_again(3);
        assert_eq!(alarms(&mut comparison), []);
    }

    #[test]
    fn equal_unknown_and_senseless_statements_are_no_alarm() {
        let mut comparison = with_probes(&[7, 8]);
        for _ in 0..3 {
            comparison.compare(3, 7, &[1, 2]);
            comparison.compare(3, 9, &[3, 4]);
            comparison.compare(3, 8, &[3]);
            comparison.compare(3, 8, &[3, 4, 5]);
        }
        assert_eq!(alarms(&mut comparison), []);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let probes: Vec<u64> = (1..=200).collect();
        let mut comparison = with_probes(&probes);
        assert_eq!(comparison.probed.len(), REMEMBERED);
        for node in 0..100 {
            comparison.compare(node, 200, &[3, 4]);
        }
        assert_eq!(alarms(&mut comparison).len(), MOST_NODES);
    }

    #[test]
    fn a_report_has_as_many_keys_as_fit() {
        let seen = Seen::new(1);
        let names = || (0..40u8).map(|n| vec![n; 10]);
        let shown = &seen.servers[0].comparison;
        let keys = |has_others, most| {
            let report = seen.report(0, (Stamp::default(), 3), has_others, most);
            assert!(report.len() <= most, "{} of {most}", report.len());
            match Command::parse(&report) {
                Ok(Command::Report { check, .. }) => check.map(|check| check.keys.len()),
                other => panic!("{other:?}"),
            }
        };
        *lock(shown) = ComparisonReport {
            names: names().collect(),
            stated: (7, vec![1; MOST_KEYS]),
            ..ComparisonReport::default()
        };
        assert_eq!(keys(false, 1_024), None);
        assert_eq!(keys(true, 64), None, "the digests don't fit");
        assert_eq!(keys(true, 128), Some(3));
        assert_eq!(keys(true, 1_024), Some(MOST_KEYS));
        lock(shown).names.push_front(vec![0; 128]);
        assert_eq!(keys(true, 128), Some(0));
        assert_eq!(keys(true, 1_024), Some(MOST_KEYS));
        assert_eq!(keys(true, 1_024), Some(5));
    }
}
