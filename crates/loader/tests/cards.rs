// SPDX-License-Identifier: Apache-2.0
//! Programs at cards that aren't virtual links: whole frames go out by one card and come in by another, to which it is
//! connected, and what the role sends comes back the same way. An emulated machine has such pairs (`./dev test kernel`);
//! others say SKIPPED.

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use common::mount::Mount;
use common::{XdpDevice, objects_or_skip};
use loader::attach::{Attachment, Mode};
use loader::clone::Cloning;
use loader::frame::{self, PORT};
use loader::interface::Interface;
use loader::layout::{Link, MAX_MEMBERS, MulticastMember};
use loader::members::octets;
use loader::object::Role;
use loader::run::counter;
use loader::user_space_program::{Outcome, UserSpaceProgram};
use loader::veth::{driver, prepare_for_xdp};
use measure::network::Namespace;
use p4::packet_socket::PacketSocket;
use paxos::{
    Deployment, Header, Instance, MsgType, PartitionId, Program, Reason, Round, To, Verdict,
};
use sim::script::{self, Device, Order, RustDevice, Setup, SlotState, State, complaints, run};

/// Counters that may rise beside a verdict: frames of others that pass, and answers without room in their frame.
const BESIDE: [usize; 2] = [counter::PASSED, counter::UNSENT];

/// Pairs of cards: a word for each and its two hardware addresses, with `;` between pairs.
const VARIABLE: &str = "WIREPAXOS_CARDS";
/// The number of members behind the port, each of which gets a copy of every multicast.
const MEMBERS: u8 = 3;
/// The hardware addresses of the role's card and of the card at the other end, as in test frames.
const MACS: [&str; 2] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];
/// Ends a test that fails.
const LIMIT: Duration = Duration::from_secs(30);

/// Two cards that are connected.
struct Pair {
    word: String,
    near: Namespace,
    far: Namespace,
    port: Interface,
    /// The interface at the other end.
    end: Interface,
    socket: PacketSocket,
}

impl Pair {
    fn open(word: &str, macs: [&str; 2]) -> Pair {
        let [near, far] = [(); 2].map(|()| Namespace::new().expect("root"));
        let port = move_to(&near, macs[0], MACS[0]);
        let end = move_to(&far, macs[1], MACS[1]);
        let socket = far.inside(PacketSocket::open).expect("root");
        let word = word.to_owned();
        Pair {
            word,
            near,
            far,
            port,
            end,
            socket,
        }
    }

    fn driver(&self) -> String {
        let driver = self.near.inside(|| driver(&self.port.name));
        driver.expect("a card has one")
    }

    /// Returns in which way this pair is there to be tried.
    fn expected(&self) -> Mode {
        match &self.word[..] {
            "native" => Mode::Native,
            _ => Mode::Generic,
        }
    }

    fn send(&self, frame: &[u8]) {
        assert!(self.socket.send(self.end.index, frame), "the card takes it");
    }

    /// Returns the next frame of a datagram from the role, without what makes short frames longer. The machine's own
    /// frames, such as those that look for neighbours, are passed over.
    fn next(&self) -> Option<Vec<u8>> {
        let mut buffer = [0; 2048];
        loop {
            let (_, len) = self.socket.receive(&mut buffer).expect("a socket")?;
            if let Some(datagram) = frame::payload(&buffer[..len]) {
                let end = datagram.as_ptr() as usize - buffer.as_ptr() as usize + datagram.len();
                return Some(buffer[..end].to_vec());
            }
        }
    }

    fn wait(&self) {
        self.socket.wait(Duration::from_millis(1));
    }
}

/// Moves a card, which has another hardware address from then on.
fn move_to(namespace: &Namespace, mac: &str, own: &str) -> Interface {
    let name = with_mac(mac);
    namespace.take(&name).expect("it is there");
    // Room for the longest value in a signed packet of IPv6.
    let how = "mtu 1600 promisc on addrgenmode none up";
    let line = format!("link set {name} address {own} {how}");
    namespace.ip(&[line]).expect("root");
    namespace.interface(&name).expect("it is there")
}

