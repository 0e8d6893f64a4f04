// SPDX-License-Identifier: Apache-2.0
//! Counting what was lost and what took effect twice, by what is there at the end. Simpler than the
//! checkers of histories, and independent of them.

use std::collections::{BTreeMap, BTreeSet};

use super::history::{Answer, Event, Op};

/// What was found wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Acknowledged writes that are missing.
    pub lost: u64,
    /// Writes that took effect more often than they were sent.
    pub executed_twice: u64,
    /// Examples, in words.
    pub examples: Vec<String>,
}

/// Judges all keys by their contents at the end.
pub fn count(history: &[Event], finals: &BTreeMap<String, Answer>) -> Count {
    let mut keys: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
    for event in history.iter().filter(|event| event.op.writes()) {
        keys.entry(&event.key).or_default().push(event);
    }
    let mut count = Count::default();
    for (key, writes) in keys {
        let before = (count.lost, count.executed_twice);
        match finals.get(key) {
            None => {}
            Some(found) if writes.iter().all(|e| e.op == Op::Incr) => {
                count.sum(&writes, found);
            }
            Some(found) if writes.iter().all(|e| matches!(e.op, Op::Append(_))) => {
                count.tokens(&writes, found);
            }
            Some(found) if writes.iter().all(|e| matches!(e.op, Op::Set(_) | Op::Del)) => {
                count.register(&writes, found);
            }
            // Only the histories tell.
            Some(_) => {}
        }
        if before != (count.lost, count.executed_twice) {
            let found = &finals[key];
            count.examples.push(format!("{key} holds {found:?}"));
        }
    }
    count
}

impl Count {
    /// Checks increments: all that were acknowledged took effect, and no more than were sent. No
    /// two got one answer.
    fn sum(&mut self, writes: &[&Event], found: &Answer) {
        let acknowledged = writes.iter().filter(|e| e.answer.is_some()).count() as u64;
        let sent = writes.len() as u64;
        let total = match found {
            Answer::Text(text) => text.parse().unwrap_or(u64::MAX),
            _ => 0,
        };
        let answers: Vec<i64> = writes
            .iter()
            .filter_map(|e| match e.answer {
                Some((_, Answer::Number(n))) => Some(n),
                _ => None,
            })
            .collect();
        let distinct: BTreeSet<&i64> = answers.iter().collect();
        let repeated = (answers.len() - distinct.len()) as u64;
        self.lost += acknowledged.saturating_sub(total).max(repeated);
        self.executed_twice += total.saturating_sub(sent);
    }

    /// Checks tokens, each of which is different and ends with a semicolon.
    fn tokens(&mut self, writes: &[&Event], found: &Answer) {
        let text = match found {
            Answer::Text(text) => text.as_str(),
            _ => "",
        };
        let mut times: BTreeMap<&str, u64> = BTreeMap::new();
        for token in text.split_inclusive(';') {
            *times.entry(token).or_default() += 1;
        }
        for event in writes {
            let Op::Append(token) = &event.op else {
                continue;
            };
            match times.get(token.as_str()) {
                None => self.lost += u64::from(event.answer.is_some()),
                Some(n) => self.executed_twice += n - 1,
            }
        }
    }

    /// Checks a register: it has the last write that was acknowledged, or one that may have come
    /// later.
    fn register(&mut self, writes: &[&Event], found: &Answer) {
        let made_it = |event: &&&Event| match (&event.op, found) {
            (Op::Set(value), Answer::Text(text)) => value == text,
            (Op::Del, Answer::Nil) => true,
            _ => false,
        };
        let ends = |event: &Event| event.answer.as_ref().map_or(u64::MAX, |(at, _)| *at);
        let mut possible: Vec<u64> = writes.iter().filter(made_it).map(|e| ends(e)).collect();
        if *found == Answer::Nil {
            // It was so before the first one.
            possible.push(0);
        }
        let acknowledged = writes.iter().filter(|e| e.answer.is_some());
        let latest_call = acknowledged.map(|e| e.call).max().unwrap_or(0);
        self.lost += u64::from(!possible.iter().any(|end| *end >= latest_call));
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::tests::event;
    use super::*;

    fn judge(history: &[Event], found: Answer) -> (u64, u64) {
        let finals = BTreeMap::from([("k".to_string(), found)]);
        let count = count(history, &finals);
        (count.lost, count.executed_twice)
    }

    fn text(text: &str) -> Answer {
        Answer::Text(text.to_string())
    }

    #[test]
    fn sums() {
        let mut history = vec![
            event("k", Op::Incr, 0, Some((1, Answer::Number(1)))),
            event("k", Op::Incr, 2, None),
            event("k", Op::Incr, 4, Some((5, Answer::Number(2)))),
        ];
        assert_eq!(judge(&history, text("2")), (0, 0));
        assert_eq!(judge(&history, text("3")), (0, 0), "the unknown one");
        assert_eq!(judge(&history, text("1")), (1, 0));
        assert_eq!(judge(&history, Answer::Nil), (2, 0));
        assert_eq!(judge(&history, text("4")), (0, 1));
        history[2].answer = Some((5, Answer::Number(1)));
        assert_eq!(judge(&history, text("2")), (1, 0), "one answer for two");
    }

    #[test]
    fn tokens() {
        let history = [
            event(
                "k",
                Op::Append("a;".into()),
                0,
                Some((1, Answer::Number(2))),
            ),
            event("k", Op::Append("b;".into()), 0, None),
        ];
        assert_eq!(judge(&history, text("a;")), (0, 0));
        assert_eq!(judge(&history, text("b;a;")), (0, 0));
        assert_eq!(judge(&history, text("b;")), (1, 0));
        assert_eq!(judge(&history, text("b;a;b;")), (0, 1));
        assert_eq!(judge(&history, Answer::Nil), (1, 0));
    }

    #[test]
    fn registers() {
        let set = |v: &str, call, end: Option<u64>| {
            let answer = end.map(|end| (end, Answer::Done));
            event("k", Op::Set(v.into()), call, answer)
        };
        let mut history = vec![set("a", 0, Some(1)), set("b", 2, Some(3))];
        assert_eq!(judge(&history, text("b")), (0, 0));
        assert_eq!(judge(&history, text("a")), (1, 0));
        assert_eq!(judge(&history, Answer::Nil), (1, 0));
        assert_eq!(judge(&history, text("x")), (1, 0));
        history.push(set("c", 2, None));
        assert_eq!(judge(&history, text("c")), (0, 0));
        history.push(event("k", Op::Del, 3, Some((4, Answer::Number(1)))));
        assert_eq!(judge(&history, Answer::Nil), (0, 0));
        assert_eq!(judge(&history, text("b")), (0, 0), "they overlap");
    }
}
