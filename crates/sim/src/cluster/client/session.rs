// SPDX-License-Identifier: Apache-2.0
//! The session of a client in one partition.

use std::collections::{BTreeMap, VecDeque};

use paxos::Proposer;
use replica::parts::{Part, Progress, Sending};
use replica::{Status, parts};

use super::super::mutation::Mutation;
use super::super::world::World;
use super::Wish;

/// A session, which may not be open yet.
#[derive(Default)]
pub(super) struct ClientSession {
    /// The nonce of the OPEN that is being sent.
    pub(super) opening: Option<u64>,
    pub(super) id: Option<u64>,
    /// The session's number in the checkers.
    pub(super) number: u64,
    pub(super) next_request: u64,
    /// The command of each unanswered request.
    pub(super) outstanding: BTreeMap<u64, u64>,
    /// Commands that wait for the session, or for room in its window.
    pub(super) waiting: VecDeque<Wish>,
    /// A command that is longer than a value and is being sent.
    pub(super) large: Option<Large>,
    /// The last command must be answered before the next one is sent. [S-ORDERED]
    pub(super) has_alone: bool,
    /// For a mutation, the long command before this one.
    earlier: Vec<u8>,
}

/// A command that travels in parts. [S-PARTS]
pub(super) struct Large {
    pub(super) command: Vec<u8>,
    pub(super) sending: Sending,
}

impl ClientSession {
    /// Returns the request to which an answer with this number belongs, or `None` for an answer to
    /// a part before the last. If a part is refused, the other parts no longer matter, and
    /// `give_up` gets their numbers.
    pub(super) fn answered_request(
        &mut self,
        number: u64,
        status: Option<Status>,
        give_up: impl FnMut(u64),
    ) -> Option<u64> {
        let (request, part) = parts::split(number);
        if part.is_none() {
            return Some(request);
        }
        let large = self.large.as_mut()?;
        if large.sending.answered(number, status == Some(Status::Ok)) != Progress::Answered {
            return None;
        }
        let large = self.large.take()?;
        large.sending.open().for_each(give_up);
        self.earlier = large.command;
        Some(request)
    }

    pub(super) fn send_parts(&mut self, world: &mut World, pid: usize, proposer: &mut Proposer) {
        let (Some(id), Some(large)) = (self.id, &mut self.large) else {
            return;
        };
        let mut part = Vec::new();
        while let Some(number) = large.sending.next(&large.command, &mut part) {
            let may_mix = matches!(parts::split(number).1, Some(Part::At(_)));
            if may_mix && world.mutated(Mutation::PartsMixed) && world.rng.chance(500_000) {
                // The bytes after the length come from the earlier command.
                let of_earlier = self.earlier.iter().zip(part.iter_mut().skip(4));
                of_earlier.for_each(|(byte, place)| *place = *byte);
            }
            let submitted = proposer.submit(pid as u16, id, number, &part);
            submitted.expect("a number of its own, and a part that fits");
        }
    }
}
