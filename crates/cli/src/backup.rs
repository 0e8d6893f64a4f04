// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos backup`: backs up a whole cluster while it serves, and makes a new cluster from a
//! backup.

mod restore;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use local_cluster::Error;
use node::backup::{
    Catalog, Checked, Entry, Instances, Manifest, Missing, Overview, Reachable, Step, check,
    create, range_text,
};
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
    let overview = catalog.overview()?;
    if options.json {
        let of_entry = |entry: &Entry| match &entry.manifest {
            Ok(manifest) => {
                let mut of = to_json(&entry.name, manifest);
                show_reach(&mut of, reach(&overview, &entry.name));
                of
            }
            Err(why) => json!({ "name": entry.name, "error": why }),
        };
        let backups: Vec<Value> = entries.iter().map(of_entry).collect();
        let mut said = json!({ "backups": backups });
        show_wrong(&mut said, &overview);
        println!("{said}");
        return Ok(());
    }
    for Entry { name, manifest } in entries {
        let manifest = match manifest {
            Ok(manifest) => manifest,
            Err(why) => {
                println!("{name}  CAN'T BE USED: {why}");
                continue;
            }
        };
        let reach = reach(&overview, &name);
        let range = reach.and_then(|reach| reach.range);
        let moments = range.map_or(String::new(), |range| {
            format!(", any moment from {} UTC", range_text(range))
        });
        let mib = manifest.bytes().div_ceil(1 << 20);
        println!(
            "{name}  cluster {:08x}, {mib} MiB{moments}",
            manifest.cluster
        );
        for Instances { place, first, last } in reach.map_or(&[][..], |reach| &reach.instances) {
            let (group, pid) = place;
            println!("  group {group}, partition {pid}: instances {first} to {last}");
        }
    }
    overview.wrong.iter().for_each(|why| println!("{why}"));
    let missing = overview.missing.iter().map(Missing::text);
    missing.for_each(|why| println!("{why}"));
    Ok(())
}

fn reach<'a>(overview: &'a Overview, name: &str) -> Option<&'a Reachable> {
    overview.backups.iter().find(|of| of.name == name)
}

/// Adds to a backup's JSON object to which moments it can be brought.
fn show_reach(of: &mut Value, reach: Option<&Reachable>) {
    let range = reach.and_then(|reach| reach.range);
    let from = range.map(|range| utc::shown(range.from_ms));
    let until = range.map(|range| utc::shown(range.until_ms));
    let shown = |of: &Instances| {
        let mut shown = instances_to_json(of);
        (shown["from"], shown["until"]) = (from.clone().into(), until.clone().into());
        shown
    };
    let instances = reach.map_or(&[][..], |reach| &reach.instances);
    of["instances"] = instances.iter().map(shown).collect();
    (of["from"], of["until"]) = (from.into(), until.into());
}

/// Adds what the archive lacks, and which of its segments can't be read.
fn show_wrong(said: &mut Value, overview: &Overview) {
    let missing = overview.missing.iter().map(|missing| {
        json!({
            "backup": missing.backup,
            "instances": missing.instances.iter().map(instances_to_json).collect::<Value>(),
            "after": utc::shown(missing.after_ms),
            "before": missing.before_ms.map(utc::shown),
        })
    });
    said["missing"] = missing.collect();
    said["wrong"] = overview.wrong.clone().into();
}

fn instances_to_json(instances: &Instances) -> Value {
    let Instances { place, first, last } = instances;
    json!({ "group": place.0, "partition": place.1, "first": first, "last": last })
}

fn verify(options: &Verify) -> Result<(), Error> {
    let catalog = Catalog::open(&options.directory)?;
    let (name, manifest) = catalog.find(options.name.as_deref())?;
    let scratch = format!("wirepaxos-verify-{}", std::process::id());
    let scratch = options.scratch.join(scratch);
    let checked = check(&catalog.path(&name), &manifest, &scratch, open)?;
    let overview = catalog.overview()?;
    match options.json {
        true => {
            let digests = checked.iter().map(|checked| {
                let digests: Vec<String> = checked.digests.iter().map(|d| hex(d)).collect();
                json!({ "group": checked.group, "digests": digests })
            });
            let mut said = json!({ "name": name, "groups": digests.collect::<Value>() });
            show_wrong(&mut said, &overview);
            println!("{said}");
        }
        false => print_checked(&name, &manifest, &checked, &overview),
    }
    let missing = overview.missing.iter().map(Missing::text);
    let why: Vec<String> = overview.wrong.iter().cloned().chain(missing).collect();
    match why.is_empty() {
        true => Ok(()),
        false => Err(Error::new(format!(
            "the archive has holes, and leads only so far as `wirepaxos backup list` shows: {}",
            why.join("; ")
        ))),
    }
}

fn print_checked(name: &str, manifest: &Manifest, checked: &[Checked], overview: &Overview) {
    println!("{name} is whole, and its states can be opened");
    if let Some(range) = reach(overview, name).and_then(|of| of.range) {
        println!(
            "The archive leads from it to any moment from {} UTC",
            range_text(range)
        );
    }
    positions(manifest).for_each(|line| println!("{line}"));
    for Checked { group, digests } in checked {
        for (pid, digest) in digests.iter().enumerate() {
            println!("group {group}, partition {pid}: digest {}", hex(digest));
        }
    }
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
