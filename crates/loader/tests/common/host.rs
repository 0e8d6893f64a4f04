// SPDX-License-Identifier: Apache-2.0
//! Does with the learner in a host's kernel what a replica's worker does.

use loader::layout::Decision;
use loader::learner::{Learner, Windows, decision};
use loader::object::{Object, Role};
use loader::ring::Ring;
use paxos::{Epoch, Header, Packet, PartitionId, Reason, Verdict};
use test_world::Rng;

use super::random::{PARTITIONS, TRUSTED};

/// Rings and what was said of their readers, partition by partition.
pub struct Host {
    rings: Vec<Ring>,
    awake: [bool; PARTITIONS as usize],
    repairs: [bool; PARTITIONS as usize],
}

impl Host {
    pub fn new(object: &Object) -> Host {
        if object.role() == Role::Learner {
            Learner::trust(object, &TRUSTED).expect("a map");
        }
        let ring = |pid| Ring::open(object, pid).expect("a ring");
        Host {
            rings: (0..PARTITIONS.into()).map(ring).collect(),
            awake: [false; PARTITIONS as usize],
            repairs: [false; PARTITIONS as usize],
        }
    }

    /// Workers fall asleep, wake, begin to repair, and have done so.
    pub fn turn(&mut self, random: &mut Rng, windows: &Windows) {
        for pid in 0..PARTITIONS {
            let at = usize::from(pid);
            self.awake[at] = random.percent(50);
            self.repairs[at] = random.percent(15);
            windows.set_awake(pid, self.awake[at]);
            windows.show_votes(pid, self.repairs[at]);
        }
    }

    /// Returns whether the host's sockets get a vote or a decision, too.
    pub fn sees(&self, pid: PartitionId, verdict: Verdict, decided: bool) -> bool {
        let at = usize::from(pid);
        let wakes = decided && !self.awake[at];
        wakes || verdict == Verdict::Dropped(Reason::UnknownEpoch) || self.repairs[at]
    }

    /// Returns whether they get an ordered message, too, while a session is listened to.
    pub fn sees_ordered(&self, h: &Header, verdict: Verdict, listened: Epoch) -> bool {
        let wakes = verdict == Verdict::Changed && !self.awake[usize::from(h.pid)];
        let is_later = h.rnd.epoch() > listened;
        wakes || (verdict == Verdict::Dropped(Reason::OldSession) && is_later)
    }

    /// Checks that the rings hold only the decision that `packet` has brought, and empties them.
    pub fn hold(&mut self, packet: Option<&Packet<'_>>) -> Result<(), String> {
        let mut found = Vec::new();
        for (ring, records) in self.rings.iter_mut().enumerate() {
            while let Some(record) = records.next(<[u8]>::to_vec) {
                let head = decision(&record).ok_or("half a record")?;
                let value = &record[size_of::<Decision>()..][..usize::from(head.len)];
                found.push((ring, head, value.to_vec()));
            }
        }
        let expected: Vec<_> = packet.into_iter().map(expected).collect();
        if found == expected {
            Ok(())
        } else {
            Err(format!("the rings hold {found:?}, expected {expected:?}"))
        }
    }
}

fn expected(packet: &Packet<'_>) -> (usize, Decision, Vec<u8>) {
    let h = &packet.header;
    let head = Decision {
        inst: h.inst,
        client: h.client,
        request: h.request,
        rnd: h.rnd.0,
        group: h.group,
        pid: h.pid,
        flags: h.flags.of_value().0,
        len: packet.value.len() as u16,
        unused: 0,
    };
    (h.pid.into(), head, packet.value.to_vec())
}
