// SPDX-License-Identifier: Apache-2.0
//! Fuzzes the reader of HTTP requests with whatever comes to a node's `metrics` address.

use node::parse_request as parse;

/// The first byte says in how small pieces the rest arrives: the server must come to one result.
pub fn run(data: &[u8]) {
    let Some((&first, input)) = data.split_first() else {
        return;
    };
    let piece = usize::from(first) + 1;
    let ends = (piece..input.len()).step_by(piece).chain([input.len()]);
    let Some((at, result)) = ends
        .into_iter()
        .find_map(|end| Some((end, parse(&input[..end])?)))
    else {
        return;
    };
    let Ok(request) = result else {
        return;
    };
    // What comes behind a request changes nothing of it.
    let whole = parse(input).expect("its head is whole");
    assert_eq!(whole.expect("it was taken before"), request);
    assert!(at > request.path.len());
    assert!(request.path.starts_with('/'));
    assert!(!request.path.contains([' ', '?', '#', '\r']));
}
