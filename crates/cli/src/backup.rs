// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos backup`: backs up a whole cluster while it serves, and makes a new cluster from a
//! backup.

mod restore;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use local_cluster::Error;
use node::backup::{Catalog, Checked, Entry, Manifest, Step, check, create, range_text};
use node::{OpenApplication, utc};
use serde_json::{Value, json};

use command_line::arguments::Cluster;

/// Commands of `wirepaxos backup`.
#[derive(Subcommand)]
pub enum Command {
    /// Back up all groups of a cluster that serves
    Create(Create),
    /// Show the backups in a directory
    List(List),
    /// Check a backup: all its files, and whether its states can be opened
    Verify(Verify),
    /// Remove all but the newest backups
    Prune(Prune),
    /// Make a new cluster from a backup: run it on each machine before its nodes are started
    Restore(restore::Options),
}

/// Options of `backup create`.
#[derive(Args)]
pub struct Create {
    /// Put the backup into this directory, under a name of its own
    directory: PathBuf,
    #[command(flatten)]
    cluster: Cluster,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Options of `backup list`.
#[derive(Args)]
pub struct List {
    /// Look into this directory
    directory: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Options of `backup verify`.
#[derive(Args)]
pub struct Verify {
    /// Look into this directory
    directory: PathBuf,
    /// Check this backup instead of the newest
    name: Option<String>,
    /// Open the states in a new directory here, which needs as much room as the contents
    #[arg(long, value_name = "DIRECTORY", default_value_os_t = std::env::temp_dir())]
    scratch: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Options of `backup prune`.
#[derive(Args)]
pub struct Prune {
    /// Remove backups from this directory
    directory: PathBuf,
    /// Keep so many of the newest backups of each cluster
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    keep: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(command: &Command) -> Result<(), Error> {
    match command {
        Command::Create(options) => make(options),
        Command::List(options) => list(options),
        Command::Verify(options) => verify(options),
        Command::Prune(options) => prune(options),
        Command::Restore(options) => restore::run(options),
    }
}

fn make(options: &Create) -> Result<(), Error> {
    let cluster = options.cluster.load()?;
    let (name, manifest) = create(&cluster, &options.directory, &Arc::default(), |step| {
        if options.json {
            return;
        }
        match step {
            Step::Fetched { from, mib } if mib == 1 || mib % 64 == 0 => {
                eprintln!("{from}: {mib} MiB");
            }
            Step::Fetched { .. } => {}
            Step::Failed(e) => eprintln!("{e}; the next replica is asked"),
        }
    })?;
    match options.json {
        true => println!("{}", to_json(&name, &manifest)),
        false => {
            println!("{name}");
            positions(&manifest).for_each(|line| println!("{line}"));
        }
    }
    Ok(())
}

fn list(options: &List) -> Result<(), Error> {
    let catalog = Catalog::open(&options.directory)?;
    let entries = catalog.entries()?;
    let (reachable, wrong) = catalog.reachable()?;
    let range = |name: &str| reachable.iter().find(|of| of.name == name)?.range;
    if options.json {
        let of_entry = |entry: &Entry| match &entry.manifest {
            Ok(manifest) => {
                let mut of = to_json(&entry.name, manifest);
                let range = range(&entry.name);
                of["from"] = range.map(|range| utc::shown(range.from_ms)).into();
                of["until"] = range.map(|range| utc::shown(range.until_ms)).into();
                of
            }
            Err(why) => json!({ "name": entry.name, "error": why }),
        };
        let backups: Vec<Value> = entries.iter().map(of_entry).collect();
        println!("{}", json!({ "backups": backups, "wrong": wrong }));
        return Ok(());
    }
    for Entry { name, manifest } in entries {
        println!(
            "{}",
            match manifest {
                Ok(manifest) => format!(
                    "{name}  cluster {:08x}, {} MiB{}",
                    manifest.cluster,
                    manifest.bytes().div_ceil(1 << 20),
                    range(&name).map_or(String::new(), |range| {
                        format!(", any moment from {} UTC", range_text(range))
                    })
                ),
                Err(why) => format!("{name}  CAN'T BE USED: {why}"),
            }
        );
    }
    wrong.iter().for_each(|why| println!("{why}"));
    Ok(())
}

fn verify(options: &Verify) -> Result<(), Error> {
    let catalog = Catalog::open(&options.directory)?;
    let (name, manifest) = catalog.find(options.name.as_deref())?;
    let scratch = format!("wirepaxos-verify-{}", std::process::id());
    let scratch = options.scratch.join(scratch);
    let checked = check(&catalog.path(&name), &manifest, &scratch, open)?;
    let (reachable, wrong) = catalog.reachable()?;
    if !wrong.is_empty() {
        return Err(Error::new(format!(
            "the archive has holes, and leads only so far as `wirepaxos backup list` shows: {}",
            wrong.join("; ")
        )));
    }
    let range = reachable.iter().find(|of| of.name == name);
    let range = range.and_then(|of| of.range);
    if options.json {
        let digests = checked.iter().map(|checked| {
            let digests: Vec<String> = checked.digests.iter().map(|d| hex(d)).collect();
            json!({ "group": checked.group, "digests": digests })
        });
        let digests: Vec<Value> = digests.collect();
        println!("{}", json!({ "name": name, "groups": digests }));
        return Ok(());
    }
    println!("{name} is whole, and its states can be opened");
    if let Some(range) = range {
        println!(
            "The archive leads from it to any moment from {} UTC",
            range_text(range)
        );
    }
    positions(&manifest).for_each(|line| println!("{line}"));
    for Checked { group, digests } in &checked {
        for (pid, digest) in digests.iter().enumerate() {
            println!("group {group}, partition {pid}: digest {}", hex(digest));
        }
    }
    Ok(())
}

fn prune(options: &Prune) -> Result<(), Error> {
    let gone = Catalog::open(&options.directory)?.prune(options.keep as usize)?;
    match options.json {
        true => println!("{}", json!({ "removed": gone })),
        false => gone.iter().for_each(|name| println!("removed {name}")),
    }
    Ok(())
}

/// Returns a function that opens the application with this name.
fn open(name: &str) -> Result<Box<OpenApplication>, node::Error> {
    let name = name.to_owned();
    if !apps::NAMES.contains(&name.as_str()) {
        return Err(node::Error::new(format!(
            "the backup is of an application {name:?}, which this program doesn't have"
        )));
    }
    Ok(Box::new(move |_, directory: &Path| {
        apps::open(&name, directory)
    }))
}

fn positions(manifest: &Manifest) -> impl Iterator<Item = String> {
    manifest.groups.iter().map(|group| {
        let positions: Vec<_> = group.positions.iter().map(u64::to_string).collect();
        let (id, replica) = (group.id, &group.replica);
        format!(
            "group {id}: the state of {replica} at instance {}",
            positions.join(", ")
        )
    })
}

fn to_json(name: &str, manifest: &Manifest) -> Value {
    let groups = manifest.groups.iter().map(|group| {
        json!({
            "group": group.id,
            "application": group.application,
            "replica": group.replica,
            "positions": group.positions,
        })
    });
    json!({
        "name": name,
        "cluster": format!("{:08x}", manifest.cluster),
        "begun": utc::shown(manifest.begun_s * 1_000),
        "bytes": manifest.bytes(),
        "groups": groups.collect::<Vec<_>>(),
    })
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
