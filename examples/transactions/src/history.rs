// SPDX-License-Identifier: Apache-2.0
//! What clients saw: transactions that append numbers to lists, and read them. No number is
//! appended twice, so a list shows all transactions that have written it, in their order.

/// An operation of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Appends a number to the list of a key.
    Append(u64, u64),
    /// Reads the list of a key.
    Read(u64, Vec<u64>),
}

/// What the client of a transaction was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientOutcome {
    /// The transaction took effect.
    Committed,
    /// The transaction took no effect.
    Aborted,
    /// Nothing: the client has died, or doesn't know.
    Nothing,
}

/// A transaction as its client saw it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// When it began.
    pub begin: u64,
    /// When the client was told.
    pub end: u64,
    /// What the client was told.
    pub told: ClientOutcome,
    /// What it did, in this order.
    pub operations: Vec<Operation>,
}

impl Entry {
    /// Returns what the transaction appends to a key, in order.
    pub fn appends_to(&self, key: u64) -> impl Iterator<Item = u64> + '_ {
        self.operations.iter().filter_map(move |each| match each {
            Operation::Append(to, number) if *to == key => Some(*number),
            _ => None,
        })
    }
}
