// SPDX-License-Identifier: Apache-2.0
//! A command that may wait, its timeout, and the form in which it is tried. In the log it has a
//! form that doesn't wait, because the log must not stand still.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use apps::kv::parse_integer;
use apps::redis::{Command, Spec, Stamp, Value};

use crate::partitions::Partitions;
use crate::waits::Question;

/// The id in XREAD that stands for all entries from now on.
const FROM_NOW_ON: &[u8] = b"$";
const NO_SUCH_KEY: &[u8] = b"ERR no such key";
/// The answers that say that there is nothing.
const NOTHING: [&[u8]; 3] = [b"*-1\r\n", b"$-1\r\n", b"_\r\n"];
/// The commands that wait and may get the wrong-type error for another key than the one for which
/// they wait.
const MOVES: [&str; 2] = ["blmove", "brpoplpush"];
const WRONG_TYPE: &[u8] = b"-WRONGTYPE ";
/// The bytes that a question about a key takes in the log, besides the key.
const ABOUT_A_KEY: usize = 16;
const NO_GROUP: &[u8] = b"-NOGROUP ";
/// The answers to a client of a group whose stream, or group, goes away while it waits.
const STREAM_GONE: &[u8] = b"-UNBLOCKED the stream key no longer exists\r\n";
const GROUP_GONE: &[u8] =
    b"-NOGROUP the consumer group this client was blocked on no longer exists\r\n";

/// A command that may wait.
pub(crate) struct Waiting {
    /// The command's number, which is also its slot's.
    pub number: u64,
    pub partitions: Partitions,
    pub resp3: bool,
    /// The command's arguments in the form that waits for ever.
    args: Vec<Vec<u8>>,
    pub keys: Vec<Vec<u8>>,
    /// The indexes of the keys among the arguments.
    places: Vec<usize>,
    /// The end of the wait; none if the command waits for ever.
    pub deadline: Option<Instant>,
    /// True if the command changes nothing.
    pub is_read: bool,
    /// The indexes of a stream's key and of its [last id](FROM_NOW_ON), for each last id that isn't
    /// known yet.
    last_ids: Vec<(usize, usize)>,
    /// True if the command is being tried.
    pub tries: bool,
    /// True if the command reads for a group of a stream.
    is_of_group: bool,
    /// True if the command continues to wait after its key has become one of another type.
    outwaits_types: bool,
    /// The answer to the last try, if it found nothing.
    nothing: Option<&'static [u8]>,
}

