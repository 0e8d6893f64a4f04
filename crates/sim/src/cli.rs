// SPDX-License-Identifier: Apache-2.0
//! `sim [SEED]`: the simulator's command line.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use crate::cluster::Outcome;
use crate::plan::{Plan, seconds};
use crate::run::{Extent, Options, Summary, run_plan, run_seed, soak};
use crate::{draw, shrink};

const HELP: &str = "\
Runs the whole cluster in a deterministic simulation, and checks its invariants after every step.

  sim SEED              runs one seed with its trace
  sim [options]         runs seeds until one of the limits is reached

  --seeds N             runs this many seeds
  --seconds N           runs fresh seeds for this many seconds (default 10)
  --start N             begins with this seed (default: taken from the clock)
  --threads N           runs on this many threads (default: as many as there are CPUs)
  --protocol NAME       agrees by this protocol: paxos (default) or nopaxos
  --members             members change by command, and hand-overs are planned (Paxos)
  --trace, --no-trace   with SEED: prints each event (default), or only what came of it
  --plan                with SEED: prints the plan: cluster, load and faults
  --script FILE         runs a plan from a file instead of a seed
  --shrink, --no-shrink cuts a failing plan down to what still fails (default), or doesn't
  --json                prints one JSON object: seeds, violations, unknown (verdicts on
                        linearizability), seeds_per_s, commands, ...
";

/// Prints a line. A reader that has seen enough closes the pipe, which is no error.
macro_rules! say {
    ($($text:tt)*) => {
        let _ = writeln!(std::io::stdout(), $($text)*);
    };
}

struct Arguments {
    seed: Option<u64>,
    script: Option<String>,
    seeds: Option<u64>,
    time: Option<u64>,
    start: u64,
    threads: usize,
    trace: bool,
    plan: bool,
    shrink: bool,
    json: bool,
    limits: draw::Limits,
}

impl Arguments {
    fn options(&self) -> Options {
        Options {
            limits: self.limits,
            ..Options::default()
        }
    }
}

