// SPDX-License-Identifier: Apache-2.0
//! Tests of copies of a store by hard links, made while the store is in use.

mod common;

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use apps::Application;
use apps::kv::{Command, Reply, SetFlags};
use common::{TempDir, run};
use replica::application::Record;

fn directory(dir: &TempDir, name: &str) -> PathBuf {
    let path = dir.0.join(name);
    fs::create_dir_all(&path).unwrap();
    path
}

type App = Box<dyn Application>;

fn open(dir: &Path) -> App {
    apps::open("rocksdb", dir).unwrap()
}

/// Makes a commit that raises `counter` and the record `position` by one, and sets another key.
fn go_on(app: &mut App, to: i64, value: &[u8]) -> Result<(), replica::Error> {
    let (flags, key) = (SetFlags::default(), format!("{to}"));
    let key = key.as_bytes();
    run(app, &Command::Set { flags, key, value });
    let key = b"counter";
    run(app, &Command::IncrBy { key, delta: 1 });
    app.commit(&[Record {
        key: b"position".to_vec(),
        value: Some(to.to_be_bytes().to_vec()),
    }])
}

/// Returns the position of a store, and checks that it is a whole commit's: everything that each
/// commit changes together belongs to the same one.
#[track_caller]
fn position(app: &mut App) -> i64 {
    let mut position = 0;
    app.records(&mut |_, value| position = i64::from_be_bytes(value.try_into().unwrap()))
        .unwrap();
    let counter = run(app, &Command::Get { key: b"counter" });
    let text = position.to_string();
    let expected = match position {
        0 => Reply::Nil,
        _ => Reply::Bulk(text.as_bytes()),
    };
    assert_eq!(Reply::parse(&counter), Ok(expected));
    let keys = position + i64::from(position > 0);
    let size = run(app, &Command::Dbsize);
    assert_eq!(Reply::parse(&size), Ok(Reply::Int(keys)));
    position
}

/// Returns the files of the store in a copy, with the number of names that each has.
fn files(copy: &Path) -> Vec<(PathBuf, u64)> {
    let entries = fs::read_dir(copy.join("db-1")).unwrap();
    let names = |path: &Path| fs::metadata(path).unwrap().nlink();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), names(&path))).collect()
}

#[test]
fn a_copy_has_what_was_committed_and_is_a_state_of_its_own() {
    let dir = TempDir::new("own");
    let (store, copy) = (dir.0.join("store"), directory(&dir, "copy"));
    let mut app = open(&store);
    for n in 1..=500 {
        go_on(&mut app, n, &[7; 1000]).unwrap();
    }
    // The log's contents become a table.
    drop(app);
    let mut app = open(&store);
    go_on(&mut app, 501, b"").unwrap();
    let link = app.link().expect("RocksDB can");
    go_on(&mut app, 502, b"").unwrap();
    run(
        &mut app,
        &Command::Del {
            keys: vec![b"counter"],
        },
    );
    std::thread::spawn({
        let copy = copy.clone();
        move || link(&copy).unwrap()
    })
    .join()
    .unwrap();
    let shared = files(&copy).into_iter().filter(|(_, names)| *names > 1);
    assert!(shared.count() > 0, "{:?}", files(&copy));
    app.commit(&[]).unwrap();
    let digest = app.digest().unwrap();

    let mut copied = open(&copy);
    assert_eq!(position(&mut copied), 502);
    for n in 503..600 {
        go_on(&mut copied, n, &[8; 1000]).unwrap();
    }
    drop(copied);
    assert_eq!(app.digest().unwrap(), digest);
    drop(app);
    assert_eq!(open(&store).digest().unwrap(), digest);
    assert_eq!(position(&mut open(&copy)), 599);
}

#[test]
fn who_has_no_links_says_so_and_a_copy_that_is_there_stays() {
    let dir = TempDir::new("refused");
    let mut level = apps::open("leveldb", &dir.0.join("level")).unwrap();
    assert!(level.link().is_none());
    assert!(
        apps::open("echo", &dir.0.join("echo"))
            .unwrap()
            .link()
            .is_none()
    );

    let mut app = open(&dir.0.join("store"));
    go_on(&mut app, 1, b"").unwrap();
    let copy = directory(&dir, "copy");
    app.link().unwrap()(&copy).unwrap();
    let why = app.link().unwrap()(&copy).unwrap_err().to_string();
    assert!(why.contains("cannot copy the RocksDB store"), "{why}");
    let why = app.link().unwrap()(&dir.0.join("none")).unwrap_err();
    assert!(why.to_string().contains("cannot copy"), "{why}");
    assert_eq!(position(&mut open(&copy)), 1);
    assert_eq!(position(&mut app), 1);
}

