// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos status`: asks all nodes of a cluster at once, and shows their states.

mod one_node;
pub mod summary;
mod watch;

use std::collections::BTreeMap;

use clap::Args;
use node::ClusterFile;
use node::cluster_status::{self, ClusterStatus};
use serde_json::{Value, json};

use crate::silence;
use command_line::arguments::Cluster;
use local_cluster::Error;
use node::utc;
use wirepaxos::admin::{Digests, digests};

/// Options of `wirepaxos status`.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    cluster: Cluster,
    /// Ask only this node, and end with 0 if it is ready: for probes
    #[arg(short, long, value_name = "NODE", conflicts_with_all = ["digest", "watch"])]
    name: Option<String>,
    /// Ask the replicas for digests of their contents, too, which reads all of them
    #[arg(long)]
    digest: bool,
    /// Look again every so many seconds, until Ctrl-C
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    #[arg(num_args = 0..=1, default_missing_value = "2", conflicts_with = "digest")]
    watch: Option<f64>,
    /// Print one JSON object instead of a table; with --watch one a line
    #[arg(long)]
    json: bool,
}

pub fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok();
    let in_range = seconds.filter(|seconds| (0.1..=3_600.0).contains(seconds));
    in_range.ok_or("take a number of seconds from 0.1 to 3600".to_owned())
}

/// Prints the cluster's state, and returns an error if any node is silent or has a warning.
pub fn run(options: &Options) -> Result<(), Error> {
    let cluster = options.cluster.load()?;
    if let Some(name) = &options.name {
        return one_node::run(options, &cluster, name);
    }
    if let Some(seconds) = options.watch {
        return watch::run(options, &cluster, seconds);
    }
    let look = Look::take(options, &cluster)?;
    match options.json {
        true => println!("{}", look.to_json()?),
        false => look
            .lines(&cluster)
            .iter()
            .for_each(|line| println!("{line}")),
    }
    look.verdict(options, &cluster)
}

/// What the nodes have answered.
struct Look<'a> {
    status: ClusterStatus<'a>,
    digests: Digests,
}

impl<'a> Look<'a> {
    /// Asks all nodes.
    fn take(options: &Options, cluster: &'a ClusterFile) -> Result<Look<'a>, Error> {
        Ok(Look {
            status: ClusterStatus::take(cluster)?,
            digests: match options.digest {
                true => digests(cluster)?,
                false => Digests::default(),
            },
        })
    }

    /// Returns an error if any node is silent or there is a warning.
    fn verdict(&self, options: &Options, cluster: &ClusterFile) -> Result<(), Error> {
        let silent = self.status.silent();
        match self.status.warned() {
            _ if !silent.is_empty() => {
                Err(silence::error(cluster, &options.cluster.file, &silent)?)
            }
            0 => Ok(()),
            1 => Err(Error::new("there is a warning")),
            n => Err(Error::new(format!("there are {n} warnings"))),
        }
    }

    fn to_json(&self) -> Result<Value, Error> {
        let mut document = self.status.to_json()?;
        let found = self.digests.found.iter();
        let found = found
            .map(|(name, next, digest)| json!({ "name": name, "next": next, "digest": digest }));
        document["digests"] = found.collect();
        document["without_digest"] = json!(self.digests.silent);
        Ok(document)
    }

    fn lines(&self, cluster: &ClusterFile) -> Vec<String> {
        let answers = self.status.answers();
        let builds: BTreeMap<&str, String> = answers
            .iter()
            .map(|(name, answer)| (name.as_str(), cluster_status::build(answer)))
            .collect();
        let width = builds.values().map(String::len).max().unwrap_or(0).max(7);
        let row = |name: &str, role: &str, up: &str, build: &str, state: &str| {
            format!("{name:<14} {role:<11} {up:<7} {build:<width$} {state}")
        };
        let mut lines = vec![row("node", "role", "up", "version", "state")];
        for node in &cluster.nodes {
            let answer = answers.get(&node.name);
            let up = answer.map_or("NO".to_owned(), |answer| {
                answer["uptime_s"]
                    .as_u64()
                    .map_or("yes".to_owned(), utc::lasted)
            });
            let build = builds.get(node.name.as_str()).map_or("", String::as_str);
            let own = answer.map(|a| summary::lines(a, cluster));
            let mut own = own.unwrap_or_default().into_iter();
            let first = own.next().unwrap_or_default();
            let first = match node.leaving {
                true => format!("(leaving) {first}"),
                false => first,
            };
            lines.push(row(&node.name, node.role.name(), &up, build, &first));
            lines.extend(own.map(|line| row("", "", "", "", &line)));
        }
        let groups = self.status.nopaxos();
        lines.extend(groups.iter().flat_map(cluster_status::nopaxos_lines));
        let differences = self.status.differences();
        lines.extend(differences.iter().map(|w| format!("WARNING: {w}")));
        let digests = self.digests.found.iter();
        lines.extend(
            digests.map(|(name, next, digest)| {
                format!("digest of {name} at instance {next}: {digest}")
            }),
        );
        let silent = self.digests.silent.iter();
        lines.extend(silent.map(|name| format!("no digest of {name}: it is silent")));
        lines
    }
}
