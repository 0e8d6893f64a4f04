// SPDX-License-Identifier: Apache-2.0
//! The leader's multicast over real links: every member gets one copy of every proposal, with its
//! own addresses and a right checksum, without another packet that pushes it out. Members on links
//! of their own and all behind one port, IPv4 and IPv6, several groups and partitions, from all
//! CPUs at once.

mod common;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use aya::programs::xdp::XdpLink;
use aya::programs::{Xdp, XdpFlags};
use common::objects_or_skip;
use loader::attach::Attachment;
use loader::clone::Cloning;
use loader::frame;
use loader::interface::Interface;
use loader::layout::{Link, MulticastMember};
use loader::leader::Leader;
use loader::map_place::{self, MapPlace};
use loader::members::octets;
use loader::object::{Object, Role, Sizes};
use loader::run::test_device;
use loader::sys::pin_to_cpu;
use measure::generator::{Generator, Target, can_be_copied};
use measure::network::{Namespace, veth};
use paxos::wire::value::Vector;
use paxos::{Deployment, Flags, Header, MsgType, Packet, Program};

const RECEIVERS: u8 = 3;
/// Each group's number, partitions, and members, which are the first receivers.
const GROUPS: [(u16, u16, u8); 2] = [(1, 5, 3), (7, 1, 2)];
/// In the first rounds all CPUs send a request of the same kind, and then each CPU another one,
/// five times.
const ROUNDS: usize = 6 * KINDS;
const KINDS: usize = 6;
/// Within which what was sent has come.
const LIMIT: Duration = Duration::from_secs(10);
/// Small enough for the receivers' buffers.
const BURST: u32 = 4;

/// The handles that keep the leader attached at an interface.
type Attached = (Option<XdpLink>, Option<Cloning>);

/// How receivers are connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wiring {
    OwnLinks,
    OnePort,
    /// A switch with one receiver, whose copy gets its address before it leaves.
    Single,
}

/// The place where the leader runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Native,
    Generic,
    /// The leader's program runs in generic mode, and multicast leaves by clones in TC.
    Clones,
}

#[test]
fn each_member_on_a_link_of_its_own_gets_each_copy() {
    everybody_gets_everything(&[(Wiring::OwnLinks, Mode::Native)]);
}

#[test]
fn each_member_behind_one_port_gets_each_copy() {
    everybody_gets_everything(&[(Wiring::OnePort, Mode::Native)]);
}

#[test]
fn the_only_member_gets_each_packet() {
    everybody_gets_everything(&[
        (Wiring::Single, Mode::Native),
        (Wiring::Single, Mode::Generic),
    ]);
}

#[test]
fn clones_in_tc_reach_everybody() {
    everybody_gets_everything(&[
        (Wiring::OwnLinks, Mode::Clones),
        (Wiring::OnePort, Mode::Clones),
    ]);
}

#[test]
fn a_leader_in_generic_mode_reaches_everybody() {
    everybody_gets_everything(&[
        (Wiring::OwnLinks, Mode::Generic),
        (Wiring::OnePort, Mode::Generic),
    ]);
}

fn everybody_gets_everything(cases: &[(Wiring, Mode)]) {
    let Some(dir) = objects_or_skip() else { return };
    for &(wiring, mode) in cases {
        for v6 in [false, true] {
            if let Err(why) = everybody_gets(&dir, wiring, mode, v6) {
                println!("SKIPPED: {why}");
                return;
            }
        }
    }
}

/// Checks that everybody gets each copy. An error says why this can't be tried here.
fn everybody_gets(dir: &Path, wiring: Wiring, mode: Mode, v6: bool) -> Result<(), String> {
    let network = Network::new(dir, wiring)?;
    if mode != Mode::Clones {
        network.switch.inside(|| can_be_copied(&network.ingress))?;
    }
    let (mut leader, _attached) = network.leader(dir, v6, mode);
    network.run(&mut leader, v6);
    Ok(())
}

/// A switch with the leader, and receivers.
struct Network {
    switch: Namespace,
    /// The interface at which requests come in.
    ingress: Interface,
    receivers: Vec<Receiver>,
    /// The switch's ports, each with the receivers behind it.
    ports: Vec<(Interface, Vec<usize>)>,
    /// Programs that let redirected frames in.
    _open: Open,
    _bridge: Option<Namespace>,
}

