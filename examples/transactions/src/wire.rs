// SPDX-License-Identifier: Apache-2.0
//! The commands that clients send to shards, and the answers.

use crate::bytes::{Input, Malformed, put_string, put_u64};

/// The longest key in bytes.
pub const MAX_KEY: usize = 128;
/// The longest value in bytes. An answer with one value fits a packet.
pub const MAX_VALUE: usize = 900;
/// The most keys that a transaction may read, and the most that it may write, in one shard.
pub const MAX_KEYS: usize = 64;
/// The most shards that a transaction may touch.
pub const MAX_PARTICIPANTS: usize = 16;

/// A key.
pub type Key = Vec<u8>;
/// A value.
pub type Value = Vec<u8>;
/// A number that each shard raises with every commit. A key that was never written has version 0.
pub type Version = u64;

/// A shard in which a transaction takes place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Participant {
    /// The number of the shard.
    pub shard: u16,
    /// The number that the shard gave to the transaction's client.
    pub client: u64,
}

/// The name of a transaction, which says where it takes place: so anyone who meets its locks can
/// finish it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transaction {
    /// The client's number for it. It grows with every transaction of the client.
    pub number: u64,
    /// The shards in which it takes place.
    pub participants: Vec<Participant>,
}

/// A transaction that isn't finished, as the shard that names it knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unfinished {
    /// The client's number at this shard, which is right even if the client gave a wrong list of
    /// participants.
    pub client: u64,
    /// The transaction.
    pub transaction: Transaction,
}

/// What a transaction does in one shard.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// The keys that it has read, and their versions.
    pub reads: Vec<(Key, Version)>,
    /// The keys that it writes, and their new values.
    pub writes: Vec<(Key, Value)>,
}

/// A command to a shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Asks for a client's number, which is part of all commands that change something.
    Open,
    /// Reads keys at one moment.
    Read {
        /// The keys.
        keys: Vec<Key>,
    },
    /// Validates and executes a transaction that takes place in this shard alone.
    Commit {
        /// The client's number at this shard.
        client: u64,
        /// The client's number for the transaction.
        number: u64,
        /// What the transaction does.
        work: Work,
    },
    /// Validates one shard's part of a transaction and locks its keys.
    Prepare {
        /// The client's number at this shard.
        client: u64,
        /// The transaction.
        transaction: Transaction,
        /// What it does in this shard.
        work: Work,
    },
    /// Executes or cancels a prepared transaction, as all shards' votes say.
    Finish {
        /// The client's number at this shard.
        client: u64,
        /// The client's number for the transaction.
        number: u64,
        /// True if all shards voted yes.
        commit: bool,
    },
    /// Asks how this shard has voted. If it hasn't voted yet, it votes no, for good.
    Resolve {
        /// The client's number at this shard.
        client: u64,
        /// The client's number for the transaction.
        number: u64,
    },
    /// Says that the transaction is finished in all its shards, so nobody will ask for it again.
    Forget {
        /// The client's number at this shard.
        client: u64,
        /// The client's number for the transaction.
        number: u64,
    },
}

/// The value of a key, as it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The version.
    pub version: Version,
    /// The value, or `None` if the key was never written.
    pub value: Option<Value>,
}

/// A shard's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The client's number.
    Opened(u64),
    /// The values of the first keys that were asked for, in their order: as many as fit an answer,
    /// at least one.
    Values(Vec<Found>),
    /// The shard votes for the transaction, or has executed it.
    Yes,
    /// The shard votes against the transaction, or does nothing, for this reason.
    No(Refusal),
    /// The command was carried out, now or earlier.
    Done,
    /// The bytes were no command. They changed nothing.
    Malformed,
}

/// The reason why a shard refuses something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// A key has changed since it was read.
    Changed,
    /// A key is locked by this transaction, which may have taken effect elsewhere already. Anyone
    /// may finish it.
    Locked(Unfinished),
    /// The shard has voted no before, or knows a later transaction of this client.
    Late,
    /// The shard doesn't know the client, or no longer.
    UnknownClient,
    /// The shard has no room for more clients or prepared writes until others are finished, of
    /// which this is the oldest.
    Full(Unfinished),
    /// The shard has no room for more values.
    NoRoom,
}

