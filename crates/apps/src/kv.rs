// SPDX-License-Identifier: Apache-2.0
//! The key-value command language: the commands that a replicated store executes, and their
//! answers.
//!
//! Commands in the log are untrusted bytes: [`Command::parse`] is strict, accepts one encoding per
//! command and never panics. The language knows nothing of RESP, from which the Redis front end
//! translates.
//!
//! | op | fields | answer |
//! |---|---|---|
//! | 1 GET | key | bulk or nil |
//! | 2 SET | flags u8, key, value | ok or nil; with GET the old value or nil; as SETNX 0 or 1 |
//! | 3 DEL | keys | number of keys deleted |
//! | 4 EXISTS | keys | number of arguments that exist |
//! | 5 MGET | keys | array of bulk or nil |
//! | 6 MSET | key, value, key, value, … | ok |
//! | 7 INCRBY | delta i64, key | the new number |
//! | 8 APPEND | key, value | the new length |
//! | 9 STRLEN | key | the length |
//! | 11 DBSIZE | | number of keys |
//! | 12 GETDEL | key | the old value or nil |
//! | 13 SCAN | count u32, from u64, has_pattern u8, pattern | array: where to go on, keys |
//! | 14 WATCH | keys | array of numbers: the version of each |
//! | 15 EXEC | count u16 of {key, version u64}, then {length u32, command}, … | nil, or array |
//!
//! SCAN answers a number from which to go on, or nil, and the keys.
//! EXEC answers nil if a key has another version, and otherwise an array of the commands' answers.
//!
//! A key or value is {length u16, bytes}; from 65,535 bytes on {65,535 u16, length u32, bytes}.
//! Lists extend to the end of the command. All numbers are big-endian. Op 10 was an earlier SCAN.

mod input;

use std::fmt;

use input::Input;

/// The longest value that APPEND may build, in bytes, so that an answer can hold a whole value.
pub const MAX_STRING_LEN: usize = 16 << 20;
/// The longest answer, in bytes, unless another limit is set: a single command can name hundreds of
/// the longest values.
pub const MAX_REPLY_LEN: usize = 64 << 20;

/// The longest value, in bytes, that a transaction over several partitions may read or write.
pub const MAX_SPANNING_LEN: usize = u16::MAX as usize;

const OP_GET: u8 = 1;
const OP_SET: u8 = 2;
const OP_DEL: u8 = 3;
const OP_EXISTS: u8 = 4;
const OP_MGET: u8 = 5;
const OP_MSET: u8 = 6;
const OP_INCRBY: u8 = 7;
const OP_APPEND: u8 = 8;
const OP_STRLEN: u8 = 9;
const OP_DBSIZE: u8 = 11;
const OP_GETDEL: u8 = 12;
const OP_SCAN: u8 = 13;
const OP_WATCH: u8 = 14;
const OP_EXEC: u8 = 15;

/// The conditions of a SET, and what it answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetFlags {
    /// SET only if the key doesn't exist.
    pub if_absent: bool,
    /// SET only if the key exists.
    pub if_present: bool,
    /// Answer with the old value.
    pub get: bool,
    /// Answer with 1 or 0 (as SETNX does) instead of ok or nil.
    pub answer_int: bool,
}

impl SetFlags {
    fn bits(self) -> u8 {
        u8::from(self.if_absent)
            | u8::from(self.if_present) << 1
            | u8::from(self.get) << 2
            | u8::from(self.answer_int) << 3
    }

    fn from_bits(bits: u8) -> Option<Self> {
        let flags = SetFlags {
            if_absent: bits & 1 != 0,
            if_present: bits & 2 != 0,
            get: bits & 4 != 0,
            answer_int: bits & 8 != 0,
        };
        let contradictory = flags.if_absent && flags.if_present || flags.get && flags.answer_int;
        (bits < 16 && !contradictory).then_some(flags)
    }
}

/// A key and its value.
pub type Pair<'a> = (&'a [u8], &'a [u8]);

