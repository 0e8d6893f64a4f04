// SPDX-License-Identifier: Apache-2.0
//! The replicated program of the simulation: words that are set, counted, appended to and compared, on a simulated
//! store that distinguishes a killed process from a machine without power.
//!
//! Every command has its own number, and the program counts the commands that it has executed as part of its state. So
//! the [observer](Execution) can tell at which position of the common history a replica executed which command, without
//! looking into the replica.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use paxos::wire::value::Vector;
use paxos::{Epoch, Instance, PartitionId};
use replica::application::{Reader, RecordVisitor};
use replica::{Application, Checkpoint, Error, Part, Record, Restore, Snapshot};

use crate::linearizability::Op;
use crate::rng::mix;

/// A command as clients send it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command {
    /// The number of the command, unique in a run.
    pub id: u64,
    /// The key of the command.
    pub key: u64,
    /// The operation.
    pub op: Op,
}

impl Command {
    const LEN: usize = 33;

    /// Returns the command's bytes, followed by `padding` bytes that only this command has there.
    pub fn emit(&self, padding: usize) -> Vec<u8> {
        let (code, a, b) = match self.op {
            Op::Get => (0, 0, 0),
            Op::Set(to) => (1, to, 0),
            Op::Incr => (2, 0, 0),
            Op::Append(item) => (3, item, 0),
            Op::CompareAndSet(expected, to) => (4, expected, to),
        };
        let mut out = Vec::with_capacity(Self::LEN + padding);
        out.push(code);
        for word in [self.id, self.key, a, b] {
            out.extend_from_slice(&u64::to_be_bytes(word));
        }
        out.extend((0..padding).map(|at| self.padding(at)));
        out
    }

    fn padding(&self, at: usize) -> u8 {
        mix(self.id << 16 ^ at as u64) as u8
    }

    /// Parses a command, or returns `None` for anything else. A command that was put together of others' bytes has a
    /// number that none has.
    pub fn parse(bytes: &[u8]) -> Option<Command> {
        let word = |i: usize| Some(u64::from_be_bytes(bytes.get(i..i + 8)?.try_into().ok()?));
        let (id, key, a, b) = (word(1)?, word(9)?, word(17)?, word(25)?);
        let op = match bytes[0] {
            0 => Op::Get,
            1 => Op::Set(a),
            2 => Op::Incr,
            3 => Op::Append(a),
            4 => Op::CompareAndSet(a, b),
            _ => return None,
        };
        let command = Command { id, key, op };
        let padding = bytes[Self::LEN..].iter().enumerate();
        let is_own = padding
            .into_iter()
            .all(|(at, byte)| *byte == command.padding(at));
        Some(Command {
            id: if is_own { id } else { u64::MAX },
            ..command
        })
    }
}

/// Returns the number that stands for a command in decided values that contain only its last part.
pub fn last_part(client: u64, number: u64) -> u64 {
    1 << 63 | mix(client ^ mix(number)) >> 1
}

/// The operation of a command over several partitions. It has a key in each, and the result for each of these words
/// depends on all of them, so different moments would show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Span {
    /// Answers with all words, folded.
    Read,
    /// Folds all words and a number into each of them, and answers with the fold.
    Fold(u64),
}

impl Span {
    /// Returns the new words and the answer.
    pub fn apply(self, words: &[u64]) -> (Vec<u64>, u64) {
        let fold = |folded: u64, word: &u64| mix(folded ^ word);
        let answer = words.iter().fold(words.len() as u64, fold);
        match self {
            Span::Read => (words.to_vec(), answer),
            Span::Fold(item) => {
                let answer = mix(answer ^ item);
                let after = words.iter().map(|word| mix(word ^ answer.rotate_left(17)));
                (after.collect(), answer)
            }
        }
    }
}

/// A command over several partitions as clients send it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spanning {
    /// The number of the command, unique in a run.
    pub id: u64,
    /// The keys, by ascending partitions.
    pub keys: Vec<(PartitionId, u64)>,
    /// The operation.
    pub span: Span,
}

