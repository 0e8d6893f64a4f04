// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos-lab bench peer`: a process of `bench e2e --protocol`.

use std::path::PathBuf;

use clap::Args;
use local_cluster::Error;
use measure::peers;
use node::ClusterFile;

/// Options of the process.
#[derive(Args)]
pub struct Options {
    /// Read this cluster file
    #[arg(short, long)]
    cluster: PathBuf,
    /// Be this node: a replica, or the leader, in whose place is a switch
    #[arg(long)]
    name: String,
    /// Speak this protocol: vr, vr-batch, fast or spec
    #[arg(long)]
    protocol: String,
}

/// Serves until the process is killed.
pub fn run(options: &Options) -> Result<(), Error> {
    let mut known = peers::NAMES.iter();
    let (_, protocol) = known
        .find(|(name, _)| *name == options.protocol)
        .ok_or_else(|| Error::new("--protocol: take vr, vr-batch, fast or spec"))?;
    peers::serve(
        &ClusterFile::load(&options.cluster)?,
        &options.name,
        *protocol,
    )
}
