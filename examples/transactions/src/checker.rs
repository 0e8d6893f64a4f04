// SPDX-License-Identifier: Apache-2.0
//! Says whether a history is strictly serializable: whether there is one order of all transactions
//! that explains what they read, in which none comes before another one that had ended when it
//! began.
//!
//! Lists show their own order, so the order of transactions has to obey these edges, and a history
//! is anomalous where they form a cycle:
//!
//! - *write-write*: from the transaction that appended a number to the one that appended the next
//! - *write-read*: from the transaction that appended the last number that somebody read to that
//!   reader
//! - *read-write*: from a reader to the transaction that appended the next number
//! - *real time*: from a transaction that had ended to one that began later
//!
//! The names of anomalies are those of Adya's thesis (1999); the method is that of Kingsbury and
//! Alvaro (*Elle*, 2020).

use std::collections::{BTreeMap, BTreeSet};

use crate::cycles::{Edge, Graph, find};
use crate::history::{ClientOutcome, Entry, Operation};

/// The kinds of anomalies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum AnomalyKind {
    /// A transaction read something that nobody has written.
    Unwritten,
    /// A transaction didn't read what it had written or read before.
    Internal,
    /// A number is twice in a list.
    Duplicate,
    /// Two transactions read lists of which neither begins with the other.
    Disagreement,
    /// G1a: a transaction read what an aborted one had written.
    AbortedRead,
    /// G1b: a transaction read what another one overwrote later.
    IntermediateRead,
    /// A committed number isn't in the list any more.
    LostAppend,
    /// G0: a cycle of write-write edges.
    DirtyWrite,
    /// G1c: a cycle of write-write and write-read edges.
    CircularInformation,
    /// A cycle with one read-write edge between transactions that wrote what they both read.
    LostUpdate,
    /// G-single: a cycle with one read-write edge.
    SingleAntiDependency,
    /// G2: a cycle with several read-write edges.
    AntiDependency,
    /// Any cycle with an edge of real time, without which there is none.
    RealTime,
}

/// An anomaly.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Anomaly {
    /// Its kind.
    pub kind: AnomalyKind,
    /// The transactions in the history that show it; a cycle in its order.
    pub transactions: Vec<usize>,
    /// The edges of the cycle, from each transaction to the next.
    pub edges: Vec<Edge>,
}

/// Returns an anomaly of each kind that the history shows; nothing if it is strictly serializable.
/// No number may be appended twice.
pub fn check(history: &[Entry]) -> Vec<Anomaly> {
    let lists = Lists::of(history);
    let mut found = Vec::new();
    lists.check_reads(&mut found);
    if found.is_empty() {
        // The order of the lists is known, and edges follow from it.
        let graph = lists.graph();
        let cycle = find(&graph);
        found.extend(cycle.map(|(kind, transactions, edges)| Anomaly {
            kind: lists.refine(kind, &transactions, &edges),
            transactions,
            edges,
        }));
    }
    found.sort_by_key(|anomaly| anomaly.kind);
    found.dedup_by_key(|anomaly| anomaly.kind);
    found
}

struct Lists<'a> {
    history: &'a [Entry],
    /// Who appended a number.
    writers: BTreeMap<u64, usize>,
    /// The longest list that was read of each key.
    longest: BTreeMap<u64, &'a [u64]>,
    /// Transactions that took effect, whatever their clients were told.
    effective: BTreeSet<usize>,
}

