// SPDX-License-Identifier: Apache-2.0
//! Clients that wait for something to appear at a key, by BLPOP and its like, or XREAD with BLOCK.
//! Nothing waits in the log: a waiting command is tried in a form that doesn't wait, and if there
//! is nothing, it is tried again when one of its keys may have changed. The commands that this
//! replica executes tell of such changes.
//!
//! Clients with the same question stand in a queue, and only the first of them tries. If it gets
//! something, the next one tries, until there is nothing. Different questions that take from the
//! same key are tried one after the other as well, in the order in which the clients began to wait.
//! So the client that has waited longest here is served first, and a change costs as many tries as
//! it serves clients, and one more for each question.

pub(crate) mod lines;
pub(crate) mod waiting;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Bound;
use std::time::{Duration, Instant};

use apps::redis::News;
use paxos::PartitionId;

use crate::state::waiter::Waiter;
use crate::turns::{LOOK_UP, Turn};
use crate::waits::lines::Lines;

/// The most keys for which all clients together may wait, and the most for which one command may.
const MAX_KEYS: usize = 1 << 20;
pub(crate) const MAX_KEYS_EACH: usize = 4_096;
/// The least time between two tries of a command if it is only a guess that one of its keys has
/// changed.
const BETWEEN_GUESSES: Duration = Duration::from_millis(20);
/// This is added to that time for each question, because each guess is a command in the log, which
/// all clients share.
const BETWEEN_GUESSES_EACH: Duration = Duration::from_micros(500);

const TOO_MANY: &str = "LIMIT not executed: clients of this front end wait for 1,048,576 keys \
                        together at most, which no setting changes: wait at another replica, or \
                        for fewer keys";
const UNBLOCKED: &[u8] = b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n";

/// The command for which a client waits; clients with the same question share it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Question {
    pub pid: PartitionId,
    /// True if the answer is written in RESP3.
    pub resp3: bool,
    /// True if the command takes what it gets, so that nobody else gets it.
    pub takes: bool,
    /// The command in the form that waits for ever.
    pub args: Vec<Vec<u8>>,
}

/// The next act of a connection whose client waits.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Act {
    /// Try the command, with these keys first, which have changed in this order.
    Try(Vec<Vec<u8>>),
    /// Give this answer, because the wait is over.
    Answer(Vec<u8>),
}

/// A client that waits.
struct Waiting {
    waiter: Waiter,
    deadline: Option<Instant>,
    /// The answer that ends the wait, unless a try that runs now finds something. `Some(None)` ends
    /// it as if its time were up.
    ends: Option<Option<Vec<u8>>>,
}

/// The time of the next try.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum NextTry {
    No,
    /// One of the keys may have changed.
    Later,
    Now,
}

struct OpenQuestion {
    question: Question,
    /// The keys, each once.
    keys: Vec<Vec<u8>>,
    /// The clients with this question, by their positions among all that ever began to wait; the
    /// first one tries.
    waiting: BTreeMap<u64, Waiting>,
    /// The positions of the clients whose wait ends as soon as a try finds nothing.
    ended: BTreeSet<u64>,
    tries: bool,
    again: NextTry,
    /// The keys that have changed since a try found nothing.
    changed: Changed,
    /// The time of the last try.
    tried: Instant,
    /// The answer that says that nothing was found; unknown before the first try.
    nothing: Option<Vec<u8>>,
}

/// Keys in the order of their first change; the latest try was told of the first `tried` of them.
#[derive(Default)]
struct Changed {
    keys: Vec<Vec<u8>>,
    known: HashSet<Vec<u8>>,
    tried: usize,
}

impl Changed {
    fn note(&mut self, key: &[u8]) {
        if self.known.insert(key.to_vec()) {
            self.keys.push(key.to_vec());
        }
    }

    fn forget_tried(&mut self) {
        let known = &mut self.known;
        self.keys
            .drain(..std::mem::take(&mut self.tried))
            .for_each(|key| {
                known.remove(&key);
            });
    }
}

