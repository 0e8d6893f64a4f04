// SPDX-License-Identifier: Apache-2.0
//! What the front end knows of the Redis servers, where Redis itself is replicated: their commands
//! are those that their own COMMAND describes, and their answers are passed on as they are.
//!
//! Commands that concern the connection are answered here, as for every other store. All others go
//! to the server of one partition.

use std::cell::Cell;

use apps::redis::{Catalogue, Command, Fingerprint, News, Seen, Spec, Stamp, Value, put_query};
use paxos::{NodeId, PartitionId};

use crate::partitions::MAX_PARTITIONS;

/// A read without the log sees the time of the last executed command. If that time is older than
/// this, the read goes through the log, which moves the clock.
const FRESH_MS: u64 = 100;
/// Once the time is as old as this, a single read goes through the log and moves the clock for all
/// others. If they all waited for the age above, they would all go through the log until the first
/// of them is executed.
const RENEW_MS: u64 = 50;

/// Returns what time most nodes have, in milliseconds since 1970, or nothing while that isn't known
/// yet.
pub type ClusterTime = dyn Fn() -> Option<u64> + Send;

/// A replica of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// The replica's node.
    pub node: NodeId,
    /// All replicas of the group, ascending.
    pub all: Vec<NodeId>,
}

/// The front end's knowledge of the Redis servers.
pub struct Native {
    catalogue: Catalogue,
    /// What this replica's servers are.
    fingerprint: Fingerprint,
    seen: Seen,
    renewals: Renewals,
    news: News,
    member: Member,
    clock: Box<ClusterTime>,
    /// The most bytes of memory that the servers may have together before commands that need more
    /// are refused.
    max_memory: Option<u64>,
    /// The time that most nodes had when it was last looked at, once that is known.
    now_ms: Cell<Option<u64>>,
}

impl Native {
    /// Creates the knowledge of servers that have these commands and are what the fingerprint says.
    /// `seen` and `news` are what the servers show, and `clock` tells what time most nodes have.
    pub fn new(
        (catalogue, fingerprint): (Catalogue, Fingerprint),
        seen: Seen,
        news: News,
        member: Member,
        clock: Box<ClusterTime>,
    ) -> Native {
        Native {
            catalogue,
            fingerprint,
            seen,
            renewals: Renewals::default(),
            news,
            member,
            clock,
            max_memory: None,
            now_ms: Cell::new(None),
        }
    }

    /// Lets the servers have this many bytes of memory together.
    pub fn with_max_memory(self, max_memory: Option<u64>) -> Native {
        Native { max_memory, ..self }
    }

    pub(crate) fn max_memory(&self) -> Option<u64> {
        self.max_memory
    }

    pub(crate) fn news(&self) -> &News {
        &self.news
    }

    /// Returns the process ids of the servers.
    pub(crate) fn processes(&self) -> impl Iterator<Item = u32> {
        self.seen.processes()
    }

    /// Returns the names of the servers' commands.
    #[cfg(test)]
    pub(crate) fn names(&self) -> Vec<String> {
        let all = self.catalogue.specs();
        all.map(|spec| spec.name.clone()).collect()
    }

    /// Returns the command, if there is such a one and it takes this many arguments.
    pub(crate) fn find<A: AsRef<[u8]>>(&self, args: &[A]) -> Option<&Spec> {
        let args: Vec<&[u8]> = args.iter().map(AsRef::as_ref).collect();
        self.catalogue.find(&args).ok()
    }

    /// Returns the servers' command of this name, if there is one.
    pub(crate) fn named(&self, name: &[u8]) -> Option<&Spec> {
        self.catalogue.named(name)
    }

    /// Reads the clock; stamps show this time until the next call.
    pub(crate) fn look_at_clock(&self) {
        self.now_ms.set((self.clock)());
    }

    pub(crate) fn stamp(&self) -> Stamp {
        Stamp {
            node: self.member.node,
            ms: self.now_ms.get().unwrap_or(0),
        }
    }

    /// Returns the command that tells the group which server this replica has.
    pub(crate) fn server_report(&self) -> Vec<u8> {
        let fingerprint = self.fingerprint.to_bytes();
        let mut bytes = Vec::new();
        Command::Server {
            node: self.member.node,
            members: self.member.all.clone(),
            fingerprint: &fingerprint,
        }
        .encode(&mut bytes);
        bytes
    }

    /// Returns a report of the clock with at most `most` bytes, and with a check if other replicas
    /// can answer it.
    pub(crate) fn clock_report(&self, pid: PartitionId, voices: u8, most: usize) -> Vec<u8> {
        let has_others = self.member.all.len() > 1;
        let clock = (self.stamp(), voices);
        self.seen.report(pid, clock, has_others, most)
    }

    /// Returns whether it is known what time most nodes have. Until then nothing should be stamped.
    pub(crate) fn knows_time(&self) -> bool {
        self.now_ms.get().is_some()
    }

    /// Returns the servers' commands.
    pub(crate) fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// Returns true if a read may go without the log, judged by the age of the time that it would
    /// see.
    pub(crate) fn is_fresh(&self, pid: PartitionId) -> bool {
        let age = self.seen.age_ms(pid);
        age < RENEW_MS || age <= FRESH_MS && !self.renewals.take(pid, self.seen.now_ms())
    }

    /// Returns what the servers show of the group's time.
    pub(crate) fn seen(&self) -> &Seen {
        &self.seen
    }
}

/// When a read was last sent through the log to move the clock, for each partition.
struct Renewals([Cell<u64>; MAX_PARTITIONS as usize]);

impl Default for Renewals {
    fn default() -> Renewals {
        Renewals([const { Cell::new(0) }; MAX_PARTITIONS as usize])
    }
}

impl Renewals {
    /// Returns true if this read is to move the clock, and notes so.
    fn take(&self, pid: PartitionId, now_ms: u64) -> bool {
        let last = &self.0[usize::from(pid)];
        let is_due = now_ms >= last.get() + RENEW_MS;
        if is_due {
            last.set(now_ms);
        }
        is_due
    }
}

/// Appends the command that asks how many keys a partition has.
pub(crate) fn count_keys(out: &mut Vec<u8>) {
    put_query(out, false, &[b"DBSIZE"]);
}

/// Returns the number of keys in the answer to that command.
pub(crate) fn keys_counted(answer: &[u8]) -> Option<u64> {
    let count = Value::parse(answer).ok()?.int()?;
    u64::try_from(count).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_read_moves_the_clock_of_a_partition_for_all_others() {
        let renewals = Renewals::default();
        let taken = [100, 101, 149, 150, 151].map(|ms| renewals.take(3, ms));
        assert_eq!(taken, [true, false, false, true, false]);
        assert!(renewals.take(4, 151));
    }
}
