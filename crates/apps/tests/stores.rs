// SPDX-License-Identifier: Apache-2.0
//! Tests of the key-value application on the installed RocksDB and LevelDB: contents and kills.

mod common;
mod meaning;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command as Process, Stdio};
use std::time::Duration;

use apps::kv::{Command, MAX_STRING_LEN, Refusal, Reply, SetFlags};
use apps::{Application, Share, place};
use common::{TempDir, run};
use replica::application::Record;
use replica::{Error, Settings, Worker};

const STORES: [&str; 2] = ["rocksdb", "leveldb"];

fn open(name: &str, dir: &Path) -> Box<dyn Application> {
    apps::open(name, dir).unwrap()
}

#[track_caller]
fn expect(app: &mut Box<dyn Application>, command: &Command<'_>, expected: &Reply<'_>) {
    assert_eq!(Reply::parse(&run(app, command)).as_ref(), Ok(expected));
}

fn set<'a>(key: &'a [u8], value: &'a [u8]) -> Command<'a> {
    set_with(SetFlags::default(), key, value)
}

fn set_with<'a>(flags: SetFlags, key: &'a [u8], value: &'a [u8]) -> Command<'a> {
    Command::Set { flags, key, value }
}

fn incr(key: &[u8], delta: i64) -> Command<'_> {
    Command::IncrBy { key, delta }
}

fn record(key: &[u8], value: &[u8]) -> Record {
    Record {
        key: key.to_vec(),
        value: Some(value.to_vec()),
    }
}

fn records(app: &mut Box<dyn Application>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    app.records(&mut |key, value| all.push((key.to_vec(), value.to_vec())))
        .unwrap();
    all
}

fn snapshot(app: &mut Box<dyn Application>) -> Vec<u8> {
    let mut bytes = Vec::new();
    app.snapshot().unwrap().write_to(&mut bytes).unwrap();
    bytes
}

fn store_dirs(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("db-"))
        .collect();
    names.sort();
    names
}

/// A command is a read only if it changes nothing in any store. [B-CLIENT]
#[test]
fn a_command_is_called_a_read_if_it_changes_nothing() {
    let dir = TempDir::new("reads");
    let app = &mut open("rocksdb", &dir.0);
    let (key, keys) = (&b"k"[..], || vec![&b"k"[..]]);
    let commands = [
        (Command::Get { key }, true),
        (Command::Exists { keys: keys() }, true),
        (Command::Mget { keys: keys() }, true),
        (Command::Strlen { key }, true),
        (Command::Dbsize, true),
        (
            Command::Scan {
                count: 10,
                from: 0,
                pattern: None,
            },
            true,
        ),
        (set(key, b"2"), false),
        (Command::Del { keys: keys() }, false),
        (Command::GetDel { key }, false),
        (incr(key, 1), false),
        (append(key, b"2"), false),
        (
            Command::Mset {
                pairs: vec![(key, &b"2"[..])],
            },
            false,
        ),
    ];
    let digest = |app: &mut Box<dyn Application>| {
        app.commit(&[]).unwrap();
        app.digest().unwrap()
    };
    for (command, reads) in commands {
        run(app, &set(key, b"1"));
        let before = digest(app);
        run(app, &command);
        assert_eq!(digest(app) == before, reads, "{command:?}");
        let mut bytes = Vec::new();
        command.encode(&mut bytes).unwrap();
        assert_eq!(app.is_read(&bytes), reads, "{command:?}");
        bytes.push(0);
        assert!(!app.is_read(&bytes), "{command:?}, and a byte more");
    }
}

#[test]
fn commands_answer_as_redis_does() {
    for name in STORES {
        let dir = TempDir::new(&format!("commands-{name}"));
        let app = &mut open(name, &dir.0);
        let absent = SetFlags {
            if_absent: true,
            ..SetFlags::default()
        };
        let present = SetFlags {
            if_present: true,
            ..SetFlags::default()
        };
        let get = SetFlags {
            get: true,
            ..SetFlags::default()
        };
        expect(app, &Command::Get { key: b"k" }, &Reply::Nil);
        expect(app, &set_with(present, b"k", b"no"), &Reply::Nil);
        expect(app, &set_with(absent, b"k", b"1"), &Reply::Ok);
        expect(app, &set_with(absent, b"k", b"2"), &Reply::Nil);
        expect(app, &set_with(get, b"k", b"3"), &Reply::Bulk(b"1"));
        expect(app, &Command::Get { key: b"k" }, &Reply::Bulk(b"3"));
        app.commit(&[]).unwrap();
        expect(app, &Command::Get { key: b"k" }, &Reply::Bulk(b"3"));
        expect(app, &incr(b"k", -5), &Reply::Int(-2));
        expect(app, &incr(b"n", i64::MAX), &Reply::Int(i64::MAX));
        expect(app, &incr(b"n", 1), &Reply::Error(Refusal::Overflow));
        expect(app, &set(b"s", b"text"), &Reply::Ok);
        expect(app, &incr(b"s", 1), &Reply::Error(Refusal::NotAnInteger));
        let append = Command::Append {
            key: b"s",
            value: b" and tail",
        };
        expect(app, &append, &Reply::Int(13));
        expect(app, &Command::Strlen { key: b"s" }, &Reply::Int(13));
        expect(app, &Command::Dbsize, &Reply::Int(3));
        let mget = Command::Mget {
            keys: vec![b"k", b"none", b"k"],
        };
        let values = vec![Reply::Bulk(b"-2"), Reply::Nil, Reply::Bulk(b"-2")];
        expect(app, &mget, &Reply::Array(values));
        let exists = Command::Exists {
            keys: vec![b"k", b"k", b"none"],
        };
        expect(app, &exists, &Reply::Int(2));
        let mset = Command::Mset {
            pairs: vec![(b"x", b"1"), (b"x", b"2"), (b"", b"empty key")],
        };
        expect(app, &mset, &Reply::Ok);
        expect(app, &Command::Get { key: b"x" }, &Reply::Bulk(b"2"));
        expect(app, &Command::Dbsize, &Reply::Int(5));
        let del = Command::Del {
            keys: vec![b"x", b"x", b"none", b""],
        };
        expect(app, &del, &Reply::Int(2));
        expect(
            app,
            &Command::GetDel { key: b"n" },
            &Reply::Bulk(i64::MAX.to_string().as_bytes()),
        );
        expect(app, &Command::Dbsize, &Reply::Int(2));
        app.commit(&[]).unwrap();
        expect(app, &Command::Get { key: b"x" }, &Reply::Nil);
        let mut reply = Vec::new();
        app.execute(b"\xff nonsense", &mut reply).unwrap();
        assert_eq!(Reply::parse(&reply), Ok(Reply::Error(Refusal::Malformed)));
    }
}

/// Makes one step of a scan; returns the keys, and where to go on.
fn scan(
    app: &mut Box<dyn Application>,
    count: u32,
    from: u64,
    pattern: Option<&[u8]>,
) -> (Vec<Vec<u8>>, Option<u64>) {
    let command = Command::Scan {
        count,
        from,
        pattern,
    };
    found_by(&run(app, &command))
}

fn found_by(reply: &[u8]) -> (Vec<Vec<u8>>, Option<u64>) {
    let Ok(Reply::Array(parts)) = Reply::parse(reply) else {
        panic!("{reply:?}");
    };
    let (next, Reply::Array(keys)) = (&parts[0], &parts[1]) else {
        panic!("{parts:?}");
    };
    let key = |key: &Reply<'_>| match key {
        Reply::Bulk(key) => key.to_vec(),
        _ => panic!("{key:?}"),
    };
    let next = match next {
        Reply::Int(place) => Some(*place as u64),
        next => {
            assert_eq!(*next, Reply::Nil);
            None
        }
    };
    (keys.iter().map(key).collect(), next)
}

/// Returns these keys in the order of a scan.
fn in_order<'a>(keys: impl IntoIterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = keys.into_iter().map(<[u8]>::to_vec).collect();
    keys.sort_by_key(|key| (place::of(key), key.clone()));
    keys
}

