//! `wirepaxos bench roles`: what one message costs a role, on each plane.

use clap::{Args, ValueEnum};

use super::{roles_udp, roles_xdp};
use local_cluster::Error;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Plane {
    #[value(alias = "rust")]
    Udp,
    Xdp,
}

/// Options of `wirepaxos bench roles`.
#[derive(Args)]
pub struct Options {
    /// udp (or rust): the roles as libraries, as socket nodes call them. xdp: the programs in the
    /// kernel, alone and at links, and those of udp beside; wants root
    #[arg(long, default_value = "udp", value_enum, hide_possible_values = true)]
    plane: Plane,
    /// Seconds a role, spread over the runs
    #[arg(long, default_value_t = 2.5)]
    seconds: f64,
    /// Runs; what is reported is their median
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// Measures leader, acceptor, learner and, as the bare path, forwarding alone.
pub fn run(options: &Options) -> Result<(), Error> {
    let runs = options.runs as usize;
    let seconds = options.seconds.clamp(0.1, 600.0) / options.runs as f64;
    let xdp = match options.plane {
        Plane::Udp => None,
        Plane::Xdp => Some(roles_xdp::measure(runs, seconds)?),
    };
    let udp = roles_udp::measure(runs, seconds);
    if options.json {
        if let Some(xdp) = xdp {
            xdp.print_json();
        }
        udp.print_json();
        return Ok(());
    }
    if let Some(xdp) = xdp {
        xdp.print();
    }
    udp.print();
    roles_xdp::print_papers();
    Ok(())
}
