// SPDX-License-Identifier: Apache-2.0
//! The answers that all roles give alike: REJECT and PROBE_ACK.

use crate::wire::value::{Probe, ProbeReport, Rejection};
use crate::{Deployment, Header, Instance, MsgType, Outbox, Packet, Reason, Round, To, Verdict};

/// The way in which a handler refuses a packet.
pub enum Refusal {
    /// The packet is dropped and counted.
    Drop(Reason),
    /// The packet is answered with REJECT.
    Reject(Rejection),
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Refusal {
        Refusal::Drop(reason)
    }
}

/// Returns the header of a message from this node, about the partition of `question`.
#[inline]
pub(crate) fn header(deployment: &Deployment, msgtype: MsgType, question: &Header) -> Header {
    Header {
        group: deployment.group,
        cluster: deployment.cluster,
        swid: deployment.node,
        pid: question.pid,
        ..Header::new(msgtype)
    }
}

/// Turns a handler's result into a verdict, and sends the REJECT if there is one to send.
/// [M-REFUSE]
#[inline]
pub(crate) fn conclude(
    deployment: &Deployment,
    packet: &Packet<'_>,
    result: Result<Verdict, Refusal>,
    out: &mut impl Outbox,
) -> Verdict {
    match result {
        // The cases are matched one by one, since one copy would load together what was just stored
        // in parts, and a processor waits for that.
        Ok(Verdict::Changed) => Verdict::Changed,
        Ok(Verdict::Answered) => Verdict::Answered,
        Ok(verdict) => verdict,
        Err(Refusal::Drop(reason)) => Verdict::Dropped(reason),
        Err(Refusal::Reject(rejection)) => {
            reject(deployment, &packet.header, &rejection, out);
            Verdict::Rejected(rejection.reason)
        }
    }
}

/// Sends a REJECT, which names the refused message by its instance, round, client and request.
fn reject(deployment: &Deployment, refused: &Header, rejection: &Rejection, out: &mut impl Outbox) {
    let answer = Header {
        value_len: Rejection::LEN as u16,
        inst: refused.inst,
        rnd: refused.rnd,
        client: refused.client,
        request: refused.request,
        ..header(deployment, MsgType::Reject, refused)
    };
    out.send(To::Sender, &answer, &rejection.emit());
}

/// Answers a PROBE if it asks for `role`, since several roles may share an address.
pub(crate) fn probe(
    deployment: &Deployment,
    packet: &Packet<'_>,
    role: Probe,
    (rnd, inst): (Round, Instance),
    report: ProbeReport,
    out: &mut impl Outbox,
) -> Result<Verdict, Refusal> {
    if Probe::parse(packet.value)? != role {
        return Err(Reason::NotForRole.into());
    }
    let answer = Header {
        value_len: ProbeReport::LEN as u16,
        inst,
        rnd,
        client: packet.header.client,
        request: packet.header.request,
        ..header(deployment, MsgType::ProbeAck, &packet.header)
    };
    out.send(To::Sender, &answer, &report.emit());
    Ok(Verdict::Answered)
}
