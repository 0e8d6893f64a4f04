// SPDX-License-Identifier: Apache-2.0
//! Commands as they lie in the log. They are untrusted bytes: [`Command::parse`] is strict and
//! never panics.
//!
//! | kind u8 | then |
//! |---|---|
//! | 1 CALL | stamp, flags u8, arguments: one command, executed at the stamp's time |
//! | 2 EXEC | stamp, flags, count u16 of {key, version u64, existed u8}, {length, arguments} each |
//! | 3 WATCH | stamp, arguments: keys, whose versions are asked for |
//! | 4 QUERY | flags, arguments: one command that only reads. It moves no clock |
//! | 5 REPORT | stamp: its clock; voices u8: how many front ends; then a check or nothing |
//! | 6 SERVER | node u16, count u8 of members u16, ascending, fingerprint: what it runs |
//!
//! A REPORT is of a front end. SERVER tells which server a replica has, by its
//! [fingerprint](super::fingerprint), and which replicas its group has.
//!
//! A check [compares](super::comparison) replicas: probe u64, count u8 of digests u32 that this
//! replica has found by it; the next probe u64, and up to the end its keys, {length, bytes} each.
//!
//! A stamp is the front end's node u16 and its clock: milliseconds since 1970, u48. Flags: 1 = the
//! client speaks RESP3. Arguments are {length, bytes} up to the end. Numbers are big-endian; a
//! length is seven bits a byte, lowest first, the eighth bit says that more follow.

use super::comparison::{MOST_KEYS, MOST_NAME};
use super::resp::Malformed;

const CALL: u8 = 1;
const EXEC: u8 = 2;
const WATCH: u8 = 3;
const QUERY: u8 = 4;
const REPORT: u8 = 5;
const SERVER: u8 = 6;

/// The most replicas of a group.
pub(super) const MAX_MEMBERS: usize = 64;

const RESP3: u8 = 1;

/// The bytes of a CALL before its arguments: kind, stamp and flags.
const CALL_HEAD_LEN: usize = 10;
const FLAGS_AT: usize = CALL_HEAD_LEN - 1;
/// The most bytes that two CALLs have more as one EXEC: its longer head, and two lengths.
const ROOM_TO_JOIN: usize = 2 + 5 + 5;
/// The number of arguments for which memory is allocated at once: this many, or as many as there
/// are if each takes `ARGUMENT_LEN` bytes with its length.
const FEW: usize = 4;
const ARGUMENT_LEN: usize = 8;

/// The latest time that a stamp can hold.
const MAX_MS: u64 = (1 << 48) - 1;

/// A reading of one front end's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stamp {
    /// The front end's node.
    pub node: u16,
    /// Milliseconds since 1970, below 2^48.
    pub ms: u64,
}

/// A key that a transaction depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watched<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The version that WATCH answered.
    pub version: u64,
    /// The key existed then.
    pub existed: bool,
}

/// A part of a report that compares replicas.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Check<'a> {
    /// The last probe that this replica has executed, or 0.
    pub stated: u64,
    /// The digests of that probe's keys.
    pub digests: Vec<u32>,
    /// The number of the next probe, which no other one has.
    pub probe: u64,
    /// The keys of which each replica notes a digest when it executes this.
    pub keys: Vec<&'a [u8]>,
}

/// A command's name and arguments.
pub type Arguments<'a> = Vec<&'a [u8]>;

/// One command.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the module's table says what each one does
pub enum Command<'a> {
    Call {
        stamp: Stamp,
        resp3: bool,
        args: Arguments<'a>,
    },
    Exec {
        stamp: Stamp,
        resp3: bool,
        watched: Vec<Watched<'a>>,
        commands: Vec<Arguments<'a>>,
    },
    Watch {
        stamp: Stamp,
        keys: Vec<&'a [u8]>,
    },
    Query {
        resp3: bool,
        args: Arguments<'a>,
    },
    Report {
        stamp: Stamp,
        voices: u8,
        check: Option<Check<'a>>,
    },
    Server {
        node: u16,
        members: Vec<u16>,
        fingerprint: &'a [u8],
    },
}

/// Appends the encoding of a CALL.
pub fn put_call(out: &mut Vec<u8>, stamp: Stamp, resp3: bool, args: &[&[u8]]) {
    put_head(out, CALL, stamp);
    out.push(u8::from(resp3));
    args.iter().for_each(|arg| put_bytes(out, arg));
}

/// Appends the encoding of a QUERY.
pub fn put_query(out: &mut Vec<u8>, resp3: bool, args: &[&[u8]]) {
    out.extend_from_slice(&[QUERY, u8::from(resp3)]);
    args.iter().for_each(|arg| put_bytes(out, arg));
}