fn with_mac(mac: &str) -> String {
    let interfaces = fs::read_dir("/sys/class/net").expect("it is there");
    let mut names = interfaces.map(|entry| entry.expect("an entry").file_name());
    let has = |name: &std::ffi::OsString| {
        let path = Path::new("/sys/class/net").join(name).join("address");
        fs::read_to_string(path).is_ok_and(|text| text.trim() == mac)
    };
    let found = names
        .find(has)
        .unwrap_or_else(|| panic!("no card has {mac}"));
    found.into_string().expect("a name")
}

/// Returns all pairs, for one test at a time. Returns nothing, and prints why, if there are none.
fn pairs_or_skip() -> Option<MutexGuard<'static, Vec<Pair>>> {
    static PAIRS: OnceLock<Mutex<Vec<Pair>>> = OnceLock::new();
    let Ok(text) = std::env::var(VARIABLE) else {
        println!("SKIPPED: there are no cards to try; `./dev test kernel` has some, emulated");
        return None;
    };
    let open = |pair: &str| {
        let words: Vec<_> = pair.split_whitespace().collect();
        let [word, near, far] = words[..] else {
            panic!("{VARIABLE}: {pair:?}");
        };
        Pair::open(word, [near, far])
    };
    let all = PAIRS.get_or_init(|| Mutex::new(text.split(';').map(open).collect()));
    Some(all.lock().unwrap_or_else(PoisonError::into_inner))
}

/// How copies leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Multicast {
    /// Copies are made by the egress program.
    Egress,
    /// Copies are made as clones in TC.
    Clones,
}

/// Returns those that can be tried in a mode. In the stack nodes have clones alone: copies by redirects share a buffer
/// in some kernels, that of 6.1 among them.
fn multicasts(mode: Mode) -> &'static [Multicast] {
    match mode {
        Mode::Native => &[Multicast::Egress, Multicast::Clones],
        Mode::Generic => &[Multicast::Clones],
    }
}

/// A role whose program is at a card.
struct AtCard {
    pair: Pairs,
    number: usize,
    inner: XdpDevice,
    /// Says how many frames are to come; what they are is read from them.
    twin: Box<dyn Device>,
    group: u16,
    multicast: Multicast,
    v6: bool,
    attached: Attached,
}

type Pairs = Rc<RefCell<MutexGuard<'static, Vec<Pair>>>>;
/// The program at a card, shared by all devices of a test. Only one can be attached at a time.
type Attached = Rc<RefCell<Option<(Attachment, Option<Cloning>)>>>;

impl AtCard {
    fn new(
        dir: &Path,
        setup: &Setup,
        (pair, number): (&Pairs, usize),
        attached: &Attached,
        multicast: Multicast,
        v6: bool,
    ) -> Result<AtCard, String> {
        let mut device = AtCard {
            pair: Rc::clone(pair),
            number,
            inner: XdpDevice::new(dir, setup, v6)?,
            twin: RustDevice::build(setup)?,
            group: setup.deployment.group,
            multicast,
            v6,
            attached: Rc::clone(attached),
        };
        device.attach();
        Ok(device)
    }

    fn attach(&mut self) {
        self.attached.take();
        let pairs = Rc::clone(&self.pair);
        let pairs = pairs.borrow();
        let pair = &pairs[self.number];
        let object = &mut self.inner.loaded.object;
        let index = pair.port.index;
        let attached = pair.near.inside(|| {
            let ports = [index; MEMBERS as usize];
            object.multicast_to(&ports, true).expect("there is room");
            object
                .set_links(&[link(pair, self.group, self.v6)])
                .expect("there is room");
            let attached = object.attach(&pair.port).expect("any card can");
            let clones = (self.multicast == Multicast::Clones)
                .then(|| object.multicast_by_clones(&pair.port, &[index], None));
            (attached, clones.map(|clones| clones.expect("TC takes it")))
        });
        assert_eq!(attached.0.mode, pair.expected(), "{}", pair.word);
        self.attached.replace(Some(attached));
    }
}

