// SPDX-License-Identifier: Apache-2.0
//! Programs compute HalfSipHash as its authors do. [M-SIGNED]

mod common;

use common::stopping::{self, header};
use common::{Loaded, objects_or_skip};
use loader::map_place::MapPlace;
use loader::object::Role;
use paxos::auth::{Algorithm, KeyId, KeyPair, Keyring, NODES};
use paxos::wire::Tag;
use paxos::{Deployment, Header, MsgType, Packet, Program, Verdict};

const VECTORS: &str = include_str!("../../../testdata/wire/halfsiphash.txt");
/// The authors hash the bytes from 0 on, and the first ones are those of an instance here.
const INSTANCE: u64 = 0x0001_0203_0405_0607;

#[test]
fn digests_are_those_of_the_authors() {
    let Some(dir) = objects_or_skip() else { return };
    let leader = &mut leader(&dir);
    let bytes: Vec<u8> = (0..64).collect();
    let vectors = VECTORS.lines().filter(|line| !line.starts_with('#'));
    let mut tried = 0;
    // The hash of as many bytes as lines precede it.
    for (len, vector) in vectors.enumerate().skip(8) {
        let published = u64::from_str_radix(vector, 16).expect("hex").swap_bytes();
        let request = Header {
            inst: INSTANCE,
            ..header(MsgType::Request, 0, 0)
        };
        let value = &bytes[8..len];
        let request = keyring().datagram(&request, value, NODES, tried + 1);
        let request = request.expect("there is the key");
        assert_eq!(digest(&request), published, "{len} bytes");
        // The leader checks these hashes.
        program(leader, tried as u32 + 1);
        let step = leader.step(&request);
        assert_eq!(step.1, Verdict::Changed, "{len} bytes");
        // The leader makes these hashes.
        let [(_, proposal)] = &step.0[..] else {
            panic!("{:?}", step.0);
        };
        let proposed = Packet::parse(proposal).expect("a packet");
        assert_eq!((proposed.header.inst, proposed.value), (INSTANCE, value));
        assert_eq!(digest(proposal), published, "{len} bytes");
        assert_eq!(keyring().check(&proposed, proposal), Ok(()));
        tried += 1;
    }
    assert_eq!(tried, 56);
}

fn digest(datagram: &[u8]) -> u64 {
    let packet = Packet::parse(datagram).expect("a packet");
    Tag::parse(packet.tag.expect("it is signed")).digest
}

fn leader(dir: &std::path::Path) -> Loaded {
    let deployment = Deployment {
        cluster: 0xc1,
        group: 1,
        partitions: 1,
        max_value: 64,
        node: 9,
    };
    let mut leader = Loaded::new(dir, Role::Leader, MapPlace::only(deployment, 64), 1);
    let told = leader.object.sign_with(&keyring());
    told.expect("there is a map");
    leader
}

/// Programs a leader so that it stamps [`INSTANCE`] next.
fn program(leader: &Loaded, epoch: u32) {
    let program = Program {
        trimmed: vec![INSTANCE],
        ..stopping::program(epoch, &[INSTANCE])
    };
    let told = leader.role.leader().program(&program);
    told.expect("a later epoch");
}

/// Returns a keyring with the authors' key.
fn keyring() -> Keyring {
    let own = KeyId {
        odd: false,
        number: NODES,
    };
    let mut keyring = Keyring::by(Algorithm::HalfSipHash, own);
    let digest = std::array::from_fn(|at| at as u8);
    keyring.insert(
        own,
        KeyPair {
            mac: digest,
            digest,
        },
    );
    keyring
}
