//! `wirepaxos bench`: measurements, as ratios against a yardstick of the same run where there is
//! one. Never part of the tests.

#[macro_use]
extern crate local_cluster;

mod chain;
mod e2e;
mod roles;
mod roles_udp;
mod roles_xdp;
mod unreplicated;
pub mod xdp;

use clap::Subcommand;

use local_cluster::Error;

/// What to measure.
#[derive(Subcommand)]
pub enum Command {
    /// Clients, leader, acceptors and replicas as processes, end to end
    E2e(e2e::Options),
    /// One role at a time, in a loop
    Roles(roles::Options),
    /// Leader, acceptors and learners in the kernel, at links, driven by the kernel
    Chain(chain::Options),
    /// The server of `e2e --baseline unreplicated`
    #[command(hide = true)]
    UnreplicatedServer(unreplicated::Options),
}

/// Runs one measurement.
pub fn run(command: &Command) -> Result<(), Error> {
    match command {
        Command::E2e(options) => e2e::run(options),
        Command::Roles(options) => roles::run(options),
        Command::Chain(options) => chain::run(options),
        Command::UnreplicatedServer(options) => unreplicated::run(options),
    }
}

fn median(of: &[f64]) -> f64 {
    quantile(of, 0.5)
}

/// The value that this share of all lies below.
fn quantile(of: &[f64], share: f64) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() as f64 * share) as usize]
}

fn least(of: &[f64]) -> f64 {
    of.iter().copied().fold(f64::INFINITY, f64::min)
}

fn most(of: &[f64]) -> f64 {
    of.iter().copied().fold(0.0, f64::max)
}
