// SPDX-License-Identifier: Apache-2.0
//! Requests that somebody sends again who has seen them on their way.
//!
//! Each takes an instance of the log, and nobody executes it: replicas know the request by its number. A client's own
//! repetition has another counter. So a leader takes a counter once.

use crate::wire::Tag;
use crate::{MsgType, Packet, Reason};

/// Clients that are remembered: a power of two.
const CLIENTS: usize = 1 << 16;
/// Places that a client may have.
const WAYS: usize = 4;

/// Which counters there were of a client (`client` in the header: a session, or a proposer's number).
#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    /// 0: the place is free.
    client: u64,
    highest: u64,
    /// Bit n: `highest` - n was there.
    window: u64,
}

impl Seen {
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

/// See the module. It remembers 65,536 clients or nearly so many, those that came last, and takes no memory before the
/// first request comes.
#[derive(Debug)]
pub struct Replays {
    on: bool,
    seen: Vec<[Seen; WAYS]>,
}

impl Replays {
    /// Packets that aren't signed have no counters: then it lets everything pass.
    pub fn new(on: bool) -> Replays {
        Replays {
            on,
            seen: Vec::new(),
        }
    }

    /// The packet, unless it is a request that was there. [M-REPLAYED]
    #[inline]
    pub fn admit<'a>(&mut self, packet: Packet<'a>) -> Result<Packet<'a>, Reason> {
        if !self.on || packet.header.msgtype != MsgType::Request {
            return Ok(packet);
        }
        let counter = packet.tag.map_or(0, |tag| Tag::parse(tag).counter);
        match self.of(packet.header.client).admits(counter) {
            true => Ok(packet),
            false => Err(Reason::Replayed),
        }
    }

    /// The client's place; the one that was there longest gives way to a new client.
    fn of(&mut self, client: u64) -> &mut Seen {
        if self.seen.is_empty() {
            self.seen = vec![[Seen::default(); WAYS]; CLIENTS / WAYS];
        }
        let buckets = self.seen.len();
        // Ids of sessions lie in a row, and nonces anywhere.
        let mixed = client.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let ways = &mut self.seen[mixed as usize % buckets];
        let at = ways.iter().position(|seen| seen.client == client);
        let at = at.unwrap_or_else(|| {
            ways.rotate_right(1);
            ways[0] = Seen {
                client,
                ..Seen::default()
            };
            0
        });
        &mut ways[at]
    }
}
