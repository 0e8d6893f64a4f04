// SPDX-License-Identifier: Apache-2.0
//! Scenarios of whole clusters as text, with their expected results.
//!
//! A script is a [plan](crate::plan) with expectations. Lines may come in any order; `#` begins a
//! comment. Besides what a plan has:
//!
//! | line | meaning |
//! |---|---|
//! | `TIME load CLIENT PID COUNT OP` | `COUNT` commands of one kind and key, a millisecond apart |
//! | `expect acknowledged N` | so many commands are answered in the end |
//! | `expect answers within SECONDS` | no command waited longer for its answer |
//! | `expect epochs N` | the last epoch is N or a later one |
//! | `expect epochs = N` | the last epoch is N |
//! | `expect line WORDS` | some line of the trace has all these words, in this order |
//! | `expect no line WORDS` | no line of the trace has them |
//!
//! It is always expected that no invariant is violated and that everything completes in the end.

use crate::cluster::Outcome;
use crate::plan::{Action, Plan, parse_seconds, seconds};
use crate::queue::MILLISECOND;
use crate::run::{Options, run_plan};
use paxos::Time;

/// An expected result of a script.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Expectation {
    Acknowledged(u64),
    AnswersWithin(Time),
    EpochsAtLeast(u32),
    Epochs(u32),
    Line(Vec<String>),
    NoLine(Vec<String>),
}

/// A parsed script.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClusterScript {
    plan: Plan,
    /// The expectations with their line numbers.
    expectations: Vec<(usize, Expectation)>,
}

impl ClusterScript {
    /// Reads a script.
    pub fn parse(text: &str) -> Result<ClusterScript, String> {
        let mut script = ClusterScript::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            let read = script.line(number + 1, line);
            read.map_err(|why| format!("line {}: {why}", number + 1))?;
        }
        script.plan.actions.sort_by_key(|(at, _)| *at);
        Ok(script)
    }

    fn line(&mut self, number: usize, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["expect", ref what @ ..] => {
                let expectation = expectation(what)?;
                self.expectations.push((number, expectation));
                Ok(())
            }
            [at, "load", client, pid, count, ref op @ ..] => {
                let begin = parse_seconds(at).ok_or_else(|| format!("'{at}' is no time"))?;
                let count = count.parse::<u64>().map_err(|e| e.to_string())?;
                for n in 0..count {
                    let submit = format!("submit {client} {pid} 1 {}", op.join(" "));
                    let action = Action::parse(&submit)?;
                    self.plan.actions.push((begin + n * MILLISECOND, action));
                }
                Ok(())
            }
            _ => self.plan.line(line),
        }
    }

    /// Returns the script's plan, without the expectations.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Runs the script, and returns an error with the expectations that weren't met.
    pub fn run(&self) -> Result<Outcome, String> {
        let options = Options {
            trace: true,
            ..Options::default()
        };
        let outcome = run_plan(&self.plan, &options);
        if let Some(violation) = outcome.violations.first() {
            return Err(format!("{violation}\n{}", tail(&outcome)));
        }
        for (number, expectation) in &self.expectations {
            expectation
                .check(&outcome)
                .map_err(|why| format!("line {number}: {why}"))?;
        }
        Ok(outcome)
    }
}

fn tail(outcome: &Outcome) -> String {
    let from = outcome.trace.len().saturating_sub(40);
    outcome.trace[from..].join("\n")
}

fn expectation(words: &[&str]) -> Result<Expectation, String> {
    let number = |word: &str| word.parse().map_err(|_| format!("'{word}' is no number"));
    let owned = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect();
    match words {
        ["acknowledged", n] => Ok(Expectation::Acknowledged(number(n)?)),
        ["answers", "within", time] => {
            let time = parse_seconds(time).ok_or_else(|| format!("'{time}' is no time"))?;
            Ok(Expectation::AnswersWithin(time))
        }
        ["epochs", "=", n] => Ok(Expectation::Epochs(number(n)? as u32)),
        ["epochs", n] => Ok(Expectation::EpochsAtLeast(number(n)? as u32)),
        ["line", words @ ..] if !words.is_empty() => Ok(Expectation::Line(owned(words))),
        ["no", "line", words @ ..] if !words.is_empty() => Ok(Expectation::NoLine(owned(words))),
        _ => Err(format!("'{}' can't be expected", words.join(" "))),
    }
}

impl Expectation {
    fn check(&self, outcome: &Outcome) -> Result<(), String> {
        let find = |words: &[String]| outcome.trace.iter().find(|line| has(line, words));
        let met = match self {
            Expectation::Acknowledged(n) => outcome.commands == *n,
            Expectation::AnswersWithin(time) => outcome.longest_wait <= *time,
            Expectation::Epochs(n) => outcome.epochs == *n,
            Expectation::EpochsAtLeast(n) => outcome.epochs >= *n,
            Expectation::Line(words) => find(words).is_some(),
            Expectation::NoLine(words) => match find(words) {
                Some(line) => return Err(format!("there is a line: {line}")),
                None => true,
            },
        };
        if met {
            return Ok(());
        }
        Err(format!(
            "expected {self:?}; {} acknowledged within {} s each, last epoch {}, after {} s",
            outcome.commands,
            seconds(outcome.longest_wait),
            outcome.epochs,
            seconds(outcome.virtual_time)
        ))
    }
}

/// Returns whether a line has these words in this order, perhaps with others between them.
fn has(line: &str, words: &[String]) -> bool {
    let mut rest = line.split_whitespace();
    let found = |word: &String| rest.any(|w| w.trim_end_matches(':') == word.trim_end_matches(':'));
    words.iter().all(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expectations_can_fail() {
        let run = |expectation: &str| {
            let text = format!("scenario seed=1\n0.1 load client-1 0 5 incr\n{expectation}\n");
            ClusterScript::parse(&text).unwrap().run()
        };
        run("expect acknowledged 5\nexpect epochs = 1\nexpect line leader-1 PHASE2A i1").unwrap();
        for wrong in [
            "expect acknowledged 6",
            "expect answers within 0.000001",
            "expect epochs 2",
            "expect line leader-2 -> acceptor-1 PHASE2A",
            "expect no line leader-1 -> acceptor-1 PHASE2A",
        ] {
            let error = run(wrong).unwrap_err();
            assert!(error.contains("line 3"), "{error}");
        }
        assert!(ClusterScript::parse("expect miracles").is_err());
    }
}
