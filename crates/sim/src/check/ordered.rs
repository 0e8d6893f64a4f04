// SPDX-License-Identifier: Apache-2.0
//! Checks invariants 10 to 13 and 15 of NOPaxos groups, by the packets, by the logs that replicas
//! show, and by the contents of their disks.

use std::collections::BTreeSet;

use paxos::nopaxos::Session;
use paxos::{Epoch, Flags, Header, Instance, MsgType, NodeId, PartitionId, Round};
use test_world::committed::{Committed, Content};

use super::stamps::Stamps;
use super::{Findings, Invariant};

/// The checker of a NOPaxos group.
#[derive(Debug)]
pub struct Ordered {
    /// The committed entries of each partition; empty if the group doesn't use NOPaxos.
    committed: Vec<Committed>,
    /// How many violations of each partition were reported.
    reported: Vec<usize>,
    /// The messages that sequencers have stamped.
    pub stamps: Stamps,
    /// The views that began, by partition.
    views: BTreeSet<(PartitionId, Round)>,
    /// The leaders that say that many clients wait at once, by partition.
    crowded: BTreeSet<(PartitionId, NodeId)>,
    /// How often a leader has said that a crowd is over.
    crowds: u64,
    /// The last session in which a loss was accepted, or 0, and where it begins in each partition.
    anew: (Epoch, Vec<Instance>),
}

impl Ordered {
    /// Returns a checker for this many partitions.
    pub fn new(partitions: u16) -> Ordered {
        Ordered {
            committed: (0..partitions).map(Committed::new).collect(),
            reported: vec![0; partitions.into()],
            stamps: Stamps::default(),
            views: BTreeSet::new(),
            crowded: BTreeSet::new(),
            crowds: 0,
            anew: (0, vec![0; partitions.into()]),
        }
    }

    /// Notes a session in which a loss is accepted: everything that was committed before is given
    /// up. [F-ANEW]
    pub fn begin_anew(&mut self, session: &Session, begin: &[Instance]) {
        self.anew = (session.number, begin.to_vec());
        for (pid, committed) in (0..).zip(&mut self.committed) {
            *committed = Committed::new(pid);
        }
        self.reported.fill(0);
        self.session(session);
    }

    /// Returns whether what is done in a session counts, since no loss was accepted since.
    pub fn counts(&self, session: Epoch) -> bool {
        session >= self.anew.0
    }

    /// Returns how many views have begun, and how many crowds have come and gone. [N-CROWD]
    pub fn views_and_crowds(&self) -> (u64, u64) {
        (self.views.len() as u64, self.crowds)
    }

    /// Notes a sequencer's session, of which there may be packets from now on.
    pub fn session(&mut self, session: &Session) {
        let members: Vec<_> = session.members.iter().map(|m| (m.node, m.nonce)).collect();
        for committed in &mut self.committed {
            let (f, lead) = (session.f.into(), session.lead.into());
            committed.session(session.number, &members, f, lead);
        }
    }

    /// Notes the first slots of an active session, by partition.
    pub fn begins(&mut self, session: Epoch, slots: Vec<Instance>) {
        self.stamps.begins(session, slots);
    }

    /// Checks a packet.
    pub fn sent(&mut self, header: &Header, value: &[u8], findings: &mut Findings) {
        let pid = usize::from(header.pid);
        let Some(committed) = self.committed.get_mut(pid) else {
            return;
        };
        let mut header = *header;
        match header.msgtype {
            MsgType::Ordered => self.stamps.sent(&header, value, findings),
            MsgType::StartView => {
                self.views.insert((header.pid, header.rnd));
            }
            MsgType::SyncPrepare => {
                let of = (header.pid, header.swid);
                match header.vrnd.is_none() {
                    false => self.crowded.insert(of),
                    true => {
                        let is_over = self.crowded.remove(&of);
                        self.crowds += u64::from(is_over);
                        is_over
                    }
                };
            }
            // The answer names commands, not the message.
            MsgType::Reply if !self.stamps.is_named(header.rnd.epoch(), &header) => {
                header.flags = Flags::PACKED;
            }
            _ => {}
        }
        if header.rnd.epoch() < self.anew.0 {
            return;
        }
        committed.sent(&header.datagram(value));
        self.report(pid, findings);
    }

    /// Checks the log that a replica shows, as [`Committed::shown`] does.
    pub fn shown(
        &mut self,
        who: NodeId,
        pid: PartitionId,
        normal_in: Option<u32>,
        reach: (Instance, Instance, Instance),
        log: impl Fn(Instance) -> Content,
        findings: &mut Findings,
    ) {
        let pid = usize::from(pid);
        self.committed[pid].shown(who, normal_in, reach, log);
        self.report(pid, findings);
    }

    /// Checks that a replica's disk has nothing that may be taken back; it has everything below
    /// `stored`.
    pub fn stored(&self, who: NodeId, pid: PartitionId, stored: Instance, findings: &mut Findings) {
        let committed = self.committed[usize::from(pid)].most_committed();
        let committed = committed.max(self.anew.1[usize::from(pid)]);
        if stored > committed {
            findings.report(Invariant::Speculation, || {
                format!(
                    "replica {who} has stored everything below {stored} of partition {pid}, and \
                     below {committed} it is committed"
                )
            });
        }
    }

    fn report(&mut self, pid: usize, findings: &mut Findings) {
        let violations = self.committed[pid].violations();
        for violation in &violations[self.reported[pid]..] {
            let invariant = match violation.id {
                "INV-10" => Invariant::Committed,
                "INV-11" => Invariant::OneStart,
                "INV-12" => Invariant::Stable,
                _ => Invariant::OneStamp,
            };
            findings.report(invariant, || violation.what.clone());
        }
        self.reported[pid] = violations.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paxos::Member;
    use paxos::nopaxos::{Stage, view};

    const FIRST: Round = Round(1 << 12);

    /// A replica stores only what the packets show as committed. [N-COMMIT]
    #[test]
    fn what_is_stored_is_below_what_the_packets_show_as_committed() {
        let mut ordered = Ordered::new(1);
        let mut findings = Findings::default();
        let members = [21, 22, 23].map(|node| Member { node, nonce: 1 });
        ordered.session(&Session {
            number: 1,
            sequencer: 41,
            nonce: 1,
            members: members.to_vec(),
            f: 1,
            lead: 0,
            stage: Stage::Writing,
            anew: None,
        });
        assert_eq!(view::first(1), FIRST);
        let commit = Header {
            rnd: FIRST,
            inst: 5,
            swid: 21,
            client: 1,
            ..Header::new(MsgType::SyncCommit)
        };
        ordered.sent(&commit, &[], &mut findings);
        ordered.stored(22, 0, 5, &mut findings);
        assert_eq!(findings.violations, []);
        ordered.stored(22, 0, 6, &mut findings);
        assert_eq!(findings.violations[0].invariant, Invariant::Speculation);
    }
}
