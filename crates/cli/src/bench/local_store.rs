// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos bench local-store`: a process of `bench e2e --baseline local`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use local_cluster::Error;
use measure::e2e::local::{self, LocalSettings};

/// Options of the process.
#[derive(Args)]
pub struct Options {
    /// The application
    #[arg(long)]
    app: String,
    /// Where its stores are
    #[arg(long)]
    directory: PathBuf,
    /// How many there are
    #[arg(long)]
    partitions: u16,
    /// Bytes of a value
    #[arg(long)]
    value_bytes: u16,
    /// Commands in one write
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    batch: u64,
    /// How long it runs
    #[arg(long)]
    milliseconds: u64,
    /// Also until each store has written a file
    #[arg(long)]
    until_full: bool,
    /// Makes its keys new
    #[arg(long)]
    run: u64,
    /// The CPU that it stays on
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
