// SPDX-License-Identifier: Apache-2.0
//! The commands and answers of all clients, for both checkers.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde_json::json;
use sim::linearizability::{self, Command, Linearizable, Operation};

/// Keys of a group.
pub const MEMBERS: usize = 3;

/// One command as its client saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The client's number.
    pub client: u32,
    /// The key, or the group of keys, which has a history of its own.
    pub key: String,
    /// The operation.
    pub op: Op,
    /// When it was sent, in nanoseconds since the start.
    pub call: u64,
    /// When the answer came, and what it was. Without one it may take effect at any time, or never.
    pub answer: Option<(u64, Answer)>,
}

/// The operations on a key, or on several keys of a group, which are given by their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Op {
    Get,
    Set(String),
    Incr,
    Append(String),
    Del,
    SetSome(Vec<usize>, String),
    GetAll,
    DelSome(Vec<usize>),
}

/// The answers that clients get.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Answer {
    Done,
    Nil,
    Number(i64),
    Text(String),
    NotANumber,
    /// The values of all keys of a group.
    Texts([Option<String>; MEMBERS]),
}

impl Op {
    /// Returns its name on the wire.
    pub const fn name(&self) -> &'static str {
        match self {
            Op::Get => "GET",
            Op::Set(_) => "SET",
            Op::Incr => "INCR",
            Op::Append(_) => "APPEND",
            Op::Del | Op::DelSome(_) => "DEL",
            Op::SetSome(..) => "MSET",
            Op::GetAll => "MGET",
        }
    }

    /// Returns what it sets or appends.
    pub fn argument(&self) -> Option<&str> {
        match self {
            Op::Set(value) | Op::Append(value) | Op::SetSome(_, value) => Some(value),
            _ => None,
        }
    }

    /// Returns the keys of a group to which the operation applies.
    pub fn members(&self) -> Option<Vec<usize>> {
        match self {
            Op::SetSome(members, _) | Op::DelSome(members) => Some(members.clone()),
            Op::GetAll => Some((0..MEMBERS).collect()),
            _ => None,
        }
    }

    /// Returns its words on the wire.
    pub fn words(&self, key: &str) -> Vec<String> {
        let keys = match self.members() {
            Some(members) => members.iter().map(|n| format!("{key}/{n}")).collect(),
            None => vec![key.to_string()],
        };
        let argument = self.argument().map(str::to_string);
        let with_argument = |key| std::iter::once(key).chain(argument.clone());
        let name = std::iter::once(self.name().to_string());
        name.chain(keys.into_iter().flat_map(with_argument))
            .collect()
    }

    /// Returns whether it changes something.
    pub fn writes(&self) -> bool {
        !matches!(self, Op::Get | Op::GetAll)
    }
}

/// The contents of a key are those of the first of a group.
impl Command for Op {
    type State = [Option<String>; MEMBERS];
    type Answer = Answer;

    fn apply(&self, state: &Self::State) -> (Self::State, Answer) {
        let mut after = state.clone();
        let value = &mut after[0];
        let answer = match self {
            Op::Get => value.clone().map_or(Answer::Nil, Answer::Text),
            Op::Set(to) => {
                *value = Some(to.clone());
                Answer::Done
            }
            Op::Incr => match value.as_deref().unwrap_or("0").parse::<i64>() {
                Ok(n) => {
                    *value = Some((n + 1).to_string());
                    Answer::Number(n + 1)
                }
                Err(_) => Answer::NotANumber,
            },
            Op::Append(token) => {
                let value = value.get_or_insert_default();
                value.push_str(token);
                Answer::Number(value.len() as i64)
            }
            Op::Del => Answer::Number(i64::from(value.take().is_some())),
            Op::SetSome(members, to) => {
                members.iter().for_each(|n| after[*n] = Some(to.clone()));
                Answer::Done
            }
            Op::GetAll => Answer::Texts(after.clone()),
            Op::DelSome(members) => {
                let gone = members.iter().filter(|n| after[**n].take().is_some());
                Answer::Number(gone.count() as i64)
            }
        };
        (after, answer)
    }
}

