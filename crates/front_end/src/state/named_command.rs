// SPDX-License-Identifier: Apache-2.0
//! A client's name that numbers its next command, so that the command takes effect once however
//! often it is sent. [S-NAMED]

use paxos::mix;

/// A client's name that numbers the next command begins with this text.
const PREFIX: &[u8] = b"once:";
/// A token has at least this many bytes, because anybody who knows it can take its answers.
const LEAST_TOKEN: usize = 16;
/// The largest number of a command.
const MAX_NUMBER: u64 = (1 << 48) - 1;
/// This bit is set in the nonces of names, and in no other nonces of a front end.
const NAMED: u64 = 1 << 63;

const BAD_NAME: &str = "ERR a name that begins with once: is once:TOKEN:NUMBER, with a token of at \
                        least 16 characters, drawn at random, and a number from 1";

/// Returns the nonce of a session that has no name.
pub(crate) fn unnamed(random: u64) -> u64 {
    (random & !NAMED).max(1)
}

/// Returns true if a session's nonce follows from a token.
pub(crate) fn is_named(nonce: u64) -> bool {
    nonce & NAMED != 0
}

/// The session of a client's name, as its nonce, and the number of the client's command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Once {
    pub nonce: u64,
    pub number: u64,
}

impl Once {
    /// Returns what a client's name says of its next command: nothing, unless it begins with
    /// `once:`.
    pub fn parse(name: &[u8]) -> Result<Option<Once>, &'static str> {
        let Some(rest) = name.strip_prefix(PREFIX) else {
            return Ok(None);
        };
        let colon = rest.iter().rposition(|byte| *byte == b':');
        let (token, number) = rest.split_at(colon.ok_or(BAD_NAME)?);
        let number = std::str::from_utf8(&number[1..]).ok();
        let number = number.filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
        let number: u64 = number.and_then(|n| n.parse().ok()).unwrap_or(0);
        if token.len() < LEAST_TOKEN || !(1..=MAX_NUMBER).contains(&number) {
            return Err(BAD_NAME);
        }
        Ok(Some(Once {
            nonce: nonce_of(token),
            number,
        }))
    }
}

fn nonce_of(token: &[u8]) -> u64 {
    let pieces = token.chunks(8).map(|piece| {
        let mut word = [0; 8];
        word[..piece.len()].copy_from_slice(piece);
        u64::from_be_bytes(word)
    });
    let hash = pieces.fold(mix(token.len() as u64), |hash, word| mix(hash ^ word));
    hash | NAMED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_whose_command_it_is_and_which_or_it_is_any_name() {
        let parse = |name: &str| Once::parse(name.as_bytes());
        for any in ["", "worker-3", "on:ce", "ONCE:0123456789abcdef:1"] {
            assert_eq!(parse(any), Ok(None), "{any}");
        }
        let first = parse("once:0123456789abcdef:1").unwrap().unwrap();
        let second = parse("once:0123456789abcdef:2").unwrap().unwrap();
        let other = parse("once:0123456789abcdeg:2").unwrap().unwrap();
        assert_eq!((first.number, second.number), (1, 2));
        assert!(first.nonce == second.nonce && is_named(first.nonce));
        assert_ne!(second.nonce, other.nonce);
        let with_colons = parse("once:a:b:0123456789abcdef:77").unwrap().unwrap();
        assert_eq!(with_colons.number, 77);
        for bad in [
            "once:",
            "once:0123456789abcdef",
            "once:0123456789abcdef:",
            "once:0123456789abcdef:0",
            "once:0123456789abcdef:-1",
            "once:0123456789abcdef:+1",
            "once:0123456789abcdef:281474976710656",
            "once:0123456789abcde:1",
        ] {
            assert_eq!(parse(bad), Err(BAD_NAME), "{bad}");
        }
        for random in [0, 1, u64::MAX, NAMED] {
            assert!(!is_named(unnamed(random)) && unnamed(random) > 0);
        }
    }
}