/// Runs with the arguments after the program's name. Fails if an invariant was violated.
pub fn main(args: &[String]) -> ExitCode {
    let arguments = match parse(args) {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            say!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            eprintln!("sim: {why}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    let sound = match (&arguments.script, arguments.seed) {
        (Some(path), _) => match read(path) {
            Ok(plan) => replay(&arguments, &plan),
            Err(why) => {
                eprintln!("sim: {path}: {why}");
                return ExitCode::from(2);
            }
        },
        (None, Some(seed)) => {
            let plan = draw::plan(seed, &arguments.limits);
            replay(&arguments, &plan)
        }
        (None, None) => soak_all(&arguments),
    };
    if sound {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn read(path: &str) -> Result<Plan, String> {
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    Plan::parse(&text)
}

fn parse(args: &[String]) -> Result<Option<Arguments>, String> {
    let clock = std::time::SystemTime::UNIX_EPOCH.elapsed();
    let mut arguments = Arguments {
        seed: None,
        script: None,
        seeds: None,
        time: None,
        start: clock.map_or(1, |c| c.as_secs() * 1_000),
        threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
        trace: true,
        plan: false,
        shrink: true,
        json: false,
        limits: draw::Limits::default(),
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut number = || {
            let value = args.next().map(String::as_str).unwrap_or_default();
            value
                .parse::<u64>()
                .map_err(|_| format!("{arg} needs a number, not '{value}'"))
        };
        match arg.as_str() {
            "--seeds" => arguments.seeds = Some(number()?),
            "--seconds" => arguments.time = Some(number()?),
            "--start" => arguments.start = number()?,
            "--threads" => arguments.threads = number()? as usize,
            "--trace" => arguments.trace = true,
            "--no-trace" => arguments.trace = false,
            "--plan" => arguments.plan = true,
            "--members" => arguments.limits.members = true,
            "--shrink" => arguments.shrink = true,
            "--no-shrink" => arguments.shrink = false,
            "--json" => arguments.json = true,
            "--script" => {
                let path = args.next().ok_or("--script needs a file")?;
                arguments.script = Some(path.clone());
            }
            "--protocol" => match args.next().map(String::as_str) {
                Some("paxos") => arguments.limits.ordered = false,
                Some("nopaxos") => arguments.limits.ordered = true,
                other => return Err(format!("--protocol is paxos or nopaxos, not {other:?}")),
            },
            "-h" | "--help" => return Ok(None),
            seed => {
                let parsed = seed.parse().ok().filter(|_| arguments.seed.is_none());
                arguments.seed = Some(parsed.ok_or_else(|| format!("'{seed}' is unknown"))?);
            }
        }
    }
    Ok(Some(arguments))
}

// ---- One plan

fn replay(arguments: &Arguments, plan: &Plan) -> bool {
    if arguments.plan {
        say!("{plan}");
        return true;
    }
    let options = Options {
        trace: arguments.trace && !arguments.json,
        ..Options::default()
    };
    let outcome = run_plan(plan, &options);
    if arguments.json {
        let violations = outcome.violations.len();
        let mut summary = Summary::default();
        summary.add(plan.scenario.seed, outcome);
        say!("{}", json(&summary, violations));
        return violations == 0;
    }
    let mut out = std::io::stdout().lock();
    for line in &outcome.trace {
        // A reader that has seen enough closes the pipe.
        if writeln!(out, "{line}").is_err() {
            return outcome.violations.is_empty();
        }
    }
    drop(out);
    print_outcome(&outcome);
    if arguments.shrink && !outcome.violations.is_empty() {
        print_shrunk(plan, &outcome);
    }
    outcome.violations.is_empty()
}

fn print_outcome(outcome: &Outcome) {
    say!(
        "{} steps, {} s, {} instances decided, {} commands acknowledged, last epoch {}",
        outcome.steps,
        seconds(outcome.virtual_time),
        outcome.decided,
        outcome.commands,
        outcome.epochs
    );
    if outcome.undecided {
        say!("UNKNOWN whether what clients saw is linearizable: the search was given up");
    }
    for violation in &outcome.violations {
        say!("VIOLATED {violation}");
    }
}

fn print_shrunk(plan: &Plan, outcome: &Outcome) {
    let shrunk = shrink::shrink(plan, &outcome.violations[0], &Options::default());
    say!(
        "\nThe same violation with {} of {} actions (save as a file and run: ./dev sim --script \
         FILE):\n\n{shrunk}",
        shrunk.actions.len(),
        plan.actions.len(),
    );
}

// ---- Many seeds

fn soak_all(arguments: &Arguments) -> bool {
    let time = match (arguments.time, arguments.seeds) {
        (Some(time), _) => Duration::from_secs(time),
        (None, Some(_)) => Duration::MAX,
        (None, None) => Duration::from_secs(10),
    };
    let extent = Extent {
        seeds: arguments.seeds.unwrap_or(u64::MAX),
        time,
    };
    let shown = std::sync::Mutex::new(0.0);
    let quiet = arguments.json;
    let progress = |summary: &Summary| {
        let mut shown = shown.lock().expect("no panic while it is held");
        if !quiet && summary.seconds >= *shown + 1.0 {
            *shown = summary.seconds;
            eprint!(
                "\r{} seeds, {:.0}/s, {:.2} million steps/s, {} failed ",
                summary.seeds,
                summary.seeds as f64 / summary.seconds,
                summary.steps as f64 / summary.seconds / 1e6,
                summary.failures.len()
            );
        }
    };
    let summary = soak(
        extent,
        arguments.start,
        arguments.threads,
        &arguments.options(),
        &progress,
    );
    if arguments.json {
        say!("{}", json(&summary, summary.failures.len()));
        return summary.failures.is_empty();
    }
    eprintln!();
    print_summary(&summary, arguments);
    if let Some(first) = summary.failures.first().filter(|_| arguments.shrink) {
        let plan = draw::plan(first.seed, &arguments.limits);
        print_shrunk(&plan, &run_seed(first.seed, &arguments.options()));
    }
    summary.failures.is_empty()
}

fn print_summary(summary: &Summary, arguments: &Arguments) {
    say!(
        "{} seeds from {}, {:.0} seeds/s, {:.2} million steps/s, {} instances decided, {} commands \
         acknowledged, {} failed",
        summary.seeds,
        arguments.start,
        summary.seeds as f64 / summary.seconds.max(1e-9),
        summary.steps as f64 / summary.seconds.max(1e-9) / 1e6,
        summary.decided,
        summary.commands,
        summary.failures.len()
    );
    if !summary.undecided.is_empty() {
        say!(
            "UNKNOWN of {} seeds whether what clients saw is linearizable: {:?}",
            summary.undecided.len(),
            summary.undecided
        );
    }
    for failure in &summary.failures {
        say!("seed {}: {}", failure.seed, failure.violations[0]);
        let kind = match (arguments.limits.ordered, arguments.limits.members) {
            (true, _) => " --protocol nopaxos",
            (_, true) => " --members",
            _ => "",
        };
        say!("  reproduce it: ./dev sim {}{kind}", failure.seed);
    }
}

fn json(summary: &Summary, violations: usize) -> String {
    let seconds = summary.seconds.max(1e-9);
    format!(
        "{{\"seeds\":{},\"violations\":{violations},\"unknown\":{},\"seeds_per_s\":{:.1},\
         \"commands\":{},\"views\":{},\"crowds\":{},\"steps\":{},\"steps_per_s\":{:.0},\
         \"decided\":{},\"seconds\":{:.3},\"failed_seeds\":{:?}}}",
        summary.seeds,
        summary.undecided.len(),
        summary.seeds as f64 / seconds,
        summary.commands,
        summary.views,
        summary.crowds,
        summary.steps,
        summary.steps as f64 / seconds,
        summary.decided,
        summary.seconds,
        summary.failures.iter().map(|f| f.seed).collect::<Vec<_>>(),
    )
}
