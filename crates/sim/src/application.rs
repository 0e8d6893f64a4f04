// SPDX-License-Identifier: Apache-2.0
//! The replicated program of the simulation: words that are set, counted, appended to and compared,
//! on a simulated store that distinguishes a killed process from a machine without power.
//!
//! Every command has its own number, and the program counts the commands that it has executed as
//! part of its state. So the [observer](Execution) can tell at which position of the common history
//! a replica executed which command, without looking into the replica.

mod command;
mod shared_store;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use paxos::Instance;
use replica::application::{Reader, RecordVisitor};
use replica::{Application, Checkpoint, Error, Part, Record, Restore, Snapshot};

use crate::linearizability::Op;
use crate::rng::mix;
use command::words_of;
pub use command::{Command, Look, Span, Spanning, last_part};
pub use shared_store::SharedStore;

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
    /// The places where parts of commands over several partitions were applied since the last
    /// commit; `taken_back` has those that were taken back.
    applied: Vec<Instance>,
    taken_back: Vec<Instance>,
    /// For a mutation, a commit of such parts takes effect with the next one.
    delays_applied: bool,
    /// The number of commands executed by the process; the next field is the instance after the
    /// last one.
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

    /// Returns the contents that a checkpoint which begins now makes durable. Commits during the
    /// checkpoint stay dirty.
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

/// Returns where a record has the position in the log, if it has one. The epoch of the last marker
/// follows the position.
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
mod tests;
