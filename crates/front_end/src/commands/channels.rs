// SPDX-License-Identifier: Apache-2.0
//! Commands about channels, except those that send messages.

use apps::redis::{AUDIENCE, Spec, put_call};

use crate::call::{self, Call, Outcome};
use crate::executor::Way;
use crate::pubsub::channels::too_long;
use crate::pubsub::name_list::NameList;
use crate::pubsub::survey::{Question, kind_of, message};
use crate::pubsub::task::Task;
use crate::state::subscriptions::NameKind;

/// The commands that subscribe or unsubscribe: name, kind, and true if it subscribes.
const COMMANDS: [(&str, NameKind, bool); 6] = [
    ("subscribe", NameKind::Channel, true),
    ("unsubscribe", NameKind::Channel, false),
    ("psubscribe", NameKind::Pattern, true),
    ("punsubscribe", NameKind::Pattern, false),
    ("ssubscribe", NameKind::Shard, true),
    ("sunsubscribe", NameKind::Shard, false),
];

const OWN_NAME: &str =
    "ERR this channel is the front ends' own: take a name other than 'wirepaxos:audience'";

/// Returns who executes a command about channels, except those that send messages.
pub(crate) fn find(name: &[u8]) -> Option<Way> {
    let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
    if is("pubsub") {
        return Some(Way::PubSub);
    }
    let found = COMMANDS.iter().any(|(command, ..)| is(command));
    found.then_some(Way::Subscription)
}

/// Returns true if a client that has subscribed to something and speaks RESP2 may send this
/// command.
pub(crate) fn is_for_subscribers(name: &[u8]) -> bool {
    let others = ["ping", "quit", "reset"];
    let own = COMMANDS.iter().map(|(command, ..)| *command);
    own.chain(others)
        .any(|other| name.eq_ignore_ascii_case(other.as_bytes()))
}

/// Executes SUBSCRIBE, UNSUBSCRIBE and their variants.
pub(crate) fn subscription(call: &mut Call<'_>) -> Outcome {
    let (name, names) = (call.args[0].to_ascii_lowercase(), &call.args[1..]);
    let found = COMMANDS.iter().find(|(of, ..)| of.as_bytes() == name);
    let Some((name, kind, subscribes)) = found.copied() else {
        return Outcome::Answered;
    };
    if let Some(why) = names.iter().find_map(|name| too_long(name)) {
        call.fail(why);
        return Outcome::Answered;
    }
    if subscribes && kind == NameKind::Shard && names.contains(&AUDIENCE) {
        call.fail(OWN_NAME);
        return Outcome::Answered;
    }
    Outcome::Begun(match names {
        [] => Task::UnsubscribeAll {
            command: name,
            kind,
            said: false,
        },
        names => Task::Named {
            command: name,
            kind,
            subscribes,
            names: NameList::of(names),
        },
    })
}

/// Returns why a client may not send a message, if it may not: its channel's name is too long, or
/// the front ends' own.
pub(crate) fn refusal(spec: &Spec, args: &[&[u8]]) -> Option<String> {
    let channel = args.get(1).filter(|_| spec.is_message())?;
    let is_own = spec.name == "spublish" && *channel == AUDIENCE;
    too_long(channel).or(is_own.then(|| OWN_NAME.to_owned()))
}

/// Begins PUBSUB: sends an empty message of the front ends, and counts once it is in the log. Then
/// this front end has seen everything that the others said before. [S-AUDIENCE]
pub(crate) fn pubsub(call: &mut Call<'_>) -> Outcome {
    let question = match question(call.args) {
        Ok(question) => question,
        Err(why) => {
            call.fail(why);
            return Outcome::Answered;
        }
    };
    call.shared.turn.copy(question.memory());
    let mut bytes = Vec::new();
    if let Some(native) = &call.shared.native {
        put_call(&mut bytes, native.stamp(), false, &message(b""));
    }
    Outcome::Surveys(question, bytes)
}

/// Returns what a PUBSUB with these arguments asks, or why it is refused.
pub(crate) fn question(args: &[&[u8]]) -> Result<Question, String> {
    if call::are_too_many(args.len()) {
        return Err(call::too_many(args.len(), "pubsub"));
    }
    let shown = args
        .get(1)
        .map_or(&b""[..], |sub| &sub[..sub.len().min(128)]);
    let sub = shown.to_ascii_lowercase();
    let kind = kind_of(sub.starts_with(b"shard"));
    let pattern = args.get(2).filter(|_| sub.ends_with(b"channels"));
    if let Some(why) = pattern.and_then(|pattern| too_long(pattern)) {
        return Err(why);
    }
    Ok(match (sub.as_slice(), args.len()) {
        (b"channels" | b"shardchannels", 2 | 3) => Question::Names {
            kind,
            pattern: args.get(2).map(|pattern| pattern.to_vec()),
        },
        (b"numsub" | b"shardnumsub", _) => Question::Counts {
            kind,
            names: NameList::of(&args[2..]),
        },
        (b"numpat", 2) => Question::Patterns,
        (b"channels" | b"shardchannels" | b"numpat", _) => {
            let sub = String::from_utf8_lossy(&sub);
            return Err(format!(
                "ERR wrong number of arguments for 'pubsub|{sub}' command"
            ));
        }
        _ => {
            let shown = String::from_utf8_lossy(shown);
            return Err(format!(
                "ERR unknown subcommand '{shown}'. Try PUBSUB HELP."
            ));
        }
    })
}
