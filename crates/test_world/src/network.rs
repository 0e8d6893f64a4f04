// SPDX-License-Identifier: Apache-2.0
//! Decides the fate of a packet: lost, repeated, late by a moment or by an hour, damaged, or
//! stopped by a partition of the network.
//!
//! Damage that the UDP checksum finds is a loss. The damaged packets that reach the roles are
//! instead all kinds of packets that a broken or hostile sender could give a valid checksum, and
//! that a role must refuse.

use paxos::Time;

use crate::queue::{MICROSECOND, MILLISECOND};
use crate::rng::Rng;

/// How bad the network is. Rates are in parts per million of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rates {
    /// Never arrives.
    pub loss: u32,
    /// Arrives twice, at different times.
    pub duplicate: u32,
    /// Arrives after up to 20 ms instead of at once: overtaken by what was sent later.
    pub slow: u32,
    /// Arrives after up to 4 s.
    pub late: u32,
    /// Arrives after an hour.
    pub hour: u32,
    /// A damaged copy arrives, too.
    pub corrupt: u32,
}

impl Rates {
    /// Nothing goes wrong.
    pub const PERFECT: Rates = Rates {
        loss: 0,
        duplicate: 0,
        slow: 0,
        late: 0,
        hour: 0,
        corrupt: 0,
    };
}

/// When a copy arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The packet arrives after this time.
    After(Time),
    /// When an hour has passed.
    Hour,
}

/// The copies of one packet that arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fates {
    /// Up to two copies.
    pub copies: [Option<Fate>; 2],
    /// A damaged copy.
    pub corrupted: Option<Time>,
}

/// The links between endpoints of nodes.
pub struct Network {
    rng: Rng,
    /// How bad it is now.
    pub rates: Rates,
    /// How long a packet takes if nothing is wrong: from the first up to and including the second.
    pub usual_delay: (Time, Time),
    nodes: usize,
    /// Blocked ways in one direction: `blocked[from * nodes + to]`.
    blocked: Vec<bool>,
}

impl Network {
    /// Creates a network between nodes with indices below `nodes`.
    pub fn new(nodes: usize, rates: Rates, rng: Rng) -> Network {
        Network {
            rng,
            rates,
            usual_delay: (20 * MICROSECOND, 120 * MICROSECOND),
            nodes,
            blocked: vec![false; nodes * nodes],
        }
    }

    /// Cuts one direction of a link, or mends it.
    pub fn block(&mut self, from: usize, to: usize, blocked: bool) {
        self.blocked[from * self.nodes + to] = blocked;
    }

    /// Returns whether one direction of a link is cut.
    pub fn is_blocked(&self, from: usize, to: usize) -> bool {
        self.blocked[from * self.nodes + to]
    }

    /// Mends all links.
    pub fn heal(&mut self) {
        self.blocked.fill(false);
    }

    /// Decides what becomes of a packet. A node's packets to itself are safe.
    #[inline]
    pub fn send(&mut self, from: usize, to: usize) -> Fates {
        let mut fates = Fates::default();
        if from == to {
            fates.copies[0] = Some(Fate::After(MICROSECOND));
            return fates;
        }
        if self.blocked[from * self.nodes + to] {
            return fates;
        }
        // One draw decides whether anything is wrong at all: most packets need no other.
        let r = self.rates;
        let wrong = r.loss + r.duplicate + r.slow + r.late + r.hour + r.corrupt;
        let mut draw = self.rng.below(1_000_000) as u32;
        fates.copies[0] = Some(Fate::After(self.usual_delay()));
        if draw >= wrong {
            return fates;
        }
        let mut is = |rate: u32| {
            let hit = draw < rate;
            draw = draw.wrapping_sub(rate);
            hit
        };
        if is(r.loss) {
            fates.copies[0] = None;
        } else if is(r.duplicate) {
            fates.copies[1] = Some(Fate::After(self.rng.below(5 * MILLISECOND)));
        } else if is(r.slow) {
            fates.copies[0] = Some(Fate::After(self.rng.below(20 * MILLISECOND)));
        } else if is(r.late) {
            fates.copies[1] = Some(Fate::After(self.rng.below(4_000 * MILLISECOND)));
            self.sometimes_only_second(&mut fates);
        } else if is(r.hour) {
            fates.copies[1] = Some(Fate::Hour);
            self.sometimes_only_second(&mut fates);
        } else {
            fates.corrupted = Some(self.usual_delay());
        }
        fates
    }

