// SPDX-License-Identifier: Apache-2.0
//! The key-value language: any bytes as a command, an answer or another store's snapshot, and
//! sequences of commands on a real LevelDB beside a model of what they mean.

use std::collections::BTreeMap;

use super::input::Input;
use super::scratch::Scratch;
use apps::kv::{Command, Refusal, Reply, SetFlags, parse_integer};
use apps::{Application, KvApplication, place, redis};
use replica::application::Record;

/// Commands in one run.
const MAX_COMMANDS: usize = 60;

/// Runs what `data` spells.
pub fn run(data: &[u8]) {
    bytes(data);
    let mut input = Input(data);
    match input.small() {
        0..8 => foreign(&mut input),
        8..64 => commands(&mut input),
        _ => {}
    }
}

/// Checks that a command that was read is exactly what would be written.
fn bytes(data: &[u8]) {
    if let Ok(command) = Command::parse(data) {
        let mut written = Vec::new();
        command.encode(&mut written).expect("it was encoded before");
        assert_eq!(written, data);
    }
    if let Ok(reply) = Reply::parse(data) {
        let mut written = Vec::new();
        reply.encode(&mut written);
        assert_eq!(written, data);
    }
    if let Some(number) = parse_integer(data) {
        assert_eq!(number.to_string().as_bytes(), data);
    }
    if let Ok(command) = redis::Command::parse(data) {
        let mut written = Vec::new();
        command.encode(&mut written);
        assert_eq!(written, data);
    }
    if let Ok(fingerprint) = redis::Fingerprint::parse(data) {
        assert_eq!(fingerprint.to_bytes(), data);
    }
}

// ---- Snapshots from elsewhere

/// A snapshot of any bytes, or a damaged one, is refused and changes nothing, or is taken whole;
/// afterwards every command gets an answer.
fn foreign(input: &mut Input<'_>) {
    let dir = Scratch::new();
    let mut app = KvApplication::open_leveldb(&dir.0).expect("a new store");
    let mut model = Model::default();
    for _ in 0..input.small() % 8 {
        step(&mut app, &mut model, input);
    }
    commit(&mut app);
    let mut stream = Vec::new();
    let snapshot = app
        .snapshot()
        .expect("a healthy store")
        .write_to(&mut stream);
    snapshot.expect("memory");
    match input.small() {
        0..64 => stream = input.0.to_vec(),
        64..128 => stream = raw_pairs(input),
        _ => input.damage(&mut stream),
    }
    let before = app.digest().expect("a healthy store");
    if app.restore(&mut &stream[..]).is_err() {
        assert_eq!(app.digest().expect("a healthy store"), before);
    } else {
        app = reopened(app, &dir);
    }
    for _ in 0..8 {
        let (_, encoded) = command(input);
        let mut reply = Vec::new();
        app.execute(&encoded, &mut reply)
            .expect("whatever is stored");
        Reply::parse(&reply).expect("an answer");
    }
    // A value in pieces is looked at when they are removed.
    if let Err(e) = app.commit(&[record()]) {
        assert!(e.to_string().contains("is damaged"), "{e}");
    }
}

/// Returns a stream of the right form with any keys and values.
fn raw_pairs(input: &mut Input<'_>) -> Vec<u8> {
    let mut pairs = BTreeMap::new();
    for _ in 0..input.small() % 6 {
        let mut key = vec![[b'k', b'r', b'c'][usize::from(input.small() % 3)]];
        let name = input.bytes(20);
        // A user key lies at its place, mostly.
        if key == b"k" && input.small() >= 32 {
            key.extend_from_slice(&place::of(name).to_be_bytes()[2..]);
        }
        key.extend_from_slice(name);
        pairs.insert(key, input.bytes(40));
    }
    let mut stream = b"WPsnap\0\x03".to_vec();
    for (key, value) in &pairs {
        stream.extend_from_slice(&(key.len() as u32).to_be_bytes());
        stream.extend_from_slice(&(value.len() as u32).to_be_bytes());
        stream.extend_from_slice(key);
        stream.extend_from_slice(value);
    }
    stream.extend_from_slice(&u32::MAX.to_be_bytes());
    stream.extend_from_slice(&(pairs.len() as u64).to_be_bytes());
    stream
}

// ---- Commands and their meaning

/// Key to value.
#[derive(Clone, Default)]
struct Model(BTreeMap<Vec<u8>, Vec<u8>>);

