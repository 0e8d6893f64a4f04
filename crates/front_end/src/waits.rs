// SPDX-License-Identifier: Apache-2.0
//! Clients that wait for something to appear at a key, by BLPOP and its like, or XREAD with BLOCK. Nothing waits in the log: a
//! waiting command is tried in a form that doesn't wait, and if there is nothing, it is tried again when one of its keys may
//! have changed. The commands that this replica executes tell of such changes.
//!
//! Clients with the same question stand in a queue, and only the first of them tries. If it gets something, the next one tries,
//! until there is nothing. Different questions that take from the same key are tried one after the other as well, in the order
//! in which the clients began to wait. So the client that has waited longest here is served first, and a change costs as many
//! tries as it serves clients, and one more for each question.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use apps::redis::News;
use paxos::PartitionId;

use crate::names::Waiter;

/// The most keys for which all clients together may wait.
const MAX_KEYS: usize = 1 << 20;
/// The least time between two tries of a command if it is only a guess that one of its keys has changed.
const BETWEEN_GUESSES: Duration = Duration::from_millis(20);

const TOO_MANY: &str =
    "LIMIT not executed: clients of this front end wait for a million keys already";
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
    /// The position of the client among all that ever began to wait.
    since: u64,
    deadline: Option<Instant>,
    /// Set if the wait is over: the answer, unless a current try gets something. With no answer inside, the client is answered
    /// as if its time were up.
    ends: Option<Option<Vec<u8>>>,
}

/// How soon to try again after a try.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Again {
    No,
    /// One of the keys may have changed.
    Later,
    Now,
}

struct Asked {
    question: Question,
    keys: Vec<Vec<u8>>,
    /// The clients with this question; the first one tries.
    waiting: VecDeque<Waiting>,
    tries: bool,
    again: Again,
    /// The keys that have changed since there was nothing, in this order, and how many of them the last try knew.
    changed: Vec<Vec<u8>>,
    known_changes: usize,
    /// The time of the last try.
    tried: Instant,
    /// The answer if there is nothing; unknown before the first try.
    nothing: Option<Vec<u8>>,
}

