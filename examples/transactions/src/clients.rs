// SPDX-License-Identifier: Apache-2.0
//! What a shard remembers of each client: its last transaction. A client begins another one only
//! when the last one is finished in all shards, so nobody asks for an earlier one.

use std::collections::BTreeMap;

use crate::wire::{Participant, Transaction, Unfinished, Work};

/// One client.
pub(crate) struct Client {
    /// The number of its last transaction; 0 if there was none.
    pub number: u64,
    pub state: State,
    /// The number of the command that used it last.
    pub used_at: u64,
}

/// How far a client's last transaction is in this shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// The shard voted no, or the transaction was cancelled, or there was none.
    Refused,
    /// The shard voted yes, and holds the locks.
    Prepared {
        participants: Vec<Participant>,
        work: Work,
    },
    /// The transaction took effect here. It may not be finished elsewhere, where somebody may need
    /// this shard's vote.
    Committed { participants: Vec<Participant> },
    /// The transaction took effect, and is finished everywhere.
    Finished,
}

impl Client {
    /// Returns the participants of a transaction that may not be finished everywhere.
    fn participants(&self) -> Option<&Vec<Participant>> {
        match &self.state {
            State::Prepared { participants, .. } | State::Committed { participants } => {
                Some(participants)
            }
            State::Refused | State::Finished => None,
        }
    }
}

/// The clients of a shard, by number. Numbers are never used again, so a command of a client that
/// was dropped is always recognized.
#[derive(Default)]
pub(crate) struct Clients {
    pub next: u64,
    pub all: BTreeMap<u64, Client>,
}

impl Clients {
    /// Adds a client. If there are `max` already, the one that was idle longest is dropped; if none
    /// is idle, the oldest transaction is returned.
    pub fn open(&mut self, max: usize, now: u64) -> Result<u64, Option<Unfinished>> {
        if self.all.len() >= max {
            match self.longest_idle() {
                Some(number) => drop(self.all.remove(&number)),
                None => return Err(self.oldest(|_| true)),
            }
        }
        self.next += 1;
        let client = Client {
            number: 0,
            state: State::Refused,
            used_at: now,
        };
        self.all.insert(self.next, client);
        Ok(self.next)
    }

    fn longest_idle(&self) -> Option<u64> {
        let idle = self.all.iter().filter(|(_, c)| c.participants().is_none());
        let longest = idle.min_by_key(|(_, client)| client.used_at);
        longest.map(|(number, _)| *number)
    }

    /// Returns the unfinished transaction that was used longest ago, among those of some clients.
    pub fn oldest(&self, of: impl Fn(&Client) -> bool) -> Option<Unfinished> {
        let unfinished = self.all.iter().filter(|(_, client)| of(client));
        let unfinished = unfinished.filter(|(_, client)| client.participants().is_some());
        let (number, _) = unfinished.min_by_key(|(_, client)| client.used_at)?;
        self.unfinished(*number)
    }

    /// Returns the transaction of a client that may not be finished everywhere.
    pub fn unfinished(&self, number: u64) -> Option<Unfinished> {
        let client = self.all.get(&number)?;
        let transaction = Transaction {
            number: client.number,
            participants: client.participants()?.clone(),
        };
        Some(Unfinished {
            client: number,
            transaction,
        })
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut Client> {
        self.all.get_mut(&number)
    }
}