impl<'a> Lists<'a> {
    fn of(history: &'a [Entry]) -> Lists<'a> {
        let mut writers = BTreeMap::new();
        let mut longest: BTreeMap<u64, &[u64]> = BTreeMap::new();
        for (at, entry) in history.iter().enumerate() {
            for operation in &entry.operations {
                match operation {
                    Operation::Append(_, number) => drop(writers.insert(*number, at)),
                    Operation::Read(key, list) if entry.told == ClientOutcome::Committed => {
                        let known = longest.entry(*key).or_default();
                        // What a transaction appends itself isn't read by others yet.
                        if list.len() > known.len() {
                            *known = list;
                        }
                    }
                    Operation::Read(..) => {}
                }
            }
        }
        let committed = history.iter().enumerate();
        let committed = committed.filter(|(_, entry)| entry.told == ClientOutcome::Committed);
        let mut effective: BTreeSet<usize> = committed.map(|(at, _)| at).collect();
        let seen = longest.values().flat_map(|list| list.iter());
        let seen = seen.filter_map(|number| writers.get(number));
        effective.extend(seen.filter(|at| history[**at].told == ClientOutcome::Nothing));
        Lists {
            history,
            writers,
            longest,
            effective,
        }
    }

    fn check_reads(&self, found: &mut Vec<Anomaly>) {
        for (at, entry) in self.history.iter().enumerate() {
            if entry.told != ClientOutcome::Committed {
                continue;
            }
            for (position, operation) in entry.operations.iter().enumerate() {
                if let Operation::Read(key, list) = operation {
                    let before = &entry.operations[..position];
                    self.check_read(at, before, (*key, list), found);
                }
            }
        }
        for (key, longest) in &self.longest {
            self.check_order(*key, longest, found);
        }
    }

    /// Checks one list that a transaction read.
    fn check_read(
        &self,
        at: usize,
        before: &[Operation],
        (key, list): (u64, &[u64]),
        found: &mut Vec<Anomaly>,
    ) {
        let mut report = |kind, others: Option<usize>| {
            found.push(Anomaly {
                kind,
                transactions: [at].into_iter().chain(others).collect(),
                edges: Vec::new(),
            });
        };
        if !continues(before, key, list) {
            report(AnomalyKind::Internal, None);
        }
        if list.iter().collect::<BTreeSet<_>>().len() < list.len() {
            report(AnomalyKind::Duplicate, None);
        }
        for number in list {
            match self.writers.get(number) {
                None => report(AnomalyKind::Unwritten, None),
                Some(writer) if self.history[*writer].told == ClientOutcome::Aborted => {
                    report(AnomalyKind::AbortedRead, Some(*writer));
                }
                Some(_) => {}
            }
        }
        let last = list.last().and_then(|number| self.writers.get(number));
        if let Some(writer) = last.copied().filter(|writer| *writer != at) {
            let final_one = self.history[writer].appends_to(key).last();
            if final_one != list.last().copied() {
                report(AnomalyKind::IntermediateRead, Some(writer));
            }
        }
    }

    /// Checks that all lists of a key are beginnings of the longest one, and that nothing is lost
    /// from it.
    fn check_order(&self, key: u64, longest: &[u64], found: &mut Vec<Anomaly>) {
        for (at, entry) in self.history.iter().enumerate() {
            for operation in &entry.operations {
                let Operation::Read(of, list) = operation else {
                    continue;
                };
                let counts = *of == key && entry.told == ClientOutcome::Committed;
                if counts && !longest.starts_with(list) {
                    found.push(Anomaly {
                        kind: AnomalyKind::Disagreement,
                        transactions: vec![at],
                        edges: Vec::new(),
                    });
                }
            }
            if self.effective.contains(&at) {
                let positions = entry.appends_to(key).map(|number| place(longest, number));
                let positions: Vec<Option<usize>> = positions.collect();
                // All or none of them are there.
                if positions.contains(&None) && positions.iter().any(Option::is_some) {
                    found.push(Anomaly {
                        kind: AnomalyKind::LostAppend,
                        transactions: vec![at],
                        edges: Vec::new(),
                    });
                }
            }
        }
    }

    // ---- Edges

    fn graph(&self) -> Graph {
        let mut graph = Graph::new(self.history.len());
        for (key, longest) in &self.longest {
            let writers: Vec<usize> = longest.iter().map(|n| self.writers[n]).collect();
            for pair in writers.windows(2) {
                graph.add(pair[0], pair[1], Edge::WriteWrite);
            }
            // Numbers that nobody has read follow all that were.
            let unread = self.unread(*key, longest);
            for next in &unread {
                if let Some(last) = writers.last() {
                    graph.add(*last, *next, Edge::WriteWrite);
                }
            }
            self.add_reads(*key, &writers, &unread, &mut graph);
        }
        let times = self.effective.iter().map(|at| {
            let entry = &self.history[*at];
            let ended = entry.told == ClientOutcome::Committed;
            (*at, entry.begin, ended.then_some(entry.end))
        });
        graph.add_real_time(times);
        graph
    }

    fn unread(&self, key: u64, longest: &[u64]) -> Vec<usize> {
        let effective = self.effective.iter().copied();
        let misses = |at: &usize| {
            let first = self.history[*at].appends_to(key).next();
            first.is_some_and(|number| !longest.contains(&number))
        };
        effective.filter(misses).collect()
    }

    fn add_reads(&self, key: u64, writers: &[usize], unread: &[usize], graph: &mut Graph) {
        for at in &self.effective {
            let entry = &self.history[*at];
            if entry.told != ClientOutcome::Committed {
                continue;
            }
            for operation in &entry.operations {
                let Operation::Read(of, list) = operation else {
                    continue;
                };
                if *of != key {
                    continue;
                }
                // What the transaction itself appended isn't what it read of others.
                let own = |number: &&u64| self.writers[*number] == *at;
                let len = list.len() - list.iter().rev().take_while(own).count();
                if let Some(writer) = len.checked_sub(1).map(|last| writers[last]) {
                    graph.add(writer, *at, Edge::WriteRead);
                }
                match writers.get(len) {
                    Some(next) => graph.add(*at, *next, Edge::ReadWrite),
                    None => unread
                        .iter()
                        .for_each(|next| graph.add(*at, *next, Edge::ReadWrite)),
                }
            }
        }
    }

    /// Tells an update that was lost from other cycles with one read-write edge.
    fn refine(&self, kind: AnomalyKind, transactions: &[usize], edges: &[Edge]) -> AnomalyKind {
        let updates = |at: &usize| {
            let entry = &self.history[*at];
            let read = entry.operations.iter().filter_map(|each| match each {
                Operation::Read(key, _) => Some(*key),
                Operation::Append(..) => None,
            });
            read.filter(|key| entry.appends_to(*key).next().is_some())
                .collect::<BTreeSet<u64>>()
        };
        let is_pair = transactions.len() == 2 && edges.contains(&Edge::WriteWrite);
        match kind {
            AnomalyKind::SingleAntiDependency if is_pair => {
                let (one, other) = (updates(&transactions[0]), updates(&transactions[1]));
                match one.is_disjoint(&other) {
                    true => kind,
                    false => AnomalyKind::LostUpdate,
                }
            }
            _ => kind,
        }
    }
}

fn place(list: &[u64], number: u64) -> Option<usize> {
    list.iter().position(|each| *each == number)
}

/// Returns whether a list is what a transaction must see that did this before.
fn continues(before: &[Operation], key: u64, list: &[u64]) -> bool {
    let last_read = before.iter().rposition(|each| match each {
        Operation::Read(of, _) => *of == key,
        Operation::Append(..) => false,
    });
    let appended = |operations: &[Operation]| -> Vec<u64> {
        let appended = operations.iter().filter_map(|each| match each {
            Operation::Append(to, number) if *to == key => Some(*number),
            _ => None,
        });
        appended.collect()
    };
    match last_read.map(|at| (&before[at], &before[at..])) {
        Some((Operation::Read(_, earlier), since)) => {
            let expected = [earlier.clone(), appended(since)].concat();
            list == expected
        }
        _ => list.ends_with(&appended(before)),
    }
}
