// SPDX-License-Identifier: Apache-2.0
//! A member as the one that acts: it prepares a ballot, completes what it finds, and then writes
//! changes.

use super::{ALONE, ATTEMPT, Ballot, Condition, Event, Mark, Register, SWAP, Said, Written};
use crate::{GroupState, StoreError};
use paxos::{GroupId, NodeId, Time};
use std::collections::{BTreeMap, BTreeSet};

/// The states that are known to be chosen.
pub(super) type States = BTreeMap<GroupId, GroupState>;

/// A controller's phase.
pub(super) enum Stance {
    StandsBy,
    /// It collects promises.
    Prepares(Attempt),
    /// It completes what it has found.
    Completes(Completion),
    Acts(Term),
}

/// A ballot that is being prepared.
pub(super) struct Attempt {
    ballot: Ballot,
    since: Time,
    promises: BTreeMap<NodeId, Vec<(GroupId, Mark)>>,
    /// It acts already, and prepares a later ballot in order to fill these empty members.
    renews: Option<(Term, BTreeMap<NodeId, u64>)>,
}

/// Found states that are being stored by a majority.
pub(super) struct Completion {
    ballot: Ballot,
    since: Time,
    groups: BTreeMap<GroupId, Finding>,
}

struct Finding {
    /// The newest state that a member of the majority has, and that member.
    mark: Mark,
    holder: NodeId,
    state: Option<GroupState>,
    /// A majority has this very mark.
    is_chosen: bool,
    /// The members that accepted it in our ballot.
    accepted: BTreeSet<NodeId>,
}

/// A term: the time from taking over until standing by.
pub(super) struct Term {
    /// The ballot with which it began.
    name: Ballot,
    /// The ballot in which it writes now.
    ballot: Ballot,
    states: States,
    swap: Option<Swap>,
    /// A majority heard this controller then.
    heard_at: Time,
    /// Empty members that are being filled, with their processes.
    pub(super) fills: BTreeMap<NodeId, u64>,
}

struct Swap {
    group: GroupId,
    state: GroupState,
    since: Time,
    accepted: BTreeSet<NodeId>,
}

impl Register {
    /// Returns the ballot in which this controller acts, if it does.
    pub(super) fn acts_in(&self) -> Option<Ballot> {
        self.term().map(|term| term.ballot)
    }

    fn term(&self) -> Option<&Term> {
        match &self.stance {
            Stance::Acts(term) => Some(term),
            Stance::Prepares(attempt) => attempt.renews.as_ref().map(|(term, _)| term),
            _ => None,
        }
    }

    fn term_mut(&mut self) -> Option<&mut Term> {
        match &mut self.stance {
            Stance::Acts(term) => Some(term),
            Stance::Prepares(attempt) => attempt.renews.as_mut().map(|(term, _)| term),
            _ => None,
        }
    }

    /// Returns whether this controller acts and a majority has heard it lately.
    pub(super) fn is_heard(&self, now: Time, lately: Time) -> bool {
        self.term().is_some_and(|term| now < term.heard_at + lately)
    }

    // ---- Taking over -----------------------------------------------------------------------

    pub(super) fn may_take_over(&self, now: Time) -> bool {
        let stands_by = matches!(self.stance, Stance::StandsBy);
        let Some(record) = self.voting().filter(|_| stands_by && self.alive) else {
            return false;
        };
        if record.is_alone() {
            return self.others_are_empty(now);
        }
        // A majority must hear nobody act, too: else this would only disturb whoever acts.
        let would_promise = |v: &&NodeId| {
            let hello = self.condition_of(now, **v);
            **v == self.me || hello.is_some_and(|h| !h.follows && self.is_fellow(h))
        };
        record.members.iter().filter(would_promise).count() >= self.quorum()
    }

    pub(super) fn take_over(&mut self, now: Time) {
        if let Some(ballot) = self.next_ballot() {
            self.prepare_next(now, ballot, None);
        }
    }