impl Transaction {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.number);
        out.push(self.participants.len() as u8);
        for participant in &self.participants {
            out.extend_from_slice(&participant.shard.to_be_bytes());
            put_u64(out, participant.client);
        }
    }

    pub(crate) fn parse(input: &mut Input<'_>) -> Result<Transaction, Malformed> {
        let number = input.u64()?;
        let participants = input.list(MAX_PARTICIPANTS, |input| {
            Ok(Participant {
                shard: input.u16()?,
                client: input.u64()?,
            })
        })?;
        if participants.is_empty() || !participants.is_sorted_by(|a, b| a.shard < b.shard) {
            return Err(Malformed);
        }
        Ok(Transaction {
            number,
            participants,
        })
    }
}

impl Work {
    /// Returns the writes alone.
    pub(crate) fn without_reads(&self) -> Work {
        Work {
            reads: Vec::new(),
            writes: self.writes.clone(),
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.reads.len() as u8);
        for (key, version) in &self.reads {
            put_string(out, key);
            put_u64(out, *version);
        }
        out.push(self.writes.len() as u8);
        for (key, value) in &self.writes {
            put_string(out, key);
            put_string(out, value);
        }
    }

    pub(crate) fn parse(input: &mut Input<'_>) -> Result<Work, Malformed> {
        let read = |input: &mut Input<'_>| Ok((input.string(MAX_KEY)?, input.u64()?));
        let write = |input: &mut Input<'_>| Ok((input.string(MAX_KEY)?, input.string(MAX_VALUE)?));
        let work = Work {
            reads: input.list(MAX_KEYS, read)?,
            writes: input.list(MAX_KEYS, write)?,
        };
        let ascending =
            work.reads.is_sorted_by(|a, b| a.0 < b.0) && work.writes.is_sorted_by(|a, b| a.0 < b.0);
        if ascending { Ok(work) } else { Err(Malformed) }
    }
}

const OPEN: u8 = 1;
const READ: u8 = 2;
const COMMIT: u8 = 3;
const PREPARE: u8 = 4;
const FINISH: u8 = 5;
const RESOLVE: u8 = 6;
const FORGET: u8 = 7;

impl Command {
    /// Returns the command as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut head = |kind, numbers: &[u64]| {
            out.push(kind);
            numbers.iter().for_each(|number| put_u64(&mut out, *number));
        };
        match self {
            Command::Open => head(OPEN, &[]),
            Command::Read { .. } => head(READ, &[]),
            Command::Commit { client, number, .. } => head(COMMIT, &[*client, *number]),
            Command::Prepare { client, .. } => head(PREPARE, &[*client]),
            Command::Finish { client, number, .. } => head(FINISH, &[*client, *number]),
            Command::Resolve { client, number } => head(RESOLVE, &[*client, *number]),
            Command::Forget { client, number } => head(FORGET, &[*client, *number]),
        }
        match self {
            Command::Read { keys } => {
                out.push(keys.len() as u8);
                keys.iter().for_each(|key| put_string(&mut out, key));
            }
            Command::Commit { work, .. } => work.encode(&mut out),
            Command::Prepare {
                transaction, work, ..
            } => {
                transaction.encode(&mut out);
                work.encode(&mut out);
            }
            Command::Finish { commit, .. } => out.push(u8::from(*commit)),
            Command::Open | Command::Resolve { .. } | Command::Forget { .. } => {}
        }
        out
    }

    /// Reads a command. Every command has one spelling only.
    ///
    /// # Errors
    /// If the bytes are no command, or exceed a limit.
    pub fn parse(bytes: &[u8]) -> Result<Command, Malformed> {
        let mut input = Input(bytes);
        let command = Command::parse_some(&mut input)?;
        input.end()?;
        Ok(command)
    }

    fn parse_some(input: &mut Input<'_>) -> Result<Command, Malformed> {
        Ok(match input.u8()? {
            OPEN => Command::Open,
            READ => {
                let keys = input.list(MAX_KEYS, |input| input.string(MAX_KEY))?;
                if keys.is_empty() {
                    return Err(Malformed);
                }
                Command::Read { keys }
            }
            COMMIT => Command::Commit {
                client: input.u64()?,
                number: input.u64()?,
                work: Work::parse(input)?,
            },
            PREPARE => Command::Prepare {
                client: input.u64()?,
                transaction: Transaction::parse(input)?,
                work: Work::parse(input)?,
            },
            FINISH => Command::Finish {
                client: input.u64()?,
                number: input.u64()?,
                commit: input.flag()?,
            },
            RESOLVE => Command::Resolve {
                client: input.u64()?,
                number: input.u64()?,
            },
            FORGET => Command::Forget {
                client: input.u64()?,
                number: input.u64()?,
            },
            _ => return Err(Malformed),
        })
    }
}