impl Spanning {
    const CODE: u8 = 9;

    /// Returns the command's bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = vec![Self::CODE];
        let item = match self.span {
            Span::Read => 0,
            Span::Fold(item) => item + 1,
        };
        let keys = self
            .keys
            .iter()
            .flat_map(|(pid, key)| [u64::from(*pid), *key]);
        for word in [self.id, item].into_iter().chain(keys) {
            out.extend_from_slice(&word.to_be_bytes());
        }
        out
    }

    /// Parses a command, or returns `None` for anything else.
    pub fn parse(bytes: &[u8]) -> Option<Spanning> {
        let mut words = words_of(bytes.strip_prefix(&[Self::CODE])?)?.into_iter();
        let (id, item) = (words.next()?, words.next()?);
        let mut keys = Vec::new();
        while let Some(pid) = words.next() {
            keys.push((pid as PartitionId, words.next()?));
        }
        let span = match item {
            0 => Span::Read,
            item => Span::Fold(item - 1),
        };
        Some(Spanning { id, keys, span })
    }
}

/// A key's word, read without a place in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    /// The number of commands executed before the read.
    pub position: u64,
    /// The word.
    pub word: u64,
}

impl Look {
    const CODE: u8 = 10;

    /// Returns the command that reads a key.
    pub fn at(key: u64) -> Vec<u8> {
        let mut out = vec![Self::CODE];
        out.extend_from_slice(&key.to_be_bytes());
        out
    }

    /// Returns the key if this is such a command.
    fn key(command: &[u8]) -> Option<u64> {
        let key = command.strip_prefix(&[Self::CODE])?.try_into().ok()?;
        Some(u64::from_be_bytes(key))
    }

    /// Parses an answer.
    pub fn parse(answer: &[u8]) -> Option<Look> {
        match words_of(answer)?[..] {
            [position, word] => Some(Look { position, word }),
            _ => None,
        }
    }
}

fn words_of(bytes: &[u8]) -> Option<Vec<u64>> {
    let words = bytes.chunks(8).map(|word| word.try_into().ok());
    words.map(|word| word.map(u64::from_be_bytes)).collect()
}

/// One executed command, from which the checkers learn about a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Execution {
    /// The instance of the command.
    pub inst: Instance,
    /// The number of commands executed before it in this replica's state.
    pub position: u64,
    /// The command.
    pub command: Command,
    /// The command's answer.
    pub answer: u64,
}

/// The time of a planned kill, counted in calls of the application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kill {
    Never,
    /// The process is killed at this many calls from now.
    In(u32),
    /// The process is dead, so nothing it does has an effect any more.
    Dead,
}

#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct State {
    words: BTreeMap<u64, u64>,
    records: BTreeMap<Vec<u8>, Vec<u8>>,
    executed: u64,
}

impl State {
    fn put(&mut self, record: &Record) {
        match &record.value {
            Some(value) => self.records.insert(record.key.clone(), value.clone()),
            None => self.records.remove(&record.key),
        };
    }

    fn next_instance(&self) -> Instance {
        let next = |(key, value): (&Vec<u8>, &Vec<u8>)| {
            let bytes = value[position_in(key)?].try_into();
            Some(Instance::from_be_bytes(bytes.expect("eight bytes")))
        };
        self.records.iter().filter_map(next).max().unwrap_or(0)
    }
}

