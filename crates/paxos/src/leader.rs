// SPDX-License-Identifier: Apache-2.0
//! The leader: puts requests in order (Algorithm 1 of both papers; docs/protocol.md).
//!
//! It gives each REQUEST the next instance of its partition and the base round of its epoch. It
//! stamps only while the instance lies below `trimmed + window`, so that acceptors have a slot
//! for it; past that the proposer retries. A command over several partitions takes one instance of
//! each, all or none.
//!
//! The papers' leader starts at instance 0 in round 0 whenever it boots, and so gives out one
//! instance twice. Here a leader that boots stamps nothing until it is programmed, once for each
//! round, by naming its boot nonce.
//!
//! A pack's inner structure is not looked at: devices can't afford it, and a value that is no pack
//! does no harm in the log. Whoever executes a pack must check it anyway. REJECT and TRIM come
//! with nothing but a source address to prove their sender. f forged or stray REJECTs do nothing; f+1 can at
//! most stop this leader until the next epoch.

use crate::answer::{self, Refusal};
pub use crate::stamping::{Preemption, Program, check_next};
use crate::stamping::{Stamped, Stamping};
use crate::wire::value::Probe;
use crate::{
    Deployment, Epoch, Instance, MsgType, Outbox, Packet, PartitionId, Reason, Round, To, Verdict,
};

/// A proposal.
const STAMPED: Stamped = Stamped {
    msgtype: MsgType::Phase2a,
    to: To::Acceptors,
    role: Probe::Leader,
};

// ---- State

/// A leader of one group, all its partitions.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Leader {
    stamping: Stamping,
}

impl Leader {
    /// An unprogrammed leader: a backup. `nonce` is drawn at random at boot, never 0.
    ///
    /// # Panics
    /// If `nonce` is 0, or the deployment's largest value fits no packet.
    pub fn new(deployment: Deployment, nonce: u64) -> Leader {
        Leader {
            stamping: Stamping::new(deployment, nonce),
        }
    }

    /// Takes over a round: once, and only a larger one than any before. [L-PROGRAM]
    pub fn program(&mut self, program: &Program) -> Result<(), &'static str> {
        self.stamping.program(program)
    }

    /// Stops stamping if `epoch` is later than this leader's, until it is programmed again.
    /// [L-RETIRE]
    pub fn retire(&mut self, epoch: Epoch) {
        self.stamping.retire(epoch);
    }

    /// The deployment that it serves.
    pub fn deployment(&self) -> &Deployment {
        self.stamping.deployment()
    }

    /// The boot nonce.
    pub fn nonce(&self) -> u64 {
        self.stamping.nonce()
    }

    /// The round it stamps in; none while it isn't programmed or has retired.
    pub fn round(&self) -> Round {
        self.stamping.round()
    }

    /// The instance that the next REQUEST of a partition takes.
    pub fn next(&self, pid: PartitionId) -> Instance {
        self.stamping.next(pid)
    }

    /// Acceptors have forgotten, or may forget, everything below.
    pub fn trimmed(&self, pid: PartitionId) -> Instance {
        self.stamping.trimmed(pid)
    }

    /// Instances that may be open at once.
    pub fn window(&self) -> u64 {
        self.stamping.window()
    }

    // ---- Handlers, named and ordered as in programs/xdp/leader.bpf.c

    /// Takes one packet.
    #[inline]
    pub fn step(&mut self, packet: &Packet<'_>, out: &mut impl Outbox) -> Verdict {
        if let Err(reason) = self.deployment().check(packet) {
            return Verdict::Dropped(reason);
        }
        let result = self.handle(packet, out);
        answer::conclude(self.deployment(), packet, result, out)
    }

    #[inline]
    fn handle(&mut self, packet: &Packet<'_>, out: &mut impl Outbox) -> Result<Verdict, Refusal> {
        match packet.header.msgtype {
            MsgType::Request => self.stamping.request(packet, STAMPED, out),
            MsgType::Trim => self.trim_to(packet),
            MsgType::Reject => self.stamping.rejected(packet, Round::is_valid),
            MsgType::Probe => self.stamping.probe(packet, STAMPED.role, out),
            _ => Err(Reason::NotForRole.into()),
        }
    }

    /// TRIM opens the window: a replica's report (no round), or a candidate's word (its base
    /// round). [L-TRIM]
    fn trim_to(&mut self, packet: &Packet<'_>) -> Result<Verdict, Refusal> {
        if !packet.value.is_empty() {
            return Err(Reason::BadValue.into());
        }
        if packet.header.rnd.is_none() {
            return self.stamping.report(packet);
        }
        if !packet.header.rnd.is_base() {
            return Err(Reason::BadRound.into());
        }
        self.stamping.trim_to(packet)
    }
}
