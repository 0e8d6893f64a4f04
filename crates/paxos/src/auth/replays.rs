// SPDX-License-Identifier: Apache-2.0
//! Recognises requests that an observer of the network sends again.
//!
//! Each such request takes an instance of the log, and no replica executes it, since replicas know
//! the request by its number. A client that repeats a request uses another counter. So a leader
//! takes a counter of a client only once, even after it has forgotten that client.

use super::{HOLDERS, signer_of};
use crate::wire::Tag;
use crate::{MsgType, Packet, Reason};

/// The number of buckets that each holder of a key has for its clients, so that no client is
/// forgotten because of another holder's. A power of two.
const BUCKETS: usize = 1 << 10;
/// The number of clients that a bucket remembers.
const WAYS: usize = 4;

/// The counters that came from a client (`client` in the header: a session, or a proposer's
/// number).
#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    client: u64,
    highest: u64,
    /// Bit n is set if the counter `highest` - n came.
    window: u64,
}

impl Seen {
    /// Returns a client that is not known. Counters up to `highest` are refused.
    fn above(client: u64, highest: u64) -> Seen {
        Seen {
            client,
            highest,
            window: u64::MAX,
        }
    }

    /// Returns true if the counter is new. Counters may overtake one another on their way, but not
    /// by more than 63.
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
    /// The highest counter of any client that was forgotten here.
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

    /// Replaces the client that has been silent longest: counters follow the time, so it has the
    /// lowest.
    fn replace_oldest(&mut self, newcomer: Seen) {
        if let Some(oldest) = self.ways.iter_mut().min_by_key(|seen| seen.highest) {
            self.forgotten = self.forgotten.max(oldest.highest);
            *oldest = newcomer;
        }
    }
}

/// Remembers which counters came. It keeps nearly 4,096 clients of each holder, and takes memory
/// for a holder when its first request comes. Of a forgotten client it takes only counters above
/// all forgotten ones of the same bucket, which works because a client's counters follow the time.
#[derive(Debug)]
pub struct Replays {
    on: bool,
    /// For each holder's number, its buckets.
    buckets: [Vec<Bucket>; HOLDERS],
}

impl Replays {
    /// Returns a check, which lets everything pass unless it is `on`: packets that aren't signed
    /// have no counters.
    pub fn new(on: bool) -> Replays {
        Replays {
            on,
            buckets: [const { Vec::new() }; HOLDERS],
        }
    }

    /// Returns the packet, or refuses it if it is a request that came before. [M-REPLAYED]
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
        // Session ids are consecutive, and nonces lie anywhere.
        let mixed = client.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &mut of_holder[mixed as usize % BUCKETS]
    }
}
