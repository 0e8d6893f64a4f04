// SPDX-License-Identifier: Apache-2.0
//! A whole agreement in one switch: a REQUEST goes in, and a DELIVER comes out.

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;

use common::{Bench, CpuPort};
use loader::frame;
use loader::run::counter;
use p4::programs::{Build, MAX_VALUE};
use p4::role::{Role, Stamps};
use p4::tables::{self, Configurations, Copy, RegisterPlace};
use paxos::wire::value::Vector;
use paxos::{
    Configuration, Deployment, Enable, Flags, Header, Member, MsgType, NodeId, Packet, Program,
    Reason, Round,
};

const LEADER: NodeId = 1;
const ACCEPTORS: [NodeId; 3] = [11, 12, 13];
const LEARNER: NodeId = 21;
const REPLICA: NodeId = 31;
/// Names in the program, and nodes.
const ROLES: [(&str, NodeId); 5] = [
    ("leader", LEADER),
    ("first", ACCEPTORS[0]),
    ("second", ACCEPTORS[1]),
    ("third", ACCEPTORS[2]),
    ("last", LEARNER),
];
const NONCE: u64 = 0xa1;
const CLIENT: u16 = 99;

#[test]
fn a_request_is_decided_in_one_pass() {
    let Some(tools) = common::tools_or_skip() else {
        return;
    };
    // Each role is in a group of its own number.
    let build = Build {
        groups: ROLES.len() as u64,
        ..Build::SMALL
    };
    let bench = Bench::made(tools, &common::programs(), &["agreement"], build);
    let bench = bench.expect("it compiles, and root makes namespaces");
    for v6 in [false, true] {
        let mut switch = Agreement::start(&bench, v6).expect("the switch starts");
        switch.agrees_in_one_pass();
        switch.drops_what_is_damaged();
        switch.asks_again_where_one_refuses();
        switch.takes_commands_over_partitions_around();
    }
}

/// The roles in a switch.
struct Agreement {
    bench: Rc<Bench>,
    roles: Vec<Role<CpuPort>>,
    v6: bool,
}

impl Agreement {
    fn start(bench: &Rc<Bench>, v6: bool) -> Result<Agreement, String> {
        bench.start("agreement")?;
        let mut roles = Vec::new();
        for (at, (name, node)) in ROLES.into_iter().enumerate() {
            let place = place(at, node);
            bench.tables(&tables::of_role(name, &entries(&place, v6)))?;
            let members = members(node).len() as u8;
            tables::make_multicast(&place, members, 1, |lines| bench.tables(lines))?;
            roles.push(Role::new(CpuPort(bench.clone()), place.deployment));
        }
        bench.tables(&turns(v6))?;
        let mut agreement = Agreement {
            bench: bench.clone(),
            roles,
            v6,
        };
        agreement.begin()?;
        Ok(agreement)
    }

    /// Does what the roles' processes and the controller do at the start.
    fn begin(&mut self) -> Result<(), String> {
        let [leader, acceptors @ .., _] = &mut self.roles[..] else {
            return Err("there are roles".into());
        };
        for acceptor in acceptors {
            acceptor.begin(NONCE)?;
            acceptor.enable(&Enable {
                epoch: 1,
                nonce: NONCE,
                trim: vec![0],
                end: vec![0],
                replicas: vec![REPLICA],
                g: 0,
            })?;
        }
        leader.begin(NONCE)?;
        let program = Program {
            epoch: 1,
            nonce: NONCE,
            next: vec![0],
            trimmed: vec![0],
            window: 100,
            acceptors: ACCEPTORS.to_vec(),
            f: 1,
            replicas: vec![REPLICA],
            g: 0,
        };
        leader.program(&program, Stamps::Leader)?;
        let mut known = Configurations::of(deployment(LEARNER));
        known.learn(&Configuration {
            epoch: 1,
            leader: member(LEADER),
            acceptors: ACCEPTORS.map(member).to_vec(),
            f: 1,
            replicas: vec![REPLICA],
            g: 0,
        });
        let mut lines = known.lines();
        lines.push("table_add ingress.role.voters_here ingress.role.votes_as 1 1 => 7".into());
        self.bench.tables(&tables::of_role("last", &lines))?;
        Ok(())
    }

