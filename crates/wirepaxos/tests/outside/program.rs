// SPDX-License-Identifier: Apache-2.0
//! A program that `outside.rs` builds in a place of its own, with `wirepaxos` as its only
//! dependency.

use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use wirepaxos::cluster_file::{ApplicationKind, Draft};
use wirepaxos::{Client, ClientOptions, ClusterFile, Embedded, Error, Program, StateMachine};

#[derive(Default)]
struct Sum(u64);

impl StateMachine for Sum {
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) {
        self.0 += command.len() as u64;
        reply.extend_from_slice(self.0.to_string().as_bytes());
    }

    fn save(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.0.to_be_bytes())
    }

    fn load(from: &mut dyn Read) -> io::Result<Self> {
        let mut bytes = [0; 8];
        from.read_exact(&mut bytes)?;
        Ok(Sum(u64::from_be_bytes(bytes)))
    }
}

fn add(cluster: &ClusterFile, commands: &[&[u8]]) -> Result<String, Error> {
    let nodes = Embedded::start(cluster, &Program::in_memory(Sum::default))?;
    let options = ClientOptions {
        open_timeout: Duration::from_secs(60),
        ..ClientOptions::default()
    };
    let mut client = Client::open(cluster, options)?;
    let mut sum = Vec::new();
    for command in commands {
        sum = client.call(0, command, Duration::from_secs(60)).answer()?;
    }
    drop(client);
    nodes.stop()?;
    Ok(String::from_utf8_lossy(&sum).into_owned())
}

fn main() -> Result<(), Error> {
    let file = std::env::args().nth(1).expect("the path of a cluster file");
    match ClusterFile::load(Path::new(&file)) {
        Err(errors) => println!("{}", errors.errors[0].remedy),
        Ok(_) => panic!("{file} is there already"),
    }
    let cluster = Draft::on_loopback("data", ApplicationKind::Own)?.write(Path::new(&file))?;
    println!("{}", add(&cluster, &[b"a", b"bc"])?);
    // The stored state is found again.
    println!("{}", add(&cluster, &[b"def"])?);
    let sums = Program::in_memory(Sum::default);
    match wirepaxos::run(&cluster, "nobody", &sums, &wirepaxos::Stop::new()?) {
        Err(Error::Configuration(errors)) => println!("{}", errors.errors[0].problem),
        other => panic!("{other:?}"),
    }
    Ok(())
}
