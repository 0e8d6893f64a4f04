// SPDX-License-Identifier: Apache-2.0
//! Checks each command and hands it to the function that executes it, for both kinds of
//! application: a store, whose commands are all in the [table], and Redis itself, whose servers
//! describe theirs.

use apps::redis::is_config_set;

use crate::call::{Call, Outcome, Spec, refuse_many, refuse_transaction};
use crate::commands::{channels, redis, transaction};
use crate::executor::Way;
use crate::native::Native;
use crate::shared::Shared;
use crate::state::transaction::Transaction;
use crate::table::{self, COMMANDS};
use crate::users::permission::{self, Found};

/// A command as it is found by its name.
struct Named<'a> {
    /// The front end's own command; with a store, all are.
    own: Option<&'static Spec>,
    /// The servers' command, if Redis itself is replicated.
    served: Option<&'a apps::redis::Spec>,
    way: Way,
}

impl<'a> Named<'a> {
    fn find(shared: &'a Shared, name: &[u8]) -> Named<'a> {
        let Some(native) = &shared.native else {
            return Named {
                own: table::find(name),
                served: None,
                way: Way::Server,
            };
        };
        let served = native.named(name);
        let way = served.map_or_else(|| way_of(name), |spec| shared.ways[spec.number]);
        let own = match way {
            Way::Own(at) => Some(&COMMANDS[at]),
            _ => None,
        };
        Named { own, served, way }
    }

    fn is_open(&self) -> bool {
        self.own.is_some_and(Spec::is_open)
    }

    /// Returns true if the command is executed at once even in an open transaction.
    fn is_at_once(&self) -> bool {
        self.own
            .is_some_and(|spec| transaction::is_at_once(spec.name))
    }
}

/// Returns who executes each of the servers' commands, by its number in their catalogue.
pub(crate) fn ways(native: &Native) -> Vec<Way> {
    let names = native.catalogue().specs().map(|spec| spec.name.as_bytes());
    names.map(way_of).collect()
}

fn way_of(name: &[u8]) -> Way {
    let own = table::place(name).filter(|at| COMMANDS[*at].is_of_the_connection());
    match (own, channels::find(name), name) {
        (Some(at), ..) => Way::Own(at),
        (None, Some(way), _) => way,
        (None, None, b"wait") => Way::Replicas,
        (None, None, b"scan") => Way::Scan,
        _ => Way::Server,
    }
}

/// Executes one command, or returns what must go into the log.
pub(crate) fn run(call: &mut Call<'_>) -> Outcome {
    let name = call.args[0];
    // A browser that was tricked into sending a form to this port sends these words.
    if name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:") {
        return Outcome::Close;
    }
    let (shared, named) = (call.shared, Named::find(call.shared, name));
    let native = shared.native.as_ref();
    let shown = named.own.map_or("NULL", |spec| spec.name);
    call.client.last_command.be(shown, call.args);
    // The table has all commands of a store, so a wrong one is refused even if the client hasn't
    // authenticated, as by Redis.
    if native.is_none() && !is_right(call, named.own) {
        return Outcome::Answered;
    }
    if !may_send(call, &named) || queues(call, &named) || is_refused_while_listening(call) {
        return Outcome::Answered;
    }
    match (named.own, native) {
        (Some(spec), Some(_)) if !is_right(call, Some(spec)) => Outcome::Answered,
        (Some(spec), _) => (spec.run)(call),
        (None, Some(native)) => redis::run(call, native, (named.served, named.way)),
        (None, None) => Outcome::Answered,
    }
}

/// Returns true if there is such a command with so many arguments. Otherwise answers with an error;
/// queued commands won't be executed then.
fn is_right(call: &mut Call<'_>, spec: Option<&Spec>) -> bool {
    let Some(spec) = spec else {
        refuse_transaction(call);
        let text = unknown_command(call.args);
        call.fail(text);
        return false;
    };
    if !spec.takes(call.args.len()) {
        refuse_arguments(call, spec);
        return false;
    }
    let has_too_many = spec.has_too_many(call.args.len());
    if has_too_many {
        refuse_transaction(call);
        refuse_many(call, spec.name);
    }
    !has_too_many
}

/// Refuses a command that has too few or too many arguments.
fn refuse_arguments(call: &mut Call<'_>, spec: &Spec) {
    let why = format!("wrong number of arguments for '{}' command", spec.name);
    match spec.name {
        "exec" => transaction::abort(call, &why),
        _ => {
            refuse_transaction(call);
            call.fail(format!("ERR {why}"));
        }
    }
}

