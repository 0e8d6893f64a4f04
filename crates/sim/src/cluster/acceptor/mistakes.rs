// SPDX-License-Identifier: Apache-2.0
//! The mistakes of an acceptor: for mutations, and for memories that lie.

use paxos::Outbox;
use paxos::wire::value::RangeReport;
use paxos::{Acceptor, Flags, Header, MsgType, Packet, Reason, To, Verdict};

use super::super::world::Outgoing;

/// Returns the answers with too large an `end`.
pub(super) fn exaggerated(out: &Outgoing) -> Outgoing {
    let mut changed = Outgoing::default();
    for (to, header, value) in out.iter() {
        match RangeReport::parse(value) {
            Ok(report) if header.flags.has(Flags::RANGE) => {
                let end = report.end + 20;
                changed.send(to, header, &RangeReport { end, ..report }.emit());
            }
            _ => changed.send(to, header, value),
        }
    }
    changed
}

/// Makes the mistake of an acceptor that promises a round to a second candidate.
pub(super) fn promise_again(
    acceptor: &Acceptor,
    packet: &Packet<'_>,
    verdict: Verdict,
    out: &mut Outgoing,
) {
    let h = packet.header;
    let range = h.msgtype == MsgType::Phase1a && h.flags.has(Flags::RANGE);
    if verdict != Verdict::Dropped(Reason::Conflict) || !range {
        return;
    }
    let report = RangeReport {
        end: acceptor.end(h.pid),
        trim: acceptor.trim(h.pid),
        nonce: acceptor.nonce(),
    };
    let promise = Header {
        msgtype: MsgType::Phase1b,
        value_len: RangeReport::LEN as u16,
        swid: acceptor.deployment().node,
        ..h
    };
    out.send(To::Sender, &promise, &report.emit());
}

/// Makes the mistake of an acceptor that votes in a round below its promise.
pub(super) fn accept_stale(packet: &Packet<'_>, verdict: Verdict, out: &mut Outgoing) {
    let h = packet.header;
    if verdict != Verdict::Rejected(Reason::Preempted) || h.msgtype != MsgType::Phase2a {
        return;
    }
    let node = out.iter().map(|(_, h, _)| h.swid).next().unwrap_or(0);
    out.clear();
    let vote = Header {
        msgtype: MsgType::Phase2b,
        vrnd: h.rnd,
        swid: node,
        ..h
    };
    out.send(To::Learners, &vote, packet.value);
}
