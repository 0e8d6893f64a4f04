// SPDX-License-Identifier: Apache-2.0
use super::*;

#[test]
fn numbers_are_shown_as_they_are_read() {
    for number in [0, 7, -7, 10, 1_000_000, -99, i64::MAX, i64::MIN] {
        let mut text = b"n=".to_vec();
        put_integer(&mut text, number);
        assert_eq!(text, format!("n={number}").into_bytes());
        assert_eq!(parse_integer(&text[2..]), Some(number));
    }
}

fn samples() -> Vec<Command<'static>> {
    let flags = |bits| SetFlags::from_bits(bits).unwrap();
    vec![
        Command::Get { key: b"k" },
        Command::Get { key: b"" },
        Command::Set {
            flags: flags(0),
            key: b"k",
            value: b"v",
        },
        Command::Set {
            flags: flags(5),
            key: b"k",
            value: b"",
        },
        Command::Del {
            keys: vec![b"a", b"b"],
        },
        Command::Exists { keys: vec![b"a"] },
        Command::Mget {
            keys: vec![b"a", b"", b"c"],
        },
        Command::Mset {
            pairs: vec![(b"a", b"1"), (b"b", b"2")],
        },
        Command::IncrBy {
            key: b"n",
            delta: i64::MIN,
        },
        Command::Append {
            key: b"k",
            value: b"tail",
        },
        Command::Strlen { key: b"k" },
        Command::Scan {
            count: 10,
            from: 0,
            pattern: Some(b"a*"),
        },
        Command::Scan {
            count: 1,
            from: 77,
            pattern: None,
        },
        Command::Dbsize,
        Command::GetDel { key: b"k" },
        Command::Watch {
            keys: vec![b"a", b"b"],
        },
        Command::Exec {
            watched: vec![(b"a", 7), (b"", u64::MAX)],
            commands: vec![
                Command::Get { key: b"k" },
                Command::Mset {
                    pairs: vec![(b"a", b"1"), (b"b", b"2")],
                },
            ],
        },
        Command::Exec {
            watched: Vec::new(),
            commands: Vec::new(),
        },
    ]
}

#[test]
fn every_command_survives_the_round_trip_and_no_shorter_or_longer_bytes_do() {
    for command in samples() {
        let mut bytes = Vec::new();
        command.encode(&mut bytes).unwrap();
        assert_eq!(Command::parse(&bytes), Ok(command.clone()));
        bytes.push(0);
        assert_ne!(Command::parse(&bytes), Ok(command.clone()));
        bytes.pop();
        for len in 0..bytes.len() {
            assert_ne!(Command::parse(&bytes[..len]), Ok(command.clone()));
        }
    }
}

#[test]
fn a_transaction_holds_no_transaction_and_nothing_that_walks() {
    for part in samples() {
        let mut bytes = Vec::new();
        let is_part = part.is_of_strings();
        let exec = Command::Exec {
            watched: Vec::new(),
            commands: vec![part],
        };
        exec.encode(&mut bytes).unwrap();
        assert_eq!(Command::parse(&bytes).is_ok(), is_part);
    }
}

#[test]
fn what_parses_has_one_encoding() {
    let mut rng = test_world::Rng::new(1);
    let mut parsed = 0;
    for _ in 0..200_000 {
        let bytes = random_bytes(&mut rng, 16, 24);
        if let Ok(command) = Command::parse(&bytes) {
            parsed += 1;
            let mut again = Vec::new();
            command.encode(&mut again).unwrap();
            assert_eq!(again, bytes);
        }
        if let Ok(reply) = Reply::parse(&bytes) {
            let mut again = Vec::new();
            reply.encode(&mut again);
            assert_eq!(again, bytes);
        }
    }
    assert!(parsed > 1000, "only {parsed} of the random inputs parse");
}

/// Returns random bytes, mostly small numbers, so that lengths fit sometimes.
fn random_bytes(rng: &mut test_world::Rng, small: u64, max_len: u64) -> Vec<u8> {
    let len = rng.below(max_len);
    let byte = |_| match rng.below(3) {
        0 => rng.below(small) as u8,
        _ => 0,
    };
    (0..len).map(byte).collect()
}

#[test]
fn replies_survive_the_round_trip() {
    let reply = Reply::Array(vec![
        Reply::Nil,
        Reply::Ok,
        Reply::Int(-7),
        Reply::Bulk(b"text"),
        Reply::Array(vec![Reply::Bulk(b"")]),
        Reply::Error(Refusal::Overflow),
    ]);
    let mut bytes = Vec::new();
    reply.encode(&mut bytes);
    assert_eq!(Reply::parse(&bytes), Ok(reply));
    for len in 0..bytes.len() {
        assert_eq!(Reply::parse(&bytes[..len]), Err(Malformed));
    }
}

#[test]
fn a_false_count_or_a_deep_nest_is_refused() {
    assert_eq!(
        Reply::parse(&[TAG_ARRAY, 255, 255, 255, 255, 0]),
        Err(Malformed)
    );
    let deep: Vec<u8> = [TAG_ARRAY, 0, 0, 0, 1].repeat(100_000);
    assert_eq!(Reply::parse(&deep), Err(Malformed));
}

#[test]
fn integers_follow_the_rules_of_redis() {
    for good in [
        "0",
        "-1",
        "10",
        "9223372036854775807",
        "-9223372036854775808",
    ] {
        assert_eq!(parse_integer(good.as_bytes()), good.parse().ok());
    }
    for bad in [
        "",
        "-",
        "-0",
        "+1",
        "01",
        "-01",
        " 1",
        "1 ",
        "1.0",
        "0x1",
        "9223372036854775808",
        "-9223372036854775809",
        "1e3",
    ] {
        assert_eq!(parse_integer(bad.as_bytes()), None, "{bad}");
    }
}

#[test]
fn a_long_value_has_a_longer_length_and_a_short_one_has_not() {
    for len in [65_534, 65_535, 65_536, 1 << 20] {
        let value = vec![7; len];
        let set = Command::Set {
            flags: SetFlags::default(),
            key: b"k",
            value: &value,
        };
        let mut bytes = Vec::new();
        set.encode(&mut bytes).unwrap();
        let head = if len < 65_535 { 2 } else { 6 };
        assert_eq!(bytes.len(), 2 + 3 + head + len);
        assert_eq!(Command::parse(&bytes), Ok(set));
    }
    let short = [&[OP_GET, 0xff, 0xff, 0, 0, 0xff, 0xfe][..], &[0; 0xfffe]].concat();
    assert_eq!(
        Command::parse(&short),
        Err(Malformed),
        "it has a shorter length"
    );
    let cut = [OP_GET, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    assert_eq!(Command::parse(&cut), Err(Malformed));
}
