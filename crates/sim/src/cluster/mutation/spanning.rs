// SPDX-License-Identifier: Apache-2.0
//! Deliberate mistakes with commands over several partitions.

use paxos::wire::value::Vector;
use paxos::{Flags, Header, Packet, PartitionId};
use replica::{Agreement, Application, Decided, SiblingMessage, Worker};

use super::Mutation;
use crate::application::Kv;

/// Returns a message that a partition sends its sibling at once, as if unstable state counted.
pub fn says_too_early<G: Agreement>(
    mutation: Mutation,
    worker: &mut Worker<Kv, G>,
    pid: PartitionId,
    asked: &SiblingMessage,
) -> Option<SiblingMessage> {
    let (SiblingMessage::Asks(copy) | SiblingMessage::Stands { copy, .. }) = asked else {
        return None;
    };
    let (place, next, stable) = (
        copy.place_in(pid)?,
        worker.next(),
        worker.agreement().stable(),
    );
    match mutation {
        Mutation::PassedUnstable if (stable..next).contains(&place) => {
            Some(SiblingMessage::Dead(copy.clone()))
        }
        Mutation::StandsUnstable if place == next && place >= stable => {
            let lies_there = |vector: &Vector<'_>| {
                let mut places = vector.iter();
                places.all(|(pid, inst)| copy.place_in(pid) == Some(inst))
            };
            let entry = worker.agreement().entry(place).filter(is_copy)?;
            let vector = Vector::parse(entry.value).ok().filter(lies_there)?;
            let (command, mut prepared) = (vector.command.to_vec(), Vec::new());
            let read = worker.application().prepare(&command, &mut prepared);
            let copy = copy.clone();
            read.ok()
                .map(|()| SiblingMessage::Stands { copy, prepared })
        }
        _ => None,
    }
}

/// Replaces an arriving command by the one in its slot if both have the same name.
pub fn kept_vector(packet: &Packet<'_>, there: Option<Decided<'_>>) -> Option<(Header, Vec<u8>)> {
    let h = packet.header;
    let kept = there.filter(is_copy)?;
    let is_same = (h.client, h.request, h.flags) == (kept.client, kept.request, kept.flags);
    is_same.then(|| (h, kept.value.to_vec()))
}

fn is_copy(entry: &Decided<'_>) -> bool {
    entry.flags.has(Flags::MULTI) && !entry.flags.has(Flags::NOOP)
}
