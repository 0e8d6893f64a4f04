// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos-lab bench roles`: measures how long a role takes for one message, on each plane.

use std::time::Duration;

use clap::{Args, ValueEnum};
use local_cluster::Error;
use measure::roles::{AtLinks, dpdk, p4, tag, udp, xdp};
use measure::stats::{median, quantile};
use measure::xdp::several::{Several, Shared};
use measure::xdp::{VALUE_LEN, live};
use serde_json::{Value, json};

use super::seconds::seconds;

/// Figures of P4xos (TNET 2020): latency inside the device (Table I), and messages a second (Table
/// II). The devices are the authors': DPDK on a Xeon's cores, NetFPGA SUME, Tofino.
const PAPERS: [(&str, [&str; 3], [&str; 3]); 4] = [
    ("forwarder", ["0.4 us", "0.37 us", "< 0.1 us"], ["", "", ""]),
    (
        "leader",
        ["2.3 us", "0.52 us", "< 0.1 us"],
        ["5.5 M", "10 M", "656 M"],
    ),
    (
        "acceptor",
        ["2.6 us", "0.55 us", "< 0.1 us"],
        ["950 K", "10 M", "656 M"],
    ),
    (
        "learner",
        ["2.8 us", "0.54 us", "< 0.1 us"],
        ["650 K", "10 M", "656 M"],
    ),
];

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Plane {
    #[value(alias = "rust")]
    Udp,
    Xdp,
    Dpdk,
    P4,
}

