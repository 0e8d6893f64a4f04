// SPDX-License-Identifier: Apache-2.0
//! A client's side: it reads, and commits in two phases. It has no clock and no I/O.
//!
//! A driver carries commands to the shards and answers back:
//!
//! 1. Call [`begin`](Coordinator::begin), [`read`](Coordinator::read),
//!    [`write`](Coordinator::write) and [`commit`](Coordinator::commit), or
//!    [`resolve`](Coordinator::resolve) to finish another client's transaction.
//! 2. Send everything that [`take_outgoing`](Coordinator::take_outgoing) returns.
//! 3. Give each answer to [`answer`](Coordinator::answer), which says what has come of the call.
//!    Go on with 2.
//! 4. Where no answer comes, call [`lost`](Coordinator::lost): the command is sent again, which is
//!    harmless.
//! 5. Begin the next transaction once [`is_free`](Coordinator::is_free) says so: until then the
//!    last one may hold locks.

use std::collections::{BTreeMap, BTreeSet};

use crate::resolution::Resolution;
use crate::rule::{Rule, keeps};
use crate::wire::{
    Answer, Command, Found, Key, MAX_KEY, MAX_KEYS, MAX_PARTICIPANTS, MAX_VALUE, Participant,
    Refusal, Transaction, Unfinished, Value, Work,
};

/// A client that runs one transaction at a time.
pub struct Coordinator {
    shards: u16,
    /// The client's number at each shard that has given one.
    clients: BTreeMap<u16, u64>,
    /// The number of the last transaction.
    number: u64,
    reads: BTreeMap<Key, Found>,
    /// The number of answers from which these come. One answer shows one moment.
    answers: usize,
    writes: BTreeMap<Key, Value>,
    pub(crate) phase: Phase,
    /// Commands without an answer.
    asked: BTreeMap<u64, OpenCommand>,
    next_tag: u64,
    outgoing: Vec<Outgoing>,
    /// The rule that a test takes away; `None` everywhere else.
    pub(crate) broken: Option<Rule>,
}

struct OpenCommand {
    shard: u16,
    command: Command,
}

/// A command to be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// The name of the command, to be given back with the answer.
    pub tag: u64,
    /// The shard that it is for.
    pub shard: u16,
    /// Its bytes.
    pub command: Vec<u8>,
}

/// What has come of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The keys were read: see [`Coordinator::value`].
    Read,
    /// The transaction took effect in all its shards.
    Committed,
    /// The transaction takes effect in no shard.
    Aborted(Abort),
    /// The transaction took effect in all shards or in none, and nobody knows any more: a shard has
    /// dropped this client because many others came.
    InDoubt,
    /// The other client's transaction is finished.
    Resolved,
}

/// The reason why a transaction takes no effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Abort {
    /// Something has changed that it had read. Another attempt reads it again.
    Changed,
    /// Another transaction holds a lock. Its client will finish it, or has died.
    Locked(Transaction),
    /// A shard has no room until others are finished, of which this is the oldest.
    Full(Transaction),
    /// A shard has no room for more values.
    NoRoom,
    /// Somebody else has cancelled it.
    Cancelled,
    /// The transaction, a key or a value exceeds a limit of [`wire`](crate::wire).
    TooLarge,
}

pub(crate) enum Phase {
    Idle,
    Reading(Option<Abort>),
    Opening(Option<Abort>),
    Committing(Option<Event>),
    Preparing(Votes),
    /// The event was told, and shards are told, too.
    Ending,
    Resolving(Resolution),
}

pub(crate) struct Votes {
    transaction: Transaction,
    yes: Vec<Participant>,
    no: Option<Abort>,
    /// A shard doesn't know the client, so it may have voted and forgotten.
    doubt: bool,
}

impl Coordinator {
    /// Returns a client of so many shards. All clients must have the same number of shards.
    pub fn new(shards: u16) -> Coordinator {
        Coordinator {
            shards,
            clients: BTreeMap::new(),
            number: 0,
            reads: BTreeMap::new(),
            answers: 0,
            writes: BTreeMap::new(),
            phase: Phase::Idle,
            asked: BTreeMap::new(),
            next_tag: 0,
            outgoing: Vec::new(),
            broken: None,
        }
    }

    /// Returns the shard of a key.
    pub fn shard_of(&self, key: &[u8]) -> u16 {
        // FNV-1a: short, and the same for everyone.
        let hash = key.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        ((hash >> 32) % u64::from(self.shards.max(1))) as u16
    }

    /// Returns the number of shards.
    pub fn shards(&self) -> u16 {
        self.shards
    }

    /// Returns whether nothing is under way, so that another transaction may begin.
    pub fn is_free(&self) -> bool {
        matches!(self.phase, Phase::Idle)
    }

    /// Begins a transaction: forgets what the last one has read and written.
    pub fn begin(&mut self) {
        self.reads.clear();
        self.writes.clear();
        self.answers = 0;
    }

