// SPDX-License-Identifier: Apache-2.0
//! Tests of how requests are parsed.

use super::*;

type Words = (Vec<Vec<u8>>, usize);

fn words(input: &[u8]) -> Result<Option<Words>, String> {
    match parse(input, &Limits::default()) {
        Ok(None) => Ok(None),
        Ok(Some(request)) => {
            let words = request.arguments.iter().map(|a| a.bytes(input).to_vec());
            Ok(Some((words.collect(), request.len)))
        }
        Err(e) => Err(e.0),
    }
}

#[track_caller]
fn expect(input: &[u8], expected: &[&[u8]]) {
    let expected = expected.iter().map(|w| w.to_vec()).collect();
    assert_eq!(words(input), Ok(Some((expected, input.len()))));
    // The input may come in two pieces, cut anywhere.
    for cut in 1..input.len() {
        let mut parser = Parser::default();
        let limits = Limits::default();
        assert_eq!(parser.parse(&input[..cut], &limits), Ok(None), "{cut}");
        let request = parser.parse(input, &limits).unwrap().unwrap();
        assert_eq!(request, parse(input, &limits).unwrap().unwrap());
    }
}

#[test]
fn arrays_of_bulk_strings() {
    expect(b"*1\r\n$4\r\nPING\r\n", &[b"PING"]);
    expect(b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n", &[b"GET", b""]);
    expect(
        b"*2\r\n$4\r\nECHO\r\n$4\r\n\r\n\r\n\r\n",
        &[b"ECHO", b"\r\n\r\n"],
    );
    expect(b"*0\r\n", &[]);
    expect(b"*-1\r\n", &[]);
}

#[test]
fn inline_commands() {
    expect(b"PING\r\n", &[b"PING"]);
    expect(b"PING\n", &[b"PING"]);
    expect(b"\r\n", &[]);
    expect(b"  set  k\tv \r\n", &[b"set", b"k", b"v"]);
    expect(
        b"set \"a b\\x41\\n\\\"\" 'c \\' d'\r\n",
        &[b"set", b"a bA\n\"", b"c ' d"],
    );
    expect(b"echo \"\"\r\n", &[b"echo", b""]);
}

#[test]
fn what_follows_is_left_alone() {
    let input = b"PING\r\n*1\r\n$4\r\nPING\r\n";
    assert_eq!(words(input).unwrap().unwrap().1, 6);
    assert_eq!(words(&input[6..]).unwrap().unwrap().1, 14);
}

#[test]
fn errors_are_named_as_in_redis() {
    let long_line = vec![b'x'; MAX_LINE_LEN + 1];
    let long_count = [b"*", &[b'1'; MAX_LINE_LEN][..], b"1"].concat();
    for (input, expected) in [
        (&b"*x\r\n"[..], "invalid multibulk length"),
        (b"*1048577\r\n", "invalid multibulk length"),
        (b"*99999999999999999999\r\n", "invalid multibulk length"),
        (b"*1\r\n:1\r\n", "expected '$', got ':'"),
        (b"*1\r\n\r\n", "expected '$', got ' '"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$x\r\n", "invalid bulk length"),
        (b"*1\r\n$536870913\r\n", "invalid bulk length"),
        (b"*1\r\n$1\r\nabc", "expected CRLF after a bulk string"),
        (b"a \"b\r\n", "unbalanced quotes in request"),
        (b"a \"b\"c\r\n", "unbalanced quotes in request"),
        (&long_line, "too big inline request"),
        (&long_count, "too big mbulk count string"),
    ] {
        assert_eq!(words(input), Err(expected.to_owned()));
    }
}

#[test]
fn a_header_that_comes_a_byte_at_a_time_is_looked_at_once() {
    let mut parser = Parser::default();
    let header = [b"*", &[b'0'; 5_000][..], b"1\r"].concat();
    for len in 1..=header.len() {
        assert_eq!(parser.parse(&header[..len], &Limits::default()), Ok(None));
        assert_eq!(parser.line, len - 1);
    }
    let whole = [&header[..], b"\n"].concat();
    let error = parser.parse(&whole, &Limits::default()).unwrap_err();
    assert_eq!(error.0, "invalid multibulk length");
}

#[test]
fn strangers_may_not_send_much() {
    let limits = Limits {
        authenticated: false,
        ..Limits::default()
    };
    let error = |input: &[u8]| parse(input, &limits).unwrap_err().0;
    assert_eq!(error(b"*11\r\n"), "unauthenticated multibulk length");
    assert_eq!(error(b"*1\r\n$16385\r\n"), "unauthenticated bulk length");
}

/// Feeds `input` in pieces and drops the bytes that may be dropped; returns the requests, and the
/// most bytes that were ever kept.
fn in_pieces(input: &[u8], piece: usize) -> (Vec<Request>, usize) {
    let (mut parser, mut kept) = (Parser::default(), Vec::new());
    let (mut requests, mut most) = (Vec::new(), 0);
    for piece in input.chunks(piece) {
        kept.extend_from_slice(piece);
        most = most.max(kept.len() + parser.memory());
        while let Some(request) = parser.parse(&kept, &Limits::default()).unwrap() {
            kept.drain(..request.len);
            requests.push(request);
        }
        kept.drain(..parser.take_passed());
    }
    assert_eq!(kept, b"");
    (requests, most)
}

#[test]
fn what_is_too_large_is_passed_over_and_not_kept() {
    let bulk = |len: usize| {
        let head = format!("${len}\r\n").into_bytes();
        [head, vec![b'x'; len], b"\r\n".to_vec()].concat()
    };
    let limits = Limits::default();
    let ping = b"*1\r\n$4\r\nPING\r\n".to_vec();
    let long = 20 << 20;
    let set = [b"*3\r\n".to_vec(), bulk(3), bulk(1), bulk(long)].concat();
    let name = [b"*2\r\n".to_vec(), bulk(limits.max_bulk_len + 1), bulk(7)].concat();
    let many = [b"*9\r\n".to_vec(), bulk(1 << 20).repeat(9)].concat();
    let empty = [b"*1000000\r\n".to_vec(), bulk(0).repeat(1_000_000)].concat();
    for (large, size) in [
        (set, 1 + long as u64),
        (name, 7),
        (many, 8 << 20),
        (empty, 0),
    ] {
        let whole = parse(&large, &limits).unwrap().unwrap();
        assert_eq!((whole.too_large, whole.len), (Some(size), large.len()));
        assert_eq!(whole.arguments, []);
        let input = [ping.clone(), large, ping.clone()].concat();
        for piece in [4_099, 64 << 10] {
            let (requests, most) = in_pieces(&input, piece);
            let too_large: Vec<_> = requests.iter().map(|r| r.too_large).collect();
            assert_eq!(too_large, [None, Some(size), None]);
            // Up to the limit the request might still be accepted, so its arguments' ranges are
            // kept until then.
            assert!(most < 8 * limits.max_request_len, "{most} bytes were kept");
        }
    }
    let broken = [b"*1\r\n".to_vec(), bulk(2 << 20)].concat();
    let broken = [&broken[..broken.len() - 2], b"xx"].concat();
    let expected = "expected CRLF after a bulk string".to_owned();
    assert_eq!(words(&broken), Err(expected));
}

#[test]
fn random_bytes_never_panic_and_pieces_make_no_difference() {
    let mut rng = test_world::Rng::new(7);
    let mut next = |below: usize| rng.below(below as u64) as usize;
    let alphabet = b"*$\r\n0123-9\"'\\x GET\0\xff";
    let mut complete = 0;
    for _ in 0..200_000 {
        let len = next(24);
        let input: Vec<u8> = (0..len).map(|_| alphabet[next(alphabet.len())]).collect();
        let whole = parse(&input, &Limits::default());
        complete += usize::from(matches!(whole, Ok(Some(_))));
        let cut = next(len + 1);
        let mut parser = Parser::default();
        let first = parser.parse(&input[..cut], &Limits::default());
        if first == Ok(None) {
            assert_eq!(parser.parse(&input, &Limits::default()), whole);
        }
    }
    assert!(complete > 1000);
}
