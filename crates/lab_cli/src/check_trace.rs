// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos-lab check-trace`: checks the records of a cluster's nodes against the protocol.

use std::path::PathBuf;

use clap::Args;
use model::merge::{self, Recorded};
use model::verdict::{Violation, violation};
use serde_json::{Value, json};

use local_cluster::Error;

/// Options of `wirepaxos-lab check-trace`.
#[derive(Args)]
pub struct Options {
    /// Read the recordings in the directory that `trace` in the cluster file names
    directory: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Reads all traces of the directory and checks each group's. A violation is returned as an error.
pub fn run(options: &Options) -> Result<(), Error> {
    let groups = merge::read(&options.directory).map_err(Error::new)?;
    let checked: Vec<(&Recorded, Option<Violation>)> = groups
        .iter()
        .map(|group| (group, violation(group)))
        .collect();
    if options.json {
        let groups: Vec<Value> = checked.iter().map(|(g, v)| document(g, v)).collect();
        println!("{}", json!({ "groups": groups }));
    } else {
        for (group, violation) in &checked {
            let settings = &group.trace.settings;
            println!(
                "cluster {:08x}, group {}: {} events of {} files, {}",
                settings.cluster,
                settings.group,
                group.trace.events.len(),
                group.files.len(),
                match violation {
                    None => "all as the protocol allows",
                    Some(_) => "VIOLATION",
                }
            );
        }
    }
    match checked.iter().find_map(|(_, violation)| violation.as_ref()) {
        None => Ok(()),
        Some(v) => Err(Error::new(v.to_string())),
    }
}

fn document(group: &Recorded, violation: &Option<Violation>) -> Value {
    let violation = violation
        .as_ref()
        .map(|v| json!({ "file": v.file, "line": v.line, "why": v.why }));
    json!({
        "cluster": format!("{:08x}", group.trace.settings.cluster),
        "group": group.trace.settings.group,
        "files": group.files.len(),
        "events": group.trace.events.len(),
        "violation": violation,
    })
}
