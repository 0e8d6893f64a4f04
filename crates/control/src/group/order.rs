// SPDX-License-Identifier: Apache-2.0
//! An operator's order to change the leader.

use super::GroupControl;
use super::report::role_name;
use crate::{ControlOutbox, EpochRecord, Message, Peer};
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

/// Somebody who is told when a new epoch is active, and the node that must lead it.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Waiter {
    from: Peer,
    to: Option<NodeId>,
}

impl GroupControl {
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
                self.reply(from, carried_out(record, order.to), out);
                return;
            }
        }
        let waiter = Waiter { from, to: order.to };
        if !self.waiting.contains(&waiter) && self.waiting.len() < MAX_WAITING {
            self.waiting.push(waiter);
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

    /// Tells those who wait that the last epoch is active, and whether the leader that they want
    /// leads it.
    pub(super) fn answer_active(&mut self, out: &mut impl ControlOutbox) {
        let last = self.state.epochs.last().cloned();
        for waiter in self.end_orders() {
            if let Some(record) = &last {
                self.reply(waiter.from, carried_out(record, waiter.to), out);
            }
        }
    }

    /// Tells those who wait why there is no new epoch.
    pub(super) fn refuse_waiting(&mut self, why: &str, out: &mut impl ControlOutbox) {
        for waiter in self.end_orders() {
            self.reply(waiter.from, Err(why.to_owned()), out);
        }
    }

    fn end_orders(&mut self) -> Vec<Waiter> {
        self.order = None;
        self.stopping = None;
        std::mem::take(&mut self.waiting)
    }

    /// Tells those who wait about the store's error.
    pub(super) fn answer_trouble(&mut self, out: &mut impl ControlOutbox) {
        let why = self.store_trouble.clone().unwrap_or_default();
        self.refuse_waiting(&format!("no epoch can be stored: {why}"), out);
    }

    fn reply(&self, to: Peer, result: Result<Epoch, String>, out: &mut impl ControlOutbox) {
        let group = self.id();
        out.control(to, Message::FailoverReply { group, result });
    }
}

/// Returns the answer to an order after which this epoch became active. Another change may have
/// come before the order, and then another node may lead.
fn carried_out(record: &EpochRecord, to: Option<NodeId>) -> Result<Epoch, String> {
    let (leader, epoch) = (record.leader.0, record.epoch);
    match to {
        Some(to) if to != leader => Err(format!(
            "node {leader} leads in epoch {epoch}, since another change came before this order: \
             give the order again"
        )),
        _ => Ok(epoch),
    }
}