/// Returns Redis's own words for an unknown command, with as much of the arguments as Redis shows.
fn unknown_command(args: &[&[u8]]) -> Vec<u8> {
    const SHOWN: usize = 128;
    let text_of = |bytes: &[u8], len: usize| -> Vec<u8> {
        let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
        text[..text.len().min(len)].to_vec()
    };
    let mut shown = Vec::new();
    for arg in &args[1..] {
        if shown.len() >= SHOWN {
            break;
        }
        let room = SHOWN - shown.len();
        shown.push(b'\'');
        shown.extend(text_of(arg, room));
        shown.extend_from_slice(b"' ");
    }
    let mut text = b"ERR unknown command '".to_vec();
    text.extend(text_of(args[0], SHOWN));
    text.extend_from_slice(b"', with args beginning with: ");
    text.extend(shown);
    text
}

/// Returns true if the client has authenticated or needn't have for this command. Otherwise answers
/// with an error.
fn may_send(call: &mut Call<'_>, named: &Named<'_>) -> bool {
    let may_send = call.client.is_authenticated() || named.is_open();
    if may_send && call.client.is_authenticated() {
        return is_permitted(call, named);
    }
    if !may_send {
        // The commands that follow may come with a password, but a store's client still means them
        // as part of this transaction. Redis would execute them.
        let is_multi = named.own.is_some_and(|spec| spec.name == "multi");
        if is_multi && call.shared.native.is_none() {
            call.client.transaction = Some(Transaction::broken());
        }
        call.fail("NOAUTH Authentication required.");
    }
    may_send
}

/// Returns true if the client's user may send this command. Otherwise answers with an error.
fn is_permitted(call: &mut Call<'_>, named: &Named<'_>) -> bool {
    let found = Found {
        own: named.own,
        served: named.served,
    };
    let refusal = permission::refusal(call, found);
    if let Some(why) = &refusal {
        refuse_transaction(call);
        call.fail(why);
    }
    refusal.is_none()
}

/// Queues a command of an open transaction, or refuses it there. Returns false if there is none, or
/// if the command must be executed at once.
fn queues(call: &mut Call<'_>, named: &Named<'_>) -> bool {
    let is_open = call.client.is_authenticated() && call.client.transaction.is_some();
    if !is_open || named.is_at_once() {
        return false;
    }
    let shared = call.shared;
    match (&shared.native, named.own) {
        (Some(native), _) => redis::transaction::queue(call, native, named.served),
        (None, Some(spec)) => transaction::queue_own(call, spec),
        (None, None) => {}
    }
    true
}

/// Refuses most commands of a client that has subscribed and speaks RESP2; returns true if this one
/// is refused.
fn is_refused_while_listening(call: &mut Call<'_>) -> bool {
    let is_refused = call.client.is_only_listening() && !channels::is_for_subscribers(call.args[0]);
    if is_refused {
        let name = String::from_utf8_lossy(call.args[0]).to_ascii_lowercase();
        call.fail(format!(
            "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / \
             RESET are allowed in this context"
        ));
    }
    is_refused
}

/// Returns true if the pause postpones this command. Unknown commands, and commands with too few
/// arguments, are answered at once.
pub(crate) fn is_postponed(call: &Call<'_>) -> bool {
    let pause = call.shared.pause.borrow();
    if !pause.is_on() || !call.client.is_authenticated() {
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
    let is_native = call.shared.native.is_some();
    let needs_time = pause.is_for_time() && is_native && is_stamped(call);
    let may_change = || writes || queued.is_some_and(of_queued);
    needs_time || pause.is_of_all() || pause.is_of_writes() && may_change()
}

/// Returns whether a command may change anything, or nothing if there is no such command.
fn may_write<A: AsRef<[u8]>>(call: &Call<'_>, args: &[A]) -> Option<bool> {
    if let Some(native) = &call.shared.native {
        return native.find(args).map(apps::redis::Spec::may_write);
    }
    let spec = table::find(args[0].as_ref())?;
    spec.takes(args.len()).then(|| spec.writes())
}

/// Returns true if a command goes to the servers, with a stamp.
fn is_stamped(call: &Call<'_>) -> bool {
    let named = Named::find(call.shared, call.args[0]);
    match (named.own, named.way) {
        (Some(spec), _) => matches!(spec.name, "exec" | "watch") || is_config_set(call.args),
        (None, way) => !matches!(way, Way::Subscription | Way::PubSub),
    }
}