#[test]
fn a_scan_sees_committed_and_waiting_keys_in_order() {
    for name in STORES {
        let dir = TempDir::new(&format!("scan-{name}"));
        let app = &mut open(name, &dir.0);
        for key in ["a", "c", "e", "g"] {
            run(app, &set(key.as_bytes(), b"committed"));
        }
        app.commit(&[record(b"zz", b"ours")]).unwrap();
        for key in ["b", "c", "h"] {
            run(app, &set(key.as_bytes(), b"waiting"));
        }
        run(app, &Command::Del { keys: vec![b"e"] });
        let (mut seen, mut from) = (Vec::new(), Some(0));
        while let Some(place) = from {
            let (keys, next) = scan(app, 2, place, None);
            assert!(keys.len() == 2 || next.is_none());
            seen.extend(keys);
            from = next;
        }
        let expected: [&[u8]; 5] = [b"a", b"b", b"c", b"g", b"h"];
        assert_eq!(seen, in_order(expected));
        let expected: [&[u8]; 2] = [b"b", b"g"];
        let found = scan(app, 100, 0, Some(b"[bg]"));
        assert_eq!(found, (in_order(expected), None));
        // There are no keys after the last place, and no place beyond it.
        let last = (1 << place::BITS) - 1;
        assert_eq!(scan(app, 100, last, None), (Vec::new(), None));
        let beyond = Command::Scan {
            count: 1,
            from: last + 1,
            pattern: None,
        };
        expect(app, &beyond, &Reply::Error(Refusal::Malformed));
    }
}

/// Both stores execute the same log. A scan that began in one of them continues in the other one,
/// even after that was reopened; a key that exists all the time is found once.
#[test]
fn a_scan_goes_on_in_another_store_whatever_is_set_and_removed_meanwhile() {
    let dirs = STORES.map(|name| TempDir::new(&format!("scan-on-{name}")));
    let open_both = || [0, 1].map(|n| open(STORES[n], &dirs[n].0));
    let mut apps = open_both();
    let mut random = test_world::Rng::new(14);
    let name = |kind: &str, n: u64| format!("{kind}:{n}").into_bytes();
    for n in 0..500 {
        for app in &mut apps {
            run(app, &set(&name("stays", n), b"v"));
            run(app, &set(&name("goes", n), b"v"));
        }
    }
    for round in 0..20 {
        let (mut seen, mut from, mut calls) = (Vec::new(), Some(0), 0);
        while let Some(place) = from {
            let (keys, next) = scan(
                &mut apps[calls % 2],
                1 + random.below(40) as u32,
                place,
                None,
            );
            seen.extend(keys);
            from = next;
            calls += 1;
            let (coming, going) = (
                name("comes", random.below(500)),
                name("goes", random.below(500)),
            );
            let commit = random.percent(30);
            for app in &mut apps {
                run(app, &set(&coming, b"v"));
                run(app, &del(&going));
                if commit {
                    app.commit(&[record(b"position", b"7")]).unwrap();
                }
            }
            if random.percent(3) {
                for app in &mut apps {
                    app.commit(&[]).unwrap();
                }
                drop(apps);
                apps = open_both();
            }
        }
        assert!(calls > 20, "{calls}");
        let stays = (0..500).map(|n| name("stays", n));
        for key in stays {
            let times = seen.iter().filter(|seen| **seen == key).count();
            assert_eq!(times, 1, "round {round}: {}", String::from_utf8_lossy(&key));
        }
        let all = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), all, "no key twice");
    }
    let [a, b] = &mut apps;
    assert_eq!(a.digest().unwrap(), b.digest().unwrap());
}

#[test]
fn a_reader_sees_the_keys_of_one_moment_from_another_thread() {
    for name in STORES {
        let dir = TempDir::new(&format!("reader-{name}"));
        let app = &mut open(name, &dir.0);
        fill(app, 2000);
        let expected = scan(app, u32::MAX, 0, None);
        let mut reader = app.reader().unwrap();
        run(app, &set(b"later", b"1"));
        run(app, &del(b"key:000000"));
        app.commit(&[]).unwrap();
        let read = move |command: &Command<'_>| {
            let (mut bytes, mut reply) = (Vec::new(), Vec::new());
            command.encode(&mut bytes).unwrap();
            reader.read(&bytes, &mut reply).unwrap();
            reply
        };
        let (found, refused) = std::thread::spawn(move || {
            let mut read = read;
            let (mut found, mut from) = (Vec::new(), Some(0));
            while let Some(place) = from {
                let command = Command::Scan {
                    count: 7,
                    from: place,
                    pattern: None,
                };
                let (keys, next) = found_by(&read(&command));
                found.extend(keys);
                from = next;
            }
            (found, read(&Command::Get { key: b"later" }))
        })
        .join()
        .unwrap();
        assert_eq!((found, None), expected);
        assert_eq!(refused, encoded(&Reply::Error(Refusal::Malformed)));
    }
}

/// The files of a replaced store stay until nobody reads them: files that weren't opened yet would
/// be missing, which looks like damage.
#[test]
fn a_store_that_is_replaced_while_it_is_read_can_be_read_to_its_end() {
    for name in ["leveldb", "rocksdb"] {
        let dir = TempDir::new(&format!("replaced-{name}"));
        let mut app = open(name, &dir.0);
        // This is more than waits in memory, so there is a table that opening a store or a reader
        // doesn't look at.
        for n in 0..800 {
            run(
                &mut app,
                &set(format!("{n}").as_bytes(), &[n as u8; 50_000]),
            );
            app.commit(&[]).unwrap();
        }
        drop(app);
        drop(open(name, &dir.0));
        let mut app = open(name, &dir.0);
        let mut reader = app.reader().unwrap();
        let mut copy = app.snapshot().unwrap();
        let other = snapshot(&mut open(name, &dir.0.join("other")));
        for _ in 0..2 {
            app.restore(&mut &other[..]).unwrap();
        }
        expect(&mut app, &Command::Dbsize, &Reply::Int(0));

        let (mut bytes, mut reply) = (Vec::new(), Vec::new());
        let all = Command::Scan {
            count: u32::MAX,
            from: 0,
            pattern: None,
        };
        all.encode(&mut bytes).unwrap();
        reader.read(&bytes, &mut reply).unwrap();
        assert_eq!(found_by(&reply).0.len(), 800);
        let mut written = Vec::new();
        copy.write_to(&mut written).unwrap();
        assert!(written.len() > 800 * 50_000);
        assert_eq!(store_dirs(&dir.0), ["db-1", "db-3"]);
        drop(reader);
        drop(copy);
        assert_eq!(store_dirs(&dir.0), ["db-3"]);
    }
}

#[test]
fn a_reopened_store_has_what_was_committed_and_nothing_else() {
    for name in STORES {
        let dir = TempDir::new(&format!("reopen-{name}"));
        let mut app = open(name, &dir.0);
        run(&mut app, &set(b"kept", b"1"));
        app.commit(&[record(b"position", b"7"), record(b"gone", b"x")])
            .unwrap();
        let gone = Record {
            key: b"gone".to_vec(),
            value: None,
        };
        app.commit(&[gone]).unwrap();
        app.checkpoint().unwrap()().unwrap();
        run(&mut app, &set(b"lost", b"1"));
        drop(app);
        let app = &mut open(name, &dir.0);
        assert_eq!(records(app), [(b"position".to_vec(), b"7".to_vec())]);
        expect(app, &Command::Get { key: b"lost" }, &Reply::Nil);
        expect(app, &Command::Get { key: b"kept" }, &Reply::Bulk(b"1"));
        expect(app, &Command::Dbsize, &Reply::Int(1));
    }
}

fn append<'a>(key: &'a [u8], value: &'a [u8]) -> Command<'a> {
    Command::Append { key, value }
}

fn encoded(reply: &Reply<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    reply.encode(&mut bytes);
    bytes
}

fn del(key: &[u8]) -> Command<'_> {
    Command::Del { keys: vec![key] }
}

/// Checks that the store answers as the model does, for values of any length.
fn model_answers(app: &mut Box<dyn Application>, model: &BTreeMap<Vec<u8>, Vec<u8>>) {
    for (key, value) in model {
        expect(app, &Command::Get { key }, &Reply::Bulk(value));
        let len = value.len() as i64;
        expect(app, &Command::Strlen { key }, &Reply::Int(len));
    }
    expect(app, &Command::Dbsize, &Reply::Int(model.len() as i64));
    let keys = in_order(model.keys().map(Vec::as_slice));
    assert_eq!(scan(app, u32::MAX, 0, None), (keys, None));
}

