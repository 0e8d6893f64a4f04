// SPDX-License-Identifier: Apache-2.0
//! The link between a node's acceptors and their log: the memory that the log is read into, and the
//! state that the log asks for.

use control::Message;
use paxos::{Acceptor, Flags, GroupId, Header, Instance, MsgType, Outbox, Packet, To, Verdict};

use super::sockets::id;
use crate::cluster_file::{ClusterFile, Group, Node};
use crate::roles::wal::{BLOCK, GroupPartition, RecordKind, Remembered, Replayed};
use crate::{Error, random_nonce};

/// Returns how many bytes the acceptors of a node remember at most, as records.
pub fn remembered_bytes(cluster: &ClusterFile) -> u64 {
    let of_group = |g: &Group| {
        // Each slot may be in its own frame, which takes whole blocks.
        let slot = u64::from(g.max_value).next_multiple_of(BLOCK as u64);
        u64::from(g.partitions) * g.slots as u64 * slot
    };
    cluster.groups.iter().map(of_group).sum()
}

/// Returns the slot that a packet has changed, if it is about a single one.
pub fn slot_of(h: &Header) -> Option<(GroupPartition, Instance)> {
    let of_one = match h.msgtype {
        MsgType::Phase2a => true,
        MsgType::Phase1a => !h.flags.has(Flags::RANGE),
        _ => false,
    };
    of_one.then_some(((h.group, h.pid), h.inst))
}

impl Remembered for Vec<Acceptor> {
    fn heads(&self, put: &mut dyn FnMut(&[u8])) {
        let mut head = Vec::new();
        for acceptor in self {
            head.clear();
            head.extend_from_slice(&id(acceptor).to_be_bytes());
            acceptor.save_head(&mut head);
            put(&head);
        }
    }

    fn trim(&self, (group, pid): GroupPartition) -> Instance {
        let acceptor = self.iter().find(|a| id(a) == group);
        acceptor.map_or(0, |a| a.trim(pid))
    }

    fn save_slot(&self, (group, pid): GroupPartition, inst: Instance, out: &mut Vec<u8>) {
        if let Some(acceptor) = self.iter().find(|a| id(a) == group) {
            acceptor.save_slot(pid, inst, out);
        }
    }
}

/// The memory that a log is read into: one acceptor for each group of the cluster file that the log
/// has.
pub struct LoggedMemory<'a> {
    cluster: &'a ClusterFile,
    node: &'a Node,
    acceptors: Vec<Option<Acceptor>>,
}

