// SPDX-License-Identifier: Apache-2.0
//! The front end where Redis itself is replicated: its commands are those that its own COMMAND describes, and its answers are
//! passed on as they are.
//!
//! Commands that concern the connection are answered here, as for every other store. All others go to the server of one
//! partition.

use std::cell::Cell;
use std::time::Instant;

use apps::kv::parse_integer;
use apps::redis::{
    Catalogue, Command, Fingerprint, News, Notifications, Seen, Spec, Spread, Stamp, Value,
    Watched, is_config_set, put_call, put_query, sorts_by_others,
};
use paxos::{NodeId, PartitionId};

use crate::answer::Shape;
use crate::commands::keys::{max_len, partition_of, too_large};
use crate::commands::room;
use crate::commands::transaction;
use crate::cursor::Cursor;
use crate::partitions::{MAX_PARTITIONS, Partitions};
use crate::pubsub::blanks::Blank;
use crate::pubsub::channels;
use crate::pubsub::survey::{self, Question};
use crate::state::watched;
use crate::table::{self, Call, Outcome};
use crate::waits::MAX_KEYS_EACH;
use crate::waits::waiting::Waiting;

/// A read without the log sees the time of the last executed command. If that time is older than this, the read goes through
/// the log, which moves the clock.
const FRESH_MS: u64 = 100;
/// Once the time is as old as this, a single read goes through the log and moves the clock for all others. If they all waited
/// for the age above, they would all go through the log until the first of them is executed.
const RENEW_MS: u64 = 50;

/// The bytes of a command's stamp, kind and flags.
const HEAD_LEN: usize = 10;
/// The bytes of a length, at most.
const LENGTH_LEN: usize = 5;

const NO_OTHER_SETTING: &str = "ERR CONFIG SET takes notify-keyspace-events alone here: limits are keys of the cluster file, and the \
     rest is as the replicas need it";
const CROSSSLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";

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

    /// Returns true if a read may go without the log, judged by the age of the time that it would see.
    fn is_fresh(&self, pid: PartitionId) -> bool {
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

/// Who executes a command.
#[derive(Clone, Copy)]
enum Way {
    /// The front end executes it, as it concerns the connection.
    Own(&'static table::Spec),
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

/// How a server's answer is shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Served {
    /// The answer is shown as it is.
    Plain,
    /// The answer to SCAN, in which the place to continue becomes the next cursor.
    Scan,
    /// The answer to WATCH of these keys, which has their versions.
    Watch(Vec<Vec<u8>>),
    /// The answers of all partitions, asked one after the other, as gathered so far.
    All(Spread, Gathered),
    /// The answer to PUBLISH or SPUBLISH; the front end counts the clients that get the message.
    Published(Question),
    /// The answer to PUBSUB, which the front end counts once the log has come that far.
    Survey,
    /// The answer to EXEC, in which the front end fills in these counts.
    Exec(Vec<Blank>),
    /// The answer to a try of a command that may wait.
    Tried,
}

/// The partitions' answers so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Gathered {
    numbers: Vec<i64>,
    is_list: bool,
    items: Vec<u8>,
    count: usize,
}

impl Served {
    /// Takes the answer of one partition. Returns false if it is an error, or is all that matters.
    pub fn gather(&mut self, answer: &[u8]) -> bool {
        let Served::All(spread, so_far) = self else {
            return false;
        };
        if answer.starts_with(b"-") {
            return false;
        }
        match spread {
            Spread::Sum | Spread::Least => so_far.add_numbers(*spread, answer),
            Spread::Joined => so_far.join(answer),
            Spread::One | Spread::Same => true,
        }
    }

    /// Appends the answer that a client gets, once `answer`, the last partition's, has come.
    pub fn show(&self, out: &mut Vec<u8>, answer: &[u8], (pid, partitions): (u16, u16)) {
        let other = match self {
            _ if answer.starts_with(b"-") => None,
            // `Plain` is passed on as it is; the connection itself answers the others.
            Served::Plain | Served::Published(_) | Served::Survey | Served::Tried => None,
            Served::Exec(_) => None,
            Served::Watch(_) => Some(b"+OK\r\n".to_vec()),
            Served::Scan => scanned(answer, pid, partitions),
            Served::All(spread, so_far) => so_far.show(*spread),
        };
        out.extend_from_slice(other.as_deref().unwrap_or(answer));
    }
}

impl Gathered {
    fn add_numbers(&mut self, spread: Spread, answer: &[u8]) -> bool {
        let Ok(value) = Value::parse(answer) else {
            return false;
        };
        self.is_list = matches!(value, Value::List(_));
        let numbers: Vec<i64> = match &value {
            Value::List(items) => items.iter().filter_map(Value::int).collect(),
            other => other.int().into_iter().collect(),
        };
        if self.numbers.is_empty() {
            self.numbers = numbers;
            return true;
        }
        for (all, one) in self.numbers.iter_mut().zip(numbers) {
            *all = match spread {
                Spread::Sum => *all + one,
                _ => one.min(*all),
            };
        }
        true
    }

    /// Takes one partition's list. Returns false if its answer needs no others.
    fn join(&mut self, answer: &[u8]) -> bool {
        match Value::parse(answer) {
            Ok(Value::List(items)) => {
                self.is_list = true;
                self.count += items.len();
                let end = answer.windows(2).position(|pair| pair == b"\r\n");
                self.items
                    .extend_from_slice(&answer[end.map_or(0, |end| end + 2)..]);
                true
            }
            Ok(Value::Nil) => true,
            _ => false,
        }
    }

    /// Returns the gathered answer, or nothing if the last answer is all that matters.
    fn show(&self, spread: Spread) -> Option<Vec<u8>> {
        match spread {
            Spread::Sum | Spread::Least if !self.numbers.is_empty() => {
                let lines = self.numbers.iter().map(|number| format!(":{number}\r\n"));
                let lines: String = lines.collect();
                Some(match self.is_list {
                    true => format!("*{}\r\n{lines}", self.numbers.len()).into_bytes(),
                    false => lines.into_bytes(),
                })
            }
            Spread::Joined if self.is_list => {
                Some([format!("*{}\r\n", self.count).as_bytes(), &self.items].concat())
            }
            _ => None,
        }
    }
}

/// Returns the answer to SCAN with a cursor that also names the partition.
fn scanned(answer: &[u8], pid: u16, partitions: u16) -> Option<Vec<u8>> {
    let value = Value::parse(answer).ok()?;
    let cursor = value.items().first()?.text()?;
    let place: u64 = std::str::from_utf8(cursor).ok()?.parse().ok()?;
    let next = Cursor::next_number(pid, (place > 0).then_some(place), partitions).to_string();
    let head = format!("*2\r\n${}\r\n", cursor.len()).len();
    let keys = answer.get(head + cursor.len()..)?;
    Some([format!("*2\r\n${}\r\n{next}", next.len()).as_bytes(), keys].concat())
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

fn run_own(call: &mut Call<'_>, native: &Native, spec: &table::Spec) -> Outcome {
    if !spec.takes(call.args.len()) {
        table::refuse_arguments(call, spec);
        return Outcome::Answered;
    }
    if spec.has_too_many(call.args.len()) {
        return table::refuse_many(call, spec.name);
    }
    match spec.name {
        "exec" => exec(call, native),
        "watch" => watch(call, native),
        "command" => command(call, native),
        "config" if is_config_set(call.args) => config_set(call, native),
        _ => table::run_own(call, spec),
    }
}

/// Prepares a command that a server executes.
fn serve(call: &mut Call<'_>, native: &Native, (spec, way): (&Spec, Way)) -> Outcome {
    if let Some(why) = room::refusal(call, native, spec, call.args) {
        call.fail(why);
        return Outcome::Answered;
    }
    if spec.may_wait {
        call.client.last_command.be(&spec.name, &[]);
        if let Some(outcome) = wait(call, spec) {
            return outcome;
        }
    }
    if let Err(why) = spec.judge(call.args, false) {
        call.fail(why);
        return Outcome::Answered;
    }
    if let Some(why) = refused_over_partitions(call, spec, call.args, false) {
        call.fail(why);
        return Outcome::Answered;
    }
    call.client.last_command.be(&spec.name, &[]);
    if let Way::Scan = way {
        return scan(call, native);
    }
    if let Some(why) = channels::refusal(spec, call.args) {
        call.fail(why);
        return Outcome::Answered;
    }
    if spec.is_message() {
        return publish(call, native, spec);
    }
    let Some(partitions) = partitions(call, spec, call.args) else {
        call.fail(CROSSSLOT);
        return Outcome::Answered;
    };
    let names_none = partitions.is_empty();
    if names_none && spec.spread != Spread::One && call.shared.partitions > 1 {
        let shape = Served::All(spec.spread, Gathered::default());
        return logged(call, native, Partitions::one(0), call.args, false, shape);
    }
    let partitions = or_any(partitions);
    logged(
        call,
        native,
        partitions,
        call.args,
        spec.is_read,
        Served::Plain,
    )
}

/// Sends a message to the partition of its channel's name.
fn publish(call: &mut Call<'_>, native: &Native, spec: &Spec) -> Outcome {
    let channel = call.args[1];
    let partitions = [partition_of(call, channel)].into_iter().collect();
    let shape = Served::Published(receivers(spec, channel));
    logged(call, native, partitions, call.args, false, shape)
}

/// Returns the question how many clients get a message.
fn receivers(spec: &Spec, channel: &[u8]) -> Question {
    Question::Receivers {
        channel: channel.to_vec(),
        is_sharded: spec.name == "spublish",
    }
}

/// Returns the outcome of a command that may wait, or nothing if this one doesn't.
fn wait(call: &mut Call<'_>, spec: &Spec) -> Option<Outcome> {
    let waiting = Waiting::parse(spec, call.args, call.client.resp3, Instant::now());
    let mut waiting = match waiting {
        Ok(waiting) => waiting?,
        Err(why) => {
            call.fail(why);
            return Some(Outcome::Answered);
        }
    };
    if waiting.keys.len() > MAX_KEYS_EACH {
        call.fail(format!(
            "LIMIT not executed: a command that waits names {MAX_KEYS_EACH} keys at most, which no setting changes, and this one \
             {}: wait for the others on another connection",
            waiting.keys.len()
        ));
        return Some(Outcome::Answered);
    }
    let Some(partitions) = partitions(call, spec, call.args).map(or_any) else {
        call.fail(CROSSSLOT);
        return Some(Outcome::Answered);
    };
    waiting.partitions = partitions;
    let len = waiting.max_len();
    if len > max_len(partitions, call.shared) {
        call.fail(too_large(len as u64, partitions, call.shared));
        return Some(Outcome::Answered);
    }
    Some(Outcome::Waits(Box::new(waiting)))
}

/// Answers WAIT at once: every answered write is in the log, which all replicas of the group execute.
fn wait_for_replicas(call: &mut Call<'_>) -> Outcome {
    let [_, replicas, timeout] = call.args else {
        return Outcome::Answered;
    };
    match (parse_integer(replicas), parse_integer(timeout)) {
        (None, _) => call.fail("ERR value is not an integer or out of range"),
        (_, None) => call.fail("ERR timeout is not an integer or out of range"),
        (_, Some(negative)) if negative < 0 => call.fail("ERR timeout is negative"),
        _ => {
            let others = call.shared.others.len();
            call.writer().integer(others as i64);
        }
    }
    Outcome::Answered
}

/// Returns the partition that has all keys of a command, no partition if it names none, or nothing if there are several.
fn partitions(call: &Call<'_>, spec: &Spec, args: &[&[u8]]) -> Option<Partitions> {
    let all = partitions_of_keys(call, spec, args);
    (all.len() < 2).then_some(all)
}

fn partitions_of_keys(call: &Call<'_>, spec: &Spec, args: &[&[u8]]) -> Partitions {
    let mut all = Partitions::default();
    spec.each_key(args, |at, _| {
        all.add(Partitions::one(partition_of(call, args[at])));
    });
    all
}

/// Returns why a group of several partitions refuses a command that one partition would execute: Redis Cluster refuses it too,
/// or only a part of its work would be done.
fn refused_over_partitions(
    call: &Call<'_>,
    spec: &Spec,
    args: &[&[u8]],
    in_transaction: bool,
) -> Option<String> {
    let name = spec.name.replace('|', " ").to_uppercase();
    if call.shared.partitions == 1 {
        return None;
    }
    if sorts_by_others(spec, args) {
        return Some(format!(
            "ERR BY or GET option of {name} denied in cluster mode: what it reads may be in other partitions"
        ));
    }
    let is_about_all = in_transaction && spec.concerns_all;
    (is_about_all && partitions_of_keys(call, spec, args).is_empty()).then(|| {
        format!(
            "ERR {name} isn't available in MULTI here: it is about all {} partitions, and a transaction has one; send it by itself",
            call.shared.partitions
        )
    })
}

/// Returns the first partition for commands that name no key.
fn or_any(partitions: Partitions) -> Partitions {
    match partitions.is_empty() {
        true => Partitions::one(0),
        false => partitions,
    }
}

fn scan(call: &mut Call<'_>, native: &Native) -> Outcome {
    if call.shared.partitions == 1 {
        return logged(
            call,
            native,
            Partitions::one(0),
            call.args,
            true,
            Served::Plain,
        );
    }
    let Some(cursor) = Cursor::parse(call.args[1], call.shared.partitions) else {
        call.fail("ERR invalid cursor");
        return Outcome::Answered;
    };
    let place = cursor.place.to_string();
    let mut args = call.args.to_vec();
    args[1] = place.as_bytes();
    logged(
        call,
        native,
        Partitions::one(cursor.pid),
        &args,
        true,
        Served::Scan,
    )
}

/// Sends a command on its way, without the log if it only reads and the partition's clock is fresh.
fn logged(
    call: &mut Call<'_>,
    native: &Native,
    partitions: Partitions,
    args: &[&[u8]],
    is_read: bool,
    shape: Served,
) -> Outcome {
    let stamp = native.stamp();
    let is_fresh = || call.client.reads_stale || native.is_fresh(partitions.lowest());
    let reads = is_read && call.shared.without_log && is_fresh();
    let resp3 = call.client.resp3;
    let len = |arg: &&[u8]| arg.len() + LENGTH_LEN;
    let mut bytes = Vec::with_capacity(HEAD_LEN + args.iter().map(len).sum::<usize>());
    match reads {
        true => put_query(&mut bytes, resp3, args),
        false => put_call(&mut bytes, stamp, resp3, args),
    }
    submit(call, partitions, reads, bytes, shape)
}

fn submit(
    call: &mut Call<'_>,
    partitions: Partitions,
    reads: bool,
    bytes: Vec<u8>,
    shape: Served,
) -> Outcome {
    if bytes.len() > max_len(partitions, call.shared) {
        call.fail(too_large(bytes.len() as u64, partitions, call.shared));
        return Outcome::Answered;
    }
    Outcome::Logged {
        partitions,
        reads,
        bytes,
        shape: Shape::Served(shape),
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

fn command(call: &mut Call<'_>, native: &Native) -> Outcome {
    let catalogue = &native.catalogue;
    match call
        .args
        .get(1)
        .map(|sub| sub.to_ascii_lowercase())
        .as_deref()
    {
        None => call.out.extend_from_slice(catalogue.shown()),
        Some(b"count") => call.writer().integer(catalogue.len() as i64),
        // Clients can work without the documentation.
        Some(b"docs") => call.writer().map(0),
        Some(_) => return serve_command(call, native),
    }
    Outcome::Answered
}

/// Sends the subcommands of COMMAND on that a server answers.
fn serve_command(call: &mut Call<'_>, native: &Native) -> Outcome {
    match native.catalogue.find(call.args) {
        Ok(spec) => serve(call, native, (spec, Way::Server)),
        Err(why) => {
            call.fail(why);
            Outcome::Answered
        }
    }
}

/// Sends the one setting that clients may change to the log of partition 0, which all partitions follow.
fn config_set(call: &mut Call<'_>, native: &Native) -> Outcome {
    let why = match Notifications::asked(call.args) {
        Some(Ok(_)) => {
            let first = Partitions::one(0);
            return logged(call, native, first, call.args, false, Served::Plain);
        }
        Some(Err(why)) => why,
        None if call.args.len() < 4 => "ERR wrong number of arguments for 'config|set' command",
        None => NO_OTHER_SETTING,
    };
    call.fail(why);
    Outcome::Answered
}

// ---- Transactions

fn queue(call: &mut Call<'_>, native: &Native, named: Option<&Spec>) {
    let found = native.catalogue.find_of(named, call.args);
    let judged = found.and_then(|spec| {
        if is_pubsub(call.args) {
            return survey::question(call.args).map(|_| spec);
        }
        spec.judge(call.args, true)?;
        let refused = refused_over_partitions(call, spec, call.args, true);
        let refused = refused.or(channels::refusal(spec, call.args));
        let refused = refused.or(room::refusal(call, native, spec, call.args));
        refused.map_or(Ok(spec), Err)
    });
    match judged {
        Ok(spec) => {
            call.client.last_command.be(&spec.name, &[]);
            transaction::queue(call);
        }
        Err(why) => {
            table::refuse_transaction(call);
            call.fail(why);
        }
    }
}

fn watch(call: &mut Call<'_>, native: &Native) -> Outcome {
    if call.client.transaction.is_some() {
        call.fail("ERR WATCH inside MULTI is not allowed");
        return Outcome::Answered;
    }
    if let Err(why) = transaction::may_watch(call) {
        call.fail(why);
        return Outcome::Answered;
    }
    let keys = call.args[1..].to_vec();
    let all: Partitions = keys.iter().map(|key| partition_of(call, key)).collect();
    if all.len() > 1 {
        call.fail(CROSSSLOT);
        return Outcome::Answered;
    }
    let shape = Served::Watch(keys.iter().map(|key| key.to_vec()).collect());
    let mut bytes = Vec::new();
    let stamp = native.stamp();
    Command::Watch { stamp, keys }.encode(&mut bytes);
    submit(call, all, false, bytes, shape)
}

fn exec(call: &mut Call<'_>, native: &Native) -> Outcome {
    let queued = match transaction::end(call) {
        Ok(queued) => queued,
        Err(why) => {
            call.fail(why);
            return Outcome::Answered;
        }
    };
    let watched = std::mem::take(&mut call.client.watched);
    let mut commands: Vec<Vec<&[u8]>> = Vec::new();
    let (mut blanks, mut no_room) = (Vec::new(), None);
    let mut all: Partitions = watched
        .iter()
        .map(|of| partition_of(call, &of.key))
        .collect();
    for args in &queued {
        let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        if let (true, Ok(question)) = (is_pubsub(&args), survey::question(&args)) {
            blanks.push(Blank {
                place: commands.len(),
                question,
            });
            // The server's answer to this keeps the place of the front end's.
            commands.push(vec![b"PING"]);
            continue;
        }
        if let Ok(spec) = native.catalogue.judge(&args, true) {
            all.add(partitions_of_keys(call, spec, &args));
            no_room = no_room.or_else(|| room::refusal(call, native, spec, &args));
            if spec.is_message() {
                blanks.push(Blank {
                    place: commands.len(),
                    question: receivers(spec, args[1]),
                });
            }
        }
        commands.push(args);
    }
    if let Some(why) = no_room {
        call.fail(format!("EXECABORT Transaction discarded because of: {why}"));
        return Outcome::Answered;
    }
    if all.len() > 1 {
        call.fail("EXECABORT Transaction discarded because of: CROSSSLOT its keys don't hash to the same slot");
        return Outcome::Answered;
    }
    let mut bytes = Vec::new();
    let command = Command::Exec {
        stamp: native.stamp(),
        resp3: call.client.resp3,
        watched: watched.iter().map(as_watched).collect(),
        commands,
    };
    command.encode(&mut bytes);
    let shape = match blanks.is_empty() {
        true => Served::Plain,
        false => Served::Exec(blanks),
    };
    submit(call, or_any(all), false, bytes, shape)
}

fn is_pubsub(args: &[&[u8]]) -> bool {
    args[0].eq_ignore_ascii_case(b"pubsub")
}

fn as_watched(of: &watched::Watched) -> Watched<'_> {
    Watched {
        key: &of.key,
        version: of.version,
        existed: of.existed,
    }
}

/// Returns the versions in an answer to WATCH, with true for each key that existed.
pub(crate) fn versions(keys: &[Vec<u8>], answer: &[u8]) -> Vec<watched::Watched> {
    let numbers: Vec<i64> = match Value::parse(answer) {
        Ok(value) => value.items().iter().filter_map(Value::int).collect(),
        Err(_) => Vec::new(),
    };
    let of = |(key, pair): (&Vec<u8>, &[i64])| watched::Watched {
        key: key.clone(),
        version: pair[0] as u64,
        existed: pair[1] == 1,
    };
    keys.iter().zip(numbers.chunks_exact(2)).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(spread: Spread, answers: &[&[u8]]) -> Vec<u8> {
        let mut all = Served::All(spread, Gathered::default());
        let last = answers.len() - 1;
        let ends = answers.iter().position(|answer| !all.gather(answer));
        let ends = ends.unwrap_or(last);
        let mut shown = Vec::new();
        let place = (ends as u16, answers.len() as u16);
        all.show(&mut shown, answers[ends], place);
        shown
    }

    #[test]
    fn answers_of_all_partitions_become_one() {
        for (spread, answers, shown) in [
            (Spread::Sum, [&b":3\r\n"[..], b":4\r\n"], &b":7\r\n"[..]),
            (
                Spread::Least,
                [b"*2\r\n:1\r\n:0\r\n", b"*2\r\n:1\r\n:1\r\n"],
                b"*2\r\n:1\r\n:0\r\n",
            ),
            (Spread::Same, [b"+OK\r\n", b"+OK\r\n"], b"+OK\r\n"),
            (Spread::Same, [b"-ERR no\r\n", b"+OK\r\n"], b"-ERR no\r\n"),
            (
                Spread::Joined,
                [b"*1\r\n$1\r\na\r\n", b"*1\r\n$1\r\nb\r\n"],
                b"*2\r\n$1\r\na\r\n$1\r\nb\r\n",
            ),
            (Spread::Joined, [b"$-1\r\n", b"$1\r\nk\r\n"], b"$1\r\nk\r\n"),
            (Spread::Joined, [b"$1\r\nk\r\n", b"$-1\r\n"], b"$1\r\nk\r\n"),
            (Spread::Joined, [b"*0\r\n", b"*0\r\n"], b"*0\r\n"),
        ] {
            assert_eq!(gathered(spread, &answers), shown, "{spread:?}");
        }
    }

    #[test]
    fn one_read_moves_the_clock_of_a_partition_for_all_others() {
        let renewals = Renewals::default();
        let taken = [100, 101, 149, 150, 151].map(|ms| renewals.take(3, ms));
        assert_eq!(taken, [true, false, false, true, false]);
        assert!(renewals.take(4, 151));
    }

    #[test]
    fn a_cursor_names_its_partition() {
        let answer = b"*2\r\n$2\r\n17\r\n*1\r\n$1\r\na\r\n";
        let shown = scanned(answer, 0, 2).unwrap();
        assert_eq!(shown, answer);
        let shown = scanned(b"*2\r\n$1\r\n0\r\n*0\r\n", 0, 2).unwrap();
        let next = (1u64 << apps::place::BITS).to_string();
        assert_eq!(
            shown,
            format!("*2\r\n${}\r\n{next}\r\n*0\r\n", next.len()).into_bytes()
        );
        let shown = scanned(b"*2\r\n$1\r\n0\r\n*0\r\n", 1, 2).unwrap();
        assert_eq!(shown, b"*2\r\n$1\r\n0\r\n*0\r\n");
    }
}