/// Each copy is a commit that happened, and none is older than the moment at which it was asked
/// for. However much of the end of its log is cut off, it is an earlier commit, whole.
#[test]
fn copies_made_while_there_are_writes_are_commits_that_were() {
    let dir = TempDir::new("busy");
    let mut app = open(&dir.0.join("store"));
    let stop = AtomicBool::new(false);
    let (ask, asked) = std::sync::mpsc::channel::<std::sync::mpsc::Sender<_>>();
    std::thread::scope(|scope| {
        let (stop, app) = (&stop, &mut app);
        scope.spawn(move || {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                n += 1;
                go_on(app, n, &[n as u8; 300]).unwrap();
                // This keeps the store busy without making it endless.
                if n % 500 == 0 {
                    std::thread::sleep(Duration::from_millis(20));
                }
                if let Ok(answer) = asked.try_recv() {
                    answer.send((n, app.link().unwrap())).unwrap();
                }
            }
        });
        for round in 0..3 {
            let (answer, answers) = std::sync::mpsc::channel();
            ask.send(answer).unwrap();
            let (at, link) = answers.recv().unwrap();
            let copy = directory(&dir, &format!("copy-{round}"));
            link(&copy).unwrap();
            let log = files(&copy).into_iter().map(|(path, _)| path);
            let log = log.filter(|path| path.extension().is_some_and(|e| e == "log"));
            let log = log.max().expect("a log");
            let whole = fs::metadata(&log).unwrap().len();
            let mut before = None;
            for cut in [whole, whole - 1, whole / 2 + 13, 0] {
                let cut_off = directory(&dir, &format!("cut-{round}-{cut}"));
                fs::create_dir(cut_off.join("db-1")).unwrap();
                fs::copy(copy.join("current"), cut_off.join("current")).unwrap();
                for (file, _) in files(&copy) {
                    fs::copy(&file, cut_off.join("db-1").join(file.file_name().unwrap())).unwrap();
                }
                let cut_log = cut_off.join("db-1").join(log.file_name().unwrap());
                fs::File::options()
                    .write(true)
                    .open(cut_log)
                    .unwrap()
                    .set_len(cut)
                    .unwrap();
                let found = position(&mut open(&cut_off));
                assert!(found >= at || cut < whole, "{found} of {at}");
                assert!(before.is_none_or(|before| found <= before));
                before = Some(found);
                fs::remove_dir_all(cut_off).unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// The variable that names the store to the child process of the test.
const CHILD: &str = "APPS_TEST_COPY_CHILD";

/// This has no effect unless the test below starts it.
#[test]
fn child_process() {
    let Some(dir) = std::env::var_os(CHILD) else {
        return;
    };
    let dir = Path::new(&dir);
    let mut app = open(&dir.join("store"));
    // There is no table yet: everything is in the log, which a copy has to copy.
    for n in 1..1_000 {
        go_on(&mut app, n, &[7; 9_000]).unwrap();
    }
    let fill = |spare: u64| {
        let mut filler = fs::File::create(dir.join("filler")).unwrap();
        while filler.write_all(&[0; 4096]).is_ok() {}
        let len = filler.metadata().unwrap().len();
        filler.set_len(len.saturating_sub(spare)).unwrap();
    };
    for (round, spare) in [0, 8 << 10, 100 << 10, 3 << 20].into_iter().enumerate() {
        fill(spare);
        let copy = dir.join(format!("copy-{round}"));
        let why = match fs::create_dir(&copy) {
            Ok(()) => app.link().unwrap()(&copy).unwrap_err().to_string(),
            Err(e) => e.to_string(),
        };
        println!("refused: {why}");
        fs::remove_file(dir.join("filler")).unwrap();
        let _ = fs::remove_dir_all(&copy);
        go_on(&mut app, 1_000 + round as i64, &[7; 9_000]).unwrap();
    }
    drop(app);
    println!("found {}", position(&mut open(&dir.join("store"))));
}

/// A disk that is full in the middle of a copy costs only the copy; the store goes on.
#[test]
fn a_full_disk_costs_the_copy_alone() {
    const SCRIPT: &str = r#"
        mount -t tmpfs -o size=24m none "$1" || exit 1
        APPS_TEST_COPY_CHILD="$1" $2"#;
    if Process::new("id").arg("-u").output().unwrap().stdout != b"0\n" {
        return println!("SKIPPED: mounting a small disk needs root");
    }
    let dir = TempDir::new("full");
    let this = std::env::current_exe().unwrap();
    let child = format!("{} --exact child_process --nocapture", this.display());
    let output = Process::new("unshare")
        .args(["--mount", "sh", "-c", SCRIPT, "sh"])
        .args([dir.0.as_os_str(), child.as_ref()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{:?}: {text}{errors}",
        output.status
    );
    assert_eq!(text.matches("refused: ").count(), 4, "{text}");
    assert!(text.matches("No space left").count() >= 3, "{text}");
    assert!(text.contains("found 1003"), "{text}{errors}");
}