    /// Reads keys. The event comes at once if all are known already, or if a key is too long.
    pub fn read(&mut self, keys: &[&[u8]]) -> Option<Event> {
        if keys.iter().any(|key| key.len() > MAX_KEY) {
            return Some(Event::Aborted(Abort::TooLarge));
        }
        let mut by_shard: BTreeMap<u16, BTreeSet<Key>> = BTreeMap::new();
        for key in keys.iter().filter(|key| !self.reads.contains_key(**key)) {
            let shard = self.shard_of(key);
            by_shard.entry(shard).or_default().insert(key.to_vec());
        }
        if by_shard.is_empty() {
            return Some(Event::Read);
        }
        self.phase = Phase::Reading(None);
        for (shard, keys) in by_shard {
            let keys: Vec<Key> = keys.into_iter().collect();
            for keys in keys.chunks(MAX_KEYS) {
                let keys = keys.to_vec();
                self.ask(shard, Command::Read { keys });
            }
        }
        None
    }

    /// Returns the value of a key that the transaction has written or read.
    pub fn value(&self, key: &[u8]) -> Option<&[u8]> {
        let written = self.writes.get(key).map(Vec::as_slice);
        written.or_else(|| self.reads.get(key)?.value.as_deref())
    }

    /// Writes a value, which others see after the commit.
    pub fn write(&mut self, key: &[u8], value: &[u8]) {
        self.writes.insert(key.to_vec(), value.to_vec());
    }

    /// Commits the transaction. The event comes at once if the shards needn't be asked.
    pub fn commit(&mut self) -> Option<Event> {
        let shows_one_moment = self.writes.is_empty() && self.answers <= 1;
        if shows_one_moment {
            return Some(Event::Committed);
        }
        let work = self.work_by_shard();
        let fits = |work: &Work| work.reads.len() <= MAX_KEYS && work.writes.len() <= MAX_KEYS;
        let fit = |(key, value): (&Key, &Value)| key.len() <= MAX_KEY && value.len() <= MAX_VALUE;
        if work.len() > MAX_PARTICIPANTS || !work.values().all(fits) || !self.writes.iter().all(fit)
        {
            return Some(Event::Aborted(Abort::TooLarge));
        }
        let unknown = work
            .keys()
            .filter(|shard| !self.clients.contains_key(shard));
        let unknown: Vec<u16> = unknown.copied().collect();
        if unknown.is_empty() {
            self.ask_for_votes(work);
        } else {
            self.phase = Phase::Opening(None);
            unknown
                .iter()
                .for_each(|shard| self.ask(*shard, Command::Open));
        }
        None
    }

    /// Finishes another client's transaction, as its shards have voted. A shard that hasn't voted
    /// votes no now.
    pub fn resolve(&mut self, transaction: &Transaction) {
        self.start_resolution(transaction.clone(), false);
    }

    /// Takes the commands that are to be sent.
    pub fn take_outgoing(&mut self) -> Vec<Outgoing> {
        std::mem::take(&mut self.outgoing)
    }

    /// Sends a command again whose answer doesn't come. It may take effect twice.
    pub fn lost(&mut self, tag: u64) {
        if let Some(asked) = self.asked.remove(&tag) {
            self.ask(asked.shard, asked.command);
        }
    }

    /// Takes the answer to a command. Answers that nobody waits for any more are ignored.
    pub fn answer(&mut self, tag: u64, bytes: &[u8]) -> Option<Event> {
        let asked = self.asked.remove(&tag)?;
        let answer = Answer::parse(bytes).unwrap_or(Answer::Malformed);
        self.take(asked, answer);
        match self.asked.is_empty() {
            true => self.complete(),
            false => None,
        }
    }

    pub(crate) fn ask(&mut self, shard: u16, command: Command) {
        self.next_tag += 1;
        self.outgoing.push(Outgoing {
            tag: self.next_tag,
            shard,
            command: command.encode(),
        });
        self.asked
            .insert(self.next_tag, OpenCommand { shard, command });
    }

    fn work_by_shard(&self) -> BTreeMap<u16, Work> {
        let mut by_shard: BTreeMap<u16, Work> = BTreeMap::new();
        for (key, found) in &self.reads {
            let work = by_shard.entry(self.shard_of(key)).or_default();
            work.reads.push((key.clone(), found.version));
        }
        for (key, value) in &self.writes {
            let work = by_shard.entry(self.shard_of(key)).or_default();
            work.writes.push((key.clone(), value.clone()));
        }
        by_shard
    }

    fn ask_for_votes(&mut self, work: BTreeMap<u16, Work>) {
        self.number += 1;
        let number = self.number;
        let participants: Vec<Participant> = work
            .keys()
            .filter_map(|shard| {
                let client = *self.clients.get(shard)?;
                Some(Participant {
                    shard: *shard,
                    client,
                })
            })
            .collect();
        let alone = participants.len() == 1;
        let transaction = Transaction {
            number,
            participants,
        };
        for (at, work) in transaction
            .participants
            .clone()
            .iter()
            .zip(work.into_values())
        {
            let client = at.client;
            let command = match alone {
                true => Command::Commit {
                    client,
                    number,
                    work,
                },
                false => Command::Prepare {
                    client,
                    transaction: transaction.clone(),
                    work,
                },
            };
            self.ask(at.shard, command);
        }
        self.phase = match alone {
            true => Phase::Committing(None),
            false => Phase::Preparing(Votes {
                transaction,
                yes: Vec::new(),
                no: None,
                doubt: false,
            }),
        };
    }

