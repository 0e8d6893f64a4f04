// SPDX-License-Identifier: Apache-2.0
//! Channels: who has subscribed to what at this front end. A message goes through the log, and is told by what this replica
//! executes; so all front ends tell the messages of a channel in the same order.

use std::collections::{BTreeMap, BTreeSet};

use apps::glob;
use apps::redis::{Message, News};

use crate::commands::{Call, Outcome};
use crate::names::Waiter;
use crate::resp::Writer;

/// What is subscribed to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    Channel,
    Pattern,
    /// A channel of SPUBLISH.
    Shard,
}

/// Commands about channels; where they are of a kind, SUBSCRIBE or UNSUBSCRIBE.
const COMMANDS: [(&str, Kind, bool); 6] = [
    ("subscribe", Kind::Channel, true),
    ("unsubscribe", Kind::Channel, false),
    ("psubscribe", Kind::Pattern, true),
    ("punsubscribe", Kind::Pattern, false),
    ("ssubscribe", Kind::Shard, true),
    ("sunsubscribe", Kind::Shard, false),
];

/// Redis's own channels, for what its server does.
const OF_THE_SERVER: [&[u8]; 2] = [b"__keyspace@", b"__keyevent@"];
const NO_NOTIFICATIONS: &str =
    "ERR keyspace notifications aren't available here: no server tells what it does with its keys";

/// What one client has subscribed to.
pub(crate) type Subscriptions = BTreeSet<(Kind, Vec<u8>)>;

/// See the module.
#[derive(Default)]
pub(crate) struct Channels {
    news: News,
    subscribed: BTreeMap<(Kind, Vec<u8>), BTreeMap<u64, Waiter>>,
}

/// A message for some clients: who they are, and what is written for them.
pub(crate) struct Delivery {
    pub to: Vec<Waiter>,
    kind: Kind,
    pattern: Vec<u8>,
}

impl Channels {
    /// This one tells messages.
    pub fn new(news: News) -> Channels {
        Channels {
            news,
            ..Channels::default()
        }
    }

    fn add(&mut self, of: (Kind, Vec<u8>), waiter: Waiter) {
        let members = self.subscribed.entry(of).or_default();
        members.insert(waiter.client, waiter);
        self.news.listen(true);
    }

    fn remove(&mut self, of: &(Kind, Vec<u8>), client: u64) {
        if let Some(members) = self.subscribed.get_mut(of) {
            members.remove(&client);
            if members.is_empty() {
                self.subscribed.remove(of);
            }
        }
        self.news.listen(!self.subscribed.is_empty());
    }

    /// A client is gone, or has forgotten what it had subscribed to.
    pub fn leave(&mut self, subscriptions: &mut Subscriptions, client: u64) {
        for of in std::mem::take(subscriptions) {
            self.remove(&of, client);
        }
    }

    /// Who gets a message.
    pub fn deliveries(&self, message: &Message) -> Vec<Delivery> {
        let all = self.matching(&message.channel, message.is_sharded);
        all.map(|(kind, pattern, members)| Delivery::of(kind, pattern, members))
            .collect()
    }

    /// How many get a message: what PUBLISH answers.
    pub fn receivers(&self, channel: &[u8], is_sharded: bool) -> usize {
        let all = self.matching(channel, is_sharded);
        all.map(|(.., members)| members.len()).sum()
    }

    /// Who has subscribed to a channel, by its name and by patterns.
    fn matching<'a>(
        &'a self,
        channel: &'a [u8],
        is_sharded: bool,
    ) -> impl Iterator<Item = (Kind, &'a [u8], &'a BTreeMap<u64, Waiter>)> {
        let kind = match is_sharded {
            true => Kind::Shard,
            false => Kind::Channel,
        };
        let exact = self.subscribed.get(&(kind, channel.to_vec()));
        let exact = exact.map(|members| (kind, &b""[..], members));
        let patterns = (!is_sharded).then(|| self.of(Kind::Pattern));
        let patterns = patterns.into_iter().flatten();
        let patterns = patterns.filter(move |(pattern, _)| glob::matches(pattern, channel));
        let patterns = patterns.map(|(pattern, members)| (Kind::Pattern, pattern, members));
        exact.into_iter().chain(patterns)
    }

    /// All clients that have subscribed to something.
    pub fn everybody(&self) -> Vec<Waiter> {
        let all = self.subscribed.values().flat_map(BTreeMap::values);
        let all: BTreeMap<u64, Waiter> = all.map(|waiter| (waiter.client, *waiter)).collect();
        all.into_values().collect()
    }

    fn of(&self, kind: Kind) -> impl Iterator<Item = (&[u8], &BTreeMap<u64, Waiter>)> {
        let all = self.subscribed.range((kind, Vec::new())..);
        all.take_while(move |((of, _), _)| *of == kind)
            .map(|((_, name), members)| (name.as_slice(), members))
    }

    /// How many names of a kind anybody has subscribed to.
    pub fn count(&self, kind: Kind) -> usize {
        self.of(kind).count()
    }

    fn members(&self, kind: Kind, name: &[u8]) -> usize {
        let members = self.subscribed.get(&(kind, name.to_vec()));
        members.map_or(0, BTreeMap::len)
    }
}

