// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos accept-server`: lets a replica execute with another Redis server than its group's.

use clap::Args;
use node::cluster_file::ApplicationKind;
use serde_json::json;

use crate::named;
use command_line::arguments::Cluster;
use local_cluster::Error;

/// The explanation of the risk, in the command's help.
const RISK: &str =
    "A replica ends if its Redis server would execute commands differently from the \
                    server on which the group has agreed: it lacks commands, or is for another \
                    architecture. Usually you install the group's server on its machine.

This order is for a whole group that gets such servers. Stop the cluster with `wirepaxos stop` \
                    while the old servers are still there, so that they execute everything \
                    decided; replace all servers; give the order for each replica; and start the \
                    nodes. Once all replicas run the same server it is the group's, and the order \
                    ends.

A REPLICA THAT EXECUTES WITH THIS SERVER WHAT ANOTHER ONE EXECUTES WITH THE OLD ONE MAY DIFFER \
                    FROM IT FOR GOOD, and commands of the log that the server lacks have no effect \
                    there. Move the data directory of a replica away that wasn't stopped like the \
                    others: it begins with another one's state.";

/// Options of `wirepaxos accept-server`.
#[derive(Args)]
#[command(after_help = RISK)]
pub struct Options {
    #[command(flatten)]
    cluster: Cluster,
    /// Let this replica execute, on its machine
    #[arg(long)]
    name: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Writes the order into the directories of the replica's partitions.
pub fn run(options: &Options) -> Result<(), Error> {
    let cluster = options.cluster.load()?;
    let name = &options.name;
    let replica = named::node(&cluster, &options.cluster.file, name)?;
    let group = replica.group.and_then(|id| cluster.group(id));
    let Some(group) = group.filter(|group| group.application == ApplicationKind::Redis) else {
        return Err(Error::new(format!(
            "{name} is no replica of Redis itself (`application = \"redis\"`): name one that is"
        )));
    };
    for pid in 0..group.partitions {
        let dir = cluster.partition_dir(replica, pid);
        apps::redis::accept(&dir).map_err(|e| {
            Error::new(format!(
                "can't write the order into {}: {e}; run this on the machine of {name}, as the \
                 user of its process",
                dir.display()
            ))
        })?;
    }
    if options.json {
        println!(
            "{}",
            json!({ "node": name, "partitions": group.partitions })
        );
    } else {
        println!("{name} executes with its Redis server, even if that isn't fit for the group");
    }
    Ok(())
}
