// SPDX-License-Identifier: Apache-2.0
//! Whether a client's user may send a command.

use apps::redis::Spec as Served;

use super::user::{Described, User};
use crate::call::{Call, Spec};

/// The number of a key's bytes that are compared with a pattern in a step of a turn.
const COMPARED: usize = 128;

/// A command as it is found by its name.
#[derive(Clone, Copy)]
pub(crate) struct Found<'a> {
    /// The front end's own command.
    pub own: Option<&'static Spec>,
    /// The servers' command, if Redis itself is replicated.
    pub served: Option<&'a Served>,
}

/// Returns why the client's user may not send this command, in the words of Redis 7.0, if that is
/// so. Nobody needs a permission for commands that clients may send before AUTH.
pub(crate) fn refusal(call: &Call<'_>, found: Found<'_>) -> Option<String> {
    let user = call.client.user.as_ref()?;
    if user.may_everything() || found.own.is_some_and(Spec::is_open) {
        return None;
    }
    let found = exact(call, found);
    let described = describe(call, found)?;
    if !user.may_run(&described) {
        return may_not(&format!("run the '{}' command", described.name));
    }
    match touches(user, call, found) {
        Touched::Allowed => {}
        Touched::Foreign => return may_not("access one of the keys used as arguments"),
        Touched::Any => {
            let command = described.name;
            return may_not(&format!(
                "run the '{command}' command, which may touch any key: that takes ~* and +@all"
            ));
        }
    }
    let hears = hears(user, described.name, call.args);
    (!hears).then(|| may_not("access one of the channels used as arguments"))?
}

fn may_not(what: &str) -> Option<String> {
    Some(format!("NOPERM this user has no permissions to {what}"))
}

/// Returns the subcommand that the arguments name, which has keys and categories of its own.
fn exact<'a>(call: &Call<'a>, found: Found<'a>) -> Found<'a> {
    let native = call.shared.native.as_ref();
    let sub = native.and_then(|native| native.catalogue().find_of(found.served, call.args).ok());
    Found {
        served: sub.or(found.served),
        ..found
    }
}

/// Describes the command, unless there is none of its name.
fn describe<'a>(call: &Call<'a>, found: Found<'a>) -> Option<Described<'a>> {
    let sub = call.args.get(1).copied();
    if let Some(served) = found.served {
        return Some(Described {
            name: served.name.split('|').next().unwrap_or_default(),
            sub,
            categories: served.categories().collect(),
        });
    }
    found.own.map(|own| Described {
        name: own.name,
        sub,
        categories: own.categories(),
    })
}

/// What a command touches, as far as a user's patterns of keys are concerned.
enum Touched {
    Allowed,
    /// A key that is none of the user's.
    Foreign,
    /// Perhaps any key.
    Any,
}

fn touches(user: &User, call: &Call<'_>, found: Found<'_>) -> Touched {
    if user.may_all_keys() && !found.served.is_some_and(|served| served.is_script) {
        return Touched::Allowed;
    }
    let (mut is_foreign, mut may_be_any) = (false, false);
    let mut show = |at: usize| {
        let Some(key) = call.args.get(at) else { return };
        let compared = (key.len() + 1) * user.key_patterns();
        call.shared.turn.spend(1 + compared / COMPARED);
        is_foreign |= !user.may_touch(key);
    };
    match (found.served, found.own) {
        (Some(served), own) => {
            let others = served.each_key(call.args, |at, _| show(at));
            may_be_any = others && own.is_none();
        }
        (None, Some(own)) => own.positions(call.args.len()).for_each(show),
        (None, None) => {}
    }
    match (is_foreign, may_be_any) {
        (_, true) => Touched::Any,
        (true, false) => Touched::Foreign,
        (false, false) => Touched::Allowed,
    }
}

/// Returns true if the user may use the channels that a command names, if it names any.
fn hears(user: &User, command: &str, args: &[&[u8]]) -> bool {
    let names = args.get(1..).unwrap_or_default();
    match command {
        "publish" | "spublish" => names.first().is_none_or(|channel| user.may_hear(channel)),
        "subscribe" | "ssubscribe" => names.iter().all(|channel| user.may_hear(channel)),
        "psubscribe" => names.iter().all(|pattern| user.may_hear_pattern(pattern)),
        _ => true,
    }
}