/// Returns the history without appends that nobody saw: those that were not answered, to a key that
/// is only appended to and read, and that the last read of all doesn't show. They came after that
/// read or never, so the history is linearizable without them if and only if it is with them. A
/// checker would try them everywhere, in any order: eight of them made one key too hard for both.
pub fn without_unseen(history: &[Event]) -> Vec<Event> {
    let mut keys: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
    for event in history {
        keys.entry(&event.key).or_default().push(event);
    }
    let last: BTreeMap<&str, &str> = keys
        .iter()
        .filter_map(|(key, events)| Some((*key, last_contents(events)?)))
        .collect();
    let is_seen = |event: &&Event| match (&event.op, last.get(event.key.as_str())) {
        (Op::Append(token), Some(contents)) => event.answer.is_some() || contents.contains(token),
        _ => true,
    };
    history.iter().filter(is_seen).cloned().collect()
}

/// Returns what the last read of a key showed, if the key was only appended to and read, and
/// nothing was answered after that read began.
fn last_contents<'a>(events: &[&'a Event]) -> Option<&'a str> {
    let is_append_or_read = |event: &&Event| matches!(event.op, Op::Append(_) | Op::Get);
    let reads = events.iter().filter(|event| event.op == Op::Get);
    let last = reads
        .filter(|e| e.answer.is_some())
        .max_by_key(|e| e.call)?;
    let answered = |event: &&Event| event.answer.as_ref().map(|(at, _)| *at);
    let others = events.iter().filter(|event| !std::ptr::eq(**event, *last));
    let ends_before = others.filter_map(answered).all(|at| at < last.call);
    match &last.answer {
        Some((_, Answer::Text(text))) if ends_before && events.iter().all(is_append_or_read) => {
            Some(text)
        }
        _ => None,
    }
}

/// Asks our own checker; the key that it names, if any.
pub fn check(history: &[Event]) -> (Linearizable, Option<String>) {
    let mut numbers: BTreeMap<&str, u64> = BTreeMap::new();
    let operations: Vec<Operation<Op>> = history
        .iter()
        .map(|event| {
            let next = numbers.len() as u64;
            Operation {
                key: *numbers.entry(&event.key).or_insert(next),
                op: event.op.clone(),
                call: event.call,
                answer: event.answer.clone(),
            }
        })
        .collect();
    let verdict = linearizability::check(&operations);
    let key = match verdict {
        Linearizable::Yes => None,
        Linearizable::No { key } | Linearizable::Unknown { key } => {
            let found = numbers.iter().find(|(_, number)| **number == key);
            found.map(|(name, _)| name.to_string())
        }
    };
    (verdict, key)
}

