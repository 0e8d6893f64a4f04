// SPDX-License-Identifier: Apache-2.0
//! Executes CLIENT: a client's statements about itself, and its questions and wishes about all clients of this front end.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use apps::kv::parse_integer;
use apps::redis::Spec;

use crate::commands::admin::{SYNTAX, fail, ok, unknown_subcommand, wrong_subcommand_arity};
use crate::commands::transaction::Transaction;
use crate::state::client::{Client, may_be_called};
use crate::table::{self, Call, Outcome};

/// A question that the connection alone can't answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ask {
    /// The line of the client itself.
    Info,
    /// The lines of these clients.
    List(Listed),
    /// The end of these clients' connections.
    Kill(Kill),
}

/// The clients that CLIENT LIST shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Listed {
    All,
    Of(Type),
    These(Vec<u64>),
}

/// A type of client. `Nobody` stands for Redis's replicating types, which don't exist here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Type {
    Normal,
    Subscriber,
    Nobody,
}

impl Type {
    fn parse(name: &[u8]) -> Option<Type> {
        match name.to_ascii_lowercase().as_slice() {
            b"normal" => Some(Type::Normal),
            b"pubsub" => Some(Type::Subscriber),
            b"master" | b"replica" | b"slave" => Some(Type::Nobody),
            _ => None,
        }
    }

    pub fn is_of(self, client: &Client) -> bool {
        let subscribes = !client.subscriptions.is_empty();
        match self {
            Type::Normal => !subscribes,
            Type::Subscriber => subscribes,
            Type::Nobody => false,
        }
    }
}

/// The clients that CLIENT KILL ends: those that fit every condition given.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Kill {
    id: Option<u64>,
    address: Option<Vec<u8>>,
    local_address: Option<Vec<u8>>,
    of: Option<Type>,
    /// The client that isn't ended: the one that asks.
    skips: Option<u64>,
    /// True if only an address was given, in the old form, whose answer isn't a number.
    pub is_old: bool,
}

impl Kill {
    pub fn fits(&self, client: &Client) -> bool {
        let is = |said: &Option<Vec<u8>>, address: SocketAddr| {
            let is_it = |said: &Vec<u8>| *said == address.to_string().as_bytes();
            said.as_ref().is_none_or(is_it)
        };
        self.id.is_none_or(|id| id == client.id)
            && self.skips != Some(client.id)
            && self.of.is_none_or(|of| of.is_of(client))
            && is(&self.address, client.address)
            && is(&self.local_address, client.local_address)
    }

    /// Parses pairs of words as Redis does; returns Redis's error if they are wrong.
    fn parse(words: &[&[u8]], itself: u64) -> Result<Kill, String> {
        if let [address] = words {
            return Ok(Kill {
                address: Some(address.to_vec()),
                is_old: true,
                ..Kill::default()
            });
        }
        let mut kill = Kill {
            skips: Some(itself),
            ..Kill::default()
        };
        for pair in words.chunks(2) {
            let [option, value] = pair else {
                return Err(SYNTAX.to_owned());
            };
            let shown = String::from_utf8_lossy(value);
            match option.to_ascii_lowercase().as_slice() {
                b"id" => {
                    let id = parse_integer(value).filter(|id| *id > 0);
                    let id = id.ok_or("ERR client-id should be greater than 0")?;
                    kill.id = Some(id as u64);
                }
                b"type" => {
                    let of = Type::parse(value);
                    kill.of = Some(of.ok_or(format!("ERR Unknown client type '{shown}'"))?);
                }
                b"addr" => kill.address = Some(value.to_vec()),
                b"laddr" => kill.local_address = Some(value.to_vec()),
                // The only user is the default one.
                b"user" if **value == *b"default" => {}
                b"user" => return Err(format!("ERR No such user '{shown}'")),
                b"skipme" if value.eq_ignore_ascii_case(b"yes") => kill.skips = Some(itself),
                b"skipme" if value.eq_ignore_ascii_case(b"no") => kill.skips = None,
                _ => return Err(SYNTAX.to_owned()),
            }
        }
        Ok(kill)
    }
}