/// Returns how often `key` occurs in the store's snapshot.
fn leftovers(app: &mut Box<dyn Application>, key: &[u8]) -> usize {
    let bytes = snapshot(app);
    bytes.windows(key.len()).filter(|w| *w == key).count()
}

#[test]
fn long_values_are_as_if_they_were_whole() {
    for name in STORES {
        let dir = TempDir::new(&format!("long-{name}"));
        let mut app = open(name, &dir.0);
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut committed = model.clone();
        let keys: [&[u8]; 4] = [b"a", b"ab", b"b\0", b""];
        let mut draw = 7u64;
        let mut next = |below: u64| {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (draw >> 33) % below
        };
        let mut longest = 0;
        for step in 0..3000u64 {
            let key = keys[next(4) as usize];
            // The lengths are around the sizes where a value becomes long and where pieces end.
            let lens = [0, 1, 900, 1023, 1024, 1025, 1400, 2048];
            let bytes = vec![step as u8; lens[next(8) as usize]];
            let old = model.get(key).cloned();
            let answer = |value: Option<&[u8]>| match value {
                Some(value) => encoded(&Reply::Bulk(value)),
                None => encoded(&Reply::Nil),
            };
            match next(20) {
                0 => {
                    let get = SetFlags {
                        get: true,
                        ..SetFlags::default()
                    };
                    let reply = run(&mut app, &set_with(get, key, &bytes));
                    assert_eq!(reply, answer(old.as_deref()));
                    model.insert(key.to_vec(), bytes);
                }
                1 => {
                    let reply = run(&mut app, &Command::GetDel { key });
                    assert_eq!(reply, answer(old.as_deref()));
                    model.remove(key);
                }
                2 => {
                    let existed = model.remove(key).is_some();
                    expect(&mut app, &del(key), &Reply::Int(existed.into()));
                }
                3 => {
                    run(&mut app, &set(key, &bytes));
                    model.insert(key.to_vec(), bytes);
                }
                _ => {
                    let value = model.entry(key.to_vec()).or_default();
                    value.extend_from_slice(&bytes);
                    longest = longest.max(value.len());
                    let len = value.len() as i64;
                    expect(&mut app, &append(key, &bytes), &Reply::Int(len));
                }
            }
            if next(6) == 0 {
                app.commit(&[]).unwrap();
                committed.clone_from(&model);
            }
            if next(60) == 0 {
                model_answers(&mut app, &model);
            }
            if next(60) == 0 {
                app.discard().unwrap();
                model.clone_from(&committed);
                model_answers(&mut app, &model);
            }
            if next(600) == 0 {
                app.commit(&[]).unwrap();
                committed.clone_from(&model);
                drop(app);
                app = open(name, &dir.0);
            }
        }
        assert!(longest > 20_000, "{longest}");
        app.commit(&[]).unwrap();
        model_answers(&mut app, &model);
        assert!(app.can_discard());

        // Equal contents have equal digests, in any store and however they came about.
        let digest = app.digest().unwrap();
        let (whole, other) = (
            TempDir::new(&format!("long-whole-{name}")),
            TempDir::new(&format!("long-other-{name}")),
        );
        let mut at_once = open(name, &whole.0);
        for (key, value) in &model {
            run(&mut at_once, &set(key, b""));
            for part in value.chunks(1000) {
                run(&mut at_once, &append(key, part));
            }
        }
        assert_eq!(at_once.digest().unwrap(), digest, "waiting");
        at_once.commit(&[]).unwrap();
        assert_eq!(at_once.digest().unwrap(), digest);
        let mut restored = open(name, &other.0);
        restored.restore(&mut &snapshot(&mut app)[..]).unwrap();
        assert_eq!(restored.digest().unwrap(), digest);
        model_answers(&mut restored, &model);

        // No piece of a long value is left after its key is gone.
        let key = b"a key of its own";
        for _ in 0..30 {
            run(&mut app, &append(key, &[1; 900]));
            app.commit(&[]).unwrap();
        }
        assert!(leftovers(&mut app, key) > 20);
        run(&mut app, &set(key, b"short"));
        app.commit(&[]).unwrap();
        assert_eq!(leftovers(&mut app, key), 1);
        for _ in 0..30 {
            run(&mut app, &append(key, &[1; 900]));
        }
        app.commit(&[]).unwrap();
        run(&mut app, &del(key));
        run(&mut app, &append(key, b"anew"));
        app.commit(&[]).unwrap();
        assert_eq!(leftovers(&mut app, key), 1);
        run(&mut app, &del(key));
        app.commit(&[]).unwrap();
        assert_eq!(leftovers(&mut app, key), 0);
    }
}

/// Values are read again and again, while they are set, grow, are removed, and are taken back.
#[test]
fn what_was_read_before_is_read_as_it_is_since() {
    for name in STORES {
        let dir = TempDir::new(&format!("read-again-{name}"));
        let app = &mut open(name, &dir.0);
        let mut random = test_world::Rng::new(5);
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut committed = model.clone();
        let mut found = 0;
        for step in 0..6_000u32 {
            let key = [b"a", b"b", b"c"][random.below(3) as usize];
            let value = vec![step as u8; [0, 5, 500, 1_000, 3_000][random.below(5) as usize]];
            match random.below(20) {
                0..2 => {
                    run(app, &set(key, &value));
                    model.insert(key.to_vec(), value);
                }
                2 => {
                    run(app, &append(key, &value));
                    model.entry(key.to_vec()).or_default().extend(value);
                }
                3 => {
                    run(app, &del(key));
                    model.remove(&key[..]);
                }
                4..8 => {
                    app.commit(&[]).unwrap();
                    committed.clone_from(&model);
                }
                8 => {
                    app.discard().unwrap();
                    model.clone_from(&committed);
                }
                _ => {
                    let value = model.get(&key[..]);
                    let answer = value.map_or(Reply::Nil, |value| Reply::Bulk(value));
                    expect(app, &Command::Get { key }, &answer);
                    found += u32::from(value.is_some());
                }
            }
        }
        assert!(found > 1_000, "{found}");
    }
}

/// In every application, commands that the next commit would have made permanent are gone, and the
/// records and the contents are those of the same commit.
#[test]
fn what_is_discarded_never_was() {
    for name in ["echo", "rocksdb", "leveldb"] {
        let dir = TempDir::new(&format!("discard-{name}"));
        let mut app = open(name, &dir.0);
        assert!(app.can_discard(), "{name}");
        app.discard().unwrap();
        assert_eq!(records(&mut app), [], "at the very start");
        run(&mut app, &set(b"k", b"1"));
        app.commit(&[record(b"at", b"1")]).unwrap();
        app.checkpoint().unwrap()().unwrap();
        let digest = app.digest().unwrap();
        for _ in 0..2 {
            run(&mut app, &set(b"k", b"2"));
            run(&mut app, &set(b"new", b"2"));
            run(&mut app, &append(b"k", &[1; 3000]));
            app.discard().unwrap();
            assert_eq!(app.digest().unwrap(), digest, "{name}");
            assert_eq!(records(&mut app), [(b"at".to_vec(), b"1".to_vec())]);
        }
        // Nothing that was discarded is in the next commit.
        app.commit(&[record(b"at", b"2")]).unwrap();
        assert_eq!(app.digest().unwrap(), digest, "{name}");
        let reaches = app.checkpoint().unwrap();
        app.discard().unwrap();
        assert_eq!(
            records(&mut app),
            [(b"at".to_vec(), b"2".to_vec())],
            "{name}"
        );
        reaches().unwrap();
        drop(app);
        let mut app = open(name, &dir.0);
        assert_eq!(records(&mut app), [(b"at".to_vec(), b"2".to_vec())]);
        assert_eq!(app.digest().unwrap(), digest, "{name}");
    }
}