/// Returns who gets copies, all of them behind the card.
fn link(pair: &Pair, group: u16, v6: bool) -> Link {
    let from = address(99, v6);
    let mut link = Link {
        ifindex: pair.port.index,
        group: group.into(),
        entries: MEMBERS.into(),
        members: MEMBERS.into(),
        ..Link::default()
    };
    assert!(usize::from(MEMBERS) <= MAX_MEMBERS);
    for at in 0..MEMBERS {
        link.member[usize::from(at)] = MulticastMember {
            mac_to: [2, 0, 0, 0, 1, at],
            mac_from: pair.port.mac,
            family: if v6 { 6 } else { 4 },
            ip_to: octets(address(at, v6)),
            ip_from: octets(from),
            port_to: 7000,
            port_from: FROM_ROLE,
            partitions: 0,
            role: 0,
        };
    }
    link
}

const FROM_ROLE: u16 = 7001;

fn address(last: u8, v6: bool) -> IpAddr {
    match v6 {
        true => [0xfd, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last].into(),
        false => [10, 3, 0, last].into(),
    }
}

impl Device for AtCard {
    fn packet(&mut self, datagram: &[u8]) -> (Vec<(To, Vec<u8>)>, Verdict) {
        let (expected, _) = self.twin.packet(datagram);
        let pairs = Rc::clone(&self.pair);
        let pairs = pairs.borrow();
        let pair = &pairs[self.number];
        let unsent = self.unsent();
        pair.send(&frame::build(datagram, self.v6));
        let verdict = self.verdict(pair, datagram);
        if self.unsent() != unsent {
            return (self.handled_again(datagram), verdict);
        }
        let frames: usize = expected
            .iter()
            .map(|(to, _)| if *to == To::Sender { 1 } else { MEMBERS.into() })
            .sum();
        let came = collect(pair, frames);
        (self.read(&came), verdict)
    }

    fn order(&mut self, order: &Order) -> Result<bool, String> {
        let _ = self.twin.order(order)?;
        let done = self.inner.order(order);
        if matches!(order, Order::Restart { .. }) {
            // The program at the card belongs to another object.
            self.attach();
        }
        done
    }

    fn state(&self, pid: PartitionId) -> Option<State> {
        self.inner.state(pid)
    }

    fn slot(&self, pid: PartitionId, inst: Instance) -> Option<SlotState> {
        self.inner.slot(pid, inst)
    }

    fn fingerprint(&self) -> String {
        self.inner.fingerprint()
    }
}

impl AtCard {
    /// Returns the number of answers that had no room in the frame, since some drivers leave none behind a packet.
    fn unsent(&self) -> u64 {
        let object = &self.inner.loaded.object;
        let cpus = 0..object.cpus();
        cpus.map(|cpu| object.counters_of(cpu).of[counter::UNSENT])
            .sum()
    }

    /// Lets the role's process run the program once more on a packet that has been passed to it, and send the answer.
    fn handled_again(&mut self, datagram: &[u8]) -> Vec<(To, Vec<u8>)> {
        let loaded = &mut self.inner.loaded;
        let mut program = UserSpaceProgram::new(&loaded.object).expect("it runs");
        let (from, to) = frame::addresses(self.v6);
        let outcome = program.handle(datagram, from, to).expect("it runs");
        let Outcome::Answer(answer) = outcome else {
            panic!("{outcome:?}, after {datagram:02x?}");
        };
        let second = loaded.runner.counted_beside(&loaded.object, &BESIDE);
        assert!(matches!(second, Ok(Some(_))), "{second:?}");
        vec![(To::Sender, answer.to_vec())]
    }

    fn verdict(&mut self, pair: &Pair, datagram: &[u8]) -> Verdict {
        let begun = Instant::now();
        let loaded = &mut self.inner.loaded;
        loop {
            let counted = loaded.runner.counted_beside(&loaded.object, &BESIDE);
            if let Ok(Some((verdict, _))) = counted {
                return verdict;
            }
            let waits = counted.is_ok() && begun.elapsed() < LIMIT;
            assert!(waits, "{}: {counted:?}, after {datagram:02x?}", pair.word);
            std::thread::yield_now();
        }
    }