fn commands(input: &mut Input<'_>) {
    let dir = Scratch::new();
    let mut app = KvApplication::open_leveldb(&dir.0).expect("a new store");
    let (mut model, mut committed) = (Model::default(), Model::default());
    for _ in 0..MAX_COMMANDS {
        match input.byte() {
            None => break,
            Some(0..16) => {
                commit(&mut app);
                committed = model.clone();
            }
            // Everything that wasn't committed is gone with the process.
            Some(16..20) => {
                app = reopened(app, &dir);
                model = committed.clone();
            }
            Some(_) => step(&mut app, &mut model, input),
        }
    }
    let mut all = scan(&mut app);
    assert!(all.is_sorted_by_key(|key| (place::of(key), key.clone())));
    all.sort();
    assert!(all.iter().eq(model.0.keys()));
}

fn commit(app: &mut KvApplication) {
    app.commit(&[record()]).expect("there is room");
}

fn record() -> Record {
    Record {
        key: b"p".to_vec(),
        value: Some(vec![1]),
    }
}

fn reopened(app: KvApplication, dir: &Scratch) -> KvApplication {
    drop(app);
    KvApplication::open_leveldb(&dir.0).expect("our own store")
}

fn scan(app: &mut KvApplication) -> Vec<Vec<u8>> {
    let command = Command::Scan {
        count: u32::MAX,
        from: 0,
        pattern: None,
    };
    let reply = execute(app, &encode(&command));
    let Ok(Reply::Array(parts)) = Reply::parse(&reply) else {
        panic!("SCAN answers with two things");
    };
    let [Reply::Nil, Reply::Array(keys)] = &parts[..] else {
        panic!("all keys were asked for: {parts:?}");
    };
    let key = |reply: &Reply<'_>| match reply {
        Reply::Bulk(key) => key.to_vec(),
        other => panic!("a key is a string: {other:?}"),
    };
    keys.iter().map(key).collect()
}

fn encode(command: &Command<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    command.encode(&mut bytes).expect("short keys and values");
    bytes
}

fn execute(app: &mut KvApplication, command: &[u8]) -> Vec<u8> {
    let mut reply = Vec::new();
    app.execute(command, &mut reply).expect("a healthy store");
    reply
}

/// One command: the store must answer as the model does.
fn step(app: &mut KvApplication, model: &mut Model, input: &mut Input<'_>) {
    let (command, encoded) = command(input);
    let reply = execute(app, &encoded);
    let reply = Reply::parse(&reply).expect("an answer");
    match command {
        Some(command) => assert_eq!(reply, model.answer(&command).as_reply(), "{command:?}"),
        None => assert_eq!(reply, Reply::Error(Refusal::Malformed)),
    }
}

/// Returns the next command, or bytes that are none.
fn command<'a>(input: &mut Input<'a>) -> (Option<Command<'a>>, Vec<u8>) {
    let command = match input.small() % 13 {
        0 => Command::Get { key: key(input) },
        1 => Command::Set {
            flags: flags(input.small()),
            key: key(input),
            value: value(input),
        },
        2 => Command::Del { keys: keys(input) },
        3 => Command::Exists { keys: keys(input) },
        4 => Command::Mget { keys: keys(input) },
        5 => Command::Mset {
            pairs: keys(input).into_iter().map(|k| (k, value(input))).collect(),
        },
        6 | 7 => Command::IncrBy {
            key: key(input),
            delta: match input.small() {
                n @ 0..200 => i64::from(n) - 100,
                n => [i64::MAX, i64::MIN][usize::from(n) % 2],
            },
        },
        8 => Command::Append {
            key: key(input),
            value: value(input),
        },
        9 => Command::Strlen { key: key(input) },
        10 => Command::Dbsize,
        11 => Command::GetDel { key: key(input) },
        _ => {
            let bytes = input.bytes(30).to_vec();
            return match Command::parse(&bytes) {
                // The model knows no SCAN; any other one is drawn above, too.
                Ok(_) => (Some(Command::Dbsize), encode(&Command::Dbsize)),
                Err(_) => (None, bytes),
            };
        }
    };
    let encoded = encode(&command);
    (Some(command), encoded)
}

/// Mostly one of a few.
fn key<'a>(input: &mut Input<'a>) -> &'a [u8] {
    const KEYS: [&[u8]; 6] = [b"", b"a", b"ab", b"b", b"\0", b"\xff\xff"];
    match input.small() {
        n @ 0..230 => KEYS[usize::from(n) % KEYS.len()],
        _ => input.bytes(3),
    }
}

