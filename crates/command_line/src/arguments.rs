// SPDX-License-Identifier: Apache-2.0
//! Arguments that several commands share.

use std::path::PathBuf;

use clap::Args;
use local_cluster::Error;
use node::ClusterFile;
use node::cluster_file::{Auth, Plane, Protocol};

/// The cluster that a command is about.
#[derive(Args)]
pub struct Cluster {
    /// Read this cluster file
    #[arg(short = 'c', long = "cluster", default_value = "cluster.toml")]
    pub file: PathBuf,
}

impl Cluster {
    /// Reads and checks the cluster file.
    pub fn load(&self) -> Result<ClusterFile, Error> {
        Ok(ClusterFile::load(&self.file)?)
    }
}

/// Parses the name of a plane that needs no cluster file: only a cluster file names ports of DPDK.
pub fn plane(name: &str) -> Result<Plane, String> {
    let named = Plane::named(name).filter(|plane| *plane != Plane::Dpdk);
    named.ok_or("take udp, xdp or auto".to_string())
}

/// Parses the name of a node's plane.
pub fn plane_of_node(name: &str) -> Result<Plane, String> {
    Plane::named(name).ok_or("take udp, xdp, auto or dpdk".to_string())
}

/// Parses the name of a protocol.
pub fn protocol(name: &str) -> Result<Protocol, String> {
    let mut all = Protocol::ALL.into_iter();
    let named = all.find(|protocol| protocol.name() == name);
    named.ok_or("take paxos or nopaxos".to_string())
}

/// Parses the name of the packets and messages that are signed.
pub fn auth(name: &str) -> Result<Auth, String> {
    Auth::named(name).ok_or("take off, control, siphash or halfsiphash".to_string())
}

/// Parses a share, such as 1% or 0.01.
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
