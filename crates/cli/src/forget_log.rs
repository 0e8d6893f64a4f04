// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos forget-log`: give up the damaged log of a durable acceptor or replica.

use clap::Args;
use serde_json::json;

use crate::named;
use command_line::arguments::Cluster;
use local_cluster::Error;

/// Options of `wirepaxos forget-log`.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    cluster: Cluster,
    /// Give up the log of this node, on its machine and while its process doesn't run
    #[arg(long)]
    name: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Moves the log aside if it is damaged.
pub fn run(options: &Options) -> Result<(), Error> {
    let cluster = options.cluster.load()?;
    let name = &options.name;
    let node = named::node(&cluster, &options.cluster.file, name)?;
    let aside = node::forget_log(&cluster, node)?;
    if options.json {
        println!("{}", json!({ "node": name, "aside": aside }));
    } else {
        println!(
            "the log of {name} is kept as {}. Start {name}: it joins as a new member. Until \
             `status` shows that it has, no other one may lose its memory. Then nothing needs the \
             kept log any more: remove it",
            aside.display()
        );
    }
    Ok(())
}
