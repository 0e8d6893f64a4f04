// SPDX-License-Identifier: Apache-2.0
//! Draws lanes and incarnations, each of which is given out once.

use paxos::{Epoch, NodeId};

use super::GroupControl;
use crate::{ControlOutbox, GroupState, Message, OUTSIDE, Peer, Refused, Store};

impl GroupControl {
    pub(super) fn draw_lane(
        &mut self,
        from: Peer,
        epoch: Epoch,
        (node, nonce): (NodeId, u64),
        store: &mut impl Store,
        out: &mut impl ControlOutbox,
    ) {
        if self.state.in_force().is_none_or(|e| e.epoch != epoch) {
            return;
        }
        let another = node == OUTSIDE && !self.state.lanes.contains(&nonce);
        if another && !self.outside_lanes.takes(epoch) {
            return;
        }
        if let Some(lane) = self.draw(store, |state| state.draw_lane(epoch, nonce)) {
            let told = Message::Lane {
                group: self.id(),
                epoch,
                nonce,
                lane,
            };
            out.control(from, told);
        }
    }

    pub(super) fn draw_incarnation(
        &mut self,
        from: Peer,
        node: NodeId,
        nonce: u64,
        store: &mut impl Store,
        out: &mut impl ControlOutbox,
    ) {
        if !self.is_replica(node) {
            return;
        }
        if let Some(incarnation) = self.draw(store, |state| state.draw_incarnation(node, nonce)) {
            let told = Message::Incarnation {
                group: self.id(),
                nonce,
                incarnation,
            };
            out.control(from, told);
        }
    }

    /// Draws a number that nobody else gets, from the epoch in force. The number is stored before
    /// it is told to the asker. [E-OWN]
    pub(super) fn draw<T>(
        &mut self,
        store: &mut impl Store,
        draw: impl FnOnce(&mut GroupState) -> Result<T, Refused>,
    ) -> Option<T> {
        let epoch = self.state.in_force()?.epoch;
        if self.issued != epoch {
            // An earlier process may have given out any number of this epoch, and the store may be
            // an older copy of its state.
            self.used_up = epoch;
            return None;
        }
        let mut state = self.state.clone();
        match draw(&mut state) {
            Ok(drawn) => self.save(state, store).is_ok().then_some(drawn),
            Err(Refused::LanesExhausted) => {
                self.used_up = epoch;
                None
            }
            Err(_) => None,
        }
    }
}