/// A change of one or more keys, kept until it is noted at all questions about them. `after` is the
/// last question at which it was noted.
struct Change {
    what: What,
    after: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum What {
    Key(Vec<u8>),
    /// Any key of this partition may have changed; with `NextTry::Later` that is only a guess.
    Any(PartitionId, NextTry),
}

/// The questions of all clients that wait, and the tries that are due.
#[derive(Default)]
pub(crate) struct Waits {
    news: News,
    last: u64,
    /// The questions by id, in the order in which they were first asked.
    asked: BTreeMap<u64, OpenQuestion>,
    known: HashMap<Question, u64>,
    by_key: HashMap<Vec<u8>, BTreeSet<u64>>,
    /// The changes that aren't noted at all questions yet, and those of them for which that hasn't
    /// begun.
    changes: VecDeque<Change>,
    new_changes: HashSet<What>,
    lines: Lines,
    keys: usize,
    begun: u64,
    /// For each client the question for which it waits, and its position.
    clients: HashMap<u64, (u64, u64)>,
    /// The number of clients whose question is known to have found nothing.
    in_vain: usize,
    deadlines: BTreeSet<(Instant, u64)>,
    /// The questions that are tried again later.
    later: BTreeSet<(Instant, u64)>,
    acts: VecDeque<(Waiter, Act)>,
    /// Steps that other functions have used. They count for the next turn of
    /// [`go_on`](Self::go_on).
    steps: usize,
}

impl Waits {
    /// Creates an empty list; `news` tells which keys have changed.
    pub fn new(news: News) -> Waits {
        Waits {
            news,
            ..Waits::default()
        }
    }

    /// Returns how many clients wait now, because a try of their command has found nothing.
    pub fn count(&self) -> usize {
        self.in_vain
    }

    /// Lets a client wait for one of these keys, for ever if there is no deadline; returns why if
    /// it can't.
    pub fn begin(
        &mut self,
        waiter: Waiter,
        question: Question,
        keys: &[Vec<u8>],
        deadline: Option<Instant>,
    ) -> Result<(), &'static str> {
        let id = match self.known.get(&question) {
            Some(id) => *id,
            None => self.ask(question, keys)?,
        };
        self.begun += 1;
        let position = self.begun;
        let asked = self.asked.get_mut(&id).expect("known");
        let is_first = asked.waiting.is_empty();
        let waiting = Waiting {
            waiter,
            deadline,
            ends: None,
        };
        asked.waiting.insert(position, waiting);
        self.in_vain += usize::from(asked.nothing.is_some());
        self.clients.insert(waiter.client, (id, position));
        self.deadlines
            .extend(deadline.map(|at| (at, waiter.client)));
        self.steps += LOOK_UP;
        if is_first {
            self.look_at(id, NextTry::Now);
            self.try_ready();
        }
        Ok(())
    }