/// Options of `wirepaxos-lab bench roles`.
#[derive(Args)]
pub struct Options {
    /// Measure on this plane. udp (or rust): the roles as libraries, as socket nodes call them. The
    /// others measure those of udp, too. xdp: the programs in the kernel, alone and at links; needs
    /// root. dpdk: leader, acceptor and learner behind a ring in memory, without a wire; needs
    /// DPDK. p4: the programs in a software switch (BMv2); needs root, a P4 compiler and BMv2
    #[arg(long, default_value = "udp", value_enum, hide_possible_values = true)]
    plane: Plane,
    /// Measure each role for this many seconds, spread over the runs
    #[arg(long, default_value = "2.5", value_parser = seconds)]
    seconds: Duration,
    /// Make this many runs, and report their median
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// Measure what making and checking a packet's tag adds, too; in the kernel and in a switch,
    /// all roles with and without tags
    #[arg(long)]
    auth: bool,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// Measures leader, acceptor, learner, sequencer and receiver, and bare forwarding for comparison.
pub fn run(options: &Options) -> Result<(), Error> {
    let runs = options.runs as usize;
    let seconds = options.seconds.as_secs_f64() / options.runs as f64;
    let (mut in_kernel, mut at_ports, mut in_switch) = (Vec::new(), Vec::new(), Vec::new());
    match options.plane {
        Plane::Udp => {}
        Plane::Xdp => {
            in_kernel.push(xdp::measure(runs, seconds, false)?);
            if options.auth {
                in_kernel.push(xdp::measure(runs, seconds, true)?);
            }
        }
        Plane::Dpdk => at_ports = dpdk::measure(runs, seconds).map_err(Error::new)?,
        Plane::P4 => {
            in_switch.push(p4::measure(runs, seconds, false).map_err(Error::new)?);
            if options.auth {
                in_switch.push(p4::measure(runs, seconds, true).map_err(Error::new)?);
            }
        }
    }
    let libraries = udp::measure(runs, seconds);
    let tags = match options.auth {
        true => tag::measure(runs, seconds)?.to_vec(),
        false => Vec::new(),
    };
    if options.json {
        in_kernel.iter().for_each(print_json);
        at_ports.iter().for_each(print_at_port_json);
        for measured in &in_switch {
            let print = |role| print_in_switch_json(role, measured.signs);
            measured.roles.iter().for_each(print);
        }
        print_libraries_json(&libraries);
        tags.iter().for_each(print_tag_json);
        return Ok(());
    }
    for measured in in_kernel {
        if measured.signs {
            println!("\nThe same where packets are signed:");
        }
        print_alone(&measured.alone);
        print_live(&measured.live);
    }
    print_at_ports(&at_ports);
    for measured in &in_switch {
        if measured.signs {
            println!("\nThe same where packets are signed:");
        }
        print_in_switch(&measured.roles);
    }
    print_libraries(&libraries);
    for tag in &tags {
        println!(
            "{:<10} {:>7.1}  more for each packet",
            tag.role, tag.ns_per_msg
        );
    }
    print_papers();
    Ok(())
}

fn print_json(measured: &xdp::Measured) {
    for role in &measured.alone {
        let mut line = line(role, &measured.live);
        line["auth"] = measured.signs.into();
        println!("{line}");
    }
}

fn print_at_port_json(role: &dpdk::Measured) {
    let tenths = |ns: f64| (ns * 10.0).round() / 10.0;
    let of_burst = |at: &dpdk::AtBurst| {
        json!({
            "burst": at.burst,
            "ns_per_msg": tenths(at.ns_per_msg),
            "msgs_per_s": (1e9 / at.ns_per_msg).round(),
            "forwarding_ns_per_msg": tenths(at.forwarding_ns_per_msg),
            "forwarding_msgs_per_s": (1e9 / at.forwarding_ns_per_msg).round(),
        })
    };
    let papers = PAPERS.iter().find(|(name, ..)| *name == role.role);
    let line = json!({
        "plane": "dpdk",
        "link": NO_WIRE,
        "role": role.role,
        "frames_per_msg": (role.frames_per_msg * 100.0).round() / 100.0,
        "bursts": role.at.iter().map(of_burst).collect::<Value>(),
        "round_trip_ns": tenths(role.round_trip_ns),
        "value_bytes": udp::VALUE_LEN,
        "slots": udp::SLOTS,
        "papers": papers.map(|(_, latency, rate)| {
            json!({ "latency": latency, "msgs_per_s": rate })
        }),
    });
    println!("{line}");
}

/// The device at which the roles on DPDK are measured.
const NO_WIRE: &str = "shared memory, no wire";

fn print_at_ports(roles: &[dpdk::Measured]) {
    if roles.is_empty() {
        return;
    }
    println!("dpdk plane: memif, {NO_WIRE} (the role's end alone, one core, medians)");
    println!(
        "{:<10} {:>6} {:>9} {:>14} {:>11} {:>16}",
        "role", "burst", "ns/msg", "messages/s", "frames/msg", "bare forwarding"
    );
    for role in roles {
        for at in &role.at {
            let (own, bare) = (at.ns_per_msg, at.forwarding_ns_per_msg);
            println!(
                "{:<10} {:>6} {own:>9.1} {:>14.0} {:>11.2} {:>16.0}  1/{:.2} of it",
                role.role,
                at.burst,
                1e9 / own,
                role.frames_per_msg,
                1e9 / bare,
                own / bare
            );
        }
        println!(
            "{:<10} {:>6} {:>9.1} a round trip at one outstanding, both ends on one core",
            role.role, "", role.round_trip_ns
        );
    }
    println!();
}

fn print_in_switch_json(m: &AtLinks, signs: bool) {
    let mut line = at_links(m);
    line["auth"] = signs.into();
    line["plane"] = "p4".into();
    line["target"] = IN_SOFTWARE.into();
    line["role"] = m.role.into();
    line["value_bytes"] = udp::VALUE_LEN.into();
    println!("{line}");
}

/// The device in which the P4 programs are measured.
const IN_SOFTWARE: &str = "BMv2, a switch in software";

fn print_in_switch(roles: &[AtLinks]) {
    println!(
        "p4 plane: {IN_SOFTWARE}, at links (in turns with its bare forwarding of single frames, \
         medians)"
    );
    print_at_links(roles.iter());
}

fn print_libraries_json(roles: &[udp::Measured]) {
    let tenths = |ns: f64| (ns * 10.0).round() / 10.0;
    for role in roles {
        let line = json!({
            "plane": "udp",
            "role": role.role,
            "ns_per_msg": tenths(role.ns_per_msg),
            "msgs_per_s": (1e9 / role.ns_per_msg).round(),
            "forwarding_ns_per_msg": tenths(roles[0].ns_per_msg),
            "value_bytes": udp::VALUE_LEN,
            "slots": udp::SLOTS,
        });
        println!("{line}");
    }
}

fn print_tag_json(tag: &udp::Measured) {
    let line = json!({
        "plane": "udp",
        "tag": tag.role,
        "ns_per_packet": (tag.ns_per_msg * 10.0).round() / 10.0,
        "value_bytes": udp::VALUE_LEN,
    });
    println!("{line}");
}

fn print_libraries(roles: &[udp::Measured]) {
    println!("udp plane: the roles as libraries (one core, medians)");
    println!("{:<10} {:>9} {:>14}", "role", "ns/msg", "messages/s");
    for role in roles {
        let ns = role.ns_per_msg;
        println!("{:<10} {ns:>9.1} {:>14.0}", role.role, 1e9 / ns);
    }
}

fn print_alone(roles: &[xdp::Alone]) {
    println!("xdp plane, alone (BPF_PROG_TEST_RUN, one core, medians; what varies: all runs)");
    println!("{:<10} {:>9} {:>14}  runs", "role", "ns/msg", "messages/s");
    for xdp::Alone { median, runs } in roles {
        let runs: Vec<String> = runs.iter().map(|ns| format!("{ns:.0}")).collect();
        println!(
            "{:<10} {:>9.1} {:>14.0}  {}",
            median.role,
            median.ns_per_msg,
            median.msgs_per_s,
            runs.join(" ")
        );
        median.several.iter().for_each(print_several);
    }
    println!();
}

fn print_several(several: &Several) {
    for (what, shared) in [
        ("one partition", &several.one_partition),
        ("a partition each", &several.partition_each),
    ] {
        println!(
            "{:<10} {:>9.1} {:>14.0}  on {} CPUs at once, {what}",
            "", shared.ns_per_msg, shared.msgs_per_s, several.cpus
        );
    }
}

fn print_live(roles: &[live::Measured]) {
    println!(
        "xdp plane, at links (live frames over veth, one core, in turns with bare forwarding, \
         medians)"
    );
    print_at_links(roles.iter().map(|m| &m.at_links));
}

fn print_at_links<'a>(roles: impl Iterator<Item = &'a AtLinks>) {
    println!(
        "{:<10} {:>14} {:>16} {:>6} {:>11}  of bare forwarding's rate",
        "role", "messages/s", "bare forwarding", "lost", "frames/msg"
    );
    for m in roles {
        let (role, bare) = (median(&m.msgs_per_s), median(&m.forwarding_msgs_per_s));
        let ratios = ratios(m);
        println!(
            "{:<10} {role:>14.0} {bare:>16.0} {:>6} {:>11}  1/{:.2}, in most turns 1/{:.2} to \
             1/{:.2}",
            m.role,
            m.lost,
            m.frames_per_msg,
            median(&ratios),
            quantile(&ratios, 0.1),
            quantile(&ratios, 0.9)
        );
    }
    println!();
}