    /// Returns an unused ballot, or `None` if the count overflows, which only a forged ballot can
    /// cause.
    fn next_ballot(&self) -> Option<Ballot> {
        let count = self.highest.max(self.promised()).count.checked_add(1)?;
        Some(Ballot { count, by: self.me })
    }

    fn prepare_next(
        &mut self,
        now: Time,
        ballot: Ballot,
        renews: Option<(Term, BTreeMap<NodeId, u64>)>,
    ) {
        // The own promise is stored before anybody is asked. [E-BALLOT]
        self.promise_it(ballot);
        self.stance = Stance::Prepares(Attempt {
            ballot,
            since: now,
            promises: BTreeMap::new(),
            renews,
        });
        self.tell_voters(&Said::Prepare { ballot });
    }

    pub(super) fn promise(
        &mut self,
        now: Time,
        from: NodeId,
        ballot: Ballot,
        groups: Vec<(GroupId, Mark)>,
    ) {
        let (voters, quorum) = (self.voters().to_vec(), self.quorum());
        let Stance::Prepares(attempt) = &mut self.stance else {
            return;
        };
        if attempt.ballot != ballot || !voters.contains(&from) {
            return;
        }
        attempt.promises.insert(from, groups);
        let has = |v: &NodeId| attempt.promises.contains_key(v);
        // Whoever fills empty members needs the promises of all others. [E-FILL]
        let have_all = match &attempt.renews {
            Some((_, empty)) => voters.iter().all(|v| empty.contains_key(v) || has(v)),
            None => true,
        };
        if have_all && attempt.promises.len() >= quorum {
            self.has_promises(now, true);
        }
    }

    /// Goes on with the promises that have come.
    fn has_promises(&mut self, now: Time, may_fill: bool) {
        let Stance::Prepares(attempt) = std::mem::replace(&mut self.stance, Stance::StandsBy)
        else {
            return;
        };
        let quorum = self.quorum();
        let groups = findings(&attempt.promises, quorum);
        let own = self.record.as_ref().map(|r| r.marks()).unwrap_or_default();
        if let Some((mut term, empty)) = attempt.renews {
            // A change that has waited for this ballot gets its whole time.
            if let Some(swap) = &mut term.swap {
                swap.since = now;
            }
            let is_newest =
                |(id, finding): (&GroupId, &Finding)| own.contains(&(*id, finding.mark));
            if !groups.iter().all(is_newest) {
                return self.end(now, "another controller has written".to_owned());
            }
            let fills = if may_fill { empty } else { BTreeMap::new() };
            let ballot = attempt.ballot;
            self.stance = Stance::Acts(Term {
                ballot,
                fills,
                ..term
            });
            return self.fill();
        }
        let record = self.record.as_ref();
        let has = |id: &GroupId, mark| {
            let written = record.and_then(|r| r.groups.get(id));
            written
                .filter(|w| w.mark() == mark)
                .map(|w| w.state.clone())
        };
        let groups = groups.into_iter().map(|(id, finding)| {
            let state = has(&id, finding.mark);
            (id, Finding { state, ..finding })
        });
        self.stance = Stance::Completes(Completion {
            ballot: attempt.ballot,
            since: attempt.since,
            groups: groups.collect(),
        });
        self.complete(now);
        self.ask_and_write();
    }

    pub(super) fn fetched(&mut self, now: Time, ballot: Ballot, id: GroupId, written: Written) {
        let Stance::Completes(completion) = &mut self.stance else {
            return;
        };
        let found = completion.groups.get_mut(&id);
        let is_it = |f: &&mut Finding| f.state.is_none() && f.mark == written.mark();
        let sound = completion.ballot == ballot && written.state.is_sound();
        if let Some(finding) = found.filter(|_| sound).filter(is_it) {
            finding.state = Some(written.state);
            self.complete(now);
            self.ask_and_write();
        }
    }

