// SPDX-License-Identifier: Apache-2.0
//! What clients asked and were told, for both checkers.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde_json::json;
use sim::linearizability::{self, Command, Linearizable, Operation};

/// One command, as its client saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Who asked.
    pub client: u32,
    /// Of what.
    pub key: String,
    /// What.
    pub op: Op,
    /// When it was sent, in nanoseconds since the start.
    pub call: u64,
    /// When the answer came, and what it was. Without one it may take effect at any time, or never.
    pub answer: Option<(u64, Answer)>,
}

/// What clients do to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Op {
    Get,
    Set(String),
    Incr,
    Append(String),
    Del,
}

/// What they are told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Answer {
    Done,
    Nil,
    Number(i64),
    Text(String),
    NotANumber,
}

impl Op {
    /// Its name on the wire, and its argument if it has one.
    pub fn words(&self) -> (&'static str, Option<&str>) {
        match self {
            Op::Get => ("GET", None),
            Op::Set(value) => ("SET", Some(value)),
            Op::Incr => ("INCR", None),
            Op::Append(token) => ("APPEND", Some(token)),
            Op::Del => ("DEL", None),
        }
    }

    /// Whether it changes something.
    pub fn writes(&self) -> bool {
        *self != Op::Get
    }
}

impl Command for Op {
    type State = Option<String>;
    type Answer = Answer;

    fn apply(&self, state: &Option<String>) -> (Option<String>, Answer) {
        match self {
            Op::Get => {
                let answer = state.clone().map_or(Answer::Nil, Answer::Text);
                (state.clone(), answer)
            }
            Op::Set(value) => (Some(value.clone()), Answer::Done),
            Op::Incr => match state.as_deref().unwrap_or("0").parse::<i64>() {
                Ok(n) => (Some((n + 1).to_string()), Answer::Number(n + 1)),
                Err(_) => (state.clone(), Answer::NotANumber),
            },
            Op::Append(token) => {
                let value = state.clone().unwrap_or_default() + token;
                let len = value.len() as i64;
                (Some(value), Answer::Number(len))
            }
            Op::Del => (None, Answer::Number(i64::from(state.is_some()))),
        }
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
        let (op, argument) = event.op.words();
        let end = event.answer.as_ref().map(|(at, _)| at);
        let answer = event.answer.as_ref().map(|(_, answer)| match answer {
            Answer::Done => "+".to_string(),
            Answer::Nil => "_".to_string(),
            Answer::Number(n) => format!(":{n}"),
            Answer::Text(text) => format!("${text}"),
            Answer::NotANumber => "-".to_string(),
        });
        let line = json!({
            "client": event.client,
            "key": event.key,
            "op": op,
            "arg": argument.unwrap_or_default(),
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
