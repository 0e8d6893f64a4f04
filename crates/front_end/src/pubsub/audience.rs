// SPDX-License-Identifier: Apache-2.0
//! Counts the subscribers of each name at the other front ends, and tells the others this front
//! end's own counts.
//!
//! Whenever the number of a front end's clients that have subscribed to a name changes, the front
//! end writes the new number to the log, in a message of a channel of the front ends' own. So all
//! front ends have the same counts at the same place in the log. [S-AUDIENCE]
//!
//! - A front end that starts, or whose replica has taken another replica's state, asks the others
//!   for all their counts. It uses no message before its own question in the log, because the
//!   messages before that may be replayed.
//! - A front end with subscribers sends a message every few seconds; a front end that sends none
//!   for longer is forgotten.
//! - The messages are numbered, so a missing one is noticed; then the front end asks for all counts
//!   again.
//!
//! There may be very many names, so every walk through them is divided into turns.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::time::{Duration, Instant};

use crate::pubsub::by_name::ByName;
use crate::state::subscriptions::{KINDS, NameKind};
use crate::turns::{LOOK_UP, Turn};

/// A front end with subscribers sends a message at least this often, so that the others don't
/// forget it.
pub(crate) const BEAT: Duration = Duration::from_secs(2);
/// A front end that sends no message for this time is forgotten.
pub(crate) const FORGOTTEN: Duration = Duration::from_secs(6);
/// The shortest time between two questions for all counts, and between the loss of a message and
/// the next message.
pub(crate) const AGAIN: Duration = Duration::from_secs(1);
/// A message has at most this many bytes.
const MAX_MESSAGE: usize = 64 << 10;
/// A name longer than this is counted at its own front end only.
const MAX_NAME: usize = 32 << 10;
/// The queue of changed names may take this many bytes; beyond it the front end tells all its
/// counts instead.
const MAX_QUEUE_BYTES: usize = 8 << 20;
/// The names of one other front end may take this many bytes; further names aren't counted.
const MAX_OTHERS_BYTES: usize = 64 << 20;
/// The bytes that a name takes besides its text, roughly.
const NAME: usize = 64;

const ASKS: u8 = 1;
const EVERYTHING: u8 = 2;
const HEAD_LEN: usize = 2 + 8 + 8 + 1;
const ENTRY_LEN: usize = 1 + 4 + 4;

const ALL_KINDS: [NameKind; KINDS] = [NameKind::Channel, NameKind::Pattern, NameKind::Shard];

/// The number of subscribers of each name, for each kind.
type Counts = [BTreeMap<Vec<u8>, u32>; KINDS];

/// Another front end, with the counts that it has told.
struct Other {
    start: u64,
    number: u64,
    heard: Instant,
    bytes: usize,
    counts: Counts,
}

/// The names whose counts have changed since they were last told, each once. Changes are numbered,
/// and a name keeps the number of its first change.
#[derive(Default)]
struct Queue {
    all: VecDeque<(u64, NameKind, Vec<u8>)>,
    names: BTreeSet<(NameKind, Vec<u8>)>,
    bytes: usize,
}

/// The progress of this front end in telling all its counts.
struct Sweep {
    kind: NameKind,
    /// The last name that was told.
    after: Option<Vec<u8>>,
    /// True if the queue was emptied because of this sweep. Then its changes count as told only
    /// when the sweep ends.
    stands_for_changes: bool,
}

/// The counts of the other front ends, and what this front end still has to tell them.
pub(crate) struct Audience {
    node: u16,
    /// The number of this start of the front end, which no other start has; 0 if there is nobody to
    /// tell.
    start: u64,
    /// The number of the last message.
    number: u64,
    /// The number of the message that was sent and isn't in the log yet.
    under_way: Option<u64>,
    /// Nothing is sent before this time; set after a message was lost.
    not_before: Option<Instant>,
    queue: Queue,
    /// Three numbers of changes: all changes so far, those that were told to the other front ends,
    /// and those that are in the log.
    changes: u64,
    said: u64,
    known: u64,
    says_everything: bool,
    sweep: Option<Sweep>,
    asks: bool,
    /// The front ends of which a message is missing, each with the time since when.
    missing: BTreeMap<u16, Instant>,
    asked: Option<Instant>,
    /// The number of the first message that asks. No other front end's message counts before this
    /// one is in the log.
    believes_from: Option<u64>,
    last_said: Instant,
    /// The other front ends by node; one that starts anew replaces its former self.
    others: BTreeMap<u16, Other>,
    /// Counts that aren't used any more and are still to be freed.
    discarded: Vec<Counts>,
}

