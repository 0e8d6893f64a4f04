// SPDX-License-Identifier: Apache-2.0
//! Clients that wait for something to appear at a key: BLPOP and its like, XREAD with BLOCK. Nothing waits in the log. A waiting
//! command is tried, as one that doesn't wait; if there is nothing, it is tried again when a key of it may have changed. What this
//! replica executes tells of that.
//!
//! Clients that ask for the same stand in a queue, and only the first of them tries. If it gets something the next one tries, until
//! there is nothing. So whoever waits longest here is served first, and a change costs as many tries as it serves clients, and one
//! more.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use apps::redis::News;
use paxos::PartitionId;

use crate::names::Waiter;

/// Keys that all clients wait for together, at most.
const MAX_KEYS: usize = 1 << 20;
/// How often a command is tried, at most, because something has changed that may be a key of it.
const BETWEEN_GUESSES: Duration = Duration::from_millis(20);

const TOO_MANY: &str =
    "LIMIT not executed: clients of this front end wait for a million keys already";
const UNBLOCKED: &[u8] = b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n";

/// What is asked for; clients that ask for the same share it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Question {
    pub pid: PartitionId,
    /// How the answer is written.
    pub resp3: bool,
    /// The command, as one that would wait for ever.
    pub args: Vec<Vec<u8>>,
}

/// What a connection is to do.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Act {
    /// Try its command.
    Try,
    /// Answer this: it waits no longer.
    Answer(Vec<u8>),
}

/// A client that waits.
struct Waiting {
    waiter: Waiter,
    deadline: Option<Instant>,
    /// It waits no longer: what it is to be answered, unless a try that is under way gets something. None: as if the time were up.
    ends: Option<Option<Vec<u8>>>,
}

/// Whether to try again after a try.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Again {
    No,
    /// Something may have changed.
    Later,
    Now,
}

struct Asked {
    question: Question,
    keys: Vec<Vec<u8>>,
    /// The first one tries.
    waiting: VecDeque<Waiting>,
    tries: bool,
    again: Again,
    /// When it was tried last.
    tried: Instant,
    /// What is answered where there is nothing.
    nothing: Option<Vec<u8>>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Waits {
    news: News,
    last: u64,
    /// In the order in which they were asked first.
    asked: BTreeMap<u64, Asked>,
    known: HashMap<Question, u64>,
    by_key: HashMap<Vec<u8>, BTreeSet<u64>>,
    keys: usize,
    /// What each client waits for.
    clients: HashMap<u64, u64>,
    deadlines: BTreeSet<(Instant, u64)>,
    /// Questions to be tried again.
    later: BTreeSet<(Instant, u64)>,
    acts: Vec<(Waiter, Act)>,
}

impl Waits {
    /// This one tells which keys have changed.
    pub fn new(news: News) -> Waits {
        Waits {
            news,
            ..Waits::default()
        }
    }

    /// Clients that wait now: for what they ask there was nothing.
    pub fn count(&self) -> usize {
        let asked = self.asked.values();
        let waited = asked.filter(|asked| asked.nothing.is_some());
        waited.map(|asked| asked.waiting.len()).sum()
    }

    /// A client waits from now on, for one of these keys; without a deadline for ever. Says why it can't.
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
        let asked = self.asked.get_mut(&id).expect("known");
        let is_first = asked.waiting.is_empty();
        asked.waiting.push_back(Waiting {
            waiter,
            deadline,
            ends: None,
        });
        self.clients.insert(waiter.client, id);
        self.deadlines
            .extend(deadline.map(|at| (at, waiter.client)));
        if is_first {
            self.try_now(id);
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
            tried: Instant::now(),
            nothing: None,
        };
        self.asked.insert(id, asked);
        Ok(id)
    }

    /// What connections are to do, in this order.
    pub fn take_acts(&mut self) -> Vec<(Waiter, Act)> {
        std::mem::take(&mut self.acts)
    }

    // ---- What has changed

    /// This key may have.
    pub fn changed(&mut self, key: &[u8]) {
        let of = self.by_key.get(key);
        let of: Vec<u64> = of.iter().flat_map(|ids| ids.iter().copied()).collect();
        self.look_at(of, Again::Now);
    }

    /// Any key of this partition may have; or it is certain that nobody knows which ones have.
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

    /// Tries all of these again. Where several share a key, who waits longest comes first.
    fn look_at(&mut self, mut of: Vec<u64>, again: Again) {
        of.sort_by_key(|id| {
            let first = self.asked[id].waiting.front();
            first.map(|first| first.waiter.client)
        });
        of.into_iter().for_each(|id| self.try_again(id, again));
    }

    fn try_again(&mut self, id: u64, again: Again) {
        let asked = self.asked.get_mut(&id).expect("known");
        if asked.tries {
            asked.again = asked.again.max(again);
            return;
        }
        match again {
            Again::No => {}
            Again::Later => {
                self.later.insert((asked.tried + BETWEEN_GUESSES, id));
            }
            Again::Now => self.try_now(id),
        }
    }

    fn try_now(&mut self, id: u64) {
        let asked = self.asked.get_mut(&id).expect("known");
        if let Some(first) = asked.waiting.front().filter(|_| !asked.tries) {
            asked.tries = true;
            asked.again = Again::No;
            asked.tried = Instant::now();
            self.acts.push((first.waiter, Act::Try));
        }
    }

    // ---- What comes of tries

    /// A client has got something, or an error.
    pub fn served(&mut self, client: u64) {
        if let Some(id) = self.remove(client) {
            // Who stands behind it may get something, too.
            self.go_on(id, Again::Now);
        }
    }

