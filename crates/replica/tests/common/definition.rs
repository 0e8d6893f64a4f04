// SPDX-License-Identifier: Apache-2.0
//! The results of logs with commands over several partitions, by their definition: without a
//! replica, in any order that the logs allow.

use super::{SUM_OF, Tally};
use paxos::{Instance, PartitionId};

/// The effect of a log's entry.
pub enum Effect<'a> {
    Nothing,
    /// The command with this number counts.
    Counts(u64),
    /// A command that is alive counts at all of its places in one step, unless it did before.
    Spans {
        places: &'a [(PartitionId, Instance)],
        request: u64,
    },
}

/// Returns what each partition holds at each position. `effect` gets the partition, the place in
/// its log, and the entry.
pub fn tallies<'a, E>(
    logs: &[Vec<E>],
    effect: impl Fn(usize, usize, &E) -> Effect<'a>,
) -> Vec<Vec<Tally>> {
    let mut tallies = vec![vec![Tally::default()]; logs.len()];
    let mut done = Vec::new();
    let mut goes_on = true;
    while goes_on {
        goes_on = false;
        for (pid, log) in logs.iter().enumerate() {
            let at = tallies[pid].len() - 1;
            let Some(entry) = log.get(at) else {
                continue;
            };
            let mut tally = tallies[pid][at].clone();
            match effect(pid, at, entry) {
                Effect::Nothing => tallies[pid].push(tally),
                Effect::Counts(number) => {
                    count(&mut tally, number);
                    tallies[pid].push(tally);
                }
                Effect::Spans { places, request } => {
                    let stands = |(pid, place): &(PartitionId, Instance)| {
                        tallies[usize::from(*pid)].len() as u64 == place + 1
                    };
                    if !places.iter().all(stands) {
                        continue;
                    }
                    let name = (places[0].0, request);
                    let again = done.contains(&name);
                    done.push(name);
                    span(&mut tallies, places, (!again).then_some(request));
                }
            }
            goes_on = true;
        }
    }
    let is_whole = |(tallies, log): (&Vec<Tally>, &Vec<E>)| tallies.len() == log.len() + 1;
    assert!(
        tallies.iter().zip(logs).all(is_whole),
        "the order has a circle"
    );
    tallies
}

/// Makes all partitions pass their places; the command counts in each, with the sum of what all of
/// them held.
fn span(tallies: &mut [Vec<Tally>], places: &[(PartitionId, Instance)], request: Option<u64>) {
    let held = |(pid, place): &(PartitionId, Instance)| {
        tallies[usize::from(*pid)][*place as usize].clone()
    };
    let mut after: Vec<Tally> = places.iter().map(held).collect();
    let sum: u64 = after.iter().map(|tally| tally.total).sum();
    if let Some(request) = request {
        for tally in &mut after {
            count(tally, request);
            *tally.by_command.entry(SUM_OF + request).or_default() += sum;
        }
    }
    for ((pid, _), tally) in places.iter().zip(after) {
        tallies[usize::from(*pid)].push(tally);
    }
}

fn count(tally: &mut Tally, number: u64) {
    tally.total += 1;
    *tally.by_command.entry(number).or_default() += 1;
}
