// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos-lab bench stub-followers`: the process of `--followers stub`.

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
    /// Stand for this replica; repeat it for each
    #[arg(long, required = true)]
    name: Vec<String>,
}

/// Serves until the process is killed.
pub fn run(options: &Options) -> Result<(), Error> {
    measure::stubs::serve(&ClusterFile::load(&options.cluster)?, &options.name)
}
