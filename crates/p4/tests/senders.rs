// SPDX-License-Identifier: Apache-2.0
//! Tests from which addresses a program in BMv2 accepts packets, and to which it can answer.

#[path = "../../loader/tests/common/askers.rs"]
mod askers;
mod common;
#[path = "../../loader/tests/common/random.rs"]
mod random;

use std::net::IpAddr;
use std::rc::Rc;

use common::{Bench, P4Device, name};
use loader::frame;
use loader::run::counter;
use p4::programs::Build;
use p4::tables;
use paxos::auth::{Algorithm, KeyId, KeyPair, Keyring, NODES};
use paxos::{Header, MsgType, NodeId, Reason, Verdict};
use random::{SLOTS, deployment};
use sim::script::{Device, Order, Role, Setup};

/// The nodes of test frames: one at their source address, one elsewhere, and one that isn't in the
/// cluster file.
const HERE: NodeId = 11;
const ELSEWHERE: NodeId = 12;
const NOWHERE: NodeId = 13;
const FOREIGN: Verdict = Verdict::Dropped(Reason::ForeignAddress);

const ENTER: &str = "ingress.role.enter";

/// Returns a role that has begun, and nothing more.
fn device(bench: &Rc<Bench>, role: Role, v6: bool) -> P4Device {
    let setup = Setup::new(role, deployment(21), SLOTS as usize, 0xa1);
    P4Device::build(bench, &setup, v6).expect("the switch starts")
}

fn bench(roles: &[Role], build: Build) -> Option<Rc<Bench>> {
    let tools = common::tools_or_skip()?;
    let names: Vec<_> = roles.iter().map(|role| name(*role)).collect();
    let bench = Bench::made(tools, &common::programs(), &names, build);
    Some(bench.expect("it compiles, and root makes namespaces"))
}

fn message(msgtype: MsgType, swid: NodeId) -> Vec<u8> {
    let header = Header {
        swid,
        cluster: 0xc1,
        group: 1,
        client: 7,
        request: 1,
        ..Header::new(msgtype)
    };
    header.datagram(b"")
}

/// A packet in a node's name counts only if it comes from the node's address. [M-SENDER]
#[test]
fn nodes_are_believed_at_their_own_addresses() {
    let roles = [Role::Acceptor, Role::Leader];
    let Some(bench) = bench(&roles, Build::SMALL) else {
        return;
    };
    let elsewhere: [IpAddr; 2] = [[10, 0, 0, 3].into(), [0xfd00, 0, 0, 0, 0, 0, 0, 3].into()];
    for (role, v6) in roles
        .into_iter()
        .flat_map(|role| [(role, false), (role, true)])
    {
        let mut device = device(&bench, role, v6);
        let here: IpAddr = match v6 {
            false => frame::V4_FROM.into(),
            true => frame::V6_FROM.into(),
        };
        let mut lines = ["nodes4", "nodes6"]
            .map(|table| format!("table_set_default {ENTER}.{table} {ENTER}.foreign"))
            .to_vec();
        lines.push(tables::node((HERE, here)));
        lines.push(tables::node((ELSEWHERE, elsewhere[usize::from(v6)])));
        bench.tables(&lines).expect("tables");

        let of_nodes = || MsgType::ALL.into_iter().filter(|it| it.is_of_nodes());
        let foreign = [0, ELSEWHERE, NOWHERE, u16::MAX];
        let packets: Vec<_> = of_nodes()
            .flat_map(|msgtype| foreign.map(|swid| (message(msgtype, swid), v6)))
            .collect();
        let before = device.fingerprint();
        let (sent, verdicts) = device.batch(&packets).expect("the switch goes on");
        assert_eq!(verdicts, [(FOREIGN, packets.len() as u64)], "{role:?}");
        assert!(sent.iter().all(Vec::is_empty), "{role:?}: {sent:?}");
        assert_eq!(device.fingerprint(), before, "{role:?}");

        let packets: Vec<_> = of_nodes()
            .map(|msgtype| (message(msgtype, HERE), v6))
            .collect();
        let (_, verdicts) = device.batch(&packets).expect("the switch goes on");
        let is_foreign = |(verdict, _): &(Verdict, u64)| *verdict == FOREIGN;
        assert!(!verdicts.iter().any(is_foreign), "{role:?}: {verdicts:?}");
    }
}

/// Requests of clients count only from the networks where clients may be. [M-ASKER]
#[test]
fn clients_are_where_they_may_be() {
    let roles = [Role::Leader, Role::Learner, Role::Sequencer];
    let Some(bench) = bench(&roles, Build::SMALL) else {
        return;
    };
    for role in roles {
        for (v6, networks, may) in askers::cases() {
            let mut device = device(&bench, role, v6);
            // The networks that were set before no longer count.
            let mut lines = ["askers4", "askers6"]
                .map(|table| format!("table_clear {ENTER}.{table}"))
                .to_vec();
            lines.extend(networks.iter().copied().map(tables::asker));
            bench.tables(&lines).expect("tables");
            let before = device.fingerprint();
            for msgtype in [MsgType::Request, MsgType::Read] {
                let (sent, verdict) = device.packet(&message(msgtype, NOWHERE));
                let what = format!("{role:?} {msgtype:?} {networks:?}: {verdict:?}");
                assert_eq!(verdict != FOREIGN, may, "{what}");
                assert!(may || sent.is_empty(), "{what}");
            }
            // No role is programmed, so that none has a use for them.
            assert_eq!(device.fingerprint(), before, "{role:?} {networks:?}");
        }
    }
}

/// A client whose key the generation that signs no longer has: nothing leaves, and that is counted,
/// as in the kernel.
#[test]
fn what_nobody_could_check_doesnt_leave() {
    let build = Build {
        signs: true,
        ..Build::SMALL
    };
    let Some(bench) = bench(&[Role::Leader], build) else {
        return;
    };
    let mut device = device(&bench, Role::Leader, false);
    let old = KeyId {
        odd: false,
        number: 3,
    };
    let mut keyring = Keyring::by(
        Algorithm::HalfSipHash,
        KeyId {
            odd: true,
            number: NODES,
        },
    );
    for (id, byte) in [(keyring.own(), 1), (old, 2)] {
        let pair = KeyPair {
            mac: [byte; 16],
            digest: [byte; 16],
        };
        keyring.insert(id, pair);
    }
    assert_eq!(device.order(&Order::Keys(keyring)), Ok(true));
    let mut client = Keyring::by(Algorithm::HalfSipHash, old);
    client.insert(
        old,
        KeyPair {
            mac: [2; 16],
            digest: [2; 16],
        },
    );
    let header = Header {
        cluster: 0xc1,
        group: 1,
        client: 7,
        request: 1,
        ..Header::new(MsgType::Request)
    };
    let request = client
        .datagram(&header, b"", NODES, 9)
        .expect("its own key");

    let unsent = device.counter(counter::UNSENT);
    let (sent, verdict) = device.packet(&request);
    assert_eq!(
        (sent, verdict),
        (Vec::new(), Verdict::Rejected(Reason::NotLeader))
    );
    assert_eq!(device.counter(counter::UNSENT), unsent + 1);
}