    /// Returns what the frames say: each copy has come to each member once, and all of them are the same.
    fn read(&self, frames: &[Vec<u8>]) -> Vec<(To, Vec<u8>)> {
        let to = match self.inner.loaded.object.role() {
            Role::Leader => To::Acceptors,
            Role::Sequencer => To::Replicas,
            _ => To::Learners,
        };
        let (mut sent, mut copies) = (Vec::new(), vec![Vec::new(); usize::from(MEMBERS)]);
        for frame in frames {
            let head = frame::head_len(self.v6);
            let from = u16::from_be_bytes([frame[head - 8], frame[head - 7]]);
            if from == PORT {
                let answer = frame::datagram(frame, self.v6, true).expect("a good answer");
                sent.push((To::Sender, answer.to_vec()));
                continue;
            }
            assert_eq!(from, FROM_ROLE);
            assert!(frame::checksum_is_right(frame, self.v6));
            assert!(self.v6 || frame::ip_checksum_is_right(frame));
            let at = frame[head - 8 - 1];
            assert_eq!(frame[..6], [2, 0, 0, 0, 1, at]);
            copies[usize::from(at)].push(frame[head..].to_vec());
        }
        for of_member in &mut copies {
            of_member.sort();
        }
        let [first, others @ ..] = &copies[..] else {
            unreachable!("there are members");
        };
        assert!(others.iter().all(|other| other == first), "{copies:02x?}");
        sent.extend(first.iter().map(|copy| (to, copy.clone())));
        sent
    }
}

/// Collects this many frames, and fails if more have come by then.
fn collect(pair: &Pair, frames: usize) -> Vec<Vec<u8>> {
    let begun = Instant::now();
    let mut came = Vec::new();
    loop {
        came.extend(std::iter::from_fn(|| pair.next()));
        if came.len() >= frames {
            break;
        }
        let (n, word) = (came.len(), &pair.word);
        assert!(begun.elapsed() < LIMIT, "{word}: {n} of {frames} frames");
        pair.wait();
    }
    came
}

#[test]
fn role_scripts_hold_by_cards() {
    let Some(dir) = objects_or_skip() else { return };
    let Some(pairs) = pairs_or_skip() else { return };
    let count = pairs.len();
    let pairs = Rc::new(RefCell::new(pairs));
    let attached = Attached::default();
    let mut failures = String::new();
    for number in 0..count {
        let mode = pairs.borrow()[number].expected();
        for multicast in multicasts(mode) {
            for (at, path) in scripts().iter().enumerate() {
                // Each script runs in both IP versions, at one card or another, because the emulated machine takes
                // seconds to load a program.
                let v6 = (at + number) % 2 == 0;
                let at = (&pairs, number);
                failures += &run_script(&dir, path, at, &attached, *multicast, v6);
            }
        }
    }
    assert!(count > 0);
    assert!(failures.is_empty(), "\n{failures}");
}

/// Returns what differs.
fn run_script(
    dir: &Path,
    path: &Path,
    (pairs, number): (&Pairs, usize),
    attached: &Attached,
    multicast: Multicast,
    v6: bool,
) -> String {
    let script = fs::read_to_string(path).expect("a script is readable");
    let name = path.file_name().expect("a file").to_string_lossy();
    let word = pairs.borrow()[number].word.clone();
    let what = format!("{name} (IPv6: {v6}) at {word}, {multicast:?}");
    println!("{what}");
    let mut build = |setup: &Setup| -> Result<Box<dyn Device>, String> {
        let device = AtCard::new(dir, setup, (pairs, number), attached, multicast, v6)?;
        Ok(Box::new(device))
    };
    let differences = complaints(&what, run(&script, &mut build));
    let pairs = pairs.borrow();
    std::thread::sleep(Duration::from_millis(20));
    let left = pairs[number].next();
    assert_eq!(left, None, "{what}: a frame too many");
    differences
}

