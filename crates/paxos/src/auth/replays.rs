// SPDX-License-Identifier: Apache-2.0
//! Requests that somebody sends again who has seen them on their way.
//!
//! Each takes an instance of the log, and nobody executes it: replicas know the request by its number. A client's own
//! repetition has another counter. So a leader takes a counter of a client once, also after it has forgotten that client.

use super::{HOLDERS, signer_of};
use crate::wire::Tag;
use crate::{MsgType, Packet, Reason};

/// Buckets that each holder of a key has for its clients: nobody is forgotten because of another holder's. A power of two.
const BUCKETS: usize = 1 << 10;
/// Clients that a bucket remembers.
const WAYS: usize = 4;

/// Which counters there were of a client (`client` in the header: a session, or a proposer's number).
#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    client: u64,
    highest: u64,
    /// Bit n: `highest` - n was there.
    window: u64,
}

impl Seen {
    /// A client of which nothing is known, but that none of its counters above this one was there.
    fn above(client: u64, highest: u64) -> Seen {
        Seen {
            client,
            highest,
            window: u64::MAX,
        }
    }

    /// Counters may overtake one another on their way, but not by far.
    fn admits(&mut self, counter: u64) -> bool {
        if let Some(ahead) = counter.checked_sub(self.highest).filter(|&by| by > 0) {
            self.window = self.window.checked_shl(ahead.min(64) as u32).unwrap_or(0) | 1;
            self.highest = counter;
            return true;
        }
        let bit = 1u64
            .checked_shl((self.highest - counter).min(64) as u32)
            .unwrap_or(0);
        let is_new = bit != 0 && self.window & bit == 0;
        self.window |= bit;
        is_new
    }
}

#[derive(Clone, Copy, Default, Debug)]
struct Bucket {
    ways: [Seen; WAYS],
    /// No counter of a client that was forgotten here is higher.
    forgotten: u64,
}

impl Bucket {
    fn admits(&mut self, client: u64, counter: u64) -> bool {
        if let Some(seen) = self.ways.iter_mut().find(|seen| seen.client == client) {
            return seen.admits(counter);
        }
        let mut newcomer = Seen::above(client, self.forgotten);
        newcomer.admits(counter) && {
            self.replace_oldest(newcomer);
            true
        }
    }

    /// Counters follow the time, so who has the lowest has been silent longest.
    fn replace_oldest(&mut self, newcomer: Seen) {
        if let Some(oldest) = self.ways.iter_mut().min_by_key(|seen| seen.highest) {
            self.forgotten = self.forgotten.max(oldest.highest);
            *oldest = newcomer;
        }
    }
}

/// See the module. It remembers 4,096 clients of each holder or nearly so many, and takes no memory before a holder's
/// first request comes. Of a client that it has forgotten it takes what is newer than all that it has forgotten with it:
/// so a client's counters follow the time.
#[derive(Debug)]
pub struct Replays {
    on: bool,
    /// By the holder's number.
    buckets: [Vec<Bucket>; HOLDERS],
}

impl Replays {
    /// Packets that aren't signed have no counters: then it lets everything pass.
    pub fn new(on: bool) -> Replays {
        Replays {
            on,
            buckets: [const { Vec::new() }; HOLDERS],
        }
    }

    /// The packet, unless it is a request that was there. [M-REPLAYED]
    #[inline]
    pub fn admit<'a>(&mut self, packet: Packet<'a>) -> Result<Packet<'a>, Reason> {
        if !self.on || packet.header.msgtype != MsgType::Request {
            return Ok(packet);
        }
        let counter = packet.tag.map_or(0, |tag| Tag::parse(tag).counter);
        let client = packet.header.client;
        match self
            .bucket(signer_of(&packet), client)
            .admits(client, counter)
        {
            true => Ok(packet),
            false => Err(Reason::Replayed),
        }
    }

    fn bucket(&mut self, holder: u8, client: u64) -> &mut Bucket {
        let of_holder = &mut self.buckets[usize::from(holder) % HOLDERS];
        if of_holder.is_empty() {
            of_holder.resize(BUCKETS, Bucket::default());
        }
        // Ids of sessions lie in a row, and nonces anywhere.
        let mixed = client.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &mut of_holder[mixed as usize % BUCKETS]
    }
}
