//! A program of your own, replicated: a counter.
//!
//! ```text
//! counter cluster.toml serve replica-1     # be a replica, until SIGTERM
//! counter cluster.toml next                # ask the replicated counter for its next number
//! ```

use std::error::Error;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use client::{Client, ClientOptions, Outcome};
use node::{ClusterFile, Services, Stop};
use replica::storage::CheckpointFile;
use replica::{InMemory, StateMachine};

#[derive(Default)]
struct Counter(u64);

impl StateMachine for Counter {
    fn execute(&mut self, _command: &[u8], reply: &mut Vec<u8>) {
        self.0 += 1;
        reply.extend_from_slice(self.0.to_string().as_bytes());
    }

    fn save(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.0.to_be_bytes())
    }

    fn load(from: &mut dyn Read) -> io::Result<Self> {
        let mut bytes = [0; 8];
        from.read_exact(&mut bytes)?;
        Ok(Counter(u64::from_be_bytes(bytes)))
    }
}

fn serve(cluster: &ClusterFile, name: &str) -> Result<(), Box<dyn Error>> {
    let services = Services::new(Arc::new(|_pid, directory| {
        let file = CheckpointFile::new(directory.join("counter"));
        Ok(Box::new(InMemory::open(file, Counter::default())?))
    }));
    let stop = Stop::new()?;
    stop.on_signals()?; // SIGTERM and Ctrl-C end it in good order
    node::run(cluster, name, Some(&services), &stop)?;
    Ok(())
}

fn next(cluster: &ClusterFile) -> Result<(), Box<dyn Error>> {
    let mut client = Client::open(cluster, ClientOptions::default())?;
    // Partition 0.
    match client.call(0, b"next", Duration::from_secs(5)) {
        Outcome::Executed(Some(number)) => println!("{}", String::from_utf8_lossy(&number)),
        Outcome::Executed(None) => println!("counted, but the number is lost"),
        Outcome::Refused(why) => return Err(format!("not counted: {why}").into()),
        Outcome::Unknown(why) => return Err(format!("counted or not: {why}").into()),
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [file, "serve", name] => serve(&ClusterFile::load(Path::new(file))?, name),
        [file, "next"] => next(&ClusterFile::load(Path::new(file))?),
        _ => Err("usage: counter CLUSTER.toml serve NODE | counter CLUSTER.toml next".into()),
    }
}