/// The stored state of one worker's application, and the faults that the harness causes.
#[derive(Debug)]
pub struct Store {
    /// The state that survives the process.
    committed: State,
    /// The state that survives a power failure; `committed` differs from it only in the dirty keys.
    durable: State,
    dirty_words: Vec<u64>,
    dirty_records: Vec<Vec<u8>>,
    kill: Kill,
    /// The keys with commands for which the program dies.
    deadly: BTreeSet<u64>,
    full: bool,
    executions: Vec<Execution>,
    /// Executions that aren't committed, if they may be taken back.
    uncertain: Option<Vec<Execution>>,
    /// The largest number of such executions.
    ahead: u64,
    /// For a mutation, nothing is taken back.
    keeps: bool,
    /// The places where parts of commands over several partitions were applied since the last commit; `taken_back` has
    /// those that were taken back.
    applied: Vec<Instance>,
    taken_back: Vec<Instance>,
    /// For a mutation, a commit of such parts takes effect with the next one.
    delays_applied: bool,
    /// The number of commands executed by the process; the next field is the instance after the last one.
    executed: u64,
    executed_below: Instance,
    /// The records that the last commit replaced.
    undo: Vec<Record>,
    /// For a mutation, each commit takes effect one commit later than reported.
    late: Option<Option<Commit>>,
}

/// The contents of one commit.
#[derive(Debug)]
struct Commit {
    words: BTreeMap<u64, u64>,
    records: Vec<Record>,
    executed: u64,
}

/// The contents that a checkpoint will make durable.
struct Begun {
    words: Vec<(u64, u64)>,
    records: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    executed: u64,
}

/// The store, shared by the application (which is in the worker) and the harness.
#[derive(Clone, Debug)]
pub struct SharedStore(Arc<Mutex<Store>>);

impl Default for SharedStore {
    fn default() -> Self {
        SharedStore(Arc::new(Mutex::new(Store {
            committed: State::default(),
            durable: State::default(),
            dirty_words: Vec::new(),
            dirty_records: Vec::new(),
            kill: Kill::Never,
            deadly: BTreeSet::new(),
            full: false,
            executions: Vec::new(),
            uncertain: None,
            ahead: u64::MAX,
            keeps: false,
            applied: Vec::new(),
            taken_back: Vec::new(),
            delays_applied: false,
            executed: 0,
            executed_below: 0,
            undo: Vec::new(),
            late: None,
        })))
    }
}

