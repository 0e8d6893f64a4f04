// SPDX-License-Identifier: Apache-2.0
//! Checks that `programs/p4/shared/wirepaxos.p4` agrees with Rust, C and `testdata/wire/` on the
//! wire: every constant, and every header field by field. No P4 compiler is needed for that, since
//! the file is read line by line.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use paxos::stamping::check_next;
use paxos::wire::value::{Probe, ProbeReport, RangeReport, Rejection};
use paxos::wire::{HEADER_LEN, TAG_LEN, Tag, VERSION};
use paxos::{Flags, Header, MsgType, Packet, Reason, Round};

/// The constants: each one's width in bits, and its number.
type Constants = BTreeMap<String, (u32, u64)>;

/// A header's fields in order: name and width in bits.
type Fields = Vec<(String, u32)>;

/// A datagram, and the fields that are written beside it.
type Golden = (Vec<u8>, Vec<(String, u64)>);

#[test]
fn constants_are_those_of_rust() {
    let mut constants = constants(&p4());
    let mut take = |name: &str| match constants.remove(name) {
        Some((_, number)) => number,
        None => panic!("{name} is missing"),
    };
    for msgtype in MsgType::ALL {
        assert_eq!(take(msgtype.name()), msgtype as u64, "{}", msgtype.name());
    }
    assert_eq!(take("MSGTYPES"), MsgType::ALL.len() as u64);
    for reason in Reason::ALL {
        let name = format!("REASON_{}", reason.name().to_uppercase());
        assert_eq!(take(&name), reason as u64, "{name}");
    }
    let last = Reason::ALL.map(|reason| reason as u64).into_iter().max();
    assert_eq!(Some(take("REASONS")), last.map(|last| last + 1));

    for (name, flags) in [
        ("FLAG_TAG", Flags::TAG),
        ("FLAG_RANGE", Flags::RANGE),
        ("FLAG_NOOP", Flags::NOOP),
        ("FLAG_MULTI", Flags::MULTI),
        ("FLAG_PACKED", Flags::PACKED),
        ("FLAGS_OF_VALUE", Flags(!0).of_value()),
    ] {
        assert_eq!(take(name), flags.0.into(), "{name}");
    }
    assert_eq!(take("ALLOWED"), allowed_flags());
    let of_anybody = MsgType::ALL.into_iter().filter(|it| !it.is_of_nodes());
    assert_eq!(take("OF_ANYBODY"), bits(of_anybody));
    let of_commands = MsgType::ALL.into_iter().filter(|it| needs_session(*it));
    assert_eq!(take("OF_COMMANDS"), bits(of_commands));

    for (name, number) in [
        ("WIRE_VERSION", VERSION.into()),
        ("HEADER_LEN", HEADER_LEN as u64),
        ("TAG_LEN", TAG_LEN as u64),
        ("ALG_SIPHASH", Tag::SIPHASH.into()),
        ("ALG_HALF_SIPHASH", Tag::HALF_SIPHASH.into()),
        ("RANGE_REPORT_LEN", RangeReport::LEN as u64),
        ("REJECTION_LEN", Rejection::LEN as u64),
        ("PROBE_REPORT_LEN", ProbeReport::LEN as u64),
        ("PROBE_LEADER", Probe::Leader as u64),
        ("PROBE_ACCEPTOR", Probe::Acceptor as u64),
        ("PROBE_REPLICA", Probe::Replica as u64),
        ("PROBE_SEQUENCER", Probe::Sequencer as u64),
        ("MAX_EPOCH", paxos::round::MAX_EPOCH.into()),
        ("NO_INSTANCE", u64::MAX),
    ] {
        assert_eq!(take(name), number, "{name}");
    }
    // This is the last instance from which a leader can go on, and one further.
    let end = take("END");
    assert!(check_next(&[end]).is_ok() && check_next(&[end + 1]).is_err());
    let sub = take("ROUND_SUB_MASK") as u32;
    let lane = take("ROUND_LANE_MASK") as u32;
    for round in [0, 1, 0x7f, 0x80, 0xfff, 0x1000, 0x1001, 0x1080, 0x10ff, !0] {
        let valid = round & !sub != 0 && (round & sub == 0 || round & lane != 0);
        assert_eq!(valid, Round(round).is_valid(), "{round:#x}");
        let base = round != 0 && round & sub == 0;
        assert_eq!(base, Round(round).is_base(), "{round:#x}");
    }
    // Constants that only C has as numbers are compared with C below.
    let rest: BTreeSet<_> = constants.into_keys().collect();
    let in_c = numbers_of_c().into_keys().collect();
    let unknown: Vec<_> = rest.difference(&in_c).collect();
    assert!(unknown.is_empty(), "nothing holds {unknown:?}");
}

