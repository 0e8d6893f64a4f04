// SPDX-License-Identifier: Apache-2.0
//! Roles that are ready for traffic: a group of one partition, 65,536 slots, three acceptors.

use std::path::Path;

use paxos::auth::{KeyId, KeyPair, Keyring, NODES};
use paxos::wire::{HEADER_LEN, TAG_LEN};
use paxos::{
    Configuration, Deployment, Enable, Flags, Header, Member, MsgType, Packet, PartitionId,
    Program, Round,
};

use super::VALUE_LEN;
use loader::acceptor::Acceptor;
use loader::frame;
use loader::layout::{
    DEVICE_KNOWS_ASKERS, DEVICE_KNOWS_NODES, Device, GROUP_PASS_OTHERS, Route, RouteKey,
};
use loader::leader::Leader;
use loader::learner::Learner;
use loader::map_place::{self, MapPlace};
use loader::object::{Object, Result, Role, Sizes};
use loader::receiver::Receiver;
use loader::run::test_device;

pub(super) const GROUP: u16 = 1;
pub(super) const ACCEPTORS: [u16; 3] = [11, 12, 13];
pub(super) const SLOTS: u32 = 65_536;
const LEADER: u16 = 1;
const REPLICA: u16 = 31;
const NONCE: u64 = 1;
pub(super) const REQUEST: u64 = 1;

fn place(node: u16) -> MapPlace {
    let deployment = Deployment {
        cluster: 0xc1,
        group: GROUP,
        partitions: 1,
        max_value: 1024,
        node,
    };
    MapPlace::only(deployment, SLOTS.into())
}

fn load(dir: &Path, role: Role) -> Result<Object> {
    Object::load(dir, role, &Sizes::of(1, 1, SLOTS))
}

/// Prepares a role's maps as nodes do. All nodes are at the address from which test frames come.
fn open(object: &mut Object, place: &MapPlace, flags: u32) -> Result<()> {
    let nodes: Vec<_> = (0..=u16::MAX)
        .map(|node| (node, frame::V4_FROM.into()))
        .collect();
    object.set_nodes(&nodes)?;
    object.set_askers(&[(frame::V4_FROM.into(), 32)])?;
    let device = Device {
        flags: DEVICE_KNOWS_NODES | DEVICE_KNOWS_ASKERS,
        ..test_device(place)
    };
    map_place::open(object, place, flags, &device)
}

/// Sends what is for the test frames' address to everybody in `multicast`, or to one interface.
pub(super) fn forwarder(dir: &Path, to: Option<u32>) -> Result<Object> {
    let mut object = load(dir, Role::Forwarder)?;
    for address in [[10, 0, 0, 1], [10, 4, 0, 1]] {
        let mut key = RouteKey {
            address: [0; 16],
            family: 4,
        };
        key.address[..4].copy_from_slice(&address);
        let route = Route {
            broadcast: to.is_none().into(),
            port: to.unwrap_or(0),
            mac_to: [2, 0, 0, 0, 0, 1],
            mac_from: [2, 0, 0, 0, 0, 2],
            role: 0,
        };
        object.insert("routes", &key, &route)?;
    }
    Ok(object)
}

/// Returns a leader, or a sequencer, of so many partitions.
pub(super) fn stamping(dir: &Path, role: Role, partitions: u16) -> Result<(Object, Leader)> {
    let mut object = Object::load(dir, role, &Sizes::of(1, partitions, SLOTS))?;
    let mut place = place(LEADER);
    place.deployment.partitions = partitions;
    let all = usize::from(partitions);
    let leader = Leader::new(&object, place, NONCE)?;
    leader.program(&Program {
        epoch: 1,
        nonce: NONCE,
        next: vec![0; all],
        trimmed: vec![0; all],
        window: u64::MAX,
        acceptors: ACCEPTORS.to_vec(),
        f: 1,
        replicas: ACCEPTORS.to_vec(),
        g: 1,
    })?;
    open(&mut object, &place, 0)?;
    Ok((object, leader))
}

pub(super) fn acceptor(dir: &Path, node: u16) -> Result<(Object, Acceptor)> {
    let (mut object, place) = (load(dir, Role::Acceptor)?, place(node));
    let acceptor = Acceptor::new(&object, place, NONCE)?;
    trim(&acceptor, 0)?;
    open(&mut object, &place, 0)?;
    Ok((object, acceptor))
}