    fn agrees_in_one_pass(&mut self) {
        let before = self.counted(counter::CHANGED as u16);
        self.request(1, Flags::NONE, b"one");
        self.delivers(0, 1, b"one");
        // Each role has had it once, and nobody a second time.
        let changed = self.rose(&before, counter::CHANGED as u16);
        assert_eq!(changed, [1, 1, 1, 1, 1]);
        assert_eq!(self.counted(counter::ANSWERED as u16), [0; 5]);
        for acceptor in 1..=3 {
            let (slot, value) = self.roles[acceptor].slot(0, 0).expect("an answer");
            assert_eq!((slot.round, &value[..]), (Round::base(1), &b"one"[..]));
        }
        let (slot, _) = self.roles[4].slot(0, 0).expect("an answer");
        assert_eq!(slot.d, 0b111 << 16 | 1, "all votes, and delivered");
    }

    fn drops_what_is_damaged(&mut self) {
        let before = self.counted(counter::CHANGED as u16);
        let bad = Reason::BadChecksum as u16;
        let dropped = self.counted(bad);
        let mut frame = self.frame(CLIENT, LEADER, &message(MsgType::Request, 0, 2, b"two"));
        *frame.last_mut().expect("a byte") ^= 1;
        self.bench.send(0, &frame);
        // An order is behind it.
        assert_eq!(self.rose(&dropped, bad), [1, 0, 0, 0, 0]);
        assert_eq!(self.rose(&before, counter::CHANGED as u16), [0; 5]);
    }

    /// Lets the second acceptor promise the next instance to another candidate, so that it refuses
    /// the proposal.
    fn asks_again_where_one_refuses(&mut self) {
        let promise = Header {
            rnd: Round(1 << 12 | 9),
            swid: REPLICA,
            ..message(MsgType::Phase1a, 1, 0, b"").0
        };
        let promise = self.frame(REPLICA, ACCEPTORS[1], &(promise, Vec::new()));
        self.bench.send(0, &promise);
        let (port, answer) = self.bench.receive().expect("a promise");
        assert_eq!(
            (port, self.message(&answer).0.msgtype),
            (0, MsgType::Phase1b)
        );

        let answered = self.counted(counter::ANSWERED as u16);
        let stale = self.counted(Reason::Stale as u16);
        let refused = counter::REJECTED as u16 + Reason::Preempted as u16;
        let before = self.counted(refused);
        self.request(2, Flags::NONE, b"two");
        self.delivers(1, 2, b"two");
        // Once in its turn and once by a copy; the others have said the same again.
        assert_eq!(self.rose(&before, refused), [0, 0, 2, 0, 0]);
        assert_eq!(
            self.rose(&answered, counter::ANSWERED as u16),
            [0, 1, 0, 1, 0]
        );
        // The refusal reached the leader, which goes on: the promise was to a round of its own
        // epoch.
        assert_eq!(self.rose(&stale, Reason::Stale as u16), [1, 0, 0, 0, 0]);
        assert_eq!(self.roles[0].look(0).expect("an answer").a, 2);
    }

    fn takes_commands_over_partitions_around(&mut self) {
        let mut value = Vec::new();
        Vector::reserve(&[0], &mut value);
        value.extend(b"three");
        self.request(3, Flags::MULTI, &value);
        Vector::stamp(&mut value, Round::base(1), |_| 2);
        self.delivers(2, 3, &value);
    }

    fn request(&self, request: u64, flags: Flags, value: &[u8]) {
        let (header, value) = message(MsgType::Request, 0, request, value);
        let message = (Header { flags, ..header }, value);
        self.bench.send(0, &self.frame(CLIENT, LEADER, &message));
    }

    /// Checks that this decision comes out, and nothing else.
    fn delivers(&mut self, inst: u64, request: u64, value: &[u8]) {
        let (port, frame) = self.bench.receive().expect("a decision");
        assert!(frame::checksum_is_right(&frame, self.v6));
        let (header, delivered) = self.message(&frame);
        assert_eq!((port, header.msgtype), (1, MsgType::Deliver));
        assert_eq!((header.inst, header.request), (inst, request));
        assert_eq!(delivered, value);
        // An order fails if anything else comes.
        self.counted(0);
    }

