// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos top`: shows a cluster on a terminal's screen: rates, times, who leads, how far nodes
//! are, rings and disks.
//!
//! The escape sequences are written by hand, since they are few: ratatui from 0.30 on needs a newer
//! Rust than ours, and 0.29 stands on a crate that nobody maintains.

mod lines;
mod rates;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use clap::Args;
use local_cluster::Error;
use node::cluster_status::ClusterStatus;
use node::terminal::{self, Screen};
use node::{ClusterFile, Stop};
use serde_json::Value;

use command_line::arguments::Cluster;

use self::rates::Rates;

/// How soon the screen follows another size of the terminal.
const SIZE_INTERVAL: Duration = Duration::from_millis(200);
/// The screen that is taken if its size isn't known, in lines and columns.
const SCREEN: (usize, usize) = (24, 80);
/// How many rates of the past are kept, for the widest of screens.
const PAST: usize = 300;

/// Options of `wirepaxos top`.
#[derive(Args)]
#[command(after_help = "Keys: q ends it, as Ctrl-C does.")]
pub struct Options {
    #[command(flatten)]
    cluster: Cluster,
    /// Look again every so many seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = super::status::seconds)]
    every: f64,
}

/// Shows the cluster until `q` or a signal.
pub fn run(options: &Options) -> Result<(), Error> {
    let cluster = options.cluster.load()?;
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(Error::new(
            "top draws on a terminal, and here is none: `wirepaxos status --watch` prints lines",
        ));
    }
    let stop = Stop::new()?;
    stop.on_signals()?;
    let every = Duration::from_secs_f64(options.every);
    let screen = Screen::open()?;
    let mut shown = ScreenContents::default();
    while !stop.is_requested() {
        let begun = Instant::now();
        shown.look(&cluster)?;
        if !shown.stay(&screen, &stop, begun + every)? {
            break;
        }
    }
    Ok(())
}

/// What the screen shows.
#[derive(Default)]
struct ScreenContents {
    /// The cluster's document at the last look.
    document: Value,
    /// The nodes' states in words, by their names.
    words: Vec<(String, String)>,
    rates: Rates,
    /// The rates of executed commands at the last looks, oldest first.
    past: Vec<f64>,
}

impl ScreenContents {
    fn look(&mut self, cluster: &ClusterFile) -> Result<(), Error> {
        let status = ClusterStatus::take(cluster)?;
        let document = status.to_json()?;
        let words = status.answers().iter().map(|(name, answer)| {
            let lines = super::status::summary::lines(answer, cluster);
            (name.clone(), lines.into_iter().next().unwrap_or_default())
        });
        self.words = words.collect();
        self.rates = Rates::between(&self.document, &document);
        self.past.extend(self.rates.executed);
        let old = self.past.len().saturating_sub(PAST);
        self.past.drain(..old);
        self.document = document;
        Ok(())
    }

    /// Draws until the next look is due. Returns false if the user has had enough.
    fn stay(&self, screen: &Screen, stop: &Stop, until: Instant) -> Result<bool, Error> {
        let mut drawn = None;
        loop {
            let size = terminal::size().unwrap_or(SCREEN);
            if drawn != Some(size) {
                screen.draw(&lines::screen(self, size))?;
                drawn = Some(size);
            }
            let left = until.saturating_duration_since(Instant::now());
            let keys = screen.keys(stop, left.min(SIZE_INTERVAL))?;
            if stop.is_requested() || keys.iter().any(|key| b"qQ\x1b".contains(key)) {
                return Ok(false);
            }
            if left.is_zero() {
                return Ok(true);
            }
        }
    }
}