impl SharedStore {
    fn lock(&self) -> MutexGuard<'_, Store> {
        self.0.lock().expect("no panic while the store is held")
    }

    /// Opens the application of a new process on this store.
    pub fn open(&self) -> Kv {
        let mut store = self.lock();
        store.kill = Kill::Never;
        let executed = store.committed.executed;
        store.executed = executed;
        store.uncertain.iter_mut().for_each(Vec::clear);
        store.applied.clear();
        drop(store);
        Kv {
            store: self.clone(),
            words: BTreeMap::new(),
            delayed: Vec::new(),
            executed,
            inst: 0,
            died: false,
            taken: Arc::default(),
        }
    }

    /// Shows executions only once they are committed from now on, since they may be taken back before.
    pub fn show_committed(&self) {
        self.lock().uncertain = Some(Vec::new());
    }

    /// Limits how many commands that may be taken back are executed, from the next process on.
    pub fn stay_close(&self, ahead: u64) {
        self.lock().ahead = ahead;
    }

    /// Makes the mistake of keeping executions that should be taken back.
    pub fn keep_uncommitted(&self) {
        self.lock().keeps = true;
    }

    /// Makes the mistake of not storing passed commands over several partitions before the process continues.
    pub fn delay_applied(&self) {
        self.lock().delays_applied = true;
    }

    /// Returns where parts of commands over several partitions were taken back since the last call, on which siblings
    /// rely.
    pub fn take_taken_back(&self) -> Vec<Instance> {
        std::mem::take(&mut self.lock().taken_back)
    }

    /// Lets the power fail: commits since the last checkpoint are lost.
    pub fn lose_power(&self) {
        let mut store = self.lock();
        store.committed = store.durable.clone();
        store.dirty_words.clear();
        store.dirty_records.clear();
    }

    /// Replaces the disk by an empty one.
    pub fn wipe(&self) {
        let mut store = self.lock();
        store.committed = State::default();
        store.durable = State::default();
        store.dirty_words.clear();
        store.dirty_records.clear();
    }

    /// Kills the process at its `calls`-th call of the application from now, which is in the middle of a worker's step.
    pub fn kill_in(&self, calls: u32) {
        self.lock().kill = Kill::In(calls);
    }

    /// Makes the program die from now on of each command for this key.
    pub fn die_of(&self, key: u64) {
        self.lock().deadly.insert(key);
    }

    /// Cancels a planned kill that hasn't happened.
    pub fn spare(&self) {
        let mut store = self.lock();
        if store.kill != Kill::Dead {
            store.kill = Kill::Never;
        }
    }

    /// Returns whether the planned kill has happened.
    pub fn killed(&self) -> bool {
        self.lock().kill == Kill::Dead
    }

    /// Makes writes fail from now on, or succeed again.
    pub fn set_full(&self, full: bool) {
        self.lock().full = full;
    }

    /// Returns whether writes fail because the disk is full.
    pub fn is_full(&self) -> bool {
        self.lock().full
    }

    /// Makes the mistake of losing the recorded replies, except for those since the last fold.
    pub fn forget_replies(&self) {
        let records = &mut self.lock().committed.records;
        records.retain(|key, _| key.first() != Some(&b'r'));
    }

    /// Makes the mistake of losing parts of incomplete commands, except for those since the last fold.
    pub fn forget_parts(&self) {
        let records = &mut self.lock().committed.records;
        records.retain(|key, _| key.first() != Some(&b'q'));
    }

    /// Makes the mistake of losing the outcomes of commands over several partitions.
    pub fn forget_outcomes(&self) {
        let records = &mut self.lock().committed.records;
        records.retain(|key, _| key.first() != Some(&b'o'));
    }

    /// Makes the mistake of losing the outcomes of commands of epochs before the last marker.
    pub fn forget_overtaken_outcomes(&self) {
        let records = &mut self.lock().committed.records;
        let marker = |(key, value): (&Vec<u8>, &Vec<u8>)| {
            let bytes = value[position_in(key)?.end..].first_chunk()?;
            Some(Epoch::from_be_bytes(*bytes))
        };
        let last = records.iter().filter_map(marker).max();
        let overtaken =
            |outcome: &[u8]| Vector::parse(outcome).is_ok_and(|v| Some(v.round.epoch()) < last);
        records.retain(|key, value| key.first() != Some(&b'o') || !overtaken(value));
    }

    /// Makes the mistake of a last commit that stored the effects, but not the records.
    pub fn undo_records(&self) {
        let mut store = self.lock();
        for record in std::mem::take(&mut store.undo) {
            store.committed.put(&record);
        }
    }

    /// Makes the mistake that each commit takes effect with the next one from now on.
    pub fn commit_late(&self) {
        self.lock().late = Some(None);
    }

    /// Moves the executions since the last call to the end of `into`.
    pub fn drain_executions(&self, into: &mut Vec<Execution>) {
        into.append(&mut self.lock().executions);
    }

    /// Returns how many commands the durable state contains.
    pub fn durable_position(&self) -> u64 {
        self.lock().durable.executed
    }

    /// Returns the instance below which everything survives a power failure.
    pub fn durable_instance(&self) -> Instance {
        self.lock().durable.next_instance()
    }

    /// Returns the instance below which everything survives the process.
    pub fn committed_instance(&self) -> Instance {
        self.lock().committed.next_instance()
    }

    /// Returns how many commands the committed state contains.
    pub fn committed_position(&self) -> u64 {
        self.lock().committed.executed
    }

    /// Returns how many commands the process has executed, stored or not.
    pub fn executed_position(&self) -> u64 {
        self.lock().executed
    }

    /// Makes the mistake that the next process counts everything that this one has executed as stored.
    pub fn count_executed(&self) {
        let mut store = self.lock();
        let below = store.executed_below.to_be_bytes();
        let stored = store.committed.records.iter_mut();
        let stored = stored.filter_map(|(key, value)| Some(&mut value[position_in(key)?]));
        if let Some(last) = stored.max_by(|a, b| a.cmp(b)) {
            if last[..] < below[..] {
                last.copy_from_slice(&below);
            }
        }
    }

    /// Returns a digest of the committed contents, without the replica's records.
    pub fn contents(&self) -> u64 {
        let store = self.lock();
        contents(&store.committed.words, store.committed.executed)
    }
}

