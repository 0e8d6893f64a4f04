// SPDX-License-Identifier: Apache-2.0
//! The counters of a role.

use paxos::wire::ReasonCounters;
use paxos::{MsgType, Reason, Verdict};
use serde_json::{Map, Value, json};
use tracing::error;

use crate::plane::SendCounters;

/// The number of messages of each type.
#[derive(Clone, Debug, Default)]
pub struct MessageCounters([u64; MsgType::ALL.len()]);

impl MessageCounters {
    /// Counts a message.
    #[inline]
    pub fn count(&mut self, msgtype: MsgType) {
        self.0[msgtype as usize] += 1;
    }

    /// Returns how many messages of a type there were.
    pub fn get(&self, msgtype: MsgType) -> u64 {
        self.0[msgtype as usize]
    }

    fn to_json(&self) -> Value {
        let counted = MsgType::ALL.into_iter().filter(|t| self.get(*t) > 0);
        Value::Object(
            counted
                .map(|t| (t.name().to_ascii_lowercase(), self.get(t).into()))
                .collect(),
        )
    }
}

/// A role's counters.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Well-formed messages that were received.
    pub received: MessageCounters,
    /// Messages that were sent; a message to several nodes counts once.
    pub sent: MessageCounters,
    /// Messages that were dropped, by reason.
    pub dropped: ReasonCounters,
    /// Messages that were answered with REJECT, by reason.
    pub rejected: ReasonCounters,
}

impl Counters {
    /// Counts the verdict on a packet.
    #[inline]
    pub fn conclude(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Changed | Verdict::Answered => {}
            Verdict::Rejected(reason) => self.count(reason, |c| &mut c.rejected),
            Verdict::Dropped(reason) => self.count(reason, |c| &mut c.dropped),
        }
    }

    /// Returns these counters together with packets that were dropped before they came here.
    pub fn with_dropped(&self, before: &ReasonCounters) -> Counters {
        let mut all = self.clone();
        for (reason, n) in before.nonzero() {
            all.dropped.add(reason, n);
        }
        all
    }

    fn count(&mut self, reason: Reason, of: fn(&mut Counters) -> &mut ReasonCounters) {
        let counters = of(self);
        counters.count(reason);
        if reason == Reason::Conflict && counters.get(reason).is_power_of_two() {
            let n = counters.get(reason);
            error!("conflict: {n} packets so far showed a second proposer in one round");
        }
    }

    /// Returns the dropped messages for `status`.
    pub fn dropped_to_json(&self) -> Value {
        reasons(&self.dropped).into()
    }

    /// Returns all counters for `status`, with those of the plane.
    pub fn to_json(&self, plane: SendCounters) -> Value {
        json!({
            "received": self.received.to_json(),
            "sent": self.sent.to_json(),
            "dropped": self.dropped_to_json(),
            "rejected": reasons(&self.rejected),
            "datagrams_sent": plane.sent,
            "sends_dropped": plane.dropped,
            "sends_refused": plane.refused,
        })
    }
}

fn reasons(counters: &ReasonCounters) -> Map<String, Value> {
    let counted = counters.nonzero();
    counted
        .map(|(reason, n)| (reason.name().to_owned(), n.into()))
        .collect()
}
