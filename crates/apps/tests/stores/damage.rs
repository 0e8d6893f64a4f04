// SPDX-License-Identifier: Apache-2.0
//! Tests of damaged stores, which are refused or answer rightly.

use super::*;

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