    /// Asks for what is missing, and writes what isn't known to be chosen. [E-COMPLETE]
    fn ask_and_write(&mut self) {
        let Stance::Completes(completion) = &self.stance else {
            return;
        };
        let ballot = completion.ballot;
        let mut said = Vec::new();
        for (&group, finding) in &completion.groups {
            match &finding.state {
                None => said.push((Some(finding.holder), Said::Fetch { ballot, group })),
                Some(state) if !finding.is_chosen => {
                    let state = state.clone();
                    let accept = Said::Accept {
                        ballot,
                        group,
                        state,
                    };
                    said.push((None, accept));
                }
                Some(_) => {}
            }
        }
        for (to, said) in said {
            match to {
                Some(node) => self.say(node, said),
                None => self.tell_voters(&said),
            }
        }
    }

    /// Acts once everything that was found is chosen. [E-COMPLETE]
    fn complete(&mut self, now: Time) {
        let quorum = self.quorum();
        let Stance::Completes(completion) = &mut self.stance else {
            return;
        };
        let is_done = |f: &Finding| f.is_chosen || f.accepted.len() >= quorum;
        let states = completion.groups.iter().map(|(id, finding)| {
            let state = finding.state.clone().filter(|_| is_done(finding))?;
            Some((*id, state))
        });
        let Some(states) = states.collect::<Option<States>>() else {
            return;
        };
        let ballot = completion.ballot;
        self.stance = Stance::Acts(Term {
            name: ballot,
            ballot,
            states: states.clone(),
            swap: None,
            heard_at: now,
            fills: BTreeMap::new(),
        });
        self.due.handed_on = None;
        self.out.events.push_back(Event::Acts(ballot, states));
        self.due.hello = now;
    }

    // ---- Changes ---------------------------------------------------------------------------

    /// Begins to replace the state whose version is `expected`; [`Event::Swapped`] tells the end.
    /// `term` is the ballot of [`Event::Acts`]: a change of an earlier term is a conflict.
    pub fn swap(
        &mut self,
        now: Time,
        term: Ballot,
        group: GroupId,
        expected: u64,
        state: GroupState,
    ) {
        let counts = |acting: &&mut Term| acting.name == term && acting.swap.is_none();
        let Some(acting) = self.term_mut().filter(counts) else {
            let conflict = Event::Swapped(Err(StoreError::Conflict));
            return self.out.events.push_back(conflict);
        };
        if acting.states.get(&group).map_or(0, |s| s.version) != expected {
            let conflict = Event::Swapped(Err(StoreError::Conflict));
            self.out.events.push_back(conflict);
            return self.end(now, "its states aren't those of the register".to_owned());
        }
        acting.swap = Some(Swap {
            group,
            state,
            since: now,
            accepted: BTreeSet::new(),
        });
        self.write_swap();
    }

    /// Sends the change to those that haven't accepted it. While a later ballot is prepared it
    /// waits.
    fn write_swap(&mut self) {
        let Stance::Acts(term) = &self.stance else {
            return;
        };
        let Some(swap) = &term.swap else { return };
        let said = Said::Accept {
            ballot: term.ballot,
            group: swap.group,
            state: swap.state.clone(),
        };
        let open = self.voters().iter();
        let open: Vec<_> = open
            .filter(|v| !swap.accepted.contains(v))
            .copied()
            .collect();
        for to in open {
            self.say(to, said.clone());
        }
    }

    pub(super) fn accepted(
        &mut self,
        now: Time,
        from: NodeId,
        ballot: Ballot,
        group: GroupId,
        version: u64,
    ) {
        let quorum = self.quorum();
        if !self.voters().contains(&from) {
            return;
        }
        match &mut self.stance {
            Stance::Completes(completion) if completion.ballot == ballot => {
                let found = completion.groups.get_mut(&group);
                if let Some(finding) = found.filter(|f| f.mark.1 == version) {
                    finding.accepted.insert(from);
                    self.complete(now);
                }
            }
            Stance::Acts(term) if term.ballot == ballot => {
                let is_it = |s: &&mut Swap| s.group == group && s.state.version == version;
                let Some(swap) = term.swap.as_mut().filter(is_it) else {
                    return;
                };
                swap.accepted.insert(from);
                if swap.accepted.len() >= quorum {
                    let swap = term.swap.take();
                    term.states
                        .extend(swap.map(|swap| (swap.group, swap.state)));
                    self.out.events.push_back(Event::Swapped(Ok(())));
                }
            }
            _ => {}
        }
    }