/// One command.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the module's table says what each one does
pub enum Command<'a> {
    Get {
        key: &'a [u8],
    },
    Set {
        flags: SetFlags,
        key: &'a [u8],
        value: &'a [u8],
    },
    Del {
        keys: Vec<&'a [u8]>,
    },
    Exists {
        keys: Vec<&'a [u8]>,
    },
    Mget {
        keys: Vec<&'a [u8]>,
    },
    Mset {
        pairs: Vec<Pair<'a>>,
    },
    IncrBy {
        key: &'a [u8],
        delta: i64,
    },
    Append {
        key: &'a [u8],
        value: &'a [u8],
    },
    Strlen {
        key: &'a [u8],
    },
    Scan {
        /// The number of keys to look at, which isn't the number of keys to return. SCAN looks at a
        /// few more if they share a place.
        count: u32,
        /// The [place](mod@crate::place) at which to begin.
        from: u64,
        /// Only keys that match this glob are returned.
        pattern: Option<&'a [u8]>,
    },
    Dbsize,
    GetDel {
        key: &'a [u8],
    },
    Watch {
        keys: Vec<&'a [u8]>,
    },
    Exec {
        /// The watched keys with the versions that they must have.
        watched: Vec<(&'a [u8], u64)>,
        /// The commands, which are executed at one moment if the versions match. None of them is a
        /// SCAN, DBSIZE, WATCH or EXEC.
        commands: Vec<Command<'a>>,
    },
}

/// An error: a command can't be encoded, since a key or value is longer than a length field can
/// say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooLong;

/// An error: the bytes are no command, or no reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

impl<'a> Command<'a> {
    /// Returns whether the command never changes anything.
    pub fn is_read(&self) -> bool {
        match self {
            Command::Get { .. }
            | Command::Exists { .. }
            | Command::Mget { .. }
            | Command::Strlen { .. }
            | Command::Scan { .. }
            | Command::Dbsize => true,
            Command::Set { .. }
            | Command::Del { .. }
            | Command::Mset { .. }
            | Command::IncrBy { .. }
            | Command::Append { .. }
            | Command::GetDel { .. }
            | Command::Watch { .. }
            | Command::Exec { .. } => false,
        }
    }

    /// Returns whether the command is a read, or a transaction of reads alone.
    pub fn only_reads(&self) -> bool {
        match self {
            Command::Exec { commands, .. } => commands.iter().all(Command::is_read),
            command => command.is_read(),
        }
    }

    /// Returns whether the command may be a part of an EXEC.
    pub fn is_of_strings(&self) -> bool {
        !matches!(
            self,
            Command::Scan { .. } | Command::Dbsize | Command::Watch { .. } | Command::Exec { .. }
        )
    }

    /// Returns the keys that the command names, in its order.
    pub fn keys(&self) -> Vec<&'a [u8]> {
        match self {
            Command::Get { key }
            | Command::Set { key, .. }
            | Command::IncrBy { key, .. }
            | Command::Append { key, .. }
            | Command::Strlen { key }
            | Command::GetDel { key } => vec![*key],
            Command::Del { keys }
            | Command::Exists { keys }
            | Command::Mget { keys }
            | Command::Watch { keys } => keys.clone(),
            Command::Mset { pairs } => pairs.iter().map(|(key, _)| *key).collect(),
            Command::Scan { .. } | Command::Dbsize => Vec::new(),
            Command::Exec { watched, commands } => {
                let watched = watched.iter().map(|(key, _)| *key);
                watched
                    .chain(commands.iter().flat_map(Command::keys))
                    .collect()
            }
        }
    }

    /// Appends the encoding.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), TooLong> {
        match self {
            Command::Get { key } => {
                out.push(OP_GET);
                put_bytes(out, key)
            }
            Command::Set { flags, key, value } => {
                out.extend_from_slice(&[OP_SET, flags.bits()]);
                put_bytes(out, key)?;
                put_bytes(out, value)
            }
            Command::Del { keys } => put_list(out, OP_DEL, keys),
            Command::Exists { keys } => put_list(out, OP_EXISTS, keys),
            Command::Mget { keys } => put_list(out, OP_MGET, keys),
            Command::Mset { pairs } => {
                out.push(OP_MSET);
                pairs.iter().try_for_each(|(key, value)| {
                    put_bytes(out, key)?;
                    put_bytes(out, value)
                })
            }
            Command::IncrBy { key, delta } => {
                out.push(OP_INCRBY);
                out.extend_from_slice(&delta.to_be_bytes());
                put_bytes(out, key)
            }
            Command::Append { key, value } => {
                out.push(OP_APPEND);
                put_bytes(out, key)?;
                put_bytes(out, value)
            }
            Command::Strlen { key } => {
                out.push(OP_STRLEN);
                put_bytes(out, key)
            }
            Command::Scan {
                count,
                from,
                pattern,
            } => {
                out.push(OP_SCAN);
                out.extend_from_slice(&count.to_be_bytes());
                out.extend_from_slice(&from.to_be_bytes());
                put_option(out, *pattern)
            }
            Command::Dbsize => {
                out.push(OP_DBSIZE);
                Ok(())
            }
            Command::GetDel { key } => {
                out.push(OP_GETDEL);
                put_bytes(out, key)
            }
            Command::Watch { keys } => put_list(out, OP_WATCH, keys),
            Command::Exec { watched, commands } => put_exec(out, watched, commands),
        }
    }

    /// Reads one command, which must fill `bytes` exactly.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut input = Input(bytes);
        let command = match input.u8()? {
            OP_GET => Command::Get {
                key: input.bytes()?,
            },
            OP_SET => Command::Set {
                flags: SetFlags::from_bits(input.u8()?).ok_or(Malformed)?,
                key: input.bytes()?,
                value: input.bytes()?,
            },
            OP_DEL => Command::Del {
                keys: input.list()?,
            },
            OP_EXISTS => Command::Exists {
                keys: input.list()?,
            },
            OP_MGET => Command::Mget {
                keys: input.list()?,
            },
            OP_MSET => Command::Mset {
                pairs: input.pairs()?,
            },
            OP_INCRBY => Command::IncrBy {
                delta: i64::from_be_bytes(input.array()?),
                key: input.bytes()?,
            },
            OP_APPEND => Command::Append {
                key: input.bytes()?,
                value: input.bytes()?,
            },
            OP_STRLEN => Command::Strlen {
                key: input.bytes()?,
            },
            OP_SCAN => Command::Scan {
                count: u32::from_be_bytes(input.array()?),
                from: input.place()?,
                pattern: input.option()?,
            },
            OP_DBSIZE => Command::Dbsize,
            OP_GETDEL => Command::GetDel {
                key: input.bytes()?,
            },
            OP_WATCH => Command::Watch {
                keys: input.list()?,
            },
            OP_EXEC => Command::Exec {
                watched: input.versions()?,
                commands: input.commands()?,
            },
            _ => return Err(Malformed),
        };
        input.end()?;
        Ok(command)
    }
}

