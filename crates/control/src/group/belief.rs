// SPDX-License-Identifier: Apache-2.0
//! Checks whether an acceptor's claims about its memory can be true.
//!
//! T, the largest trim point, and E, the largest `end`, decide which instances a new epoch takes
//! for forgotten and where it continues, so a single acceptor with a wrong `trim` would mislead all
//! nodes. An acceptor trims to what g+1 replicas have in durable checkpoints, and its votes lie in
//! the slots above that. So an acceptor that claims a trim point above every position that the
//! replicas show, or votes beyond its slots, has a damaged memory and counts as lost. If it claims
//! more than any checkpoint shows so far, its answers wait until a checkpoint confirms them.
//! [C-BELIEF]

use super::GroupControl;
use crate::status::PartitionStatus;
use paxos::wire::value::{Probe, RangeReport, Rejection};
use paxos::{Flags, Instance, MsgType, NodeId, Packet, PartitionId, Reason};

/// A claim that the replicas don't confirm.
#[derive(Clone, Copy)]
pub(super) struct Claim {
    pub node: NodeId,
    /// The memory that makes the claim.
    pub nonce: u64,
    pid: PartitionId,
    trim: Instance,
    end: Instance,
    /// The last PROBE before the claim came. Answers to it and to older ones don't concern the
    /// claim.
    since: u64,
    /// The claim can't be true.
    pub refuted: bool,
}

impl Claim {
    /// Returns whether an acceptor with this many slots can't have voted that far.
    fn is_beyond(&self, slots: u64) -> bool {
        self.end.saturating_sub(self.trim) > slots
    }
}

impl GroupControl {
    /// Returns an error if a packet of an acceptor must not go to the candidate yet.
    pub(super) fn believe(&mut self, packet: &Packet<'_>) -> Result<(), Reason> {
        let header = &packet.header;
        let memory = self.suspicion.get(Probe::Acceptor, header.swid);
        let memory = memory.and_then(|w| w.memory);
        let claim = match header.msgtype {
            MsgType::Phase1b if header.flags.has(Flags::RANGE) => {
                let report = RangeReport::parse(packet.value)?;
                Some((report.nonce, report.trim, report.end))
            }
            MsgType::Reject => {
                let rejection = Rejection::parse(packet.value)?;
                let trimmed = rejection.reason == Reason::Trimmed;
                memory
                    .filter(|_| trimmed)
                    .map(|nonce| (nonce, rejection.trim, 0))
            }
            _ => None,
        };
        if let Some((nonce, trim, end)) = claim {
            self.note_claim(header.swid, nonce, header.pid, trim, end);
            let open = |c: &Claim| (c.node, c.nonce, c.pid) == (header.swid, nonce, header.pid);
            if self.claims.iter().any(open) {
                return Err(Reason::BadValue);
            }
        }
        match memory.is_some_and(|nonce| self.is_disbelieved(header.swid, nonce)) {
            true => Err(Reason::BadValue),
            false => Ok(()),
        }
    }

    /// Returns whether this memory has made a claim that can't be true, so that it counts as lost.
    pub(super) fn is_disbelieved(&self, node: NodeId, nonce: u64) -> bool {
        let of = |c: &Claim| c.refuted && (c.node, c.nonce) == (node, nonce);
        self.claims.iter().any(of)
    }

    /// Returns the furthest trim point of a partition that an acceptor shows whose memory counts.
    pub(super) fn furthest_trim(&self, pid: PartitionId) -> Option<Instance> {
        let acceptors = self.suspicion.iter();
        let acceptors = acceptors.filter(|w| w.role == Probe::Acceptor);
        let believed = acceptors.filter(|w| {
            let is_disbelieved = |nonce| self.is_disbelieved(w.node, nonce);
            !self.suspicion.is_suspect(w) && !w.memory.is_some_and(is_disbelieved)
        });
        let shown = believed.filter_map(|w| w.partitions[usize::from(pid)].as_ref());
        shown.map(|at| at.trim).max()
    }

    /// Checks the positions that acceptors show by PROBE, and checks earlier claims again.
    pub(super) fn review_claims(&mut self) {
        let mut shown = Vec::new();
        for watched in self.suspicion.iter().filter(|w| w.role == Probe::Acceptor) {
            for (pid, at) in (0..).zip(&watched.partitions) {
                if let (Some(nonce), Some(at)) = (watched.memory, at) {
                    shown.push((watched.node, nonce, pid, at.trim, at.inst));
                }
            }
        }
        for (node, nonce, pid, trim, end) in shown {
            self.note_claim(node, nonce, pid, trim, end);
        }
        let claims = std::mem::take(&mut self.claims);
        for claim in claims {
            // The claims of a memory that is gone no longer count.
            let watched = self.suspicion.get(Probe::Acceptor, claim.node);
            if watched.is_some_and(|w| w.memory == Some(claim.nonce)) {
                self.claims.extend(self.judged(claim));
            }
        }
    }

