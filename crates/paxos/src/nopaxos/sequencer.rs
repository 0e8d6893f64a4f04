// SPDX-License-Identifier: Apache-2.0
//! The sequencer: gives requests their slots (section 4 of the paper; docs/protocol.md, "Sequencer").
//!
//! It stamps like the [leader](crate::leader), and its epoch is the session. A stamped REQUEST becomes ORDERED
//! and goes to the replicas, whose memories are the log: they are the session's members. The published
//! sequencer begins with session 0 and message 1 whenever it starts.

use crate::answer::{self, Refusal};
use crate::stamping::{Program, Stamped, Stamping};
use crate::wire::value::Probe;
use crate::{
    Deployment, Epoch, Instance, MsgType, Outbox, Packet, PartitionId, Reason, Round, To, Verdict,
};

/// An entry of the log.
const STAMPED: Stamped = Stamped {
    msgtype: MsgType::Ordered,
    to: To::Replicas,
    role: Probe::Sequencer,
};

// ---- State

/// A sequencer of one group, all its partitions.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Sequencer {
    stamping: Stamping,
}

impl Sequencer {
    /// An unprogrammed sequencer, which refuses requests. `nonce` is drawn at random at boot, never 0.
    ///
    /// # Panics
    /// If `nonce` is 0, or the deployment's largest value fits no packet.
    pub fn new(deployment: Deployment, nonce: u64) -> Sequencer {
        Sequencer {
            stamping: Stamping::new(deployment, nonce),
        }
    }

    /// Begins a session: once, and only a later one than any before. Its members are its replicas. [Q-PROGRAM]
    pub fn program(&mut self, program: &Program) -> Result<(), &'static str> {
        check_members(program)?;
        self.stamping.program(program)
    }

    /// Stops stamping if `session` is later than this one, until it is programmed again. [Q-RETIRE]
    pub fn retire(&mut self, session: Epoch) {
        self.stamping.retire(session);
    }

    /// The deployment that it serves.
    pub fn deployment(&self) -> &Deployment {
        self.stamping.deployment()
    }

    /// The boot nonce.
    pub fn nonce(&self) -> u64 {
        self.stamping.nonce()
    }

    /// The base round of its session; none while it isn't programmed or has retired.
    pub fn round(&self) -> Round {
        self.stamping.round()
    }

    /// The slot that the next REQUEST of a partition takes.
    pub fn next(&self, pid: PartitionId) -> Instance {
        self.stamping.next(pid)
    }

    /// Replicas have forgotten, or may forget, everything below.
    pub fn trimmed(&self, pid: PartitionId) -> Instance {
        self.stamping.trimmed(pid)
    }

    /// Slots that may be open at once.
    pub fn window(&self) -> u64 {
        self.stamping.window()
    }

    // ---- Handlers, named and ordered as in programs/xdp/sequencer.bpf.c

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
            // A replica names its view.
            MsgType::Reject => self.stamping.rejected(packet, |round| round.epoch() != 0),
            MsgType::Probe => self.stamping.probe(packet, STAMPED.role, out),
            _ => Err(Reason::NotForRole.into()),
        }
    }

    /// A member's TRIM opens the window. Nobody else's does: a session has no candidate. [Q-WINDOW]
    fn trim_to(&mut self, packet: &Packet<'_>) -> Result<Verdict, Refusal> {
        if !packet.value.is_empty() {
            return Err(Reason::BadValue.into());
        }
        if !packet.header.rnd.is_none() {
            return Err(Reason::BadRound.into());
        }
        self.stamping.report(packet)
    }
}

/// What f replicas may lose is what f members may forget.
pub fn check_members(program: &Program) -> Result<(), &'static str> {
    if program.replicas != program.acceptors || program.g != program.f {
        return Err("a session's members are its replicas, and as many of both may fail");
    }
    Ok(())
}
