// SPDX-License-Identifier: Apache-2.0
//! Shows a Redis server's answers to clients.

use apps::redis::{End, Spread, Value};

use crate::cursor::Cursor;
use crate::pubsub::blanks::Blank;
use crate::pubsub::survey::Question;
use crate::state::watched_keys;

/// How a server's answer is shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Served {
    /// The answer is shown as it is.
    Plain,
    /// The answer is shown as it is, too. It is short, so the command may be joined with others.
    Brief,
    /// The answer to SCAN, in which the place to continue becomes the next cursor.
    Scan,
    /// The answer to WATCH of these keys, which has their versions.
    Watch(Vec<Vec<u8>>),
    /// The answers of all partitions, asked one after the other, as gathered so far.
    All(Spread, Gathered),
    /// The answer to PUBLISH or SPUBLISH; the front end counts the clients that get the message.
    Published(Question),
    /// The answer to PUBSUB, which the front end counts once the log has come that far.
    Survey,
    /// The answer to EXEC, in which the front end fills in these counts.
    Exec(Vec<Blank>),
    /// The answer to a try of a command that may wait.
    Tried,
}

/// The partitions' answers so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Gathered {
    numbers: Vec<i64>,
    is_list: bool,
    items: Vec<u8>,
    count: usize,
}

impl Served {
    /// Takes the answer of one partition. Returns false if it is an error, or is all that matters.
    pub fn gather(&mut self, answer: &[u8]) -> bool {
        let Served::All(spread, so_far) = self else {
            return false;
        };
        if answer.starts_with(b"-") {
            return false;
        }
        match spread {
            Spread::Sum | Spread::Least => so_far.add_numbers(*spread, answer),
            Spread::Joined => so_far.join(answer),
            Spread::One | Spread::Same => true,
        }
    }

    /// Appends the answer that a client gets, once `answer`, the last partition's, has come.
    pub fn show(&self, out: &mut Vec<u8>, answer: &[u8], (pid, partitions): (u16, u16)) {
        let other = match self {
            _ if answer.starts_with(b"-") => None,
            // `Plain` is passed on as it is; the connection itself answers the others.
            Served::Plain | Served::Brief | Served::Exec(_) => None,
            Served::Published(_) | Served::Survey | Served::Tried => None,
            Served::Watch(_) => Some(b"+OK\r\n".to_vec()),
            Served::Scan => scanned(answer, pid, partitions),
            Served::All(spread, so_far) => so_far.show(*spread),
        };
        out.extend_from_slice(other.as_deref().unwrap_or(answer));
    }
}

/// Returns the items of an array, each as a server sends it. Anything else, which is an error, is
/// returned again and again.
pub(crate) fn each(answer: &[u8]) -> impl Iterator<Item = &[u8]> {
    let head = answer.windows(2).position(|pair| pair == b"\r\n");
    let items = head.filter(|_| answer.starts_with(b"*"));
    let mut rest = items.map(|head| &answer[head + 2..]);
    std::iter::from_fn(move || {
        let Some(items) = &mut rest else {
            return Some(answer);
        };
        let len = End::default().find(items).ok().flatten()?;
        let (item, behind) = items.split_at(len);
        *items = behind;
        Some(item)
    })
}

impl Gathered {
    fn add_numbers(&mut self, spread: Spread, answer: &[u8]) -> bool {
        let Ok(value) = Value::parse(answer) else {
            return false;
        };
        self.is_list = matches!(value, Value::List(_));
        let numbers: Vec<i64> = match &value {
            Value::List(items) => items.iter().filter_map(Value::int).collect(),
            other => other.int().into_iter().collect(),
        };
        if self.numbers.is_empty() {
            self.numbers = numbers;
            return true;
        }
        for (all, one) in self.numbers.iter_mut().zip(numbers) {
            *all = match spread {
                Spread::Sum => *all + one,
                _ => one.min(*all),
            };
        }
        true
    }

    /// Takes one partition's list. Returns false if its answer needs no others.
    fn join(&mut self, answer: &[u8]) -> bool {
        match Value::parse(answer) {
            Ok(Value::List(items)) => {
                self.is_list = true;
                self.count += items.len();
                let end = answer.windows(2).position(|pair| pair == b"\r\n");
                self.items
                    .extend_from_slice(&answer[end.map_or(0, |end| end + 2)..]);
                true
            }
            Ok(Value::Nil) => true,
            _ => false,
        }
    }

    /// Returns the gathered answer, or nothing if the last answer is all that matters.
    fn show(&self, spread: Spread) -> Option<Vec<u8>> {
        match spread {
            Spread::Sum | Spread::Least if !self.numbers.is_empty() => {
                let lines = self.numbers.iter().map(|number| format!(":{number}\r\n"));
                let lines: String = lines.collect();
                Some(match self.is_list {
                    true => format!("*{}\r\n{lines}", self.numbers.len()).into_bytes(),
                    false => lines.into_bytes(),
                })
            }
            Spread::Joined if self.is_list => {
                Some([format!("*{}\r\n", self.count).as_bytes(), &self.items].concat())
            }
            _ => None,
        }
    }
}