/// Joins a CALL to another one, or to what was joined from others before, unless that would have
/// more than `most` bytes; returns whether it did. They become an EXEC without watched keys, at the
/// later one's time, since such an EXEC has the same effects and answers, in an array. The CALLs
/// must be ones that EXEC takes.
pub fn join_call(joined: &mut Vec<u8>, call: &[u8], most: usize) -> bool {
    if joined.len() < CALL_HEAD_LEN || call.len() < CALL_HEAD_LEN {
        return false;
    }
    let (head, args) = call.split_at(CALL_HEAD_LEN);
    let are_calls = head[0] == CALL && [CALL, EXEC].contains(&joined[0]);
    let are_alike = are_calls && head[FLAGS_AT] == joined[FLAGS_AT];
    if !are_alike || joined.len() + args.len() + ROOM_TO_JOIN > most {
        return false;
    }
    if joined[0] == CALL {
        let first = joined.split_off(CALL_HEAD_LEN);
        joined.extend_from_slice(&[0, 0]);
        put_bytes(joined, &first);
    }
    joined[1..CALL_HEAD_LEN].copy_from_slice(&head[1..]);
    joined[0] = EXEC;
    put_bytes(joined, args);
    true
}

/// Returns whether this is a QUERY, if it isn't malformed. A QUERY changes nothing, whatever it
/// asks.
pub(super) fn is_query(bytes: &[u8]) -> bool {
    bytes.first() == Some(&QUERY)
}

impl<'a> Command<'a> {
    /// Appends the encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Command::Call { stamp, resp3, args } => put_call(out, *stamp, *resp3, args),
            Command::Exec {
                stamp,
                resp3,
                watched,
                commands,
            } => {
                put_head(out, EXEC, *stamp);
                out.push(u8::from(*resp3));
                out.extend_from_slice(&(watched.len() as u16).to_be_bytes());
                for key in watched {
                    put_bytes(out, key.key);
                    out.extend_from_slice(&key.version.to_be_bytes());
                    out.push(u8::from(key.existed));
                }
                let mut inner = Vec::new();
                for args in commands {
                    inner.clear();
                    args.iter().for_each(|arg| put_bytes(&mut inner, arg));
                    put_bytes(out, &inner);
                }
            }
            Command::Watch { stamp, keys } => {
                put_head(out, WATCH, *stamp);
                keys.iter().for_each(|key| put_bytes(out, key));
            }
            Command::Query { resp3, args } => put_query(out, *resp3, args),
            Command::Report {
                stamp,
                voices,
                check,
            } => {
                put_head(out, REPORT, *stamp);
                out.push(*voices);
                if let Some(check) = check {
                    put_check(out, check);
                }
            }
            Command::Server {
                node,
                members,
                fingerprint,
            } => {
                out.push(SERVER);
                out.extend_from_slice(&node.to_be_bytes());
                out.push(members.len() as u8);
                let numbers = members.iter().flat_map(|member| member.to_be_bytes());
                out.extend(numbers);
                out.extend_from_slice(fingerprint);
            }
        }
    }

    /// Reads one command, which must fill `bytes` exactly.
    pub fn parse(bytes: &'a [u8]) -> Result<Command<'a>, Malformed> {
        let mut input = Input(bytes);
        match input.u8()? {
            CALL => Ok(Command::Call {
                stamp: input.stamp()?,
                resp3: input.flag(RESP3)?,
                args: input.arguments()?,
            }),
            EXEC => {
                let (stamp, resp3) = (input.stamp()?, input.flag(RESP3)?);
                let count = u16::from_be_bytes(input.array()?);
                let watched = (0..count).map(|_| input.watched());
                Ok(Command::Exec {
                    stamp,
                    resp3,
                    watched: watched.collect::<Result<_, _>>()?,
                    commands: input.commands()?,
                })
            }
            WATCH => Ok(Command::Watch {
                stamp: input.stamp()?,
                keys: input.arguments()?,
            }),
            QUERY => Ok(Command::Query {
                resp3: input.flag(RESP3)?,
                args: input.arguments()?,
            }),
            REPORT => {
                let (stamp, [voices]) = (input.stamp()?, input.array()?);
                let check = match input.0.is_empty() {
                    true => None,
                    false => Some(input.check()?),
                };
                Ok(Command::Report {
                    stamp,
                    voices,
                    check,
                })
            }
            SERVER => Ok(Command::Server {
                node: u16::from_be_bytes(input.array()?),
                members: input.members()?,
                fingerprint: input.0,
            }),
            _ => Err(Malformed),
        }
    }
}

