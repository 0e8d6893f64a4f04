// SPDX-License-Identifier: Apache-2.0
//! Evidence that a leader or sequencer is dead. [E-EVIDENCE]

use super::GroupControl;
use super::report::role_name;
use crate::{ControlOutbox, EpochRecord, Store};
use paxos::wire::value::Probe;
use paxos::{NodeId, Round, Time};

impl GroupControl {
    /// Returns when the leader in force is asked next whether its port is still open.
    pub fn knock_deadline(&self) -> Time {
        match self.stamper_on_sockets() {
            Some((role, node)) => self.suspicion.knock_deadline(role, node),
            None => Time::MAX,
        }
    }

    /// Returns the leader in force if it is on sockets, where a closed port means a dead process.
    fn stamper_on_sockets(&self) -> Option<(Probe, NodeId)> {
        let leader = self.state.in_force()?.leader.0;
        let is_on_sockets = self.timing.on_sockets.contains(&leader);
        is_on_sockets.then_some((self.settings.stamper(), leader))
    }

    /// Asks the leader in force whether its port is still open, if that is due, and returns whether
    /// it was. [E-EVIDENCE]
    pub fn knock(&mut self, now: Time, out: &mut impl ControlOutbox) -> bool {
        let due = self.alarm.is_none() && now >= self.knock_deadline();
        let stamper = self.stamper_on_sockets().filter(|_| due);
        if let Some((role, node)) = stamper {
            let interval = self.timing.knock_interval;
            self.suspicion.knock(now, role, node, interval, out);
        }
        stamper.is_some()
    }

    /// Takes the evidence that no process has the port of a node: a leader in force is suspected at
    /// once. [E-EVIDENCE]
    pub fn refused(
        &mut self,
        now: Time,
        node: NodeId,
        store: &mut impl Store,
        out: &mut impl ControlOutbox,
    ) {
        match self.stamper_on_sockets() {
            Some((role, leader)) if leader == node && self.alarm.is_none() => {
                self.suspicion.refused(role, node);
                self.tick(now, store, out);
            }
            _ => {}
        }
    }

    /// Returns why the leader in force can't stay, if it can't.
    pub(super) fn leader_trouble(&self, last: &EpochRecord) -> Option<String> {
        let (node, nonce) = last.leader;
        let role = self.settings.stamper();
        let leader = self.suspicion.get(role, node)?;
        let role = role_name(role);
        if leader.refused {
            Some(format!("{role} {node} is dead: nobody has its port"))
        } else if self.suspicion.is_suspect(leader) {
            Some(format!("{role} {node} doesn't answer"))
        } else if leader.memory.is_some_and(|memory| memory != nonce) {
            Some(format!("{role} {node} was restarted"))
        } else if self.programmed == last.epoch && leader.round() < Round::base(last.epoch) {
            Some(format!("{role} {node} forgot its round"))
        } else {
            None
        }
    }
}