impl Listed {
    fn parse(words: &[&[u8]]) -> Result<Listed, String> {
        match words {
            [] => Ok(Listed::All),
            [option, name] if option.eq_ignore_ascii_case(b"TYPE") => {
                let shown = String::from_utf8_lossy(name);
                let of = Type::parse(name).ok_or(format!("ERR Unknown client type '{shown}'"))?;
                Ok(Listed::Of(of))
            }
            [option, ids @ ..] if option.eq_ignore_ascii_case(b"ID") && !ids.is_empty() => {
                let ids = ids.iter().map(|id| parse_integer(id).map(|id| id as u64));
                let ids: Option<Vec<u64>> = ids.collect();
                Ok(Listed::These(ids.ok_or("ERR Invalid client ID")?))
            }
            _ => Err(SYNTAX.to_owned()),
        }
    }
}

// ---- Silence

/// The setting of CLIENT REPLY.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Silence {
    off: bool,
    /// True if the current command isn't answered.
    skips: bool,
    skips_next: bool,
}

impl Silence {
    /// Returns true if the current command is answered.
    pub fn answers(self) -> bool {
        !self.off && !self.skips
    }

    /// Notes that the next command begins.
    pub fn next(&mut self) {
        self.skips = std::mem::take(&mut self.skips_next);
    }

    /// Turns replies on again, for CLIENT REPLY ON.
    fn begin_to_speak(&mut self) {
        *self = Silence::default();
    }

    /// Turns replies on again, for RESET. RESET's own reply is still skipped if REPLY SKIP came before.
    pub fn end(&mut self) {
        self.off = false;
        self.skips_next = false;
    }
}

// ---- Pauses

/// The pause of CLIENT PAUSE, which all clients of this front end keep.
#[derive(Default)]
pub(crate) struct Pause {
    until: Option<Instant>,
    /// True if commands that only read are postponed, too.
    of_all: bool,
    /// Commands for the servers are postponed until then, because it isn't known yet what time it is.
    time_until: Option<Instant>,
    /// The indexes of the clients whose next command is postponed, in their order, and the same without an order.
    postponed: Vec<usize>,
    known: HashSet<usize>,
}

impl Pause {
    /// Begins a pause, or extends the current one; a current pause never becomes weaker.
    fn begin(&mut self, until: Instant, of_all: bool) {
        self.until = self.until.max(Some(until));
        self.of_all |= of_all;
    }

    fn end(&mut self) {
        self.until = None;
        self.of_all = false;
    }

    /// Returns true if anything may be postponed.
    pub fn is_on(&self) -> bool {
        self.until.is_some() || self.time_until.is_some()
    }

    /// Postpones commands for the servers until this moment at most; `None` ends that, because the time is known.
    pub fn wait_for_time(&mut self, until: Option<Instant>) {
        self.time_until = until;
    }

    /// Notes that a client's next command is postponed.
    pub fn postpone(&mut self, index: usize) {
        if self.known.insert(index) {
            self.postponed.push(index);
        }
    }

    /// Returns how many clients wait for the pause's end.
    pub fn count(&self) -> usize {
        self.postponed.len()
    }

    /// Returns when the pause ends or must be looked at again.
    pub fn deadline(&self) -> Option<Instant> {
        self.until.into_iter().chain(self.time_until).min()
    }

    /// Returns the clients that may continue: all postponed ones, if the pause is over.
    pub fn take_over(&mut self, now: Instant) -> Vec<usize> {
        if self.until.is_some_and(|until| until <= now) {
            self.end();
        }
        match self.is_on() {
            true => Vec::new(),
            false => {
                self.known.clear();
                std::mem::take(&mut self.postponed)
            }
        }
    }
}

/// Returns true if the pause postpones this command. Unknown commands, and commands with too few arguments, are answered at
/// once.
pub(crate) fn is_postponed(call: &Call<'_>) -> bool {
    let pause = call.shared.pause.borrow();
    if !pause.is_on() || !call.client.authenticated {
        return false;
    }
    let queued = call.client.transaction.as_ref();
    let queued = queued.filter(|_| call.args[0].eq_ignore_ascii_case(b"EXEC"));
    let Some(writes) = may_write(call, call.args) else {
        return false;
    };
    let of_queued = |queued: &Transaction| {
        call.shared.turn.arguments(queued.args());
        let mut all = queued.commands();
        all.any(|args| may_write(call, args) == Some(true))
    };
    let native = call.shared.native.as_ref();
    let needs_time = pause.time_until.is_some() && native.is_some_and(|n| n.is_stamped(call.args));
    let is_on = pause.until.is_some();
    needs_time || is_on && (pause.of_all || writes || queued.is_some_and(of_queued))
}