type Open = Vec<(Object, Attachment)>;

struct Receiver {
    namespace: Namespace,
    mac: [u8; 6],
    ip: [IpAddr; 2],
}

impl Network {
    fn new(dir: &Path, wiring: Wiring) -> Result<Network, String> {
        let switch = Namespace::new()?;
        let (ingress, _) = veth((&switch, "clients"), (&switch, "network"))?;
        let mut network = Network {
            receivers: Vec::new(),
            ports: Vec::new(),
            _open: Vec::new(),
            _bridge: None,
            switch,
            ingress,
        };
        let mut behind = None;
        if wiring == Wiring::OnePort {
            let bridge = Namespace::new()?;
            let (port, end) = veth((&network.switch, "trunk"), (&bridge, "trunk"))?;
            bridge.ip(&[
                "link add bridge type bridge".into(),
                "link set trunk master bridge".into(),
                "link set bridge up".into(),
            ])?;
            let receivers = (0..RECEIVERS.into()).collect();
            network.ports.push((port, receivers));
            network.open(dir, &bridge, &end)?;
            behind = Some(bridge);
        }
        let receivers = match wiring {
            Wiring::Single => 1,
            _ => RECEIVERS,
        };
        for at in 0..receivers {
            let namespace = Namespace::new()?;
            let port = format!("port{at}");
            let from = behind.as_ref().unwrap_or(&network.switch);
            let (near, far) = veth((from, &port), (&namespace, "eth0"))?;
            let ip = [
                IpAddr::from([10, 3, 0, 1 + at]),
                Ipv6Addr::new(0xfd03, 0, 0, 0, 0, 0, 0, 1 + u16::from(at)).into(),
            ];
            namespace.ip(&[
                format!("addr add {}/24 dev eth0", ip[0]),
                format!("addr add {}/64 dev eth0 nodad", ip[1]),
            ])?;
            match &behind {
                Some(bridge) => bridge.ip(&[format!("link set {port} master bridge")])?,
                None => {
                    network.open(dir, &namespace, &far)?;
                    network.ports.push((near, vec![at.into()]));
                }
            }
            network.receivers.push(Receiver {
                namespace,
                mac: far.mac,
                ip,
            });
        }
        network._bridge = behind;
        Ok(network)
    }

    /// Loads a program that passes frames on at a veth end, which otherwise takes no redirected
    /// frames.
    fn open(&mut self, dir: &Path, namespace: &Namespace, end: &Interface) -> Result<(), String> {
        let mut object = Object::load(dir, Role::Forwarder, &Sizes::of(1, 1, 1))?;
        let attached = namespace.inside(|| object.attach(end))?;
        self._open.push((object, attached));
        Ok(())
    }

    /// Returns a leader of all groups at the switch, with the receivers as acceptors.
    fn leader(&self, dir: &Path, v6: bool, mode: Mode) -> (Object, Attached) {
        let mut sizes = Sizes::of(GROUPS.len() as u32, 1, 1);
        sizes.partitions = GROUPS
            .iter()
            .map(|(_, partitions, _)| u32::from(*partitions))
            .sum();
        let mut object = Object::load(dir, Role::Leader, &sizes).expect("it loads");
        let mut first_partition = 0;
        for (index, (group, partitions, _)) in GROUPS.into_iter().enumerate() {
            let place = MapPlace {
                index: index as u32,
                first_partition,
                ..MapPlace::only(deployment(group, partitions), 1)
            };
            first_partition += u32::from(partitions);
            let leader = Leader::new(&object, place, 1).expect("it has room");
            let all = usize::from(partitions);
            leader
                .program(&Program {
                    epoch: 1,
                    nonce: 1,
                    next: vec![0; all],
                    trimmed: vec![0; all],
                    window: u64::MAX,
                    acceptors: vec![11],
                    f: 0,
                    replicas: vec![31],
                    g: 0,
                })
                .expect("a new leader");
            map_place::open(&mut object, &place, 0, &test_device(&place)).expect("it fits");
        }
        self.switch.inside(|| self.wire(&mut object, v6));
        let (target, attached) = match mode {
            Mode::Native => (Target::Program("leader"), None),
            Mode::Generic | Mode::Clones => (Target::Stack, Some(self.attach_generic(&mut object))),
        };
        let clones = (mode == Mode::Clones).then(|| self.attach_clones(&mut object));
        Generator::new(&mut object, target).expect("every object has one");
        (object, (attached, clones))
    }

