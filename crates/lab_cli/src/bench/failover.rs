// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos-lab bench failover`: measures what clients of a cluster notice when one of its parts
//! fails or changes.

use std::time::Duration;

use clap::Args;
use local_cluster::Error;
use measure::e2e::failover::{self, Event, Plan, Probing, Run};
use measure::e2e::{Contender, Settings};
use measure::stats::median;
use node::cluster_file::Protocol;
use serde_json::{Value, json};

use super::e2e::in_thread;
use super::lines::tenths;
use super::seconds::seconds_within;
use command_line::arguments::protocol;

/// Options of `wirepaxos-lab bench failover`.
#[derive(Args)]
pub struct Options {
    /// Agree by this protocol
    #[arg(long, default_value = "paxos", value_parser = protocol)]
    protocol: Protocol,
    /// Cause these events, or all. Any protocol: nothing, hand-over; paxos: leader-killed,
    /// leader-slow, acceptor-killed, acceptor-rejoins; nopaxos: sequencer-killed, sequencer-slow,
    /// replica-leader-killed, replica-follower-killed, replica-rejoins
    #[arg(long, value_delimiter = ',', default_value = "all")]
    event: Vec<String>,
    /// Make this many runs of each, each with its own cluster
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// Let the controller probe a node every so many milliseconds
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(2..=60_000))]
    probe_ms: u64,
    /// Suspect a node after this many unanswered PROBEs
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=1000))]
    suspect_after: u32,
    /// Keep this many requests of the one client in flight
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    outstanding: u16,
    /// Replicate this application: echo, rocksdb or leveldb
    #[arg(long, default_value = "echo")]
    app: String,
    /// Continue the load for this many seconds after the event
    #[arg(long, default_value = "2", value_parser = |text: &str| seconds_within(1.0..=60.0, text))]
    seconds: Duration,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// Returns the events that words of `--event` name.
fn events(protocol: Protocol, words: &[String]) -> Result<Vec<Event>, Error> {
    let known = Event::of(protocol);
    let mut events = Vec::new();
    for word in words {
        let named = known.iter().filter(|e| word == "all" || e.name() == word);
        let before = events.len();
        events.extend(named.copied());
        if events.len() == before {
            let names: Vec<&str> = known.iter().map(|event| event.name()).collect();
            return Err(Error::new(format!(
                "{word} is no event of {}: take {}, or all; --protocol names another protocol",
                protocol.name(),
                names.join(", ")
            )));
        }
    }
    Ok(events)
}

/// Measures, and prints a line for each event, and one for every 10 milliseconds of the run with
/// the median gap.
pub fn run(options: &Options) -> Result<(), Error> {
    let contender = match options.protocol {
        Protocol::Paxos => Contender::Paxos,
        Protocol::NoPaxos => Contender::NoPaxos,
    };
    let settings = Settings {
        app: options.app.clone(),
        ..Settings::usual(contender)
    };
    for event in events(options.protocol, &options.event)? {
        let plan = options.plan(event);
        let runs: Result<Vec<Run>, Error> = (0..options.runs)
            .map(|_| in_thread(|| failover::run(&settings, &plan)))
            .collect();
        let line = summary(options, &settings, &plan, &runs?);
        match options.json {
            true => println!("{line}"),
            false => print(&line),
        }
    }
    Ok(())
}

impl Options {
    fn plan(&self, event: Event) -> Plan {
        Plan {
            event,
            probing: Probing {
                probe_ms: self.probe_ms,
                suspect_after: self.suspect_after,
            },
            outstanding: self.outstanding,
            after: self.seconds,
        }
    }
}

