// SPDX-License-Identifier: Apache-2.0
//! Checks invariant 15: no slot of a session has two messages, and none lies below the beginning of
//! that session.

use std::collections::BTreeMap;

use paxos::{Epoch, Header, Instance, MsgType, PartitionId};

use super::votes::commands_of;
use super::{Findings, Invariant};
use crate::rng::hash;

/// A message with its slot.
#[derive(Debug)]
struct Stamp {
    session: Epoch,
    /// The client and the request in its header.
    name: (u64, u64),
    digest: u64,
    commands: Vec<u64>,
}

/// The messages that sequencers have stamped, according to the packets that they sent.
#[derive(Default, Debug)]
pub struct Stamps {
    /// The first slots of each session, by partition.
    begins: BTreeMap<Epoch, Vec<Instance>>,
    stamps: BTreeMap<(PartitionId, Instance), Vec<Stamp>>,
}

impl Stamps {
    /// Notes a session's first slots, by partition.
    pub fn begins(&mut self, session: Epoch, slots: Vec<Instance>) {
        self.begins.insert(session, slots);
    }

    /// Checks an ordered message of a sequencer.
    pub fn sent(&mut self, header: &Header, value: &[u8], findings: &mut Findings) {
        debug_assert_eq!(header.msgtype, MsgType::Ordered);
        let (session, inst) = (header.rnd.epoch(), header.inst);
        let begins = self.begins.get(&session);
        let first = begins.and_then(|slots| slots.get(usize::from(header.pid)));
        if first.is_none_or(|first| inst < *first) {
            findings.report(Invariant::OneStamp, || {
                format!("slot {inst} of session {session} is stamped, which begins at {first:?}")
            });
        }
        let stamp = Stamp {
            session,
            name: (header.client, header.request),
            digest: hash(0, value),
            commands: commands_of(header, value),
        };
        let known = self.stamps.entry((header.pid, inst)).or_default();
        match known.iter().find(|known| known.session == session) {
            None => known.push(stamp),
            Some(known) if (known.name, known.digest) == (stamp.name, stamp.digest) => {}
            Some(known) => findings.report(Invariant::OneStamp, || {
                format!("slot {inst} of session {session} is stamped twice: {known:?}, {stamp:?}")
            }),
        }
    }

    /// Returns whether any session has a command at a slot.
    pub fn have(&self, pid: PartitionId, inst: Instance, command: u64) -> bool {
        let stamps = self.stamps.get(&(pid, inst)).into_iter().flatten();
        stamps
            .into_iter()
            .any(|stamp| stamp.commands.contains(&command))
    }

    /// Returns whether the message at a slot of a session has this name.
    pub fn is_named(&self, session: Epoch, header: &Header) -> bool {
        let stamps = self.stamps.get(&(header.pid, header.inst));
        let mut stamps = stamps.into_iter().flatten();
        let name = (header.client, header.request);
        stamps.any(|stamp| stamp.session == session && stamp.name == name)
    }
}