#[test]
fn constants_are_those_of_c() {
    let p4 = constants(&p4());
    let c = numbers_of_c();
    let mut both = 0;
    for (name, number) in &c {
        if let Some((_, of_p4)) = p4.get(name) {
            assert_eq!(of_p4, number, "{name}");
            both += 1;
        }
    }
    assert!(both > 70, "only {both} names are in both");
}

#[test]
fn a_number_fits_its_width() {
    for (name, (width, number)) in constants(&p4()) {
        assert!(width == 64 || number >> width == 0, "{name}");
    }
}

/// Each good golden datagram, read by the widths of `wire_t`, gives the fields that are written
/// beside it.
#[test]
fn the_header_reads_golden_datagrams() {
    let headers = headers(&p4());
    let wire = &headers["wire_t"];
    let mut read = 0;
    for name in ["messages.txt", "values.txt"] {
        for (bytes, said) in golden(name) {
            let found = fields_of(wire, &bytes);
            for (field, number) in said {
                assert_eq!(found[&field], number, "{field} of {bytes:02x?}");
                read += 1;
            }
        }
    }
    assert!(read > 500, "only {read} fields were read");
}

#[test]
fn the_header_has_the_fields_of_rust() {
    let sample = Header {
        value_len: 0x0102,
        group: 0x0304,
        pid: 0x0506,
        inst: 0x0708_090a_0b0c_0d0e,
        rnd: Round(0x0f10_1112),
        vrnd: Round(0x1314_1516),
        swid: 0x1718,
        flags: Flags(0x191a),
        cluster: 0x1b1c_1d1e,
        client: 0x1f20_2122_2324_2526,
        request: 0x2728_292a_2b2c_2d2e,
        ..Header::new(MsgType::Query)
    };
    let mut bytes = [0; HEADER_LEN];
    sample.emit(&mut bytes);
    let found = fields_of(&headers(&p4())["wire_t"], &bytes);
    let expected = [
        ("version", VERSION.into()),
        ("msgtype", sample.msgtype as u64),
        ("value_len", sample.value_len.into()),
        ("group", sample.group.into()),
        ("pid", sample.pid.into()),
        ("inst", sample.inst),
        ("rnd", sample.rnd.0.into()),
        ("vrnd", sample.vrnd.0.into()),
        ("swid", sample.swid.into()),
        ("flags", sample.flags.0.into()),
        ("cluster", sample.cluster.into()),
        ("client", sample.client),
        ("request", sample.request),
    ];
    let expected = expected.map(|(name, number)| (name.to_owned(), number));
    assert_eq!(found, BTreeMap::from(expected));
}

