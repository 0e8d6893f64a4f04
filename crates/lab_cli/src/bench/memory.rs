// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos-lab bench memory`: computes how much the roles of NOPaxos keep in memory.

use clap::Args;
use local_cluster::Error;
use measure::memory;
use serde_json::json;

/// Options of `wirepaxos-lab bench memory`.
#[derive(Args)]
pub struct Options {
    /// Compute with this many replicas in the group
    #[arg(long, default_value_t = 3)]
    replicas: usize,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// Computes and prints.
pub fn run(options: &Options) -> Result<(), Error> {
    if !options.json {
        println!("bytes, without values: of a partition, of a slot, slots, all");
    }
    for kept in memory::all(options.replicas) {
        match options.json {
            true => println!(
                "{}",
                json!({
                    "role": kept.role,
                    "plane": kept.plane,
                    "replicas": options.replicas,
                    "partition_bytes": kept.partition_bytes,
                    "slot_bytes": kept.slot_bytes,
                    "holds_values": kept.holds_values,
                    "slots": kept.slots,
                    "bytes": kept.bytes(),
                })
            ),
            false => println!(
                "{:<10} {} {:>8} {:>5} {:>7} {:>10}",
                kept.role,
                kept.plane,
                kept.partition_bytes,
                kept.slot_bytes,
                kept.slots,
                kept.bytes()
            ),
        }
    }
    Ok(())
}