/// Returns the ratios of bare forwarding's rate to the role's, turn by turn.
fn ratios(m: &AtLinks) -> Vec<f64> {
    let turns = m.forwarding_msgs_per_s.iter().zip(&m.msgs_per_s);
    turns.map(|(bare, role)| bare / role).collect()
}

/// Prints the papers' own figures.
fn print_papers() {
    println!("\nP4xos (TNET 2020), Tables I and II, on its authors' devices:");
    println!(
        "{:<10} {:>22} {:>30}",
        "role", "latency in the device", "messages/s"
    );
    println!(
        "{:<10} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9}",
        "", "DPDK", "FPGA", "Tofino", "DPDK", "FPGA", "Tofino"
    );
    for (role, latency, rate) in PAPERS {
        println!(
            "{role:<10} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9}",
            latency[0], latency[1], latency[2], rate[0], rate[1], rate[2]
        );
    }
}

/// Returns the JSON line of a role. `live` is null if the role isn't measured at links, as
/// forwarding is part of each role's measurement there.
fn line(xdp::Alone { median: role, runs }: &xdp::Alone, live: &[live::Measured]) -> Value {
    let papers = PAPERS.iter().find(|(name, ..)| *name == role.role);
    let mut line = json!({
        "plane": "xdp",
        "role": role.role,
        "ns_per_msg": role.ns_per_msg,
        "ns_per_msg_runs": runs,
        "msgs_per_s": role.msgs_per_s.round(),
        "forwarding_ns_per_msg": role.forwarding_ns_per_msg,
        "messages": role.messages,
        "value_bytes": VALUE_LEN,
        "several_cpus": role.several.as_ref().map(on_several),
        "papers": papers.map(|(_, latency, rate)| json!({
            "origin": "P4xos (TNET 2020), Tables I and II: DPDK, FPGA, Tofino",
            "latency": latency,
            "msgs_per_s": rate,
        })),
    });
    let live = live.iter().find(|m| m.at_links.role == role.role);
    line["live"] = live.map_or(Value::Null, |m| {
        let mut live = at_links(&m.at_links);
        live["forwarding_lost"] = m.forwarding_lost.into();
        live
    });
    line
}

fn on_several(several: &Several) -> Value {
    let shared = |shared: &Shared| {
        json!({
            "ns_per_msg": shared.ns_per_msg,
            "msgs_per_s": shared.msgs_per_s.round(),
            "messages": shared.messages,
            "refused": shared.refused,
        })
    };
    json!({
        "cpus": several.cpus,
        "one_partition": shared(&several.one_partition),
        "partition_each": shared(&several.partition_each),
    })
}

fn at_links(m: &AtLinks) -> Value {
    json!({
        "frames_per_msg": m.frames_per_msg,
        "msgs_per_s": median(&m.msgs_per_s).round(),
        "msgs_per_s_turns": m.msgs_per_s,
        "forwarding_msgs_per_s": median(&m.forwarding_msgs_per_s).round(),
        "forwarding_msgs_per_s_turns": m.forwarding_msgs_per_s,
        "times_slower_than_forwarding": median(&ratios(m)),
        "lost": m.lost,
    })
}