    fn ask(&mut self, question: Question, keys: &[Vec<u8>]) -> Result<u64, &'static str> {
        let mut once = HashSet::new();
        let all = keys.iter().filter(|key| once.insert(key.as_slice()));
        let keys: Vec<Vec<u8>> = all.cloned().collect();
        if self.keys + keys.len() > MAX_KEYS {
            return Err(TOO_MANY);
        }
        self.steps += LOOK_UP * keys.len();
        self.keys += keys.len();
        self.last += 1;
        let id = self.last;
        for key in &keys {
            self.news.wait_for(key);
            self.by_key.entry(key.clone()).or_default().insert(id);
        }
        self.known.insert(question.clone(), id);
        let asked = OpenQuestion {
            question,
            keys,
            waiting: BTreeMap::new(),
            ended: BTreeSet::new(),
            tries: false,
            again: NextTry::No,
            changed: Changed::default(),
            tried: Instant::now(),
            nothing: None,
        };
        self.asked.insert(id, asked);
        Ok(id)
    }

    /// Returns the next thing that a connection must do.
    pub fn next_act(&mut self) -> Option<(Waiter, Act)> {
        let (waiter, mut act) = self.acts.pop_front()?;
        let of = self.clients.get(&waiter.client);
        let asked = of.and_then(|(id, _)| self.asked.get_mut(id));
        // The try is told all keys that have changed up to now.
        if let (Act::Try(first), Some(asked)) = (&mut act, asked) {
            first.clone_from(&asked.changed.keys);
            asked.changed.tried = first.len();
        }
        Some((waiter, act))
    }

    /// Returns true if there is something to do at once.
    pub fn is_busy(&self) -> bool {
        !self.acts.is_empty() || !self.changes.is_empty()
    }

    // ---- What has changed

    /// Notes that this key may have changed.
    pub fn changed(&mut self, key: &[u8]) {
        if self.by_key.contains_key(key) {
            self.push_change(What::Key(key.to_vec()));
        }
    }

    /// Notes that any key of this partition may have changed. If `is_certain`, changes were missed
    /// and all questions are tried at once; otherwise they are tried after a while, as this is only
    /// a guess.
    pub fn any_changed(&mut self, pid: PartitionId, is_certain: bool) {
        let again = match is_certain {
            true => NextTry::Now,
            false => NextTry::Later,
        };
        self.push_change(What::Any(pid, again));
    }

    fn push_change(&mut self, what: What) {
        if self.new_changes.insert(what.clone()) {
            self.changes.push_back(Change { what, after: 0 });
        }
    }

    /// Ends the waits whose time is up, and finds the questions that may succeed now. Stops when
    /// the turn is over.
    pub fn go_on(&mut self, now: Instant, turn: &Turn) {
        self.spend(turn);
        while !turn.is_over() && self.end_late(now) {
            self.spend(turn);
        }
        while !turn.is_over() && self.try_late(now) {
            self.spend(turn);
        }
        while !turn.is_over() {
            let Some(change) = self.changes.pop_front() else {
                return;
            };
            self.note(change, turn);
        }
    }

    fn spend(&mut self, turn: &Turn) {
        let in_lines = LOOK_UP * self.lines.take_steps();
        turn.spend(std::mem::take(&mut self.steps) + in_lines);
    }

    /// Notes a change at the questions about it. If the turn is over first, the rest is done in the
    /// next one.
    fn note(&mut self, mut change: Change, turn: &Turn) {
        self.new_changes.remove(&change.what);
        while let Some(id) = self.next_question(&change) {
            if turn.is_over() {
                return self.changes.push_front(change);
            }
            change.after = id;
            self.steps += LOOK_UP;
            let asked = self.asked.get_mut(&id).expect("known");
            match &change.what {
                What::Key(key) => {
                    if asked.keys.len() > 1 {
                        asked.changed.note(key);
                    }
                    self.look_at(id, NextTry::Now);
                }
                What::Any(pid, again) if asked.question.pid == *pid => self.look_at(id, *again),
                What::Any(..) => {}
            }
            self.spend(turn);
        }
        // The questions about a key are tried in their order, so none is tried before all are
        // noted.
        self.try_ready();
        self.spend(turn);
    }

    fn next_question(&self, change: &Change) -> Option<u64> {
        let behind = (Bound::Excluded(change.after), Bound::Unbounded);
        match &change.what {
            What::Key(key) => self.by_key.get(key)?.range(behind).next().copied(),
            What::Any(..) => self.asked.range(behind).next().map(|(id, _)| *id),
        }
    }

    /// Marks a question to be tried again, either as soon as it is first in its lines, or later.
    fn look_at(&mut self, id: u64, again: NextTry) {
        let each = BETWEEN_GUESSES_EACH.saturating_mul(self.asked.len() as u32);
        let asked = self.asked.get_mut(&id).expect("known");
        if again == NextTry::Later && !asked.tries {
            let at = asked.tried + BETWEEN_GUESSES.max(each);
            self.later.insert((at, id));
            return;
        }
        asked.again = asked.again.max(again);
        if asked.again == NextTry::Now && !asked.tries {
            self.stand_in_line(id);
        }
    }

    /// Puts a question that is due into the lines of its keys. A question that takes nothing needs
    /// no line and is tried at once.
    fn stand_in_line(&mut self, id: u64) {
        let asked = &self.asked[&id];
        let Some((position, _)) = asked.waiting.first_key_value() else {
            return;
        };
        match asked.question.takes {
            true if self.lines.is_in(id) => {}
            true => self.lines.enter(id, *position, &asked.keys),
            false => self.try_now(id),
        }
    }

    /// Tries the questions whose turn has come.
    fn try_ready(&mut self) {
        while let Some(id) = self.lines.take_ready() {
            self.lines.hold(id, &self.asked[&id].keys);
            self.try_now(id);
        }
    }

    fn try_now(&mut self, id: u64) {
        let asked = self.asked.get_mut(&id).expect("known");
        let Some((_, first)) = asked.waiting.first_key_value() else {
            return;
        };
        asked.tries = true;
        asked.again = NextTry::No;
        asked.tried = Instant::now();
        asked.changed.tried = 0;
        self.acts.push_back((first.waiter, Act::Try(Vec::new())));
    }

    // ---- Results of tries

    /// Ends a client's wait, because it has got something or an error.
    pub fn served(&mut self, client: u64) {
        if let Some(id) = self.remove(client) {
            // The client behind it may get something, too.
            self.after_try(id, NextTry::Now);
        }
    }

    /// Notes that a client's try has found nothing, and which answer says so.
    pub fn found_nothing(&mut self, client: u64, nothing: &[u8]) {
        let Some((id, _)) = self.clients.get(&client).copied() else {
            return;
        };
        let asked = self.asked.get_mut(&id).expect("known");
        if asked.nothing.is_none() {
            asked.nothing = Some(nothing.to_vec());
            self.in_vain += asked.waiting.len();
        }
        asked.changed.forget_tried();
        let again = asked.again;
        self.after_try(id, again);
    }

    /// Continues with a question after its try has ended.
    fn after_try(&mut self, id: u64, again: NextTry) {
        let Some(asked) = self.asked.get_mut(&id) else {
            // The question has no client left and has left its lines, in which others may be first
            // now.
            return self.try_ready();
        };
        asked.tries = false;
        self.lines.leave(id, &asked.keys);
        // A wait can only end with the answer that says that there is nothing, which is unknown
        // before the first try.
        if again < NextTry::Now && asked.nothing.is_some() {
            let ended = std::mem::take(&mut asked.ended);
            let ended = ended.iter().filter_map(|at| asked.waiting.get(at));
            let ended: Vec<u64> = ended.map(|waiting| waiting.waiter.client).collect();
            ended.into_iter().for_each(|client| self.end(client));
        }
        if self.asked.contains_key(&id) {
            self.look_at(id, again);
        }
        self.try_ready();
    }

    // ---- The end of waits

    /// Forgets a client that is gone.
    pub fn leave(&mut self, client: u64) {
        let Some((id, position)) = self.clients.get(&client).copied() else {
            return;
        };
        let asked = &self.asked[&id];
        let is_first = asked.waiting.first_key_value().map(|(at, _)| *at) == Some(position);
        let tries = is_first && asked.tries;
        self.remove(client);
        if tries {
            // The result of that client's try reaches nobody any more, so the next client tries.
            self.after_try(id, NextTry::Now);
        }
        self.try_ready();
    }

    /// Ends a client's wait, as if its time were up or with an error. Returns false if it doesn't
    /// wait.
    pub fn unblock(&mut self, client: u64, with_error: bool) -> bool {
        let answer = with_error.then(|| UNBLOCKED.to_vec());
        self.let_go(client, answer)
    }

    /// Ends the next wait whose time is up; returns false if there is none.
    fn end_late(&mut self, now: Instant) -> bool {
        let late = self.deadlines.first().filter(|(at, _)| *at <= now).copied();
        if let Some((_, client)) = late {
            self.deadlines.pop_first();
            self.let_go(client, None);
        }
        late.is_some()
    }

    /// Tries the next question that was to be tried later; returns false if none is due.
    fn try_late(&mut self, now: Instant) -> bool {
        let late = self.later.first().filter(|(at, _)| *at <= now).copied();
        if let Some((_, id)) = late {
            self.later.pop_first();
            self.steps += LOOK_UP;
            if self.asked.contains_key(&id) {
                self.look_at(id, NextTry::Now);
                self.try_ready();
            }
        }
        late.is_some()
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        let both = [self.deadlines.first(), self.later.first()];
        both.into_iter().flatten().map(|(at, _)| *at).min()
    }

    /// Ends a client's wait with this answer. If its command is being tried, the try's result wins.
    fn let_go(&mut self, client: u64, answer: Option<Vec<u8>>) -> bool {
        let Some((id, position)) = self.clients.get(&client).copied() else {
            return false;
        };
        self.steps += LOOK_UP;
        let asked = self.asked.get_mut(&id).expect("known");
        let is_first = asked.waiting.first_key_value().map(|(at, _)| *at) == Some(position);
        let waiting = asked.waiting.get_mut(&position);
        waiting.expect("a client's question knows it").ends = Some(answer);
        asked.ended.insert(position);
        let is_trying = asked.tries && is_first;
        if !is_trying && asked.nothing.is_some() {
            self.end(client);
            self.try_ready();
        }
        true
    }

    fn end(&mut self, client: u64) {
        let Some((id, position)) = self.clients.get(&client).copied() else {
            return;
        };
        let asked = &self.asked[&id];
        let Some(waiting) = asked.waiting.get(&position) else {
            return;
        };
        let answer = waiting.ends.clone().flatten();
        let answer = answer.or_else(|| asked.nothing.clone()).unwrap_or_default();
        self.acts.push_back((waiting.waiter, Act::Answer(answer)));
        self.remove(client);
    }

    /// Forgets a client; returns the question for which it waited.
    fn remove(&mut self, client: u64) -> Option<u64> {
        let (id, position) = self.clients.remove(&client)?;
        self.steps += LOOK_UP;
        let asked = self.asked.get_mut(&id).expect("known");
        let gone = asked.waiting.remove(&position);
        asked.ended.remove(&position);
        self.in_vain -= usize::from(asked.nothing.is_some());
        if let Some(at) = gone.and_then(|waiting| waiting.deadline) {
            self.deadlines.remove(&(at, client));
        }
        if asked.waiting.is_empty() {
            self.forget(id);
        }
        Some(id)
    }

    fn forget(&mut self, id: u64) {
        let Some(asked) = self.asked.remove(&id) else {
            return;
        };
        self.known.remove(&asked.question);
        self.steps += LOOK_UP * asked.keys.len();
        self.keys -= asked.keys.len();
        for key in &asked.keys {
            self.news.forget(key);
            if let Some(ids) = self.by_key.get_mut(key) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.by_key.remove(key);
                }
            }
        }
        self.lines.leave(id, &asked.keys);
    }
}

#[cfg(test)]
mod tests;
