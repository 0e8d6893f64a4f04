// SPDX-License-Identifier: Apache-2.0
//! A replica of NOPaxos whose damaged memory shows the controller what can't be.

use paxos::nopaxos::view::MAX_LEADER;
use paxos::wire::value::ProbeReport;
use paxos::{Header, Instance, MsgType, Packet, Round};

use super::ReplicaHost;

impl<G> ReplicaHost<G> {
    /// Makes its PROBE_ACKs from now on show this checkpoint and this number of a leader.
    pub fn claim(&mut self, trim: Instance, leader: Instance) {
        self.claims = Some((trim, leader));
    }

    /// Returns whether its PROBE_ACKs are false.
    pub fn lies(&self) -> bool {
        self.claims.is_some()
    }

    /// Returns a PROBE_ACK with the false values, if it must lie. It names the session that the
    /// replica is in, since a later one would only show that the store is an old copy.
    pub fn claimed(&self, packet: &Packet<'_>) -> Option<(Header, Vec<u8>)> {
        let (trim, leader) = self.claims?;
        let mut header = packet.header;
        if header.msgtype != MsgType::ProbeAck {
            return None;
        }
        let report = ProbeReport::parse(packet.value).ok()?;
        if !header.rnd.is_none() {
            let number = leader.min(MAX_LEADER.into()) as u32;
            header.rnd = Round(Round::base(header.rnd.epoch()).0 | number);
            header.inst = header.inst.max(trim);
        }
        Some((header, ProbeReport { trim, ..report }.emit().to_vec()))
    }
}
