// SPDX-License-Identifier: Apache-2.0
//! What a role counts.

use paxos::wire::ReasonCounters;
use paxos::{MsgType, Reason, Verdict};
use serde_json::{Map, Value, json};
use tracing::error;

use crate::plane::SendCounters;

/// Messages of each type.
#[derive(Clone, Debug, Default)]
pub struct MessageCounters([u64; MsgType::ALL.len()]);

impl MessageCounters {
    /// Counts one.
    #[inline]
    pub fn count(&mut self, msgtype: MsgType) {
        self.0[msgtype as usize] += 1;
    }

    /// How many there were of a type.
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
    /// Well-formed messages that came in.
    pub received: MessageCounters,
    /// Messages that went out; one to several nodes counts once.
    pub sent: MessageCounters,
    /// What was dropped, and why.
    pub dropped: ReasonCounters,
    /// What was answered with REJECT, and why.
    pub rejected: ReasonCounters,
}

impl Counters {
    /// Counts what became of a packet.
    #[inline]
    pub fn conclude(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Changed | Verdict::Answered => {}
            Verdict::Rejected(reason) => self.count(reason, |c| &mut c.rejected),
            Verdict::Dropped(reason) => self.count(reason, |c| &mut c.dropped),
        }
    }

    /// These, and what was dropped before it came here.
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

    /// What was dropped, for `status`.
    pub fn dropped_to_json(&self) -> Value {
        reasons(&self.dropped).into()
    }

    /// For `status`, with what the plane counts.
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
