// SPDX-License-Identifier: Apache-2.0
//! Runs the scripts of `testdata/roles/`: packets in; packets, verdict and state out.
//!
//! `testdata/roles/README.md` describes the format. Scripts consist of packets, so the same ones
//! drive every implementation of a role, each behind a [`Device`].

mod device;
mod fields;
mod keys;
mod order;
mod packet;
mod rust;
mod value;

use std::collections::BTreeMap;
use std::fmt::Write as _;

pub use device::{Device, Role, Setup, SlotState, State, handed_over};
use fields::Fields;
pub use order::Order;
use paxos::auth::Algorithm;
use paxos::{Packet, Verdict};
pub use rust::{RustDevice, pass_on};

/// One line of a script.
struct Line<'a> {
    number: usize,
    text: &'a str,
}

/// The result of a run: the script as it should read, and its differences from the actual script.
pub struct Outcome {
    /// The script with the expectations that this run would meet.
    pub actual: String,
    /// One entry for each place where the run and the script differ; empty if the run passed.
    pub differences: Vec<String>,
}

/// Returns the errors of a run, one line each beginning with `what`; empty if it passed.
pub fn complaints(what: &str, ran: Result<Outcome, String>) -> String {
    let found = ran.map_or_else(|error| vec![error], |outcome| outcome.differences);
    found.iter().map(|it| format!("{what}: {it}\n")).collect()
}

/// Sets up the device that a `role` line describes.
pub type Build<'a> = dyn FnMut(&Setup) -> Result<Box<dyn Device>, String> + 'a;

/// Runs one script. `build` sets up the device that a `role` line describes.
///
/// # Errors
/// If the script can't be understood; the text begins with the line's number.
pub fn run<'a>(script: &str, build: &'a mut Build<'a>) -> Result<Outcome, String> {
    run_signed(script, Algorithm::SipHash, build)
}

/// Runs a script like [`run`], with packets signed by another algorithm.
///
/// # Errors
/// As in [`run`].
pub fn run_signed<'a>(
    script: &str,
    algorithm: Algorithm,
    build: &'a mut Build<'a>,
) -> Result<Outcome, String> {
    let mut run = Run {
        build,
        algorithm,
        device: None,
        actual: String::new(),
        differences: Vec::new(),
    };
    let lines = script.lines().enumerate();
    let mut lines = lines
        .map(|(i, text)| Line {
            number: i + 1,
            text: text.trim(),
        })
        .peekable();
    while let Some(line) = lines.next() {
        let mut expected = Vec::new();
        while let Some(next) = lines.next_if(|next| is_expectation(next.text)) {
            expected.push(next);
        }
        run.line(&line, &expected)
            .map_err(|error| format!("line {}: {error}", line.number))?;
    }
    Ok(Outcome {
        actual: run.actual,
        differences: run.differences,
    })
}

/// Returns whether a line is an expectation about the line before it.
fn is_expectation(text: &str) -> bool {
    matches!(keyword(text).0, "out" | "verdict")
}

/// Returns the first word of a line, and the rest.
fn keyword(text: &str) -> (&str, &str) {
    match text.split_once(char::is_whitespace) {
        Some((word, rest)) => (word, rest.trim_start()),
        None => (text, ""),
    }
}

struct Run<'a> {
    build: &'a mut Build<'a>,
    algorithm: Algorithm,
    device: Option<(Setup, Box<dyn Device>)>,
    actual: String,
    differences: Vec<String>,
}