    /// A client's try has found nothing, and this is what that's called.
    pub fn found_nothing(&mut self, client: u64, nothing: &[u8]) {
        let Some(id) = self.clients.get(&client).copied() else {
            return;
        };
        let asked = self.asked.get_mut(&id).expect("known");
        asked.nothing.get_or_insert_with(|| nothing.to_vec());
        let again = asked.again;
        self.go_on(id, again);
    }

    /// The try of the first one has ended, or it is another one that is the first now.
    fn go_on(&mut self, id: u64, again: Again) {
        let Some(asked) = self.asked.get_mut(&id) else {
            return;
        };
        asked.tries = false;
        let ended = |waiting: &&Waiting| waiting.ends.is_some();
        let ended = asked.waiting.iter().filter(ended);
        let ended: Vec<u64> = ended.map(|waiting| waiting.waiter.client).collect();
        // Without an answer that says so nobody knows yet that there is nothing.
        if again < Again::Now && asked.nothing.is_some() {
            ended.into_iter().for_each(|client| self.end(client));
        }
        if self.asked.contains_key(&id) {
            self.try_again(id, again);
        }
    }

    // ---- Who waits no longer

    /// A client is gone.
    pub fn leave(&mut self, client: u64) {
        let Some(id) = self.clients.get(&client).copied() else {
            return;
        };
        let first = self.asked[&id].waiting.front();
        let is_first = first.is_some_and(|first| first.waiter.client == client);
        self.remove(client);
        if is_first {
            // Its try tells nobody anything any more.
            self.go_on(id, Again::Now);
        }
    }

    /// Ends a client's wait, as if its time were up, or with an error. False if it doesn't wait.
    pub fn unblock(&mut self, client: u64, with_error: bool) -> bool {
        let answer = with_error.then(|| UNBLOCKED.to_vec());
        self.let_go(client, answer)
    }

    /// Ends what is late, and tries what is due.
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
                self.try_again(id, Again::Now);
            }
        }
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        let both = [self.deadlines.first(), self.later.first()];
        both.into_iter().flatten().map(|(at, _)| *at).min()
    }

    /// It is answered now; or, if it tries, unless it gets something.
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

    /// Forgets a client; returns what it waited for.
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
        for key in asked.keys {
            self.news.forget(&key);
            if let Some(ids) = self.by_key.get_mut(&key) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.by_key.remove(&key);
                }
            }
        }
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

    fn over() -> Act {
        Act::Answer(NOTHING.to_vec())
    }

    #[test]
    fn who_waits_longest_is_served_first_and_only_one_tries() {
        let mut waits = Waits::default();
        for client in 1..=3 {
            begin(&mut waits, client, "k", None);
        }
        expect(&mut waits, &[(1, Act::Try)]);
        assert_eq!(waits.count(), 0, "there may be something");
        waits.found_nothing(1, NOTHING);
        assert_eq!(waits.count(), 3);
        waits.changed(b"other");
        expect(&mut waits, &[]);
        waits.changed(b"k");
        waits.changed(b"k");
        expect(&mut waits, &[(1, Act::Try)]);
        waits.served(1);
        expect(&mut waits, &[(2, Act::Try)]);
        waits.found_nothing(2, NOTHING);
        expect(&mut waits, &[]);
        assert_eq!(waits.count(), 2);
    }

    #[test]
    fn what_changes_during_a_try_causes_another_one() {
        let mut waits = Waits::default();
        begin(&mut waits, 1, "k", None);
        waits.changed(b"k");
        expect(&mut waits, &[(1, Act::Try)]);
        waits.found_nothing(1, NOTHING);
        expect(&mut waits, &[(1, Act::Try)]);
        waits.found_nothing(1, NOTHING);
        expect(&mut waits, &[]);
    }

    #[test]
    fn different_questions_about_a_key_are_all_tried() {
        let mut waits = Waits::default();
        begin(&mut waits, 2, "k", None);
        let other = Question {
            args: vec![b"BLMOVE".to_vec()],
            ..pop("k")
        };
        let keys = [b"k".to_vec()];
        waits.begin(waiter(1), other, &keys, None).unwrap();
        waits.take_acts();
        for client in [1, 2] {
            waits.found_nothing(client, NOTHING);
        }
        waits.changed(b"k");
        expect(&mut waits, &[(1, Act::Try), (2, Act::Try)]);
    }

    #[test]
    fn a_wait_ends_when_its_time_is_up() {
        let mut waits = Waits::default();
        let now = Instant::now();
        let second = Duration::from_secs(1);
        begin(&mut waits, 1, "k", Some(now + second));
        begin(&mut waits, 2, "k", Some(now + 2 * second));
        waits.tick(now + second);
        // It tries, so it may still get something.
        expect(&mut waits, &[(1, Act::Try)]);
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
        expect(&mut waits, &[(1, Act::Try)]);
        waits.served(1);
        expect(&mut waits, &[(2, Act::Try)]);
        waits.found_nothing(2, NOTHING);
        expect(&mut waits, &[(2, over())]);
    }

    #[test]
    fn the_next_one_tries_when_the_first_one_leaves() {
        let mut waits = Waits::default();
        begin(&mut waits, 1, "k", None);
        begin(&mut waits, 2, "k", None);
        waits.leave(1);
        expect(&mut waits, &[(1, Act::Try), (2, Act::Try)]);
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
        expect(&mut waits, &[(1, Act::Try)]);
        assert_eq!(waits.next_deadline(), None);
        waits.found_nothing(1, NOTHING);
        waits.any_changed(0, true);
        expect(&mut waits, &[(1, Act::Try)]);
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
