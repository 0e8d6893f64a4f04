// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos init`: writes the files of a new cluster of several machines.

use std::fs;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use clap::Args;
use local_cluster::Error;
use node::cluster_file::{ApplicationKind, Draft, Role};
use serde_json::json;

use crate::new_cluster::{self, CLUSTER_FILE, PASSWORD_FILE};

const UNIT: &str = include_str!("../../../examples/systemd/wirepaxos@.service");
const UNIT_FILE: &str = "wirepaxos@.service";
/// The directory in which the unit looks for the cluster file.
const INSTALLED: &str = "/etc/wirepaxos";
/// The one directory to which the unit lets nodes write, and the user that runs them.
const DATA: &str = "/var/lib/wirepaxos";
const USER: &str = "wirepaxos";

/// Options of `wirepaxos init`.
#[derive(Args)]
#[command(after_help = "Example: wirepaxos init --machines 10.0.0.1,10.0.0.2,10.0.0.3 --app redis")]
pub struct Options {
    /// Use these three, five or seven machines: addresses, or names that are looked up now
    #[arg(long, required = true, value_delimiter = ',')]
    machines: Vec<String>,
    /// Replicate this application: redis, rocksdb or leveldb
    #[arg(long, default_value = "redis", value_parser = new_cluster::application)]
    app: ApplicationKind,
    /// Keep the data on this many of the machines, the first ones; the others only vote [default:
    /// all]
    #[arg(long)]
    replicas: Option<usize>,
    /// Serve Redis clients at this port of each machine that keeps the data
    #[arg(long, default_value_t = 6379)]
    port: u16,
    /// Keep each machine's data in this directory
    #[arg(long, default_value = DATA)]
    data: String,
    /// Make this directory for the files
    #[arg(long, default_value = "wirepaxos-cluster")]
    out: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Writes the cluster file, the nodes' key, the clients' password and the unit, and says what to do
/// with them.
pub fn run(options: &Options) -> Result<(), Error> {
    let machines = addresses(&options.machines)?;
    let replicas = replicas(options, machines.len())?;
    let draft = plan(options, &machines, replicas)?;
    new_cluster::write(&options.out, &draft)?;
    if let Err(e) = write_unit(&options.out, &options.data) {
        let _ = fs::remove_dir_all(&options.out);
        return Err(e);
    }
    match options.json {
        true => say_json(options, &draft),
        false => say(options, &machines, &draft),
    }
    Ok(())
}

/// Returns the machines' addresses, in their order.
fn addresses(machines: &[String]) -> Result<Vec<IpAddr>, Error> {
    let found: Vec<IpAddr> = machines
        .iter()
        .map(|m| address(m))
        .collect::<Result<_, _>>()?;
    if ![3, 5, 7].contains(&found.len()) {
        return Err(Error::new(format!(
            "--machines names {} of them: name 3, 5 or 7, of which 1, 2 or 3 may fail; on one \
             machine `wirepaxos up` runs a whole cluster",
            found.len()
        )));
    }
    if let Some(at) = (1..found.len()).find(|&at| found[..at].contains(&found[at])) {
        return Err(Error::new(format!(
            "{} and another machine have the same address {}: name each machine once",
            machines[at], found[at]
        )));
    }
    let on_loopback = found.iter().filter(|ip| ip.is_loopback()).count();
    if on_loopback > 0 && on_loopback < found.len() {
        return Err(Error::new(
            "an address of --machines is this machine's loopback, by which others can't reach it: \
             give the address that the other machines know",
        ));
    }
    Ok(found)
}

fn address(machine: &str) -> Result<IpAddr, Error> {
    let wrong = |why: String| {
        Error::new(format!(
            "--machines: {machine:?} {why}: give an address, or a name that this machine can look \
             up"
        ))
    };
    let mut found = (machine, 0)
        .to_socket_addrs()
        .map_err(|e| wrong(format!("isn't known ({e})")))?;
    let found = found
        .next()
        .ok_or_else(|| wrong("has no address".into()))?
        .ip();
    match found.is_unspecified() || found.is_multicast() {
        true => Err(wrong("is no machine's address".into())),
        false => Ok(found),
    }
}

/// Returns how many machines keep the data.
fn replicas(options: &Options, machines: usize) -> Result<usize, Error> {
    let replicas = options.replicas.unwrap_or(machines);
    match (2..=machines).contains(&replicas) {
        true => Ok(replicas),
        false => Err(Error::new(format!(
            "--replicas {replicas}: {machines} machines can keep from 2 to {machines} copies of \
             the data"
        ))),
    }
}

/// How many controllers there are: one of them may fail.
const CONTROLLERS: usize = 3;

/// Plans an acceptor on each machine, and a replica on the first ones. The first controller, which
/// acts as long as it is there, is put on a machine without a leader, so that no machine that fails
/// takes both with it.
fn plan(options: &Options, machines: &[IpAddr], replicas: usize) -> Result<Draft, Error> {
    let mut draft = new_cluster::draft(&options.data, options.app)?;
    for &machine in machines.iter().rev().take(CONTROLLERS) {
        draft.add_node(Role::Controller, machine);
    }
    for &machine in &machines[..2] {
        draft.add_node(Role::Leader, machine);
    }
    for &machine in machines {
        new_cluster::add_acceptor(&mut draft, machine);
    }
    for &machine in &machines[..replicas] {
        new_cluster::add_replica(&mut draft, machine, SocketAddr::new(machine, options.port));
    }
    new_cluster::demand_password(&mut draft);
    Ok(draft)
}

fn write_unit(directory: &Path, data: &str) -> Result<(), Error> {
    let writable = "ReadWritePaths=-";
    let unit = UNIT.replace(&format!("{writable}{DATA}"), &format!("{writable}{data}"));
    fs::write(directory.join(UNIT_FILE), unit)?;
    Ok(())
}

fn nodes_of(draft: &Draft, machine: IpAddr) -> Vec<&str> {
    let here = draft.nodes.iter().filter(|n| n.address.ip() == machine);
    here.map(|n| n.name.as_str()).collect()
}

fn say_json(options: &Options, draft: &Draft) {
    let nodes = draft
        .nodes
        .iter()
        .map(|n| json!({ "name": n.name, "machine": n.address.ip() }));
    let redis = draft.nodes.iter().filter_map(|n| n.redis);
    let said = json!({
        "directory": options.out,
        "files": [CLUSTER_FILE, "nodes.key", PASSWORD_FILE, UNIT_FILE],
        "nodes": nodes.collect::<Vec<_>>(),
        "redis": redis.collect::<Vec<_>>(),
    });
    println!("{said}");
}

fn say(options: &Options, machines: &[IpAddr], draft: &Draft) {
    let out = options.out.display();
    println!("{out}/ has all that the machines need. As root:\n");
    for machine in machines {
        let data = &options.data;
        println!("  ssh {machine} install -d -m 700 -o {USER} {INSTALLED} {data}");
        println!(
            "  scp -p {out}/{CLUSTER_FILE} {out}/nodes.key {out}/{PASSWORD_FILE} \
             {machine}:{INSTALLED}/"
        );
        println!("  ssh {machine} chown -R {USER}: {INSTALLED}");
        println!("  scp {out}/{UNIT_FILE} {machine}:/etc/systemd/system/");
        let units: Vec<_> = nodes_of(draft, *machine)
            .iter()
            .map(|n| format!("wirepaxos@{n}"))
            .collect();
        println!(
            "  ssh {machine} systemctl enable --now {}\n",
            units.join(" ")
        );
    }
    println!(
        "Each machine needs the package wirepaxos before (or this program as /usr/bin/wirepaxos, \
         and `useradd --system {USER}`){}.",
        needs(options.app)
    );
    println!("Then: wirepaxos status -c {out}/{CLUSTER_FILE}");
    let port = options.port;
    println!(
        "      REDISCLI_AUTH=$(cat {out}/{PASSWORD_FILE}) redis-cli -h {} -p {port} SET fruit \
         apple",
        machines[0]
    );
    println!(
        "Clients know all of {} as a Redis Cluster's nodes: they go on when one of them dies.",
        list(draft)
    );
    if options.replicas == Some(2) {
        println!(
            "Two machines keep the data: while one is away or behind, the other's disk is the \
             only copy."
        );
    }
}

fn needs(app: ApplicationKind) -> &'static str {
    match app {
        ApplicationKind::Redis => {
            ", and one with a replica the package redis-server (its service disabled)"
        }
        _ => "",
    }
}

fn list(draft: &Draft) -> String {
    let redis = draft.nodes.iter().filter_map(|n| n.redis);
    redis
        .map(|address| address.to_string())
        .collect::<Vec<_>>()
        .join(", ")
}
