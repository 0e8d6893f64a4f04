// SPDX-License-Identifier: Apache-2.0
//! Makes a replica lead the next sessions first. The controller keeps the leader that replicas
//! show, so they show this one.

use std::collections::BTreeMap;

use control::GroupState;
use paxos::{Header, MsgType, NodeId, Packet, Round};

use super::ControllerHost;

/// The views that replicas show in place of their own.
#[derive(Default)]
pub(super) struct ShownLeads {
    /// The replica that is to lead partition 0.
    first: Option<NodeId>,
    /// The last view that each replica has shown, since a memory never shows an earlier one again.
    shown: BTreeMap<NodeId, Round>,
}

impl ShownLeads {
    fn shown(&mut self, state: &GroupState, header: &Header) -> Option<Round> {
        let first = self.first?;
        let mut epochs = state.epochs.iter();
        let session = epochs.find(|e| e.epoch == header.rnd.epoch())?.session(0)?;
        let last = self.shown.entry(header.swid).or_default();
        let least = header.rnd.max(*last);
        let turns = 0..session.members.len() as u32;
        let mut views = turns.map(|turn| Round(least.0 + turn));
        let led = views.find(|view| session.leader(*view, 0).node == first);
        *last = led.unwrap_or(least);
        Some(*last)
    }
}

impl ControllerHost {
    /// Makes this replica lead first from now on, once the controller has probed the replicas.
    pub fn lead_first(&mut self, replica: NodeId) {
        self.leads.first = Some(replica);
    }

    /// Returns a replica's PROBE_ACK with the view that it shows.
    pub fn as_led(&mut self, packet: &Packet<'_>) -> Option<(Header, Vec<u8>)> {
        let header = packet.header;
        if header.msgtype != MsgType::ProbeAck || header.pid != 0 || header.rnd.is_none() {
            return None;
        }
        let rnd = self.leads.shown(&self.store.0.borrow().state, &header)?;
        Some((Header { rnd, ..header }, packet.value.to_vec()))
    }
}
