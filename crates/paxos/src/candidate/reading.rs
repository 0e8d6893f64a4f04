// SPDX-License-Identifier: Apache-2.0
//! Steps 1 and 2: range promises, TRIM, and the votes in [T, E).

use super::partition::{Answer, Partition};
use super::{ASK_PROMISE, ASK_TRIM, Candidate, Effect, Stage, for_each_bit};
use crate::wire::value::RangeReport;
use crate::{
    Configuration, Flags, Header, Instance, MsgType, Outbox, Packet, PartitionId, Reason, Time, To,
};

impl Candidate {
    // ---- Step 1: range promises -----------------------------------------------------------

    pub(super) fn ask_promises(&self, out: &mut impl Outbox) {
        for (pid, partition) in self.each_partition() {
            for peer in self.earlier_peers() {
                if partition.memory[peer].is_none() {
                    let header = Header {
                        rnd: self.round,
                        flags: Flags::RANGE,
                        request: ASK_PROMISE,
                        ..self.header(MsgType::Phase1a, pid, 0)
                    };
                    out.send(To::Node(self.peers[peer]), &header, &[]);
                }
            }
        }
    }

    pub(super) fn range_report(
        &mut self,
        peer: usize,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<(), Reason> {
        let header = &packet.header;
        if header.client != self.nonce {
            return Err(Reason::Unexpected);
        }
        let report = RangeReport::parse(packet.value)?;
        match header.request {
            ASK_PROMISE => self.range_promise(peer, header, report, out),
            ASK_TRIM => self.trim_report(peer, header.pid, report),
            _ => Err(Reason::Unexpected),
        }
    }

    /// Counts a range promise. It counts for a configuration only if (node, nonce) is its member,
    /// since another memory at the same address knows nothing of that configuration's votes.
    /// [C-PROMISE]
    pub(super) fn range_promise(
        &mut self,
        peer: usize,
        header: &Header,
        report: RangeReport,
        out: &mut impl Outbox,
    ) -> Result<(), Reason> {
        if header.rnd != self.round {
            return Err(Reason::BadRound);
        }
        if self.stage > Stage::Reading {
            return Err(Reason::Stale);
        }
        let node = self.peers[peer];
        let member = |c: &Configuration| {
            c.acceptors
                .iter()
                .any(|a| a.node == node && a.nonce == report.nonce)
        };
        let of_earlier: Vec<bool> = self.earlier.iter().map(member).collect();
        if !of_earlier.contains(&true) {
            return Err(Reason::UnknownSender);
        }
        let continues = member(&self.configuration);
        let partition = &mut self.partitions[header.pid as usize];
        if partition.memory[peer].is_some() {
            return Err(Reason::Duplicate);
        }
        partition.promised(peer, report.nonce, &of_earlier, continues);
        if continues {
            partition.trims[peer] = report.trim;
        }
        if self.stage == Stage::Reading {
            // E stays, since nothing behind it was chosen: f+1 members didn't know of it. T may
            // grow.
            self.raise_trim(header.pid, report.trim, out);
            return Ok(());
        }
        partition.trim = partition.trim.max(report.trim);
        partition.end = partition.end.max(report.end).max(report.trim);
        if self.stage == Stage::Promising {
            self.finish_promises();
        }
        Ok(())
    }

    pub(super) fn finish_promises(&mut self) {
        // Without earlier configurations no node is asked, and E is given. [C-ENDS]
        let asked = !self.earlier.is_empty();
        let enough =
            |p: &Partition| p.is_quorum(u64::MAX, &self.earlier) && !(asked && p.end < p.least_end);
        if self.partitions.iter().all(enough) {
            self.stage = Stage::MarkingWriting;
            self.effects.push(Effect::MarkWriting);
        }
    }

    // ---- Step 2: TRIM, and the votes in [T, E) ---------------------------------------------

    pub(super) fn send_trims(&self, out: &mut impl Outbox) {
        for (pid, partition) in self.each_partition() {
            self.send_trim(pid, partition.trim, out);
        }
    }

    pub(super) fn send_trim(&self, pid: PartitionId, trim: Instance, out: &mut impl Outbox) {
        if trim == 0 {
            return;
        }
        let header = Header {
            rnd: self.round,
            ..self.header(MsgType::Trim, pid, trim)
        };
        for &node in &self.peers {
            out.send(To::Node(node), &header, &[]);
        }
    }

    pub(super) fn send_reads(&mut self, now: Time, out: &mut impl Outbox) {
        for pid in 0..self.deployment.partitions {
            self.send_reads_of(pid, now, out);
        }
    }

    pub(super) fn send_reads_of(&mut self, pid: PartitionId, now: Time, out: &mut impl Outbox) {
        let header = Header {
            rnd: self.round,
            ..self.header(MsgType::Phase1a, pid, 0)
        };
        let quorum = self.skip_quorum();
        let peers = &self.peers;
        let partition = &mut self.partitions[pid as usize];
        partition.due_reads(now, quorum, |inst, mask| {
            let header = Header { inst, ..header };
            for_each_bit(mask, |peer| out.send(To::Node(peers[peer]), &header, &[]));
        });
    }

    /// Returns how many members that continue must hold a vote so that it may be skipped: f+1,
    /// with the largest f of the configurations concerned. [C-SKIP]
    fn skip_quorum(&self) -> usize {
        let earlier = self.earlier.iter().map(Configuration::quorum);
        earlier.fold(self.configuration.quorum(), usize::max)
    }

    pub(super) fn promise(
        &mut self,
        now: Time,
        peer: usize,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<(), Reason> {
        let header = &packet.header;
        // The round must be exactly the candidate's own, since an answer to a QUERY is no promise.
        // [C-READ]
        if header.rnd != self.round || header.vrnd >= self.round {
            return Err(Reason::BadRound);
        }
        if self.stage != Stage::Reading {
            return Err(Reason::Unexpected);
        }
        let quorum = self.skip_quorum();
        let partition = &mut self.partitions[header.pid as usize];
        match partition.answered(peer, packet, &self.earlier, quorum) {
            Ok(Answer::Counted) => Ok(()),
            Ok(Answer::Decided) => {
                self.send_reads_of(header.pid, now, out);
                self.finish_reads(now, out);
                Ok(())
            }
            // Two votes of one round differ, so the chosen value can't be told. [C-CONFLICT]
            Err(Reason::Conflict) => {
                self.stop(Stage::Conflict);
                Err(Reason::Conflict)
            }
            Err(reason) => Err(reason),
        }
    }
}