/// The questions of all clients that wait, and the tries that are due.
#[derive(Default)]
pub(crate) struct Waits {
    news: News,
    last: u64,
    /// The questions by id, in the order in which they were first asked.
    asked: BTreeMap<u64, Asked>,
    known: HashMap<Question, u64>,
    by_key: HashMap<Vec<u8>, BTreeSet<u64>>,
    /// The keys from which a current try may take something, each with the question that is tried.
    tried: HashMap<Vec<u8>, u64>,
    keys: usize,
    begun: u64,
    /// The question for which each client waits.
    clients: HashMap<u64, u64>,
    deadlines: BTreeSet<(Instant, u64)>,
    /// The questions that are tried again later.
    later: BTreeSet<(Instant, u64)>,
    acts: Vec<(Waiter, Act)>,
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
        let asked = self.asked.values();
        let waited = asked.filter(|asked| asked.nothing.is_some());
        waited.map(|asked| asked.waiting.len()).sum()
    }

    /// Lets a client wait for one of these keys, for ever if there is no deadline; returns why if it can't.
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
        let asked = self.asked.get_mut(&id).expect("known");
        let is_first = asked.waiting.is_empty();
        asked.waiting.push_back(Waiting {
            waiter,
            since: self.begun,
            deadline,
            ends: None,
        });
        self.clients.insert(waiter.client, id);
        self.deadlines
            .extend(deadline.map(|at| (at, waiter.client)));
        if is_first {
            self.look_at(vec![id], Again::Now);
        }
        Ok(())
    }

    fn ask(&mut self, question: Question, keys: &[Vec<u8>]) -> Result<u64, &'static str> {
        if self.keys + keys.len() > MAX_KEYS {
            return Err(TOO_MANY);
        }
        self.keys += keys.len();
        self.last += 1;
        let id = self.last;
        for key in keys {
            self.news.wait_for(key);
            self.by_key.entry(key.clone()).or_default().insert(id);
        }
        self.known.insert(question.clone(), id);
        let asked = Asked {
            question,
            keys: keys.to_vec(),
            waiting: VecDeque::new(),
            tries: false,
            again: Again::No,
            changed: Vec::new(),
            known_changes: 0,
            tried: Instant::now(),
            nothing: None,
        };
        self.asked.insert(id, asked);
        Ok(id)
    }

    /// Returns what connections must do, in this order.
    pub fn take_acts(&mut self) -> Vec<(Waiter, Act)> {
        let mut acts = std::mem::take(&mut self.acts);
        // A try takes all keys with it that have changed up to now.
        for (waiter, act) in &mut acts {
            let id = self.clients.get(&waiter.client);
            let asked = id.and_then(|id| self.asked.get_mut(id));
            if let (Act::Try(first), Some(asked)) = (act, asked) {
                *first = asked.changed.clone();
                asked.known_changes = first.len();
            }
        }
        acts
    }

    // ---- What has changed

    /// Notes that this key may have changed.
    pub fn changed(&mut self, key: &[u8]) {
        let of = self.by_key.get(key);
        let of: Vec<u64> = of.iter().flat_map(|ids| ids.iter().copied()).collect();
        for id in &of {
            let asked = self.asked.get_mut(id).expect("known");
            if asked.keys.len() > 1 && !asked.changed.iter().any(|known| known == key) {
                asked.changed.push(key.to_vec());
            }
        }
        self.look_at(of, Again::Now);
    }

    /// Notes that any key of this partition may have changed. If `is_certain`, changes were missed and all questions are tried
    /// at once; otherwise they are tried after a while, as this is only a guess.
    pub fn any_changed(&mut self, pid: PartitionId, is_certain: bool) {
        let all = self.asked.iter();
        let of = all.filter(|(_, asked)| asked.question.pid == pid);
        let of: Vec<u64> = of.map(|(id, _)| *id).collect();
        let again = match is_certain {
            true => Again::Now,
            false => Again::Later,
        };
        self.look_at(of, again);
    }

    /// Tries all these questions again, as soon as it is their turn.
    fn look_at(&mut self, of: Vec<u64>, again: Again) {
        for id in &of {
            let asked = self.asked.get_mut(id).expect("known");
            if again == Again::Later && !asked.tries {
                self.later.insert((asked.tried + BETWEEN_GUESSES, *id));
                continue;
            }
            asked.again = asked.again.max(again);
        }
        self.try_in_turn(of);
    }

    /// Tries those questions that are due, and whose keys aren't being tried for a client that has waited longer.
    fn try_in_turn(&mut self, of: Vec<u64>) {
        let since = |id: &u64| {
            let asked = self.asked.get(id)?;
            let is_due = asked.again == Again::Now && !asked.tries;
            Some((asked.waiting.front().filter(|_| is_due)?.since, *id))
        };
        let mut due: Vec<(u64, u64)> = of.iter().filter_map(since).collect();
        due.sort_unstable();
        let mut claimed: HashSet<Vec<u8>> = HashSet::new();
        for (_, id) in due {
            let asked = &self.asked[&id];
            let is_busy = |key: &Vec<u8>| self.tried.contains_key(key) || claimed.contains(key);
            match asked.question.takes && asked.keys.iter().any(is_busy) {
                true => claimed.extend(asked.keys.iter().cloned()),
                false => self.try_now(id),
            }
        }
    }

    fn try_now(&mut self, id: u64) {
        let asked = self.asked.get_mut(&id).expect("known");
        let Some(first) = asked.waiting.front() else {
            return;
        };
        asked.tries = true;
        asked.again = Again::No;
        asked.tried = Instant::now();
        asked.known_changes = 0;
        self.acts.push((first.waiter, Act::Try(Vec::new())));
        if asked.question.takes {
            let keys = asked.keys.iter().map(|key| (key.clone(), id));
            self.tried.extend(keys);
        }
    }

    /// Frees the keys of a try that has ended, for the questions that wait for them.
    fn release(&mut self, keys: &[Vec<u8>], id: u64) {
        let mut of = BTreeSet::from([id]);
        for key in keys {
            if self.tried.get(key) == Some(&id) {
                self.tried.remove(key);
            }
            of.extend(self.by_key.get(key).into_iter().flatten());
        }
        self.try_in_turn(of.into_iter().collect());
    }

    // ---- Results of tries

    /// Ends a client's wait, because it has got something or an error.
    pub fn served(&mut self, client: u64) {
        if let Some(id) = self.remove(client) {
            // The client behind it may get something, too.
            self.go_on(id, Again::Now);
        }
    }

    /// Notes that a client's try has found nothing, and which answer says so.
    pub fn found_nothing(&mut self, client: u64, nothing: &[u8]) {
        let Some(id) = self.clients.get(&client).copied() else {
            return;
        };
        let asked = self.asked.get_mut(&id).expect("known");
        asked.nothing.get_or_insert_with(|| nothing.to_vec());
        asked.changed.drain(..asked.known_changes);
        let again = asked.again;
        self.go_on(id, again);
    }

    /// Continues with a question after its try has ended, or after its first client has changed.
    fn go_on(&mut self, id: u64, again: Again) {
        let Some(asked) = self.asked.get_mut(&id) else {
            return;
        };
        asked.tries = false;
        let ended = |waiting: &&Waiting| waiting.ends.is_some();
        let ended = asked.waiting.iter().filter(ended);
        let ended: Vec<u64> = ended.map(|waiting| waiting.waiter.client).collect();
        // Before the first such answer nobody knows that there is nothing.
        if again < Again::Now && asked.nothing.is_some() {
            ended.into_iter().for_each(|client| self.end(client));
        }
        if let Some(asked) = self.asked.get(&id) {
            let keys = asked.keys.clone();
            self.look_at(vec![id], again);
            self.release(&keys, id);
        }
    }

    // ---- The end of waits

    /// Forgets a client that is gone.
    pub fn leave(&mut self, client: u64) {
        let Some(id) = self.clients.get(&client).copied() else {
            return;
        };
        let first = self.asked[&id].waiting.front();
        let is_first = first.is_some_and(|first| first.waiter.client == client);
        self.remove(client);
        if is_first {
            // The result of that client's try reaches nobody any more, so the next client tries.
            self.go_on(id, Again::Now);
        }
    }

    /// Ends a client's wait, as if its time were up or with an error. Returns false if it doesn't wait.
    pub fn unblock(&mut self, client: u64, with_error: bool) -> bool {
        let answer = with_error.then(|| UNBLOCKED.to_vec());
        self.let_go(client, answer)
    }

    /// Ends the waits whose time is up, and tries the questions that are due.
    pub fn tick(&mut self, now: Instant) {
        while let Some((at, client)) = self.deadlines.first().copied() {
            if at > now {
                break;
            }
            self.deadlines.pop_first();
            self.let_go(client, None);
        }
        while let Some((at, id)) = self.later.first().copied() {
            if at > now {
                break;
            }
            self.later.pop_first();
            if self.asked.contains_key(&id) {
                self.look_at(vec![id], Again::Now);
            }
        }
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        let both = [self.deadlines.first(), self.later.first()];
        both.into_iter().flatten().map(|(at, _)| *at).min()
    }

    /// Ends a client's wait with this answer. If its command is being tried, the try's result wins.
    fn let_go(&mut self, client: u64, answer: Option<Vec<u8>>) -> bool {
        let Some(id) = self.clients.get(&client).copied() else {
            return false;
        };
        let asked = self.asked.get_mut(&id).expect("known");
        let at = asked
            .waiting
            .iter()
            .position(|waiting| waiting.waiter.client == client);
        let at = at.expect("a client's question knows it");
        asked.waiting[at].ends = Some(answer);
        let is_trying = asked.tries && at == 0;
        if !is_trying && asked.nothing.is_some() {
            self.end(client);
        }
        true
    }

    fn end(&mut self, client: u64) {
        let Some(id) = self.clients.get(&client).copied() else {
            return;
        };
        let asked = &self.asked[&id];
        let waiting = asked.waiting.iter().find(|w| w.waiter.client == client);
        let Some(waiting) = waiting else { return };
        let answer = waiting.ends.clone().flatten();
        let answer = answer.or_else(|| asked.nothing.clone()).unwrap_or_default();
        self.acts.push((waiting.waiter, Act::Answer(answer)));
        self.remove(client);
    }

    /// Forgets a client; returns the question for which it waited.
    fn remove(&mut self, client: u64) -> Option<u64> {
        let id = self.clients.remove(&client)?;
        let asked = self.asked.get_mut(&id).expect("known");
        let is_it = |waiting: &Waiting| waiting.waiter.client == client;
        let at = asked.waiting.iter().position(is_it);
        let gone = at.and_then(|at| asked.waiting.remove(at));
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
        self.release(&asked.keys, id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: &[u8] = b"*-1\r\n";

    fn waiter(client: u64) -> Waiter {
        Waiter {
            index: client as usize,
            client,
        }
    }

    fn pop(key: &str) -> Question {
        Question {
            pid: 0,
            resp3: false,
            takes: true,
            args: vec![b"BLPOP".to_vec(), key.into(), b"0".to_vec()],
        }
    }

    fn begin(waits: &mut Waits, client: u64, key: &str, deadline: Option<Instant>) {
        let keys = [key.as_bytes().to_vec()];
        waits
            .begin(waiter(client), pop(key), &keys, deadline)
            .unwrap();
    }

    #[track_caller]
    fn expect(waits: &mut Waits, acts: &[(u64, Act)]) {
        let taken = waits.take_acts();
        let taken: Vec<_> = taken
            .into_iter()
            .map(|(waiter, act)| (waiter.client, act))
            .collect();
        assert_eq!(taken, acts);
    }

    fn tries() -> Act {
        Act::Try(Vec::new())
    }

    fn over() -> Act {
        Act::Answer(NOTHING.to_vec())
    }

    #[test]
    fn who_waits_longest_is_served_first_and_only_one_tries() {
        let mut waits = Waits::default();
        for client in 1..=3 {
            begin(&mut waits, client, "k", None);
        }
        expect(&mut waits, &[(1, tries())]);
        assert_eq!(waits.count(), 0, "there may be something");
        waits.found_nothing(1, NOTHING);
        assert_eq!(waits.count(), 3);
        waits.changed(b"other");
        expect(&mut waits, &[]);
        waits.changed(b"k");
        waits.changed(b"k");
        expect(&mut waits, &[(1, tries())]);
        waits.served(1);
        expect(&mut waits, &[(2, tries())]);
        waits.found_nothing(2, NOTHING);
        expect(&mut waits, &[]);
        assert_eq!(waits.count(), 2);
    }

    #[test]
    fn what_changes_during_a_try_causes_another_one() {
        let mut waits = Waits::default();
        begin(&mut waits, 1, "k", None);
        waits.changed(b"k");
        expect(&mut waits, &[(1, tries())]);
        waits.found_nothing(1, NOTHING);
        expect(&mut waits, &[(1, tries())]);
        waits.found_nothing(1, NOTHING);
        expect(&mut waits, &[]);
    }

    fn moves(key: &str, takes: bool) -> Question {
        Question {
            takes,
            args: vec![b"BLMOVE".to_vec()],
            ..pop(key)
        }
    }

    #[test]
    fn different_questions_about_a_key_are_tried_in_the_order_of_those_who_ask() {
        let mut waits = Waits::default();
        let keys = [b"k".to_vec()];
        begin(&mut waits, 2, "k", None);
        waits
            .begin(waiter(1), moves("k", true), &keys, None)
            .unwrap();
        begin(&mut waits, 3, "k", None);
        expect(&mut waits, &[(2, tries())]);
        waits.found_nothing(2, NOTHING);
        expect(&mut waits, &[(1, tries())]);
        waits.found_nothing(1, NOTHING);
        expect(&mut waits, &[]);
        // There are two items. The third client has the first one's question, but began last.
        waits.changed(b"k");
        expect(&mut waits, &[(2, tries())]);
        waits.served(2);
        expect(&mut waits, &[(1, tries())]);
        waits.served(1);
        expect(&mut waits, &[(3, tries())]);
        waits.found_nothing(3, NOTHING);
        expect(&mut waits, &[]);
        // A client that goes away while it tries holds up nobody.
        waits
            .begin(waiter(4), moves("k", true), &keys, None)
            .unwrap();
        waits.changed(b"k");
        waits.leave(4);
        expect(&mut waits, &[(4, tries()), (3, tries())]);
        waits.leave(3);
        assert!(waits.asked.is_empty() && waits.tried.is_empty() && waits.by_key.is_empty());
    }

    #[test]
    fn who_takes_nothing_waits_for_nobody() {
        let mut waits = Waits::default();
        let keys = [b"k".to_vec()];
        begin(&mut waits, 1, "k", None);
        waits
            .begin(waiter(2), moves("k", false), &keys, None)
            .unwrap();
        expect(&mut waits, &[(1, tries()), (2, tries())]);
    }

    #[test]
    fn the_key_that_changed_first_is_tried_first() {
        let mut waits = Waits::default();
        let keys = ["a", "b", "c"].map(|key| key.as_bytes().to_vec());
        waits.begin(waiter(1), pop("a"), &keys, None).unwrap();
        waits.begin(waiter(2), pop("a"), &keys, None).unwrap();
        waits.found_nothing(1, NOTHING);
        waits.take_acts();
        let first = |keys: &[&str]| {
            let keys = keys.iter().map(|key| key.as_bytes().to_vec());
            Act::Try(keys.collect())
        };
        waits.changed(b"c");
        waits.changed(b"a");
        waits.changed(b"c");
        expect(&mut waits, &[(1, first(&["c", "a"]))]);
        waits.served(1);
        expect(&mut waits, &[(2, first(&["c", "a"]))]);
        waits.changed(b"b");
        waits.found_nothing(2, NOTHING);
        expect(&mut waits, &[(2, first(&["b"]))]);
    }

    #[test]
    fn a_wait_ends_when_its_time_is_up() {
        let mut waits = Waits::default();
        let now = Instant::now();
        let second = Duration::from_secs(1);
        begin(&mut waits, 1, "k", Some(now + second));
        begin(&mut waits, 2, "k", Some(now + 2 * second));
        waits.tick(now + second);
        // The first client's command is being tried, so it may still get something.
        expect(&mut waits, &[(1, tries())]);
        waits.found_nothing(1, NOTHING);
        expect(&mut waits, &[(1, over())]);
        assert_eq!(waits.next_deadline(), Some(now + 2 * second));
        waits.tick(now + 2 * second);
        expect(&mut waits, &[(2, over())]);
        assert!(waits.count() == 0 && waits.next_deadline().is_none());
        assert!(waits.asked.is_empty() && waits.by_key.is_empty() && waits.keys == 0);
    }

    #[test]
    fn a_wait_whose_time_is_up_before_it_was_tried_is_tried() {
        let mut waits = Waits::default();
        let now = Instant::now();
        begin(&mut waits, 1, "k", None);
        begin(&mut waits, 2, "k", Some(now));
        waits.tick(now);
        expect(&mut waits, &[(1, tries())]);
        waits.served(1);
        expect(&mut waits, &[(2, tries())]);
        waits.found_nothing(2, NOTHING);
        expect(&mut waits, &[(2, over())]);
    }

    #[test]
    fn the_next_one_tries_when_the_first_one_leaves() {
        let mut waits = Waits::default();
        begin(&mut waits, 1, "k", None);
        begin(&mut waits, 2, "k", None);
        waits.leave(1);
        expect(&mut waits, &[(1, tries()), (2, tries())]);
        waits.found_nothing(1, NOTHING);
        waits.served(1);
        waits.leave(2);
        expect(&mut waits, &[]);
        assert!(waits.asked.is_empty() && waits.known.is_empty());
    }

    #[test]
    fn a_client_is_unblocked_by_another_one() {
        let mut waits = Waits::default();
        begin(&mut waits, 1, "k", None);
        begin(&mut waits, 2, "k", None);
        waits.found_nothing(1, NOTHING);
        waits.take_acts();
        assert!(waits.unblock(1, true) && waits.unblock(2, false) && !waits.unblock(3, false));
        let error = Act::Answer(UNBLOCKED.to_vec());
        expect(&mut waits, &[(1, error), (2, over())]);
    }

    #[test]
    fn guesses_are_rare() {
        let mut waits = Waits::default();
        begin(&mut waits, 1, "k", None);
        waits.found_nothing(1, NOTHING);
        waits.take_acts();
        (0..5).for_each(|_| waits.any_changed(0, false));
        waits.any_changed(1, true);
        expect(&mut waits, &[]);
        let at = waits.next_deadline().unwrap();
        waits.tick(at);
        expect(&mut waits, &[(1, tries())]);
        assert_eq!(waits.next_deadline(), None);
        waits.found_nothing(1, NOTHING);
        waits.any_changed(0, true);
        expect(&mut waits, &[(1, tries())]);
    }

    #[test]
    fn there_is_a_limit() {
        let mut waits = Waits::default();
        let keys: Vec<Vec<u8>> = (0..=MAX_KEYS).map(|n| n.to_be_bytes().to_vec()).collect();
        let refused = waits.begin(waiter(1), pop("k"), &keys, None);
        assert_eq!(refused, Err(TOO_MANY));
        assert_eq!(waits.count(), 0);
    }
}