/// Returns those with frames of all kinds, malformed, long, over several partitions, signed, of roles that need no
/// host: what passes to one is counted nowhere.
fn scripts() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/roles");
    let entries = fs::read_dir(dir).expect("testdata is there");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.retain(|path| {
        let name = path.file_name().expect("a file").to_string_lossy();
        let in_host = name.contains("host_learner") || name.contains("receiver");
        let kinds = ["malformed", "long_values", "multi", "signed"];
        kinds.iter().any(|kind| name.contains(kind)) && !in_host
    });
    paths.sort();
    assert!(paths.len() > 10, "{paths:?}");
    paths
}

/// Requests by all queues at once: each is stamped once, and each member gets each proposal once.
#[test]
fn every_queue_of_a_card_serves() {
    const FLOWS: u16 = 64;
    const ROUNDS: u64 = 8;
    let Some(dir) = objects_or_skip() else { return };
    let Some(pairs) = pairs_or_skip() else { return };
    let number = pairs
        .iter()
        .position(|pair| pair.expected() == Mode::Native);
    let number = number.expect("one of them is native");
    let pairs = Rc::new(RefCell::new(pairs));
    let setup = Setup::new(script::Role::Leader, deployment(), 1, 7);
    let attached = Attached::default();
    let at = (&pairs, number);
    let leader = AtCard::new(&dir, &setup, at, &attached, Multicast::Egress, false);
    let mut leader = leader.expect("it loads");
    let program = Program {
        epoch: 1,
        nonce: 7,
        next: vec![0],
        trimmed: vec![0],
        window: u64::MAX,
        acceptors: vec![11],
        f: 0,
        replicas: vec![31],
        g: 0,
    };
    assert_eq!(leader.order(&Order::Program(program)), Ok(true));
    let request = Header {
        cluster: deployment().cluster,
        group: deployment().group,
        client: 7,
        request: 1,
        ..Header::new(MsgType::Request)
    };
    let request = request.datagram(b"a value");
    let mut got = BTreeMap::new();
    {
        let all = pairs.borrow();
        let pair = &all[number];
        for round in 0..ROUNDS * u64::from(FLOWS) / 8 {
            for flow in 0..8 {
                let port = 9001 + (round * 8 + flow) as u16 % FLOWS;
                let from = SocketAddr::from((frame::V4_FROM, port));
                let to = SocketAddr::from(([10, 0, 0, 1], PORT));
                pair.send(&frame::between(from, to, &request));
            }
            for copy in collect(pair, 8 * usize::from(MEMBERS)) {
                let head = frame::head_len(false);
                assert!(frame::checksum_is_right(&copy, false));
                let stamped = paxos::Packet::parse(&copy[head..]).expect("a good packet");
                let member = copy[head - 8 - 1];
                *got.entry((member, stamped.header.inst)).or_insert(0) += 1;
            }
        }
    }
    let stamped = ROUNDS * u64::from(FLOWS);
    let expected: BTreeMap<_, _> = (0..MEMBERS)
        .flat_map(|member| (0..stamped).map(move |inst| ((member, inst), 1)))
        .collect();
    assert_eq!(got, expected);
    let object = &leader.inner.loaded.object;
    let busy = (0..object.cpus()).filter(|cpu| object.counters_of(*cpu).of[counter::CHANGED] > 0);
    assert!(busy.count() > 1, "all came by one queue");
}