/// The answer to a try.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Tried<'a> {
    /// The key has nothing, and this answer says so.
    Nothing(&'a [u8]),
    /// This is the final answer: something was found, or there was an error.
    Something(&'a [u8]),
    /// The last ids are known now, so the command can be tried.
    Ready,
}

impl Waiting {
    /// Parses a command that may wait by the server's description of it. Returns nothing if its
    /// arguments say that it doesn't wait, or the error that answers it.
    pub fn parse(
        spec: &Spec,
        args: &[&[u8]],
        resp3: bool,
        now: Instant,
    ) -> Result<Option<Waiting>, &'static str> {
        let mut args: Vec<Vec<u8>> = args.iter().map(|arg| arg.to_vec()).collect();
        let (timeout, mut last_ids) = match spec.name.as_str() {
            "xread" | "xreadgroup" => {
                let Some(block) = block_of(&args) else {
                    return Ok(None);
                };
                let timeout = milliseconds(&args[block + 1])?;
                if spec.is_read {
                    args.drain(block..block + 2);
                } else {
                    args[block + 1] = b"0".to_vec();
                }
                (timeout, from_now_on(spec, &args))
            }
            name => {
                // Commands such as BLMPOP have the timeout first, all others have it last.
                let at = match name.ends_with("mpop") {
                    true => 1,
                    false => args.len() - 1,
                };
                let timeout = seconds(&args[at])?;
                args[at] = b"0".to_vec();
                (timeout, Vec::new())
            }
        };
        last_ids.sort_unstable();
        let moves = MOVES.contains(&spec.name.as_str());
        // A move waits for its source alone, which is its first key.
        let most = if moves { 1 } else { usize::MAX };
        let keys = spec.keys(&borrowed(&args)).known.into_iter().take(most);
        let places: Vec<usize> = keys.map(|(at, _)| at).collect();
        let keys: Vec<Vec<u8>> = places.iter().map(|at| args[*at].clone()).collect();
        let outwaits_types = keys.len() == 1 && !moves;
        let timeout = timeout.filter(|timeout| !timeout.is_zero());
        Ok(Some(Waiting {
            number: 0,
            partitions: Partitions::default(),
            resp3,
            keys,
            places,
            deadline: timeout.and_then(|timeout| now.checked_add(timeout)),
            is_read: spec.is_read,
            last_ids,
            args,
            tries: false,
            is_of_group: spec.name == "xreadgroup",
            outwaits_types,
            nothing: None,
        }))
    }

    /// Returns true if last ids must be found out before the command can be tried.
    pub fn is_unknown(&self) -> bool {
        !self.last_ids.is_empty()
    }

    pub fn question(&self) -> Question {
        Question {
            pid: self.partitions.lowest(),
            resp3: self.resp3,
            takes: !self.is_read,
            args: self.args.clone(),
        }
    }

    /// Returns the bytes that the command keeps in memory.
    pub fn memory(&self) -> usize {
        2 * self.args.iter().map(Vec::len).sum::<usize>()
    }

    /// Returns the bytes that the command has in the log, at most.
    pub fn max_len(&self) -> usize {
        let named_again = match self.is_of_group {
            true => self.keys.iter().map(|key| key.len() + ABOUT_A_KEY).sum(),
            false => 0,
        };
        self.encode(Stamp::default(), &[]).len() + named_again
    }

    /// Returns the command's bytes for the log or the worker, with the keys `first` before the
    /// others. They are a transaction, because within one Redis never waits.
    pub fn encode(&self, stamp: Stamp, first: &[Vec<u8>]) -> Vec<u8> {
        let exec = |resp3, commands| Command::Exec {
            stamp,
            resp3,
            watched: Vec::new(),
            commands,
        };
        let about_keys = |words: &[&'static [u8]]| -> Vec<Vec<&[u8]>> {
            let all = self.keys.iter();
            all.map(|key| [words, &[key]].concat()).collect()
        };
        let mut bytes = Vec::new();
        match (self.is_unknown(), self.is_read) {
            (true, _) => exec(false, self.streams_of_last_ids()),
            (false, true) => Command::Query {
                resp3: self.resp3,
                args: borrowed(&self.args),
            },
            (false, false) => {
                let mut commands = match self.may_be_gone() {
                    true => about_keys(&[b"TYPE"]),
                    false => Vec::new(),
                };
                commands.push(self.with_first(first));
                exec(self.resp3, commands)
            }
        }
        .encode(&mut bytes);
        bytes
    }

    fn streams_of_last_ids(&self) -> Vec<Vec<&[u8]>> {
        let all = self.last_ids.iter();
        all.map(|(key, _)| vec![&b"XINFO"[..], b"STREAM", &self.args[*key]])
            .collect()
    }

    /// Returns true if the command has waited for streams that may be gone meanwhile.
    fn may_be_gone(&self) -> bool {
        self.is_of_group && self.nothing.is_some()
    }

    /// Returns the arguments, with these keys before the others.
    fn with_first<'a>(&'a self, first: &'a [Vec<u8>]) -> Vec<&'a [u8]> {
        let mut args = borrowed(&self.args);
        // Keys of streams aren't reordered, since each key belongs to the id at the same position
        // further behind.
        if !self.is_of_group {
            let known: HashSet<&[u8]> = first.iter().map(Vec::as_slice).collect();
            let others = self
                .keys
                .iter()
                .filter(|key| !known.contains(key.as_slice()));
            let keys = first.iter().chain(others);
            self.places
                .iter()
                .zip(keys)
                .for_each(|(place, key)| args[*place] = key);
        }
        args
    }

    /// Interprets the answer to a try.
    pub fn tried<'a>(&mut self, answer: &'a [u8]) -> Tried<'a> {
        if self.is_unknown() {
            return match self.take_last_ids(answer) {
                Ok(()) => Tried::Ready,
                Err(error) => Tried::Something(error),
            };
        }
        let (types, alone) = self.split(answer);
        if types.is_some() && [NO_GROUP, WRONG_TYPE].iter().any(|e| alone.starts_with(e)) {
            let are_streams = types.is_some_and(|types| types.iter().all(|t| *t == b"stream"));
            return Tried::Something(match are_streams {
                true => GROUP_GONE,
                false => STREAM_GONE,
            });
        }
        let has_other_type = self.outwaits_types && alone.starts_with(WRONG_TYPE);
        let nothing = match NOTHING.into_iter().find(|nothing| *nothing == alone) {
            None if has_other_type => self.nothing,
            nothing => nothing,
        };
        self.nothing = nothing;
        match nothing {
            Some(nothing) => Tried::Nothing(nothing),
            None => Tried::Something(alone),
        }
    }

    /// Returns the types of the command's keys, if they were asked for, and the answer to the
    /// command itself.
    fn split<'a>(&self, answer: &'a [u8]) -> (Option<Vec<&'a [u8]>>, &'a [u8]) {
        if self.is_read {
            return (None, answer);
        }
        let asked = if self.may_be_gone() {
            self.keys.len()
        } else {
            0
        };
        let head = format!("*{}\r\n", asked + 1);
        let Some(mut rest) = answer.strip_prefix(head.as_bytes()) else {
            return (None, answer);
        };
        let mut types = Vec::new();
        for _ in 0..asked {
            let end = rest.windows(2).position(|pair| pair == b"\r\n");
            let Some(end) = end.filter(|end| *end > 0) else {
                return (None, answer);
            };
            types.push(&rest[1..end]);
            rest = &rest[end + 2..];
        }
        (self.may_be_gone().then_some(types), rest)
    }

    /// Takes the last ids from XINFO's answers about the streams; returns an error if a key isn't a
    /// stream.
    fn take_last_ids<'a>(&mut self, answer: &'a [u8]) -> Result<(), &'a [u8]> {
        let value = Value::parse(answer).map_err(|_| answer)?;
        if matches!(value, Value::Error(_)) {
            return Err(answer);
        }
        for ((_, id), about) in self.last_ids.iter().zip(value.items()) {
            let last = about
                .items()
                .chunks_exact(2)
                .find(|pair| pair[0].text() == Some(b"last-generated-id"))
                .and_then(|pair| pair[1].text());
            self.args[*id] = match (about, last) {
                (_, Some(last)) => last.to_vec(),
                (Value::Error(why), None) if *why == NO_SUCH_KEY => b"0-0".to_vec(),
                _ => return Err(first_error(answer)),
            };
        }
        self.last_ids.clear();
        Ok(())
    }
}

