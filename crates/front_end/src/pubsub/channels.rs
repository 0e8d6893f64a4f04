// SPDX-License-Identifier: Apache-2.0
//! Notes who has subscribed to which channels at this front end. A message goes through the log,
//! and each front end delivers it when its replica executes it; so all front ends deliver the
//! messages of a channel in the same order.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Instant;

use apps::glob::Search;
use apps::redis::{Message, News, may_be_of_keys};

use crate::pubsub::audience::Audience;
use crate::pubsub::by_name::ByName;
use crate::resp::Writer;
use crate::state::client::Client;
use crate::state::subscriptions::{KINDS, NameKind, Subscriptions};
use crate::state::waiter::Waiter;
use crate::turns::{LOOK_UP, Turn};

/// A channel's name and a pattern may have this many bytes, because each message's channel is
/// compared with all patterns.
const MAX_NAME: usize = 1_024;

/// The subscriptions of this front end's clients, and the counts of the other front ends.
pub(crate) struct Channels {
    news: News,
    by_kind: [ByName; KINDS],
    /// The number of names that may be channels of keys.
    of_keys: usize,
    audience: Audience,
}

/// This many steps of a comparison with a pattern count as one step of a turn.
pub(crate) const COMPARED: usize = 32;

/// How far the delivery of a message has come.
#[derive(Default)]
pub(crate) struct Round {
    /// True if the subscribers of the channel's name are done, and patterns are next.
    is_of_patterns: bool,
    /// The pattern at which the last turn ended; the patterns before it are done.
    pattern: Option<Vec<u8>>,
    /// How far that pattern is compared with the channel's name.
    search: Search,
    /// The last client of the current name or pattern that has got the message.
    told: u64,
}

/// One name or pattern whose subscribers get a message.
pub(crate) struct Found<'a> {
    pub kind: NameKind,
    pub pattern: &'a [u8],
    members: &'a BTreeMap<u64, Waiter>,
    told: &'a mut u64,
}

impl<'a> Found<'a> {
    /// Returns the next client that gets the message, if there is one.
    pub fn next(&mut self) -> Option<Waiter> {
        let (client, waiter) = self.members.range(*self.told + 1..).next()?;
        *self.told = *client;
        Some(*waiter)
    }
}

impl Default for Channels {
    /// Creates the channels of a front end that is the only one.
    fn default() -> Channels {
        Channels::new(News::default(), (0, 0))
    }
}

impl Channels {
    /// Creates empty channels. `start` is a number that only this start of the front end has, or 0
    /// if there are no other front ends to tell.
    pub fn new(news: News, (node, start): (u16, u64)) -> Channels {
        Channels {
            news,
            by_kind: Default::default(),
            of_keys: 0,
            audience: Audience::new(node, start),
        }
    }

    /// Returns the counts of the other front ends' subscribers.
    pub fn audience(&mut self) -> &mut Audience {
        &mut self.audience
    }

    /// Returns the message to the other front ends that is due now, if there is one.
    pub fn say(&mut self, now: Instant, turn: &Turn) -> Option<Vec<u8>> {
        self.deadline().filter(|at| *at <= now)?;
        Some(self.audience.say(now, &self.by_kind, turn))
    }

    /// Returns when [`say`](Self::say) has something to return.
    pub fn deadline(&self) -> Option<Instant> {
        let has_subscribers = self.by_kind.iter().any(|names| !names.is_empty());
        self.audience.deadline(has_subscribers)
    }

    /// Subscribes a client to a name.
    pub fn add(&mut self, kind: NameKind, name: &[u8], client: &mut Client) {
        if client.subscriptions.insert(kind, name.to_vec()) {
            let members = self.by_kind[kind as usize].entry(name.to_vec());
            let members = members.or_default();
            if members.is_empty() && is_of_keys(kind, name) {
                self.of_keys += 1;
                self.news.listen_to_keys(true);
            }
            members.insert(client.id, client.waiter());
            self.news.listen(true);
            self.audience.changed(kind, name);
            client.changes = self.audience.changes();
        }
    }

    /// Ends a client's subscription to a name.
    pub fn remove(&mut self, kind: NameKind, name: &[u8], client: &mut Client) {
        if client.subscriptions.remove(kind, name) {
            self.forget(kind, name, client.id);
            client.changes = self.audience.changes();
        }
    }

    /// Ends the client's first subscription of a kind; returns its name.
    pub fn remove_first(&mut self, kind: NameKind, client: &mut Client) -> Option<Vec<u8>> {
        let name = client.subscriptions.pop(kind)?;
        self.forget(kind, &name, client.id);
        client.changes = self.audience.changes();
        Some(name)
    }

    /// Forgets the subscriptions of a client that is gone. Returns true if all are forgotten, and
    /// false if the turn was over first.
    pub fn leave(&mut self, subscriptions: &mut Subscriptions, client: u64, turn: &Turn) -> bool {
        for kind in [NameKind::Channel, NameKind::Pattern, NameKind::Shard] {
            while !turn.is_over() {
                let Some(name) = subscriptions.pop(kind) else {
                    break;
                };
                turn.spend(LOOK_UP);
                self.forget(kind, &name, client);
            }
        }
        subscriptions.is_empty()
    }