    fn attach_generic(&self, object: &mut Object) -> XdpLink {
        let program = object.ebpf().program_mut("leader").expect("it is there");
        let program: &mut Xdp = program.try_into().expect("it is one for XDP");
        let attach = || program.attach_to_if_index(self.ingress.index, XdpFlags::SKB_MODE);
        let id = self.switch.inside(attach).expect("any interface can");
        program.take_link(id).expect("it is there")
    }

    fn attach_clones(&self, object: &mut Object) -> Cloning {
        let ports: Vec<_> = self.ports.iter().map(|(port, _)| port.index).collect();
        let attach = || object.multicast_by_clones(&self.ingress, &ports, None);
        self.switch.inside(attach).expect("TC takes it")
    }

    /// Fills the leader's maps of links.
    fn wire(&self, object: &mut Object, v6: bool) {
        let behind =
            |(port, receivers): &(Interface, Vec<usize>)| vec![port.index; receivers.len()];
        let ports: Vec<u32> = self.ports.iter().flat_map(behind).collect();
        object.multicast_to(&ports, true).expect("there is room");
        let mut links = Vec::new();
        for (group, _, members) in GROUPS {
            for (index, (port, receivers)) in self.ports.iter().enumerate() {
                let mut link = Link {
                    ifindex: port.index,
                    group: group.into(),
                    entries: receivers.len() as u32,
                    index: index as u32,
                    ..Link::default()
                };
                for at in receivers.iter().filter(|at| **at < members.into()) {
                    link.member[link.members as usize] = self.member(*at, group, port, v6);
                    link.members += 1;
                }
                links.push(link);
            }
        }
        object.set_links(&links).expect("there is room");
    }

    fn member(&self, at: usize, group: u16, port: &Interface, v6: bool) -> MulticastMember {
        let receiver = &self.receivers[at];
        let from = match v6 {
            false => IpAddr::from([10, 3, 0, 99]),
            true => Ipv6Addr::new(0xfd03, 0, 0, 0, 0, 0, 0, 99).into(),
        };
        MulticastMember {
            mac_to: receiver.mac,
            mac_from: port.mac,
            family: if v6 { 6 } else { 4 },
            ip_to: octets(receiver.ip[usize::from(v6)]),
            ip_from: octets(from),
            port_to: 7000 + group,
            port_from: 9000,
            partitions: 0,
            role: 0,
        }
    }

    /// All CPUs send requests of all kinds at once; everybody must get every proposal once, and
    /// before anything else is sent.
    fn run(&self, object: &mut Object, v6: bool) {
        let mut listeners: Vec<Listener> = GROUPS
            .iter()
            .flat_map(|(group, partitions, members)| {
                let members = self.receivers.iter().take(usize::from(*members));
                members.map(|receiver| Listener {
                    group: *group,
                    partitions: *partitions,
                    socket: receiver.socket(*group, v6),
                    got: BTreeMap::new(),
                })
            })
            .collect();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let kinds = requests(v6);
        for round in 0..ROUNDS {
            std::thread::scope(|scope| {
                for cpu in 0..cpus {
                    let frame = &kinds[(round + cpu * (round / KINDS)) % KINDS];
                    let generator = Generator::of(object).expect("every object has one");
                    let (switch, ingress) = (&self.switch, self.ingress.index);
                    scope.spawn(move || switch.inside(|| send(&generator, cpu, ingress, frame)));
                }
            });
            for listener in &mut listeners {
                listener.wait(object, &format!("round {round}, IPv6: {v6}"));
            }
        }
        for (group, partitions, _) in GROUPS {
            let stamped: Vec<_> = (0..partitions)
                .map(|pid| next(object, group, pid))
                .collect();
            assert!(stamped.iter().all(|n| *n > 0), "group {group}: {stamped:?}");
            assert!(
                stamped.iter().sum::<u64>() > 20,
                "group {group}: {stamped:?}"
            );
        }
    }
}

