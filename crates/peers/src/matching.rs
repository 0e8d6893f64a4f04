// SPDX-License-Identifier: Apache-2.0
//! The client's side of Speculative Paxos: an answer counts once enough replicas have given it on
//! the same log.

use std::collections::BTreeMap;

use paxos::{Header, Instance, NodeId, Packet, Round};

/// Answers that wait, at most; beyond that the oldest are given up, and asked for again.
const MAX_WAITING: usize = 16_384;

/// The basis of an answer: view, slot, and the digest of the log up to there. The last part tells
/// which part of a pack's answer it is, by the command with which that begins.
type Ground = (Round, Instance, u64, [u8; 18]);

/// Counts answers of one partition.
#[derive(Debug)]
pub struct Matching {
    needed: usize,
    waiting: BTreeMap<Ground, Vec<NodeId>>,
}

impl Matching {
    /// Creates the counts for 2f+1 replicas, of which f + ⌈f/2⌉ + 1 have to agree.
    pub fn of(replicas: usize) -> Matching {
        Matching {
            needed: superquorum(replicas),
            waiting: BTreeMap::new(),
        }
    }

    #[cfg(test)]
    pub(crate) fn needing(needed: usize) -> Matching {
        Matching {
            needed,
            waiting: BTreeMap::new(),
        }
    }

    /// Counts a REPLY that isn't final by itself: `rnd` is a view, `inst` a slot, `client` the
    /// digest of the log, and it is packed even if it has one answer only. Returns true if enough
    /// replicas have said the same now, for the first time.
    pub fn counts(&mut self, packet: &Packet<'_>) -> bool {
        let Header {
            rnd,
            inst,
            client,
            swid,
            ..
        } = packet.header;
        let Some(first) = packet.value.first_chunk() else {
            return false;
        };
        let agree = self.waiting.entry((rnd, inst, client, *first)).or_default();
        if agree.contains(&swid) {
            return false;
        }
        agree.push(swid);
        let counts = agree.len() == self.needed;
        if self.waiting.len() > MAX_WAITING {
            self.waiting.pop_first();
        }
        counts
    }
}

/// Returns the size of a superquorum: any two of them and any f+1 replicas have one in common.
pub(crate) fn superquorum(replicas: usize) -> usize {
    let f = replicas.saturating_sub(1) / 2;
    f + f.div_ceil(2) + 1
}