#[test]
fn a_string_has_a_largest_length_with_the_error_of_redis() {
    assert_eq!(
        Refusal::StringTooLong.to_string(),
        "string exceeds maximum allowed size"
    );
    for name in STORES {
        let dir = TempDir::new(&format!("longest-{name}"));
        let app = &mut open(name, &dir.0);
        let part = vec![b'x'; 60_000];
        let mut len = 0;
        while len + part.len() <= MAX_STRING_LEN {
            run(app, &append(b"k", &part));
            len += part.len();
            if len % 7 == 0 {
                app.commit(&[]).unwrap();
            }
        }
        for _ in 0..2 {
            let refused = Reply::Error(Refusal::StringTooLong);
            expect(app, &append(b"k", &part), &refused);
            expect(app, &Command::Strlen { key: b"k" }, &Reply::Int(len as i64));
            let not_a_number = Reply::Error(Refusal::NotAnInteger);
            expect(app, &incr(b"k", 1), &not_a_number);
            app.commit(&[]).unwrap();
        }
        let rest = vec![b'x'; MAX_STRING_LEN - len];
        let longest = Reply::Int(MAX_STRING_LEN as i64);
        expect(app, &append(b"k", &rest), &longest);
        // The longest value fits into an answer; several that don't fit are refused.
        let whole = vec![b'x'; MAX_STRING_LEN];
        expect(app, &Command::Get { key: b"k" }, &Reply::Bulk(&whole));
        let keys = vec![&b"k"[..]; 5];
        let too_large = Reply::Error(Refusal::ReplyTooLarge);
        expect(app, &Command::Mget { keys }, &too_large);
    }
}

/// What a command changes doesn't depend on the limit, only its answer does.
#[test]
fn an_answer_is_as_long_as_the_setting_says_and_what_writes_is_executed() {
    for name in STORES {
        let dirs = ["short", "long"].map(|limit| TempDir::new(&format!("answers-{name}-{limit}")));
        let open = |dir: &TempDir, most| apps::open_share(name, &dir.0, Share::ALL, most).unwrap();
        let mut apps = [open(&dirs[0], 100_000), open(&dirs[1], 64 << 20)];
        let value = vec![b'x'; 60_000];
        let set = |get| Command::Set {
            flags: SetFlags {
                get,
                ..SetFlags::default()
            },
            key: b"k",
            value: &value,
        };
        let both = Command::Exec {
            watched: Vec::new(),
            commands: vec![
                Command::Get { key: b"k" },
                set(true),
                Command::GetDel { key: b"k" },
            ],
        };
        let keys = vec![&b"k"[..]; 2];
        for app in &mut apps {
            expect(app, &set(false), &Reply::Ok);
            expect(app, &Command::Get { key: b"k" }, &Reply::Bulk(&value));
        }
        let too_large = Reply::Error(Refusal::ReplyTooLarge);
        let [short, long] = &mut apps;
        expect(short, &Command::Mget { keys: keys.clone() }, &too_large);
        let several = Reply::Array(vec![Reply::Bulk(&value); 2]);
        expect(long, &Command::Mget { keys }, &several);
        let cut = Reply::Array(vec![Reply::Bulk(&value), too_large.clone(), too_large]);
        expect(short, &both, &cut);
        expect(long, &both, &Reply::Array(vec![Reply::Bulk(&value); 3]));
        assert_eq!(short.digest().unwrap(), long.digest().unwrap());
        expect(short, &Command::Get { key: b"k" }, &Reply::Nil);
    }
}

/// Returns how many bytes this thread has given the kernel to write, which is the size of a store's
/// log. The process's count would include other tests' writes.
fn bytes_written() -> u64 {
    count_of_io("/proc/thread-self/io", "wchar: ")
}

fn count_of_io(of: &str, what: &str) -> u64 {
    let io = fs::read_to_string(of).unwrap();
    let line = io.lines().find_map(|l| l.strip_prefix(what));
    line.unwrap().parse().unwrap()
}

/// A filter of so many keys fits into no part of the block cache, and would be read again for each
/// look-up.
#[test]
fn a_look_up_in_a_file_of_a_million_keys_reads_no_filter() {
    const KEYS: u32 = 1_300_000;
    const PACK: u32 = 1_000;
    const LOOKS: u32 = 200;
    let dir = TempDir::new("filter");
    let app = &mut open("rocksdb", &dir.0);
    for from in (0..KEYS).step_by(PACK as usize) {
        let names: Vec<_> = (from..from + PACK).map(|n| (2 * n).to_be_bytes()).collect();
        let pairs = names.iter().map(|n| (&n[..], &b""[..])).collect();
        run(app, &Command::Mset { pairs });
        app.commit(&[]).unwrap();
    }
    // Reopening writes the contents of memory into a file.
    *app = open("echo", &dir.0);
    *app = open("rocksdb", &dir.0);
    let per_look = |round: u32| {
        let before = count_of_io("/proc/self/io", "rchar: ");
        for n in 0..LOOKS {
            // Each of these keys is absent, and between two keys that exist.
            let key = (2 * (n * (KEYS / LOOKS) + round) + 1).to_be_bytes();
            expect(app, &Command::Exists { keys: vec![&key] }, &Reply::Int(0));
        }
        (count_of_io("/proc/self/io", "rchar: ") - before) / u64::from(LOOKS)
    };
    // Tests share the process, so the smallest of several rounds has the reads of this test alone.
    let rounds: Vec<_> = (0..8).map(per_look).collect();
    assert!(*rounds.iter().min().unwrap() < 100_000, "{rounds:?}");
}

#[test]
fn an_append_writes_what_it_appends() {
    const APPENDS: u64 = 300;
    for name in STORES {
        let dir = TempDir::new(&format!("append-cost-{name}"));
        let app = &mut open(name, &dir.0);
        let per_append = |app: &mut Box<dyn Application>| {
            let before = bytes_written();
            for _ in 0..APPENDS {
                run(app, &append(b"k", &[b'x'; 900]));
                app.commit(&[record(b"position", b"7")]).unwrap();
            }
            (bytes_written() - before) / APPENDS
        };
        let rounds: Vec<_> = (0..8).map(|_| per_append(app)).collect();
        println!("{name}: bytes written for an append of 900, by hundreds: {rounds:?}");
        // Less than the appended bytes would mean that another thread writes the log.
        let last = rounds[4..].iter().min().unwrap();
        assert!((900..4 * 900).contains(last), "{name}: {rounds:?}");
    }
}

fn fill(app: &mut Box<dyn Application>, keys: u32) {
    for n in 0..keys {
        let key = format!("key:{n:06}");
        run(app, &set(key.as_bytes(), &vec![n as u8; n as usize % 200]));
        if n % 64 == 0 {
            app.commit(&[record(b"position", &n.to_be_bytes())])
                .unwrap();
        }
    }
    app.commit(&[]).unwrap();
}

#[test]
fn equal_contents_have_equal_digests_in_both_stores() {
    let dirs = STORES.map(|name| TempDir::new(&format!("digest-{name}")));
    let [rocks, level] = &mut [0, 1].map(|i| open(STORES[i], &dirs[i].0));
    let empty = rocks.digest().unwrap();
    assert_eq!(empty, level.digest().unwrap());
    fill(rocks, 3000);
    fill(level, 3000);
    assert_eq!(rocks.digest().unwrap(), level.digest().unwrap());
    assert_ne!(rocks.digest().unwrap(), empty);
    // Records don't count as contents; writes that wait for a commit do.
    level.commit(&[record(b"position", b"other")]).unwrap();
    assert_eq!(rocks.digest().unwrap(), level.digest().unwrap());
    run(level, &set(b"key:000001", b"other"));
    let changed = level.digest().unwrap();
    assert_ne!(rocks.digest().unwrap(), changed);
    level.commit(&[]).unwrap();
    assert_eq!(level.digest().unwrap(), changed);
}

#[test]
fn a_snapshot_restores_into_either_store_and_survives_a_reopen() {
    for (from, into) in [("rocksdb", "leveldb"), ("leveldb", "rocksdb")] {
        let (dir_from, dir_into) = (
            TempDir::new(&format!("restore-from-{from}")),
            TempDir::new(&format!("restore-into-{into}")),
        );
        let source = &mut open(from, &dir_from.0);
        fill(source, 2000);
        let digest = source.digest().unwrap();
        let mut taken = source.snapshot().unwrap();
        // The snapshot has the contents of this moment, although it is written later and by another
        // thread.
        run(source, &set(b"later", b"1"));
        source.commit(&[]).unwrap();
        let bytes = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            taken.write_to(&mut bytes).unwrap();
            bytes
        })
        .join()
        .unwrap();

        let mut app = open(into, &dir_into.0);
        run(&mut app, &set(b"old", b"1"));
        app.commit(&[record(b"old", b"1")]).unwrap();
        run(&mut app, &set(b"waiting", b"1"));
        app.restore(&mut &bytes[..]).unwrap();
        for _ in 0..2 {
            assert_eq!(app.digest().unwrap(), digest);
            expect(&mut app, &Command::Dbsize, &Reply::Int(2000));
            assert_eq!(records(&mut app).len(), 1);
            assert_eq!(store_dirs(&dir_into.0), ["db-2"]);
            drop(app);
            app = open(into, &dir_into.0);
        }
        run(&mut app, &set(b"new", b"1"));
        app.commit(&[]).unwrap();
        expect(&mut app, &Command::Dbsize, &Reply::Int(2001));
    }
}