    /// Makes the second copy late: it may be the only copy, or a repetition of one that came in
    /// time.
    fn sometimes_only_second(&mut self, fates: &mut Fates) {
        if self.rng.chance(500_000) {
            fates.copies[0] = None;
        }
    }

    fn usual_delay(&mut self) -> Time {
        self.rng.between(self.usual_delay.0, self.usual_delay.1)
    }

    /// Makes a bad packet of a good one.
    pub fn corrupt(&mut self, datagram: &mut Vec<u8>) {
        corrupt(&mut self.rng, datagram);
    }
}

/// Damages a datagram so that no role may take it: the version, the type, the length, the cluster,
/// the group or the partition is wrong, or it is cut short.
pub fn corrupt(rng: &mut Rng, datagram: &mut Vec<u8>) {
    let noise = rng.next() as u8 | 1;
    match rng.below(9) {
        0 => datagram.truncate(rng.below(datagram.len() as u64) as usize),
        1 => datagram.push(noise),
        2 => datagram[0] ^= noise,
        3 => datagram[1] = 40 + noise % 200,
        4 => datagram[2 + rng.below(2) as usize] ^= noise,
        5 => datagram[4 + rng.below(2) as usize] ^= noise,
        6 => datagram[6] |= 0x80,
        7 => datagram[28 + rng.below(4) as usize] ^= noise,
        _ => datagram[26] |= 0x80,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paxos::{Deployment, Header, MsgType, Packet, Round};

    #[test]
    fn a_perfect_network_delivers_each_packet_once_and_soon() {
        let mut network = Network::new(3, Rates::PERFECT, Rng::new(1));
        for _ in 0..1000 {
            let fates = network.send(0, 1);
            let [Some(Fate::After(delay)), None] = fates.copies else {
                panic!("{fates:?}");
            };
            assert!(delay <= 120 * MICROSECOND && fates.corrupted.is_none());
        }
    }

    #[test]
    fn a_bad_one_does_everything_that_it_may() {
        let rates = Rates {
            loss: 100_000,
            duplicate: 100_000,
            slow: 100_000,
            late: 100_000,
            hour: 100_000,
            corrupt: 100_000,
        };
        let mut network = Network::new(3, rates, Rng::new(1));
        let fates: Vec<Fates> = (0..1000).map(|_| network.send(0, 1)).collect();
        let copies = |n| {
            fates
                .iter()
                .filter(move |f| f.copies.iter().flatten().count() == n)
        };
        assert!(copies(0).count() > 50 && copies(2).count() > 50);
        let hour = |f: &&Fates| f.copies.contains(&Some(Fate::Hour));
        assert!(fates.iter().filter(hour).count() > 50);
        assert!(fates.iter().filter(|f| f.corrupted.is_some()).count() > 50);
    }

    #[test]
    fn a_cut_may_be_one_way() {
        let mut network = Network::new(2, Rates::PERFECT, Rng::new(1));
        network.block(0, 1, true);
        assert_eq!(network.send(0, 1), Fates::default());
        assert!(network.send(1, 0).copies[0].is_some());
        assert!(network.send(0, 0).copies[0].is_some());
        network.heal();
        assert!(network.send(0, 1).copies[0].is_some());
    }

    #[test]
    fn every_damaged_packet_is_turned_away_by_the_checks_that_all_roles_make() {
        let deployment = Deployment {
            cluster: 0x1234_5678,
            group: 3,
            partitions: 4,
            max_value: 1024,
            node: 1,
        };
        let header = Header {
            cluster: deployment.cluster,
            group: deployment.group,
            rnd: Round::base(1),
            client: 5,
            request: 6,
            ..Header::new(MsgType::Phase2a)
        };
        let mut rng = Rng::new(1);
        for _ in 0..10_000 {
            let mut bytes = header.datagram(b"value");
            corrupt(&mut rng, &mut bytes);
            let refused = match Packet::parse(&bytes) {
                Err(_) => true,
                Ok(packet) => deployment.check(&packet).is_err(),
            };
            assert!(refused, "{bytes:?}");
        }
    }
}