    fn forget(&mut self, kind: NameKind, name: &[u8], client: u64) {
        let of_kind = &mut self.by_kind[kind as usize];
        if let Some(members) = of_kind.get_mut(name) {
            members.remove(&client);
            self.audience.changed(kind, name);
            if members.is_empty() {
                of_kind.remove(name);
                self.of_keys -= usize::from(is_of_keys(kind, name));
                self.news.listen_to_keys(self.of_keys > 0);
            }
        }
        let is_empty = self.by_kind.iter().all(BTreeMap::is_empty);
        self.news.listen(!is_empty);
    }

    /// Passes the subscribers of a channel, by its name and by patterns, to `tell`, which returns
    /// true if it is done with them. Returns true if the round is done, and false if the turn was
    /// over first.
    pub fn go_on(
        &self,
        round: &mut Round,
        (channel, is_sharded): (&[u8], bool),
        turn: &Turn,
        mut tell: impl FnMut(Found<'_>) -> bool,
    ) -> bool {
        if !round.is_of_patterns {
            let kind = match is_sharded {
                true => NameKind::Shard,
                false => NameKind::Channel,
            };
            turn.spend(LOOK_UP);
            if let Some(members) = self.by_kind[kind as usize].get(channel) {
                let found = Found {
                    kind,
                    pattern: b"",
                    members,
                    told: &mut round.told,
                };
                if !tell(found) {
                    return false;
                }
            }
            round.is_of_patterns = true;
            round.told = 0;
        }
        // A script may choose a longer name, to which nobody can have subscribed by a pattern
        // either.
        is_sharded
            || channel.len() > MAX_NAME
            || self.go_on_with_patterns(round, channel, turn, tell)
    }

    fn go_on_with_patterns(
        &self,
        round: &mut Round,
        channel: &[u8],
        turn: &Turn,
        mut tell: impl FnMut(Found<'_>) -> bool,
    ) -> bool {
        let in_hand = round.pattern.take();
        let from = in_hand.as_deref().map_or(Bound::Unbounded, Bound::Included);
        let all =
            self.by_kind[NameKind::Pattern as usize].range::<[u8], _>((from, Bound::Unbounded));
        for (pattern, members) in all {
            // The pattern at which the last turn ended may be gone; then the comparison begins anew
            // with the next one.
            if in_hand.as_ref() != Some(pattern) {
                (round.search, round.told) = (Search::default(), 0);
            }
            let mut steps = turn.left() * COMPARED;
            let before = steps;
            // A comparison that was finished gives its result again at once.
            let matches = round.search.go_on(pattern, channel, &mut steps);
            turn.spend(1 + (before - steps) / COMPARED);
            let is_done = match matches {
                None => false,
                Some(false) => true,
                Some(true) => tell(Found {
                    kind: NameKind::Pattern,
                    pattern,
                    members,
                    told: &mut round.told,
                }),
            };
            if !is_done {
                turn.copy(pattern.len());
                round.pattern = Some(pattern.clone());
                return false;
            }
        }
        true
    }

    /// Returns to how many names of a kind clients of this front end have subscribed.
    pub fn count(&self, kind: NameKind) -> usize {
        self.by_kind[kind as usize].len()
    }

    /// Returns how many clients of all front ends have subscribed to a name.
    pub fn members(&self, kind: NameKind, name: &[u8]) -> usize {
        let members = self.by_kind[kind as usize].get(name);
        members.map_or(0, BTreeMap::len) + self.audience.count(kind, name)
    }

    /// Returns the first name of a kind, from the bound `from` on, that has subscribers at any
    /// front end.
    pub fn first(&self, kind: NameKind, from: Bound<&[u8]>) -> Option<&[u8]> {
        let own = &self.by_kind[kind as usize];
        let own = own.range::<[u8], _>((from, Bound::Unbounded)).next();
        let own = own.map(|(name, _)| name.as_slice());
        own.into_iter().chain(self.audience.first(kind, from)).min()
    }

    /// Returns how many front ends [`members`](Self::members) and [`first`](Self::first) look at.
    pub fn front_ends(&self) -> usize {
        1 + self.audience.others()
    }
}

/// Returns the bytes that deliver a message to a client which has subscribed by a name or by this
/// pattern.
pub(crate) fn frame(kind: NameKind, pattern: &[u8], message: &Message, resp3: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.channel.len() + message.text.len() + 64);
    let mut writer = Writer {
        out: &mut out,
        resp3,
    };
    match kind {
        NameKind::Channel => writer.push(&[b"message"]),
        NameKind::Shard => writer.push(&[b"smessage"]),
        NameKind::Pattern => writer.push(&[b"pmessage", pattern]),
    }
    writer.bulk(&message.channel);
    writer.bulk(&message.text);
    out
}

/// Returns true for a name by which a client may get events of keys.
fn is_of_keys(kind: NameKind, name: &[u8]) -> bool {
    kind != NameKind::Shard && may_be_of_keys(name, kind == NameKind::Pattern)
}

/// Returns the error for a channel's name or a pattern that is too long.
pub(crate) fn too_long(name: &[u8]) -> Option<String> {
    (name.len() > MAX_NAME).then(|| {
        format!(
            "ERR a channel's name or pattern of {} bytes: they have {MAX_NAME} at most, which no \
             setting changes; take a shorter one",
            name.len()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEWS: &[u8] = b"news.it";

    fn client(id: u64) -> Client {
        let address = "127.0.0.1:1".parse().unwrap();
        Client::new(id, 0, address, address)
    }

    fn message() -> Message {
        Message {
            channel: NEWS.to_vec(),
            is_sharded: false,
            text: b"hi".to_vec(),
        }
    }

    /// Takes a round in turns; returns which client was told what, and the number of turns.
    fn tell(channels: &Channels, (channel, sharded): (&[u8], bool)) -> (Vec<(u64, String)>, u32) {
        let (mut round, turn) = (Round::default(), Turn::default());
        let (mut told, mut turns) = (Vec::new(), 0);
        let mut is_done = false;
        while !is_done {
            turn.begin();
            turns += 1;
            is_done = channels.go_on(&mut round, (channel, sharded), &turn, |mut found| {
                while !turn.is_over() {
                    let Some(waiter) = found.next() else {
                        return true;
                    };
                    turn.spend(LOOK_UP);
                    let frame = frame(found.kind, found.pattern, &message(), waiter.client == 2);
                    told.push((waiter.client, String::from_utf8(frame).unwrap()));
                }
                false
            });
            let longest = turn.longest();
            assert!(longest <= crate::turns::MOST_STEPS, "{longest} steps");
        }
        (told, turns)
    }

    #[test]
    fn a_message_goes_to_its_channel_and_to_patterns() {
        let mut channels = Channels::default();
        let [mut one, mut two, mut three] = [1, 2, 3].map(client);
        channels.add(NameKind::Channel, NEWS, &mut one);
        channels.add(NameKind::Pattern, b"news.*", &mut one);
        channels.add(NameKind::Pattern, b"*", &mut two);
        channels.add(NameKind::Pattern, b"other", &mut two);
        channels.add(NameKind::Shard, NEWS, &mut three);
        let told = tell(&channels, (NEWS, false)).0;
        let expected = [
            (1, "*3\r\n$7\r\nmessage\r\n$7\r\nnews.it\r\n$2\r\nhi\r\n"),
            (
                2,
                ">4\r\n$8\r\npmessage\r\n$1\r\n*\r\n$7\r\nnews.it\r\n$2\r\nhi\r\n",
            ),
            (
                1,
                "*4\r\n$8\r\npmessage\r\n$6\r\nnews.*\r\n$7\r\nnews.it\r\n$2\r\nhi\r\n",
            ),
        ];
        assert_eq!(
            told,
            expected.map(|(client, text)| (client, text.to_owned()))
        );
        assert_eq!(tell(&channels, (NEWS, true)).0.len(), 1);
        assert_eq!(tell(&channels, (b"nothing", false)).0.len(), 1);

        let (mut of_one, turn) = (std::mem::take(&mut one.subscriptions), Turn::default());
        assert!(channels.leave(&mut of_one, 1, &turn));
        assert_eq!(tell(&channels, (NEWS, false)).0.len(), 1);
        assert!(channels.remove_first(NameKind::Shard, &mut three).is_some());
        assert_eq!(tell(&channels, (NEWS, true)).0, []);
    }

    #[test]
    fn a_message_is_held_against_ten_thousand_patterns_in_turns() {
        let (mut channels, mut one) = (Channels::default(), client(1));
        let mut two = client(2);
        for n in 0..10_000 {
            // The comparison tries each of these patterns at every place of the name.
            let pattern = format!("*{}b{n}", "a*".repeat(10));
            channels.add(NameKind::Pattern, pattern.as_bytes(), &mut one);
        }
        channels.add(NameKind::Pattern, b"[", &mut two);
        channels.add(NameKind::Pattern, b"aa*", &mut two);
        let name = b"a".repeat(MAX_NAME + 1);
        let (told, turns) = tell(&channels, (&name[1..], false));
        let told: Vec<u64> = told.into_iter().map(|(client, _)| client).collect();
        assert_eq!(told, [2]);
        assert!(turns > 50, "{turns}");
        let longer = tell(&channels, (&name, false));
        assert_eq!(longer, (Vec::new(), 1), "no pattern is compared with it");
    }

    #[test]
    fn a_client_with_very_many_channels_leaves_in_turns() {
        let (mut channels, mut one) = (Channels::default(), client(1));
        let mut two = client(2);
        for n in 0..60_000u32 {
            channels.add(NameKind::Channel, &n.to_be_bytes(), &mut one);
        }
        channels.add(NameKind::Channel, &[0; 4], &mut two);
        let (mut turn, mut turns) = (Turn::default(), 1);
        while !channels.leave(&mut one.subscriptions, 1, &turn) {
            turn = Turn::default();
            turns += 1;
        }
        assert!(
            turns > 100 && channels.count(NameKind::Channel) == 1,
            "{turns}"
        );
    }
}