impl<'a> LoggedMemory<'a> {
    pub fn new(cluster: &'a ClusterFile, node: &'a Node) -> LoggedMemory<'a> {
        LoggedMemory {
            cluster,
            node,
            acceptors: cluster.groups.iter().map(|_| None).collect(),
        }
    }

    /// Returns all acceptors, each at a new start; groups without a memory get strangers.
    pub fn restarted(self) -> Result<Vec<Acceptor>, Error> {
        let mut acceptors = self.acceptors;
        for acceptor in acceptors.iter_mut().flatten() {
            acceptor.restarted(random_nonce()? as u32);
        }
        strangers_for_none(acceptors, self.cluster, self.node)
    }

    /// Returns the memory of the first group as it was found.
    #[cfg(test)]
    pub fn found(&self) -> Option<Acceptor> {
        self.acceptors[0].clone()
    }

    fn of(&mut self, group: GroupId) -> Result<&mut Acceptor, String> {
        let mut acceptors = self.acceptors.iter_mut().flatten();
        let acceptor = acceptors.find(|a| id(a) == group);
        acceptor.ok_or_else(|| format!("it holds votes of the unknown group {group}"))
    }

    fn head(&mut self, bytes: &[u8]) -> Result<(), String> {
        let (group, saved) = bytes.split_first_chunk::<2>().ok_or("a record is cut")?;
        let group = u16::from_be_bytes(*group);
        let at = self.cluster.groups.iter().position(|g| g.id == group);
        let at = at.ok_or_else(|| {
            format!("it holds votes of group {group}, which the cluster file doesn't have")
        })?;
        let of = &self.cluster.groups[at];
        let head = Acceptor::load(self.cluster.deployment(self.node, of), of.slots, saved)
            .map_err(|why| format!("group {group}: {why}"))?;
        match &mut self.acceptors[at] {
            Some(known) if known.nonce() == head.nonce() => {
                known.continue_at(&head).map_err(does_not_fit)?;
            }
            other => *other = Some(head),
        }
        Ok(())
    }

    fn slot(&mut self, bytes: &[u8]) -> Result<(GroupPartition, Instance), String> {
        let (place, saved) = bytes.split_first_chunk::<4>().ok_or("a record is cut")?;
        let [g, h, p, q] = *place;
        let (group, pid) = (u16::from_be_bytes([g, h]), u16::from_be_bytes([p, q]));
        let loaded = self.of(group)?.load_saved_slot(pid, saved);
        Ok(((group, pid), loaded.map_err(does_not_fit)?))
    }

    fn packet(&mut self, bytes: &[u8]) -> Result<Option<(GroupPartition, Instance)>, String> {
        let packet = Packet::parse(bytes)
            .map_err(|reason| format!("a record holds no packet ({})", reason.name()))?;
        let acceptor = self.of(packet.header.group)?;
        match acceptor.step(&packet, &mut Nowhere) {
            Verdict::Changed => Ok(slot_of(&packet.header)),
            verdict => Err(does_not_fit(&format!("{verdict:?}"))),
        }
    }
}

impl Replayed for LoggedMemory<'_> {
    fn replay(
        &mut self,
        kind: RecordKind,
        bytes: &[u8],
    ) -> Result<Option<(GroupPartition, Instance)>, String> {
        match kind {
            RecordKind::Packet => return self.packet(bytes),
            RecordKind::Slot => return self.slot(bytes).map(Some),
            RecordKind::Head => self.head(bytes)?,
            RecordKind::Asked => {
                let request = order_in(bytes)?.earlier_start_request();
                let request = request.ok_or("a record holds another order")?;
                let acceptor = self.of(request.group)?;
                let asked = acceptor.asked(request.nonce, request.start);
                asked.map(|_| ()).map_err(does_not_fit)?;
            }
            RecordKind::Enable => {
                let message = order_in(bytes)?;
                let (group, enable) = message.enable().ok_or("a record holds another order")?;
                let enabled = self.of(group)?.enable(&enable);
                enabled.map(|_| ()).map_err(does_not_fit)?;
            }
            // This record is for the log itself.
            RecordKind::Oldest => {}
            RecordKind::Entry | RecordKind::Reach | RecordKind::Change => {
                return Err("a record is of a replica's log".to_owned());
            }
        }
        Ok(None)
    }
}

fn does_not_fit(why: &str) -> String {
    format!("a record doesn't fit what precedes it: {why}")
}

fn order_in(record: &[u8]) -> Result<Message, String> {
    serde_json::from_slice(record).map_err(|e| format!("a record holds no order: {e}"))
}

/// Discards the packets that replayed packets cause, since each was sent before, or never left.
struct Nowhere;

impl Outbox for Nowhere {
    fn send(&mut self, _: To, _: &Header, _: &[u8]) {}
}

/// Fills the groups without a memory with strangers.
pub fn strangers_for_none(
    known: Vec<Option<Acceptor>>,
    cluster: &ClusterFile,
    node: &Node,
) -> Result<Vec<Acceptor>, Error> {
    let stranger_for_none = |(known, group): (Option<Acceptor>, _)| match known {
        Some(acceptor) => Ok(acceptor),
        None => {
            let deployment = cluster.deployment(node, group);
            Ok(Acceptor::new(deployment, group.slots, random_nonce()?))
        }
    };
    known
        .into_iter()
        .zip(&cluster.groups)
        .map(stranger_for_none)
        .collect()
}
