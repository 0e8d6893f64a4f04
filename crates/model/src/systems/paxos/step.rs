// SPDX-License-Identifier: Apache-2.0
//! Lets an actor handle a message, and keeps the part of the result that matters to others.

use paxos::wire::value::Rejection;
use paxos::{Flags, Header, MsgType, Reason, To, Verdict};

use super::Paxos;
use crate::actor::{Actor, Outputs};
use crate::mutation::{falsify_input, falsify_step};
use crate::network::{ActorId, Message, Payload, mask};
use crate::systems::Happened;

impl Paxos {
    /// Returns what an actor makes of a message, with the deliberate mistake.
    pub(super) fn step(&self, before: &Actor, mut payload: Payload) -> Happened<Actor> {
        if let Some(mutation) = self.mutation {
            falsify_input(mutation, &self.bounds, before, &mut payload);
        }
        let mut after = before.clone();
        let mut out = after.receive(&payload);
        if let Some(mutation) = self.mutation {
            falsify_step(mutation, before, &mut after, &payload, &mut out);
        }
        let flaw = self.flaw_of_step(before, &after, &payload, &out);
        Happened { after, out, flaw }
    }

    /// Returns an error if a refused message changes something (INV-8), or if an acceptor raises an
    /// alarm.
    fn flaw_of_step(
        &self,
        before: &Actor,
        after: &Actor,
        payload: &Payload,
        out: &Outputs,
    ) -> Option<Box<str>> {
        let reason = match out.verdict {
            Some(Verdict::Dropped(reason) | Verdict::Rejected(reason)) => reason,
            _ => return None,
        };
        let sent_more =
            matches!(out.verdict, Some(Verdict::Dropped(_))) && !out.packets.0.is_empty();
        if before.fingerprint() != after.fingerprint() || sent_more {
            return Some(
                format!("INV-8: {payload:?} is refused ({reason:?}) but has effects").into(),
            );
        }
        let alarm = reason == Reason::Conflict;
        alarm.then(|| format!("INV-3: {payload:?} raises the alarm").into())
    }

    /// Returns the messages for an actor's outputs.
    pub(super) fn post(
        &self,
        place: ActorId,
        sender: ActorId,
        after: &Actor,
        out: Outputs,
    ) -> Vec<Message> {
        let memory = match after {
            Actor::Acceptor(acceptor) => acceptor.nonce(),
            _ => 0,
        };
        let mut sends = Vec::new();
        for (to, header, value) in out.packets.0 {
            let to = self.receivers(to, sender, &header);
            let for_the_record = matches!(header.msgtype, MsgType::Phase2b | MsgType::Phase1b);
            if self.is_moot(place, &header, &value) || to == 0 && !for_the_record {
                continue;
            }
            let payload = Payload::Packet { header, value };
            sends.push((payload, to));
        }
        for (node, payload) in out.orders {
            let to = self.bounds.place_of(node).map_or(0, |place| 1 << place);
            if !self.is_idle_order(&payload) {
                sends.push((payload, to));
            }
        }
        for (inst, value) in out.delivered {
            sends.push((Payload::Delivered { inst, value }, 0));
        }
        let message = |(payload, to)| Message {
            payload,
            from: place,
            to,
            memory,
        };
        sends.into_iter().map(message).collect()
    }

    /// Messages that can't matter to whom they go, and would only multiply states.
    ///
    /// - A candidate sends QUERY to see votes in its own round; all other answers it drops. Here
    ///   every vote may reach it directly, at any time (see `receivers`), which is no less.
    /// - REJECT(window) and REJECT(not_leader) make a proposer try again. Nothing is ever lost for
    ///   good here, so nobody needs to.
    /// - REJECT(preempted) with a round of no later epoch is ignored by candidates and leaders.
    fn is_moot(&self, from: ActorId, h: &Header, value: &[u8]) -> bool {
        let range = h.flags.has(Flags::RANGE);
        match h.msgtype {
            MsgType::Query => from == self.bounds.control_place() && !range,
            MsgType::Reject => Rejection::parse(value).is_ok_and(|r| match r.reason {
                Reason::Window | Reason::NotLeader => true,
                Reason::Preempted => h.rnd.is_base() && r.round.epoch() <= h.rnd.epoch(),
                _ => false,
            }),
            _ => false,
        }
    }

    /// Returns true for an order that changes nothing of interest, and is left out to have fewer
    /// states. Enabling a member that goes on only tells it its replicas again and raises `end`,
    /// which nothing reads any more in this epoch; it is left out if the replicas stay and nothing
    /// is trimmed.
    fn is_idle_order(&self, payload: &Payload) -> bool {
        let Payload::Enable(enable) = payload else {
            return false;
        };
        let first = self.bounds.configuration(1);
        let first = first.filter(|_| !self.bounds.unborn);
        let goes_on = |c: &paxos::Configuration| {
            c.acceptors
                .iter()
                .any(|member| member.nonce == enable.nonce)
        };
        !self.bounds.enables_all && first.as_ref().is_some_and(goes_on)
    }

    fn receivers(&self, to: To, sender: ActorId, header: &Header) -> u32 {
        let b = &self.bounds;
        let leaders = mask(b.leader_places());
        let receivers = match to {
            To::Sender => 1 << sender,
            To::Acceptors => mask(b.acceptor_places()),
            To::Learners | To::Replicas => mask(b.learner_places()) | mask(b.repairer_places()),
            To::Leader => leaders,
            To::Node(node) => b.place_of(node).map_or(0, |place| 1 << place),
        };
        match header.msgtype {
            MsgType::Reject if !b.rejects_to_leaders => receivers & !leaders,
            // A vote is one message, no matter if it answers a proposal or a QUERY.
            MsgType::Phase2b => {
                let hosts = mask(b.learner_places()) | mask(b.repairer_places());
                hosts | 1 << b.control_place()
            }
            _ => receivers,
        }
    }
}