impl Run<'_> {
    fn line(&mut self, line: &Line<'_>, expected: &[Line<'_>]) -> Result<(), String> {
        let (word, rest) = keyword(line.text);
        if word.is_empty() || word.starts_with('#') {
            if !expected.is_empty() {
                return Err("an expectation follows nothing".into());
            }
            writeln!(self.actual, "{}", line.text).expect("strings take everything");
            return Ok(());
        }
        let found = match word {
            "role" => {
                let setup = Setup::parse(rest, self.algorithm)?;
                let device = (self.build)(&setup)?;
                self.device = Some((setup, device));
                Vec::new()
            }
            "in" => {
                let datagram = packet::parse(rest, &self.device()?.0)?;
                self.packet(&datagram)?
            }
            "raw" => self.packet(&value::parse_hex(rest)?)?,
            "flips" => {
                let datagram = packet::parse(rest, &self.device()?.0)?;
                self.flips(&datagram)?
            }
            "key" => {
                self.device()?.0.keys.name(rest)?;
                Vec::new()
            }
            "state" | "slot" => return self.check(line, word, rest),
            _ => self.order(word, rest)?,
        };
        writeln!(self.actual, "{}", line.text).expect("strings take everything");
        self.compare(line, expected, &found);
        Ok(())
    }

    /// Returns a packet's outputs and verdict. A refused packet must leave the state unchanged
    /// (INV-8).
    fn packet(&mut self, datagram: &[u8]) -> Result<Vec<String>, String> {
        let (setup, device) = self.device()?;
        let before = device.fingerprint();
        let (sent, verdict) = device.packet(datagram);
        let changed = before != device.fingerprint();
        let mut found = Vec::new();
        for (to, datagram) in sent {
            let packet = Packet::parse(&datagram)
                .map_err(|reason| format!("the role has sent a bad packet: {}", reason.name()))?;
            let printed = packet::print(to, &packet, &datagram, setup);
            found.push(format!("out {printed}"));
        }
        found.push(format!("verdict {}", print_verdict(verdict)));
        if changed && verdict != Verdict::Changed {
            found.push(format!(
                "verdict {}, but the state changed",
                print_verdict(verdict)
            ));
        }
        Ok(found)
    }

    /// Tries the packet with each of its bits changed in turn, and returns how often each result
    /// occurred.
    fn flips(&mut self, datagram: &[u8]) -> Result<Vec<String>, String> {
        let mut counted = BTreeMap::new();
        for bit in 0..8 * datagram.len() {
            let mut flipped = datagram.to_vec();
            flipped[bit / 8] ^= 0x80 >> (bit % 8);
            for found in self.packet(&flipped)? {
                *counted.entry(found).or_insert(0) += 1;
            }
        }
        let line = |(found, times)| format!("{found} {times} times");
        Ok(counted.into_iter().map(line).collect())
    }

    /// Gives an order of the control plane, and returns whether it was accepted.
    fn order(&mut self, word: &str, rest: &str) -> Result<Vec<String>, String> {
        let (setup, device) = self.device()?;
        let order = Order::parse(word, rest, setup)?;
        let accepted = device.order(&order)?;
        if let (Order::Discard { nonce }, true) = (&order, accepted) {
            // Lines that name no nonce mean that of the current memory.
            setup.nonce = *nonce;
        }
        if let Order::Keys(keyring) = &order {
            setup.keys.tell(keyring);
        }
        let verdict = if accepted { "ok" } else { "refused" };
        Ok(vec![format!("verdict {verdict}")])
    }

    /// Checks a `state` or `slot` line, which says what to look at and what must be seen.
    fn check(&mut self, line: &Line<'_>, word: &str, rest: &str) -> Result<(), String> {
        let (setup, device) = self.device()?;
        let mut fields = Fields::parse(rest)?;
        let pid = setup.partition(&mut fields)?;
        let found = if word == "state" {
            let state = device.state(pid).ok_or("this role has slots only")?;
            format!("state pid={pid} {state}")
        } else if matches!(setup.role, Role::Leader | Role::Sequencer) {
            return Err("this role has no slots".into());
        } else {
            let inst = fields.u64("inst", 0)?;
            let slot = device.slot(pid, inst);
            let seen = slot.map_or_else(|| "none".into(), |slot| slot.to_string());
            format!("slot pid={pid} inst={inst} {seen}")
        };
        writeln!(self.actual, "{found}").expect("strings take everything");
        if found != line.text {
            self.differ(line.number, &[line.text], &[found]);
        }
        Ok(())
    }

    fn compare(&mut self, line: &Line<'_>, expected: &[Line<'_>], found: &[String]) {
        for text in found {
            writeln!(self.actual, "  {text}").expect("strings take everything");
        }
        let expected: Vec<&str> = expected.iter().map(|line| line.text).collect();
        if expected != found {
            self.differ(line.number, &expected, found);
        }
    }

    fn differ(&mut self, number: usize, expected: &[&str], found: &[String]) {
        let mut text = format!("line {number}:");
        for line in expected {
            let mark = if found.iter().any(|f| f == line) {
                ' '
            } else {
                '-'
            };
            write!(text, "\n  {mark} {line}").expect("strings take everything");
        }
        for line in found {
            if !expected.contains(&line.as_str()) {
                write!(text, "\n  + {line}").expect("strings take everything");
            }
        }
        if text.lines().skip(1).all(|line| line.starts_with("    ")) {
            text.push_str("\n  (the same lines in another order, or another number of times)");
        }
        self.differences.push(text);
    }

    fn device(&mut self) -> Result<&mut (Setup, Box<dyn Device>), String> {
        self.device
            .as_mut()
            .ok_or_else(|| "no role has been set up".into())
    }
}

fn print_verdict(verdict: Verdict) -> String {
    match verdict {
        Verdict::Changed => "changed".into(),
        Verdict::Answered => "answered".into(),
        Verdict::Rejected(reason) => format!("rejected {}", reason.name()),
        Verdict::Dropped(reason) => format!("dropped {}", reason.name()),
    }
}