    fn message(&self, frame: &[u8]) -> (Header, Vec<u8>) {
        let datagram = frame::payload(frame).expect("a datagram");
        let packet = Packet::parse(datagram).expect("a message");
        (packet.header, packet.value.to_vec())
    }

    fn frame(&self, from: u16, to: u16, (header, value): &(Header, Vec<u8>)) -> Vec<u8> {
        let (from, to) = (address(from, self.v6), address(to, self.v6));
        frame::between(from, to, &header.datagram(value))
    }

    /// Returns a counter of each role.
    fn counted(&mut self, which: u16) -> [u64; 5] {
        std::array::from_fn(|role| self.roles[role].counters(which).expect("an answer")[0])
    }

    /// Waits for a while: a packet that comes in again may be behind an order.
    fn rose(&mut self, before: &[u64; 5], which: u16) -> [u64; 5] {
        let now = self.counted(which);
        std::array::from_fn(|role| now[role] - before[role])
    }
}

fn member(node: NodeId) -> Member {
    Member { node, nonce: NONCE }
}

fn message(kind: MsgType, inst: u64, request: u64, value: &[u8]) -> (Header, Vec<u8>) {
    let at = deployment(0);
    let header = Header {
        cluster: at.cluster,
        group: at.group,
        inst,
        client: 7,
        request,
        ..Header::new(kind)
    };
    (header, value.to_vec())
}

fn deployment(node: NodeId) -> Deployment {
    Deployment {
        cluster: 0xc1,
        group: 1,
        partitions: 1,
        max_value: MAX_VALUE,
        node,
    }
}

/// Returns the place of a role, which has a number so that its multicast is its own.
fn place(at: usize, node: NodeId) -> RegisterPlace {
    RegisterPlace {
        deployment: deployment(node),
        slots: 64,
        index: at as u16,
        first_partition: 0,
        first_slot: 0,
    }
}

fn members(node: NodeId) -> Vec<NodeId> {
    match node {
        LEADER => ACCEPTORS.to_vec(),
        LEARNER => vec![REPLICA],
        _ => vec![LEARNER],
    }
}

fn address(node: NodeId, v6: bool) -> SocketAddr {
    let ip = match v6 {
        false => IpAddr::from(Ipv4Addr::new(10, 0, 0, node as u8)),
        true => IpAddr::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, node)),
    };
    SocketAddr::new(ip, frame::PORT)
}

fn entries(place: &RegisterPlace, v6: bool) -> Vec<String> {
    let at = &place.deployment;
    let own = address(at.node, v6);
    let mut lines = vec![
        tables::own_order(at.node, at.cluster, frame::PORT),
        tables::group(place),
    ];
    let nodes = ROLES.map(|(_, node)| node).into_iter().chain([REPLICA]);
    lines.extend(nodes.map(|node| tables::node((node, address(node, v6).ip()))));
    lines.extend(tables::any_asker());
    for (number, member) in members(at.node).into_iter().enumerate() {
        let copy = Copy {
            number: number as u8,
            to: address(member, v6),
            from: own,
            mac_to: [2, 0, 0, 0, 1, 1],
            mac_from: [2, 0, 0, 0, 1, 2],
            port_per_partition: false,
        };
        lines.push(tables::copy(place, &copy));
    }
    lines.push(tables::own(at.node, at.cluster, own));
    lines
}

/// Returns which addresses are here, and whose turn comes with which address.
fn turns(v6: bool) -> Vec<String> {
    let family = if v6 { 6 } else { 4 };
    let here = |(_, node)| {
        let ip = address(node, v6).ip();
        format!("table_add egress.here{family} egress.comes_again {ip} =>")
    };
    let mut lines: Vec<_> = ROLES.into_iter().map(here).collect();
    let turn = |role: usize, from: usize| {
        let (name, node) = ROLES[role];
        let (to, source) = (address(node, v6), address(ROLES[from].1, v6));
        format!(
            "table_add ingress.of_{name}.members ingress.of_{name}.to{family} {} {} => {} {} {} {}",
            place(from, 0).members(),
            u8::from(v6),
            to.ip(),
            source.ip(),
            to.port(),
            source.port()
        )
    };
    lines.extend((1..=3).map(|acceptor| turn(acceptor, 0)));
    lines.push(turn(4, 3));
    lines
}