    // ---- Answers

    fn take(&mut self, asked: OpenCommand, answer: Answer) {
        let shard = asked.shard;
        if answer == Answer::No(Refusal::UnknownClient) && !self.is_resolving() {
            self.clients.remove(&shard);
        }
        match (&mut self.phase, answer) {
            (Phase::Reading(_), answer) => self.take_values(asked, answer),
            (Phase::Opening(_), Answer::Opened(client)) => {
                self.clients.insert(shard, client);
            }
            (Phase::Opening(no), answer) => *no = Some(reason(shard, answer)),
            (Phase::Committing(event), answer) => {
                *event = Some(match answer {
                    Answer::Yes => Event::Committed,
                    Answer::No(Refusal::UnknownClient) => Event::InDoubt,
                    answer => Event::Aborted(reason(shard, answer)),
                });
            }
            (Phase::Preparing(votes), answer) => votes.take(shard, answer),
            (Phase::Resolving(resolution), answer) => resolution.take(answer),
            (Phase::Idle | Phase::Ending, _) => {}
        }
    }

    fn take_values(&mut self, asked: OpenCommand, answer: Answer) {
        let (Command::Read { mut keys }, Answer::Values(found)) = (asked.command, answer.clone())
        else {
            self.phase = Phase::Reading(Some(reason(asked.shard, answer)));
            return;
        };
        if found.is_empty() || found.len() > keys.len() {
            self.phase = Phase::Reading(Some(Abort::Cancelled));
            return;
        }
        self.answers += 1;
        let rest = keys.split_off(found.len());
        self.reads.extend(keys.into_iter().zip(found));
        if !rest.is_empty() {
            self.ask(asked.shard, Command::Read { keys: rest });
        }
    }

    /// Goes on when all answers of a phase are there.
    fn complete(&mut self) -> Option<Event> {
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Idle | Phase::Ending => None,
            Phase::Reading(None) => Some(Event::Read),
            Phase::Reading(Some(why)) | Phase::Opening(Some(why)) => Some(Event::Aborted(why)),
            Phase::Opening(None) => {
                self.ask_for_votes(self.work_by_shard());
                None
            }
            Phase::Committing(event) => event,
            Phase::Preparing(votes) => self.count(votes),
            Phase::Resolving(resolution) => self.go_on(resolution),
        }
    }

    /// Decides as all shards have voted, and tells them.
    fn count(&mut self, votes: Votes) -> Option<Event> {
        let enough = match keeps(self.broken, Rule::CountsAllVotes) {
            true => votes.transaction.participants.len(),
            false => 1,
        };
        let commit = votes.yes.len() >= enough;
        if !commit && votes.doubt {
            self.start_resolution(votes.transaction, true);
            return None;
        }
        for at in &votes.yes {
            let command = Command::Finish {
                client: at.client,
                number: votes.transaction.number,
                commit,
            };
            self.ask(at.shard, command);
        }
        if !votes.yes.is_empty() {
            self.phase = Phase::Ending;
        }
        Some(match commit {
            true => Event::Committed,
            false => Event::Aborted(votes.no.unwrap_or(Abort::Cancelled)),
        })
    }
}

impl Votes {
    fn take(&mut self, shard: u16, answer: Answer) {
        let participants = self.transaction.participants.iter();
        let at = participants.copied().find(|at| at.shard == shard);
        match (answer, at) {
            (Answer::Yes, Some(at)) => self.yes.push(at),
            (Answer::No(Refusal::UnknownClient), _) => self.doubt = true,
            (answer, _) => self.no = Some(reason(shard, answer)),
        }
    }
}

/// Returns why a shard that gave this answer does nothing.
fn reason(shard: u16, answer: Answer) -> Abort {
    match answer {
        Answer::No(Refusal::Changed) => Abort::Changed,
        Answer::No(Refusal::Locked(by)) => Abort::Locked(named(shard, by)),
        Answer::No(Refusal::Full(oldest)) => Abort::Full(named(shard, oldest)),
        Answer::No(Refusal::NoRoom) => Abort::NoRoom,
        _ => Abort::Cancelled,
    }
}

/// Returns the transaction with the shard that named it among its participants, as which only a
/// client that breaks the rules doesn't name it itself.
fn named(shard: u16, by: Unfinished) -> Transaction {
    let mut transaction = by.transaction;
    let client = by.client;
    transaction.participants.retain(|at| at.shard != shard);
    transaction.participants.push(Participant { shard, client });
    transaction.participants.sort_unstable();
    transaction
}
