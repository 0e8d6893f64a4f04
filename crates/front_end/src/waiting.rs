// SPDX-License-Identifier: Apache-2.0
//! A command that may wait, as it is tried: how long it waits, and as what it goes into the log, where nothing waits.

use std::time::{Duration, Instant};

use apps::kv::parse_integer;
use apps::redis::{Command, Spec, Stamp, Value};

use crate::partitions::Partitions;
use crate::waits::Question;

/// An id of XREAD that stands for all that comes from now on.
const FROM_NOW_ON: &[u8] = b"$";
const NO_SUCH_KEY: &[u8] = b"ERR no such key";
/// Answers that say that there is nothing.
const NOTHING: [&[u8]; 3] = [b"*-1\r\n", b"$-1\r\n", b"_\r\n"];
/// Of those that wait, who may be told by this error of another key than the one that they wait for.
const MOVES: [&str; 2] = ["blmove", "brpoplpush"];
const WRONG_TYPE: &[u8] = b"-WRONGTYPE ";
/// What a question about a key has in the log, besides the key.
const ABOUT_A_KEY: usize = 16;
const NO_GROUP: &[u8] = b"-NOGROUP ";
/// What a client of a group is told whose stream, or group, goes away while it waits.
const STREAM_GONE: &[u8] = b"-UNBLOCKED the stream key no longer exists\r\n";
const GROUP_GONE: &[u8] =
    b"-NOGROUP the consumer group this client was blocked on no longer exists\r\n";

/// A command that may wait.
pub(crate) struct Waiting {
    /// The slot of its answer.
    pub number: u64,
    pub partitions: Partitions,
    pub resp3: bool,
    /// As it is tried: as one that waits for ever.
    args: Vec<Vec<u8>>,
    pub keys: Vec<Vec<u8>>,
    /// Which arguments they are.
    places: Vec<usize>,
    /// None: it waits for ever.
    pub deadline: Option<Instant>,
    /// It changes nothing.
    pub is_read: bool,
    /// Arguments that are a stream's key, and its [last id](FROM_NOW_ON), which isn't known yet.
    last_ids: Vec<(usize, usize)>,
    /// Whether something of it is under way.
    pub tries: bool,
    /// Whether it reads for a group of streams.
    is_of_group: bool,
    /// Whether it goes on waiting if its key has become one of another type.
    outwaits_types: bool,
    /// What the last try that found nothing was answered.
    nothing: Option<&'static [u8]>,
}

/// What was answered to a try.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Tried<'a> {
    /// There is nothing, and this is what that's called.
    Nothing(&'a [u8]),
    /// Something, or an error: the answer.
    Something(&'a [u8]),
    /// Now it can be tried.
    Ready,
}

impl Waiting {
    /// A command of which the server says that it may wait; none if it doesn't, by what it says itself. Or the error that answers it.
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
                // Those with several keys and more behind them say it first.
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
        let keys = spec.keys(&borrowed(&args)).known;
        let places: Vec<usize> = keys.iter().map(|(at, _)| *at).collect();
        let keys: Vec<Vec<u8>> = places.iter().map(|at| args[*at].clone()).collect();
        let outwaits_types = keys.len() == 1 && !MOVES.contains(&spec.name.as_str());
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

    /// Whether something must be found out before it can be tried.
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

    /// Bytes that it keeps in memory.
    pub fn memory(&self) -> usize {
        2 * self.args.iter().map(Vec::len).sum::<usize>()
    }

    /// Bytes that it has in the log, at most.
    pub fn max_len(&self) -> usize {
        let named_again = match self.is_of_group {
            true => self.keys.iter().map(|key| key.len() + ABOUT_A_KEY).sum(),
            false => 0,
        };
        self.encode(Stamp::default(), &[]).len() + named_again
    }

    /// As it goes into the log, or to the worker, with these keys first. Redis doesn't wait within a transaction.
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

    /// Whether it has waited for streams that may be gone meanwhile.
    fn may_be_gone(&self) -> bool {
        self.is_of_group && self.nothing.is_some()
    }

    /// The arguments, with these keys before the others.
    fn with_first<'a>(&'a self, first: &'a [Vec<u8>]) -> Vec<&'a [u8]> {
        let mut args = borrowed(&self.args);
        // Streams have ids behind them.
        if !self.is_of_group {
            let others = self.keys.iter().filter(|key| !first.contains(key));
            let keys = first.iter().chain(others);
            self.places
                .iter()
                .zip(keys)
                .for_each(|(place, key)| args[*place] = key);
        }
        args
    }

    /// Understands the answer.
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

    /// The types of its keys, if they were asked for, and the answer to the command itself.
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

    /// From what XINFO says of each stream. An error if one is none.
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

/// An error within an array of answers.
fn first_error(answer: &[u8]) -> &[u8] {
    let begin = answer.windows(3).position(|bytes| bytes == b"\r\n-");
    let rest = begin.map_or(answer, |at| &answer[at + 2..]);
    let end = rest.windows(2).position(|pair| pair == b"\r\n");
    end.map_or(rest, |at| &rest[..at + 2])
}

fn borrowed(args: &[Vec<u8>]) -> Vec<&[u8]> {
    args.iter().map(Vec::as_slice).collect()
}

/// Options of XREAD and XREADGROUP before the streams: where BLOCK is, if it has a number behind it.
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

/// The streams of XREAD that are read from now on: where their keys and ids are.
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

/// As Redis understands it, in its words. None: for ever.
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
