// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos-lab lab`: makes a whole network on this machine, with faults on its links.

use std::path::PathBuf;
use std::time::Duration;

use ::lab::faults::{Direction, Rates};
use ::lab::topology::{REDIS_PASSWORD, REDIS_PORT, TRUNK};
use ::lab::{Lab, Shape, Topology, UpOptions};
use clap::{Args, Subcommand};
use node::ClusterFile;
use node::cluster_file::{Auth, Plane, Protocol};
use serde_json::json;

use command_line::arguments::{auth, plane, protocol, rate};
use local_cluster::{Error, programs, signed};

/// The subcommands of `wirepaxos-lab lab`.
#[derive(Subcommand)]
pub enum Command {
    /// Make a network: namespaces, links, addresses, and a cluster file for it
    Up(Up),
    /// Show hosts, links, processes and faults
    Status(Show),
    /// Start nodes in their namespaces: those named, or all that don't run
    Start(Start),
    /// Run a command in a host's namespace
    Exec(Exec),
    /// Set or clear faults on links
    Faults(Faults),
    /// Remove the network and everything in it, also what an interrupted `up` left
    Down(Show),
    /// Run the process that frames pass to be duplicated and held back; `faults` starts it
    #[command(hide = true)]
    Detour(Which),
}

/// Names the lab.
#[derive(Args)]
pub struct Which {
    /// Use the lab of this name: lower-case letters and digits
    #[arg(long = "name", default_value = "lab", value_name = "LAB")]
    lab: String,
}

impl Which {
    fn lab(&self) -> Result<Lab, Error> {
        Ok(Lab::named(&self.lab)?)
    }
}

