// SPDX-License-Identifier: Apache-2.0
//! Collects the log of the new view beside the old one.

use std::collections::BTreeMap;
use std::ops::Range;

use super::super::log::{Entry, OwnedEntry, contains};
use super::super::replica::{Duty, Peer, Replica, Status};
use super::super::view;
use super::Change;
use crate::wire::nopaxos::GapRequest;
use crate::{Header, Instance, NodeId, Outbox, Reason, Round, Time, Verdict};

/// The log of the new view, in terms of the old one and of what others have.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub(in crate::nopaxos) struct Plan {
    /// The last view in which the members were normal whose logs count above `stable`.
    pub(super) origin: Round,
    pub(super) stable: Instance,
    pub(super) end: Instance,
    /// The no-ops of the new log, from `stable` on.
    pub(super) noops: Vec<Range<Instance>>,
    /// The node that has the slots below `stable`.
    pub(super) below: NodeId,
    /// The nodes that have the slots from `stable` on, and the end of each one's log.
    pub(super) above: Vec<(NodeId, Instance)>,
    /// The entries that these nodes have sent.
    pub(super) fetched: BTreeMap<Instance, OwnedEntry>,
    /// All entries below this slot are here.
    pub(super) cursor: Instance,
    pub(super) asked_end: Instance,
    pub(super) asked_at: Time,
    pub(super) tries: usize,
}

impl Plan {
    /// Returns a plan that begins at the first slot that `replica` doesn't know to be stable.
    pub(super) fn new(
        replica: &Replica,
        origin: Round,
        above_stable: Range<Instance>,
        noops: Vec<Range<Instance>>,
    ) -> Plan {
        Plan {
            origin,
            stable: above_stable.start,
            end: above_stable.end,
            noops,
            below: 0,
            above: Vec::new(),
            fetched: BTreeMap::new(),
            cursor: replica.stable,
            asked_end: replica.stable,
            asked_at: 0,
            tries: 0,
        }
    }
}

/// Returns all slots of these ranges that lie within `bounds`, in order.
pub(super) fn union(
    ranges: impl Iterator<Item = Range<Instance>>,
    bounds: Range<Instance>,
) -> Vec<Range<Instance>> {
    let clipped = ranges.map(|r| r.start.max(bounds.start)..r.end.min(bounds.end));
    let mut sorted: Vec<Range<Instance>> = clipped.filter(|r| !r.is_empty()).collect();
    sorted.sort_unstable_by_key(|r| r.start);
    let mut union: Vec<Range<Instance>> = Vec::new();
    for range in sorted {
        match union.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => union.push(range),
        }
    }
    union
}

impl Replica {
    /// Moves on over the entries that are here, and then asks for the next missing ones, or puts
    /// the complete new log in the old one's place. [W-START]
    pub(in crate::nopaxos) fn collect(&mut self, now: Time, out: &mut impl Outbox) {
        let Some(mut plan) = self.change.plan.take() else {
            return;
        };
        while plan.cursor < plan.end && !self.lacks_of(&plan, plan.cursor) {
            plan.cursor += 1;
        }
        if plan.end > self.log.end() {
            let floor = plan.end - (self.log.end() - self.log.floor());
            self.short_of = Some(floor).filter(|floor| *floor > self.stable);
        } else if plan.cursor == plan.end {
            let i_lead = self.leader() == Some(self.member());
            match i_lead {
                true => self.begin(plan, now, out),
                false => {
                    let end = plan.end;
                    self.exchange(plan, now);
                    self.answer_start_view(end, out);
                }
            }
            return;
        } else if plan.cursor >= plan.asked_end {
            self.ask_source(&mut plan, now, out);
        }
        self.change.plan = Some(plan);
    }

    /// Returns true if the new log has an entry at `inst` that isn't here.
    fn lacks_of(&self, plan: &Plan, inst: Instance) -> bool {
        if inst < self.stable || plan.fetched.contains_key(&inst) {
            return false;
        }
        if inst < plan.stable {
            return true;
        }
        !contains(&plan.noops, inst) && !self.has_request_of(plan, inst)
    }