/// A stream that ends with an error.
struct Failing<'a>(&'a [u8]);

impl Read for Failing<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self.0.read(out)? {
            0 => Err(io::Error::other("the checksum is wrong")),
            n => Ok(n),
        }
    }
}

/// Returns a snapshot whose last user key, which only records follow, is under another place.
fn displaced(snapshot: &[u8]) -> Vec<u8> {
    let mut bytes = snapshot.to_vec();
    let mut at = 8;
    let mut last = None;
    loop {
        let len = |at: usize| u32::from_be_bytes(snapshot[at..at + 4].try_into().unwrap());
        if len(at) == u32::MAX {
            break;
        }
        let key = at + 8;
        if snapshot[key] == b'k' {
            last = Some(key);
        }
        at = key + (len(at) + len(at + 4)) as usize;
    }
    let place = last.unwrap() + 1..last.unwrap() + 7;
    bytes[place].fill(0x7f);
    bytes
}

#[test]
fn a_damaged_snapshot_changes_nothing() {
    for name in STORES {
        let (dir, source_dir) = (
            TempDir::new(&format!("damaged-{name}")),
            TempDir::new(&format!("damaged-source-{name}")),
        );
        let source = &mut open(name, &source_dir.0);
        fill(source, 100);
        let good = snapshot(source);
        let app = &mut open(name, &dir.0);
        run(app, &set(b"old", b"1"));
        app.commit(&[record(b"position", b"7")]).unwrap();
        run(app, &set(b"waiting", b"1"));
        let before = (app.digest().unwrap(), records(app));

        let mut attempts: Vec<Vec<u8>> = [0, 1, 7, 8, 9, 12, 100, good.len() - 9, good.len() - 1]
            .map(|len| good[..len].to_vec())
            .to_vec();
        attempts.push([&good[..], b"x"].concat());
        for at in [0, 8, 10, 17, good.len() - 1, good.len() - 10] {
            let mut flipped = good.clone();
            flipped[at] ^= 0x80;
            attempts.push(flipped);
        }
        for bytes in attempts {
            assert!(app.restore(&mut &bytes[..]).is_err());
            assert_eq!((app.digest().unwrap(), records(app)), before);
            assert_eq!(store_dirs(&dir.0), ["db-1"]);
        }
        let mut earlier = good.clone();
        earlier[7] -= 1;
        let e = app.restore(&mut &earlier[..]).unwrap_err();
        assert!(e.to_string().contains("of another version"), "{e}");
        assert_eq!((app.digest().unwrap(), records(app)), before);
        // The key is where nobody would look for it.
        let e = app.restore(&mut &displaced(&good)[..]).unwrap_err();
        assert!(e.to_string().contains("a key that no store can"), "{e}");
        assert_eq!((app.digest().unwrap(), records(app)), before);
        let e = app.restore(&mut Failing(&good)).unwrap_err();
        assert!(e.to_string().contains("the checksum is wrong"), "{e}");
        assert_eq!((app.digest().unwrap(), records(app)), before);
        app.restore(&mut &good[..]).unwrap();
        assert_eq!(app.digest().unwrap(), source.digest().unwrap());
    }
}

#[test]
fn what_an_interrupted_restore_left_is_removed() {
    for name in STORES {
        let dir = TempDir::new(&format!("interrupted-{name}"));
        let mut app = open(name, &dir.0);
        run(&mut app, &set(b"old", b"1"));
        app.commit(&[]).unwrap();
        drop(app);
        // The process was killed while it filled the new store, before it switched over.
        let mut stray = open(name, &dir.0.join("elsewhere"));
        run(&mut stray, &set(b"half", b"1"));
        stray.commit(&[]).unwrap();
        drop(stray);
        fs::rename(dir.0.join("elsewhere/db-1"), dir.0.join("db-2")).unwrap();
        fs::write(dir.0.join("current.new"), "db-").unwrap();
        let app = &mut open(name, &dir.0);
        expect(app, &Command::Get { key: b"old" }, &Reply::Bulk(b"1"));
        expect(app, &Command::Get { key: b"half" }, &Reply::Nil);
        assert_eq!(store_dirs(&dir.0), ["db-1"]);
    }
}

#[test]
fn a_store_that_is_in_use_or_missing_is_named() {
    for name in STORES {
        let dir = TempDir::new(&format!("in-use-{name}"));
        let app = open(name, &dir.0);
        let message = |dir: &Path| match apps::open(name, dir) {
            Ok(_) => panic!("opened"),
            Err(e) => e.to_string(),
        };
        let path = dir.0.join("db-1").display().to_string();
        assert!(message(&dir.0).contains(&path));
        drop(app);
        fs::write(dir.0.join("current"), "RocksDB 2 db-7\n").unwrap();
        assert!(message(&dir.0).contains("current"));
        let file = dir.0.join("file");
        fs::write(&file, "").unwrap();
        assert!(message(&file).contains(&file.display().to_string()));
    }
}

/// Returns the error of an application that can't open a directory.
fn refusal(name: &str, dir: &Path) -> String {
    match apps::open(name, dir) {
        Ok(_) => panic!("{name} opened {}", dir.display()),
        Err(e) => e.to_string(),
    }
}

#[test]
fn a_damaged_store_is_refused_with_what_to_do() {
    for name in STORES {
        let dir = TempDir::new(&format!("remedy-{name}"));
        let mut app = open(name, &dir.0);
        run(&mut app, &set(b"k", b"1"));
        app.commit(&[record(b"position", b"7")]).unwrap();
        app.checkpoint().unwrap()().unwrap();
        drop(app);
        let told = |damage: &dyn Fn(&Path)| {
            let copy = dir.0.with_extension("copy");
            let _ = fs::remove_dir_all(&copy);
            copy_dir(&dir.0, &copy);
            damage(&copy);
            let before = names_below(&copy);
            let e = refusal(name, &copy);
            assert!(e.contains(replica::MOVE_AWAY), "{name}: {e}");
            (e, before, copy)
        };
        for text in [
            "",
            "db-1",
            "db-01\n",
            "db-\u{fffd}\n",
            "db-1\n\n",
            "nothing\n",
        ] {
            let (e, before, copy) = told(&|dir| fs::write(dir.join("current"), text).unwrap());
            assert!(e.contains("current"), "{e}");
            assert_eq!(names_below(&copy), before, "nothing changed");
        }
        // Stores of the earlier format had their keys in another order.
        let text = fs::read_to_string(dir.0.join("current")).unwrap();
        let earlier = text.replace(" 4 ", " 3 ");
        assert_ne!(earlier, text);
        let (e, before, copy) = told(&|dir| fs::write(dir.join("current"), &earlier).unwrap());
        assert!(e.contains("another version of this program"), "{e}");
        assert_eq!(names_below(&copy), before, "nothing changed");
        let (e, before, copy) = told(&|dir| {
            fs::rename(dir.join("db-1"), dir.join("db-2")).unwrap();
            fs::remove_file(dir.join("current")).unwrap();
        });
        assert!(e.contains("current is missing"), "{e}");
        assert_eq!(names_below(&copy), before, "the only store is still there");
        // These are damages that the library itself finds.
        told(&|dir| {
            fs::remove_dir_all(dir.join("db-1")).unwrap();
            fs::create_dir(dir.join("db-1")).unwrap();
        });
        told(&|dir| fs::remove_file(dir.join("db-1/CURRENT")).unwrap());
        told(&|dir| fs::write(dir.join("db-1/CURRENT"), "MANIFEST").unwrap());
        let (_, _, copy) = told(&|dir| {
            let files = names_below(&dir.join("db-1"));
            let manifest = files.iter().find(|f| f.contains("MANIFEST")).unwrap();
            let mut bytes = fs::read(manifest).unwrap();
            bytes[20] ^= 1;
            fs::write(manifest, bytes).unwrap();
        });
        fs::remove_dir_all(copy).unwrap();
    }
}