/// The reason why a command was refused; nothing changed then. Answers contain the numbers, so new
/// ones are appended and none is ever changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Refusal {
    /// The bytes are no command.
    Malformed = 1,
    /// INCRBY of a value that isn't a 64-bit number.
    NotAnInteger = 2,
    /// INCRBY beyond the 64-bit range.
    Overflow = 3,
    /// APPEND beyond [`MAX_STRING_LEN`].
    StringTooLong = 4,
    /// The answer would exceed the limit.
    ReplyTooLarge = 5,
    /// A transaction over several partitions with values longer than [`MAX_SPANNING_LEN`].
    TransactionTooLarge = 6,
}

impl Refusal {
    const ALL: [Refusal; 6] = [
        Refusal::Malformed,
        Refusal::NotAnInteger,
        Refusal::Overflow,
        Refusal::StringTooLong,
        Refusal::ReplyTooLarge,
        Refusal::TransactionTooLarge,
    ];
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Malformed => "malformed command",
            Refusal::NotAnInteger => "value is not an integer or out of range",
            Refusal::Overflow => "increment or decrement would overflow",
            Refusal::StringTooLong => "string exceeds maximum allowed size",
            Refusal::ReplyTooLarge => {
                "the answer has more than max_answer_mib in the cluster file allows: ask for less \
                 at once, or raise it (what writes was executed)"
            }
            Refusal::TransactionTooLarge => {
                "a value is too long for a transaction over several partitions: give the keys a \
                 {tag} in common"
            }
        })
    }
}

/// The answer to a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply<'a> {
    /// There is no such key, or the condition of a SET didn't hold.
    Nil,
    /// The command was executed.
    Ok,
    /// A number.
    Int(i64),
    /// A string.
    Bulk(&'a [u8]),
    /// Several answers.
    Array(Vec<Reply<'a>>),
    /// The command was refused; nothing changed.
    Error(Refusal),
}

const TAG_NIL: u8 = 0;
const TAG_OK: u8 = 1;
const TAG_INT: u8 = 2;
const TAG_BULK: u8 = 3;
const TAG_ARRAY: u8 = 4;
const TAG_ERROR: u8 = 5;
/// Arrays nest twice: the answer to SCAN holds the array of keys, and the answer to EXEC holds
/// those of MGETs.
const MAX_DEPTH: usize = 2;

impl<'a> Reply<'a> {
    /// Appends the encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Reply::Nil => out.push(TAG_NIL),
            Reply::Ok => out.push(TAG_OK),
            Reply::Int(n) => {
                out.push(TAG_INT);
                out.extend_from_slice(&n.to_be_bytes());
            }
            Reply::Bulk(bytes) => {
                out.push(TAG_BULK);
                out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
                out.extend_from_slice(bytes);
            }
            Reply::Array(items) => {
                put_array_header(out, items.len());
                for item in items {
                    item.encode(out);
                }
            }
            Reply::Error(refusal) => out.extend_from_slice(&[TAG_ERROR, *refusal as u8]),
        }
    }

    /// Reads one answer, which must fill `bytes` exactly.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut input = Input(bytes);
        let reply = parse_reply(&mut input, 0)?;
        input.end()?;
        Ok(reply)
    }
}

