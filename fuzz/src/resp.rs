// SPDX-License-Identifier: Apache-2.0
//! Fuzzes the server's parser with whatever a Redis client may send.

use front_end::resp::{Limits, Parser, ProtocolError, Request, parse};

/// The first byte says how small the pieces are in which the rest arrives.
pub fn run(data: &[u8]) {
    let Some((&first, input)) = data.split_first() else {
        return;
    };
    let strict = Limits {
        max_bulk_len: 16,
        max_request_len: 64,
        authenticated: false,
    };
    at_once(input, &strict);
    let limits = Limits::default();
    let piece = usize::from(first % 32) + 1;
    assert_eq!(at_once(input, &limits), in_pieces(input, piece, &limits));
}

/// The requests in an input, and how it ended: incomplete, or against the protocol.
type Parsed = (Vec<Request>, Option<ProtocolError>);

fn at_once(mut input: &[u8], limits: &Limits) -> Parsed {
    let mut requests = Vec::new();
    loop {
        match parse(input, limits) {
            Ok(Some(request)) => {
                check(&request, input);
                input = &input[request.len..];
                requests.push(request);
            }
            Ok(None) => return (requests, None),
            Err(error) => return (requests, Some(error)),
        }
    }
}

fn in_pieces(input: &[u8], piece: usize, limits: &Limits) -> Parsed {
    let mut parser = Parser::default();
    let mut requests = Vec::new();
    let (mut start, mut end, mut passed) = (0, 0, 0);
    while end < input.len() {
        end = input.len().min(end + piece);
        loop {
            match parser.parse(&input[start..end], limits) {
                Ok(Some(mut request)) => {
                    start += request.len;
                    request.len += std::mem::take(&mut passed);
                    requests.push(request);
                }
                Ok(None) => break,
                Err(error) => return (requests, Some(error)),
            }
        }
        let thrown_away = parser.take_passed();
        start += thrown_away;
        passed += thrown_away;
    }
    (requests, None)
}

fn check(request: &Request, input: &[u8]) {
    assert!((1..=input.len()).contains(&request.len));
    let bytes: usize = request.arguments.iter().map(|a| a.bytes(input).len()).sum();
    assert!(bytes < request.len);
}
