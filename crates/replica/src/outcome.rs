// SPDX-License-Identifier: Apache-2.0
//! What came of commands over several partitions, and how long it is kept.
//!
//! Stores commit and sync one by one. So a kill, or a power failure, may leave one partition past a command and
//! another one before it, and who is past it can't prepare any more. Each partition therefore stores the whole
//! outcome, in the commit that passes the command, and keeps it until all partitions of the command have passed
//! it on disk. [V-RECORD] [V-FORGET]
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

/// What came of a living command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    round: Round,
    places: Vec<(PartitionId, Instance)>,
    /// `None`: its session refused it, or had executed it before.
    executed: Option<Executed>,
}

/// What a command that took effect answered and changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Executed {
    pub client: u64,
    pub request: u64,
    pub reply: Vec<u8>,
    /// In the order of the vector.
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

    /// Whether it is this command's.
    pub(crate) fn is_of(&self, copy: &Copy) -> bool {
        self.round == copy.round && self.places == copy.places
    }

    pub(crate) fn executed(&self) -> Option<&Executed> {
        self.executed.as_ref()
    }

    /// Its place in a partition, if it has one there.
    pub(crate) fn place_in(&self, pid: PartitionId) -> Option<Instance> {
        let mut places = self.places.iter();
        places.find(|(of, _)| *of == pid).map(|(_, inst)| *inst)
    }

    /// Whether it belongs to a session of this partition.
    pub(crate) fn is_lowest(&self, pid: PartitionId) -> bool {
        self.places[0].0 == pid
    }

    /// What changes in a partition; empty = nothing.
    pub(crate) fn effect_in(&self, pid: PartitionId) -> &[u8] {
        let index = self.places.iter().position(|(of, _)| *of == pid);
        let effect = index.and_then(|at| self.executed.as_ref()?.effects.get(at));
        effect.map_or(&[], Vec::as_slice)
    }

    /// Appends its record.
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

    /// Reads a record.
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

/// Those that one partition keeps, by its own place.
#[derive(Default)]
pub(crate) struct Outcomes {
    kept: BTreeMap<Instance, Arc<Outcome>>,
    /// Places whose outcome the next commit has to store, or to remove.
    new: Vec<Instance>,
    gone: Vec<Instance>,
    /// By partition: everything below survives a power failure.
    synced: Vec<Instance>,
}

impl Outcomes {
    /// What is stored.
    pub fn load(stored: Vec<(Instance, Outcome)>, partitions: u16) -> Outcomes {
        let kept = stored.into_iter().map(|(inst, o)| (inst, Arc::new(o)));
        Outcomes {
            kept: kept.collect(),
            synced: vec![0; partitions.into()],
            ..Outcomes::default()
        }
    }

    /// Takes another replica's, whose state has replaced this partition's.
    pub fn replace(&mut self, stored: Vec<(Instance, Outcome)>) {
        let synced = std::mem::take(&mut self.synced);
        *self = Outcomes::load(stored, 0);
        self.synced = synced;
    }

    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// What came of a command that lies at this place.
    pub fn of(&self, inst: Instance, copy: &Copy) -> Option<&Arc<Outcome>> {
        self.kept.get(&inst).filter(|outcome| outcome.is_of(copy))
    }

    /// Those of commands with a place before an instance here, and one within a range in another partition.
    /// [G-COMPLETE]
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

    /// The next commit passes this place.
    pub fn keep(&mut self, inst: Instance, outcome: Arc<Outcome>) {
        self.kept.insert(inst, outcome);
        self.new.push(inst);
    }

    /// Everything of a partition below this instance survives a power failure.
    pub fn synced(&mut self, pid: PartitionId, upto: Instance) {
        let known = &mut self.synced[usize::from(pid)];
        *known = upto.max(*known);
    }

    /// Forgets what all partitions have passed on disk. [V-FORGET]
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

    /// Appends what changed since the last call.
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