/// After a flipped bit in its log a store may lose its last writes, but never one from between
/// others: that would be a state that no replica ever had.
#[test]
fn a_flipped_bit_in_a_log_takes_no_write_from_between_others() {
    const COMMITS: u8 = 40;
    for name in STORES {
        let dir = TempDir::new(&format!("flipped-{name}"));
        let mut app = open(name, &dir.0);
        for n in 1..=COMMITS {
            // Each block of the log has several records, which a library might skip.
            run(&mut app, &set(&[n], &[n; 2000]));
            app.commit(&[record(b"position", &[n])]).unwrap();
        }
        drop(app);
        let files = names_below(&dir.0.join("db-1"));
        let log = Path::new(files.iter().find(|f| f.ends_with(".log")).unwrap());
        let whole = fs::read(log).unwrap();
        let log = log.file_name().unwrap();
        assert!(whole.len() > usize::from(COMMITS) * 2000);
        for at in (100..whole.len()).step_by(whole.len() / 16) {
            let copy = dir.0.with_extension("copy");
            let _ = fs::remove_dir_all(&copy);
            copy_dir(&dir.0, &copy);
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            fs::write(copy.join("db-1").join(log), flipped).unwrap();
            match apps::open(name, &copy) {
                Err(e) => assert!(e.0.contains(replica::MOVE_AWAY), "{name}: {e}"),
                Ok(mut app) => {
                    let reached = records(&mut app).pop().map_or(0, |(_, value)| value[0]);
                    for n in 1..=COMMITS {
                        let there =
                            run(&mut app, &Command::Get { key: &[n] }) != encoded(&Reply::Nil);
                        assert_eq!(there, n <= reached, "{name}: flipped at {at}: {n}");
                    }
                }
            }
            fs::remove_dir_all(copy).unwrap();
        }
    }
}

/// A table isn't read before somebody asks for its contents.
#[test]
fn a_damaged_table_answers_rightly_or_not_at_all() {
    const KEYS: u8 = 60;
    let value = |n: u8| [n; 100].map(|b| b.wrapping_mul(n));
    for name in STORES {
        let dir = TempDir::new(&format!("table-{name}"));
        let mut app = open(name, &dir.0);
        for n in 1..=KEYS {
            run(&mut app, &set(&[n], &value(n)));
            app.commit(&[record(b"position", &[n])]).unwrap();
        }
        drop(app);
        // Opening the store turns the log into a table.
        let digest = open(name, &dir.0).digest().unwrap();
        let files = names_below(&dir.0.join("db-1"));
        let is_table = |file: &&String| file.ends_with(".sst") || file.ends_with(".ldb");
        let tables: Vec<_> = files.iter().filter(is_table).collect();
        assert_eq!(tables.len(), 1, "{files:?}");
        let table = Path::new(tables[0]);
        let whole = fs::read(table).unwrap();
        let table = table.file_name().unwrap();

        // Filter, index and properties are at the end.
        let densely = whole.len() - 200;
        let flips = (0..whole.len()).filter(|at| at % 61 == 0 || (*at > densely && at % 5 == 0));
        let flips = flips.map(|at| {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (at % 8);
            (format!("flipped at {at}"), Some(flipped))
        });
        let cuts = [0, 1, whole.len() / 2, whole.len() - 1];
        let cuts = cuts.map(|len| (format!("cut to {len}"), Some(whole[..len].to_vec())));
        let gone = ("gone".to_owned(), None);
        let copy = dir.0.with_extension("copy");
        let mut noticed = 0;
        for (what, bytes) in flips.chain(cuts).chain([gone]) {
            let _ = fs::remove_dir_all(&copy);
            copy_dir(&dir.0, &copy);
            match bytes {
                Some(bytes) => fs::write(copy.join("db-1").join(table), bytes).unwrap(),
                None => fs::remove_file(copy.join("db-1").join(table)).unwrap(),
            }
            let mut refusals = Vec::new();
            match apps::open(name, &copy) {
                Err(e) => refusals.push(e),
                Ok(mut app) => {
                    for n in 1..=KEYS {
                        let (mut bytes, mut reply) = (Vec::new(), Vec::new());
                        Command::Get { key: &[n] }.encode(&mut bytes).unwrap();
                        match app.execute(&bytes, &mut reply) {
                            Ok(()) => {
                                assert_eq!(
                                    reply,
                                    encoded(&Reply::Bulk(&value(n))),
                                    "{name}: {what}"
                                );
                            }
                            Err(e) => refusals.push(e),
                        }
                    }
                    match app.digest() {
                        Ok(found) => assert_eq!(found, digest, "{name}: {what}"),
                        Err(e) => refusals.push(e),
                    }
                }
            }
            noticed += usize::from(!refusals.is_empty());
            for e in refusals {
                assert!(e.0.contains(replica::MOVE_AWAY), "{name}: {what}: {e}");
                assert!(e.0.contains("db-1"), "{name}: {what}: {e}");
            }
        }
        fs::remove_dir_all(copy).unwrap();
        assert!(noticed > 20, "{name}: {noticed}");
    }
}

#[test]
fn a_damaged_checkpoint_file_is_refused_with_what_to_do() {
    let dir = TempDir::new("remedy-echo");
    let mut app = open("echo", &dir.0);
    app.commit(&[record(b"position", b"1")]).unwrap();
    app.checkpoint().unwrap()().unwrap();
    drop(app);
    let file = dir.0.join("echo.checkpoint");
    let good = fs::read(&file).unwrap();
    for at in 0..good.len() {
        let mut flipped = good.clone();
        flipped[at] ^= 1 << (at % 8);
        fs::write(&file, flipped).unwrap();
        let e = refusal("echo", &dir.0);
        assert!(e.contains(replica::MOVE_AWAY), "{e}");
        fs::write(&file, &good[..at]).unwrap();
        assert!(refusal("echo", &dir.0).contains(replica::MOVE_AWAY));
    }
    fs::write(&file, &good).unwrap();
    assert_eq!(records(&mut open("echo", &dir.0)).len(), 1);
}

/// Gives one no-op to a worker on `app`, with a checkpoint after it.
fn execute_a_noop(settings: Settings, app: Box<dyn Application>) -> Result<(), Error> {
    struct Nowhere;
    impl paxos::Outbox for Nowhere {
        fn send(&mut self, _: paxos::To, _: &paxos::Header, _: &[u8]) {}
    }
    impl replica::Output for Nowhere {
        fn reply(
            &mut self,
            _: &replica::ReplyTo,
            _: Option<replica::Basis>,
            _: u64,
            _: u64,
            _: u8,
            _: &[u8],
        ) {
        }

        fn ack(&mut self, _: &replica::ReplyTo, _: &paxos::Header) {}
        fn sibling(&mut self, _: paxos::PartitionId, _: replica::SiblingMessage) {}
    }
    let pid = settings.pid;
    let deployment = settings.deployment;
    let mut worker = Worker::open(settings, app, 1, 0)?;
    let member = |node| paxos::Member { node, nonce: 1 };
    let configuration = paxos::Configuration {
        epoch: 1,
        leader: member(1),
        acceptors: [11, 12, 13].map(member).to_vec(),
        f: 1,
        replicas: vec![21],
        g: 0,
    };
    let active = true;
    worker.configure(
        0,
        &[replica::EpochView {
            configuration,
            active,
        }],
    );
    let header = paxos::Header {
        cluster: deployment.cluster,
        group: deployment.group,
        pid,
        rnd: paxos::Round::base(1),
        flags: paxos::Flags::NOOP,
        ..paxos::Header::new(paxos::MsgType::Deliver)
    };
    let (tag, value) = (None, &[][..]);
    let verdict = worker.deliver(0, &paxos::Packet { header, tag, value });
    assert_eq!(verdict, paxos::Verdict::Changed);
    worker.finish_batch(0, &mut Nowhere)?;
    worker.checkpoint(0)
}

