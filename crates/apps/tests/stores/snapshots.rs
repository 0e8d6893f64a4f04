// SPDX-License-Identifier: Apache-2.0
//! Tests of snapshots, and of the restores from them.

use super::*;

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
struct Failing<'a>(pub(super) &'a [u8]);

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