fn keys<'a>(input: &mut Input<'a>) -> Vec<&'a [u8]> {
    (0..input.small() % 4 + 1).map(|_| key(input)).collect()
}

/// Short, a number, or long enough to be stored in another way.
fn value<'a>(input: &mut Input<'a>) -> &'a [u8] {
    const LONG: &[u8] = &[b'x'; 9_000];
    match input.small() {
        0..150 => input.bytes(30),
        150..200 => b"17",
        200..225 => b"9223372036854775807",
        n => &LONG[..usize::from(n) * 35],
    }
}

fn flags(bits: u8) -> SetFlags {
    let get = bits & 4 != 0;
    SetFlags {
        if_absent: bits & 3 == 1,
        if_present: bits & 3 == 2,
        get,
        answer_int: bits & 8 != 0 && !get,
    }
}

/// An answer that owns its bytes.
enum Answer {
    Value(Option<Vec<u8>>),
    Ok,
    Int(i64),
    Values(Vec<Option<Vec<u8>>>),
    Refused(Refusal),
}

impl Answer {
    fn as_reply(&self) -> Reply<'_> {
        match self {
            Answer::Ok => Reply::Ok,
            Answer::Int(n) => Reply::Int(*n),
            Answer::Refused(refusal) => Reply::Error(*refusal),
            Answer::Value(value) => bulk(value),
            Answer::Values(values) => Reply::Array(values.iter().map(bulk).collect()),
        }
    }
}

fn bulk(value: &Option<Vec<u8>>) -> Reply<'_> {
    value.as_deref().map_or(Reply::Nil, Reply::Bulk)
}

impl Model {
    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.0.get(key).cloned()
    }

    fn answer(&mut self, command: &Command<'_>) -> Answer {
        match command {
            Command::Get { key } => Answer::Value(self.get(key)),
            Command::Set { flags, key, value } => self.set(*flags, key, value),
            Command::Del { keys } => {
                let gone = keys.iter().filter(|key| self.0.remove(**key).is_some());
                Answer::Int(gone.count() as i64)
            }
            Command::Exists { keys } => {
                let there = keys.iter().filter(|key| self.0.contains_key(**key));
                Answer::Int(there.count() as i64)
            }
            Command::Mget { keys } => {
                Answer::Values(keys.iter().map(|key| self.get(key)).collect())
            }
            Command::Mset { pairs } => {
                for (key, value) in pairs {
                    self.0.insert(key.to_vec(), value.to_vec());
                }
                Answer::Ok
            }
            Command::IncrBy { key, delta } => self.increment(key, *delta),
            Command::Append { key, value } => {
                let whole = self.0.entry(key.to_vec()).or_default();
                whole.extend_from_slice(value);
                Answer::Int(whole.len() as i64)
            }
            Command::Strlen { key } => Answer::Int(self.0.get(*key).map_or(0, Vec::len) as i64),
            Command::Dbsize => Answer::Int(self.0.len() as i64),
            Command::GetDel { key } => Answer::Value(self.0.remove(*key)),
            other => panic!("the model doesn't know {other:?}"),
        }
    }

    fn set(&mut self, flags: SetFlags, key: &[u8], value: &[u8]) -> Answer {
        let old = self.get(key);
        let holds = match old {
            Some(_) => !flags.if_absent,
            None => !flags.if_present,
        };
        if holds {
            self.0.insert(key.to_vec(), value.to_vec());
        }
        match (flags.get, flags.answer_int, holds) {
            (true, ..) => Answer::Value(old),
            (_, true, _) => Answer::Int(i64::from(holds)),
            (_, _, true) => Answer::Ok,
            (_, _, false) => Answer::Value(None),
        }
    }

    fn increment(&mut self, key: &[u8], delta: i64) -> Answer {
        let old = match self.0.get(key) {
            None => Some(0),
            Some(text) => parse_integer(text),
        };
        match old.map(|old| old.checked_add(delta)) {
            None => Answer::Refused(Refusal::NotAnInteger),
            Some(None) => Answer::Refused(Refusal::Overflow),
            Some(Some(sum)) => {
                self.0.insert(key.to_vec(), sum.to_string().into_bytes());
                Answer::Int(sum)
            }
        }
    }
}
