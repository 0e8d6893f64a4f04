// SPDX-License-Identifier: Apache-2.0
//! A replicated program of your own: a counter.
//!
//! ```text
//! counter cluster.toml serve replica-1     # be a replica, until SIGTERM
//! counter cluster.toml next                # ask the replicated counter for its next number
//! ```

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use wirepaxos::{Client, ClientOptions, ClusterFile, Error, Outcome, Program, StateMachine, Stop};

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

fn serve(file: &str, name: &str) -> Result<(), Error> {
    let cluster = ClusterFile::load(Path::new(file))?;
    let stop = Stop::new()?;
    stop.on_signals()?; // SIGTERM and Ctrl-C end it in good order
    wirepaxos::run(&cluster, name, &Program::in_memory(Counter::default), &stop)
}

fn next(file: &str) -> Result<(), Error> {
    let cluster = ClusterFile::load(Path::new(file))?;
    let mut client = Client::open(&cluster, ClientOptions::default())?;
    // The counter is in partition 0.
    match client.call(0, b"next", Duration::from_secs(5)) {
        Outcome::Executed(Some(number)) => println!("{}", String::from_utf8_lossy(&number)),
        Outcome::Executed(None) => println!("counted, but the number is lost"),
        Outcome::Refused(why) => return Err(why.into()), // not counted: it may be tried again
        Outcome::Unknown(why) => return Err(why.into()), // counted or not: look before trying again
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        [file, "serve", name] => serve(file, name),
        [file, "next"] => next(file),
        _ => {
            eprintln!("usage: counter CLUSTER.toml serve NODE | counter CLUSTER.toml next");
            return ExitCode::FAILURE;
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("counter: {e}");
            ExitCode::FAILURE
        }
    }
}
