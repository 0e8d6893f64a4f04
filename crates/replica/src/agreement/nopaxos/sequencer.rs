// SPDX-License-Identifier: Apache-2.0
//! Packets to and from the sequencer, besides what it orders.

use super::{NoPaxos, PAUSE};
use paxos::nopaxos::view;
use paxos::wire::value::{Probe, ProbeReport, Rejection};
use paxos::{Header, MsgType, Outbox, Packet, Reason, Time, To, Verdict};

impl NoPaxos {
    /// Tells the sequencer of an earlier session that there is a later one. [Q-RETIRE]
    pub(super) fn refuse_old(&mut self, now: Time, h: &Header, out: &mut impl Outbox) -> Verdict {
        let view = self.replica.view();
        if h.rnd.epoch() >= view.epoch() || now < self.rejected_at + PAUSE {
            return Verdict::Dropped(Reason::OldSession);
        }
        self.rejected_at = now;
        let rejection = Rejection {
            reason: Reason::Preempted,
            round: view,
            trim: self.replica.floor(),
        };
        let header = Header {
            inst: h.inst,
            rnd: h.rnd,
            client: h.client,
            request: h.request,
            value_len: Rejection::LEN as u16,
            ..self.settings.header(MsgType::Reject)
        };
        out.send(To::Sender, &header, &rejection.emit());
        Verdict::Rejected(Reason::Preempted)
    }

    /// Asks the sequencer how far it is, since nobody misses a loss at the end of a burst until it
    /// fills the sequencer's window. [Y-TAIL]
    pub(super) fn ask_sequencer(&mut self, now: Time, out: &mut impl Outbox) {
        if !self.replica.leads() {
            return;
        }
        if let Some(number) = self.poll.due(now, self.told) {
            let probe = Probe::Sequencer.emit();
            let header = Header {
                client: self.nonce,
                request: number,
                value_len: probe.len() as u16,
                ..self.settings.header(MsgType::Probe)
            };
            out.send(To::Leader, &header, &probe);
        }
    }

    /// Takes the sequencer's answer: everything below its next slot is stamped. The answer counts
    /// as far as the sequencer's window reaches from here.
    pub(super) fn on_sequencer_shows(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
    ) -> Result<Verdict, Reason> {
        let h = &packet.header;
        ProbeReport::parse(packet.value)?;
        if !self.poll.is_answer(self.nonce, h) {
            return Err(Reason::Unexpected);
        }
        let view = self.replica.view();
        let session = self.replica.sessions().open(view);
        if session.map(|s| s.sequencer) != Some(h.swid) {
            return Err(Reason::UnknownSender);
        }
        if h.rnd != view::stamp(view) {
            return Err(Reason::Stale);
        }
        self.replica.stamped(now, h.inst);
        Ok(Verdict::Answered)
    }
}
