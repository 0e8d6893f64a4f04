// SPDX-License-Identifier: Apache-2.0
//! Programs at cards that aren't virtual links: whole frames go out by one card and come in by
//! another, to which it is connected, and what the role sends comes back the same way. An emulated
//! machine has such pairs (`./dev test kernel`); others say SKIPPED.

#[path = "../common/mod.rs"]
mod common;
mod queues;

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

/// Counters that may rise beside a verdict: frames of others that pass, and answers without room in
/// their frame.
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

    /// Returns the next frame of a datagram from the role, without what makes short frames longer.
    /// The machine's own frames, such as those that look for neighbours, are passed over.
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

/// Returns those that can be tried in a mode. In the stack nodes have clones alone: copies by
/// redirects share a buffer in some kernels, that of 6.1 among them.
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
    /// Returns the number of answers that had no room in the frame, since some drivers leave none
    /// behind a packet.
    fn unsent(&self) -> u64 {
        let object = &self.inner.loaded.object;
        let cpus = 0..object.cpus();
        cpus.map(|cpu| object.counters_of(cpu).of[counter::UNSENT])
            .sum()
    }

    /// Lets the role's process run the program once more on a packet that has been passed to it,
    /// and send the answer.
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

    /// Returns what the frames say: each copy has come to each member once, and all of them are the
    /// same.
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
                // Each script runs in both IP versions, at one card or another, because the
                // emulated machine takes seconds to load a program.
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

/// Returns those with frames of all kinds, malformed, long, over several partitions, signed, of
/// roles that need no host: what passes to one is counted nowhere.
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
