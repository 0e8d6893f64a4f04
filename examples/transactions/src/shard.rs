// SPDX-License-Identifier: Apache-2.0
//! A shard: the state machine that each of its replicas runs. It has no clock, no randomness and
//! no I/O; commands go in, answers come out.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use wirepaxos::StateMachine;

use crate::clients::{Clients, State};
use crate::locks::Locks;
use crate::rule::{Rule, keeps};
use crate::wire::{Answer, Command, Found, Key, Refusal, Transaction, Value, Version, Work};

/// The most bytes of values in an answer, which fits a packet with room to spare.
const ANSWER_ROOM: usize = 1_000;
/// The bytes that a key with its value takes besides their own, at most.
const OVERHEAD: u64 = 128;

/// What a shard holds at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Clients that it remembers; each has at most one transaction.
    pub clients: u64,
    /// Bytes of keys and values, with what is prepared.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            clients: 8_192,
            bytes: 1 << 30,
        }
    }
}

/// The state of a shard.
#[derive(Default)]
pub struct Shard {
    pub(crate) limits: Limits,
    pub(crate) values: BTreeMap<Key, (Version, Value)>,
    /// The version of the last commit.
    pub(crate) version: Version,
    /// The number of commands executed so far.
    pub(crate) now: u64,
    pub(crate) clients: Clients,
    pub(crate) locks: Locks,
    /// Bytes of all values.
    pub(crate) stored: u64,
    /// Bytes that are promised to prepared transactions.
    pub(crate) reserved: u64,
    /// The rule that a test takes away; `None` everywhere else.
    pub(crate) broken: Option<Rule>,
}

impl StateMachine for Shard {
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) {
        self.answer(command).encode(reply);
    }

    fn is_read(command: &[u8]) -> bool {
        matches!(Command::parse(command), Ok(Command::Read { .. }))
    }

    fn save(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.to_bytes())
    }

    fn load(from: &mut dyn Read) -> io::Result<Shard> {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes)?;
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "this is no state of a shard");
        Shard::from_bytes(&bytes).map_err(|_| damaged())
    }
}

impl Shard {
    /// Returns an empty shard. All replicas of a shard need the same limits.
    pub fn new(limits: Limits) -> Shard {
        Shard {
            limits,
            ..Shard::default()
        }
    }

    /// Executes a command.
    pub fn answer(&mut self, command: &[u8]) -> Answer {
        let Ok(command) = Command::parse(command) else {
            return Answer::Malformed;
        };
        if let Command::Read { keys } = command {
            return self.read(&keys);
        }
        self.now += 1;
        match command {
            Command::Open => self.open(),
            Command::Read { keys } => self.read(&keys),
            Command::Commit {
                client,
                number,
                work,
            } => self.commit(client, number, work),
            Command::Prepare {
                client,
                transaction,
                work,
            } => self.prepare(client, transaction, work),
            Command::Finish {
                client,
                number,
                commit,
            } => self.finish(client, number, commit),
            Command::Resolve { client, number } => self.resolve(client, number),
            Command::Forget { client, number } => self.forget(client, number),
        }
    }

    /// Returns the number of transactions that hold locks.
    pub fn prepared(&self) -> usize {
        let states = self.clients.all.values().map(|client| &client.state);
        states
            .filter(|state| matches!(state, State::Prepared { .. }))
            .count()
    }

    /// Returns the number of clients that the shard remembers.
    pub fn known_clients(&self) -> usize {
        self.clients.all.len()
    }

    /// Returns the number of commits so far.
    pub fn commits(&self) -> u64 {
        self.version
    }

    fn open(&mut self) -> Answer {
        let max = self.limits.clients.max(1) as usize;
        match self.clients.open(max, self.now) {
            Ok(number) => Answer::Opened(number),
            Err(Some(oldest)) => Answer::No(Refusal::Full(oldest)),
            Err(None) => Answer::No(Refusal::NoRoom),
        }
    }

    // ---- Reading

    /// A transaction that has locked one of the keys to write it may have taken effect elsewhere,
    /// and its client may know that. So the old value is no answer.
    fn read(&self, keys: &[Key]) -> Answer {
        let writer = keys.iter().find_map(|key| self.locks.writer(key));
        if let Some(writer) = writer.filter(|_| keeps(self.broken, Rule::ReadsNoOldValues)) {
            return Answer::No(self.locked_by(writer));
        }
        let (mut found, mut room) = (Vec::new(), ANSWER_ROOM);
        for key in keys {
            let value = self.values.get(key);
            let len = value.map_or(0, |(_, value)| value.len()) + 10;
            if len > room && !found.is_empty() {
                break;
            }
            room = room.saturating_sub(len);
            found.push(Found {
                version: value.map_or(0, |(version, _)| *version),
                value: value.map(|(_, value)| value.clone()),
            });
        }
        Answer::Values(found)
    }

    fn locked_by(&self, client: u64) -> Refusal {
        let unfinished = self.clients.unfinished(client);
        unfinished.map_or(Refusal::Late, Refusal::Locked)
    }

    // ---- Votes

