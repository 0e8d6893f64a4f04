// SPDX-License-Identifier: Apache-2.0
//! Signed packets, as they were sent and as somebody has changed them on their way.

use std::collections::BTreeSet;

use paxos::auth::{Algorithm, KeyId, KeyPair, Keyring, MAX_CLIENTS, NODES, Replays, signer_of};
use paxos::wire::{HEADER_LEN, TAG_LEN, Tag};
use paxos::{Flags, Header, MsgType, Packet, Round};

use crate::input::Input;

const CLIENT: u8 = 3;

/// Checks that nothing panics. A packet counts only if a holder of the key that it names sent it
/// so, byte by byte; a node takes only client messages from a client, and no request of a client
/// twice.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let algorithm = match input.small() % 2 {
        0 => Algorithm::SipHash,
        _ => Algorithm::HalfSipHash,
    };
    let nodes = keyring(algorithm);
    any_bytes(&nodes, data);
    let mut sent = BTreeSet::new();
    let mut taken = BTreeSet::new();
    let mut replays = Replays::new(true);
    while !input.0.is_empty() {
        let mut datagram = one(&mut input, algorithm);
        sent.insert(datagram.clone());
        input.damage(&mut datagram);
        exchange_tags(&mut input, &mut datagram, &sent);
        any_bytes(&nodes, &datagram);
        let Ok(packet) = Packet::parse(&datagram) else {
            continue;
        };
        if nodes.check(&packet, &datagram).is_err() {
            continue;
        }
        assert!(sent.contains(&datagram), "{datagram:02x?} was never sent");
        let signer = signer_of(&packet);
        let header = packet.header;
        assert!(signer == NODES || !header.msgtype.is_of_nodes());
        let counter = packet.tag.map_or(0, |tag| Tag::parse(tag).counter);
        if header.msgtype == MsgType::Request && replays.admit(packet).is_ok() {
            assert!(
                taken.insert((signer, header.client, counter)),
                "taken again"
            );
        }
    }
}

/// Checks that a packet that counts is exactly what its sender would have made.
fn any_bytes(nodes: &Keyring, datagram: &[u8]) {
    let Ok(packet) = Packet::parse(datagram) else {
        return;
    };
    let (Ok(()), Some(tag)) = (nodes.check(&packet, datagram), packet.tag) else {
        return;
    };
    let tag = Tag::parse(tag);
    let id = KeyId::parse(tag.key_id).expect("it is known");
    let header = untagged(packet.header);
    let sender = sender(id, nodes.algorithm());
    let again = sender.datagram(&header, packet.value, id.number, tag.counter);
    assert_eq!(again.as_deref(), Some(datagram));
}

/// Returns a packet that a node or a client sends.
fn one(input: &mut Input<'_>, algorithm: Algorithm) -> Vec<u8> {
    let msgtype = MsgType::from_u8(input.small() % 26).expect("there are 26");
    let header = Header {
        cluster: 1,
        pid: (input.small() % 2).into(),
        inst: input.number(),
        rnd: Round(input.round()),
        swid: (input.small() % 4).into(),
        client: input.number(),
        request: input.number(),
        ..Header::new(msgtype)
    };
    let id = KeyId {
        odd: input.small() % 2 == 1,
        number: [NODES, CLIENT, MAX_CLIENTS][usize::from(input.small() % 3)],
    };
    let counter = input.number() % Tag::COUNTERS;
    let value = input.bytes(64);
    let signed = sender(id, algorithm).datagram(&header, value, id.number, counter);
    signed.expect("it has the key")
}

/// Puts the tag of another packet in the place of its own, now and then.
fn exchange_tags(input: &mut Input<'_>, datagram: &mut [u8], sent: &BTreeSet<Vec<u8>>) {
    let tag = HEADER_LEN..HEADER_LEN + TAG_LEN;
    if input.small() < 192 || datagram.len() < tag.end {
        return;
    }
    let other = sent.iter().nth(usize::from(input.small()) % sent.len());
    let other = other.expect("there is one");
    datagram[tag.clone()].copy_from_slice(&other[tag]);
}

fn untagged(header: Header) -> Header {
    Header {
        flags: Flags(header.flags.0 & !Flags::TAG.0),
        ..header
    }
}

/// Returns the keys of nodes: those of one client are among them, and those of another one aren't.
fn keyring(algorithm: Algorithm) -> Keyring {
    let own = KeyId {
        odd: true,
        number: NODES,
    };
    let mut keyring = Keyring::by(algorithm, own);
    for odd in [false, true] {
        for number in [NODES, CLIENT] {
            let id = KeyId { odd, number };
            keyring.insert(id, pair(id));
        }
    }
    keyring
}

/// Returns who signs with this key.
fn sender(id: KeyId, algorithm: Algorithm) -> Keyring {
    let mut keyring = Keyring::by(algorithm, id);
    keyring.insert(id, pair(id));
    keyring
}

fn pair(id: KeyId) -> KeyPair {
    KeyPair {
        mac: [id.emit(); 16],
        digest: [!id.emit(); 16],
    }
}
