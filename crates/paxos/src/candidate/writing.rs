// SPDX-License-Identifier: Apache-2.0
//! Steps 3 and 4: enable fresh members, propose, write the marker, confirm.

use super::partition::{Answer, Partition};
use super::{ASK_TRIM, Candidate, Effect, RANGE_RETRY, Stage, for_each_bit};
use crate::wire::value::RangeReport;
use crate::{Flags, Header, MsgType, Outbox, Packet, PartitionId, Reason, Time, To};

impl Candidate {
    // ---- Step 3 and 4: enable fresh members, propose, write the marker ----------------------

    pub(super) fn finish_reads(&mut self, now: Time, out: &mut impl Outbox) {
        if self.stage != Stage::Reading || !self.partitions.iter().all(Partition::is_read) {
            return;
        }
        self.stage = Stage::Proposing;
        for partition in &mut self.partitions {
            partition.write_marker(self.configuration.epoch);
        }
        // Members with a fresh memory must be enabled before they vote. [C-ENABLE]
        self.effects.push(Effect::EnableFresh {
            trim: self.partitions.iter().map(|p| p.trim).collect(),
            end: self.partitions.iter().map(|p| p.end).collect(),
        });
        self.ask_at = now + RANGE_RETRY;
        self.ask_trims(out);
        self.send_proposals(now, out);
    }

    pub(super) fn send_proposals(&mut self, now: Time, out: &mut impl Outbox) {
        for pid in 0..self.deployment.partitions {
            self.send_proposals_of(pid, now, out);
        }
    }

    /// Proposes what is due, and sends a QUERY after each PHASE2A. The votes themselves go to the
    /// learners, and the candidate isn't one of them. [R-CONFIRM]
    pub(super) fn send_proposals_of(&mut self, pid: PartitionId, now: Time, out: &mut impl Outbox) {
        let members = self.members;
        let propose = Header {
            rnd: self.round,
            ..self.header(MsgType::Phase2a, pid, 0)
        };
        let query = self.header(MsgType::Query, pid, 0);
        let peers = &self.peers;
        let partition = &mut self.partitions[pid as usize];
        partition.due_proposals(now, |inst, vote, confirmed| {
            let propose = Header {
                inst,
                flags: vote.flags,
                client: vote.client,
                request: vote.request,
                value_len: vote.value.len() as u16,
                ..propose
            };
            let query = Header { inst, ..query };
            for_each_bit(members & !confirmed, |peer| {
                out.send(To::Node(peers[peer]), &propose, &vote.value);
                out.send(To::Node(peers[peer]), &query, &[]);
            });
        });
    }

    pub(super) fn vote(
        &mut self,
        now: Time,
        peer: usize,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<(), Reason> {
        let header = &packet.header;
        if header.rnd != self.round || header.vrnd != self.round {
            return Err(Reason::Stale);
        }
        if self.stage != Stage::Proposing {
            return Err(Reason::Unexpected);
        }
        if self.members & 1 << peer == 0 {
            return Err(Reason::UnknownSender);
        }
        let quorum = self.configuration.quorum();
        let partition = &mut self.partitions[header.pid as usize];
        if let Answer::Decided = partition.confirmed(peer, header.inst, quorum)? {
            self.send_proposals_of(header.pid, now, out);
            self.finish_proposals();
        }
        Ok(())
    }

    /// Asks members of the new configuration how far they have trimmed, if fewer than f+1 are known
    /// to have reached T. Otherwise a later candidate that reads another quorum would miss what
    /// lies below T. [C-TRIMMED]
    pub(super) fn ask_trims(&self, out: &mut impl Outbox) {
        let members = self.members;
        for (pid, partition) in self.each_partition() {
            if partition.is_trimmed(members, self.configuration.quorum()) {
                continue;
            }
            let header = Header {
                flags: Flags::RANGE,
                request: ASK_TRIM,
                ..self.header(MsgType::Query, pid, 0)
            };
            for_each_bit(members, |peer| {
                if partition.trims[peer] < partition.trim {
                    out.send(To::Node(self.peers[peer]), &header, &[]);
                }
            });
        }
    }

    pub(super) fn trim_report(
        &mut self,
        peer: usize,
        pid: PartitionId,
        report: RangeReport,
    ) -> Result<(), Reason> {
        let node = self.peers[peer];
        let member = |a: &crate::Member| a.node == node && a.nonce == report.nonce;
        if !self.configuration.acceptors.iter().any(member) {
            return Err(Reason::UnknownSender);
        }
        let trims = &mut self.partitions[pid as usize].trims;
        if trims[peer] >= report.trim {
            return Err(Reason::Duplicate);
        }
        trims[peer] = report.trim;
        self.finish_proposals();
        Ok(())
    }

    /// Asks to mark the epoch active, once f+1 members of the new configuration hold, skip or have
    /// trimmed every instance up to and including the marker. [C-SEAL] [C-TRIMMED]
    pub(super) fn finish_proposals(&mut self) {
        let members = self.members;
        let quorum = self.configuration.quorum();
        let done = |p: &Partition| p.is_confirmed() && p.is_trimmed(members, quorum);
        if self.stage == Stage::Proposing && self.partitions.iter().all(done) {
            self.stage = Stage::MarkingActive;
            let hand_over = self.hand_over();
            self.effects.push(Effect::MarkActive(hand_over));
        }
    }
}
