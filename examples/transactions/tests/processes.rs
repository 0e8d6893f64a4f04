// SPDX-License-Identifier: Apache-2.0
//! A cluster of real processes, under transactions that append to lists and read them, while
//! clients, the leader and a replica are killed.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use transactions::checker::check;
use transactions::history::{ClientOutcome, Entry, Operation};

const PROGRAM: &str = env!("CARGO_BIN_EXE_transactions");
const CLIENTS: u64 = 3;
/// Keys in use at a time. Others take their place before their lists get too long.
const KEYS: u64 = 9;
const APPENDS: u64 = 400;
/// Commits after each event.
const COMMITS: usize = 40;
/// A run that hangs ends after this.
const PATIENCE: Duration = Duration::from_secs(120);

/// A process that is killed at the end of the test, whatever its result.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Process {
        Process(command.spawn().expect("the program is there"))
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What all clients share.
struct Shared {
    file: PathBuf,
    begun: Instant,
    history: Mutex<Vec<Entry>>,
    next_number: AtomicU64,
    over: AtomicBool,
    /// The process of each client, to be killed.
    processes: Vec<Mutex<Option<Process>>>,
}

impl Shared {
    fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn committed(&self) -> usize {
        let history = self.history.lock().unwrap();
        let committed = history
            .iter()
            .filter(|e| e.told == ClientOutcome::Committed);
        committed.count()
    }