impl Audience {
    /// Creates an audience that still has to ask for all counts, unless `start` is 0.
    pub fn new(node: u16, start: u64) -> Audience {
        Audience {
            node,
            start,
            number: 0,
            under_way: None,
            not_before: None,
            queue: Queue::default(),
            changes: 0,
            said: 0,
            known: 0,
            says_everything: true,
            sweep: None,
            asks: true,
            missing: BTreeMap::new(),
            asked: None,
            believes_from: None,
            last_said: Instant::now(),
            others: BTreeMap::new(),
            discarded: Vec::new(),
        }
    }

    // ---- Messages of this front end

    /// Notes that the number of a name's subscribers has changed here, so that the next message
    /// tells it.
    pub fn changed(&mut self, kind: NameKind, name: &[u8]) {
        if self.start == 0 {
            return;
        }
        self.changes += 1;
        if name.len() > MAX_NAME || self.stands_for_changes() {
            return;
        }
        self.queue.push(self.changes, kind, name);
        if self.queue.bytes > MAX_QUEUE_BYTES {
            self.says_everything = true;
        }
    }

    /// Returns true if changes needn't be queued, because the queue is full and all counts will be
    /// told instead.
    fn stands_for_changes(&self) -> bool {
        self.says_everything && self.queue.bytes > MAX_QUEUE_BYTES
    }

    /// Returns the number of changes so far; [`knows`](Self::knows) tells when they are in the log.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns true if the first `changes` changes are in the log.
    pub fn knows(&self, changes: u64) -> bool {
        self.start == 0 || changes <= self.known
    }

    /// Returns when the next message is due, or nothing if there is none to send or one is still on
    /// its way into the log.
    pub fn deadline(&self, has_subscribers: bool) -> Option<Instant> {
        if self.start == 0 || self.under_way.is_some() {
            return None;
        }
        let has_news = !self.queue.all.is_empty()
            || self.sweep.is_some()
            || self.says_everything && has_subscribers;
        let all = [
            self.is_to_ask().then(|| self.asks_at()),
            has_subscribers.then(|| self.last_said + BEAT),
            has_news.then_some(self.last_said),
        ];
        let first = all.into_iter().flatten().min();
        first.map(|at| self.not_before.map_or(at, |before| at.max(before)))
    }

    fn is_to_ask(&self) -> bool {
        self.asks || !self.missing.is_empty()
    }

    fn asks_at(&self) -> Instant {
        self.asked.map_or(self.last_said, |at| at + AGAIN)
    }

    /// Returns the next message, with as many names as this turn has time for. `own` are the
    /// subscribers here.
    pub fn say(&mut self, now: Instant, own: &[ByName; KINDS], turn: &Turn) -> Vec<u8> {
        self.number += 1;
        let mut flags = 0;
        if self.is_to_ask() && self.asks_at() <= now {
            flags |= ASKS;
            self.asks = false;
            self.asked = Some(now);
            self.believes_from.get_or_insert(self.number);
        }
        // After such a silence the others may have forgotten this front end, so it tells all its
        // counts.
        let was_silent = now >= self.last_said + 2 * BEAT;
        if self.says_everything || was_silent {
            flags |= EVERYTHING;
            self.begin_sweep(turn);
        }
        let mut text = Vec::new();
        text.extend(self.node.to_be_bytes());
        text.extend(self.start.to_be_bytes());
        text.extend(self.number.to_be_bytes());
        text.push(flags);
        self.say_changes(&mut text, own, turn);
        self.say_names(&mut text, own, turn);
        let is_swept = |sweep: &Sweep| !sweep.stands_for_changes;
        if self.sweep.as_ref().is_none_or(is_swept) {
            let first = self.queue.all.front().map(|(change, ..)| *change);
            self.said = first.map_or(self.changes, |first| first - 1);
        }
        self.under_way = Some(self.number);
        self.last_said = now;
        text
    }

    fn begin_sweep(&mut self, turn: &Turn) {
        let before = self.sweep.take();
        let stood_for_changes = before.is_some_and(|sweep| sweep.stands_for_changes);
        let stands_for_changes = self.stands_for_changes();
        if stands_for_changes {
            turn.spend(self.queue.all.len());
            self.queue = Queue::default();
        }
        self.says_everything = false;
        self.sweep = Some(Sweep {
            kind: NameKind::Channel,
            after: None,
            stands_for_changes: stands_for_changes || stood_for_changes,
        });
    }