/// Returns the answer to SCAN with a cursor that also names the partition.
fn scanned(answer: &[u8], pid: u16, partitions: u16) -> Option<Vec<u8>> {
    let value = Value::parse(answer).ok()?;
    let cursor = value.items().first()?.text()?;
    let place: u64 = std::str::from_utf8(cursor).ok()?.parse().ok()?;
    let next = Cursor::next_number(pid, (place > 0).then_some(place), partitions).to_string();
    let head = format!("*2\r\n${}\r\n", cursor.len()).len();
    let keys = answer.get(head + cursor.len()..)?;
    Some([format!("*2\r\n${}\r\n{next}", next.len()).as_bytes(), keys].concat())
}

/// Returns the versions in an answer to WATCH, with true for each key that existed.
pub(crate) fn versions(keys: &[Vec<u8>], answer: &[u8]) -> Vec<watched_keys::Watched> {
    let numbers: Vec<i64> = match Value::parse(answer) {
        Ok(value) => value.items().iter().filter_map(Value::int).collect(),
        Err(_) => Vec::new(),
    };
    let of = |(key, pair): (&Vec<u8>, &[i64])| watched_keys::Watched {
        key: key.clone(),
        version: pair[0] as u64,
        existed: pair[1] == 1,
    };
    keys.iter().zip(numbers.chunks_exact(2)).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(spread: Spread, answers: &[&[u8]]) -> Vec<u8> {
        let mut all = Served::All(spread, Gathered::default());
        let last = answers.len() - 1;
        let ends = answers.iter().position(|answer| !all.gather(answer));
        let ends = ends.unwrap_or(last);
        let mut shown = Vec::new();
        let place = (ends as u16, answers.len() as u16);
        all.show(&mut shown, answers[ends], place);
        shown
    }

    #[test]
    fn an_array_is_taken_apart_and_an_error_answers_everything() {
        let array = b"*3\r\n+OK\r\n$4\r\na\r\nb\r\n-ERR no\r\n";
        let items: Vec<&[u8]> = each(array).collect();
        let expected: [&[u8]; 3] = [b"+OK\r\n", b"$4\r\na\r\nb\r\n", b"-ERR no\r\n"];
        assert_eq!(items, expected);
        let error = b"-LIMIT not executed\r\n";
        assert!(each(error).take(3).all(|item| item == error));
        assert_eq!(
            each(b"*2\r\n:1\r\n$5\r\nab").count(),
            1,
            "it ends too early"
        );
        assert_eq!(each(b"*1\r\n?\r\n").count(), 0);
    }

    #[test]
    fn answers_of_all_partitions_become_one() {
        for (spread, answers, shown) in [
            (Spread::Sum, [&b":3\r\n"[..], b":4\r\n"], &b":7\r\n"[..]),
            (
                Spread::Least,
                [b"*2\r\n:1\r\n:0\r\n", b"*2\r\n:1\r\n:1\r\n"],
                b"*2\r\n:1\r\n:0\r\n",
            ),
            (Spread::Same, [b"+OK\r\n", b"+OK\r\n"], b"+OK\r\n"),
            (Spread::Same, [b"-ERR no\r\n", b"+OK\r\n"], b"-ERR no\r\n"),
            (
                Spread::Joined,
                [b"*1\r\n$1\r\na\r\n", b"*1\r\n$1\r\nb\r\n"],
                b"*2\r\n$1\r\na\r\n$1\r\nb\r\n",
            ),
            (Spread::Joined, [b"$-1\r\n", b"$1\r\nk\r\n"], b"$1\r\nk\r\n"),
            (Spread::Joined, [b"$1\r\nk\r\n", b"$-1\r\n"], b"$1\r\nk\r\n"),
            (Spread::Joined, [b"*0\r\n", b"*0\r\n"], b"*0\r\n"),
        ] {
            assert_eq!(gathered(spread, &answers), shown, "{spread:?}");
        }
    }

    #[test]
    fn a_cursor_names_its_partition() {
        let answer = b"*2\r\n$2\r\n17\r\n*1\r\n$1\r\na\r\n";
        let shown = scanned(answer, 0, 2).unwrap();
        assert_eq!(shown, answer);
        let shown = scanned(b"*2\r\n$1\r\n0\r\n*0\r\n", 0, 2).unwrap();
        let next = (1u64 << apps::place::BITS).to_string();
        assert_eq!(
            shown,
            format!("*2\r\n${}\r\n{next}\r\n*0\r\n", next.len()).into_bytes()
        );
        let shown = scanned(b"*2\r\n$1\r\n0\r\n*0\r\n", 1, 2).unwrap();
        assert_eq!(shown, b"*2\r\n$1\r\n0\r\n*0\r\n");
    }
}
