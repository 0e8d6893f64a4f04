// SPDX-License-Identifier: Apache-2.0
//! The check of signatures that precedes a role in Rust, and random packets that pass it or don't.
#![allow(dead_code)]

use paxos::auth::{Algorithm, KeyId, KeyPair, Keyring, NODES, Replays, signer_of};
use paxos::{Flags, Header, MsgType, Packet, Reason, To};
use test_world::Rng;

/// A client that has a key.
const CLIENT: u8 = 3;

/// The keys of two generations.
pub struct Guard {
    keyring: Keyring,
    replays: Replays,
    counter: u64,
}

impl Guard {
    /// Creates the check for a role; one that `stamps` takes each request once.
    pub fn new(stamps: bool) -> Guard {
        Guard::by(Algorithm::SipHash, stamps)
    }

    pub fn by(algorithm: Algorithm, stamps: bool) -> Guard {
        Guard {
            keyring: keyring(algorithm, true),
            replays: Replays::new(stamps),
            counter: 1 << 20,
        }
    }

    pub fn keyring(&self) -> &Keyring {
        &self.keyring
    }

    /// Returns a hash at random.
    pub fn either(random: &mut Rng) -> Algorithm {
        match random.percent(50) {
            true => Algorithm::SipHash,
            false => Algorithm::HalfSipHash,
        }
    }

    /// Makes the other generation of keys sign, by this hash.
    pub fn turn(&mut self, algorithm: Algorithm) {
        self.keyring = keyring(algorithm, !self.keyring.own().odd);
    }

    /// Returns the packet and its signer, if the packet counts.
    pub fn admit<'a>(&mut self, datagram: &'a [u8]) -> Result<(Packet<'a>, u8), Reason> {
        let packet = Packet::parse(datagram)?;
        if packet.header.cluster != 0xc1 {
            return Err(Reason::WrongCluster);
        }
        self.keyring.check(&packet, datagram)?;
        let packet = self.replays.admit(packet)?;
        let signer = signer_of(&packet);
        Ok((packet, signer))
    }

    /// Returns whether its tag is right.
    pub fn knows(&self, datagram: &[u8]) -> bool {
        let packet = Packet::parse(datagram);
        packet.is_ok_and(|packet| self.keyring.check(&packet, datagram).is_ok())
    }

    /// Returns what a role sends.
    pub fn signed(&self, to: To, asker: u8, header: &Header, value: &[u8]) -> Vec<u8> {
        let reader = if to == To::Sender { asker } else { NODES };
        let signed = self.keyring.datagram(header, value, reader, 0);
        signed.expect("nodes have all keys")
    }

    /// Signs a packet, rightly in most cases.
    pub fn sign(&mut self, random: &mut Rng, datagram: Vec<u8>) -> Vec<u8> {
        let Ok(packet) = Packet::parse(&datagram) else {
            return datagram;
        };
        if random.percent(2) {
            return datagram;
        }
        let header = Header {
            flags: Flags(packet.header.flags.0 & !Flags::TAG.0),
            ..packet.header
        };
        let of_client = random.percent(match packet.header.msgtype {
            MsgType::Request | MsgType::Read => 50,
            _ => 2,
        });
        let id = KeyId {
            odd: random.percent(50),
            number: if of_client { CLIENT } else { NODES },
        };
        let pair = match random.percent(2) {
            true => pair(9, 9),
            false => *self.keyring.pair(id.index()).expect("it is there"),
        };
        let algorithm = match (random.percent(1), self.keyring.algorithm()) {
            (true, Algorithm::SipHash) => Algorithm::HalfSipHash,
            (true, Algorithm::HalfSipHash) => Algorithm::SipHash,
            (false, cluster) => cluster,
        };
        let mut signer = Keyring::by(algorithm, id);
        signer.insert(id, pair);
        // Some packets come late, and some come again.
        self.counter += 1;
        let counter = match random.below(20) {
            0 => self.counter.saturating_sub(random.below(80)),
            1 => self.counter + random.below(80),
            _ => self.counter,
        };
        let signed = signer.datagram(&header, packet.value, id.number, counter);
        let mut signed = signed.expect("it has the key");
        if random.percent(3) {
            let bit = random.below(8 * signed.len() as u64) as usize;
            signed[bit / 8] ^= 1 << (bit % 8);
        }
        signed
    }
}

fn keyring(algorithm: Algorithm, odd: bool) -> Keyring {
    let mut keyring = Keyring::by(algorithm, KeyId { odd, number: NODES });
    for odd in [false, true] {
        for number in [NODES, CLIENT] {
            keyring.insert(KeyId { odd, number }, pair(number, odd.into()));
        }
    }
    keyring
}

fn pair(number: u8, generation: u8) -> KeyPair {
    let key = |what| {
        std::array::from_fn(|at| {
            (at * 7 + usize::from(number) * 31 + usize::from(generation) * 3 + what) as u8
        })
    };
    KeyPair {
        mac: key(1),
        digest: key(2),
    }
}
