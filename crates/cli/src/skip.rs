// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos skip`: makes a group skip a command of which replicas' programs die, while one of the
//! replicas is gone.

use clap::Args;
use paxos::{GroupId, Instance, PartitionId};
use serde_json::json;

use command_line::arguments::Cluster;
use local_cluster::Error;
use wirepaxos::admin;

/// The explanation of the risk, in the command's help.
const RISK: &str = "Replicas whose program has died of a command twice wait in front of it. They \
                    go on by themselves once another replica has passed it, or all replicas of the \
                    group have died of it; `wirepaxos status` shows as a warning where they wait, \
                    and of which command. Only while a replica is silent nothing happens by \
                    itself: it may have executed the command and answered its client.

This order has the command take no effect without that replica. IF IT HAS EXECUTED THE COMMAND, \
                    WHAT ITS CLIENT WAS ANSWERED IS LOST, and its state differs from the others': \
                    before it starts again, move its data directory away (all partitions), so that \
                    it begins with another replica's state.";

/// Options of `wirepaxos skip`.
#[derive(Args)]
#[command(after_help = RISK)]
pub struct Options {
    #[command(flatten)]
    cluster: Cluster,
    /// Pass the command in this group
    #[arg(long)]
    group: GroupId,
    /// Pass the command of this instance, in front of which replicas wait, as `status` shows
    #[arg(long)]
    instance: Instance,
    /// Pass the command in this partition
    #[arg(long, default_value_t = 0)]
    partition: PartitionId,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Orders the skip, and waits until it is carried out.
pub fn run(options: &Options) -> Result<(), Error> {
    let cluster = options.cluster.load()?;
    let (group, instance) = (options.group, options.instance);
    let skipped = admin::skip(&cluster, group, options.partition, instance)?;
    let silent = skipped.silent.join(", ");
    if options.json {
        let document = json!({
            "group": group,
            "partition": options.partition,
            "instance": instance,
            "command": skipped.command,
            "told": skipped.told,
            "silent": skipped.silent,
        });
        println!("{document}");
        return Ok(());
    }
    println!(
        "instance {instance} is passed: {} takes no effect, at {}",
        skipped.command,
        skipped.told.join(", ")
    );
    if !silent.is_empty() {
        println!(
            "{silent} may have executed it: before it starts again, move its data directory away \
             (all partitions)"
        );
    }
    Ok(())
}