/// Writes the length of a string whose head was written with length 0 and whose bytes were appended
/// since.
pub(crate) fn end_bulk(bulk: &mut [u8]) {
    let len = bulk.len() - 5;
    bulk[1..5].copy_from_slice(&(len as u32).to_be_bytes());
}

/// Appends the head of an array; its items follow.
pub(crate) fn put_array_header(out: &mut Vec<u8>, count: usize) {
    out.push(TAG_ARRAY);
    out.extend_from_slice(&(count as u32).to_be_bytes());
}

fn parse_reply<'a>(input: &mut Input<'a>, depth: usize) -> Result<Reply<'a>, Malformed> {
    Ok(match input.u8()? {
        TAG_NIL => Reply::Nil,
        TAG_OK => Reply::Ok,
        TAG_INT => Reply::Int(i64::from_be_bytes(input.array()?)),
        TAG_BULK => {
            let len = u32::from_be_bytes(input.array()?);
            Reply::Bulk(input.take(len as usize)?)
        }
        TAG_ARRAY if depth < MAX_DEPTH => {
            let count = u32::from_be_bytes(input.array()?) as usize;
            // An item takes at least one byte, so a false count can't make this reserve memory.
            if count > input.0.len() {
                return Err(Malformed);
            }
            let items: Result<Vec<_>, _> =
                (0..count).map(|_| parse_reply(input, depth + 1)).collect();
            Reply::Array(items?)
        }
        TAG_ERROR => {
            let number = input.u8()?;
            let found = Refusal::ALL.into_iter().find(|r| *r as u8 == number);
            Reply::Error(found.ok_or(Malformed)?)
        }
        _ => return Err(Malformed),
    })
}

/// The mark of a longer length field that follows; it holds this number or more.
const LONG: u16 = u16::MAX;

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), TooLong> {
    match u16::try_from(bytes.len()) {
        Ok(len) if len != LONG => out.extend_from_slice(&len.to_be_bytes()),
        _ => {
            let len = u32::try_from(bytes.len()).map_err(|_| TooLong)?;
            out.extend_from_slice(&LONG.to_be_bytes());
            out.extend_from_slice(&len.to_be_bytes());
        }
    }
    out.extend_from_slice(bytes);
    Ok(())
}

fn put_list(out: &mut Vec<u8>, op: u8, items: &[&[u8]]) -> Result<(), TooLong> {
    out.push(op);
    items.iter().try_for_each(|item| put_bytes(out, item))
}

fn put_exec(
    out: &mut Vec<u8>,
    watched: &[(&[u8], u64)],
    commands: &[Command<'_>],
) -> Result<(), TooLong> {
    out.push(OP_EXEC);
    let count = u16::try_from(watched.len()).map_err(|_| TooLong)?;
    out.extend_from_slice(&count.to_be_bytes());
    for (key, version) in watched {
        put_bytes(out, key)?;
        out.extend_from_slice(&version.to_be_bytes());
    }
    for command in commands {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        command.encode(out)?;
        let len = u32::try_from(out.len() - start - 4).map_err(|_| TooLong)?;
        out[start..start + 4].copy_from_slice(&len.to_be_bytes());
    }
    Ok(())
}

fn put_option(out: &mut Vec<u8>, item: Option<&[u8]>) -> Result<(), TooLong> {
    out.push(u8::from(item.is_some()));
    item.map_or(Ok(()), |bytes| put_bytes(out, bytes))
}

/// Appends a number as [`parse_integer`] reads it, without allocating a string.
pub fn put_integer(out: &mut Vec<u8>, number: i64) {
    let (mut digits, mut at, mut rest) = ([0; 20], 20, number.unsigned_abs());
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        digits[at] = b'-';
    }
    out.extend_from_slice(&digits[at..]);
}

/// Returns the number that a stored string shows, by Redis's rules: decimal, no leading zero, no
/// plus sign, no space, within 64 bits.
pub fn parse_integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let canonical = match digits {
        [b'0'] => text.len() == 1,
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if !canonical {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