    // ---- The end ---------------------------------------------------------------------------

    pub(super) fn refused(&mut self, now: Time, ballot: Ballot, promised: Ballot) {
        self.highest = self.highest.max(promised);
        if promised > ballot {
            return self.outbid(now, promised);
        }
        // Another controller acts, which that member hears.
        match &self.stance {
            Stance::Prepares(attempt) if attempt.ballot == ballot && attempt.renews.is_none() => {
                self.stand_by(now);
            }
            _ => {}
        }
    }

    /// Stands by if a later ballot than the own one is promised somewhere.
    pub(super) fn outbid(&mut self, now: Time, promised: Ballot) {
        let own = match &self.stance {
            Stance::StandsBy => return,
            Stance::Prepares(attempt) => attempt.ballot,
            Stance::Completes(completion) => completion.ballot,
            Stance::Acts(term) => term.ballot,
        };
        if promised > own && self.voters().contains(&promised.by) {
            self.end(now, format!("controller {} takes over", promised.by));
        }
    }

    /// Ends the term that began with this ballot, as its owner can't go on.
    pub fn resign(&mut self, now: Time, term: Ballot, why: &str) {
        if self.term().is_some_and(|acting| acting.name == term) {
            self.end(now, why.to_owned());
        }
    }

    /// Ends the attempt or the term. A change that was begun may or may not be completed by the
    /// next.
    pub(super) fn end(&mut self, now: Time, why: String) {
        if let Some(term) = self.term() {
            if term.swap.is_some() {
                let failed =
                    StoreError::Failed(format!("the change isn't known to be stored: {why}"));
                self.out.events.push_back(Event::Swapped(Err(failed)));
            }
            self.out.events.push_back(Event::Ended(why));
        }
        self.stand_by(now);
    }

    fn stand_by(&mut self, now: Time) {
        self.stance = Stance::StandsBy;
        self.wait(now);
    }

    /// Ends what has taken too long.
    pub(super) fn give_up_late(&mut self, now: Time) {
        self.note_who_hears(now);
        let late = match &self.stance {
            Stance::StandsBy => return,
            Stance::Prepares(attempt) if now < attempt.since + ATTEMPT => return,
            Stance::Prepares(attempt) => {
                let enough = attempt.promises.len() >= self.quorum();
                if attempt.renews.is_some() && enough {
                    return self.has_promises(now, false);
                }
                "too few controllers promise"
            }
            Stance::Completes(completion) if now < completion.since + ATTEMPT => return,
            Stance::Completes(_) => "too few controllers store what was found",
            Stance::Acts(term) if now >= term.heard_at + ALONE => "too few controllers answer",
            Stance::Acts(_) if self.voters().len() == 1 && !self.others_are_empty(now) => {
                "another controller has a store of its own"
            }
            Stance::Acts(term) => match &term.swap {
                Some(swap) if now >= swap.since + SWAP => "too few controllers store it",
                _ => return,
            },
        };
        let silent = self.silent(now);
        let why = match silent.is_empty() {
            true => late.to_owned(),
            false => format!("{late}: {silent}"),
        };
        self.end(now, why);
    }

    fn note_who_hears(&mut self, now: Time) {
        let voters = self.voters().iter();
        let hears = |v: &&NodeId| {
            let hello = self.condition_of(now, **v);
            **v == self.me || hello.is_some_and(|h| self.is_fellow(h))
        };
        let heard = voters.filter(hears).count() >= self.quorum();
        match &mut self.stance {
            Stance::Acts(term) if heard => term.heard_at = now,
            _ => {}
        }
    }

