// SPDX-License-Identifier: Apache-2.0
//! An operator's order to change the leader.

use super::Group;
use super::report::role_name;
use crate::{ControlOutbox, Message, Peer};
use paxos::{Epoch, NodeId, Time};

/// How many askers are answered at most.
const MAX_WAITING: usize = 64;

#[derive(Clone, Copy)]
pub(super) struct Order {
    /// The epoch whose leader must go.
    pub epoch: Epoch,
    pub to: Option<NodeId>,
    pub accept_data_loss: bool,
    /// The time when the order came.
    pub since: Time,
}

impl Group {
    pub(super) fn take_order(
        &mut self,
        now: Time,
        from: Peer,
        order: Order,
        out: &mut impl ControlOutbox,
    ) {
        if let Some(why) = self.invalid_order(&order) {
            self.reply(from, Err(why), out);
            return;
        }
        if let Some(record) = self.state.in_force() {
            if record.epoch > order.epoch {
                // The order was carried out or overtaken already.
                self.reply(from, Ok(record.epoch), out);
                return;
            }
        }
        if !self.waiting.contains(&from) && self.waiting.len() < MAX_WAITING {
            self.waiting.push(from);
        }
        // An attempt for a new epoch replaces the leader's epoch as well.
        let known = self.order.as_ref();
        let more = order.accept_data_loss && known.is_some_and(|known| !known.accept_data_loss);
        if self.attempt.is_none() && (known.is_none() || more) {
            self.order = Some(order);
            self.needed_since.get_or_insert(now);
        }
    }

    fn invalid_order(&self, order: &Order) -> Option<String> {
        if order.epoch > self.state.last_epoch() {
            return Some(format!(
                "epoch {} doesn't exist; the last one is {}",
                order.epoch,
                self.state.last_epoch()
            ));
        }
        let to = order.to?;
        if !self.settings.leaders.contains(&to) {
            let role = role_name(self.settings.stamper());
            return Some(format!("node {to} is no {role} in the cluster file"));
        }
        if !self.suspicion.is_alive(self.settings.stamper(), to) {
            return Some(format!("node {to} doesn't answer: start it first"));
        }
        None
    }

    pub(super) fn answer_waiting(
        &mut self,
        result: Result<Epoch, String>,
        out: &mut impl ControlOutbox,
    ) {
        self.order = None;
        self.stopping = None;
        for peer in std::mem::take(&mut self.waiting) {
            self.reply(peer, result.clone(), out);
        }
    }

    /// Tells those who wait about the store's error.
    pub(super) fn answer_trouble(&mut self, out: &mut impl ControlOutbox) {
        let why = self.store_trouble.clone().unwrap_or_default();
        self.answer_waiting(Err(format!("no epoch can be stored: {why}")), out);
    }

    fn reply(&self, to: Peer, result: Result<Epoch, String>, out: &mut impl ControlOutbox) {
        let group = self.id();
        out.control(to, Message::FailoverReply { group, result });
    }
}