impl Delivery {
    fn of(kind: Kind, pattern: &[u8], members: &BTreeMap<u64, Waiter>) -> Delivery {
        Delivery {
            to: members.values().copied().collect(),
            kind,
            pattern: pattern.to_vec(),
        }
    }

    /// What its clients get.
    pub fn frame(&self, message: &Message, resp3: bool) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = Writer {
            out: &mut out,
            resp3,
        };
        match self.kind {
            Kind::Channel => writer.push(&[b"message"]),
            Kind::Shard => writer.push(&[b"smessage"]),
            Kind::Pattern => writer.push(&[b"pmessage", &self.pattern]),
        }
        writer.bulk(&message.channel);
        writer.bulk(&message.text);
        out
    }
}

// ---- Commands

/// What a command about channels does.
pub(crate) type Run = fn(&mut Call<'_>) -> Outcome;

/// Whether the name is that of a command about channels, but for those that send messages.
pub(crate) fn find(name: &[u8]) -> Option<Run> {
    let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
    if is("pubsub") {
        return Some(pubsub);
    }
    let found = COMMANDS.iter().any(|(command, ..)| is(command));
    found.then_some(subscription as Run)
}

/// Whether a client may send this, that has subscribed to something and speaks RESP2.
pub(crate) fn is_for_subscribers(name: &[u8]) -> bool {
    let others = ["ping", "quit", "reset"];
    let own = COMMANDS.iter().map(|(command, ..)| *command);
    own.chain(others)
        .any(|other| name.eq_ignore_ascii_case(other.as_bytes()))
}

/// SUBSCRIBE, UNSUBSCRIBE, and their like.
fn subscription(call: &mut Call<'_>) -> Outcome {
    let (name, names) = (call.args[0].to_ascii_lowercase(), &call.args[1..]);
    let found = COMMANDS.iter().find(|(of, ..)| of.as_bytes() == name);
    let Some((name, kind, subscribes)) = found.copied() else {
        return Outcome::Answered;
    };
    let of_the_server = |name: &&[u8]| OF_THE_SERVER.iter().any(|of| name.starts_with(of));
    if subscribes && names.iter().any(of_the_server) {
        call.fail(NO_NOTIFICATIONS);
        return Outcome::Answered;
    }
    let names: Vec<Vec<u8>> = match names {
        [] => of_kind(call, kind),
        names => names.iter().map(|name| name.to_vec()).collect(),
    };
    if names.is_empty() {
        confirm(call, name, kind, None);
    }
    for channel in names {
        let of = (kind, channel.clone());
        let waiter = call.client.waiter();
        let mut channels = call.shared.channels.borrow_mut();
        match subscribes {
            true => {
                channels.add(of.clone(), waiter);
                call.client.subscriptions.insert(of);
            }
            false => {
                channels.remove(&of, waiter.client);
                call.client.subscriptions.remove(&of);
            }
        }
        drop(channels);
        confirm(call, name, kind, Some(&channel));
    }
    Outcome::Answered
}

fn of_kind(call: &Call<'_>, kind: Kind) -> Vec<Vec<u8>> {
    let all = call.client.subscriptions.iter();
    all.filter(|(of, _)| *of == kind)
        .map(|(_, name)| name.clone())
        .collect()
}

/// Says what was subscribed to, or no longer is, and how much still is.
fn confirm(call: &mut Call<'_>, name: &str, kind: Kind, channel: Option<&[u8]>) {
    let shards = kind == Kind::Shard;
    let all = call.client.subscriptions.iter();
    let count = all.filter(|(of, _)| (*of == Kind::Shard) == shards).count();
    let mut writer = call.writer();
    writer.push(&[name.as_bytes()]);
    match channel {
        Some(channel) => writer.bulk(channel),
        None => writer.null(),
    }
    writer.integer(count as i64);
}

fn pubsub(call: &mut Call<'_>) -> Outcome {
    let args = call.args;
    let sub = args.get(1).map(|sub| sub.to_ascii_lowercase());
    let sub = sub.unwrap_or_default();
    let channels = call.shared.channels.borrow();
    let mut writer = Writer {
        out: call.out,
        resp3: call.client.resp3,
    };
    match (sub.as_slice(), args.len()) {
        (b"channels" | b"shardchannels", 2 | 3) => {
            let names = channels.of(kind_of(&sub)).map(|(name, _)| name);
            let wanted = |name: &&[u8]| args.get(2).is_none_or(|of| glob::matches(of, name));
            let names: Vec<&[u8]> = names.filter(wanted).collect();
            writer.array(names.len());
            names.iter().for_each(|name| writer.bulk(name));
        }
        (b"numsub" | b"shardnumsub", _) => {
            writer.array(2 * (args.len() - 2));
            for name in &args[2..] {
                writer.bulk(name);
                writer.integer(channels.members(kind_of(&sub), name) as i64);
            }
        }
        (b"numpat", 2) => writer.integer(channels.count(Kind::Pattern) as i64),
        (b"channels" | b"shardchannels" | b"numpat", _) => {
            let sub = String::from_utf8_lossy(&sub);
            writer.error(format!(
                "ERR wrong number of arguments for 'pubsub|{sub}' command"
            ));
        }
        _ => {
            let shown = args
                .get(1)
                .map_or(&b""[..], |sub| &sub[..sub.len().min(128)]);
            let shown = String::from_utf8_lossy(shown);
            writer.error(format!(
                "ERR unknown subcommand '{shown}'. Try PUBSUB HELP."
            ));
        }
    }
    Outcome::Answered
}

fn kind_of(sub: &[u8]) -> Kind {
    match sub.starts_with(b"shard") {
        true => Kind::Shard,
        false => Kind::Channel,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiter(client: u64) -> Waiter {
        Waiter { index: 0, client }
    }

    #[test]
    fn a_message_goes_to_its_channel_and_to_patterns() {
        let mut channels = Channels::default();
        let name = |kind, name: &str| (kind, name.as_bytes().to_vec());
        channels.add(name(Kind::Channel, "news.it"), waiter(1));
        channels.add(name(Kind::Pattern, "news.*"), waiter(1));
        channels.add(name(Kind::Pattern, "*"), waiter(2));
        channels.add(name(Kind::Pattern, "other"), waiter(2));
        channels.add(name(Kind::Shard, "news.it"), waiter(3));
        let message = Message {
            channel: b"news.it".to_vec(),
            is_sharded: false,
            text: b"hi".to_vec(),
        };
        let frames = channels.deliveries(&message);
        let frames = frames.iter().map(|delivery| {
            let frame = delivery.frame(&message, delivery.kind == Kind::Pattern);
            let clients: Vec<u64> = delivery.to.iter().map(|to| to.client).collect();
            (clients, String::from_utf8(frame).unwrap())
        });
        let expected = [
            (
                vec![1],
                "*3\r\n$7\r\nmessage\r\n$7\r\nnews.it\r\n$2\r\nhi\r\n",
            ),
            (
                vec![2],
                ">4\r\n$8\r\npmessage\r\n$1\r\n*\r\n$7\r\nnews.it\r\n$2\r\nhi\r\n",
            ),
            (
                vec![1],
                ">4\r\n$8\r\npmessage\r\n$6\r\nnews.*\r\n$7\r\nnews.it\r\n$2\r\nhi\r\n",
            ),
        ];
        assert!(frames.eq(expected.map(|(clients, text)| (clients, text.to_owned()))));
        assert_eq!(channels.receivers(b"news.it", true), 1);
        assert_eq!(channels.receivers(b"nothing", false), 1);

        let mut of_one: Subscriptions = [
            name(Kind::Channel, "news.it"),
            name(Kind::Pattern, "news.*"),
        ]
        .into();
        channels.leave(&mut of_one, 1);
        assert_eq!(channels.receivers(b"news.it", false), 1);
        assert_eq!(channels.everybody(), [waiter(2), waiter(3)]);
    }
}
