// SPDX-License-Identifier: Apache-2.0
//! Tests of scans, and of readers beside them.

use super::*;

/// Makes one step of a scan; returns the keys, and where to go on.
pub(super) fn scan(
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
pub(super) fn in_order<'a>(keys: impl IntoIterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
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