/// A member's socket, and how often each proposal has come there.
struct Listener {
    group: u16,
    partitions: u16,
    socket: UdpSocket,
    got: BTreeMap<(u16, u64), u32>,
}

impl Listener {
    /// Receives until every proposal that was stamped has come once.
    fn wait(&mut self, object: &Object, when: &str) {
        let stamped = |pid| (0..next(object, self.group, pid)).map(move |inst| ((pid, inst), 1));
        let expected: BTreeMap<_, _> = (0..self.partitions).flat_map(stamped).collect();
        let begun = Instant::now();
        drain(&self.socket, &mut self.got);
        while self.got != expected {
            assert!(
                begun.elapsed() < LIMIT,
                "{when}, group {}: {:?} instead of {expected:?}",
                self.group,
                self.got
            );
            std::thread::sleep(Duration::from_millis(1));
            drain(&self.socket, &mut self.got);
        }
    }
}

fn send(generator: &Generator, cpu: usize, ingress: u32, frame: &[u8]) {
    pin_to_cpu(cpu).expect("the CPU is there");
    generator.load(cpu, frame, 0, 0);
    generator.send(ingress, frame, BURST).expect("it runs");
}

impl Receiver {
    fn socket(&self, group: u16, v6: bool) -> UdpSocket {
        let address = SocketAddr::new(self.ip[usize::from(v6)], 7000 + group);
        let socket = self.namespace.inside(|| UdpSocket::bind(address));
        let socket = socket.expect("the address is there");
        socket.set_nonblocking(true).expect("a socket");
        socket
    }
}

fn deployment(group: u16, partitions: u16) -> Deployment {
    Deployment {
        cluster: 0xc1,
        group,
        partitions,
        max_value: 1200,
        node: 9,
    }
}

/// Returns what a leader has stamped.
fn next(object: &Object, group: u16, pid: u16) -> u64 {
    let mut first_partition = 0;
    for (index, (number, partitions, _)) in GROUPS.into_iter().enumerate() {
        if number == group {
            let place = MapPlace {
                index: index as u32,
                first_partition,
                ..MapPlace::only(deployment(group, partitions), 1)
            };
            return Leader::new(object, place, 1)
                .expect("it is there")
                .next(pid);
        }
        first_partition += u32::from(partitions);
    }
    unreachable!("a known group")
}

/// Returns one request of each kind: for both groups, over one, two and all partitions.
fn requests(v6: bool) -> [Vec<u8>; KINDS] {
    let header = |group, pid| Header {
        cluster: 0xc1,
        group,
        pid,
        client: 7,
        request: 1,
        ..Header::new(MsgType::Request)
    };
    let over = |partitions: &[u16]| {
        let mut vector = Vec::new();
        Vector::reserve(partitions, &mut vector);
        let multi = Header {
            flags: Flags::MULTI,
            ..header(1, partitions[0])
        };
        multi.datagram(&vector)
    };
    let datagrams = [
        header(1, 0).datagram(b"a value"),
        header(7, 0).datagram(b"another"),
        over(&[0, 1]),
        over(&[0, 1, 2, 3, 4]),
        over(&[2]),
        header(1, 1).datagram(&[b'x'; 700]),
    ];
    datagrams.map(|datagram| frame::build(&datagram, v6))
}

/// Notes what has come. The kernel has checked addresses and checksums.
fn drain(socket: &UdpSocket, got: &mut BTreeMap<(u16, u64), u32>) {
    let mut buffer = [0; 2048];
    while let Ok((len, from)) = socket.recv_from(&mut buffer) {
        assert!(
            from.port() == 9000 && from.ip() != IpAddr::from(Ipv4Addr::UNSPECIFIED),
            "it came from {from}"
        );
        let packet = Packet::parse(&buffer[..len]).expect("a good packet");
        assert_eq!(packet.header.msgtype, MsgType::Phase2a);
        let place = (packet.header.pid, packet.header.inst);
        *got.entry(place).or_insert(0) += 1;
    }
}
