// SPDX-License-Identifier: Apache-2.0
//! What the front end knows of the Redis servers, where Redis itself is replicated: their commands are those that their own
//! COMMAND describes, and their answers are passed on as they are.
//!
//! Commands that concern the connection are answered here, as for every other store. All others go to the server of one
//! partition.

use std::cell::Cell;

use apps::redis::{
    Catalogue, Command, Fingerprint, News, Seen, Spec, Stamp, Value, is_config_set, put_query,
};
use paxos::{NodeId, PartitionId};

use crate::call::{self, Call, Outcome};
use crate::commands::channels;
use crate::commands::redis::transaction::{exec, queue, watch};
use crate::commands::redis::{command, config_set, serve, wait_for_replicas};
use crate::commands::transaction;
use crate::partitions::MAX_PARTITIONS;
use crate::table;

/// A read without the log sees the time of the last executed command. If that time is older than this, the read goes through
/// the log, which moves the clock.
const FRESH_MS: u64 = 100;
/// Once the time is as old as this, a single read goes through the log and moves the clock for all others. If they all waited
/// for the age above, they would all go through the log until the first of them is executed.
const RENEW_MS: u64 = 50;

/// Returns what time most nodes have, in milliseconds since 1970, or nothing while that isn't known yet.
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
    /// The way of each command, by its number in the catalogue.
    ways: Vec<Way>,
    seen: Seen,
    renewals: Renewals,
    news: News,
    member: Member,
    clock: Box<ClusterTime>,
    /// The most bytes of memory that the servers may have together before commands that need more are refused.
    max_memory: Option<u64>,
    /// The time that most nodes had when it was last looked at, once that is known.
    now_ms: Cell<Option<u64>>,
}

impl Native {
    /// Creates the knowledge of servers that have these commands and are what the fingerprint says. `seen` and `news` are what the servers show, and `clock` tells
    /// what time most nodes have.
    pub fn new(
        (catalogue, fingerprint): (Catalogue, Fingerprint),
        seen: Seen,
        news: News,
        member: Member,
        clock: Box<ClusterTime>,
    ) -> Native {
        let ways = catalogue.specs().map(|spec| Way::of(spec.name.as_bytes()));
        Native {
            ways: ways.collect(),
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

    /// Returns the servers' command of this name, if there is one, and who executes it.
    fn named(&self, name: &[u8]) -> (Option<&Spec>, Way) {
        match self.catalogue.named(name) {
            Some(spec) => (Some(spec), self.ways[spec.number]),
            None => (None, Way::of(name)),
        }
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

    /// Returns a report of the clock with at most `most` bytes, and with a check if other replicas can answer it.
    pub(crate) fn clock_report(&self, pid: PartitionId, voices: u8, most: usize) -> Vec<u8> {
        let has_others = self.member.all.len() > 1;
        let clock = (self.stamp(), voices);
        self.seen.report(pid, clock, has_others, most)
    }

    /// Returns whether it is known what time most nodes have. Until then nothing should be stamped.
    pub(crate) fn knows_time(&self) -> bool {
        self.now_ms.get().is_some()
    }

    /// Returns whether a command goes to the servers, with a stamp.
    pub(crate) fn is_stamped(&self, args: &[&[u8]]) -> bool {
        match self.named(args[0]).1 {
            Way::Own(spec) => matches!(spec.name, "exec" | "watch") || is_config_set(args),
            Way::Channels(_) => false,
            Way::Replicas | Way::Scan | Way::Server => true,
        }
    }

    /// Returns the servers' commands.
    pub(crate) fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// Returns true if a read may go without the log, judged by the age of the time that it would see.
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
pub(crate) struct Renewals([Cell<u64>; MAX_PARTITIONS as usize]);

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

/// Who executes a command.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// The front end executes it, as it concerns the connection.
    Own(&'static call::Spec),
    /// The front end executes it, as it is about channels.
    Channels(channels::Run),
    /// The front end answers WAIT.
    Replicas,
    /// A server executes SCAN, one partition after the other.
    Scan,
    Server,
}

impl Way {
    fn of(name: &[u8]) -> Way {
        let own = table::find(name).filter(|spec| spec.is_of_the_connection());
        match (own, channels::find(name), name) {
            (Some(own), ..) => Way::Own(own),
            (None, Some(run), _) => Way::Channels(run),
            (None, None, b"wait") => Way::Replicas,
            (None, None, b"scan") => Way::Scan,
            _ => Way::Server,
        }
    }
}

/// Executes one command, or returns what must go into the log.
pub(crate) fn run(call: &mut Call<'_>, native: &Native) -> Outcome {
    let (named, way) = native.named(call.args[0]);
    let own = match way {
        Way::Own(spec) => Some(spec),
        _ => None,
    };
    let last = &mut call.client.last_command;
    match own {
        Some(spec) => last.be(spec.name, call.args),
        None => last.be("NULL", &[]),
    }
    if !call.client.authenticated && !own.is_some_and(|spec| spec.is_open()) {
        call.fail("NOAUTH Authentication required.");
        return Outcome::Answered;
    }
    let ends = own.is_some_and(|spec| transaction::is_at_once(spec.name));
    if call.client.transaction.is_some() && !ends {
        queue(call, native, named);
        return Outcome::Answered;
    }
    if call.client.is_only_listening() && !channels::is_for_subscribers(call.args[0]) {
        let name = String::from_utf8_lossy(call.args[0]).to_ascii_lowercase();
        call.fail(format!(
            "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
        ));
        return Outcome::Answered;
    }
    if let Some(spec) = own {
        return run_own(call, native, spec);
    }
    let spec = match native.catalogue.find_of(named, call.args) {
        Ok(spec) => spec,
        Err(why) => {
            call.fail(why);
            return Outcome::Answered;
        }
    };
    match way {
        Way::Channels(run) => {
            call.client.last_command.be(&spec.name, &[]);
            run(call)
        }
        Way::Replicas => wait_for_replicas(call),
        _ => serve(call, native, (spec, way)),
    }
}

fn run_own(call: &mut Call<'_>, native: &Native, spec: &call::Spec) -> Outcome {
    if !spec.takes(call.args.len()) {
        table::refuse_arguments(call, spec);
        return Outcome::Answered;
    }
    if spec.has_too_many(call.args.len()) {
        return call::refuse_many(call, spec.name);
    }
    match spec.name {
        "exec" => exec(call, native),
        "watch" => watch(call, native),
        "command" => command(call, native),
        "config" if is_config_set(call.args) => config_set(call, native),
        _ => table::run_own(call, spec),
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