#[test]
fn structured_values_are_laid_out_as_in_rust() {
    let headers = headers(&p4());
    let (a, b, c) = (0x0102_0304_0506_0708, 0x090a_0b0c_0d0e_0f10, 0x1112_1314);
    let range = RangeReport {
        end: a,
        trim: b,
        nonce: c,
    };
    let read = fields_of(&headers["range_report_t"], &range.emit());
    assert_eq!((read["end"], read["trim"], read["nonce"]), (a, b, c));
    let report = ProbeReport {
        nonce: a,
        trim: b,
        start: c,
    };
    let read = fields_of(&headers["probe_report_t"], &report.emit());
    assert_eq!((read["nonce"], read["trim"], read["start"]), (a, b, c));
    let rejection = Rejection {
        reason: Reason::Preempted,
        round: Round(c as u32),
        trim: a,
    };
    let read = fields_of(&headers["rejection_t"], &rejection.emit());
    let expected = (Reason::Preempted as u64, 0, c, a);
    let read = (read["reason"], read["zero"], read["round"], read["trim"]);
    assert_eq!(read, expected);
}

#[test]
fn the_tag_has_the_fields_of_rust() {
    let tag = Tag {
        key_id: 1,
        alg: 2,
        counter: 0x0304_0506_0708,
        digest: 0x090a_0b0c_0d0e_0f10,
        mac: 0x1112_1314_1516_1718,
    };
    let found = fields_of(&headers(&p4())["tag_t"], &tag.emit());
    let expected = [
        ("key_id", tag.key_id.into()),
        ("alg", tag.alg.into()),
        ("counter", tag.counter),
        ("digest", tag.digest),
        ("mac", tag.mac),
    ];
    let expected = expected.map(|(name, number)| (name.to_owned(), number));
    assert_eq!(found, BTreeMap::from(expected));
}

#[test]
fn lengths_are_those_of_the_headers() {
    let text = p4();
    let (headers, constants) = (headers(&text), constants(&text));
    for (header, length) in [
        ("wire_t", "HEADER_LEN"),
        ("tag_t", "TAG_LEN"),
        ("range_report_t", "RANGE_REPORT_LEN"),
        ("rejection_t", "REJECTION_LEN"),
        ("probe_t", "PROBE_LEN"),
        ("probe_report_t", "PROBE_REPORT_LEN"),
        ("vector_head_t", "VECTOR_HEAD_LEN"),
        ("vector_entry_t", "VECTOR_ENTRY_LEN"),
    ] {
        let bits: u32 = headers[header].iter().map(|(_, width)| width).sum();
        assert_eq!(u64::from(bits), 8 * constants[length].1, "{header}");
    }
    assert_eq!(headers.len(), 8, "a header that nothing holds");
}

// ---- What is compared

fn p4() -> String {
    read("programs/p4/shared/wirepaxos.p4")
}

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(path)).expect("a file of the tree")
}

/// Returns the constants of the lines `const bit<WIDTH> NAME = NUMBER;`.
fn constants(text: &str) -> Constants {
    let mut found = Constants::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("const bit<") else {
            continue;
        };
        let parts = rest.strip_suffix(';').and_then(|rest| {
            let (width, rest) = rest.split_once("> ")?;
            let (name, number) = rest.split_once(" = ")?;
            Some((name, (width.parse().ok()?, number_in(number)?)))
        });
        let (name, constant) = parts.unwrap_or_else(|| panic!("no constant: {line}"));
        let before = found.insert(name.to_owned(), constant);
        assert_eq!(before, None, "{name} is there twice");
    }
    found
}

/// Returns the fields of each `header NAME {`, from its lines `bit<WIDTH> NAME;`.
fn headers(text: &str) -> BTreeMap<String, Fields> {
    let mut found = BTreeMap::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line
            .strip_prefix("header ")
            .and_then(|l| l.strip_suffix(" {"))
        else {
            continue;
        };
        let fields = lines.by_ref().take_while(|line| *line != "}");
        let fields = fields.map(|line| {
            let field = line.trim().strip_prefix("bit<").and_then(|rest| {
                let (width, name) = rest.strip_suffix(';')?.split_once("> ")?;
                Some((name.to_owned(), width.parse().ok()?))
            });
            field.unwrap_or_else(|| panic!("no field: {line}"))
        });
        found.insert(name.to_owned(), fields.collect());
    }
    found
}