impl Store {
    /// Counts a call, and returns an error if the process is dead.
    fn alive(&mut self) -> Result<(), Error> {
        self.kill = match self.kill {
            Kill::In(0) | Kill::Dead => Kill::Dead,
            Kill::In(calls) => Kill::In(calls - 1),
            Kill::Never => Kill::Never,
        };
        if self.kill == Kill::Dead {
            return Err(Error("killed".into()));
        }
        Ok(())
    }

    /// Notes that the process has executed a command.
    fn note(&mut self, execution: Execution) {
        match &mut self.uncertain {
            Some(uncertain) => uncertain.push(execution),
            None => self.executions.push(execution),
        }
    }

    fn take(&mut self, commit: Commit) {
        for (key, word) in commit.words {
            self.committed.words.insert(key, word);
            self.dirty_words.push(key);
        }
        self.undo.clear();
        for record in commit.records {
            self.undo.push(Record {
                key: record.key.clone(),
                value: self.committed.records.get(&record.key).cloned(),
            });
            self.committed.put(&record);
            self.dirty_records.push(record.key);
        }
        self.committed.executed = commit.executed;
    }

    /// Returns the contents that a checkpoint which begins now makes durable. Commits during the checkpoint stay dirty.
    fn begin_checkpoint(&self) -> Begun {
        let word = |key| self.committed.words.get(key).copied().unwrap_or(0);
        let record = |key| self.committed.records.get(key).cloned();
        let words = self.dirty_words.iter();
        let records = self.dirty_records.iter();
        Begun {
            words: words.map(|key| (*key, word(key))).collect(),
            records: records.map(|key| (key.clone(), record(key))).collect(),
            executed: self.committed.executed,
        }
    }

    fn end_checkpoint(&mut self, begun: Begun) {
        self.dirty_words.drain(..begun.words.len());
        self.dirty_records.drain(..begun.records.len());
        self.durable.words.extend(begun.words);
        for (key, value) in begun.records {
            self.durable.put(&Record { key, value });
        }
        self.durable.executed = begun.executed;
    }

    fn writable(&self) -> Result<(), Error> {
        if self.full {
            return Err(Error("No space left on device".into()));
        }
        Ok(())
    }
}

/// Returns where a record has the position in the log, if it has one. The epoch of the last marker follows the
/// position.
fn position_in(key: &[u8]) -> Option<Range<usize>> {
    match key[0] {
        b'p' => Some(0..8),
        b'c' => Some(8..16),
        _ => None,
    }
}

/// Returns a digest of words and of the number of commands that made them.
pub fn contents(words: &BTreeMap<u64, u64>, executed: u64) -> u64 {
    let set = words.iter().filter(|(_, word)| **word != 0);
    let folded = set.fold(0, |h, (key, word)| mix(mix(h ^ key) ^ word));
    mix(folded ^ executed)
}

/// The program of one worker's process.
pub struct Kv {
    store: SharedStore,
    /// The words changed since the last commit.
    words: BTreeMap<u64, u64>,
    /// For a mutation, the records of commits that take effect with the next one.
    delayed: Vec<Record>,
    executed: u64,
    inst: Instance,
    /// The program has died of the last command that it was given.
    died: bool,
    /// Another replica's state, once it has been read.
    taken: Arc<Mutex<Option<State>>>,
}

impl Kv {
    /// Commits the current state.
    fn take_effect(&mut self) {
        let store = &mut *self.store.lock();
        let mut commit = Some(Commit {
            words: std::mem::take(&mut self.words),
            records: std::mem::take(&mut self.delayed),
            executed: self.executed,
        });
        if let Some(late) = &mut store.late {
            std::mem::swap(late, &mut commit);
        }
        if let Some(commit) = commit {
            store.take(commit);
        }
        store.applied.clear();
        if let Some(certain) = &mut store.uncertain {
            store.executions.append(certain);
        }
    }