/// Writes a line of JSON an event, as `torture/porcupine` reads it.
pub fn write(history: &[Event], path: &Path) -> io::Result<()> {
    let mut file = BufWriter::new(std::fs::File::create(path)?);
    for event in history {
        let end = event.answer.as_ref().map(|(at, _)| at);
        let answer = event.answer.as_ref().map(|(_, answer)| match answer {
            Answer::Done => "+".to_string(),
            Answer::Nil => "_".to_string(),
            Answer::Number(n) => format!(":{n}"),
            Answer::Text(text) => format!("${text}"),
            Answer::NotANumber => "-".to_string(),
            Answer::Texts(texts) => {
                let text = |text: &Option<String>| match text {
                    Some(text) => format!("${text}"),
                    None => "_".to_string(),
                };
                let texts: Vec<String> = texts.iter().map(text).collect();
                format!("*{}", texts.join(" "))
            }
        });
        let line = json!({
            "client": event.client,
            "key": event.key,
            "op": event.op.name(),
            "members": event.op.members(),
            "arg": event.op.argument().unwrap_or_default(),
            "call": event.call,
            "return": end,
            "answer": answer,
        });
        writeln!(file, "{line}")?;
    }
    file.flush()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn event(key: &str, op: Op, call: u64, answer: Option<(u64, Answer)>) -> Event {
        Event {
            client: 1,
            key: key.to_string(),
            op,
            call,
            answer,
        }
    }

    #[test]
    fn the_store_as_the_checker_knows_it() {
        let text = |s: &str| Answer::Text(s.to_string());
        let history = [
            event("a", Op::Get, 0, Some((1, Answer::Nil))),
            event("a", Op::Incr, 2, Some((3, Answer::Number(1)))),
            event("a", Op::Append("7".into()), 4, Some((5, Answer::Number(2)))),
            event("a", Op::Incr, 6, Some((7, Answer::Number(18)))),
            event("a", Op::Del, 8, Some((9, Answer::Number(1)))),
            event("a", Op::Del, 10, Some((11, Answer::Number(0)))),
            event("a", Op::Set("x".into()), 12, Some((13, Answer::Done))),
            event("a", Op::Incr, 14, Some((15, Answer::NotANumber))),
            event("a", Op::Get, 16, Some((17, text("x")))),
        ];
        assert_eq!(check(&history), (Linearizable::Yes, None));
    }

    #[test]
    fn a_group_takes_effect_as_a_whole() {
        let set = |members: &[usize], value: &str, call| {
            let op = Op::SetSome(members.to_vec(), value.to_string());
            event("g", op, call, Some((call + 1, Answer::Done)))
        };
        let read = |texts: [Option<&str>; MEMBERS], call| {
            let texts = texts.map(|text| text.map(str::to_string));
            event(
                "g",
                Op::GetAll,
                call,
                Some((call + 1, Answer::Texts(texts))),
            )
        };
        let del = |members: &[usize], call, gone| {
            let op = Op::DelSome(members.to_vec());
            event("g", op, call, Some((call + 1, Answer::Number(gone))))
        };
        let mut history = vec![
            set(&[0, 2], "a", 0),
            read([Some("a"), None, Some("a")], 2),
            del(&[0, 1], 4, 1),
            read([None, None, Some("a")], 6),
        ];
        assert_eq!(check(&history), (Linearizable::Yes, None));
        assert_eq!(history[0].op.words("g"), ["MSET", "g/0", "a", "g/2", "a"]);
        assert_eq!(history[1].op.words("g"), ["MGET", "g/0", "g/1", "g/2"]);
        assert_eq!(history[2].op.words("g"), ["DEL", "g/0", "g/1"]);
        // Half of a command that nobody answered, and later the other half.
        history.push(Event {
            answer: None,
            ..set(&[0, 1], "b", 8)
        });
        history.push(read([Some("b"), None, Some("a")], 10));
        let (verdict, key) = check(&history);
        assert!(matches!(verdict, Linearizable::No { .. }));
        assert_eq!(key.as_deref(), Some("g"));
        history.pop();
        history.push(read([Some("b"), Some("b"), Some("a")], 12));
        assert_eq!(check(&history), (Linearizable::Yes, None));
    }

    #[test]
    fn appends_that_nobody_saw_are_left_out() {
        let text = |s: &str| Answer::Text(s.to_string());
        let append = |token: &str, call, answer| event("a", Op::Append(token.into()), call, answer);
        let mut history = vec![append("0;", 0, Some((1, Answer::Number(2))))];
        history.extend((1..=9).map(|n| append(&format!("{n};"), 1 + n, None)));
        for n in 0..20 {
            let (call, len) = (100 + 10 * n, 4 + 2 * n as i64);
            history.push(append("x;", call, Some((call + 5, Answer::Number(len)))));
        }
        let all = "0;".to_string() + &"x;".repeat(20);
        history.push(event("a", Op::Get, 1_000, Some((1_001, text(&all)))));
        let checked = without_unseen(&history);
        assert_eq!(checked.len(), history.len() - 9);
        assert_eq!(check(&checked), (Linearizable::Yes, None));

        // A value that was read stays possible, and so do values before a read that isn't the last
        // one.
        let seen = event(
            "a",
            Op::Get,
            1_002,
            Some((1_003, text(&(all.clone() + "4;")))),
        );
        history.push(seen);
        assert_eq!(without_unseen(&history).len(), history.len() - 8);
        history.push(append("y;", 1_000, Some((1_010, Answer::Number(46)))));
        assert_eq!(without_unseen(&history).len(), history.len());
        // A value that was overwritten may have been there.
        let set = event("a", Op::Set("z".into()), 1_020, Some((1_021, Answer::Done)));
        let last = event("a", Op::Get, 1_030, Some((1_031, text("z"))));
        history.extend([set, last]);
        assert_eq!(without_unseen(&history).len(), history.len());
    }

    #[test]
    fn the_guilty_key_is_named() {
        let history = [
            event("good", Op::Set("1".into()), 0, None),
            event("bad", Op::Set("1".into()), 2, Some((3, Answer::Done))),
            event("bad", Op::Get, 4, Some((5, Answer::Nil))),
        ];
        let (verdict, key) = check(&history);
        assert!(matches!(verdict, Linearizable::No { .. }));
        assert_eq!(key.as_deref(), Some("bad"));
    }
}
