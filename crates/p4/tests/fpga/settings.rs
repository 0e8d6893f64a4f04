// SPDX-License-Identifier: Apache-2.0
//! Settings of a role, each an order (`programs/fpga/README.md`, "Settings").

use std::net::{IpAddr, SocketAddr};

use p4::order::PLACES;
use p4::{Op, Order};
use paxos::{Configuration, Deployment, NodeId, Round};

const IDENTITY: u16 = 0;
const OWN: u16 = 1;
const NODE: u16 = 16;
const ASKER: u16 = 64;
const MEMBER: u16 = 128;
const CONFIGURATION: u16 = 256;
/// Configurations that a learner has room for.
pub const CONFIGURATIONS: u16 = 16;

const IS_SET: u32 = 1;
const IS_IPV6: u32 = 2;
const BY_PARTITION: u32 = 4;

fn set(at: &Deployment, which: u16) -> Order {
    let mut order = Order::new(Op::Set, at.node, at.group);
    order.at = which;
    order
}

/// Returns who the role is, and how large. `open`: anybody speaks for anybody, which is for tests.
pub fn identity(at: &Deployment, port: u16, slots: u64, open: bool) -> Order {
    let mut order = set(at, IDENTITY);
    order.a = at.cluster.into();
    order.b = port.into();
    order.c = at.partitions.into();
    order.d = slots;
    order.epoch = at.max_value.into();
    order.round = Round(open.into());
    order
}

/// Returns an address of the role: the first one or the second one.
pub fn own(at: &Deployment, which: u16, address: IpAddr) -> Order {
    let mut order = set(at, OWN + which);
    (order.a, order.b) = halves(address);
    order.round = Round(IS_SET);
    order
}

/// Returns the address of a node.
pub fn node(at: &Deployment, which: u16, address: IpAddr, node: NodeId) -> Order {
    let mut order = set(at, NODE + which);
    (order.a, order.b) = halves(address);
    order.c = node.into();
    order
}

/// Returns a network from which commands are taken: what agrees in the first `bits` of 128.
pub fn asker(at: &Deployment, which: u16, address: IpAddr, bits: u32) -> Order {
    let mut order = set(at, ASKER + which);
    (order.a, order.b) = halves(address);
    let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
    (order.c, order.d) = ((mask >> 64) as u64, mask as u64);
    order.round = Round(IS_SET);
    order
}

/// Returns a member of the group to which the role sends; partition p listens on its port + p.
pub fn member(
    at: &Deployment,
    which: u16,
    to: SocketAddr,
    from: SocketAddr,
    macs: [[u8; 6]; 2],
) -> Order {
    let mut order = set(at, MEMBER + which);
    (order.a, order.b) = halves(to.ip());
    (order.c, order.d) = halves(from.ip());
    order.epoch = u32::from(to.port()) << 16 | u32::from(from.port());
    let family = if to.is_ipv6() { IS_IPV6 } else { 0 };
    order.round = Round(IS_SET | BY_PARTITION | family);
    let bytes = macs.concat();
    for (place, pair) in order.acceptors.iter_mut().zip(bytes.chunks(2)) {
        *place = u16::from_be_bytes([pair[0], pair[1]]);
    }
    order
}

/// Returns what a learner counts an epoch's votes by; without a configuration, that it forgets this
/// place.
pub fn configuration(at: &Deployment, which: u16, it: Option<&Configuration>) -> Order {
    let mut order = set(at, CONFIGURATION + which);
    if let Some(it) = it {
        order.epoch = it.epoch;
        order.a = u64::from(it.f) + 1;
        assert!(it.acceptors.len() <= PLACES, "places of a role");
        for (place, acceptor) in order.acceptors.iter_mut().zip(&it.acceptors) {
            *place = acceptor.node;
        }
    }
    order
}

fn halves(address: IpAddr) -> (u64, u64) {
    let bits = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    ((bits >> 64) as u64, bits as u64)
}