    fn say_changes(&mut self, text: &mut Vec<u8>, own: &[ByName; KINDS], turn: &Turn) {
        while let Some((_, _, name)) = self.queue.all.front() {
            if turn.is_over() || !has_room(text, name) {
                return;
            }
            turn.spend(LOOK_UP);
            if let Some((kind, name)) = self.queue.pop() {
                let members = own[kind as usize].get(&name);
                put_entry(text, kind, &name, members.map_or(0, BTreeMap::len));
            }
        }
    }

    fn say_names(&mut self, text: &mut Vec<u8>, own: &[ByName; KINDS], turn: &Turn) {
        let Some(mut sweep) = self.sweep.take() else {
            return;
        };
        for kind in ALL_KINDS {
            if kind < sweep.kind {
                continue;
            }
            let after = sweep.after.take();
            let from = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let names = own[kind as usize].range::<[u8], _>((from, Bound::Unbounded));
            let mut last: Option<&Vec<u8>> = None;
            for (name, members) in names {
                if turn.is_over() || !has_room(text, name) {
                    sweep.kind = kind;
                    sweep.after = last.cloned().or(after);
                    self.sweep = Some(sweep);
                    return;
                }
                turn.spend(LOOK_UP);
                if name.len() <= MAX_NAME {
                    put_entry(text, kind, name, members.len());
                }
                last = Some(name);
            }
        }
    }

    /// Handles that the message on its way may never reach the log: all counts are told once more.
    pub fn lost(&mut self, now: Instant) {
        if self.under_way == self.believes_from {
            self.believes_from = None;
            self.asks = true;
        }
        self.under_way = None;
        self.not_before = Some(now + AGAIN);
        self.says_everything = true;
    }

    /// Discards all counts and asks anew, because the replica has taken another replica's state and
    /// the messages before that were missed.
    pub fn leapt(&mut self) {
        let all = std::mem::take(&mut self.others).into_values();
        self.discarded.extend(all.map(|other| other.counts));
        self.under_way = None;
        self.believes_from = None;
        self.known = self.said;
        self.says_everything = true;
        self.asks = true;
        self.missing.clear();
        self.asked = None;
    }

    // ---- Messages of all front ends

    /// Takes a front end's message from the log, from offset `at` on; other texts are ignored.
    /// Returns true if the message is done, and false if the turn was over first.
    pub fn hear(&mut self, text: &[u8], at: &mut usize, now: Instant, turn: &Turn) -> bool {
        let Some(head) = text.first_chunk::<HEAD_LEN>() else {
            return true;
        };
        let word = |at: usize| u64::from_be_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let node = u16::from_be_bytes([head[0], head[1]]);
        let (start, number) = (word(2), word(10));
        if *at == 0 {
            turn.spend(LOOK_UP);
            *at = HEAD_LEN;
            if !self.is_to_take(node, (start, number), head[18], now) {
                return true;
            }
        }
        // The front end may have been forgotten since the message was begun.
        let other = self.others.get_mut(&node);
        other.is_none_or(|other| other.take(text, at, turn))
    }

    /// Returns true if the entries of a message with this head are to be taken; notes what the head
    /// alone tells.
    fn is_to_take(
        &mut self,
        node: u16,
        (start, number): (u64, u64),
        flags: u8,
        now: Instant,
    ) -> bool {
        if (node, start) == (self.node, self.start) {
            if self.under_way == Some(number) {
                self.under_way = None;
                self.known = self.said;
            }
            return false;
        }
        // A message with this node's number is of an earlier start, whose subscribers are gone.
        if self.start == 0 || node == self.node {
            return false;
        }
        self.says_everything |= flags & ASKS != 0;
        let has_asked = |from| self.under_way.is_none_or(|number| number > from);
        if !self.believes_from.is_some_and(has_asked) {
            return false;
        }
        let is_next = |of: &Other| Some((start, number)) == of.next();
        if flags & EVERYTHING != 0 {
            self.discard(node);
            self.missing.remove(&node);
        } else if !self.others.get(&node).is_some_and(is_next) {
            self.discard(node);
            self.missing.insert(node, now);
            return false;
        }
        let other = self.others.entry(node).or_insert_with(|| Other {
            start,
            number,
            heard: now,
            bytes: 0,
            counts: Counts::default(),
        });
        (other.number, other.heard) = (number, now);
        true
    }

    fn discard(&mut self, node: u16) {
        let gone = self.others.remove(&node);
        self.discarded.extend(gone.map(|other| other.counts));
    }

