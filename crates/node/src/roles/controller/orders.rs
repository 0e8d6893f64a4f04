// SPDX-License-Identifier: Apache-2.0
//! Orders of operators as events: who ordered what, and how it ended.

use std::net::SocketAddr;
use std::time::Instant;

use control::Message;
use paxos::{Epoch, GroupId, NodeId};

use super::event::Event;
use crate::budget::Budget;
use crate::cluster_file::ClusterFile;
use crate::names::Names;

/// How many orders and answers become events at once, and per second: whoever repeats orders for
/// ever must not drive all other events out.
const NOTED: (u32, u32) = (20, 1);

/// The orders that came last.
pub(super) struct Orders {
    names: Names,
    last: Option<(SocketAddr, Order)>,
    last_answer: Option<(SocketAddr, Message)>,
    budget: Budget,
}

/// The fields of an order, by which a repeated one is known.
type Order = (GroupId, Epoch, Option<NodeId>, bool);

impl Orders {
    pub fn new(cluster: &ClusterFile) -> Orders {
        Orders {
            names: Names::new(cluster),
            last: None,
            last_answer: None,
            budget: Budget::new(NOTED.0, NOTED.1),
        }
    }

    /// Returns the event of a message that is an operator's order. Commands repeat their order
    /// until it is answered.
    pub fn ordered(&mut self, from: SocketAddr, message: &Message, now: Instant) -> Option<Event> {
        let Message::Failover {
            group,
            epoch,
            to,
            forced: true,
            accept_data_loss,
        } = message
        else {
            return None;
        };
        let order = (from, (*group, *epoch, *to, *accept_data_loss));
        if self.last == Some(order) || !self.budget.take(now) {
            return None;
        }
        self.last = Some(order);
        let node = to.map(|id| self.names.of(id));
        let leader = node.as_deref().unwrap_or("another node");
        let loss = if *accept_data_loss {
            ", AND ACCEPTS DATA LOSS"
        } else {
            ""
        };
        let text = format!("an operator at {from} orders {leader} to lead{loss}");
        let event = match accept_data_loss {
            true => Event::warning("order", text),
            false => Event::new("order", text),
        };
        Some(event.group(*group).node(node).by(from.to_string()))
    }

    /// Returns the event of a message that answers an order.
    pub fn answered(&mut self, to: SocketAddr, message: &Message, now: Instant) -> Option<Event> {
        let Message::FailoverReply { group, result } = message else {
            return None;
        };
        let answer = (to, message.clone());
        if self.last_answer.as_ref() == Some(&answer) || !self.budget.take(now) {
            return None;
        }
        self.last_answer = Some(answer);
        let event = match result {
            Ok(epoch) => {
                let text = format!("the order of the operator at {to} is carried out");
                Event::new("order_done", text).epoch(*epoch)
            }
            Err(why) => {
                let text = format!("the order of the operator at {to} is refused: {why}");
                Event::warning("order_refused", text).because(why.clone())
            }
        };
        Some(event.group(*group).by(to.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_and_its_end_are_noted_once_and_not_without_limit() {
        let text = include_str!("../../../../../testdata/cluster.toml");
        let cluster = crate::cluster_file::parse(text, "cluster.toml").unwrap();
        let mut orders = Orders::new(&cluster);
        let now = Instant::now();
        let from = SocketAddr::from(([10, 0, 0, 9], 4711));
        let order = |epoch, forced| Message::Failover {
            group: 0,
            epoch,
            to: cluster.node("leader-2").map(|node| node.id),
            forced,
            accept_data_loss: false,
        };
        assert_eq!(
            orders.ordered(from, &order(3, false), now),
            None,
            "a client suspects"
        );
        let event = orders.ordered(from, &order(3, true), now).unwrap();
        assert_eq!(
            event.text,
            "an operator at 10.0.0.9:4711 orders leader-2 to lead"
        );
        assert_eq!(event.by.as_deref(), Some("10.0.0.9:4711"));
        assert_eq!(
            orders.ordered(from, &order(3, true), now),
            None,
            "it is repeated"
        );

        let refused = Message::FailoverReply {
            group: 0,
            result: Err("replica-1 doesn't answer".to_owned()),
        };
        let event = orders.answered(from, &refused, now).unwrap();
        assert!(
            event.text.ends_with("is refused: replica-1 doesn't answer"),
            "{event:?}"
        );
        assert_eq!(orders.answered(from, &refused, now), None, "it is repeated");
        let done = Message::FailoverReply {
            group: 0,
            result: Ok(4),
        };
        assert_eq!(orders.answered(from, &done, now).unwrap().epoch, Some(4));

        let many = (4..100).filter_map(|epoch| orders.ordered(from, &order(epoch, true), now));
        assert_eq!(many.count(), NOTED.0 as usize - 3);
    }
}