    /// Returns true if this replica's own log counts at `inst`, and has a request there.
    fn has_request_of(&self, plan: &Plan, inst: Instance) -> bool {
        self.last_normal == plan.origin && self.log.get(inst).is_some_and(|e| !e.is_noop())
    }

    pub(super) fn ask_source(&self, plan: &mut Plan, now: Time, out: &mut impl Outbox) {
        let begin = plan.cursor;
        let mut end = plan.end.min(begin + u64::from(GapRequest::MAX));
        if begin < plan.stable {
            end = end.min(plan.stable);
        }
        let whom = match begin < plan.stable {
            true => Some(plan.below),
            false => {
                let have_it = || plan.above.iter().filter(|(_, next)| *next > begin);
                let turn = plan.tries % have_it().count().max(1);
                have_it().nth(turn).map(|(node, _)| *node)
            }
        };
        plan.asked_at = now;
        plan.asked_end = end;
        if whom.is_some() {
            self.ask_for(whom, begin..end, out);
        }
    }

    /// Handles an answer to a question about the new log. Below `stable` only its source counts,
    /// and so do the source's no-ops; from there on a no-op would have been listed.
    pub(in crate::nopaxos) fn fetched(
        &mut self,
        now: Time,
        h: &Header,
        entry: Option<Entry<'_>>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        let i_lead = self.leader() == Some(self.member());
        let mut plan = self.change.plan.take().ok_or(Reason::Unexpected)?;
        let is_below = h.inst < plan.stable;
        let from_source = match is_below {
            true => h.swid == plan.below,
            false => plan
                .above
                .iter()
                .any(|(node, next)| *node == h.swid && h.inst < *next),
        };
        let is_open = (plan.cursor..plan.end).contains(&h.inst) && self.lacks_of(&plan, h.inst);
        let listed_only = entry.is_some_and(|e| e.is_noop()) && !is_below && i_lead;
        if !from_source || !is_open || listed_only {
            self.change.plan = Some(plan);
            return Err(Reason::Unexpected);
        }
        let Some(entry) = entry else {
            // The slot is trimmed at its source. The leader of a view that has begun has it in its
            // checkpoint, if not in its log.
            if is_below || !i_lead {
                self.short_of = Some(h.inst + 1);
            }
            self.change.plan = Some(plan);
            return Ok(Verdict::Answered);
        };
        plan.fetched.insert(h.inst, OwnedEntry::of(&entry));
        self.change.since = now;
        self.change.plan = Some(plan);
        self.collect(now, out);
        Ok(Verdict::Changed)
    }

    /// Puts the new log in the old one's place, all at once, and makes the replica normal in the
    /// new view. [W-START]
    pub(super) fn exchange(&mut self, plan: Plan, now: Time) {
        let noop = Entry::noop(view::stamp(self.view));
        for inst in self.stable..plan.end {
            let is_noop = inst >= plan.stable && contains(&plan.noops, inst);
            let new = match plan.fetched.get(&inst) {
                Some(slot) => slot.entry(),
                None if is_noop => noop,
                None => continue,
            };
            if inst < self.log.next() {
                self.put(inst, &new);
            } else {
                let _has_room = self.log.push(&new);
            }
        }
        // A state that the replica took over meanwhile may reach further. [W-CHECKPOINT]
        let end = plan.end.max(self.stable);
        if self.log.next() > end {
            self.log.truncate(end);
            self.changed_from(end);
        }
        if self.last_normal.epoch() != self.view.epoch() {
            self.in_conflict = false;
        }
        self.stable = self.stable.max(plan.stable);
        self.status = Status::Normal;
        self.last_normal = self.view;
        self.counts.view_changes += 1;
        self.change = Change::default();
        self.acknowledge_from(plan.stable.min(plan.end));
        let members = self.session().map_or(0, |s| s.members.len());
        self.duty = Duty {
            peers: vec![Peer::default(); members],
            prepared: end,
            agreed: plan.end,
            told_stable: self.stable,
            heard: now,
            sync_at: now,
            ..Duty::default()
        };
    }
}
