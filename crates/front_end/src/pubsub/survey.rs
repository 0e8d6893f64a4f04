// SPDX-License-Identifier: Apache-2.0
//! Counts the subscribers at all front ends: for PUBLISH, whose answer is the number of clients
//! that get the message, and for PUBSUB. There may be very many names, so the count is divided into
//! turns.

use std::ops::Bound;

use apps::glob::Search;
use apps::redis::AUDIENCE;

use crate::pubsub::channels::{COMPARED, Channels};
use crate::pubsub::name_list::NameList;
use crate::resp::Writer;
use crate::state::subscriptions::NameKind;
use crate::turns::{LOOK_UP, Turn};

/// A question about subscribers that is answered by counting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Question {
    /// The number of clients that get a message.
    Receivers { channel: Vec<u8>, is_sharded: bool },
    /// The names that have subscribers and that the pattern, if any, matches.
    Names {
        kind: NameKind,
        pattern: Option<Vec<u8>>,
    },
    /// The number of subscribers of each of these names.
    Counts { kind: NameKind, names: NameList },
    /// The number of patterns that have subscribers.
    Patterns,
}

impl Question {
    /// Returns the bytes of memory that the question takes.
    pub fn memory(&self) -> usize {
        match self {
            Question::Receivers { channel, .. } => channel.len(),
            Question::Names { pattern, .. } => pattern.as_ref().map_or(0, Vec::len),
            Question::Counts { names, .. } => names.memory(),
            Question::Patterns => 0,
        }
    }
}

/// A question, and the progress of its answer.
pub(crate) struct Survey {
    question: Question,
    /// The next name to look at, if the turn was over before it was done.
    next: Option<Vec<u8>>,
    /// The progress of comparing that name with the pattern.
    search: Search,
    count: usize,
    /// The names found so far, with their counts, as the client will get them, and how many bytes
    /// they may have.
    shown: Vec<u8>,
    most: usize,
}

impl Survey {
    /// Begins to answer a question, with `most` bytes at most.
    pub fn of(question: Question, most: usize) -> Survey {
        Survey {
            question,
            next: None,
            search: Search::default(),
            count: 0,
            shown: Vec::new(),
            most,
        }
    }

    /// Continues the count. Returns true if it is done, and false if the turn was over first.
    pub fn go_on(&mut self, channels: &Channels, turn: &Turn) -> bool {
        let Survey {
            question,
            next,
            search,
            count,
            shown,
            most,
        } = self;
        let mut walk = Walk {
            channels,
            turn,
            next,
            search,
        };
        let mut writer = Writer {
            out: shown,
            resp3: false,
        };
        match question {
            Question::Receivers {
                channel,
                is_sharded,
            } => {
                let kind = kind_of(*is_sharded);
                if walk.next.is_none() {
                    turn.spend(walk.look_up());
                    *count = channels.members(kind, channel);
                }
                *is_sharded
                    || walk.go_on(NameKind::Pattern, Fits::Text(channel), |pattern| {
                        *count += channels.members(NameKind::Pattern, pattern);
                        true
                    })
            }
            Question::Names { kind, pattern } => {
                let fits = pattern.as_ref().map_or(Fits::All, |p| Fits::Pattern(p));
                walk.go_on(*kind, fits, |name| {
                    turn.copy(name.len());
                    *count += 1;
                    writer.bulk(name);
                    writer.out.len() <= *most
                })
            }
            Question::Counts { kind, names } => {
                while !turn.is_over() {
                    let Some(name) = names.take() else {
                        return true;
                    };
                    turn.spend(walk.look_up());
                    turn.copy(name.len());
                    *count += 2;
                    writer.bulk(name);
                    writer.integer(channels.members(*kind, name) as i64);
                }
                false
            }
            Question::Patterns => walk.go_on(NameKind::Pattern, Fits::All, |_| {
                *count += 1;
                true
            }),
        }
    }

    /// Writes the answer.
    pub fn show(&self, writer: &mut Writer<'_>, turn: &Turn) {
        turn.copy(self.shown.len());
        match self.question {
            Question::Receivers { .. } | Question::Patterns => writer.integer(self.count as i64),
            _ if self.shown.len() > self.most => writer.error(format!(
                "ERR more than {} MiB of names fit, which max_answer_mib in the cluster file sets: \
                 ask with another pattern",
                self.most >> 20
            )),
            _ => {
                writer.array(self.count);
                writer.out.extend_from_slice(&self.shown);
            }
        }
    }
}

/// The names that a walk looks for.
#[derive(Clone, Copy)]
enum Fits<'a> {
    All,
    /// The names that this pattern matches.
    Pattern(&'a [u8]),
    /// The patterns that match this text.
    Text(&'a [u8]),
}

/// A walk through all names of a kind that have subscribers at any front end, each once.
struct Walk<'a> {
    channels: &'a Channels,
    turn: &'a Turn,
    next: &'a mut Option<Vec<u8>>,
    search: &'a mut Search,
}

impl Walk<'_> {
    /// Returns the steps that it takes to find a name at all front ends.
    fn look_up(&self) -> usize {
        LOOK_UP * self.channels.front_ends()
    }

    /// Continues the walk and passes each wanted name to `take`, until that returns false. Returns
    /// true if the walk is done, and false if the turn was over first.
    fn go_on(
        &mut self,
        kind: NameKind,
        fits: Fits<'_>,
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> bool {
        let in_hand = self.next.take();
        let from = in_hand.as_deref().map_or(Bound::Unbounded, Bound::Included);
        let mut name = self.channels.first(kind, from);
        // The name at which the last turn ended may be gone; then the comparison begins anew with
        // the next name.
        if name != in_hand.as_deref() {
            *self.search = Search::default();
        }
        while let Some(this) = name {
            self.turn.spend(self.look_up());
            let is_wanted = self.compare(this, fits);
            if is_wanted.is_none() {
                self.pause(this);
                return false;
            }
            *self.search = Search::default();
            if is_wanted == Some(true) && !take(this) {
                return true;
            }
            name = self.channels.first(kind, Bound::Excluded(this));
            if let (Some(next), true) = (name, self.turn.is_over()) {
                self.pause(next);
                return false;
            }
        }
        true
    }

    fn pause(&mut self, at: &[u8]) {
        self.turn.copy(at.len());
        *self.next = Some(at.to_vec());
    }

    /// Returns true if the walk looks for this name, or `None` if the turn was over before that was
    /// known.
    fn compare(&mut self, name: &[u8], fits: Fits<'_>) -> Option<bool> {
        let (pattern, text) = match fits {
            Fits::All => return Some(true),
            Fits::Pattern(pattern) => (pattern, name),
            Fits::Text(text) => (name, text),
        };
        let mut steps = self.turn.left() * COMPARED;
        let before = steps;
        let found = self.search.go_on(pattern, text, &mut steps);
        self.turn.spend(1 + (before - steps) / COMPARED);
        found
    }
}

pub(crate) fn kind_of(is_sharded: bool) -> NameKind {
    match is_sharded {
        true => NameKind::Shard,
        false => NameKind::Channel,
    }
}

/// Returns the command with which a front end sends a message to the others.
pub(crate) fn message(text: &[u8]) -> [&[u8]; 3] {
    [b"SPUBLISH", AUDIENCE, text]
}