fn summary(options: &Options, settings: &Settings, plan: &Plan, runs: &[Run]) -> Value {
    let ms = |time: Duration| tenths(time.as_secs_f64() * 1_000.0);
    let gaps: Vec<f64> = runs.iter().map(|run| ms(run.gap)).collect();
    // A peak that isn't reached counts as reached at the end of the measurement.
    let peaks: Vec<f64> = runs
        .iter()
        .map(|run| ms(run.peak.unwrap_or(plan.after)))
        .collect();
    let rates: Vec<f64> = runs.iter().map(|run| run.ops_per_s).collect();
    let middle = median(&gaps);
    let shown = runs.iter().zip(&gaps).find(|(_, gap)| **gap == middle);
    let (shown, _) = shown.expect("the median is one of them");
    json!({
        "event": plan.event.name(),
        "protocol": settings.contender.name(),
        "plane": settings.plane.name(),
        "sequencer": settings.sequencer().map(|s| s.name()),
        "app": options.app,
        "replicas": settings.replicas,
        "packed": !settings.unpacked,
        "outstanding": plan.outstanding,
        "probe_ms": options.probe_ms,
        "suspect_after": options.suspect_after,
        // The last unanswered PROBE is counted when the next one is due, and the first may be due
        // only then.
        "detection_ms": options.probe_ms * (u64::from(options.suspect_after) + 1),
        "ops_per_s": median(&rates).round(),
        "gap_ms": {
            "median": middle,
            "max": gaps.iter().copied().fold(0.0, f64::max),
            "runs": gaps,
        },
        "peak_ms": median(&peaks),
        "peak_ms_runs": peaks,
        "event_at": shown.event_at,
        "answered_by_10_ms": shown.answered,
    })
}

fn print(line: &Value) {
    println!(
        "{}: {} ms without an answer ({} at most), as many answers as before after {} ms",
        line["event"].as_str().unwrap_or(""),
        line["gap_ms"]["median"],
        line["gap_ms"]["max"],
        line["peak_ms"]
    );
    let event_at = line["event_at"].as_i64().unwrap_or(0);
    let answered = line["answered_by_10_ms"].as_array();
    println!("  {:>8} {:>10}", "ms", "answers/s");
    for (at, answers) in (0..).zip(answered.into_iter().flatten()) {
        let answers = answers.as_u64().unwrap_or(0);
        println!("  {:>8} {:>10}", (at - event_at) * 10, answers * 100);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn options(words: &[&str]) -> Options {
        let words = ["failover"].iter().chain(words);
        Line::try_parse_from(words).expect("a valid line").options
    }

    #[test]
    fn each_event_has_its_name() {
        let named = |protocol, name: &str| events(protocol, &[name.to_owned()]);
        for protocol in Protocol::ALL {
            let all = Event::of(protocol);
            for known in all {
                assert_eq!(named(protocol, known.name()).unwrap(), [*known]);
            }
            assert_eq!(named(protocol, "all").unwrap(), all);
        }
        let other = named(Protocol::Paxos, "sequencer-killed").unwrap_err();
        assert!(other.to_string().contains("leader-killed"), "{other}");
    }

    #[test]
    fn a_line_has_the_median_run() {
        let options = options(&["--event", "hand-over", "--runs", "3"]);
        let plan = options.plan(Event::HandOver);
        let run = |gap, peak: Option<u64>, answers| Run {
            gap: Duration::from_micros(gap),
            peak: peak.map(Duration::from_millis),
            ops_per_s: 1_000.0,
            answered: vec![answers; 3],
            event_at: 1,
        };
        let runs = [
            run(9_000, Some(40), 9),
            run(2_000, None, 2),
            run(3_040, Some(20), 3),
        ];
        let settings = Settings::usual(Contender::NoPaxos);
        let line = summary(&options, &settings, &plan, &runs);
        assert_eq!(
            line["gap_ms"],
            json!({ "median": 3.0, "max": 9.0, "runs": [9.0, 2.0, 3.0] })
        );
        assert_eq!(line["peak_ms"], 40.0);
        assert_eq!(line["answered_by_10_ms"], json!([3, 3, 3]));
        assert_eq!(line["sequencer"], "host");
        assert_eq!(line["detection_ms"], 200);
    }
}