    /// Forgets the front ends that have sent no message for long.
    pub fn forget_silent(&mut self, now: Instant) {
        let is_silent = |heard: Instant| now >= heard + FORGOTTEN;
        let all = self.others.iter();
        let silent: Vec<u16> = all
            .filter(|(_, other)| is_silent(other.heard))
            .map(|(node, _)| *node)
            .collect();
        silent.into_iter().for_each(|node| self.discard(node));
        self.missing.retain(|_, since| !is_silent(*since));
    }

    /// Returns true if [`tidy`](Self::tidy) has something to do.
    pub fn is_untidy(&self) -> bool {
        !self.discarded.is_empty()
    }

    /// Frees the discarded counts, until the turn is over.
    pub fn tidy(&mut self, turn: &Turn) {
        while let Some(counts) = self.discarded.last_mut() {
            for of_kind in counts {
                while !turn.is_over() && of_kind.pop_first().is_some() {
                    turn.spend(LOOK_UP);
                }
            }
            if turn.is_over() {
                return;
            }
            self.discarded.pop();
        }
    }

    /// Returns how many other front ends are known.
    pub fn others(&self) -> usize {
        self.others.len()
    }

    /// Returns how many clients of other front ends have subscribed to a name.
    pub fn count(&self, kind: NameKind, name: &[u8]) -> usize {
        let of = |other: &Other| other.counts[kind as usize].get(name).copied();
        let counts = self.others.values().filter_map(of);
        counts.map(|count| count as usize).sum()
    }

    /// Returns the first name from the bound `from` on that has subscribers at another front end.
    pub fn first(&self, kind: NameKind, from: Bound<&[u8]>) -> Option<&[u8]> {
        let names = self.others.values().filter_map(|other| {
            let mut names = other.counts[kind as usize].range::<[u8], _>((from, Bound::Unbounded));
            names.next().map(|(name, _)| name.as_slice())
        });
        names.min()
    }
}

/// Returns true if a message has room for one more name; the first name always has room, as an
/// overlong one is only skipped.
fn has_room(text: &[u8], name: &[u8]) -> bool {
    text.len() == HEAD_LEN || text.len() + ENTRY_LEN + name.len() <= MAX_MESSAGE
}

fn put_entry(text: &mut Vec<u8>, kind: NameKind, name: &[u8], count: usize) {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    text.push(kind as u8);
    text.extend(count.to_be_bytes());
    text.extend((name.len() as u32).to_be_bytes());
    text.extend(name);
}

impl Queue {
    fn push(&mut self, change: u64, kind: NameKind, name: &[u8]) {
        if self.names.insert((kind, name.to_vec())) {
            self.bytes += NAME + 2 * name.len();
            self.all.push_back((change, kind, name.to_vec()));
        }
    }

    fn pop(&mut self) -> Option<(NameKind, Vec<u8>)> {
        let (_, kind, name) = self.all.pop_front()?;
        self.bytes -= NAME + 2 * name.len();
        let of = (kind, name);
        self.names.remove(&of);
        Some(of)
    }
}

impl Other {
    /// Returns the start and number that the front end's next message must have.
    fn next(&self) -> Option<(u64, u64)> {
        Some((self.start, self.number.checked_add(1)?))
    }

    /// Takes a message's entries from offset `at` on. Returns true if all are taken, and false if
    /// the turn was over first.
    fn take(&mut self, text: &[u8], at: &mut usize, turn: &Turn) -> bool {
        while let Some((kind, name, count)) = entry(&text[*at..]) {
            if turn.is_over() {
                return false;
            }
            turn.spend(LOOK_UP);
            *at += ENTRY_LEN + name.len();
            let (of_kind, cost) = (&mut self.counts[kind as usize], NAME + name.len());
            if of_kind.remove(name).is_some() {
                self.bytes -= cost;
            }
            if count > 0 && self.bytes + cost <= MAX_OTHERS_BYTES {
                self.bytes += cost;
                of_kind.insert(name.to_vec(), count);
            }
        }
        true
    }
}

/// Returns the entry at the beginning of `text`, if there is a whole one.
fn entry(text: &[u8]) -> Option<(NameKind, &[u8], u32)> {
    let (head, rest) = text.split_first_chunk::<ENTRY_LEN>()?;
    let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("4 bytes"));
    let kind = ALL_KINDS.into_iter().find(|kind| *kind as u8 == head[0])?;
    Some((kind, rest.get(..word(5) as usize)?, word(1)))
}