fn put_head(out: &mut Vec<u8>, kind: u8, stamp: Stamp) {
    out.push(kind);
    out.extend_from_slice(&stamp.node.to_be_bytes());
    let [_, _, ms @ ..] = stamp.ms.min(MAX_MS).to_be_bytes();
    out.extend_from_slice(&ms);
}

fn put_check(out: &mut Vec<u8>, check: &Check<'_>) {
    out.extend_from_slice(&check.stated.to_be_bytes());
    out.push(check.digests.len() as u8);
    let digests = check.digests.iter().flat_map(|digest| digest.to_be_bytes());
    out.extend(digests);
    out.extend_from_slice(&check.probe.to_be_bytes());
    check.keys.iter().for_each(|key| put_bytes(out, key));
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let mut len = bytes.len();
    while len > 0x7f {
        out.push(len as u8 | 0x80);
        len >>= 7;
    }
    out.push(len as u8);
    out.extend_from_slice(bytes);
}

pub(super) struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (array, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*array)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn stamp(&mut self) -> Result<Stamp, Malformed> {
        let node = u16::from_be_bytes(self.array()?);
        let mut ms = [0; 8];
        ms[2..].copy_from_slice(&self.array::<6>()?);
        Ok(Stamp {
            node,
            ms: u64::from_be_bytes(ms),
        })
    }

    fn flag(&mut self, flag: u8) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            set if set == flag => Ok(true),
            _ => Err(Malformed),
        }
    }

    /// Reads one length and its bytes. Each length has one encoding: its last byte isn't 0, unless
    /// it is the only one.
    fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let (mut len, mut shift) = (0usize, 0);
        loop {
            let byte = self.u8()?;
            len |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                if byte == 0 && shift > 0 {
                    return Err(Malformed);
                }
                break;
            }
            shift += 7;
            if shift > 28 {
                return Err(Malformed);
            }
        }
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Reads arguments up to the end; there must be at least one.
    fn arguments(&mut self) -> Result<Vec<&'a [u8]>, Malformed> {
        let mut arguments = Vec::with_capacity(FEW.max(self.0.len() / ARGUMENT_LEN));
        arguments.push(self.bytes()?);
        while !self.0.is_empty() {
            arguments.push(self.bytes()?);
        }
        Ok(arguments)
    }

    fn check(&mut self) -> Result<Check<'a>, Malformed> {
        let (stated, count) = (u64::from_be_bytes(self.array()?), self.u8()?);
        let digests = (0..count).map(|_| self.array().map(u32::from_be_bytes));
        let digests: Vec<u32> = digests.collect::<Result<_, _>>()?;
        let probe = u64::from_be_bytes(self.array()?);
        let mut keys = Vec::new();
        while !self.0.is_empty() && keys.len() < MOST_KEYS {
            keys.push(self.bytes()?);
        }
        let are_short = keys.iter().all(|key| key.len() <= MOST_NAME);
        let is_sound = self.0.is_empty() && digests.len() <= MOST_KEYS && are_short;
        let check = Check {
            stated,
            digests,
            probe,
            keys,
        };
        is_sound.then_some(check).ok_or(Malformed)
    }

    fn members(&mut self) -> Result<Vec<u16>, Malformed> {
        let count = usize::from(self.u8()?);
        let members = (0..count).map(|_| self.array().map(u16::from_be_bytes));
        let members: Vec<u16> = members.collect::<Result<_, _>>()?;
        let is_sound = count <= MAX_MEMBERS && members.is_sorted_by(|a, b| a < b);
        is_sound.then_some(members).ok_or(Malformed)
    }

    fn watched(&mut self) -> Result<Watched<'a>, Malformed> {
        Ok(Watched {
            key: self.bytes()?,
            version: u64::from_be_bytes(self.array()?),
            existed: self.flag(1)?,
        })
    }

    fn commands(&mut self) -> Result<Vec<Vec<&'a [u8]>>, Malformed> {
        let mut commands = Vec::new();
        while !self.0.is_empty() {
            commands.push(Input(self.bytes()?).arguments()?);
        }
        Ok(commands)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Vec<u8>> {
        let stamp = Stamp {
            node: 7,
            ms: 1_795_467_197_876,
        };
        let long = vec![b'x'; 300];
        let watched = Watched {
            key: b"k",
            version: 9,
            existed: true,
        };
        let commands = [
            Command::Call {
                stamp,
                resp3: true,
                args: vec![b"SET", b"k", &long, b""],
            },
            Command::Exec {
                stamp,
                resp3: false,
                watched: vec![watched],
                commands: vec![vec![b"GET", b"k"], vec![b"PING"]],
            },
            Command::Exec {
                stamp,
                resp3: true,
                watched: vec![watched],
                commands: vec![],
            },
            Command::Watch {
                stamp,
                keys: vec![b"a", b"b"],
            },
            Command::Query {
                resp3: false,
                args: vec![b"GET", b"k"],
            },
            Command::Report {
                stamp,
                voices: 3,
                check: None,
            },
            Command::Report {
                stamp,
                voices: 3,
                check: Some(Check {
                    stated: 8,
                    digests: vec![1, 2],
                    probe: 9,
                    keys: vec![b"k", b"", &long],
                }),
            },
            Command::Server {
                node: 2,
                members: vec![1, 2, 300],
                fingerprint: b"any",
            },
        ];
        let encoded = commands.iter().map(|command| {
            let mut bytes = Vec::new();
            command.encode(&mut bytes);
            assert_eq!(Command::parse(&bytes).as_ref(), Ok(command));
            bytes
        });
        encoded.collect()
    }

    #[test]
    fn calls_that_are_joined_are_a_transaction_at_the_last_ones_time() {
        let call = |ms, resp3, args: &[&[u8]]| {
            let mut bytes = Vec::new();
            put_call(&mut bytes, Stamp { node: 7, ms }, resp3, args);
            bytes
        };
        let long = [b'x'; 300];
        let args: [Vec<&[u8]>; 3] = [
            vec![b"SET", b"k", &long],
            vec![b"INCR", b"n"],
            vec![b"SADD", b"s", b""],
        ];
        let mut joined = call(5, true, &args[0]);
        assert!(join_call(&mut joined, &call(6, true, &args[1]), 400));
        assert!(join_call(&mut joined, &call(8, true, &args[2]), 400));
        let as_one = Command::Exec {
            stamp: Stamp { node: 7, ms: 8 },
            resp3: true,
            watched: vec![],
            commands: args.to_vec(),
        };
        assert_eq!(Command::parse(&joined), Ok(as_one));

        let before = joined.clone();
        let other_version = call(9, false, &args[1]);
        assert!(!join_call(&mut joined, &other_version, 400));
        let mut query = Vec::new();
        put_query(&mut query, true, &[b"GET", b"0123456789"]);
        assert!(!join_call(&mut joined, &query, 400));
        assert!(!join_call(
            &mut joined,
            &call(9, true, &args[1]),
            before.len() + 12
        ));
        assert!(!join_call(&mut query, &call(9, true, &args[1]), 400));
        assert_eq!(joined, before, "nothing changes if they stay apart");
    }

    #[test]
    fn a_command_has_one_encoding() {
        for bytes in all() {
            for bit in 0..bytes.len() * 8 {
                let mut other = bytes.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                if let Ok(command) = Command::parse(&other) {
                    let mut again = Vec::new();
                    command.encode(&mut again);
                    assert_eq!(again, other, "bit {bit}");
                }
            }
        }
        assert_eq!(Command::parse(&[QUERY, 0, 0x80, 0]), Err(Malformed));
    }

    #[test]
    fn a_check_has_a_bounded_number_of_short_keys_and_of_digests() {
        let parses = |key: &[u8], keys: usize, digests: usize| {
            let check = Check {
                keys: vec![key; keys],
                digests: vec![1; digests],
                ..Check::default()
            };
            let report = Command::Report {
                stamp: Stamp::default(),
                voices: 3,
                check: Some(check),
            };
            let mut bytes = Vec::new();
            report.encode(&mut bytes);
            Command::parse(&bytes).is_ok()
        };
        assert!(parses(b"k", 0, 0) && parses(b"k", MOST_KEYS, MOST_KEYS));
        assert!(!parses(b"k", MOST_KEYS + 1, 0) && !parses(b"k", 0, MOST_KEYS + 1));
        assert!(parses(&[0; MOST_NAME], 1, 0) && !parses(&[0; MOST_NAME + 1], 1, 0));
    }

    #[test]
    fn what_is_cut_or_empty_is_refused() {
        let stamp = Stamp::default();
        let mut empty = Vec::new();
        Command::Watch {
            stamp,
            keys: vec![],
        }
        .encode(&mut empty);
        assert_eq!(Command::parse(&empty), Err(Malformed));
        assert_eq!(Command::parse(&[]), Err(Malformed));
        for bytes in all() {
            for end in 0..bytes.len() {
                let _ = Command::parse(&bytes[..end]);
            }
        }
    }
}