    /// Returns the vote on a transaction that the shard has seen before, or `None` for a new one.
    fn earlier_vote(&self, client: u64, number: u64) -> Option<Answer> {
        let Some(known) = self.clients.all.get(&client) else {
            return Some(Answer::No(Refusal::UnknownClient));
        };
        if number > known.number || !keeps(self.broken, Rule::PreparesOnce) {
            // The last one is finished, or its client doesn't follow the rules.
            let holds_locks = matches!(known.state, State::Prepared { .. });
            return holds_locks.then(|| Answer::No(self.locked_by(client)));
        }
        let voted_yes = number == known.number && known.state != State::Refused;
        Some(match voted_yes {
            true => Answer::Yes,
            false => Answer::No(Refusal::Late),
        })
    }

    /// Returns why a new transaction can't be executed now.
    fn objection(&self, work: &Work) -> Option<Refusal> {
        let version = |key| self.values.get(key).map_or(0, |(version, _)| *version);
        let changed = work.reads.iter().any(|(key, read)| version(key) != *read);
        if changed && keeps(self.broken, Rule::Validates) {
            return Some(Refusal::Changed);
        }
        if let Some(holder) = self.locks.conflict(work) {
            return Some(self.locked_by(holder));
        }
        let needed = self.stored + size(work);
        if needed > self.limits.bytes {
            return Some(Refusal::NoRoom);
        }
        if needed + self.reserved > self.limits.bytes {
            let holds = |state: &State| matches!(state, State::Prepared { .. });
            let oldest = self.clients.oldest(|client| holds(&client.state));
            return Some(oldest.map_or(Refusal::NoRoom, Refusal::Full));
        }
        None
    }

    fn commit(&mut self, client: u64, number: u64, work: Work) -> Answer {
        if let Some(vote) = self.earlier_vote(client, number) {
            return vote;
        }
        let objection = self.objection(&work);
        let state = match objection {
            None => State::Finished,
            Some(_) => State::Refused,
        };
        self.set_state(client, number, state);
        if objection.is_none() {
            self.apply(work);
        }
        objection.map_or(Answer::Yes, Answer::No)
    }

    fn prepare(&mut self, client: u64, transaction: Transaction, work: Work) -> Answer {
        let number = transaction.number;
        if let Some(vote) = self.earlier_vote(client, number) {
            return vote;
        }
        if let Some(objection) = self.objection(&work) {
            self.set_state(client, number, State::Refused);
            return Answer::No(objection);
        }
        self.reserved += size(&work);
        self.lock(client, &work);
        let participants = transaction.participants;
        self.set_state(client, number, State::Prepared { participants, work });
        Answer::Yes
    }

    fn lock(&mut self, client: u64, work: &Work) {
        if !keeps(self.broken, Rule::HoldsLocks) {
            return;
        }
        match keeps(self.broken, Rule::LocksReads) {
            true => self.locks.lock(client, work),
            false => self.locks.lock(client, &work.without_reads()),
        }
    }

    fn set_state(&mut self, client: u64, number: u64, state: State) {
        let now = self.now;
        if let Some(known) = self.clients.get_mut(client) {
            known.number = number;
            known.state = state;
            known.used_at = now;
        }
    }

    // ---- The end of a transaction

    fn finish(&mut self, client: u64, number: u64, commit: bool) -> Answer {
        let Some(known) = self.clients.get_mut(client) else {
            return Answer::Done;
        };
        let is_it = known.number == number;
        let (participants, work) = match std::mem::replace(&mut known.state, State::Refused) {
            State::Prepared { participants, work } if is_it => (participants, work),
            other => {
                known.state = other;
                return Answer::Done;
            }
        };
        self.locks.unlock(client, &work);
        self.reserved -= size(&work);
        if commit {
            if keeps(self.broken, Rule::RemembersVote) {
                known.state = State::Committed { participants };
            }
            self.apply(work);
        }
        Answer::Done
    }

    /// Answers how the shard has voted, which nobody can change afterwards.
    fn resolve(&mut self, client: u64, number: u64) -> Answer {
        if let Some(vote) = self.earlier_vote(client, number) {
            return vote;
        }
        if keeps(self.broken, Rule::VotesWhenAsked) {
            self.set_state(client, number, State::Refused);
        }
        Answer::No(Refusal::Late)
    }

    fn forget(&mut self, client: u64, number: u64) -> Answer {
        if let Some(known) = self.clients.get_mut(client) {
            let is_it = known.number == number;
            if is_it && matches!(known.state, State::Committed { .. }) {
                known.state = State::Finished;
            }
        }
        Answer::Done
    }

    fn apply(&mut self, work: Work) {
        if keeps(self.broken, Rule::RaisesVersion) {
            self.version += 1;
        }
        let version = self.version.max(1);
        for (key, value) in work.writes {
            self.stored += size_of(&key, &value);
            if let Some((_, old)) = self.values.insert(key.clone(), (version, value)) {
                self.stored -= size_of(&key, &old);
            }
        }
    }
}

/// Returns the bytes that a key with its value takes at most.
pub(crate) fn size_of(key: &[u8], value: &[u8]) -> u64 {
    OVERHEAD + (key.len() + value.len()) as u64
}

/// Returns the bytes that the writes take at most.
pub(crate) fn size(work: &Work) -> u64 {
    work.writes.iter().map(|(k, v)| size_of(k, v)).sum()
}