/// Returns whether a command may change anything, or nothing if there is no such command.
fn may_write<A: AsRef<[u8]>>(call: &Call<'_>, args: &[A]) -> Option<bool> {
    if let Some(native) = &call.shared.native {
        return native.find(args).map(Spec::may_write);
    }
    let spec = table::find(args[0].as_ref())?;
    spec.takes(args.len()).then(|| spec.writes())
}

// ---- Commands

const NO_TRACKING: &str = "ERR CLIENT TRACKING isn't available here: no server tells which keys have expired, so a client that \
     keeps values would keep old ones";
const NOT_TRACKED: &str = "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode \
     enabled";
const BAD_MODE: &str = "ERR CLIENT PAUSE mode must be WRITE or ALL";
/// A longer pause is cut to this time.
const LONGEST_PAUSE: Duration = Duration::from_secs(1 << 32);

pub(crate) fn client(call: &mut Call<'_>) -> Outcome {
    let args = call.args;
    let subcommand = args[1].to_ascii_lowercase();
    match (subcommand.as_slice(), args.len()) {
        (b"id", 2) => {
            let id = call.client.id as i64;
            call.writer().integer(id);
        }
        (b"getname", 2) => {
            let name = call.client.name.clone();
            if name.is_empty() {
                call.writer().null();
            } else {
                call.writer().bulk(&name);
            }
        }
        (b"setname", 3) => {
            return match call.client.take_name(args[2]) {
                Ok(()) => ok(call),
                Err(why) => fail(call, why),
            };
        }
        (b"setinfo", 4) => return setinfo(call),
        (b"info", 2) => return Outcome::Asks(Ask::Info),
        (b"list", 2..) => return ask(call, Listed::parse(&args[2..]).map(Ask::List)),
        (b"kill", 3..) => {
            let kill = Kill::parse(&args[2..], call.client.id);
            return ask(call, kill.map(Ask::Kill));
        }
        (b"pause", 3 | 4) => return pause(call),
        (b"unpause", 2) => {
            call.shared.pause.borrow_mut().end();
            return ok(call);
        }
        (b"no-evict", 3) => return switch(call, |client, on| client.is_kept = on),
        (b"no-touch", 3) => return switch(call, |_, _| {}),
        (b"reply", 3) => return reply(call),
        (b"tracking", 3..) if args.len() == 3 && args[2].eq_ignore_ascii_case(b"OFF") => {
            return ok(call);
        }
        (b"tracking", 3..) if is_switch(args[2]) => return fail(call, NO_TRACKING),
        (b"tracking", 3..) => return fail(call, SYNTAX),
        (b"trackinginfo", 2) => trackinginfo(call),
        (b"getredir", 2) => call.writer().integer(-1),
        (b"caching", 3) => return fail(call, NOT_TRACKED),
        (b"unblock", 3 | 4) => return unblock(call),
        (b"pause", 5..) => {
            return fail(
                call,
                "ERR unknown subcommand or wrong number of arguments for 'PAUSE'. Try CLIENT HELP.",
            );
        }
        (
            b"id" | b"getname" | b"setname" | b"setinfo" | b"info" | b"kill" | b"pause"
            | b"unpause" | b"no-evict" | b"no-touch" | b"reply" | b"tracking" | b"trackinginfo"
            | b"getredir" | b"caching" | b"unblock",
            _,
        ) => return wrong_subcommand_arity(call, "client"),
        _ => return unknown_subcommand(call, "CLIENT"),
    }
    Outcome::Answered
}

fn ask(call: &mut Call<'_>, parsed: Result<Ask, String>) -> Outcome {
    match parsed {
        Ok(ask) => Outcome::Asks(ask),
        Err(why) => fail(call, why),
    }
}

fn switch(call: &mut Call<'_>, set: impl FnOnce(&mut Client, bool)) -> Outcome {
    if !is_switch(call.args[2]) {
        return fail(call, SYNTAX);
    }
    set(call.client, call.args[2].eq_ignore_ascii_case(b"ON"));
    ok(call)
}

