// SPDX-License-Identifier: Apache-2.0
//! The answers of acceptors, and what each of them proves.

use super::repair::{Candidate, Phase, Vote, count};
use super::{Outcome, Recover};
use crate::wire::value::Rejection;
use crate::{Flags, Header, Instance, MsgType, Packet, Reason, Round, Time};

impl Recover {
    /// Makes the checks that all answers share. Returns the instance under repair and the index of
    /// the answering member.
    pub(super) fn check(&self, packet: &Packet<'_>) -> Result<(Instance, usize), Reason> {
        let h = &packet.header;
        self.settings.deployment.check(packet)?;
        if h.pid != self.settings.pid {
            return Err(Reason::UnknownPartition);
        }
        if !matches!(
            h.msgtype,
            MsgType::Phase1b | MsgType::Phase2b | MsgType::Reject
        ) {
            return Err(Reason::NotForRole);
        }
        // Answers to a range belong to the candidate and to readers.
        if h.flags.has(Flags::RANGE) || !self.open.contains_key(&h.inst) {
            return Err(Reason::Unexpected);
        }
        let active = self.active.as_ref().ok_or(Reason::Unexpected)?;
        let member = active.acceptor(h.swid).ok_or(Reason::UnknownSender)?;
        Ok((h.inst, member))
    }

    /// Handles PHASE1B to a QUERY: the member has no vote. [R-QUERY]
    pub(super) fn on_no_vote(
        &mut self,
        inst: Instance,
        member: usize,
        packet: &Packet<'_>,
    ) -> Result<(), Reason> {
        let h = &packet.header;
        let repair = self.open.get_mut(&inst).expect("checked");
        if !h.vrnd.is_none() {
            return Err(Reason::BadRound);
        }
        if (h.client, h.request) != (self.settings.nonce, repair.question) {
            return Err(Reason::Stale);
        }
        let Phase::Query {
            answered, no_vote, ..
        } = &mut repair.phase
        else {
            return Err(Reason::Unexpected);
        };
        count(no_vote, member)?;
        *answered |= 1 << member;
        Ok(())
    }

    /// Handles PHASE1B to a PHASE1A: the member promises, and shows its vote. [R-VALUE]
    pub(super) fn on_promise(
        &mut self,
        inst: Instance,
        member: usize,
        packet: &Packet<'_>,
    ) -> Result<(), Reason> {
        let h = &packet.header;
        let repair = self.open.get_mut(&inst).expect("checked");
        let Phase::Promise {
            round,
            promised,
            best,
        } = &mut repair.phase
        else {
            return Err(Reason::Unexpected);
        };
        if h.rnd != *round {
            return Err(Reason::Stale);
        }
        if h.vrnd.is_none() {
            return count(promised, member);
        }
        // Nobody can have voted in this round yet, since its value isn't chosen.
        if !h.vrnd.is_valid() || h.vrnd >= h.rnd {
            return Err(Reason::BadRound);
        }
        let vote = Vote {
            round: h.vrnd,
            candidate: Candidate::of(packet),
        };
        if !vote.candidate.is_well_formed() {
            return Err(Reason::BadSession);
        }
        let in_same_round = best.as_ref().filter(|best| best.round == vote.round);
        if in_same_round.is_some_and(|b| b.candidate.identity() != vote.candidate.identity()) {
            return Err(Reason::Conflict);
        }
        count(promised, member)?;
        if best.as_ref().is_none_or(|best| best.round < vote.round) {
            *best = Some(vote);
        }
        Ok(())
    }

    /// Handles PHASE2B: the member voted.
    pub(super) fn on_vote(
        &mut self,
        inst: Instance,
        member: usize,
        packet: &Packet<'_>,
    ) -> Result<(), Reason> {
        let h = &packet.header;
        if h.rnd != h.vrnd || !h.rnd.is_valid() {
            return Err(Reason::BadRound);
        }
        let repair = self.open.get_mut(&inst).expect("checked");
        // Even a vote that is old, known, or can't be judged answers the question.
        let answers = match &mut repair.phase {
            Phase::Query { answered, .. } => count(answered, member).is_ok(),
            _ => false,
        };
        let known = repair.votes[member].as_ref().map(|vote| vote.round);
        let useless = match self.configurations.get(&h.rnd.epoch()) {
            None => Some(Reason::UnknownEpoch),
            Some(judge) if judge.acceptor(h.swid).is_none() => Some(Reason::UnknownSender),
            Some(_) if known > Some(h.rnd) => Some(Reason::Stale),
            Some(_) if known == Some(h.rnd) => Some(Reason::Duplicate),
            Some(_) => None,
        };
        match useless {
            Some(_) if answers => return Ok(()),
            Some(reason) => return Err(reason),
            None => {}
        }
        repair.votes[member] = Some(Vote {
            round: h.rnd,
            candidate: Candidate::of(packet),
        });
        if self.is_chosen(inst, member) {
            self.decide(inst, member);
        }
        Ok(())
    }

