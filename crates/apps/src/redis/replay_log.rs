// SPDX-License-Identifier: Apache-2.0
//! Everything that a server was given since a snapshot. A server that takes its place begins with
//! the snapshot, and is given all of this.

use std::collections::VecDeque;

use super::server::ClientState;

/// The bytes at which another snapshot is made, so that what is kept can be forgotten.
const MUCH: usize = 128 << 20;
/// The most bytes that are kept.
const MOST: usize = 2 * MUCH;
/// The number of bytes after which it is checked again whether the snapshot is written.
const BETWEEN_LOOKS: usize = 4 << 20;

/// Requests that are given to the server as one, with what holds for all of them.
pub(super) struct Batch {
    pub ms: u64,
    pub client: ClientState,
    pub requests: Vec<u8>,
    pub count: usize,
    /// The number of scripts among them that may take long.
    pub scripts: u32,
    /// The requests may publish messages.
    pub speaks: bool,
}

impl Batch {
    pub fn with_scripts(self, scripts: u32) -> Batch {
        Batch {
            scripts,
            speaks: scripts > 0,
            ..self
        }
    }
}

/// The limits of one entry: how many commands it holds, and how many bytes. Commands share entries
/// so that each needs hardly more memory than its request.
const TOGETHER: usize = 64;
const TOGETHER_BYTES: usize = 64 << 10;
/// The rough number of bytes of an entry besides its requests.
const ENTRY_BYTES: usize = 80;

/// The requests since the last snapshot, in order.
#[derive(Default)]
pub(super) struct ReplayLog {
    /// The number of requests before the first entry.
    pub before: u64,
    entries: VecDeque<Entry>,
    /// The next request begins an entry of its own.
    is_cut: bool,
    bytes: usize,
    looked_at: usize,
}

/// Requests that were given one after the other while the clock stood still.
struct Entry {
    given: Batch,
    /// The number of these requests.
    many: u64,
}

impl Entry {
    fn takes(&self, other: &Batch) -> bool {
        let Batch {
            ms,
            client,
            requests,
            count,
            scripts: 0,
            speaks: false,
        } = &self.given
        else {
            return false;
        };
        let are_alike = *ms == other.ms && *client == other.client;
        let is_plain = other.scripts == 0 && !other.speaks;
        let fits = count + other.count <= TOGETHER
            && requests.len() + other.requests.len() <= TOGETHER_BYTES;
        are_alike && is_plain && fits
    }
}

impl ReplayLog {
    /// Returns how many requests were given so far. A snapshot that is begun now has all of them,
    /// so they may be [forgotten](Self::forget_to) up to here once it is written.
    pub fn cut(&mut self) -> u64 {
        self.is_cut = true;
        let many = self.entries.iter().map(|entry| entry.many);
        self.before + many.sum::<u64>()
    }

    pub fn push(&mut self, given: Batch) {
        self.bytes += given.requests.len();
        let last = self.entries.back_mut();
        match last.filter(|last| !self.is_cut && last.takes(&given)) {
            Some(last) => {
                last.given.requests.extend_from_slice(&given.requests);
                last.given.count += given.count;
                last.many += 1;
            }
            None => {
                if let Some(last) = self.entries.back_mut() {
                    last.given.requests.shrink_to_fit();
                }
                self.bytes += ENTRY_BYTES;
                self.entries.push_back(Entry { given, many: 1 });
                self.is_cut = false;
            }
        }
    }

    /// Returns everything that was given, in its order.
    pub fn requests(&self) -> impl Iterator<Item = &Batch> {
        self.entries.iter().map(|entry| &entry.given)
    }

    /// Forgets all requests before this place, at which a snapshot was begun.
    pub fn forget_to(&mut self, place: u64) {
        let is_forgotten = self.before > place;
        while self.before < place {
            let Some(Entry { given, many }) = self.entries.pop_front() else {
                return;
            };
            self.bytes -= given.requests.len() + ENTRY_BYTES;
            self.before += many;
        }
        debug_assert!(
            is_forgotten || self.before == place,
            "no snapshot was begun there"
        );
        self.looked_at = 0;
    }

    pub fn is_much(&self) -> bool {
        self.bytes >= MUCH
    }

    pub fn is_most(&self) -> bool {
        self.bytes >= MOST
    }

    /// Returns whether it is time to check whether a snapshot is to be made, or is written.
    pub fn looks(&mut self) -> bool {
        let looks = self.is_much() && self.bytes >= self.looked_at + BETWEEN_LOOKS;
        if looks {
            self.looked_at = self.bytes;
        }
        looks
    }
}

#[cfg(test)]
mod tests {
    use super::super::server::User;
    use super::*;

    fn given(ms: u64, resp3: bool, requests: &[u8]) -> Batch {
        let user = User::Client;
        Batch {
            ms,
            client: ClientState { user, resp3 },
            requests: requests.to_vec(),
            count: 1,
            scripts: 0,
            speaks: false,
        }
    }

    fn shown(log: &ReplayLog) -> Vec<(&[u8], usize)> {
        let given = log.requests();
        given.map(|g| (&g.requests[..], g.count)).collect()
    }

    #[test]
    fn what_is_alike_lies_together_and_is_forgotten_where_it_was_cut() {
        let mut log = ReplayLog::default();
        log.push(given(1, false, b"a"));
        log.push(given(1, false, b"b"));
        assert_eq!(log.cut(), 2);
        log.push(given(1, false, b"c"));
        log.push(given(1, true, b"d"));
        log.push(given(2, true, b"e"));
        log.push(given(2, true, b"f"));
        let script = || given(2, true, b"g").with_scripts(1);
        log.push(script());
        log.push(script());
        log.push(given(2, true, b"h"));
        let all: [(&[u8], usize); 7] = [
            (b"ab", 2),
            (b"c", 1),
            (b"d", 1),
            (b"ef", 2),
            (b"g", 1),
            (b"g", 1),
            (b"h", 1),
        ];
        assert_eq!(shown(&log), all);
        assert_eq!(log.bytes, 9 + 7 * ENTRY_BYTES);
        log.forget_to(2);
        assert_eq!((log.before, &shown(&log)[..]), (2, &all[1..]));
        assert_eq!(log.cut(), 9);
        log.push(given(2, true, b"i"));
        log.forget_to(9);
        assert_eq!((log.before, shown(&log)), (9, vec![(&b"i"[..], 1)]));
        assert_eq!(log.bytes, 1 + ENTRY_BYTES);
    }

    #[test]
    fn no_more_lie_together_than_are_awaited_at_once() {
        let mut log = ReplayLog::default();
        (0..=TOGETHER).for_each(|_| log.push(given(1, false, b"a")));
        log.push(given(1, false, &vec![0; TOGETHER_BYTES]));
        let counts: Vec<usize> = log.requests().map(|given| given.count).collect();
        assert_eq!(counts, [TOGETHER, 1, 1]);
    }
}
