// SPDX-License-Identifier: Apache-2.0
//! The state of a shard as bytes, for checkpoints and for replicas that catch up. Equal states have
//! equal bytes. Locks aren't stored: they follow from the prepared transactions.

use crate::bytes::{Input, Malformed, put_string, put_u64};
use crate::clients::{Client, State};
use crate::shard::{Limits, Shard, size, size_of};
use crate::wire::{Key, MAX_KEY, MAX_VALUE, Participant, Transaction, Value, Version, Work};

const MAGIC: &[u8; 8] = b"WPtxns\0\x01";

/// No shard counts so far; it leaves room to count on.
const LARGEST: u64 = 1 << 62;

const REFUSED: u8 = 0;
const PREPARED: u8 = 1;
const COMMITTED: u8 = 2;
const FINISHED: u8 = 3;

impl Shard {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        for number in [
            self.limits.clients,
            self.limits.bytes,
            self.version,
            self.now,
            self.clients.next,
            self.values.len() as u64,
            self.clients.all.len() as u64,
        ] {
            put_u64(&mut out, number);
        }
        for (key, (version, value)) in &self.values {
            put_string(&mut out, key);
            put_u64(&mut out, *version);
            put_string(&mut out, value);
        }
        for (number, client) in &self.clients.all {
            put_u64(&mut out, *number);
            client.encode(&mut out);
        }
        out
    }

    /// Reads a state, and checks everything that the rules of a shard rely on.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Shard, Malformed> {
        let bytes = bytes.strip_prefix(MAGIC).ok_or(Malformed)?;
        let mut input = Input(bytes);
        let limits = Limits {
            clients: input.u64()?,
            bytes: input.u64()?,
        };
        let mut shard = Shard::new(limits);
        shard.version = input.u64()?;
        shard.now = input.u64()?;
        shard.clients.next = input.u64()?;
        if shard.version.max(shard.now).max(shard.clients.next) > LARGEST {
            return Err(Malformed);
        }
        let (values, clients) = (input.u64()?, input.u64()?);
        for _ in 0..values {
            shard.take_value(&mut input)?;
        }
        for _ in 0..clients {
            shard.take_client(&mut input)?;
        }
        input.end()?;
        let within = shard.stored.checked_add(shard.reserved);
        let fits = within.is_some_and(|sum| sum <= shard.limits.bytes);
        if fits && clients <= shard.limits.clients.max(1) {
            Ok(shard)
        } else {
            Err(Malformed)
        }
    }

    fn take_value(&mut self, input: &mut Input<'_>) -> Result<(), Malformed> {
        let key: Key = input.string(MAX_KEY)?;
        let version: Version = input.u64()?;
        let value: Value = input.string(MAX_VALUE)?;
        let is_next = self.values.last_key_value().is_none_or(|(k, _)| *k < key);
        if !is_next || version == 0 || version > self.version {
            return Err(Malformed);
        }
        self.stored += size_of(&key, &value);
        self.values.insert(key, (version, value));
        Ok(())
    }

    fn take_client(&mut self, input: &mut Input<'_>) -> Result<(), Malformed> {
        let number = input.u64()?;
        let client = Client::parse(input)?;
        let last = self.clients.all.last_key_value();
        let is_next = last.is_none_or(|(last, _)| *last < number);
        if !is_next || number > self.clients.next || client.used_at > self.now {
            return Err(Malformed);
        }
        if let State::Prepared { work, .. } = &client.state {
            if self.locks.conflict(work).is_some() {
                return Err(Malformed);
            }
            self.reserved += size(work);
            self.locks.lock(number, work);
        }
        self.clients.all.insert(number, client);
        Ok(())
    }
}

impl Client {
    fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.used_at);
        let (kind, participants) = match &self.state {
            State::Refused => (REFUSED, None),
            State::Prepared { participants, .. } => (PREPARED, Some(participants)),
            State::Committed { participants } => (COMMITTED, Some(participants)),
            State::Finished => (FINISHED, None),
        };
        out.push(kind);
        match participants {
            None => put_u64(out, self.number),
            Some(participants) => Transaction {
                number: self.number,
                participants: participants.clone(),
            }
            .encode(out),
        }
        if let State::Prepared { work, .. } = &self.state {
            work.encode(out);
        }
    }

    fn parse(input: &mut Input<'_>) -> Result<Client, Malformed> {
        let used_at = input.u64()?;
        let kind = input.u8()?;
        let (number, participants): (u64, Vec<Participant>) = match kind {
            REFUSED | FINISHED => (input.u64()?, Vec::new()),
            _ => {
                let transaction = Transaction::parse(input)?;
                (transaction.number, transaction.participants)
            }
        };
        let state = match kind {
            REFUSED => State::Refused,
            FINISHED => State::Finished,
            COMMITTED => State::Committed { participants },
            PREPARED => State::Prepared {
                participants,
                work: Work::parse(input)?,
            },
            _ => return Err(Malformed),
        };
        Ok(Client {
            number,
            state,
            used_at,
        })
    }
}
