// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos recover`: finds out what an instance decided, or closes it with a no-op.

use std::time::Duration;

use clap::Args;
use client::Recovery;
use paxos::recover::Filler;
use paxos::{Flags, GroupId, Instance, PartitionId};
use serde_json::json;

use command_line::arguments::Cluster;
use local_cluster::Error;

/// Options of `wirepaxos recover`.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    cluster: Cluster,
    /// Look at this group; by default at the first one
    #[arg(long)]
    group: Option<GroupId>,
    /// Look at this partition
    #[arg(long, default_value_t = 0)]
    pid: PartitionId,
    /// Find out what this instance decided
    #[arg(long)]
    instance: Instance,
    /// Wait at most this many seconds for a quorum of acceptors
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Recovers one instance and prints its value.
pub fn run(options: &Options) -> Result<(), Error> {
    let cluster = options.cluster.load()?;
    let group = options.group.unwrap_or(cluster.groups[0].id);
    let decided = Recovery::open(&cluster, group, options.pid)?.recover(
        options.instance,
        Filler::Noop,
        Duration::from_secs(options.timeout),
    )?;
    let h = &decided.header;
    let noop = h.flags.has(Flags::NOOP);
    let hex: String = decided.value.iter().map(|b| format!("{b:02x}")).collect();
    if options.json {
        println!(
            "{}",
            json!({
                "group": group,
                "pid": options.pid,
                "instance": options.instance,
                "noop": noop,
                "packed": h.flags.has(Flags::PACKED),
                "round": h.rnd.0,
                "client": h.client,
                "request": h.request,
                "value": hex,
            })
        );
    } else if noop {
        println!("instance {}: no-op (round {})", options.instance, h.rnd);
    } else {
        println!(
            "instance {}: client {:016x} request {} (round {}), {} bytes: {hex}",
            options.instance,
            h.client,
            h.request,
            h.rnd,
            decided.value.len()
        );
    }
    Ok(())
}
