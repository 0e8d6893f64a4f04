// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos status`: asks all nodes of a cluster at once, and shows their states.

mod ordered;
mod summary;

use std::collections::BTreeMap;

use clap::Args;
use node::ClusterFile;
use serde_json::{Value, json};

use crate::arguments::Cluster;
use crate::silence;
use local_cluster::Error;
use wirepaxos::admin::{self, Digests};

/// Options of `wirepaxos status`.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    cluster: Cluster,
    /// Ask the replicas for digests of their contents, too, which reads all of them
    #[arg(long)]
    digest: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Prints the cluster's state, and returns an error if any node is silent or has a warning.
pub fn run(options: &Options) -> Result<(), Error> {
    let cluster = options.cluster.load()?;
    let answers = admin::ask_all(&cluster)?;
    let digests = if options.digest {
        admin::digests(&cluster)?
    } else {
        Digests::default()
    };
    if options.json {
        print_json(&cluster, &answers, &digests);
    } else {
        print_table(&cluster, &answers, &digests);
    }
    let nodes = cluster.nodes.iter();
    let silent: Vec<_> = nodes
        .filter(|node| !answers.contains_key(&node.name))
        .collect();
    let old_keys = summary::old_keys(&answers).map_or(0, |_| 1);
    match summary::warned(&answers) + old_keys {
        _ if !silent.is_empty() => Err(silence::error(&cluster, &options.cluster.file, &silent)?),
        0 => Ok(()),
        1 => Err(Error::new("there is a warning above")),
        n => Err(Error::new(format!("there are {n} warnings above"))),
    }
}

fn print_json(cluster: &ClusterFile, answers: &BTreeMap<String, Value>, digests: &Digests) {
    let nodes: Vec<Value> = cluster
        .nodes
        .iter()
        .map(|n| {
            json!({
                "name": n.name,
                "role": n.role.name(),
                "id": n.id,
                "leaving": n.leaving,
                "up": answers.contains_key(&n.name),
                "status": answers.get(&n.name),
            })
        })
        .collect();
    let found: Vec<Value> = digests
        .found
        .iter()
        .map(|(name, next, digest)| json!({ "name": name, "next": next, "digest": digest }))
        .collect();
    let silent = &digests.silent;
    let groups = ordered::overview(cluster, answers);
    println!(
        "{}",
        json!({ "nodes": nodes, "nopaxos": groups, "digests": found, "without_digest": silent })
    );
}

fn print_table(cluster: &ClusterFile, answers: &BTreeMap<String, Value>, digests: &Digests) {
    println!("{:<14} {:<11} {:<4} state", "node", "role", "up");
    for node in &cluster.nodes {
        let answer = answers.get(&node.name);
        let up = if answer.is_some() { "yes" } else { "NO" };
        let mut lines = answer
            .map(|a| summary::lines(a, cluster))
            .unwrap_or_default()
            .into_iter();
        let first = lines.next().unwrap_or_default();
        let first = match node.leaving {
            true => format!("(leaving) {first}"),
            false => first,
        };
        println!("{:<14} {:<11} {up:<4} {first}", node.name, node.role.name());
        lines.for_each(|line| println!("{:<31} {line}", ""));
    }
    for group in ordered::overview(cluster, answers) {
        ordered::lines(&group)
            .iter()
            .for_each(|line| println!("{line}"));
    }
    summary::old_keys(answers)
        .iter()
        .for_each(|line| println!("{line}"));
    for (name, next, digest) in &digests.found {
        println!("digest of {name} at instance {next}: {digest}");
    }
    for name in &digests.silent {
        println!("no digest of {name}: it is silent");
    }
}
