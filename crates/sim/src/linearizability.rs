// SPDX-License-Identifier: Apache-2.0
//! Checks whether a client history is linearizable.
//!
//! The algorithm is Wing and Gong's (*Testing and Verifying Concurrent Objects*, 1993) with Lowe's
//! memoisation of visited (set of linearized operations, state) pairs (*Testing for
//! Linearizability*, 2017) and the partitioning by key of Horn and Kroening's P-compositionality
//! (2015), as in Porcupine. It is written from those descriptions.
//!
//! An operation without an answer may have taken effect at any time after its call, or never. It
//! gets a return at the end of time and accepts any result, so it can always be placed last, where
//! it affects no other operation.
//!
//! If an order in which operations took effect is claimed, [`explains`] checks the claim in time
//! proportional to the history, and a claim that holds is a proof. The search is left for histories
//! whose claim fails.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use paxos::Time;

/// A command on a key: how it changes the key's state, and its answer.
pub trait Command: Clone + Debug + PartialEq {
    /// The state of a key; every key starts with the default.
    type State: Clone + Default + Eq + Hash;
    /// The answer to a client.
    type Answer: Clone + Debug + PartialEq;

    /// Returns the state after the command, and the answer.
    fn apply(&self, state: &Self::State) -> (Self::State, Self::Answer);
}

impl Command for Op {
    type State = u64;
    type Answer = u64;

    #[inline]
    fn apply(&self, state: &u64) -> (u64, u64) {
        Op::apply(*self, *state)
    }
}

/// A simulated client's operation on a key, whose state is one word, 0 at first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Op {
    /// Answers with the state.
    Get,
    /// Sets the state; answers 0.
    Set(u64),
    /// Adds one; answers with the sum.
    Incr,
    /// Folds a number into the state so that order and repetition show; answers with the result.
    Append(u64),
    /// Sets the state to the second if it is the first; answers 1 if so, otherwise 0.
    CompareAndSet(u64, u64),
}

impl Op {
    /// Returns the new state and the answer.
    #[inline]
    pub fn apply(self, state: u64) -> (u64, u64) {
        match self {
            Op::Get => (state, state),
            Op::Set(to) => (to, 0),
            Op::Incr => (state.wrapping_add(1), state.wrapping_add(1)),
            Op::Append(item) => {
                let folded =
                    crate::rng::mix(state.wrapping_mul(31).wrapping_add(item) ^ item << 40);
                (folded, folded)
            }
            Op::CompareAndSet(expected, to) if state == expected => (to, 1),
            Op::CompareAndSet(..) => (state, 0),
        }
    }
}

/// One operation as its client saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation<C: Command = Op> {
    /// The key; keys are independent of one another.
    pub key: u64,
    /// The command.
    pub op: C,
    /// The time of the call.
    pub call: Time,
    /// The time and the value of the answer, or `None` if there was none.
    pub answer: Option<(Time, C::Answer)>,
}

/// The result of the check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linearizable {
    /// There is an order that explains all answers.
    Yes,
    /// There is no such order for this key.
    No {
        /// The key.
        key: u64,
    },
    /// The search gave up at its limit, which says nothing.
    Unknown {
        /// The key that was too hard.
        key: u64,
    },
}

/// Visited configurations per key before the check gives up. Most histories of simulated runs stay
/// far below it; those with many commands in flight at once don't.
const LIMIT: usize = 300_000;

/// Checks a history. Every key starts with the default state.
pub fn check<C: Command>(history: &[Operation<C>]) -> Linearizable {
    let mut keys: BTreeMap<u64, Vec<&Operation<C>>> = BTreeMap::new();
    for operation in history {
        keys.entry(operation.key).or_default().push(operation);
    }
    let mut verdict = Linearizable::Yes;
    for (key, operations) in keys {
        match check_key(&operations) {
            Some(true) => {}
            Some(false) => return Linearizable::No { key },
            // A key that is too hard says nothing about the others.
            None => verdict = Linearizable::Unknown { key },
        }
    }
    verdict
}

/// Returns whether `order` (indices into the history of the operations that took effect) is a
/// linearization of the history: every answered operation is in it once, with its answer, and
/// nothing takes effect before its call or after its answer.
pub fn explains(order: &[usize], history: &[Operation]) -> bool {
    let mut states: BTreeMap<u64, u64> = BTreeMap::new();
    let mut placed = vec![false; history.len()];
    // The latest call so far. An operation that takes effect later can't have been answered before
    // it.
    let mut latest_call = 0;
    for &index in order {
        let Some(operation) = history.get(index) else {
            return false;
        };
        let state = states.entry(operation.key).or_default();
        let (after, result) = operation.op.apply(*state);
        *state = after;
        latest_call = latest_call.max(operation.call);
        let fits = operation
            .answer
            .is_none_or(|(at, answer)| answer == result && at >= latest_call);
        if !fits || std::mem::replace(&mut placed[index], true) {
            return false;
        }
    }
    let all = history.iter().zip(&placed);
    all.into_iter()
        .all(|(o, placed)| *placed || o.answer.is_none())
}

