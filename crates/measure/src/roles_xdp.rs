//! The roles' programs in the kernel, alone and at links.

use crate::xdp::live;
use crate::xdp::{RoleMeasurement, VALUE_LEN, roles};
use serde_json::{Value, json};

use crate::{median, quantile};
use local_cluster::Error;

/// P4xos (TNET 2020), Table I: latency inside the device; Table II: messages a second. The devices
/// are the authors': DPDK on a Xeon's cores, NetFPGA SUME, Tofino.
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

/// Every role alone, with its nanoseconds run by run, and those that were measured at links.
pub(super) struct Measured {
    alone: Vec<(RoleMeasurement, Vec<f64>)>,
    live: Vec<live::Measured>,
}

/// Measures all roles this often, at links this long each time.
pub(super) fn measure(runs: usize, seconds: f64) -> Result<Measured, Error> {
    Ok(Measured {
        alone: alone(runs)?,
        live: live::roles(runs, seconds).map_err(Error::new)?,
    })
}

impl Measured {
    /// One JSON object a line.
    pub(super) fn print_json(&self) {
        for role in &self.alone {
            println!("{}", line(role, &self.live));
        }
    }

    /// As tables.
    pub(super) fn print(&self) {
        self.print_alone();
        self.print_live();
    }

    fn print_alone(&self) {
        println!("xdp plane, alone (BPF_PROG_TEST_RUN, one core, medians; what varies: all runs)");
        println!("{:<10} {:>9} {:>14}  runs", "role", "ns/msg", "messages/s");
        for (role, runs) in &self.alone {
            let runs: Vec<String> = runs.iter().map(|ns| format!("{ns:.0}")).collect();
            println!(
                "{:<10} {:>9.1} {:>14.0}  {}",
                role.role,
                role.ns_per_msg,
                role.msgs_per_s,
                runs.join(" ")
            );
        }
        println!();
    }

    fn print_live(&self) {
        println!(
            "xdp plane, at links (live frames over veth, one core, in turns with bare forwarding, medians)"
        );
        println!(
            "{:<10} {:>14} {:>16} {:>6} {:>11}  of bare forwarding's rate",
            "role", "messages/s", "bare forwarding", "lost", "frames/msg"
        );
        for m in &self.live {
            let (role, bare) = (median(&m.msgs_per_s), median(&m.forwarding_msgs_per_s));
            let ratios = ratios(m);
            println!(
                "{:<10} {role:>14.0} {bare:>16.0} {:>6} {:>11}  1/{:.2}, in most turns 1/{:.2} to 1/{:.2}",
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
}

/// How many times the role's rate bare forwarding's is, turn by turn.
fn ratios(m: &live::Measured) -> Vec<f64> {
    let turns = m.forwarding_msgs_per_s.iter().zip(&m.msgs_per_s);
    turns.map(|(bare, role)| bare / role).collect()
}

/// The papers' own figures.
pub(super) fn print_papers() {
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

fn alone(runs: usize) -> Result<Vec<(RoleMeasurement, Vec<f64>)>, Error> {
    let all = (0..runs).map(|_| roles());
    let all = all.collect::<Result<Vec<_>, _>>().map_err(Error::new)?;
    let roles = 0..all[0].len();
    let with_runs = roles.map(|at| {
        let of = |pick: fn(&RoleMeasurement) -> f64| all.iter().map(|run| pick(&run[at])).collect();
        let ns: Vec<f64> = of(|m| m.ns_per_msg);
        let ns_per_msg = median(&ns);
        let mut role = all[0][at].clone();
        role.msgs_per_s = 1e9 / ns_per_msg;
        role.ns_per_msg = ns_per_msg;
        role.forwarding_ns_per_msg = median(&of(|m| m.forwarding_ns_per_msg));
        (role, ns)
    });
    Ok(with_runs.collect())
}

/// `live` is null where a role isn't measured at links, as forwarding is part of each role's.
fn line((role, runs): &(RoleMeasurement, Vec<f64>), live: &[live::Measured]) -> Value {
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
        "papers": papers.map(|(_, latency, rate)| json!({
            "origin": "P4xos (TNET 2020), Tables I and II: DPDK, FPGA, Tofino",
            "latency": latency,
            "msgs_per_s": rate,
        })),
    });
    let live = live.iter().find(|m| m.role == role.role);
    line["live"] = live.map_or(Value::Null, at_links);
    line
}

fn at_links(m: &live::Measured) -> Value {
    json!({
        "frames_per_msg": m.frames_per_msg,
        "msgs_per_s": median(&m.msgs_per_s).round(),
        "msgs_per_s_turns": m.msgs_per_s,
        "forwarding_msgs_per_s": median(&m.forwarding_msgs_per_s).round(),
        "forwarding_msgs_per_s_turns": m.forwarding_msgs_per_s,
        "times_slower_than_forwarding": median(&ratios(m)),
        "lost": m.lost,
        "forwarding_lost": m.forwarding_lost,
    })
}