    /// For a mutation, commits what a copy must count as committed.
    fn end_delay(&mut self) {
        if !self.delayed.is_empty() {
            self.take_effect();
        }
    }
}

impl Application for Kv {
    fn at_instance(&mut self, inst: Instance) {
        self.inst = inst;
    }

    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error> {
        let mut store = self.store.lock();
        store.alive()?;
        if let Some(key) = Look::key(command) {
            let word = self.words.get(&key);
            let word = word.or_else(|| store.committed.words.get(&key));
            let word = word.copied().unwrap_or(0);
            for shown in [self.executed, word] {
                reply.extend_from_slice(&shown.to_be_bytes());
            }
            return Ok(());
        }
        let Some(command) = Command::parse(command) else {
            reply.extend_from_slice(b"?");
            return Ok(());
        };
        if store.deadly.contains(&command.key) {
            self.died = true;
            return Err(Error("the program died of a command".into()));
        }
        let word = self
            .words
            .get(&command.key)
            .or_else(|| store.committed.words.get(&command.key));
        let (after, answer) = command.op.apply(word.copied().unwrap_or(0));
        self.words.insert(command.key, after);
        store.note(Execution {
            inst: self.inst,
            position: self.executed,
            command,
            answer,
        });
        self.executed += 1;
        store.executed = self.executed;
        store.executed_below = self.inst + 1;
        reply.extend_from_slice(&answer.to_be_bytes());
        Ok(())
    }

    fn died_of(&self) -> Option<usize> {
        self.died.then_some(0)
    }

    fn is_read(&self, command: &[u8]) -> bool {
        Look::key(command).is_some()
    }

    fn spans_partitions(&self) -> bool {
        true
    }

    /// Returns the words of all keys of the command, whichever partitions they belong to.
    fn prepare(&mut self, command: &[u8], prepared: &mut Vec<u8>) -> Result<(), Error> {
        let mut store = self.store.lock();
        store.alive()?;
        let keys = Spanning::parse(command).map_or(Vec::new(), |command| command.keys);
        for (_, key) in keys {
            let word = self
                .words
                .get(&key)
                .or_else(|| store.committed.words.get(&key));
            prepared.extend_from_slice(&word.copied().unwrap_or(0).to_be_bytes());
        }
        Ok(())
    }

    fn combine(
        &self,
        command: &[u8],
        parts: &mut [Part],
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let Some(command) = Spanning::parse(command) else {
            reply.extend_from_slice(b"?");
            return Ok(());
        };
        let own =
            |(at, part): (usize, &Part)| words_of(&part.prepared).and_then(|w| w.get(at).copied());
        let words: Option<Vec<u64>> = parts.iter().enumerate().map(own).collect();
        let words = words.ok_or_else(|| Error("something else was prepared".into()))?;
        let (after, answer) = command.span.apply(&words);
        for ((part, after), (_, key)) in parts.iter_mut().zip(after).zip(&command.keys) {
            for word in [command.id, *key, after, answer] {
                part.effect.extend_from_slice(&word.to_be_bytes());
            }
        }
        reply.extend_from_slice(&answer.to_be_bytes());
        Ok(())
    }

    fn apply(&mut self, effect: &[u8]) -> Result<(), Error> {
        let mut store = self.store.lock();
        store.alive()?;
        let words = words_of(effect).unwrap_or_default();
        let [id, key, after, answer] = words[..] else {
            return Err(Error("an effect that nobody combined".into()));
        };
        self.words.insert(key, after);
        store.applied.push(self.inst);
        let op = Op::Set(after);
        store.note(Execution {
            inst: self.inst,
            position: self.executed,
            command: Command { id, key, op },
            answer,
        });
        self.executed += 1;
        store.executed = self.executed;
        store.executed_below = self.inst + 1;
        Ok(())
    }