const OPENED: u8 = 1;
const VALUES: u8 = 2;
const YES: u8 = 3;
const DONE: u8 = 4;
const MALFORMED: u8 = 5;
const CHANGED: u8 = 6;
const LOCKED: u8 = 7;
const LATE: u8 = 8;
const UNKNOWN_CLIENT: u8 = 9;
const FULL: u8 = 10;
const NO_ROOM: u8 = 11;

impl Answer {
    /// Appends the answer as bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.kind());
        match self {
            Answer::Opened(client) => put_u64(out, *client),
            Answer::Values(found) => {
                out.push(found.len() as u8);
                found.iter().for_each(|found| found.encode(out));
            }
            Answer::No(Refusal::Locked(other) | Refusal::Full(other)) => other.encode(out),
            Answer::Yes | Answer::No(_) | Answer::Done | Answer::Malformed => {}
        }
    }

    fn kind(&self) -> u8 {
        match self {
            Answer::Opened(_) => OPENED,
            Answer::Values(_) => VALUES,
            Answer::Yes => YES,
            Answer::Done => DONE,
            Answer::Malformed => MALFORMED,
            Answer::No(Refusal::Changed) => CHANGED,
            Answer::No(Refusal::Locked(_)) => LOCKED,
            Answer::No(Refusal::Late) => LATE,
            Answer::No(Refusal::UnknownClient) => UNKNOWN_CLIENT,
            Answer::No(Refusal::Full(_)) => FULL,
            Answer::No(Refusal::NoRoom) => NO_ROOM,
        }
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// If the bytes are no answer.
    pub fn parse(bytes: &[u8]) -> Result<Answer, Malformed> {
        let mut input = Input(bytes);
        let answer = match input.u8()? {
            OPENED => Answer::Opened(input.u64()?),
            VALUES => Answer::Values(input.list(MAX_KEYS, Found::parse)?),
            YES => Answer::Yes,
            DONE => Answer::Done,
            MALFORMED => Answer::Malformed,
            CHANGED => Answer::No(Refusal::Changed),
            LOCKED => Answer::No(Refusal::Locked(Unfinished::parse(&mut input)?)),
            LATE => Answer::No(Refusal::Late),
            UNKNOWN_CLIENT => Answer::No(Refusal::UnknownClient),
            FULL => Answer::No(Refusal::Full(Unfinished::parse(&mut input)?)),
            NO_ROOM => Answer::No(Refusal::NoRoom),
            _ => return Err(Malformed),
        };
        input.end()?;
        Ok(answer)
    }
}

impl Unfinished {
    fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.client);
        self.transaction.encode(out);
    }

    fn parse(input: &mut Input<'_>) -> Result<Unfinished, Malformed> {
        Ok(Unfinished {
            client: input.u64()?,
            transaction: Transaction::parse(input)?,
        })
    }
}

impl Found {
    fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.version);
        if let Some(value) = &self.value {
            put_string(out, value);
        }
    }

    /// A version of 0 has no value.
    fn parse(input: &mut Input<'_>) -> Result<Found, Malformed> {
        let version = input.u64()?;
        let value = match version {
            0 => None,
            _ => Some(input.string(MAX_VALUE)?),
        };
        Ok(Found { version, value })
    }
}
