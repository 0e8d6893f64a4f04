// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos-lab bench unreplicated-server`: the server of `bench e2e --baseline unreplicated`.

use std::path::PathBuf;

use clap::Args;
use local_cluster::Error;
use node::ClusterFile;

/// Options of the server process.
#[derive(Args)]
pub struct Options {
    /// Serve the addresses of the first leader of this cluster file
    #[arg(short, long)]
    cluster: PathBuf,
}

/// Serves until the process is killed.
pub fn run(options: &Options) -> Result<(), Error> {
    measure::unreplicated::serve(&ClusterFile::load(&options.cluster)?)
}
