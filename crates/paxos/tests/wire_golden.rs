// SPDX-License-Identifier: Apache-2.0
//! Checks the golden bytes of `testdata/wire/`: the bytes there must parse to the fields that are
//! written beside them, and must come out again byte by byte. `testdata/wire/README.md` describes
//! the format.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::Path;

use paxos::wire::nopaxos::{GapRequest, Noops, SyncPrepare};
use paxos::wire::value::{
    PackedItem, Probe, ProbeReport, RangeReport, Rejection, Vector, append_packed, emit_marker,
    packed_is_valid, packed_items, parse_marker,
};
use paxos::wire::{HEADER_LEN, MAX_VALUE_LEN, TAG_LEN};
use paxos::{Flags, Header, MsgType, Packet, Reason, Round};

#[test]
fn good_datagrams_parse_to_their_fields_and_back() {
    let mut types = BTreeSet::new();
    for file in ["messages.txt", "values.txt"] {
        for record in records(file) {
            let bytes = record.bytes();
            let packet = Packet::parse(&bytes)
                .unwrap_or_else(|reason| panic!("{}: {}", record.name(), reason.name()));
            let expected = record.header();
            assert_eq!(packet.header, expected, "{}", record.name());
            let tag = record.find("tag").map(unhex).unwrap_or_default();
            let value = record.find("value").map(unhex).unwrap_or_default();
            assert_eq!(
                packet.tag.map_or(&[][..], |tag| tag),
                tag,
                "{}",
                record.name()
            );
            assert_eq!(packet.value, value, "{}", record.name());

            let mut head = [0xee; HEADER_LEN];
            expected.emit(&mut head);
            let emitted = [&head[..], &tag, &value].concat();
            assert_eq!(emitted, bytes, "{}", record.name());
            if tag.is_empty() {
                assert_eq!(expected.datagram(&value), bytes, "{}", record.name());
            }
            types.insert(expected.msgtype);
        }
    }
    assert_eq!(types.len(), MsgType::ALL.len(), "every type has a datagram");
}

#[test]
fn malformed_datagrams_are_dropped_under_their_reason() {
    let mut reasons = BTreeSet::new();
    for record in records("malformed.txt") {
        let reason = record
            .find("error")
            .expect("a malformed datagram has a reason");
        let parsed = Packet::parse(&record.bytes()).map(|packet| packet.header);
        let expected = Reason::from_name(reason).expect("a reason of the list");
        assert_eq!(parsed, Err(expected), "{}", record.name());
        reasons.insert(expected);
    }
    let all = [
        Reason::Truncated,
        Reason::BadVersion,
        Reason::UnknownType,
        Reason::BadLength,
        Reason::BadFlags,
    ];
    assert_eq!(reasons, BTreeSet::from(all), "all that parsing may say");
}

