// SPDX-License-Identifier: Apache-2.0
//! Tests with child processes that are killed, or that have no room on the disk.

use super::*;

/// The variable with the task of a child process of this test binary, as `role:store:directory`.
const CHILD: &str = "APPS_TEST_CHILD";

const CHILD_ARGUMENTS: [&str; 4] = [
    "--exact",
    "kills::child_process",
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
