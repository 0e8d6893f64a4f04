// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos node`: runs one node of a cluster, or several at ports of DPDK, until told to stop.

use std::os::unix::process::CommandExt;
use std::process;

use clap::Args;
use node::Stop;
use node::cluster_file::Plane;
use serde_json::json;

use crate::{named, readiness};
use command_line::arguments::{Cluster, plane_of_node};
use local_cluster::Error;
use wirepaxos::Program;

/// Options of `wirepaxos node`.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    cluster: Cluster,
    /// Run this node of the cluster file; nodes on plane dpdk can share a process, and a port:
    /// repeat it
    #[arg(short, long, required = true)]
    name: Vec<String>,
    /// Handle packets on this plane, whatever the cluster file says: udp, xdp, dpdk, or auto (xdp
    /// where that is possible)
    #[arg(long, value_parser = plane_of_node)]
    plane: Option<Plane>,
    /// Print one JSON object a node when all have ended in good order
    #[arg(long)]
    json: bool,
}

/// Runs the nodes. SIGTERM, SIGINT, SIGHUP and `wirepaxos stop` end them in good order, after
/// storing what they know; of several nodes `wirepaxos stop` ends one, and a signal all. A signal
/// to a node in the kernel ends only its process, and its role goes on serving.
pub fn run(options: &Options) -> Result<(), Error> {
    let names: Vec<_> = options.name.iter().map(String::as_str).collect();
    let mut cluster = node::with_kept_members(options.cluster.load()?, &names)?;
    for name in &options.name {
        named::node(&cluster, &options.cluster.file, name)?;
    }
    if let Some(plane) = options.plane {
        for name in &options.name {
            cluster.set_plane(name, plane)?;
        }
    }
    node::host::keep_freed_memory();
    let stop = Stop::new()?;
    stop.on_signals()?;
    stop.allow_to_begin_anew();
    stop.on_ready(names.len(), readiness::tell);
    wirepaxos::run_together(&cluster, &names, &Program::configured(), &stop)?;
    if stop.begins_anew() {
        return Err(begin_anew());
    }
    if options.json {
        for name in names {
            println!("{}", json!({ "node": name, "stopped": true }));
        }
    }
    Ok(())
}

/// Runs this program again in the same process, with the same arguments. Returns an error if that
/// isn't possible.
fn begin_anew() -> Error {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    // A program whose file was replaced meanwhile goes on as it is.
    let here = std::env::current_exe().ok().filter(|path| path.exists());
    let mut program = process::Command::new(here.unwrap_or("/proc/self/exe".into()));
    let why = program.arg0(name).args(arguments).exec();
    Error::new(format!("can't start again with other members: {why}"))
}