/// Returns the first error within an array of answers.
fn first_error(answer: &[u8]) -> &[u8] {
    let begin = answer.windows(3).position(|bytes| bytes == b"\r\n-");
    let rest = begin.map_or(answer, |at| &answer[at + 2..]);
    let end = rest.windows(2).position(|pair| pair == b"\r\n");
    end.map_or(rest, |at| &rest[..at + 2])
}

fn borrowed(args: &[Vec<u8>]) -> Vec<&[u8]> {
    args.iter().map(Vec::as_slice).collect()
}

/// Returns the index of BLOCK among the options of XREAD and XREADGROUP before the streams, if an
/// argument follows it.
fn block_of(args: &[Vec<u8>]) -> Option<usize> {
    let mut at = 1;
    while let Some(word) = args.get(at) {
        at += match word.to_ascii_uppercase().as_slice() {
            b"BLOCK" => return (at + 1 < args.len()).then_some(at),
            b"COUNT" => 2,
            b"GROUP" => 3,
            b"NOACK" => 1,
            _ => return None,
        };
    }
    None
}

/// Returns the indexes of the key and id of each stream that XREAD reads from now on.
fn from_now_on(spec: &Spec, args: &[Vec<u8>]) -> Vec<(usize, usize)> {
    if !spec.is_read {
        return Vec::new();
    }
    let keys = spec.keys(&borrowed(args)).known;
    let count = keys.len();
    let all = keys.iter().map(|(at, _)| (*at, at + count));
    all.filter(|(_, id)| args.get(*id).is_some_and(|id| id == FROM_NOW_ON))
        .collect()
}

/// Parses a timeout in seconds as Redis does, with Redis's errors.
fn seconds(text: &[u8]) -> Result<Option<Duration>, &'static str> {
    let text = std::str::from_utf8(text).ok();
    let number = text.and_then(|text| text.parse::<f64>().ok());
    match number.filter(|number| !number.is_nan()) {
        None => Err("ERR timeout is not a float or out of range"),
        Some(negative) if negative < 0.0 => Err("ERR timeout is negative"),
        Some(number) => match Duration::try_from_secs_f64(number) {
            Ok(timeout) if timeout.as_millis() <= i64::MAX as u128 => Ok(Some(timeout)),
            _ => Err("ERR timeout is out of range"),
        },
    }
}

fn milliseconds(text: &[u8]) -> Result<Option<Duration>, &'static str> {
    match parse_integer(text) {
        None => Err("ERR timeout is not an integer or out of range"),
        Some(negative) if negative < 0 => Err("ERR timeout is negative"),
        Some(number) => Ok(Some(Duration::from_millis(number as u64))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_understood_as_redis_does() {
        assert_eq!(seconds(b"0"), Ok(Some(Duration::ZERO)));
        assert_eq!(seconds(b"0.25"), Ok(Some(Duration::from_millis(250))));
        for (text, why) in [
            ("", "not a float"),
            ("x", "not a float"),
            ("nan", "not a float"),
            ("-1", "negative"),
            ("1e300", "out of range"),
            ("inf", "out of range"),
        ] {
            assert!(
                seconds(text.as_bytes()).unwrap_err().contains(why),
                "{text}"
            );
        }
        assert_eq!(milliseconds(b"20"), Ok(Some(Duration::from_millis(20))));
        assert!(milliseconds(b"1.5").unwrap_err().contains("not an integer"));
        assert!(milliseconds(b"-1").unwrap_err().contains("negative"));
    }

    #[test]
    fn block_is_an_option_only_before_the_streams() {
        let block = |words: &str| {
            let args: Vec<Vec<u8>> = words.split(' ').map(|w| w.as_bytes().to_vec()).collect();
            block_of(&args)
        };
        assert_eq!(block("XREAD block 5 STREAMS s 0"), Some(1));
        assert_eq!(
            block("XREADGROUP GROUP BLOCK c COUNT 3 NOACK BLOCK 5 STREAMS s >"),
            Some(7)
        );
        assert_eq!(block("XREAD STREAMS BLOCK 0"), None);
        assert_eq!(block("XREAD COUNT 5 BLOCK"), None);
    }

    #[test]
    fn an_error_is_found_among_answers() {
        let answers = b"*2\r\n*2\r\n$1\r\na\r\n:1\r\n-WRONGTYPE no\r\n";
        assert_eq!(first_error(answers), b"-WRONGTYPE no\r\n");
    }
}
