// SPDX-License-Identifier: Apache-2.0
//! What several commands take as an argument.

use std::path::PathBuf;

use clap::Args;
use local_cluster::Error;
use node::ClusterFile;
use node::cluster_file::{Auth, Plane, Protocol};

/// Which cluster a command is about.
#[derive(Args)]
pub struct Cluster {
    /// The cluster file
    #[arg(short = 'c', long = "cluster", default_value = "cluster.toml")]
    pub file: PathBuf,
}

impl Cluster {
    /// Reads and checks the file.
    pub fn load(&self) -> Result<ClusterFile, Error> {
        Ok(ClusterFile::load(&self.file)?)
    }
}

/// Reads the name of a plane that can be had without a cluster file: only that has ports of DPDK.
pub fn plane(name: &str) -> Result<Plane, String> {
    let named = Plane::named(name).filter(|plane| *plane != Plane::Dpdk);
    named.ok_or("take udp, xdp or auto".to_string())
}

/// Reads the name of a node's plane.
pub fn plane_of_node(name: &str) -> Result<Plane, String> {
    Plane::named(name).ok_or("take udp, xdp, auto or dpdk".to_string())
}

/// Reads the name of a protocol.
pub fn protocol(name: &str) -> Result<Protocol, String> {
    let mut all = Protocol::ALL.into_iter();
    let named = all.find(|protocol| protocol.name() == name);
    named.ok_or("take paxos or nopaxos".to_string())
}

/// Reads what is to be signed.
pub fn auth(name: &str) -> Result<Auth, String> {
    Auth::named(name).ok_or("take off, control, siphash or halfsiphash".to_string())
}

/// Reads a share.
pub fn rate(text: &str) -> Result<f64, String> {
    let (number, unit) = match text.strip_suffix('%') {
        Some(number) => (number, 100.0),
        None => (text, 1.0),
    };
    match number.parse::<f64>() {
        Ok(number) if (0.0..=unit).contains(&number) => Ok(number / unit),
        _ => Err("take a share such as 1% or 0.01".to_string()),
    }
}
