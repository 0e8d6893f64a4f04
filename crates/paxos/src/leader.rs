// SPDX-License-Identifier: Apache-2.0
//! The leader: puts requests in order (Algorithm 1 of both papers; docs/protocol/leader.md).
//!
//! It gives each REQUEST the next instance of its partition and the base round of its epoch. It
//! stamps only while the instance lies below `trimmed + window`, so that acceptors have a slot for
//! it; beyond, it refuses, and the proposer tries again. A command over several partitions takes
//! one instance of each, all or none.
//!
//! The papers' leader starts at instance 0 in round 0 whenever it boots, and so gives out one
//! instance twice. This leader stamps nothing after a boot until it is programmed, once for each
//! round, by its boot nonce.
//!
//! The leader doesn't look into a pack: devices can't afford that, and a value that is no pack does
//! no harm in the log. Whoever executes a pack must check it anyway. Only the source address of
//! REJECT and TRIM says who sent them. f forged or stray REJECTs do nothing; f+1 can at most stop
//! this leader until the next epoch.

use crate::answer::Refusal;
use crate::stamping::{Kind, Stamped, Stamper, Stamping};
pub use crate::stamping::{Preemption, Program};
use crate::wire::value::Probe;
use crate::{MsgType, Outbox, Packet, Reason, Round, To, Verdict};

/// A leader of one group and all its partitions.
pub type Leader = Stamper<Proposes>;

/// The kind of a leader: it makes a proposal of each stamped REQUEST.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Proposes {}

// ---- Handlers, named and ordered as in programs/xdp/leader.bpf.c

impl Kind for Proposes {
    const STAMPED: Stamped = Stamped {
        msgtype: MsgType::Phase2a,
        to: To::Acceptors,
        role: Probe::Leader,
    };

    fn check(_: &Program) -> Result<(), &'static str> {
        Ok(())
    }

    #[inline]
    fn handle(
        stamping: &mut Stamping,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Refusal> {
        match packet.header.msgtype {
            MsgType::Request => stamping.request(packet, Self::STAMPED, out),
            MsgType::Trim => trim_to(stamping, packet),
            MsgType::Reject => stamping.rejected(packet, Round::is_valid),
            MsgType::Probe => stamping.probe(packet, Self::STAMPED.role, out),
            _ => Err(Reason::NotForRole.into()),
        }
    }
}

/// Handles TRIM, which opens the window: a replica's report (without a round), or a candidate's
/// trim point (in its base round). [L-TRIM]
fn trim_to(stamping: &mut Stamping, packet: &Packet<'_>) -> Result<Verdict, Refusal> {
    if !packet.value.is_empty() {
        return Err(Reason::BadValue.into());
    }
    if packet.header.rnd.is_none() {
        return stamping.report(packet);
    }
    if !packet.header.rnd.is_base() {
        return Err(Reason::BadRound.into());
    }
    stamping.trim_to(packet)
}
