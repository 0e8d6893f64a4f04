// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos switch`: makes this machine, with several interfaces, a switch that calls roles.

use std::net::IpAddr;
use std::thread::sleep;
use std::time::Duration;

use clap::{Args, Subcommand};
use loader::machine::{self, Machine, Plan};
use local_cluster::Error;
use node::{ClusterFile, Stop};
use serde_json::{Value, json};

use command_line::arguments::Cluster;

/// How often the hosts' ports are looked up.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long `up` waits for hosts whose ports aren't known.
const PATIENCE: Duration = Duration::from_secs(3);

/// The subcommands of `wirepaxos switch`.
#[derive(Subcommand)]
pub enum Command {
    /// Make this machine a switch, or replace the program of the switch that it is, in place
    Up(Up),
    /// Show ports, roles and hosts
    Status(Show),
    /// Make this a plain machine again, also after an interrupted `up`
    Down(Down),
}

/// Names the switch.
#[derive(Args)]
pub struct Which {
    #[command(flatten)]
    cluster: Cluster,
    /// Use this name, the key `switch` of its nodes and the name of its bridge: 1 to 8 letters,
    /// digits, `-` and `_`
    #[arg(long, value_name = "SWITCH")]
    name: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Options of `switch up`.
#[derive(Args)]
pub struct Up {
    #[command(flatten)]
    which: Which,
    /// Make this interface, which has no addresses, a port; repeat it for each
    #[arg(long = "port", required = true, value_name = "INTERFACE")]
    ports: Vec<String>,
    /// Give the switch this address, with its network; may be repeated. Addresses of its roles come
    /// from the cluster file
    #[arg(long = "address", required = true, value_name = "ADDRESS/BITS", value_parser = network)]
    addresses: Vec<(IpAddr, u8)>,
    /// Pass frames in the kernel's fast path to this address at a port, too, which the cluster file
    /// doesn't name, such as a client's; may be repeated
    #[arg(long = "host", value_name = "ADDRESS")]
    hosts: Vec<IpAddr>,
    /// Stay, and look each second where hosts are; the switch goes on when this ends
    #[arg(long)]
    follow: bool,
}

/// Options of `switch status`.
#[derive(Args)]
pub struct Show {
    #[command(flatten)]
    which: Which,
}

/// Options of `switch down`.
#[derive(Args)]
pub struct Down {
    #[command(flatten)]
    which: Which,
    /// Remove the switch also while it calls roles, which then hear nothing more
    #[arg(long)]
    force: bool,
}

fn network(text: &str) -> Result<(IpAddr, u8), String> {
    let wrong = || "take an address and the bits of its network, such as 10.0.0.100/24".to_string();
    let (address, bits) = text.split_once('/').ok_or_else(wrong)?;
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    match bits.parse() {
        Ok(bits) if (1..=most).contains(&bits) => Ok((address, bits)),
        _ => Err(wrong()),
    }
}

/// Runs the command.
pub fn run(command: &Command) -> Result<(), Error> {
    match command {
        Command::Up(options) => up(options),
        Command::Status(options) => {
            let cluster = options.which.cluster.load()?;
            show(&options.which, &cluster)
        }
        Command::Down(options) => down(options),
    }
}

fn up(options: &Up) -> Result<(), Error> {
    let which = &options.which;
    let cluster = which.cluster.load()?;
    let plan = plan(options, &cluster);
    machine::up(&cluster.bpffs, &plan).map_err(Error::new)?;
    let mut unknown = find_hosts(&cluster, &plan)?;
    show(which, &cluster)?;
    if options.follow {
        return follow(&cluster, &plan, unknown);
    }
    unknown.sort_unstable();
    for host in unknown {
        eprintln!(
            "wirepaxos: {host} doesn't say where it is: roles send nothing there until `switch up` \
             runs again, or stays (`--follow`)"
        );
    }
    Ok(())
}

/// Plans the switch. Each node of the cluster file is at the switch, in it, or is the switch
/// itself.
fn plan(options: &Up, cluster: &ClusterFile) -> Plan {
    let name = &options.which.name;
    let is_own = |address: &IpAddr| options.addresses.iter().any(|(own, _)| own == address);
    let addresses = |inside: bool| {
        let nodes = cluster.nodes.iter();
        let there = nodes.filter(move |n| (n.switch.as_ref() == Some(name)) == inside);
        let mut addresses: Vec<_> = there.map(|node| node.address.ip()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    };
    let mut hosts = addresses(false);
    hosts.extend(&options.hosts);
    hosts.retain(|host| !is_own(host));
    hosts.sort_unstable();
    hosts.dedup();
    Plan {
        name: name.clone(),
        cluster: cluster.cluster,
        ports: options.ports.clone(),
        addresses: options.addresses.clone(),
        roles: addresses(true),
        hosts,
    }
}

/// Looks for the hosts' ports, and returns the hosts that aren't found within [`PATIENCE`].
fn find_hosts(cluster: &ClusterFile, plan: &Plan) -> Result<Vec<IpAddr>, Error> {
    const TURN: Duration = Duration::from_millis(100);
    let mut turns = PATIENCE.as_millis() / TURN.as_millis();
    loop {
        let unknown =
            machine::find_hosts(&cluster.bpffs, &plan.name, &plan.hosts).map_err(Error::new)?;
        turns -= 1;
        if unknown.is_empty() || turns == 0 {
            return Ok(unknown);
        }
        sleep(TURN);
    }
}

fn follow(cluster: &ClusterFile, plan: &Plan, mut unknown: Vec<IpAddr>) -> Result<(), Error> {
    let stop = Stop::new()?;
    stop.on_signals()?;
    report(&[], &unknown);
    while !stop.is_requested() {
        sleep(LOOK_INTERVAL);
        match machine::find_hosts(&cluster.bpffs, &plan.name, &plan.hosts) {
            Ok(now) => {
                report(&unknown, &now);
                unknown = now;
            }
            Err(why) => eprintln!("switch: {why}"),
        }
    }
    eprintln!(
        "switch: {} goes on; `wirepaxos switch down` removes it",
        plan.name
    );
    Ok(())
}

fn report(before: &[IpAddr], now: &[IpAddr]) {
    for host in now.iter().filter(|host| !before.contains(host)) {
        eprintln!("switch: {host} doesn't say where it is: roles send nothing there");
    }
    for host in before.iter().filter(|host| !now.contains(host)) {
        eprintln!("switch: {host} is there");
    }
}

fn down(options: &Down) -> Result<(), Error> {
    let which = &options.which;
    let cluster = which.cluster.load()?;
    let removed = machine::down(&cluster.bpffs, &which.name, options.force).map_err(Error::new)?;
    match (which.json, removed) {
        (true, _) => println!("{}", json!({ "removed": removed })),
        (_, true) => println!(
            "{} is gone; its ports are up, and have no addresses",
            which.name
        ),
        (_, false) => println!("there is nothing of switch {} to remove", which.name),
    }
    Ok(())
}

fn show(which: &Which, cluster: &ClusterFile) -> Result<(), Error> {
    let machine = machine::status(&cluster.bpffs, &which.name).map_err(Error::new)?;
    match which.json {
        true => println!("{}", in_json(&which.name, &machine, cluster)),
        false => print(&which.name, &machine, cluster),
    }
    Ok(())
}

fn names(cluster: &ClusterFile, address: IpAddr) -> Vec<&str> {
    let nodes = cluster.nodes.iter();
    let there = nodes.filter(|node| node.address.ip() == address);
    there.map(|node| node.name.as_str()).collect()
}

fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}

fn in_json(name: &str, machine: &Machine, cluster: &ClusterFile) -> Value {
    let ports = machine.ports.iter().map(|port| {
        json!({ "name": port.name, "driver": port.driver, "up": port.is_up,
                "forwards": port.forwards })
    });
    let roles = machine.roles.iter().map(|(address, program)| {
        json!({ "address": address, "nodes": names(cluster, *address), "program": program })
    });
    let hosts = machine.hosts.iter().map(|(address, port, to)| {
        json!({ "address": address, "nodes": names(cluster, *address), "port": port,
                "hardware": mac(*to) })
    });
    let addresses = machine.addresses.iter();
    let addresses = addresses.map(|(address, bits)| format!("{address}/{bits}"));
    json!({
        "name": name,
        "addresses": addresses.collect::<Vec<_>>(),
        "ports": ports.collect::<Vec<_>>(),
        "roles": roles.collect::<Vec<_>>(),
        "hosts": hosts.collect::<Vec<_>>(),
    })
}

fn print(name: &str, machine: &Machine, cluster: &ClusterFile) {
    println!("switch {name}");
    println!("{:<24} {:<16} {:<5} forwarder", "port", "driver", "link");
    for port in &machine.ports {
        println!(
            "{:<24} {:<16} {:<5} {}",
            port.name,
            port.driver.as_deref().unwrap_or("-"),
            if port.is_up { "up" } else { "DOWN" },
            if port.forwards { "native" } else { "NONE" }
        );
    }
    println!("\n{:<24} {:<24} calls", "role", "address");
    for (address, program) in &machine.roles {
        let names = names(cluster, *address).join(" ");
        let program = program
            .as_deref()
            .unwrap_or("nobody: its node isn't there, or behind a socket");
        println!("{names:<24} {address:<24} {program}");
    }
    println!("\n{:<24} {:<24} {:<16} hardware", "host", "address", "port");
    for (address, port, to) in &machine.hosts {
        let names = names(cluster, *address).join(" ");
        println!("{names:<24} {address:<24} {port:<16} {}", mac(*to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_their_networks() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(network("10.0.0.1/24"), Ok((ip("10.0.0.1"), 24)));
        assert_eq!(network("fd00::1/64"), Ok((ip("fd00::1"), 64)));
        for bad in [
            "10.0.0.1",
            "10.0.0.1/33",
            "10.0.0.1/0",
            "x/24",
            "fd00::1/129",
        ] {
            assert!(network(bad).is_err(), "{bad}");
        }
    }
}