    /// Returns true if f+1 acceptors of the configuration that this member's vote belongs to voted
    /// as it did. [R-QUERY]
    fn is_chosen(&self, inst: Instance, member: usize) -> bool {
        let Some(repair) = self.open.get(&inst) else {
            return false;
        };
        let Some(vote) = &repair.votes[member] else {
            return false;
        };
        let Some(judge) = self.configurations.get(&vote.round.epoch()) else {
            return false;
        };
        // Only votes of acceptors of their own round's configuration are kept.
        let equal = repair.votes.iter().flatten().filter(|other| {
            other.round == vote.round && other.candidate.identity() == vote.candidate.identity()
        });
        equal.count() >= judge.quorum()
    }

    fn decide(&mut self, inst: Instance, member: usize) {
        let Some(mut repair) = self.open.remove(&inst) else {
            return;
        };
        let Some(vote) = repair.votes[member].take() else {
            return;
        };
        let header = self.value_header(MsgType::Deliver, inst, vote.round, &vote.candidate);
        self.outcomes.push_back(Outcome::Decided {
            header: Header {
                vrnd: vote.round,
                ..header
            },
            value: vote.candidate.bytes,
        });
    }

    pub(super) fn on_reject(
        &mut self,
        now: Time,
        inst: Instance,
        member: usize,
        packet: &Packet<'_>,
    ) -> Result<(), Reason> {
        let rejection = Rejection::parse(packet.value)?;
        match rejection.reason {
            Reason::Preempted => self.on_preempted(now, inst, packet.header.rnd, rejection.round),
            Reason::Trimmed if rejection.trim > inst => {
                self.on_trimmed(inst, member, rejection.trim)
            }
            // That acceptor is behind in trimming, and has no answer for now.
            Reason::Window => Err(Reason::Window),
            Reason::Trimmed => Err(Reason::BadValue),
            _ => Err(Reason::Unexpected),
        }
    }

    /// Withdraws for a while, since a higher round was promised, and then goes on above that round.
    /// [R-RETREAT]
    fn on_preempted(
        &mut self,
        now: Time,
        inst: Instance,
        asked: Round,
        promised: Round,
    ) -> Result<(), Reason> {
        let repair = self.open.get_mut(&inst).expect("checked");
        let round = match &repair.phase {
            Phase::Promise { round, .. } | Phase::Accept { round, .. } => *round,
            Phase::Query { .. } => return Err(Reason::Stale),
        };
        if asked != round {
            return Err(Reason::Stale);
        }
        if promised <= round || !promised.is_valid() {
            return Err(Reason::BadRound);
        }
        if promised.epoch() > round.epoch() {
            self.later_epoch = self.later_epoch.max(Some(promised.epoch()));
        }
        repair.preempted_by = repair.preempted_by.max(promised);
        let wait = self
            .backoff
            .delay(self.settings.retry_after, repair.preemptions);
        repair.preemptions += 1;
        repair.ask(now, wait, repair.votes.len());
        Ok(())
    }

    /// Notes a member's trim point, and ends every repair below one that f+1 members claim.
    /// Acceptors forget only what checkpoints cover, but a single one may be wrong. [R-TRIMMED]
    fn on_trimmed(&mut self, inst: Instance, member: usize, claim: Instance) -> Result<(), Reason> {
        let quorum = self.active.as_ref().ok_or(Reason::Unexpected)?.quorum();
        let repair = self.open.get_mut(&inst).expect("checked");
        let known = &mut repair.trims[member];
        if claim <= *known {
            return Err(Reason::Duplicate);
        }
        *known = claim;
        if let Some(trim) = repair.confirmed_trim(quorum) {
            self.end_below(trim);
        }
        Ok(())
    }

    fn end_below(&mut self, trim: Instance) {
        let kept = self.open.split_off(&trim);
        for inst in std::mem::replace(&mut self.open, kept).into_keys() {
            self.outcomes.push_back(Outcome::Trimmed { inst, trim });
        }
        self.forget_below(trim);
    }
}