/// A call or a return in the doubly linked list from which the search removes operations.
struct Entry {
    operation: usize,
    is_call: bool,
    /// The index of the return of a call.
    matching: usize,
    previous: usize,
    next: usize,
}

fn check_key<C: Command>(operations: &[&Operation<C>]) -> Option<bool> {
    let mut list = List::new(operations);
    let mut linearized = Bits::new(operations.len());
    let mut seen: HashSet<(Bits, C::State), BuildHasherDefault<WordHasher>> = HashSet::default();
    let mut stack: Vec<(usize, C::State)> = Vec::new();
    let mut state = C::State::default();
    let mut at = list.first();
    while list.first() != HEAD {
        if list.entries[at].is_call {
            let index = list.entries[at].operation;
            let operation = operations[index];
            let (after, result) = operation.op.apply(&state);
            let fits = |(_, answer): &(Time, C::Answer)| *answer == result;
            let explained = operation.answer.as_ref().is_none_or(fits);
            linearized.set(index);
            if explained && seen.insert((linearized.clone(), after.clone())) {
                if seen.len() > LIMIT {
                    return None;
                }
                stack.push((at, std::mem::replace(&mut state, after)));
                list.lift(at);
                at = list.first();
            } else {
                linearized.clear(index);
                at = list.entries[at].next;
            }
        } else {
            // No order reaches this return: undo the last choice and try the next one.
            let Some((entry, before)) = stack.pop() else {
                return Some(false);
            };
            state = before;
            linearized.clear(list.entries[entry].operation);
            list.unlift(entry);
            at = list.entries[entry].next;
        }
    }
    Some(true)
}

const HEAD: usize = 0;

struct List {
    entries: Vec<Entry>,
}

impl List {
    fn new<C: Command>(operations: &[&Operation<C>]) -> List {
        let mut events: Vec<(Time, bool, usize)> = Vec::with_capacity(2 * operations.len());
        for (index, operation) in operations.iter().enumerate() {
            events.push((operation.call, false, index));
            let end = operation.answer.as_ref().map_or(Time::MAX, |(at, _)| *at);
            events.push((end, true, index));
        }
        // At equal times calls precede returns, so that the two are concurrent and nothing is
        // wrongly rejected.
        events.sort_unstable();
        let mut entries = vec![Entry {
            operation: usize::MAX,
            is_call: false,
            matching: HEAD,
            previous: HEAD,
            next: HEAD,
        }];
        let mut calls = vec![HEAD; operations.len()];
        for (_, is_return, operation) in events {
            let at = entries.len();
            if is_return {
                let call = calls[operation];
                entries[call].matching = at;
            } else {
                calls[operation] = at;
            }
            entries.push(Entry {
                operation,
                is_call: !is_return,
                matching: HEAD,
                previous: at - 1,
                next: HEAD,
            });
            entries[at - 1].next = at;
        }
        let last = entries.len() - 1;
        entries[HEAD].previous = last;
        List { entries }
    }

    fn first(&self) -> usize {
        self.entries[HEAD].next
    }

    fn unlink(&mut self, at: usize) {
        let (previous, next) = (self.entries[at].previous, self.entries[at].next);
        self.entries[previous].next = next;
        self.entries[next].previous = previous;
    }

    fn relink(&mut self, at: usize) {
        let (previous, next) = (self.entries[at].previous, self.entries[at].next);
        self.entries[previous].next = at;
        self.entries[next].previous = at;
    }

    fn lift(&mut self, call: usize) {
        self.unlink(call);
        self.unlink(self.entries[call].matching);
    }