/// A good datagram that is cut anywhere, or has a byte too many, is no packet.
#[test]
fn no_part_of_a_datagram_is_a_packet() {
    for record in records("messages.txt") {
        let bytes = record.bytes();
        for len in 0..bytes.len() {
            assert!(
                Packet::parse(&bytes[..len]).is_err(),
                "{} cut to {len}",
                record.name()
            );
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(Packet::parse(&longer).err(), Some(Reason::BadLength));
    }
}

#[test]
fn structured_values_parse_to_their_meaning_and_back() {
    let mut checked = 0;
    for record in records("values.txt") {
        let value = record.find("value").map(unhex).unwrap_or_default();
        for (word, rest) in &record.0 {
            let meaning = Meaning {
                rest,
                name: record.name(),
            };
            match word.as_str() {
                "range" => meaning.check(RangeReport::parse(&value), |text| {
                    let report = RangeReport {
                        end: text.number("end"),
                        trim: text.number("trim"),
                        nonce: text.number("nonce"),
                    };
                    assert_eq!(report.emit()[..], value);
                    report
                }),
                "rejection" => meaning.check(Rejection::parse(&value), |text| {
                    let rejection = Rejection {
                        reason: Reason::from_name(text.field("reason")).expect("a reason"),
                        round: Round(text.number("round") as u32),
                        trim: text.number("trim"),
                    };
                    assert_eq!(rejection.emit()[..], value);
                    rejection
                }),
                "probe" => meaning.check(Probe::parse(&value), |text| {
                    let probe = match text.field("role") {
                        "leader" => Probe::Leader,
                        "acceptor" => Probe::Acceptor,
                        "replica" => Probe::Replica,
                        "sequencer" => Probe::Sequencer,
                        other => panic!("no such role: {other}"),
                    };
                    assert_eq!(probe.emit()[..], value);
                    probe
                }),
                "report" => meaning.check(ProbeReport::parse(&value), |text| {
                    let report = ProbeReport {
                        nonce: text.number("nonce"),
                        trim: text.number("trim"),
                        start: text.number("start"),
                    };
                    assert_eq!(report.emit()[..], value);
                    report
                }),
                "marker" => meaning.check(parse_marker(&value), |text| {
                    if text.rest == "none" {
                        return None;
                    }
                    let epoch = text.number("epoch") as u32;
                    assert_eq!(emit_marker(epoch)[..], value);
                    Some(epoch)
                }),
                "gap_request" => meaning.check(GapRequest::parse(&value), |text| {
                    let asked = GapRequest {
                        count: text.number("count") as u32,
                    };
                    assert_eq!(asked.emit()[..], value);
                    asked
                }),
                "noops" | "commit" | "sync" => {
                    check_noops(word, &meaning, record.header().inst, &value);
                }
                "pack" => check_pack(&meaning, &value),
                "vector" => check_vector(&meaning, &value),
                _ => continue,
            }
            checked += 1;
        }
    }
    assert_eq!(
        checked,
        records("values.txt").len(),
        "each says what its value means"
    );
}

#[test]
fn numbers_and_names_agree() {
    let text = read("names.txt");
    let mut lines: Vec<&str> = text.lines().filter(|line| !skipped(line)).collect();
    let types = MsgType::ALL
        .iter()
        .map(|t| format!("msgtype {} {}", *t as u8, t.name()));
    let reasons = Reason::ALL
        .iter()
        .map(|r| format!("reason {} {}", *r as u16, r.name()));
    let expected: Vec<String> = types.chain(reasons).collect();
    lines.retain(|line| !line.is_empty());
    assert_eq!(lines, expected);
    for reason in Reason::ALL {
        assert_eq!(Reason::from_u16(reason as u16), Some(reason));
        assert_eq!(Reason::from_name(reason.name()), Some(reason));
    }
}

/// A list that says something else than was meant would take requests away.
#[test]
fn what_is_no_list_of_noops_is_not_written() {
    for ranges in [
        &[(99, 101)][..],
        &[(103, 103)],
        &[(103, 104), (102, 103)],
        &[(103, 105), (104, 106)],
        &[(100 + (1 << 32), 101 + (1 << 32))],
        &[(100, 100 + (1 << 32))],
    ] {
        let written = std::panic::catch_unwind(|| {
            let ranges = ranges.iter().map(|(first, end)| *first..*end);
            Noops::append(&mut Vec::new(), 100, ranges);
        });
        assert!(written.is_err(), "{ranges:?}");
    }
}

#[test]
fn the_largest_value_fills_the_mtu() {
    assert_eq!(20 + 8 + HEADER_LEN + TAG_LEN + MAX_VALUE_LEN, 1500);
}

fn check_pack(meaning: &Meaning<'_>, value: &[u8]) {
    if meaning.error().is_some() {
        assert!(!packed_is_valid(value), "{}", meaning.name);
        let errors = packed_items(value).filter(|item| item.is_err()).count();
        assert!(errors <= 1, "{}: an error ends the walk", meaning.name);
        return;
    }
    assert!(packed_is_valid(value), "{}", meaning.name);
    let mut again = Vec::new();
    let mut items = packed_items(value);
    for expected in meaning.rest.split(' ') {
        let parts: Vec<&str> = expected.split(':').collect();
        let bytes = unhex(parts[2]);
        let expected = PackedItem {
            client: number(parts[0]),
            request: number(parts[1]),
            bytes: &bytes,
        };
        assert_eq!(items.next(), Some(Ok(expected)), "{}", meaning.name);
        append_packed(&mut again, &expected);
    }
    assert_eq!(items.next(), None, "{}", meaning.name);
    assert_eq!(again, value, "{}", meaning.name);
}

fn check_vector(meaning: &Meaning<'_>, value: &[u8]) {
    if let Some(reason) = meaning.error() {
        assert_eq!(Vector::parse(value).err(), Some(reason), "{}", meaning.name);
        return;
    }
    let vector = Vector::parse(value).expect("a good vector");
    let entries: Vec<(u16, u64)> = meaning
        .field("entries")
        .split(',')
        .map(|entry| entry.split_once(':').expect("pid:inst"))
        .map(|(pid, inst)| (number(pid) as u16, number(inst)))
        .collect();
    let command = unhex(meaning.field("command"));
    assert_eq!(
        vector.round,
        Round(meaning.number("round") as u32),
        "{}",
        meaning.name
    );
    assert_eq!(
        vector.iter().collect::<Vec<_>>(),
        entries,
        "{}",
        meaning.name
    );
    assert_eq!(vector.command, command, "{}", meaning.name);

    let mut again = Vec::new();
    let pids: Vec<u16> = entries.iter().map(|(pid, _)| *pid).collect();
    Vector::reserve(&pids, &mut again);
    again.extend_from_slice(&command);
    Vector::stamp(&mut again, vector.round, |pid| {
        entries
            .iter()
            .find(|(known, _)| *known == pid)
            .expect("reserved")
            .1
    });
    assert_eq!(again, value, "{}", meaning.name);
}

/// Checks a list of no-ops that ends before `end`, as the header says.
fn check_noops(kind: &str, meaning: &Meaning<'_>, end: u64, value: &[u8]) {
    const MAX_VALUE: u16 = 1024;
    let (digest, noops) = match kind {
        "noops" => (None, Noops::parse(value, end, MAX_VALUE)),
        "commit" => (None, Noops::parse_commit(value, end, MAX_VALUE)),
        _ => match SyncPrepare::parse(value, end, MAX_VALUE) {
            Ok(sync) => (Some(sync.digest), Ok(sync.noops)),
            Err(reason) => (None, Err(reason)),
        },
    };
    let parsed = noops.map(|n| (n.stable, digest, n.ranges().collect::<Vec<_>>()));
    meaning.check(parsed, |text| {
        let stable = text.number("stable");
        let digest = (kind == "sync").then(|| text.number("digest"));
        let ranges = ranges(text.field("ranges"));
        let mut again = Vec::new();
        match digest {
            Some(digest) => SyncPrepare::append(&mut again, stable, digest, ranges.clone()),
            None => Noops::append(&mut again, stable, ranges.clone()),
        }
        assert_eq!(again, value, "{}", text.name);
        (stable, digest, ranges)
    });
}

/// Reads ranges in the form `FIRST:COUNT,...`.
fn ranges(text: &str) -> Vec<Range<u64>> {
    let entries = text.split(',').filter(|entry| !entry.is_empty());
    let both = entries.map(|entry| entry.split_once(':').expect("first:count"));
    both.map(|(first, count)| number(first)..number(first) + number(count))
        .collect()
}

/// The structure of a record's value.
struct Meaning<'a> {
    rest: &'a str,
    name: &'a str,
}