fn reply(call: &mut Call<'_>) -> Outcome {
    let silence = &mut call.client.silence;
    match call.args[2].to_ascii_lowercase().as_slice() {
        b"on" => {
            silence.begin_to_speak();
            return ok(call);
        }
        b"off" => silence.off = true,
        b"skip" => silence.skips_next = !silence.off,
        _ => return fail(call, SYNTAX),
    }
    Outcome::Answered
}

fn pause(call: &mut Call<'_>) -> Outcome {
    let of_all = match call.args.get(3).map(|mode| mode.to_ascii_lowercase()) {
        None => true,
        Some(mode) if mode == b"all" => true,
        Some(mode) if mode == b"write" => false,
        Some(_) => return fail(call, BAD_MODE),
    };
    match parse_integer(call.args[2]) {
        None => fail(call, "ERR timeout is not an integer or out of range"),
        Some(negative) if negative < 0 => fail(call, "ERR timeout is negative"),
        Some(ms) => {
            let lasts = Duration::from_millis(ms as u64).min(LONGEST_PAUSE);
            let until = Instant::now() + lasts;
            call.shared.pause.borrow_mut().begin(until, of_all);
            ok(call)
        }
    }
}

/// Answers CLIENT TRACKINGINFO as for a client that tracks nothing.
fn trackinginfo(call: &mut Call<'_>) {
    let mut writer = call.writer();
    writer.map(3);
    writer.bulk(b"flags");
    writer.set(1);
    writer.bulk(b"off");
    writer.bulk(b"redirect");
    writer.integer(-1);
    writer.bulk(b"prefixes");
    writer.array(0);
}

/// Executes CLIENT UNBLOCK, which knows only the clients of this front end.
fn unblock(call: &mut Call<'_>) -> Outcome {
    let id = parse_integer(call.args[2]).and_then(|id| u64::try_from(id).ok());
    let with_error = match call.args.get(3) {
        None => Some(false),
        Some(word) if word.eq_ignore_ascii_case(b"TIMEOUT") => Some(false),
        Some(word) if word.eq_ignore_ascii_case(b"ERROR") => Some(true),
        Some(_) => None,
    };
    match (id, with_error) {
        (Some(id), Some(with_error)) => {
            let done = call.shared.waits.borrow_mut().unblock(id, with_error);
            call.writer().integer(i64::from(done));
        }
        (None, _) => call.fail("ERR value is not an integer or out of range"),
        (_, None) => call.fail("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"),
    }
    Outcome::Answered
}

fn setinfo(call: &mut Call<'_>) -> Outcome {
    let (attribute, value) = (call.args[2], call.args[3]);
    if let Err(why) = may_be_called(value) {
        return fail(call, why);
    }
    if !value.iter().all(|b| (b'!'..=b'~').contains(b)) {
        return fail(
            call,
            "ERR lib-name or lib-ver cannot contain spaces, newlines or special characters.",
        );
    }
    if attribute.eq_ignore_ascii_case(b"lib-name") {
        call.client.library_name = value.to_vec();
    } else if attribute.eq_ignore_ascii_case(b"lib-ver") {
        call.client.library_version = value.to_vec();
    } else {
        return fail(call, "ERR Unrecognized option");
    }
    ok(call)
}

fn is_switch(text: &[u8]) -> bool {
    text.eq_ignore_ascii_case(b"ON") || text.eq_ignore_ascii_case(b"OFF")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_that_is_under_way_becomes_no_weaker() {
        let (mut pause, now) = (Pause::default(), Instant::now());
        let second = Duration::from_secs(1);
        pause.begin(now + 2 * second, true);
        pause.begin(now + second, false);
        pause.postpone(7);
        pause.postpone(7);
        assert!(pause.of_all && pause.count() == 1);
        assert!(pause.take_over(now + second).is_empty());
        assert_eq!(pause.take_over(now + 2 * second), [7]);
        assert!(!pause.is_on() && !pause.of_all && pause.count() == 0);
    }

    #[test]
    fn skip_is_for_one_command_and_off_for_all() {
        let mut silence = Silence {
            skips_next: true,
            ..Silence::default()
        };
        silence.next();
        assert!(!silence.answers());
        silence.next();
        assert!(silence.answers());
        silence.off = true;
        silence.next();
        assert!(!silence.answers());
        silence.begin_to_speak();
        assert!(silence.answers());
    }
}