    fn unlift(&mut self, call: usize) {
        self.relink(self.entries[call].matching);
        self.relink(call);
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Bits(Vec<u64>);

impl Bits {
    fn new(len: usize) -> Bits {
        Bits(vec![0; len.div_ceil(64)])
    }

    fn set(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    fn clear(&mut self, at: usize) {
        self.0[at / 64] &= !(1 << (at % 64));
    }
}

/// Hashes words, since the standard library's hasher takes most of the search's time.
#[derive(Default)]
struct WordHasher(u64);

impl Hasher for WordHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = crate::rng::mix(self.0 ^ word);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn operation(op: Op, call: Time, answer: Option<(Time, u64)>) -> Operation {
        Operation {
            key: 1,
            op,
            call,
            answer,
        }
    }

    #[test]
    fn concurrent_operations_may_take_effect_in_any_order() {
        let history = [
            operation(Op::Set(7), 0, Some((10, 0))),
            operation(Op::Get, 1, Some((2, 7))),
            operation(Op::Get, 3, Some((12, 7))),
            operation(Op::CompareAndSet(7, 9), 11, Some((14, 1))),
            operation(Op::Incr, 15, Some((16, 10))),
        ];
        assert_eq!(check(&history), Linearizable::Yes);
    }

    #[test]
    fn a_stale_read_is_found() {
        let history = [
            operation(Op::Set(7), 0, Some((1, 0))),
            operation(Op::Get, 2, Some((3, 0))),
        ];
        assert_eq!(check(&history), Linearizable::No { key: 1 });
    }

    #[test]
    fn two_reads_must_not_go_back_in_time() {
        let history = [
            operation(Op::Set(7), 0, Some((100, 0))),
            operation(Op::Get, 10, Some((20, 7))),
            operation(Op::Get, 30, Some((40, 0))),
        ];
        assert_eq!(check(&history), Linearizable::No { key: 1 });
    }

    #[test]
    fn a_command_executed_twice_is_found() {
        let history = [
            operation(Op::Incr, 0, Some((1, 1))),
            operation(Op::Incr, 2, Some((3, 2))),
            operation(Op::Get, 4, Some((5, 3))),
        ];
        assert_eq!(check(&history), Linearizable::No { key: 1 });
    }

    #[test]
    fn an_acknowledged_write_that_is_lost_is_found() {
        let history = [
            operation(Op::Append(1), 0, Some((1, Op::Append(1).apply(0).1))),
            operation(Op::Append(2), 2, Some((3, Op::Append(2).apply(0).1))),
        ];
        assert_eq!(check(&history), Linearizable::No { key: 1 });
    }

    #[test]
    fn an_unanswered_write_may_have_happened_late_or_never() {
        let unanswered = operation(Op::Set(5), 0, None);
        for value in [0, 5] {
            let history = [unanswered, operation(Op::Get, 10, Some((11, value)))];
            assert_eq!(check(&history), Linearizable::Yes);
        }
        let late = [
            unanswered,
            operation(Op::Get, 10, Some((11, 0))),
            operation(Op::Get, 12, Some((13, 5))),
        ];
        assert_eq!(check(&late), Linearizable::Yes);
        let undone = [
            unanswered,
            operation(Op::Get, 10, Some((11, 5))),
            operation(Op::Get, 12, Some((13, 0))),
        ];
        assert_eq!(check(&undone), Linearizable::No { key: 1 });
    }

    #[test]
    fn an_operation_cannot_take_effect_before_its_call() {
        let history = [
            operation(Op::Get, 0, Some((1, 5))),
            operation(Op::Set(5), 2, None),
        ];
        assert_eq!(check(&history), Linearizable::No { key: 1 });
    }

    #[test]
    fn keys_are_independent_and_the_guilty_one_is_named() {
        let mut history = vec![
            operation(Op::Set(7), 0, Some((1, 0))),
            operation(Op::Get, 2, Some((3, 7))),
        ];
        history.push(Operation {
            key: 2,
            ..operation(Op::Get, 2, Some((3, 7)))
        });
        assert_eq!(check(&history), Linearizable::No { key: 2 });
    }

    #[test]
    fn a_claimed_order_is_checked() {
        let history = [
            operation(Op::Set(7), 0, Some((10, 0))),
            operation(Op::Get, 1, Some((2, 7))),
            operation(Op::Incr, 11, None),
            operation(Op::Get, 12, Some((13, 8))),
        ];
        assert!(explains(&[0, 1, 2, 3], &history));
        assert!(!explains(&[1, 0, 2, 3], &history), "a wrong answer");
        assert!(!explains(&[0, 1, 3], &history), "another wrong answer");
        assert!(!explains(&[0, 1, 2], &history), "an answer that is missing");
        assert!(!explains(&[0, 1, 2, 3, 3], &history), "one that is twice");
        let stale = [
            operation(Op::Get, 5, Some((6, 0))),
            operation(Op::Set(7), 0, Some((1, 0))),
        ];
        assert!(!explains(&[0, 1], &stale), "against the order of time");
    }

    /// Histories of operations that were executed at a random moment between call and return are
    /// linearizable. With one answer changed to a wrong one they are not.
    #[test]
    fn executed_histories_pass_and_forged_ones_fail() {
        for seed in 0..100 {
            let mut rng = Rng::new(seed);
            let mut plan: Vec<(Time, Op, Time, Time)> = (0..60)
                .map(|_| {
                    let effect = rng.below(2000);
                    let op = match rng.below(5) {
                        0 => Op::Get,
                        1 => Op::Set(rng.below(4)),
                        2 => Op::Incr,
                        3 => Op::Append(rng.below(100)),
                        _ => Op::CompareAndSet(rng.below(4), rng.below(4)),
                    };
                    let call = effect.saturating_sub(rng.below(60));
                    (effect, op, call, effect + rng.below(60))
                })
                .collect();
            plan.sort_by_key(|p| p.0);
            let mut state = 0;
            let mut history = Vec::new();
            for (_, op, call, end) in plan {
                let (after, answer) = op.apply(state);
                state = after;
                history.push(operation(op, call, Some((end, answer))));
            }
            assert_eq!(check(&history), Linearizable::Yes, "seed {seed}");
            let get = history.iter_mut().rfind(|o| o.op == Op::Get);
            if let Some(get) = get {
                get.answer = get.answer.map(|(at, _)| (at, 0xdead_beef_dead_beef));
                assert_eq!(check(&history), Linearizable::No { key: 1 }, "seed {seed}");
            }
        }
    }
}