    fn await_commits(&self) {
        let enough = self.committed() + COMMITS;
        while self.committed() < enough {
            assert!(self.begun.elapsed() < PATIENCE, "transactions stand still");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn node(file: &Path, name: &str) -> Process {
    Process::start(Command::new(PROGRAM).arg(file).args(["serve", name]))
}

/// Starts a client as a process, and returns it with the pipes of its transactions and answers.
fn client(shared: &Shared) -> (Process, ChildStdin, BufReader<ChildStdout>) {
    let mut command = Command::new(PROGRAM);
    command.arg(&shared.file).arg("run");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Process::start(&mut command);
    let input = process.0.stdin.take().unwrap();
    let output = BufReader::new(process.0.stdout.take().unwrap());
    (process, input, output)
}

/// One client after the other, each a process of its own, until all is over.
fn clients(shared: &Shared, at: usize) {
    let mut random = at as u64;
    while !shared.over.load(Ordering::Relaxed) {
        let (process, mut input, mut output) = client(shared);
        *shared.processes[at].lock().unwrap() = Some(process);
        while !shared.over.load(Ordering::Relaxed) {
            let operations = draw(shared, &mut random);
            let begin = shared.now();
            let answer = ask(&mut input, &mut output, &operations);
            record(shared, begin, operations, answer.as_deref());
            if answer.is_none() {
                break;
            }
        }
    }
}

fn draw(shared: &Shared, random: &mut u64) -> Vec<Operation> {
    let mut below = |limit: u64| {
        *random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (*random >> 33) % limit
    };
    let count = 1 + below(4);
    let first = first_key(shared);
    let draw = |_| match (first + below(KEYS), below(2)) {
        (key, 0) => Operation::Read(key, Vec::new()),
        (key, _) => {
            let number = shared.next_number.fetch_add(1, Ordering::Relaxed);
            Operation::Append(key, number)
        }
    };
    (0..count).map(draw).collect()
}

/// Returns the first of the keys that are in use.
fn first_key(shared: &Shared) -> u64 {
    shared.next_number.load(Ordering::Relaxed) / APPENDS * KEYS
}

/// Returns the client's answer, or `None` if it was killed.
fn ask(input: &mut impl Write, output: &mut impl BufRead, todo: &[Operation]) -> Option<String> {
    let words = todo.iter().map(|operation| match operation {
        Operation::Read(key, _) => format!("get k{key}"),
        Operation::Append(key, number) => format!("append k{key} {number}"),
    });
    writeln!(input, "{}", words.collect::<Vec<_>>().join(" ")).ok()?;
    input.flush().ok()?;
    let mut answer = String::new();
    output.read_line(&mut answer).ok()?;
    answer.ends_with('\n').then_some(answer)
}

fn record(shared: &Shared, begin: u64, mut operations: Vec<Operation>, answer: Option<&str>) {
    let mut words = answer.unwrap_or_default().split_whitespace();
    let told = match words.next() {
        Some("committed") => ClientOutcome::Committed,
        None => ClientOutcome::Nothing,
        Some(_) => panic!("{answer:?}"),
    };
    for operation in operations
        .iter_mut()
        .filter(|_| told == ClientOutcome::Committed)
    {
        if let Operation::Read(_, seen) = operation {
            let (_, list) = words.next().unwrap().split_once('=').unwrap();
            let numbers = list.split(',').filter(|number| !number.is_empty());
            *seen = numbers.map(|number| number.parse().unwrap()).collect();
        }
    }
    let entry = Entry {
        begin,
        end: shared.now(),
        told,
        operations,
    };
    shared.history.lock().unwrap().push(entry);
}

fn kill_client(shared: &Shared, at: usize) {
    if let Some(process) = shared.processes[at].lock().unwrap().as_mut() {
        process.kill();
    }
}

/// Kills clients, the first that leads, and a replica, which comes back.
fn disturb(shared: &Shared, nodes: &mut [(String, Process)], leads: &str) {
    let mut kill = |name: &str| {
        let found = nodes.iter_mut().find(|(node, _)| node == name);
        found.expect("there is such a node").1.kill();
    };
    shared.await_commits();
    for at in [0, 1, 0, 2] {
        kill_client(shared, at);
        shared.await_commits();
    }
    kill(leads);
    shared.await_commits();
    kill("replica-2");
    kill_client(shared, 1);
    shared.await_commits();
    let back = node(&shared.file, "replica-2");
    shared.await_commits();
    drop(back);
}

/// Reads all keys, a few in each transaction.
fn read_all(shared: &Shared) {
    let (_process, mut input, mut output) = client(shared);
    let end = first_key(shared) + KEYS;
    for first in (0..end).step_by(KEYS as usize) {
        let keys = first..first + KEYS;
        let operations: Vec<_> = keys.map(|k| Operation::Read(k, Vec::new())).collect();
        let begin = shared.now();
        let answer = ask(&mut input, &mut output, &operations);
        assert!(answer.is_some(), "the last client has died");
        record(shared, begin, operations, answer.as_deref());
    }
}

fn survives(test: &str, protocol: &[&str], agree: &[&str]) {
    let name = format!("wirepaxos-transactions-{test}-{}", std::process::id());
    let directory = Directory(std::env::temp_dir().join(name));
    let mut new = Command::new(PROGRAM);
    new.arg("new").arg(&directory.0).arg("3").args(protocol);
    assert!(new.stdout(Stdio::null()).status().unwrap().success());
    let file = directory.0.join("cluster.toml");
    let names = ["controller", "replica-1", "replica-2", "replica-3"];
    let names = names.iter().chain(agree);
    let mut nodes: Vec<_> = names
        .map(|name| ((*name).to_owned(), node(&file, name)))
        .collect();
    let shared = Arc::new(Shared {
        file,
        begun: Instant::now(),
        history: Mutex::default(),
        next_number: AtomicU64::new(1),
        over: AtomicBool::new(false),
        processes: (0..CLIENTS).map(|_| Mutex::new(None)).collect(),
    });
    let threads: Vec<JoinHandle<()>> = (0..CLIENTS as usize)
        .map(|at| {
            let shared = shared.clone();
            std::thread::spawn(move || clients(&shared, at))
        })
        .collect();
    disturb(&shared, &mut nodes, agree[0]);
    shared.over.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    read_all(&shared);
    let history = shared.history.lock().unwrap();
    let found = check(&history);
    assert_eq!(found, [], "{history:#?}");
}

#[test]
fn lists_stay_right_with_paxos_while_processes_die() {
    let agree = [
        "leader-1",
        "leader-2",
        "acceptor-1",
        "acceptor-2",
        "acceptor-3",
    ];
    survives("paxos", &[], &agree);
}

#[test]
fn lists_stay_right_with_nopaxos_while_processes_die() {
    survives("nopaxos", &["nopaxos"], &["sequencer-1", "sequencer-2"]);
}
