// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos bench unreplicated-server`: the server of `bench e2e --baseline unreplicated`.

use std::path::PathBuf;

use clap::Args;
use local_cluster::Error;
use node::ClusterFile;

/// Options of the server process.
#[derive(Args)]
pub struct Options {
    /// The cluster file; its first leader's addresses are served
    #[arg(short, long)]
    cluster: PathBuf,
}

/// Serves until the process is killed.
pub fn run(options: &Options) -> Result<(), Error> {
    measure::unreplicated::serve(&ClusterFile::load(&options.cluster)?)
}