impl<'a> Meaning<'a> {
    fn check<T: PartialEq + std::fmt::Debug>(
        &self,
        parsed: Result<T, Reason>,
        expected: impl FnOnce(&Self) -> T,
    ) {
        let expected = match self.error() {
            Some(reason) => Err(reason),
            None => Ok(expected(self)),
        };
        assert_eq!(parsed, expected, "{}", self.name);
    }

    fn error(&self) -> Option<Reason> {
        let name = self.rest.strip_prefix("error=")?;
        Some(Reason::from_name(name).expect("a reason of the list"))
    }

    fn field(&self, key: &str) -> &'a str {
        field(self.rest, key)
    }

    fn number(&self, key: &str) -> u64 {
        number(self.field(key))
    }
}

/// The lines of a record, each with a word and what belongs to it.
struct Record(Vec<(String, String)>);

impl Record {
    fn find(&self, word: &str) -> Option<&str> {
        let line = self.0.iter().find(|(known, _)| known == word)?;
        Some(&line.1)
    }

    fn name(&self) -> &str {
        self.find("name").expect("a record has a name")
    }

    fn bytes(&self) -> Vec<u8> {
        let lines = self.0.iter().filter(|(word, _)| word == "bytes");
        lines.flat_map(|(_, digits)| unhex(digits)).collect()
    }

    fn header(&self) -> Header {
        let fields = self.find("fields").expect("a good datagram has fields");
        let number = |key| number(field(fields, key));
        let msgtype = self.find("msgtype").expect("a good datagram has a type");
        Header {
            msgtype: MsgType::from_name(msgtype).expect("a type of the list"),
            value_len: number("value_len") as u16,
            group: number("group") as u16,
            pid: number("pid") as u16,
            inst: number("inst"),
            rnd: Round(number("rnd") as u32),
            vrnd: Round(number("vrnd") as u32),
            swid: number("swid") as u16,
            flags: Flags(number("flags") as u16),
            cluster: number("cluster") as u32,
            client: number("client"),
            request: number("request"),
        }
    }
}

fn records(file: &str) -> Vec<Record> {
    let text = read(file);
    let mut records = vec![Record(Vec::new())];
    for line in text.lines() {
        if line.is_empty() {
            records.push(Record(Vec::new()));
        } else if !skipped(line) {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            let record = records.last_mut().expect("there is a first one");
            record.0.push((word.to_string(), rest.to_string()));
        }
    }
    records.retain(|record| !record.0.is_empty());
    let names: BTreeSet<&str> = records.iter().map(Record::name).collect();
    assert_eq!(names.len(), records.len(), "{file}: names are unique");
    assert!(!records.is_empty(), "{file} holds records");
    records
}

fn read(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/wire");
    fs::read_to_string(folder.join(file)).expect("golden bytes are readable")
}

fn skipped(line: &str) -> bool {
    line.starts_with('#')
}

fn field<'a>(fields: &'a str, key: &str) -> &'a str {
    let mut words = fields.split(' ').filter_map(|word| word.split_once('='));
    let found = words.find(|(known, _)| *known == key);
    found
        .unwrap_or_else(|| panic!("{key} is missing in {fields}"))
        .1
}

fn number(text: &str) -> u64 {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|_| panic!("{text} is no number"))
}

fn unhex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(|b| *b != b' ').collect();
    let digit = |b: u8| (b as char).to_digit(16).expect("a digit") as u8;
    let pairs = digits.chunks_exact(2);
    assert!(pairs.remainder().is_empty());
    pairs
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect()
}