    fn note_claim(
        &mut self,
        node: NodeId,
        nonce: u64,
        pid: PartitionId,
        trim: Instance,
        end: Instance,
    ) {
        let of = |c: &Claim| (c.node, c.nonce, c.pid) == (node, nonce, pid);
        let known = self.claims.iter().position(of);
        let known = known.map(|at| self.claims.swap_remove(at));
        let claim = match known {
            // An older packet may claim less.
            Some(known) if trim <= known.trim => known,
            _ => Claim {
                node,
                nonce,
                pid,
                trim,
                end,
                since: self.suspicion.sequence(),
                refuted: false,
            },
        };
        self.claims.extend(self.judged(claim));
    }

    /// Returns the claim with its current judgement, or `None` if nothing contradicts it.
    fn judged(&self, claim: Claim) -> Option<Claim> {
        let beyond = claim.is_beyond(self.settings.slots);
        if !beyond && claim.trim <= self.confirmed_trim(claim.pid) {
            return None;
        }
        let replicas = self.suspicion.iter().filter(|w| w.role == Probe::Replica);
        let fresh = |at: u64| at > claim.since;
        let answered = replicas.filter(|w| fresh(w.asked[usize::from(claim.pid)]));
        let enough = answered.count() > usize::from(self.settings.g);
        let position = self.shown_by_replicas(claim.pid, |at| at.inst.max(at.trim));
        Some(Claim {
            refuted: beyond || claim.refuted || enough && claim.trim > position,
            ..claim
        })
    }

    /// Returns the largest confirmed trim point of a partition: one that a replica's checkpoint has
    /// reached, or where an epoch began.
    fn confirmed_trim(&self, pid: PartitionId) -> Instance {
        let handed = self.state.handed.as_ref();
        let handed = handed.and_then(|h| h.trim.get(usize::from(pid)).copied());
        let leaps = [&self.state.accepted, &self.state.given_up].into_iter();
        let leapt = leaps.flatten().map(|g| g.of(pid).end).max();
        let shown = self.shown_by_replicas(pid, |at| at.trim);
        shown.max(handed.unwrap_or(0)).max(leapt.unwrap_or(0))
    }

    /// Returns the largest position that any replica has shown, including those that don't answer
    /// now.
    fn shown_by_replicas(
        &self,
        pid: PartitionId,
        of: fn(&PartitionStatus) -> Instance,
    ) -> Instance {
        let replicas = self.suspicion.iter().filter(|w| w.role == Probe::Replica);
        let shown = replicas.filter_map(|w| w.partitions[usize::from(pid)].as_ref());
        shown.map(of).max().unwrap_or(0)
    }

    /// Tells the candidate the replicas' positions. Everything below them was decided, so at least
    /// one of any f+1 memories knows a vote there, and a candidate that hears of less waits for
    /// other acceptors. [C-ENDS]
    pub(super) fn tell_positions(&mut self) {
        let pids = 0..self.settings.partitions;
        let positions: Vec<_> = pids
            .map(|pid| self.shown_by_replicas(pid, |at| at.inst))
            .collect();
        if let Some(candidate) = self.candidate_mut() {
            candidate.expect_ends(&positions);
        }
    }

    /// Returns the warning about an acceptor that counts as lost.
    fn refutation(&self, claim: &Claim) -> String {
        let Claim {
            node,
            pid,
            trim,
            end,
            ..
        } = *claim;
        let slots = self.settings.slots;
        match claim.is_beyond(slots) {
            true => format!(
                "acceptor {node}, partition {pid}: its memory says that it voted up to {end} with \
                 everything forgotten below {trim}, and it has {slots} slots: it counts as lost. \
                 Stop it, remove its state, and start it as a new memory"
            ),
            false => format!(
                "acceptor {node}, partition {pid}: its memory says trim {trim} and end {end}, \
                 which no replica's position confirms: it counts as lost. If a replica that got \
                 that far is down, start it; else stop the acceptor, remove its state, and start \
                 it as a new memory"
            ),
        }
    }

    /// Returns warnings for `status` and the log.
    pub(super) fn doubts(&self) -> Vec<String> {
        let refuted = self.claims.iter().filter(|c| c.refuted);
        let refuted = refuted.map(|c| self.refutation(c));
        let candidate = self.attempt.as_ref().and_then(|a| a.candidate());
        let short = candidate.and_then(|c| c.lacks_votes()).map(|(pid, end, position)| {
            format!(
                "partition {pid}: a replica stands at {position}, but the acceptors that promised \
                 know of nothing from {end} on: a memory went back, as if an old copy was put in \
                 its place. The epoch waits for the other acceptors: start them"
            )
        });
        refuted.chain(short).collect()
    }
}