/// Options of `lab status` and `lab down`.
#[derive(Args)]
pub struct Show {
    #[command(flatten)]
    which: Which,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Options of `lab up`.
#[derive(Args)]
pub struct Up {
    #[command(flatten)]
    which: Which,
    /// Connect the hosts in this way. one-switch: all to one switch. two-switches: the leader and
    /// an acceptor to one, the other acceptors to another
    #[arg(long, default_value = "one-switch", value_parser = topology)]
    topology: Topology,
    /// Agree by this protocol: paxos, with leaders and acceptors, or nopaxos, with sequencers in
    /// their place
    #[arg(long, default_value = "paxos", value_parser = protocol)]
    protocol: Protocol,
    /// Run this many leaders or sequencers, of which the first one leads
    #[arg(long, default_value_t = 2)]
    leaders: u8,
    /// Run this many acceptors, an odd number
    #[arg(long, default_value_t = 3)]
    acceptors: u8,
    /// Run this many learners, which tell replicas what is decided; without any, replicas get the
    /// votes
    #[arg(long, default_value_t = 0)]
    learners: u8,
    /// Run this many replicas, an odd number
    #[arg(long, default_value_t = 3)]
    replicas: u8,
    /// Make this many hosts for clients; by default one for each switch
    #[arg(long)]
    clients: Option<u8>,
    /// Replicate this application: rocksdb, leveldb or echo
    #[arg(long, default_value = "rocksdb")]
    app: String,
    /// Divide the state into this many partitions
    #[arg(long, default_value_t = 1)]
    partitions: u16,
    /// Give the nodes IPv6 addresses
    #[arg(long)]
    ipv6: bool,
    /// Handle packets of leaders, sequencers, acceptors and replicas on this plane: udp, xdp, auto,
    /// or p4, in software switches (BMv2), which must be installed. Replicas of NOPaxos, and with
    /// p4, are behind sockets
    #[arg(long, default_value = "udp", value_parser = plane)]
    plane: Plane,
    /// Put one node on another plane; may be repeated
    #[arg(long, value_name = "NODE=PLANE", value_parser = plane_of)]
    plane_of: Vec<(String, Plane)>,
    /// Put leaders, acceptors, learners and sequencers into the switches, as in the papers, and not
    /// on hosts of their own
    #[arg(long)]
    in_switch: bool,
    /// Sign by the keys of this lab. siphash: packets and control messages. halfsiphash: the same,
    /// by the hash that P4 switches compute. control: control messages alone. off: nothing. By
    /// default siphash, and control where a role is in a P4 switch
    #[arg(long, value_parser = auth)]
    auth: Option<Auth>,
    /// Keep the nodes' data in a new directory in this one instead of in memory
    #[arg(long)]
    data: Option<PathBuf>,
    /// Lead every link through a wire from the start, so that faults can be set without replacing
    /// the switches' ports
    #[arg(long)]
    wires: bool,
    /// Record what all nodes receive and send in this directory, which must be empty; `check-trace`
    /// reads it
    #[arg(long, value_name = "DIRECTORY")]
    trace: Option<PathBuf>,
    /// Start all nodes, too
    #[arg(long)]
    start: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn plane_of(text: &str) -> Result<(String, Plane), String> {
    let (node, name) = text.split_once('=').ok_or("take NODE=PLANE")?;
    Ok((node.to_string(), plane(name)?))
}

fn topology(name: &str) -> Result<Topology, String> {
    let names = Topology::ALL.map(|(name, _)| name).join(" or ");
    Topology::named(name).ok_or(format!("take {names}"))
}

/// Options of `lab start`.
#[derive(Args)]
pub struct Start {
    #[command(flatten)]
    which: Which,
    /// Start these nodes; by default all that don't run
    nodes: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Options of `lab exec`.
#[derive(Args)]
pub struct Exec {
    #[command(flatten)]
    which: Which,
    /// Run the command in this host or switch
    host: String,
    /// Run this command with its arguments, after --
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Options of `lab faults`.
#[derive(Args)]
pub struct Faults {
    #[command(flatten)]
    which: Which,
    /// Change these links, named by their hosts; `trunk` is the one between two switches, `all`
    /// means each
    #[arg(required = true)]
    links: Vec<String>,
    /// Lose this share of datagrams in each direction, such as 1% or 0.01
    #[arg(long, default_value = "0", value_parser = rate)]
    loss: f64,
    /// Deliver this share of datagrams twice
    #[arg(long, default_value = "0", value_parser = rate)]
    duplicate: f64,
    /// Hold back this share of datagrams while others overtake them
    #[arg(long, default_value = "0", value_parser = rate)]
    reorder: f64,
    /// Flip a bit in this share of datagrams
    #[arg(long, default_value = "0", value_parser = rate)]
    corrupt: f64,
    /// Hold datagrams back for at most this long, such as 1ms, 500us or 2s
    #[arg(long, default_value = "1ms", value_parser = duration)]
    hold: Duration,
    /// Delay all datagrams by this long
    #[arg(long, default_value = "0us", value_parser = duration)]
    delay: Duration,
    /// Choose the faults by this number; the same packets in the same order meet the same ones
    #[arg(long, default_value_t = 1)]
    seed: u32,
    /// Remove all faults
    #[arg(long, conflicts_with_all = ["loss", "duplicate", "reorder", "corrupt", "delay"])]
    clear: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    let units = [("us", 1), ("ms", 1_000), ("s", 1_000_000)];
    let parsed = units.iter().find_map(|(unit, us)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(*us)
    });
    match parsed {
        Some(us) if us <= 10_000_000 => Ok(Duration::from_micros(us)),
        _ => Err("take up to ten seconds, such as 500us, 2ms or 1s".to_string()),
    }
}

/// Runs the command.
pub fn run(command: &Command) -> Result<(), Error> {
    match command {
        Command::Up(options) => up(options),
        Command::Status(options) => status(options),
        Command::Start(options) => start(options),
        Command::Exec(options) => {
            let lab = options.which.lab()?;
            Err(lab.exec(&options.host, &options.command).into())
        }
        Command::Faults(options) => faults(options),
        Command::Down(options) => down(options),
        Command::Detour(which) => Ok(which.lab()?.run_detour()?),
    }
}

fn up(options: &Up) -> Result<(), Error> {
    let lab = options.which.lab()?;
    let planes = options.plane_of.iter();
    let mut shape = Shape {
        protocol: options.protocol.name().to_string(),
        leaders: options.leaders,
        acceptors: options.acceptors,
        learners: options.learners,
        replicas: options.replicas,
        application: options.app.clone(),
        partitions: options.partitions,
        ipv6: options.ipv6,
        plane: options.plane.name().to_string(),
        planes: planes
            .map(|(node, plane)| (node.clone(), plane.name().to_string()))
            .collect(),
        in_switch: options.in_switch,
        auth: options.auth.map(|auth| auth.name().to_string()),
        ..Shape::new(options.topology)
    };
    shape.clients = options.clients.unwrap_or(shape.clients);
    lab.up(
        &shape,
        &UpOptions {
            data: options.data.clone(),
            wires: options.wires,
            trace: options.trace.clone(),
        },
    )?;
    let cluster = ClusterFile::load(&lab.cluster_file())?;
    let started = match options.start {
        true => lab.start(&programs::wirepaxos()?, &[])?,
        false => Vec::new(),
    };
    if options.json {
        println!("{}", json!(lab.status()?));
        return Ok(());
    }
    println!(
        "lab {} is up: {} hosts and switches, {} links, {} nodes of the cluster, {} of them \
         started",
        lab.name(),
        shape.hosts().len(),
        shape.links().len(),
        cluster.nodes.len(),
        started.len()
    );
    print_what_to_do(&lab, &cluster, !started.is_empty());
    Ok(())
}

/// Prints where the cluster file is, and the commands for the lab.
fn print_what_to_do(lab: &Lab, cluster: &ClusterFile, is_started: bool) {
    let name = lab.name();
    println!("cluster file: {}", lab.cluster_file().display());
    println!("signed:       {}", signed(cluster));
    if !is_started {
        println!("start the nodes:    wirepaxos-lab lab start --name {name}");
    }
    let file = lab.cluster_file();
    println!(
        "ask them:           wirepaxos-lab lab exec --name {name} controller -- wirepaxos status \
         -c {}",
        file.display()
    );
    if let Some(address) = cluster.nodes.iter().find_map(|n| n.redis) {
        println!(
            "be a Redis client:  wirepaxos-lab lab exec --name {name} client-1 -- redis-cli -h {} \
             -p {REDIS_PORT} -a {REDIS_PASSWORD}",
            address.ip()
        );
    }
    println!("remove it:          wirepaxos-lab lab down --name {name}");
}

fn start(options: &Start) -> Result<(), Error> {
    let lab = options.which.lab()?;
    let started = lab.start(&programs::wirepaxos()?, &options.nodes)?;
    if options.json {
        let nodes: Vec<_> = started
            .iter()
            .map(|(name, pid)| json!({ "name": name, "pid": pid }))
            .collect();
        println!("{}", json!({ "started": nodes }));
        return Ok(());
    }
    for (name, pid) in &started {
        println!("{name}: process {pid}");
    }
    println!(
        "{} started; logs are in {}",
        started.len(),
        lab.directory().display()
    );
    Ok(())
}

fn faults(options: &Faults) -> Result<(), Error> {
    let lab = options.which.lab()?;
    let microseconds = |d: Duration| d.as_micros() as u32;
    let rates = match options.clear {
        true => Rates::default(),
        false => Rates {
            loss: options.loss,
            duplicate: options.duplicate,
            reorder: options.reorder,
            corrupt: options.corrupt,
            hold_us: microseconds(options.hold),
            delay_us: microseconds(options.delay),
            seed: options.seed,
        },
    };
    lab.set_faults(&programs::own()?, &options.links, &rates)?;
    let faults = lab.faults()?;
    if options.json {
        println!("{}", json!({ "faults": faults }));
    } else {
        print_faults(&faults);
    }
    Ok(())
}

fn down(options: &Show) -> Result<(), Error> {
    let lab = options.which.lab()?;
    let removed = lab.down()?;
    if options.json {
        println!("{}", json!(removed));
    } else if removed == Default::default() {
        println!("there is nothing of lab {} to remove", lab.name());
    } else {
        println!(
            "lab {} is gone: {} namespaces with their links, {} processes{}",
            lab.name(),
            removed.namespaces,
            removed.processes,
            if removed.files { ", its files" } else { "" }
        );
    }
    Ok(())
}

fn status(options: &Show) -> Result<(), Error> {
    let status = options.which.lab()?.status()?;
    if options.json {
        println!("{}", json!(status));
        return Ok(());
    }
    println!(
        "lab {}: {}, files in {}",
        status.name,
        status.topology,
        status.directory.display()
    );
    println!(
        "{:<12} {:<13} {:<10} {:<18} node",
        "host", "IPv4", "IPv6", "hardware"
    );
    for host in &status.hosts {
        let node = match host.node_pid {
            Some(pid) => format!("process {pid}"),
            None => "-".to_string(),
        };
        println!(
            "{:<12} {:<13} {:<10} {:<18} {node}",
            host.name, host.ipv4, host.ipv6, host.mac
        );
    }
    println!("\n{:<12} ends", "link");
    for link in &status.links {
        let ends: Vec<String> = link
            .ends
            .iter()
            .map(|end| {
                let state = if end.up { "up" } else { "DOWN" };
                let xdp = if end.xdp { ", XDP" } else { "" };
                format!("{}:{} ({state}{xdp})", end.host, end.interface)
            })
            .collect();
        let through = if link.wired { " <-wire-> " } else { " <-> " };
        let kind = if link.name == TRUNK {
            "between switches: "
        } else {
            ""
        };
        println!("{:<12} {kind}{}", link.name, ends.join(through));
    }
    let others: Vec<_> = status
        .processes
        .iter()
        .filter(|p| p.node().is_none())
        .collect();
    if !others.is_empty() {
        println!("\nother processes");
    }
    for process in others {
        println!(
            "{:<12} {:<8} {}",
            process.host,
            process.pid,
            process.command.join(" ")
        );
    }
    if !status.faults.is_empty() {
        println!();
        print_faults(&status.faults);
    }
    Ok(())
}

fn print_faults(faults: &[Direction]) {
    println!(
        "{:<12} {:<12} {:<34} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "link",
        "from",
        "faults",
        "datagrams",
        "lost",
        "twice",
        "held",
        "corrupt",
        "late",
        "no room"
    );
    for f in faults {
        println!(
            "{:<12} {:<12} {:<34} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
            f.link,
            f.from,
            in_words(&f.rates),
            f.datagrams,
            f.lost,
            f.duplicated,
            f.reordered,
            f.corrupted,
            f.delayed,
            f.overflowed
        );
    }
}

fn in_words(rates: &Rates) -> String {
    let mut words: Vec<String> = [
        ("loss", rates.loss),
        ("dup", rates.duplicate),
        ("reorder", rates.reorder),
        ("corrupt", rates.corrupt),
    ]
    .iter()
    .filter(|(_, rate)| *rate > 0.0)
    // Rates are shown to a millionth, since they are kept as 32 bits.
    .map(|(name, rate)| format!("{name} {}%", (rate * 1e6).round() / 1e4))
    .collect();
    if rates.delay_us > 0 {
        words.push(format!("delay {}us", rates.delay_us));
    }
    match words.is_empty() {
        true => "none".to_string(),
        false => words.join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_times() {
        assert_eq!(rate("1%"), Ok(0.01));
        assert_eq!(rate("0.1%"), Ok(0.001));
        assert_eq!(rate("0.25"), Ok(0.25));
        assert_eq!(rate("100%"), Ok(1.0));
        assert_eq!(duration("500us"), Ok(Duration::from_micros(500)));
        assert_eq!(duration("2s"), Ok(Duration::from_secs(2)));
        for bad in ["101%", "-1%", "1.5", "x", "NaN"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
        for bad in ["1", "1h", "-1ms", "11s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn faults_in_words() {
        let rates = Rates {
            loss: 0.01,
            corrupt: 0.001,
            ..Rates::default()
        };
        assert_eq!(in_words(&rates), "loss 1% corrupt 0.1%");
        assert_eq!(in_words(&Rates::default()), "none");
    }
}
