// SPDX-License-Identifier: Apache-2.0
//! Outcomes of commands over several partitions, and how long they are kept.
//!
//! Stores commit and sync one by one. So a kill, or a power failure, may leave one partition past a
//! command and another one before it, and the partition that is past it can't prepare any more.
//! Each partition therefore stores the whole outcome, in the commit that passes the command, and
//! keeps it until all partitions of the command have passed it on disk. [V-RECORD] [V-FORGET]
//!
//! | outcome record (big-endian) | |
//! |---|---|
//! | vector | round u32, count u16, then count × {partition u16, instance u64} |
//! | kind | u8: 0 = nothing changes, 1 = executed; then follow |
//! | client, request | u64, u64 |
//! | reply | length u32, bytes |
//! | effect, for each partition of the vector | length u32, bytes |

use crate::record::Records;
use crate::sibling::Copy;
use paxos::wire::value::Vector;
use paxos::{Instance, PartitionId, Round};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The outcome of a living command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    round: Round,
    places: Vec<(PartitionId, Instance)>,
    /// The answer and the effects; `None` = the session refused the request, or had executed it
    /// before.
    executed: Option<Executed>,
}

/// The answer and the effects of a command that took effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Executed {
    pub client: u64,
    pub request: u64,
    pub reply: Vec<u8>,
    /// The effects, in the order of the vector.
    pub effects: Vec<Vec<u8>>,
}

impl Outcome {
    pub(crate) fn new(copy: &Copy, executed: Option<Executed>) -> Outcome {
        Outcome {
            round: copy.round,
            places: copy.places.clone(),
            executed,
        }
    }

    /// Returns whether this is the outcome of `copy`'s command.
    pub(crate) fn is_of(&self, copy: &Copy) -> bool {
        self.round == copy.round && self.places == copy.places
    }

    pub(crate) fn executed(&self) -> Option<&Executed> {
        self.executed.as_ref()
    }

    /// Returns the command's place in a partition, if it has one there.
    pub(crate) fn place_in(&self, pid: PartitionId) -> Option<Instance> {
        let mut places = self.places.iter();
        places.find(|(of, _)| *of == pid).map(|(_, inst)| *inst)
    }

    /// Returns whether `pid` is the lowest partition, to which the command's session belongs.
    pub(crate) fn is_lowest(&self, pid: PartitionId) -> bool {
        self.places[0].0 == pid
    }

    /// Returns the effect in a partition; empty = nothing changes there.
    pub(crate) fn effect_in(&self, pid: PartitionId) -> &[u8] {
        let index = self.places.iter().position(|(of, _)| *of == pid);
        let effect = index.and_then(|at| self.executed.as_ref()?.effects.get(at));
        effect.map_or(&[], Vec::as_slice)
    }

    /// Appends the outcome's record.
    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let pids: Vec<PartitionId> = self.places.iter().map(|(pid, _)| *pid).collect();
        Vector::reserve(&pids, out);
        let mut places = self.places.iter();
        let next = |_| places.next().map_or(0, |(_, inst)| *inst);
        Vector::stamp(&mut out[start..], self.round, next);
        let Some(executed) = &self.executed else {
            return out.push(0);
        };
        out.push(1);
        out.extend_from_slice(&executed.client.to_be_bytes());
        out.extend_from_slice(&executed.request.to_be_bytes());
        for part in std::iter::once(&executed.reply).chain(&executed.effects) {
            out.extend_from_slice(&(part.len() as u32).to_be_bytes());
            out.extend_from_slice(part);
        }
    }

    /// Reads a record; returns `None` if it is damaged.
    pub(crate) fn parse(record: &[u8]) -> Option<Outcome> {
        let vector = Vector::parse(record).ok()?;
        let places: Vec<(PartitionId, Instance)> = vector.iter().collect();
        let (kind, mut rest) = vector.command.split_first()?;
        let executed = match kind {
            0 => None,
            1 => {
                let client = take_word(&mut rest)?;
                let request = take_word(&mut rest)?;
                let reply = take_part(&mut rest)?;
                let effects = places.iter().map(|_| take_part(&mut rest));
                let effects: Option<Vec<Vec<u8>>> = effects.collect();
                Some(Executed {
                    client,
                    request,
                    reply,
                    effects: effects?,
                })
            }
            _ => return None,
        };
        rest.is_empty().then_some(Outcome {
            round: vector.round,
            places,
            executed,
        })
    }
}

