// SPDX-License-Identifier: Apache-2.0
//! Tests of long values: what they mean, how long they may be, and what they cost.

use super::*;

pub(super) fn append<'a>(key: &'a [u8], value: &'a [u8]) -> Command<'a> {
    Command::Append { key, value }
}

pub(super) fn encoded(reply: &Reply<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    reply.encode(&mut bytes);
    bytes
}

pub(super) fn del(key: &[u8]) -> Command<'_> {
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
