// SPDX-License-Identifier: Apache-2.0
//! The knowledge of one instance under repair.

use super::Filler;
use crate::{Flags, Instance, Packet, Reason, Round, Time};

/// A phase that was sent more often than this is stuck.
const STUCK_AFTER: u32 = 4;

/// A value with the fields that identify it within a round.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Default)]
pub(super) struct Candidate {
    pub(super) client: u64,
    pub(super) request: u64,
    pub(super) flags: Flags,
    pub(super) bytes: Vec<u8>,
}

impl Candidate {
    /// Returns the value that a filler puts into an instance.
    pub(super) fn filling(filler: Filler<'_>, max_value: u16) -> Result<Candidate, Reason> {
        match filler {
            Filler::Noop => Ok(Candidate {
                flags: Flags::NOOP,
                ..Candidate::default()
            }),
            Filler::Command { client: 0, .. } => Err(Reason::BadSession),
            Filler::Command { bytes, .. } if bytes.len() > usize::from(max_value) => {
                Err(Reason::ValueTooLarge)
            }
            Filler::Command {
                client,
                request,
                bytes,
            } => Ok(Candidate {
                client,
                request,
                flags: Flags::NONE,
                bytes: bytes.to_vec(),
            }),
        }
    }

    pub(super) fn of(packet: &Packet<'_>) -> Candidate {
        Candidate {
            client: packet.header.client,
            request: packet.header.request,
            flags: packet.header.flags.of_value(),
            bytes: packet.value.to_vec(),
        }
    }

    /// Returns true if the value belongs to a session, or is a no-op and belongs to none.
    pub(super) fn is_well_formed(&self) -> bool {
        self.flags.has(Flags::NOOP) == (self.client == 0)
    }

    /// Returns the part in which equal votes of one round must agree.
    pub(super) fn identity(&self) -> (u64, u64, bool) {
        (self.client, self.request, self.flags.has(Flags::NOOP))
    }
}

/// A vote that an acceptor showed.
#[derive(Clone, Debug, Hash)]
pub(super) struct Vote {
    pub(super) round: Round,
    pub(super) candidate: Candidate,
}

/// A set of members of the active configuration, by index.
pub(super) type Members = u32;
const _: () = assert!(crate::configuration::MAX_ACCEPTORS <= Members::BITS as usize);

/// The phase of a repair.
#[derive(Clone, Debug, Hash)]
pub(super) enum Phase {
    /// Asks which values were voted for. Proposes once a quorum has answered and `patience` is
    /// over.
    Query {
        answered: Members,
        no_vote: Members,
        patience: Time,
    },
    /// Asks for promises in `round` (phase 1).
    Promise {
        round: Round,
        promised: Members,
        best: Option<Vote>,
    },
    /// Proposes in `round` (phase 2), and confirms the votes by QUERY.
    Accept { round: Round, candidate: Candidate },
}

/// An instance under repair.
#[derive(Clone, Debug, Hash)]
pub(super) struct Repair {
    pub(super) filler: Candidate,
    /// The time before which the repair only asks.
    pub(super) propose_from: Time,
    pub(super) phase: Phase,
    /// The latest vote of each member of the active configuration.
    pub(super) votes: Vec<Option<Vote>>,
    /// The largest trim point above this instance that each member has claimed; 0 = none. A trimmed
    /// instance stays trimmed, so unlike a "no vote" such an answer may be late.
    pub(super) trims: Vec<Instance>,
    /// The number of the question in the QUERYs that are out.
    pub(super) question: u64,
    /// A promise that is in the way; the next round must be higher.
    pub(super) preempted_by: Round,
    /// How many times this instance was preempted.
    pub(super) preemptions: u32,
    /// True if no round of this epoch is left for the instance.
    pub(super) exhausted: bool,
    /// How many times this phase was sent.
    pub(super) tries: u32,
    pub(super) resend_at: Time,
}

impl Repair {
    /// Returns a repair about which nothing is known.
    pub(super) fn new(filler: Candidate, propose_from: Time) -> Repair {
        Repair {
            filler,
            propose_from,
            phase: Phase::query(0),
            votes: Vec::new(),
            trims: Vec::new(),
            question: 0,
            preempted_by: Round::NONE,
            preemptions: 0,
            exhausted: false,
            tries: 0,
            resend_at: 0,
        }
    }

    /// Begins with questions to `members` members, and proposes nothing before `patience` is over.
    pub(super) fn ask(&mut self, now: Time, patience: Time, members: usize) {
        self.phase = Phase::query(now.saturating_add(patience));
        self.votes.resize_with(members, || None);
        self.trims.resize(members, 0);
        self.question = 0;
        self.tries = 0;
        self.resend_at = now;
    }

    /// Returns the trim point that `quorum` members have reached (the `quorum`-th largest claim),
    /// if they have trimmed this instance. [R-TRIMMED]
    pub(super) fn confirmed_trim(&self, quorum: usize) -> Option<Instance> {
        let mut claims = self.trims.clone();
        claims.sort_unstable_by(|a, b| b.cmp(a));
        let trim = claims.get(quorum.checked_sub(1)?).copied();
        trim.filter(|&trim| trim > 0)
    }

    /// Returns the lowest trim point that a member claims, if the repair has been stuck for a
    /// while.
    pub(super) fn doubtful_trim(&self) -> Option<Instance> {
        let claims = self.trims.iter().copied().filter(|&trim| trim > 0);
        claims.min().filter(|_| self.tries > STUCK_AFTER)
    }
}

impl Phase {
    fn query(patience: Time) -> Phase {
        Phase::Query {
            answered: 0,
            no_vote: 0,
            patience,
        }
    }
}

/// Counts a member, or refuses it as a duplicate if it was counted before.
pub(super) fn count(members: &mut Members, member: usize) -> Result<(), Reason> {
    if *members >> member & 1 == 1 {
        return Err(Reason::Duplicate);
    }
    *members |= 1 << member;
    Ok(())
}

/// Returns the members whose vote in `round` was seen.
pub(super) fn voters(votes: &[Option<Vote>], round: Round) -> Members {
    let voted = votes
        .iter()
        .enumerate()
        .filter(|(_, vote)| vote.as_ref().is_some_and(|vote| vote.round == round));
    voted.fold(0, |members, (index, _)| members | 1 << index)
}