/// A checksum that a sender's kernel leaves to its card is completed before a program sees it, or the program refuses
/// the packet.
#[test]
fn a_checksum_that_is_left_to_the_card_is_complete_or_refused() {
    let Some(dir) = objects_or_skip() else { return };
    let Some(pairs) = pairs_or_skip() else { return };
    let count = pairs.len();
    let pairs = Rc::new(RefCell::new(pairs));
    let attached = Attached::default();
    for number in 0..count {
        let setup = Setup::new(script::Role::Acceptor, deployment(), 16, 7);
        let at = (&pairs, number);
        let acceptor = AtCard::new(&dir, &setup, at, &attached, Multicast::Egress, false);
        let mut acceptor = acceptor.expect("it loads");
        assert_eq!(acceptor.order(&Order::Enable(enable())), Ok(true));
        let pairs = Rc::clone(&pairs);
        let pairs = pairs.borrow();
        let pair = &pairs[number];
        let (name, [near_mac, _]) = (&pair.end.name, MACS);
        let lines = [
            format!("address replace 10.0.0.2/24 dev {name}"),
            format!("neigh replace 10.0.0.1 lladdr {near_mac} dev {name} nud permanent"),
        ];
        pair.far.ip(&lines).expect("root");
        let from = SocketAddr::from((frame::V4_FROM, 9001));
        let socket = pair
            .far
            .inside(|| UdpSocket::bind(from))
            .expect("it is there");
        let mut votes_for = |inst: Instance| {
            let proposal = Header {
                cluster: deployment().cluster,
                group: deployment().group,
                inst,
                rnd: Round::base(1),
                client: 7,
                request: 1,
                ..Header::new(MsgType::Phase2a)
            };
            let proposal = proposal.datagram(b"a value");
            socket
                .send_to(&proposal, ("10.0.0.1", PORT))
                .expect("there is a way");
            acceptor.verdict(pair, &proposal)
        };
        let left_to_it = match &pair.word[..] {
            // The driver lets the other side go without, which it can't take back.
            "partial" => Verdict::Dropped(Reason::BadChecksum),
            _ => Verdict::Changed,
        };
        assert_eq!(votes_for(0), left_to_it, "{}", pair.word);
        pair.far
            .inside(|| prepare_for_xdp(name))
            .expect("any driver can");
        assert_eq!(votes_for(1), Verdict::Changed, "{}", pair.word);
    }
    // Votes are on their way to the other end.
    std::thread::sleep(Duration::from_millis(20));
    for pair in pairs.borrow().iter() {
        while pair.next().is_some() {}
    }
}

#[test]
fn a_card_whose_driver_refuses_programs_is_told_in_its_words() {
    let Some(dir) = objects_or_skip() else { return };
    let Some(pairs) = pairs_or_skip() else { return };
    let Some(mount) = Mount::new("cards") else {
        return;
    };
    let mut said = BTreeMap::new();
    for (number, pair) in pairs.iter().enumerate() {
        let setup = Setup::new(script::Role::Acceptor, deployment(), 16, 7);
        let mut device = XdpDevice::new(&dir, &setup, false).expect("it loads");
        let pins = mount.pins(0xc1, &format!("acceptor-{number}"));
        let object = &mut device.loaded.object;
        let attached = pair
            .near
            .inside(|| object.attach_kept(&pair.port, pins.path()));
        let attached = attached.expect("any card can");
        assert_eq!(attached.mode, pair.expected(), "{}", pair.word);
        println!(
            "{} ({}): {:?}",
            pair.word,
            pair.driver(),
            attached.why_generic
        );
        said.insert(pair.word.clone(), attached.why_generic.clone());
        drop(attached);
        pins.remove().expect("it is there");
    }
    assert_eq!(said["native"], None);
    let partial = said["partial"].as_ref().expect("it has a reason");
    assert!(
        partial.contains("its driver (virtio_net) says"),
        "{partial}"
    );
    assert!(partial.contains("GRO_HW/CSUM"), "{partial}");
    assert!(said["generic"].is_some(), "e1000e has no XDP");
}

fn deployment() -> Deployment {
    Deployment {
        cluster: 0xc1,
        group: 1,
        partitions: 1,
        max_value: 64,
        node: 21,
    }
}

fn enable() -> paxos::Enable {
    paxos::Enable {
        epoch: 1,
        nonce: 7,
        trim: vec![0],
        end: vec![0],
        replicas: vec![31, 32, 33],
        g: 1,
    }
}