    pub(super) fn resend(&mut self) {
        match &self.stance {
            Stance::StandsBy => {}
            Stance::Prepares(attempt) => {
                let ballot = attempt.ballot;
                let open = self.voters().iter();
                let open = open.filter(|v| !attempt.promises.contains_key(v)).copied();
                for to in open.collect::<Vec<_>>() {
                    self.say(to, Said::Prepare { ballot });
                }
            }
            Stance::Completes(_) => self.ask_and_write(),
            Stance::Acts(_) => self.write_swap(),
        }
    }

    fn tell_voters(&mut self, said: &Said) {
        for to in self.voters().to_vec() {
            self.say(to, said.clone());
        }
    }

    // ---- Empty members ---------------------------------------------------------------------

    /// Begins to fill members whose stores were lost, in a ballot that all others promise after
    /// these said that they are empty. So no promise that they forgot is above it. [E-FILL]
    pub(super) fn begin_to_fill(&mut self, now: Time) {
        let Stance::Acts(term) = &self.stance else {
            return;
        };
        if term.swap.is_some() || self.voters().len() == 1 {
            return;
        }
        let mut empty = BTreeMap::new();
        for peer in self.peers().collect::<Vec<_>>() {
            match self.condition_of(now, peer) {
                Some(hello) => match hello.condition {
                    Condition::Empty { .. } => drop(empty.insert(peer, hello.nonce)),
                    Condition::Member { .. } => {}
                    Condition::Alone | Condition::Founding { .. } => return,
                },
                None => return,
            }
        }
        if empty.is_empty() || self.voters().len() - empty.len() < self.quorum() {
            return;
        }
        let Some(ballot) = self.next_ballot() else {
            return;
        };
        if let Stance::Acts(term) = std::mem::replace(&mut self.stance, Stance::StandsBy) {
            self.prepare_next(now, ballot, Some((term, empty)));
        }
    }

    /// Sends the record to the members that are being filled, in the ballot that was prepared for
    /// that.
    fn fill(&mut self) {
        let (Stance::Acts(term), Some(record)) = (&mut self.stance, &self.record) else {
            return;
        };
        let peers = &self.peers;
        term.fills.retain(|node, nonce| {
            let is_empty = |c| matches!(c, Condition::Empty { .. });
            let hello = peers.get(node).map(|heard| &heard.hello);
            hello.is_some_and(|h| h.nonce == *nonce && is_empty(h.condition))
        });
        let (ballot, origin) = (term.ballot, record.origin);
        let written = |(id, state): (&GroupId, &GroupState)| {
            let state = state.clone();
            (*id, Written { ballot, state })
        };
        let groups: Vec<_> = term.states.iter().map(written).collect();
        for (node, nonce) in term.fills.clone() {
            self.send_record(node, nonce, (origin, ballot, false), &groups);
        }
    }
}

/// Returns the newest state of each group that any of the promises shows. What a majority has
/// accepted in one ballot is chosen.
fn findings(
    promises: &BTreeMap<NodeId, Vec<(GroupId, Mark)>>,
    quorum: usize,
) -> BTreeMap<GroupId, Finding> {
    let mut found: BTreeMap<GroupId, Finding> = BTreeMap::new();
    let shown = || {
        let each = promises.iter();
        each.flat_map(|(node, groups)| groups.iter().map(move |(id, mark)| (*node, *id, *mark)))
    };
    for (holder, id, mark) in shown() {
        if found.get(&id).is_none_or(|finding| finding.mark < mark) {
            let same = shown().filter(|(_, other, m)| *other == id && *m == mark);
            let finding = Finding {
                mark,
                holder,
                state: None,
                is_chosen: same.count() >= quorum,
                accepted: BTreeSet::new(),
            };
            found.insert(id, finding);
        }
    }
    found
}
