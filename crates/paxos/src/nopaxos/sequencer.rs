// SPDX-License-Identifier: Apache-2.0
//! The sequencer: gives requests their slots (section 4 of the paper; docs/protocol/nopaxos.md).
//!
//! It stamps like the [leader](crate::leader), and its epoch is the session. A stamped REQUEST
//! becomes ORDERED and goes to the replicas, whose memories are the log: they are the session's
//! members. The published sequencer begins with session 0 and message 1 whenever it starts; this
//! one stamps only once it is programmed.

use crate::answer::Refusal;
use crate::stamping::{Kind, Program, Stamped, Stamper, Stamping};
use crate::wire::value::Probe;
use crate::{MsgType, Outbox, Packet, Reason, To, Verdict};

/// A sequencer of one group and all its partitions. Its epoch is the session, and its instances are
/// the slots of the log.
pub type Sequencer = Stamper<Orders>;

/// The kind of a sequencer: it makes an entry of the log of each stamped REQUEST.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Orders {}

// ---- Handlers, named and ordered as in programs/xdp/sequencer.bpf.c

impl Kind for Orders {
    const STAMPED: Stamped = Stamped {
        msgtype: MsgType::Ordered,
        to: To::Replicas,
        role: Probe::Sequencer,
    };

    fn check(program: &Program) -> Result<(), &'static str> {
        check_members(program)
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
            // A replica's REJECT names its view.
            MsgType::Reject => stamping.rejected(packet, |round| round.epoch() != 0),
            MsgType::Probe => stamping.probe(packet, Self::STAMPED.role, out),
            _ => Err(Reason::NotForRole.into()),
        }
    }
}

/// Handles a member's TRIM, which opens the window. A session has no candidate, so a TRIM with a
/// round is refused. [Q-WINDOW]
fn trim_to(stamping: &mut Stamping, packet: &Packet<'_>) -> Result<Verdict, Refusal> {
    if !packet.value.is_empty() {
        return Err(Reason::BadValue.into());
    }
    if !packet.header.rnd.is_none() {
        return Err(Reason::BadRound.into());
    }
    stamping.report(packet)
}

/// Refuses a program unless its replicas are its acceptors and g is f, since a session's members
/// are both.
pub fn check_members(program: &Program) -> Result<(), &'static str> {
    if program.replicas != program.acceptors || program.g != program.f {
        return Err("a session's members are its replicas, and as many of both may fail");
    }
    Ok(())
}
