// SPDX-License-Identifier: Apache-2.0
//! The rules for answers that acceptors and leaders share.

use std::collections::BTreeMap;

use paxos::trace::Settings;
use paxos::wire::value::{ProbeReport, Rejection};
use paxos::{Header, Instance, MsgType, NodeId, Packet, Reason, Round};

/// The node that answers.
#[derive(Clone)]
pub(super) struct Sender {
    pub settings: Settings,
    pub node: NodeId,
}

impl Sender {
    /// Returns the whole answer to a packet.
    pub fn datagram(&self, asked: &Packet<'_>, (header, value): (Header, Vec<u8>)) -> Vec<u8> {
        let header = Header {
            cluster: self.settings.cluster,
            group: self.settings.group,
            pid: asked.header.pid,
            swid: self.node,
            ..header
        };
        header.datagram(&value)
    }
}

/// An answer to a packet, if there is one: the header and value that follow from the packet and the
/// memory.
pub(super) type Answer = Option<(Header, Vec<u8>)>;

pub(super) fn reject(h: &Header, reason: Reason, round: Round, trim: Instance) -> Answer {
    let rejection = Rejection {
        reason,
        round,
        trim,
    };
    let header = Header {
        inst: h.inst,
        rnd: h.rnd,
        client: h.client,
        request: h.request,
        ..Header::new(MsgType::Reject)
    };
    Some((header, rejection.emit().to_vec()))
}

pub(super) fn probed(h: &Header, rnd: Round, inst: Instance, report: ProbeReport) -> Answer {
    let header = Header {
        inst,
        rnd,
        client: h.client,
        request: h.request,
        ..Header::new(MsgType::ProbeAck)
    };
    Some((header, report.emit().to_vec()))
}

/// Raises what a map holds for a key.
pub(super) fn raise<K: Ord, V: Ord + Default + Copy>(map: &mut BTreeMap<K, V>, key: K, to: V) {
    let known = map.entry(key).or_default();
    *known = to.max(*known);
}

pub(super) fn held<K: Ord, V: Default + Copy>(map: &BTreeMap<K, V>, key: &K) -> V {
    map.get(key).copied().unwrap_or_default()
}