fn take_word(rest: &mut &[u8]) -> Option<u64> {
    let (word, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(u64::from_be_bytes(*word))
}

fn take_part(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let (len, after) = rest.split_first_chunk()?;
    let len = u32::from_be_bytes(*len) as usize;
    let (part, after) = after.split_at_checked(len)?;
    *rest = after;
    Some(part.to_vec())
}

/// The outcomes that one partition keeps, by the command's place in it.
#[derive(Default)]
pub(crate) struct Outcomes {
    kept: BTreeMap<Instance, Arc<Outcome>>,
    /// The places whose outcome the next commit stores, and those whose outcome it deletes.
    new: Vec<Instance>,
    gone: Vec<Instance>,
    /// For each partition, the instance below which everything survives a power failure.
    synced: Vec<Instance>,
}

impl Outcomes {
    /// Begins with the stored outcomes.
    pub fn load(stored: Vec<(Instance, Outcome)>, partitions: u16) -> Outcomes {
        let kept = stored.into_iter().map(|(inst, o)| (inst, Arc::new(o)));
        Outcomes {
            kept: kept.collect(),
            synced: vec![0; partitions.into()],
            ..Outcomes::default()
        }
    }

    /// Takes the stored outcomes of another state that replaces this partition's.
    pub fn replace(&mut self, stored: Vec<(Instance, Outcome)>) {
        let synced = std::mem::take(&mut self.synced);
        *self = Outcomes::load(stored, 0);
        self.synced = synced;
    }

    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Returns the outcome of a command that lies at this place.
    pub fn of(&self, inst: Instance, copy: &Copy) -> Option<&Arc<Outcome>> {
        self.kept.get(&inst).filter(|outcome| outcome.is_of(copy))
    }

    /// Returns the outcomes of commands that have a place before an instance here, and one within a
    /// range in another partition. [G-COMPLETE]
    pub fn across(
        &self,
        before: Instance,
        pid: PartitionId,
        range: &Range<Instance>,
    ) -> Vec<Arc<Outcome>> {
        let within = |o: &Outcome| o.place_in(pid).is_some_and(|place| range.contains(&place));
        let passed = self.kept.range(..before).map(|(_, outcome)| outcome);
        passed.filter(|o| within(o)).cloned().collect()
    }

    /// Keeps an outcome; the next commit stores it, and passes the place.
    pub fn keep(&mut self, inst: Instance, outcome: Arc<Outcome>) {
        self.kept.insert(inst, outcome);
        self.new.push(inst);
    }

    /// Notes that everything of a partition below this instance survives a power failure.
    pub fn synced(&mut self, pid: PartitionId, upto: Instance) {
        let known = &mut self.synced[usize::from(pid)];
        *known = upto.max(*known);
    }

    /// Forgets the outcomes that all their partitions have passed on disk. [V-FORGET]
    pub fn forget(&mut self) {
        let synced = &self.synced;
        let passed = |(pid, inst): &(PartitionId, Instance)| *inst < synced[usize::from(*pid)];
        let gone = &mut self.gone;
        self.kept.retain(|inst, outcome| {
            let needed = !outcome.places.iter().all(passed);
            if !needed {
                gone.push(*inst);
            }
            needed
        });
    }

    /// Appends the changes since the last call.
    pub fn save_changes(&mut self, records: &mut Records) {
        for inst in self.new.drain(..) {
            if let Some(outcome) = self.kept.get(&inst) {
                records.put_outcome(inst, outcome);
            }
        }
        for inst in self.gone.drain(..) {
            records.delete_outcome(inst);
        }
    }
}