/// Returns the values of a header's fields at the beginning of `bytes`.
fn fields_of(header: &Fields, bytes: &[u8]) -> BTreeMap<String, u64> {
    let mut at = 0;
    let mut found = BTreeMap::new();
    for (name, width) in header {
        assert_eq!(width % 8, 0, "{name} isn't whole bytes");
        let end = at + (width / 8) as usize;
        let number = bytes[at..end]
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte));
        found.insert(name.clone(), number);
        at = end;
    }
    found
}

/// Returns the numbers of `#define NAME NUMBER` and `NAME = NUMBER,` in the XDP programs' headers.
fn numbers_of_c() -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for name in ["wire.h", "reasons.h", "verdict.h"] {
        let text = read(&format!("programs/xdp/include/{name}"));
        for line in text.lines().map(str::trim) {
            let line = line.split(" /*").next().unwrap_or(line);
            let defined = line
                .strip_prefix("#define ")
                .and_then(|l| l.split_once(' '));
            let listed = line
                .split_once(" = ")
                .map(|(name, number)| (name, number.trim_end_matches(',')));
            if let Some((name, number)) = defined.or(listed) {
                if let Some(number) = number_in(number.trim_end_matches('u')) {
                    found.insert(name.to_owned(), number);
                }
            }
        }
    }
    found
}

/// Reads a decimal or hexadecimal number, or a shifted 1 in brackets.
fn number_in(text: &str) -> Option<u64> {
    if let Some(shift) = text
        .strip_prefix("(1 << ")
        .and_then(|t| t.strip_suffix(')'))
    {
        return Some(1 << shift.parse::<u32>().ok()?);
    }
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Returns the flags that each type may have, in 4 bits a type.
fn allowed_flags() -> u64 {
    let mut allowed = 0;
    for msgtype in MsgType::ALL {
        let flags = u64::from(msgtype.allowed_flags().0 >> 1);
        match msgtype as u32 {
            number @ 0..16 => allowed |= flags << (4 * number),
            _ => assert_eq!(flags, 0, "{} has flags", msgtype.name()),
        }
    }
    allowed
}

/// Returns true if a message of this type without a session is refused.
fn needs_session(msgtype: MsgType) -> bool {
    let deployment = paxos::Deployment {
        cluster: 0,
        group: 0,
        partitions: 1,
        max_value: 64,
        node: 1,
    };
    let bytes = Header::new(msgtype).datagram(&[]);
    let packet = Packet::parse(&bytes).expect("a whole header");
    deployment.check(&packet) == Err(Reason::BadSession)
}

fn bits(msgtypes: impl IntoIterator<Item = MsgType>) -> u64 {
    msgtypes
        .into_iter()
        .fold(0, |bits, msgtype| bits | 1 << msgtype as u32)
}

/// Returns the good datagrams of a file of `testdata/wire/`, each with the fields that are written
/// beside it.
fn golden(name: &str) -> Vec<Golden> {
    let text = read(&format!("testdata/wire/{name}"));
    let mut found = Vec::new();
    for record in text.split("\n\n") {
        let mut bytes = Vec::new();
        let mut said = Vec::new();
        for line in record.lines() {
            match line.split_once(' ') {
                Some(("bytes", digits)) => bytes.extend(parse_hex(digits)),
                Some(("msgtype", name)) => {
                    let msgtype = MsgType::from_name(name);
                    said.push(("msgtype".to_owned(), msgtype.expect("a type") as u64));
                }
                Some(("fields", fields)) => said.extend(fields.split(' ').map(|field| {
                    let (name, number) = field.split_once('=').expect("a field");
                    (name.to_owned(), number_in(number).expect("a number"))
                })),
                _ => {}
            }
        }
        if !said.is_empty() {
            found.push((bytes, said));
        }
    }
    found
}

fn parse_hex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    let bytes = digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8);
    bytes.collect()
}