/// Trims the acceptor as replicas' TRIM does.
pub(super) fn trim(acceptor: &Acceptor, to: u64) -> Result<()> {
    Ok(acceptor.enable(&Enable {
        epoch: 1,
        nonce: NONCE,
        trim: vec![to],
        end: vec![0],
        replicas: vec![REPLICA],
        g: 0,
    })?)
}

/// Decisions go to ring 0, or where the group's flags say; to a ring
/// whose reader never waits for a wake-up.
pub(super) fn learner(dir: &Path, flags: u32) -> Result<Object> {
    let (mut object, place) = (load(dir, Role::Learner)?, place(REPLICA));
    let learner = Learner::new(&object, place, 0)?;
    let member = |node| Member { node, nonce: NONCE };
    learner.learn(&Configuration {
        epoch: 1,
        leader: member(LEADER),
        acceptors: ACCEPTORS.map(member).to_vec(),
        f: 1,
        replicas: vec![REPLICA],
        g: 0,
    });
    learner.windows().set_awake(0, true);
    open(&mut object, &place, flags)?;
    Ok(object)
}

/// Listens to the first acceptor's number as its sequencer's. Messages go to ring 0, whose reader
/// never waits for a wake-up.
pub(super) fn receiver(dir: &Path) -> Result<(Object, Receiver)> {
    let sizes = Sizes {
        ring_bytes: 1 << 23,
        ..Sizes::of(1, 1, SLOTS)
    };
    let mut object = Object::load(dir, Role::Receiver, &sizes)?;
    let place = place(REPLICA);
    let receiver = Receiver::new(&object, place, 0)?;
    receiver.listen(0, 1, ACCEPTORS[0], 0);
    receiver.windows().set_awake(0, true);
    open(&mut object, &place, GROUP_PASS_OTHERS)?;
    Ok((object, receiver))
}

/// Returns a frame with a message of this type, as a role accepts it; instance and sender 0.
pub(super) fn message(msgtype: MsgType) -> Vec<u8> {
    message_of(msgtype, 7)
}

/// Returns such a frame from a client, with the client's own value.
pub(super) fn message_of(msgtype: MsgType, client: u64) -> Vec<u8> {
    message_to(msgtype, client, 0)
}

/// Returns such a frame for a partition.
pub(super) fn message_to(msgtype: MsgType, client: u64, pid: PartitionId) -> Vec<u8> {
    let round = match msgtype {
        MsgType::Request => Round::NONE,
        _ => Round::base(1),
    };
    let header = Header {
        group: GROUP,
        cluster: 0xc1,
        pid,
        rnd: round,
        vrnd: match msgtype {
            MsgType::Ordered => Round::NONE,
            _ => round,
        },
        flags: Flags::NONE,
        client,
        request: REQUEST,
        ..Header::new(msgtype)
    };
    frame::build(&header.datagram(&value_of(client)), false)
}

/// Returns a key that all nodes share, to measure the cost of tags.
fn keyring() -> Keyring {
    let id = KeyId {
        odd: true,
        number: NODES,
    };
    let mut keyring = Keyring::new(id);
    let pair = KeyPair {
        mac: [0x5a; 16],
        digest: [0xa5; 16],
    };
    keyring.insert(id, pair);
    keyring
}

/// Has a role take nothing but signed messages, or a generator sign those that have
/// [room](with_room).
pub(super) fn sign(object: &mut Object) -> Result<()> {
    object.sign_with(&keyring())
}

/// Returns the message with room for a tag, which the generator makes.
pub(super) fn with_room(frame: &[u8]) -> Vec<u8> {
    let datagram = frame::payload(frame).expect("it was built here");
    let packet = Packet::parse(datagram).expect("it is well-formed");
    let header = Header {
        flags: packet.header.flags.with(Flags::TAG),
        ..packet.header
    };
    let mut head = [0; HEADER_LEN];
    header.emit(&mut head);
    frame::build(&[&head[..], &[0; TAG_LEN], packet.value].concat(), false)
}

/// Returns what a client sends.
pub(super) fn value_of(client: u64) -> [u8; VALUE_LEN] {
    std::array::from_fn(|at| (client.wrapping_mul(0x9e37_79b9) >> (at % 24)) as u8 ^ at as u8)
}
