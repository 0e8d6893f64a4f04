// SPDX-License-Identifier: Apache-2.0
//! Changes arriving packets for receivers that make a deliberate mistake, and of senders with a
//! damaged memory.

use paxos::{Header, Packet, To};

use super::layout::{self, Endpoint};
use super::mutation::{self, Mutation};
use super::protocol::Protocol;
use super::{Cluster, Kind};

impl<G: Protocol> Cluster<G> {
    pub(super) fn rewrite(
        &mut self,
        kind: &Kind,
        from: Endpoint,
        packet: &Packet<'_>,
    ) -> Option<(Header, Vec<u8>)> {
        let mutation = self.world.mutation;
        match (kind, self.kind(from.node)) {
            (Kind::Controller, Kind::Replica(n)) if self.world.is_ordered() => {
                let claimed = self.replicas[n].claimed(packet);
                claimed.or_else(|| self.controller.as_led(packet))
            }
            (Kind::Controller, Kind::Replica(n)) => match mutation? {
                Mutation::AddedHoldsAtOnce => {
                    let name = self.replicas[n].host.name;
                    let is_added = self.world.members.is_added(name);
                    is_added.then(|| mutation::members::holds_all(packet))?
                }
                mutation => mutation::rewrite_shown(mutation, packet),
            },
            (Kind::Controller, Kind::Acceptor(n)) => {
                let claimed = self.acceptors[n].claimed(packet);
                claimed.or_else(|| match mutation? {
                    Mutation::AheadSuffices => self.controller.hide_the_rest(packet),
                    Mutation::AheadOfAnyMemory => self.controller.as_of_today(packet),
                    mutation => mutation::rewrite(mutation, packet),
                })
            }
            (Kind::Replica(_), _) if self.world.is_ordered() => {
                let last = mutation.and_then(|_| self.controller.last_session());
                let last = last.map(|s| (s.number, s.sequencer));
                mutation::ordered::rewrite(mutation?, packet, last)
            }
            (Kind::Replica(_), Kind::Acceptor(_)) if mutation == Some(Mutation::RemovedVotes) => {
                let needed = self.controller.needed();
                mutation::members::as_a_member(needed.last()?, packet)
            }
            (Kind::Replica(_), _) => mutation::rewrite(mutation?, packet),
            (Kind::Client(_), _) => mutation::ordered::rewrite_answer(mutation?, packet),
            _ => None,
        }
    }

    /// Makes the mistake of a follower that answers before it has done what it was asked.
    pub(super) fn answers_at_once(
        &mut self,
        to: Endpoint,
        from: Endpoint,
        packet: &Packet<'_>,
    ) -> bool {
        let Some(mutation) = self.world.mutation else {
            return false;
        };
        let own = layout::node_id(self.host(to.node).name);
        let last = self.controller.last_session();
        let mut members = last.into_iter().flat_map(|s| s.members);
        let Some(member) = members.find(|m| m.node == own) else {
            return false;
        };
        let answer = mutation::ordered::answers_at_once(mutation, packet, member);
        let Some(header) = answer.filter(|_| to.node != from.node) else {
            return false;
        };
        self.world
            .send(to, Some(from), None, To::Sender, &header, &[]);
        true
    }

    /// Makes the mistake of a new leader that counts one member's VIEW_CHANGE as two.
    pub(super) fn tell_again(&mut self, to: Endpoint, from: Endpoint, packet: &Packet<'_>) {
        if !self.world.mutated(Mutation::ToldByAnother) {
            return;
        }
        let node = layout::node_id(self.host(to.node).name);
        let last = self.controller.last_session();
        let header = last.and_then(|last| mutation::ordered::told_by_another(packet, node, &last));
        if let (Some(header), Kind::Replica(n)) = (header, self.kind(to.node)) {
            let again = Packet {
                header,
                tag: None,
                value: packet.value,
            };
            let _ = self.replicas[n].packet(&mut self.world, to, from, &again, false);
        }
    }

    /// Makes the mistakes of a candidate and of a replica that accept too few answers.
    pub(super) fn answer_again(&mut self, to: Endpoint, from: Endpoint, packet: &Packet<'_>) {
        let mistake = match self.kind(to.node) {
            Kind::Controller => Mutation::QuorumOfF,
            _ => Mutation::OneEndBelieved,
        };
        if !self.world.mutated(mistake) {
            return;
        }
        let Kind::Acceptor(n) = self.kind(from.node) else {
            return;
        };
        let other = &self.acceptors[(n + 1) % self.acceptors.len()];
        let (id, nonce) = (
            layout::node_id(other.host.name),
            other.memory_nonce().unwrap_or(1),
        );
        if let Some((header, value)) = mutation::second_answer(mistake, packet, id, nonce) {
            let again = Packet {
                header,
                tag: None,
                value: &value,
            };
            let kind = self.kind(to.node);
            let w = &mut self.world;
            let _ = match kind {
                Kind::Replica(n) => self.replicas[n].packet(w, to, from, &again, false),
                _ => self.controller.packet(w, from, &again),
            };
        }
    }
}