    fn commit(&mut self, records: &[Record]) -> Result<(), Error> {
        let mut store = self.store.lock();
        store.alive()?;
        store.writable()?;
        let delays = store.delays_applied && self.delayed.is_empty() && !store.applied.is_empty();
        drop(store);
        self.delayed.extend_from_slice(records);
        if !delays {
            self.take_effect();
        }
        Ok(())
    }

    fn can_discard(&self) -> bool {
        true
    }

    fn most_ahead(&self) -> u64 {
        self.store.lock().ahead
    }

    fn discard(&mut self) -> Result<(), Error> {
        let mut store = self.store.lock();
        store.alive()?;
        if store.keeps {
            return Ok(());
        }
        let store = &mut *store;
        store.taken_back.append(&mut store.applied);
        self.delayed.clear();
        self.words.clear();
        self.executed = store.committed.executed;
        store.executed = self.executed;
        store.uncertain.iter_mut().for_each(Vec::clear);
        Ok(())
    }

    fn records(&mut self, visit: &mut RecordVisitor<'_>) -> Result<(), Error> {
        let mut store = self.store.lock();
        store.alive()?;
        for (key, value) in &store.committed.records {
            visit(key, value);
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<Checkpoint, Error> {
        self.end_delay();
        let mut store = self.store.lock();
        store.alive()?;
        store.writable()?;
        let begun = store.begin_checkpoint();
        let store = self.store.clone();
        Ok(Box::new(move || {
            let mut store = store.lock();
            store.alive()?;
            store.writable()?;
            store.end_checkpoint(begun);
            Ok(())
        }))
    }

    fn snapshot(&mut self) -> Result<Box<dyn Snapshot>, Error> {
        self.end_delay();
        let mut store = self.store.lock();
        store.alive()?;
        Ok(Box::new(Copy(store.committed.clone())))
    }

    fn reader(&mut self) -> Result<Box<dyn Reader>, Error> {
        self.end_delay();
        let mut store = self.store.lock();
        store.alive()?;
        Ok(Box::new(Copy(store.committed.clone())))
    }

    fn begin_restore(&mut self) -> Result<Restore, Error> {
        self.taken = Arc::default();
        let taken = self.taken.clone();
        Ok(Box::new(move |from| {
            *taken.lock().expect("no panic") = Some(read_state(from)?);
            Ok(())
        }))
    }

    fn end_restore(&mut self) -> Result<(), Error> {
        let state = self.taken.lock().expect("no panic").take();
        let state = state.ok_or(Error("no state was read".into()))?;
        let mut store = self.store.lock();
        store.alive()?;
        store.writable()?;
        self.words.clear();
        self.delayed.clear();
        store.applied.clear();
        self.executed = state.executed;
        store.executed = state.executed;
        store.durable = state.clone();
        store.committed = state;
        store.dirty_words.clear();
        store.dirty_records.clear();
        Ok(())
    }

    fn digest(&mut self) -> Result<[u8; 32], Error> {
        let mut out = [0; 32];
        out[..8].copy_from_slice(&self.store.contents().to_be_bytes());
        Ok(out)
    }
}

struct Copy(State);

impl Snapshot for Copy {
    fn write_to(&mut self, out: &mut dyn io::Write) -> io::Result<()> {
        let state = &self.0;
        out.write_all(&state.executed.to_be_bytes())?;
        out.write_all(&(state.words.len() as u64).to_be_bytes())?;
        for (key, word) in &state.words {
            out.write_all(&key.to_be_bytes())?;
            out.write_all(&word.to_be_bytes())?;
        }
        for (key, value) in &state.records {
            for part in [key, value] {
                out.write_all(&(part.len() as u64).to_be_bytes())?;
                out.write_all(part)?;
            }
        }
        Ok(())
    }
}

/// Answers every question with the number of commands that made the state, and a digest of it.
impl Reader for Copy {
    fn read(&mut self, _command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error> {
        let State {
            words, executed, ..
        } = &self.0;
        reply.extend_from_slice(&executed.to_be_bytes());
        reply.extend_from_slice(&contents(words, *executed).to_be_bytes());
        Ok(())
    }
}

fn read_state(from: &mut dyn io::Read) -> Result<State, Error> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes)?;
    let mut rest = bytes.as_slice();
    let mut state = State {
        executed: take_word(&mut rest)?,
        ..State::default()
    };
    for _ in 0..take_word(&mut rest)? {
        let key = take_word(&mut rest)?;
        state.words.insert(key, take_word(&mut rest)?);
    }
    while !rest.is_empty() {
        let key = take_part(&mut rest)?;
        state.records.insert(key, take_part(&mut rest)?);
    }
    Ok(state)
}

fn take_word(rest: &mut &[u8]) -> Result<u64, Error> {
    let (word, after) = rest.split_first_chunk().ok_or(Error("truncated".into()))?;
    *rest = after;
    Ok(u64::from_be_bytes(*word))
}

fn take_part(rest: &mut &[u8]) -> Result<Vec<u8>, Error> {
    let len = take_word(rest)? as usize;
    let (part, after) = rest
        .split_at_checked(len)
        .ok_or(Error("truncated".into()))?;
    *rest = after;
    Ok(part.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn incr(app: &mut Kv, id: u64) -> u64 {
        let command = Command {
            id,
            key: 3,
            op: Op::Incr,
        };
        let mut reply = Vec::new();
        app.execute(&command.emit(5), &mut reply).unwrap();
        u64::from_be_bytes(reply.try_into().unwrap())
    }

    #[test]
    fn commands_survive_the_wire() {
        for op in [
            Op::Get,
            Op::Set(1),
            Op::Incr,
            Op::Append(2),
            Op::CompareAndSet(3, 4),
        ] {
            let command = Command { id: 9, key: 8, op };
            assert_eq!(Command::parse(&command.emit(7)), Some(command));
        }
        assert_eq!(Command::parse(b""), None);
        assert_eq!(Command::parse(&[9; 40]), None);
    }

    #[test]
    fn a_kill_loses_what_was_not_committed_and_power_what_was_not_checkpointed() {
        let store = SharedStore::default();
        let mut app = store.open();
        incr(&mut app, 1);
        app.commit(&[]).unwrap();
        app.checkpoint().unwrap()().unwrap();
        incr(&mut app, 2);
        app.commit(&[]).unwrap();
        assert_eq!(incr(&mut app, 3), 3);
        let mut app = store.open();
        assert_eq!(incr(&mut app, 3), 3, "the third was never committed");
        store.lose_power();
        let mut app = store.open();
        assert_eq!(incr(&mut app, 3), 2, "nor the second checkpointed");
    }

    #[test]
    fn a_planned_kill_makes_everything_after_it_void() {
        let store = SharedStore::default();
        let mut app = store.open();
        store.kill_in(1);
        incr(&mut app, 1);
        assert!(app.commit(&[]).is_err() && store.killed());
        assert_eq!(incr(&mut store.open(), 1), 1);
    }

    #[test]
    fn a_snapshot_carries_contents_and_records() {
        let (one, two) = (SharedStore::default(), SharedStore::default());
        let mut app = one.open();
        incr(&mut app, 1);
        let record = Record {
            key: b"next".to_vec(),
            value: Some(b"1".to_vec()),
        };
        app.commit(&[record]).unwrap();
        let mut bytes = Vec::new();
        app.snapshot().unwrap().write_to(&mut bytes).unwrap();
        let mut other = two.open();
        assert!(other.restore(&mut &bytes[..bytes.len() - 1]).is_err());
        other.restore(&mut bytes.as_slice()).unwrap();
        assert_eq!(one.contents(), two.contents());
        assert_eq!((two.durable_position(), two.committed_position()), (1, 1));
        let mut seen = Vec::new();
        other
            .records(&mut |k, v| seen.push((k.to_vec(), v.to_vec())))
            .unwrap();
        assert_eq!(seen, [(b"next".to_vec(), b"1".to_vec())]);
    }
}
