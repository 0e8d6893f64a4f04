// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos-lab bench local-store`: a process of `bench e2e --baseline local`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use local_cluster::Error;
use measure::e2e::local::{self, LocalSettings};

/// Options of the process.
#[derive(Args)]
pub struct Options {
    /// Use this application
    #[arg(long)]
    app: String,
    /// Keep its stores in this directory
    #[arg(long)]
    directory: PathBuf,
    /// Open this many stores
    #[arg(long)]
    partitions: u16,
    /// Let a value have this many bytes
    #[arg(long)]
    value_bytes: u16,
    /// Put this many commands into one write
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    batch: u64,
    /// Run for this many milliseconds
    #[arg(long)]
    milliseconds: u64,
    /// Run at least until each store has written a file
    #[arg(long)]
    until_full: bool,
    /// Make the keys of this run new
    #[arg(long)]
    run: u64,
    /// Stay on this CPU
    #[arg(long)]
    cpu: Option<usize>,
}

/// Measures the stores, and prints the result.
pub fn run(options: &Options) -> Result<(), Error> {
    let result = local::run(&LocalSettings {
        app: options.app.clone(),
        directory: options.directory.clone(),
        partitions: options.partitions,
        value_bytes: options.value_bytes,
        batch: options.batch,
        time: Duration::from_millis(options.milliseconds),
        until_full: options.until_full,
        run: options.run,
        cpu: options.cpu,
    })?;
    println!("{result}");
    Ok(())
}
