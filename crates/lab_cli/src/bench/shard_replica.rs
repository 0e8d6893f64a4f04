// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos-lab bench shard-replica`: a replica of `bench retwis`.

use std::path::PathBuf;

use clap::Args;
use local_cluster::Error;
use node::ClusterFile;

/// Options of the process.
#[derive(Args)]
pub struct Options {
    /// Read this cluster file
    #[arg(short, long)]
    cluster: PathBuf,
    /// Be this replica
    #[arg(long)]
    name: String,
}

/// Serves until the process is told to end.
pub fn run(options: &Options) -> Result<(), Error> {
    measure::retwis::serve(&ClusterFile::load(&options.cluster)?, &options.name)
}
