// SPDX-License-Identifier: Apache-2.0
//! A replicated store with transactions, and its client.
//!
//! ```text
//! transactions new DIRECTORY SHARDS [nopaxos]   # write a cluster file for this machine
//! transactions CLUSTER.toml up                  # run all its nodes in this process, until Ctrl-C
//! transactions CLUSTER.toml serve NODE          # run one node, until SIGTERM
//! transactions CLUSTER.toml run                 # execute each line of the input as a transaction
//! ```
//!
//! A line has operations: `get KEY`, `put KEY VALUE`, or `append KEY WORD`, which puts a comma and
//! the word behind the value. The answer is `committed`, and `KEY=VALUE` for each get.

mod lines;

use std::io::{BufRead, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use transactions::shard::{Limits, Shard};
use transactions::store::{Clusters, Store};
use wirepaxos::cluster_file::{ApplicationKind, Draft, Protocol, Role};
use wirepaxos::{Client, ClientOptions, ClusterFile, Embedded, Error, Program, Stop};

const USAGE: &str = "usage: transactions new DIRECTORY SHARDS [nopaxos]
       transactions CLUSTER.toml up | serve NODE | run";

/// How long a transaction may take.
const TIMEOUT: Duration = Duration::from_secs(30);

fn program() -> Program {
    Program::in_memory(|| Shard::new(Limits::default()))
}

/// Writes a cluster file in which each partition is a shard.
fn new(directory: &str, shards: &str, nopaxos: bool) -> Result<(), Error> {
    let parsed = shards
        .parse()
        .ok()
        .filter(|shards| (1..=16).contains(shards));
    let shards = parsed.ok_or_else(|| Error::System("take 1 to 16 shards".to_owned()))?;
    std::fs::create_dir_all(directory)?;
    let mut draft = Draft::on_loopback("data", ApplicationKind::Own)?;
    let host = draft.nodes[0].address.ip();
    draft.nodes.clear();
    draft.groups[0].partitions = Some(shards);
    let agree = match nopaxos {
        true => [(Role::Sequencer, 2)].to_vec(),
        false => [(Role::Leader, 2), (Role::Acceptor, 3)].to_vec(),
    };
    draft.groups[0].protocol = nopaxos.then_some(Protocol::NoPaxos);
    draft.add_nodes(&[(Role::Controller, 1)], host);
    draft.add_nodes(&agree, host);
    draft.add_nodes(&[(Role::Replica, 3)], host);
    let file = Path::new(directory).join("cluster.toml");
    draft.write(&file)?;
    println!("{}", file.display());
    Ok(())
}

fn up(cluster: &ClusterFile) -> Result<(), Error> {
    let stop = Stop::new()?;
    stop.on_signals()?;
    let nodes = Embedded::start(cluster, &program())?;
    while !stop.is_requested() {
        std::thread::sleep(Duration::from_millis(50));
    }
    nodes.stop()
}

fn serve(cluster: &ClusterFile, node: &str) -> Result<(), Error> {
    let stop = Stop::new()?;
    stop.on_signals()?;
    wirepaxos::run(cluster, node, &program(), &stop)
}

fn run(cluster: &ClusterFile) -> Result<(), Error> {
    let options = ClientOptions {
        open_timeout: TIMEOUT,
        ..ClientOptions::default()
    };
    let client = Client::open(cluster, options)?;
    let mut store = Store::new(Clusters::of(vec![client]), TIMEOUT);
    let mut output = std::io::stdout();
    for line in std::io::stdin().lock().lines() {
        writeln!(output, "{}", lines::execute(&mut store, &line?))?;
        output.flush()?;
    }
    // Nothing stays locked.
    store
        .finish()
        .map_err(|error| Error::System(error.to_string()))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let load = |file: &str| ClusterFile::load(Path::new(file));
    let result = match arguments[..] {
        ["new", directory, shards] => new(directory, shards, false),
        ["new", directory, shards, "nopaxos"] => new(directory, shards, true),
        [file, "up"] => load(file).map_err(Error::from).and_then(|c| up(&c)),
        [file, "serve", node] => load(file)
            .map_err(Error::from)
            .and_then(|cluster| serve(&cluster, node)),
        [file, "run"] => load(file).map_err(Error::from).and_then(|c| run(&c)),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("transactions: {error}");
            ExitCode::FAILURE
        }
    }
}