/// Every application refuses the state of another cluster, group or partition. [X-NAME]
#[test]
fn every_application_keeps_whose_state_it_holds() {
    let deployment = |cluster, partitions| paxos::Deployment {
        cluster,
        group: 7,
        partitions,
        max_value: 1024,
        node: 21,
    };
    for name in apps::NAMES {
        if name == "redis" && !apps::redis::is_installed() {
            println!("SKIPPED: redis: there is no redis-server");
            continue;
        }
        let dir = TempDir::new(&format!("identity-{name}"));
        let own = Settings::new(deployment(0xc1, 2), 0);
        execute_a_noop(own.clone(), open(name, &dir.0)).unwrap();
        for settings in [
            Settings::new(deployment(0xc2, 2), 0),
            Settings::new(deployment(0xc1, 1), 0),
            Settings::new(deployment(0xc1, 2), 1),
        ] {
            let e = execute_a_noop(settings, open(name, &dir.0)).unwrap_err();
            let e = e.to_string();
            let owner = "partition 0 of 2 of group 7 of cluster 000000c1";
            assert!(e.contains(owner), "{name}: {e}");
        }
        assert!(Worker::open(own, open(name, &dir.0), 1, 0).unwrap().next() == 1);
    }
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_dir(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Returns the paths of all files and directories.
fn names_below(dir: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        names.push(path.display().to_string());
        if path.is_dir() {
            names.extend(names_below(&path));
        }
    }
    names.sort();
    names
}

#[test]
fn an_unknown_name_is_answered_with_the_known_ones() {
    let Err(e) = apps::open("mysql", Path::new("/nowhere")) else {
        panic!("opened");
    };
    assert!(e.to_string().contains("echo, rocksdb, leveldb"), "{e}");
}

#[test]
fn echo_keeps_the_records_of_its_last_checkpoint() {
    let dir = TempDir::new("echo");
    let mut app = open("echo", &dir.0);
    let mut reply = Vec::new();
    app.execute(b"hello", &mut reply).unwrap();
    assert_eq!(reply, b"hello");
    app.commit(&[record(b"position", b"1")]).unwrap();
    app.checkpoint().unwrap()().unwrap();
    app.commit(&[record(b"position", b"2")]).unwrap();
    let bytes = snapshot(&mut app);
    drop(app);
    let app = &mut open("echo", &dir.0);
    assert_eq!(records(app), [(b"position".to_vec(), b"1".to_vec())]);
    assert!(app.restore(&mut &bytes[..bytes.len() - 1]).is_err());
    assert_eq!(records(app), [(b"position".to_vec(), b"1".to_vec())]);
    app.restore(&mut &bytes[..]).unwrap();
    let app = &mut open("echo", &dir.0);
    assert_eq!(records(app), [(b"position".to_vec(), b"2".to_vec())]);
}

/// The variable with the task of a child process of this test binary, as `role:store:directory`.
const CHILD: &str = "APPS_TEST_CHILD";
const CHILD_ARGUMENTS: [&str; 4] = [
    "--exact",
    "child_process",
    "--nocapture",
    "--test-threads=1",
];

fn child(role: &str, store: &str, dir: &Path) -> Process {
    let mut process = Process::new(std::env::current_exe().unwrap());
    process
        .args(CHILD_ARGUMENTS)
        .env(CHILD, format!("{role}:{store}:{}", dir.display()))
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    process
}

/// This isn't a test of its own: it is the child process of tests that kill a process or leave it
/// without room.
#[test]
fn child_process() {
    let Ok(task) = std::env::var(CHILD) else {
        return;
    };
    let mut parts = task.splitn(3, ':');
    let (role, store, dir) = (
        parts.next().unwrap(),
        parts.next().unwrap(),
        Path::new(parts.next().unwrap()),
    );
    match role {
        "append" => append_until_killed(store, dir),
        "count" => count_until_killed(store, dir),
        "restore" => restore_until_killed(store, dir),
        "starve" => fill_until_it_fails(store, dir),
        "look" => show_counts(store, dir),
        "refill" => restore_without_room(store, dir),
        _ => panic!("unknown task {task}"),
    }
}

fn position(app: &mut Box<dyn Application>) -> i64 {
    let all = records(app);
    let bytes = all.iter().find(|(key, _)| key == b"position");
    bytes.map_or(0, |(_, value)| {
        i64::from_be_bytes(value.as_slice().try_into().unwrap())
    })
}

fn counter(app: &mut Box<dyn Application>) -> i64 {
    match Reply::parse(&run(app, &incr(b"counter", 0))) {
        Ok(Reply::Int(n)) => n,
        other => panic!("{other:?}"),
    }
}

fn count_until_killed(store: &str, dir: &Path) {
    let app = &mut open(store, dir);
    let mut n = position(app);
    loop {
        for _ in 0..n % 7 {
            run(app, &incr(b"counter", 1));
            n += 1;
        }
        run(app, &incr(b"counter", 1));
        // Each commit sets a new key, so that the number of keys changes, too.
        run(app, &set(format!("at:{n}").as_bytes(), &[b'x'; 100]));
        n += 1;
        app.commit(&[record(b"position", &n.to_be_bytes())])
            .unwrap();
        println!("{n}");
        if n % 1000 < 7 {
            app.checkpoint().unwrap()().unwrap();
        }
    }
}

/// A commit is kept as a whole or not at all. [X-ATOMIC]
#[test]
fn a_kill_at_any_moment_repeats_nothing_and_loses_nothing() {
    for store in STORES {
        let dir = TempDir::new(&format!("kill-{store}"));
        for round in 0..12u64 {
            let mut process = child("count", store, &dir.0).spawn().unwrap();
            let acknowledged =
                kill_after(&mut process, Duration::from_millis(40 + round * 23 % 90));
            let app = &mut open(store, &dir.0);
            let position = position(app);
            assert_eq!(counter(app), position, "{store}, round {round}");
            assert!(
                position >= acknowledged,
                "{store} lost {acknowledged} to {position}"
            );
            let (keys, _) = scan(app, u32::MAX, 0, None);
            expect(app, &Command::Dbsize, &Reply::Int(keys.len() as i64));
        }
        assert!(
            position(&mut open(store, &dir.0)) > 100,
            "the children did nothing"
        );
    }
}

fn append_until_killed(store: &str, dir: &Path) {
    let app = &mut open(store, dir);
    let mut n = position(app);
    loop {
        if n % 90 == 89 {
            run(app, &set(b"long", b""));
        }
        run(app, &append(b"long", &[n as u8; 900]));
        n += 1;
        app.commit(&[record(b"position", &n.to_be_bytes())])
            .unwrap();
        println!("{n}");
    }
}

#[test]
fn a_kill_while_a_long_value_grows_or_goes_leaves_all_of_a_change_or_nothing() {
    for store in STORES {
        let dir = TempDir::new(&format!("kill-append-{store}"));
        for round in 0..8u64 {
            let mut process = child("append", store, &dir.0).spawn().unwrap();
            let acknowledged =
                kill_after(&mut process, Duration::from_millis(30 + round * 17 % 60));
            let app = &mut open(store, &dir.0);
            let position = position(app);
            assert!(position >= acknowledged);
            let begun = (0..position).rev().find(|n| n % 90 == 89).unwrap_or(0);
            let value: Vec<u8> = (begun..position).flat_map(|n| [n as u8; 900]).collect();
            expect(app, &Command::Get { key: b"long" }, &Reply::Bulk(&value));
        }
    }
}

/// Waits for the first number, then for `delay`, kills the process, and returns the last number
/// that it printed.
fn kill_after(process: &mut Child, delay: Duration) -> i64 {
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut last = 0;
    // The test harness prints lines of its own.
    let mut next = |last: &mut i64| match lines.next() {
        Some(Ok(line)) => {
            *last = line.trim().parse().unwrap_or(*last);
            true
        }
        _ => false,
    };
    while last == 0 && next(&mut last) {}
    std::thread::sleep(delay);
    process.kill().unwrap();
    process.wait().unwrap();
    while next(&mut last) {}
    last
}

fn restore_until_killed(store: &str, dir: &Path) {
    let bytes = fs::read(dir.join("snapshot")).unwrap();
    let app = &mut open(store, &dir.join("store"));
    loop {
        println!("1");
        app.restore(&mut &bytes[..]).unwrap();
    }
}

#[test]
fn a_kill_while_restoring_leaves_the_old_state_or_the_new_one() {
    for store in STORES {
        let dir = TempDir::new(&format!("kill-restore-{store}"));
        let source = &mut open(store, &dir.0.join("source"));
        fill(source, 500);
        fs::write(dir.0.join("snapshot"), snapshot(source)).unwrap();
        let new = source.digest().unwrap();
        for round in 0..6u64 {
            fs::remove_dir_all(dir.0.join("store")).ok();
            let mut app = open(store, &dir.0.join("store"));
            run(&mut app, &set(b"old", b"1"));
            app.commit(&[]).unwrap();
            let old = app.digest().unwrap();
            drop(app);
            let mut process = child("restore", store, &dir.0).spawn().unwrap();
            kill_after(&mut process, Duration::from_millis(round * 9));
            let app = &mut open(store, &dir.0.join("store"));
            let digest = app.digest().unwrap();
            assert!(digest == old || digest == new);
            assert_eq!(store_dirs(&dir.0.join("store")).len(), 1);
        }
    }
}

fn fill_until_it_fails(store: &str, dir: &Path) {
    let mut app = open(store, dir);
    let value = vec![7; 10_000];
    for n in 1..10_000i64 {
        run(&mut app, &incr(b"counter", 1));
        run(&mut app, &set(format!("{n}").as_bytes(), &value));
        match app.commit(&[record(b"position", &n.to_be_bytes())]) {
            Ok(()) => println!("{n}"),
            Err(e) => {
                println!("failed: {e}");
                io::stdout().flush().unwrap();
                // A node ends in this way: a checkpoint may just have begun in another thread, and
                // its result doesn't count any more. Then the store is closed.
                let _ = app.checkpoint().unwrap()();
                drop(app);
                std::process::exit(1);
            }
        }
    }
}

/// Restores a state although there is only room for the present one.
fn restore_without_room(store: &str, dir: &Path) {
    let app = &mut open(store, dir);
    for n in 0..1500 {
        run(app, &set(format!("{n}").as_bytes(), &[7; 10_000]));
        app.commit(&[]).unwrap();
    }
    let (bytes, digest) = (snapshot(app), app.digest().unwrap());
    for _ in 0..3 {
        let refused = app.restore(&mut &bytes[..]).unwrap_err().to_string();
        assert!(refused.contains(&dir.display().to_string()), "{refused}");
        assert_eq!(app.digest().unwrap(), digest);
    }
    println!("kept what it had");
}

fn show_counts(store: &str, dir: &Path) {
    let app = &mut open(store, dir);
    println!("found {} {}", position(app), counter(app));
}

/// Returns the largest number that a starved child acknowledged, and checks its error.
#[track_caller]
fn acknowledged_before_the_failure(text: &str, store: &str, dir: &Path) -> i64 {
    let failure = text.lines().find(|line| line.contains("failed: "));
    let failure = failure.unwrap_or_else(|| panic!("{store} never failed in order: {text}"));
    assert!(failure.contains(&dir.display().to_string()), "{failure}");
    let numbers = text.lines().filter_map(|line| line.trim().parse().ok());
    numbers.max().unwrap()
}

#[test]
fn a_full_disk_is_an_error_that_names_the_store_and_nothing_acknowledged_is_lost() {
    for store in STORES {
        let dir = TempDir::new(&format!("full-{store}"));
        // A limit on the size of files simulates a full disk; it needs no privilege.
        let mut process = Process::new("sh");
        let inner = child("starve", store, &dir.0);
        process
            .args([
                "-c",
                "ulimit -c 0; ulimit -f 4096; trap '' XFSZ; exec \"$@\"",
                "sh",
            ])
            .arg(inner.get_program())
            .args(inner.get_args())
            .envs(inner.get_envs().filter_map(|(k, v)| Some((k, v?))))
            .stderr(Stdio::null());
        let output = process.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{store}");
        let text = String::from_utf8_lossy(&output.stdout);
        let acknowledged = acknowledged_before_the_failure(&text, store, &dir.0);
        let app = &mut open(store, &dir.0);
        let position = position(app);
        assert!(position >= acknowledged);
        assert_eq!(counter(app), position);
    }
}

/// A limit on the size of files doesn't affect small ones. On a full disk RocksDB's own log can't
/// be written either.
#[test]
fn a_disk_without_any_room_is_an_error_and_not_an_abort() {
    const SCRIPT: &str = r#"
        mount -t tmpfs -o size=24m none "$1" || exit 1
        APPS_TEST_CHILD="refill:$2:$1/refill" $3; rm -r "$1/refill"
        APPS_TEST_CHILD="starve:$2:$1" $3; echo "ended with $?"
        mount -o remount,size=96m "$1"
        APPS_TEST_CHILD="look:$2:$1" $3"#;
    if !is_root() {
        return println!("SKIPPED: mounting a small disk needs root");
    }
    for store in STORES {
        let dir = TempDir::new(&format!("no-room-{store}"));
        let this = std::env::current_exe().unwrap();
        let child = format!("{} {}", this.display(), CHILD_ARGUMENTS.join(" "));
        let output = Process::new("unshare")
            .args(["--mount", "sh", "-c", SCRIPT, "sh"])
            .args([dir.0.as_os_str(), store.as_ref(), child.as_ref()])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        let kept = text.contains("kept what it had\n");
        assert!(kept, "{store}: {text}{errors}");
        assert!(text.contains("ended with 1\n"), "{store}: {text}{errors}");
        let acknowledged = acknowledged_before_the_failure(&text, store, &dir.0);
        assert!(acknowledged > 100);
        // The beginning of the line is the test harness's.
        let (_, found) = text.split_once("found ").unwrap_or_else(|| {
            panic!("{store} doesn't open: {text}{errors}");
        });
        let found = found.lines().next().unwrap();
        let (position, counter) = found.split_once(' ').unwrap();
        assert!(position.parse::<i64>().unwrap() >= acknowledged);
        assert_eq!(counter, position);
    }
}

fn is_root() -> bool {
    let id = Process::new("id").arg("-u").output().unwrap();
    id.stdout == b"0\n"
}

/// EXEC decides on a replica that was restarted, or has another one's state, as on all others.
#[test]
fn what_is_watched_is_a_part_of_the_state() {
    for name in STORES {
        let (dir, other) = (TempDir::new("watched"), TempDir::new("watched-copy"));
        let mut app = open(name, &dir.0);
        let version = watch(&mut app, b"k");
        assert_eq!(watch(&mut app, b"k"), version);
        let earlier = watch(&mut app, b"gone");
        run(&mut app, &set(b"gone", b"v"));
        app.commit(&[record(b"position", b"1")]).unwrap();
        // This is taken back, so neither the version nor the change was ever there.
        let later = watch(&mut app, b"late");
        run(&mut app, &set(b"k", b"v"));
        app.discard().unwrap();
        assert!(!exec(&mut app, b"late", later));
        drop(app);
        let mut app = open(name, &dir.0);
        let mut copy = open(name, &other.0);
        let mut stream = Vec::new();
        app.snapshot().unwrap().write_to(&mut stream).unwrap();
        copy.restore(&mut stream.as_slice()).unwrap();
        for app in [&mut app, &mut copy] {
            assert!(exec(app, b"k", version));
            assert!(!exec(app, b"k", version + 1) && !exec(app, b"gone", earlier));
            assert_eq!(watch(app, b"new"), later, "given for the first time");
            run(app, &set(b"k", b"v"));
            assert!(!exec(app, b"k", version));
            app.commit(&[]).unwrap();
        }
        drop(app);
        let mut app = open(name, &dir.0);
        assert!(!exec(&mut app, b"k", version));
    }
}

fn watch(app: &mut Box<dyn Application>, key: &[u8]) -> u64 {
    let answer = run(app, &Command::Watch { keys: vec![key] });
    match Reply::parse(&answer) {
        Ok(Reply::Array(versions)) => match versions[..] {
            [Reply::Int(version)] => version as u64,
            _ => panic!("{versions:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// Returns whether a transaction that reads one key is executed.
fn exec(app: &mut Box<dyn Application>, key: &[u8], version: u64) -> bool {
    let exec = Command::Exec {
        watched: vec![(key, version)],
        commands: vec![Command::Get { key }],
    };
    Reply::parse(&run(app, &exec)) != Ok(Reply::Nil)
}
