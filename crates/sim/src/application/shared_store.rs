// SPDX-License-Identifier: Apache-2.0
//! A store that a process leaves behind, and what the world does to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use paxos::wire::value::Vector;
use paxos::{Epoch, Instance};

use super::{Execution, Kill, Kv, State, Store, contents, position_in};

/// The store, shared by the application (which is in the worker) and the harness.
#[derive(Clone, Debug)]
pub struct SharedStore(pub(super) Arc<Mutex<Store>>);

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
    pub(super) fn lock(&self) -> MutexGuard<'_, Store> {
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

    /// Shows executions only once they are committed from now on, since they may be taken back
    /// before.
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

    /// Makes the mistake of not storing passed commands over several partitions before the process
    /// continues.
    pub fn delay_applied(&self) {
        self.lock().delays_applied = true;
    }

    /// Returns where parts of commands over several partitions were taken back since the last call,
    /// on which siblings rely.
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

    /// Kills the process at its `calls`-th call of the application from now, which is in the middle
    /// of a worker's step.
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

    /// Makes the mistake of losing parts of incomplete commands, except for those since the last
    /// fold.
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

    /// Makes the mistake that the next process counts everything that this one has executed as
    /// stored.
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
